"""The engine's process and the client through which the gateway reaches it."""
