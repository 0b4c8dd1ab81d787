"""What can answer a request: our own engine, or an API that we call."""
