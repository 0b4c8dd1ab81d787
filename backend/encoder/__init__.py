"""Sentence embeddings: a BERT encoder on ONNX Runtime, without torch."""
