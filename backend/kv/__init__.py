"""KV memory: page numbers, the prefix tree over them, and the tensors."""
