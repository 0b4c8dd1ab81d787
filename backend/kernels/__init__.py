"""Operations of a decoder, each with a plain torch implementation.

Each is a folder: __init__ checks and dispatches, reference.py is torch, kernel.py is Triton (GPU) and loop.py
is Numba (CPU). The reference has the kernel's signature, is its test's oracle, and runs where no kernel does.
On CUDA, experts run as torch operations; README.md lists the kernels and how they are checked.

draft_chain is a whole draft network in a Numba loop; the networks in backend/speculative are its oracle.
tiles, exponential and compiled are what Numba loops are made of.
"""
