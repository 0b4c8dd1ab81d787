"""One folder per operation: __init__ checks and dispatches, reference is torch, kernel is Triton or Numba.

The reference is the CPU path and the oracle of the kernel's test: same signature, same result. greedy_chain
has none: it is a CPU path itself, and a whole model; its oracles are that model in transformers and in torch.
lora has a second CPU path, loop.py, for a step's few rows, and experts' kernel is one for small experts.
tiles is no operation, but what such loops multiply with.
"""
