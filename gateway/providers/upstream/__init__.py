"""HTTP APIs as providers: the transport, the reading of their answers and of their errors."""
