"""KV memory: the page allocator, the prefix tree and the tensors."""
