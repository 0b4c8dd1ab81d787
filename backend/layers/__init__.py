"""The layers that decoders are built from, over the operations in kernels/."""
