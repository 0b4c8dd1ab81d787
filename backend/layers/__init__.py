"""The parts that decoders are built from; a family in models/ only arranges and names them."""
