"""One folder per operation: __init__ checks and dispatches, reference is torch, kernel is Triton or Numba.

The reference is the CPU path and the oracle of the kernel's test: same signature, same result.
"""
