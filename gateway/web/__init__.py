"""HTTP on ASGI: one call, its deadlines, and the door through which all calls pass."""
