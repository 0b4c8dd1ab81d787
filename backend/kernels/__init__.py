"""Operations of a decoder, each with a plain torch implementation.

An operation without a kernel is one module: rms_norm, rotary, swiglu. The others are folders: __init__ checks
and dispatches, reference.py is torch, and kernel.py is Triton (GPU) or Numba (CPU). The reference has the
kernel's signature, is its test's oracle, and runs where no kernel does. Today only lora has a GPU kernel:
attention, norms, rotary embedding, SwiGLU and experts run as torch operations on CUDA.

The Numba loops that drafters use (greedy_chain, mixture_chain, round_layer) cover whole models or layers;
torch and transformers are their oracles. tiles, exponential and compiled are what Numba loops are made of.
"""
