"""One folder per operation: __init__ checks and dispatches, reference is torch, kernel is Triton or Numba.

The reference is the CPU path and the oracle of the kernel's test: same signature, same result. greedy_chain
and round_layer have none: they are CPU paths themselves, of a whole model and of parts of a layer; torch and
transformers are their oracles. lora has a second CPU path, loop, for a step's few rows; experts has one,
kernel.py, for small experts. tiles is no operation, but what such loops multiply with.
"""
