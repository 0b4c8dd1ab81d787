"""Sentences to vectors: a BERT-shaped sentence encoder on ONNX Runtime. No torch."""
