"""One module per command: `add` declares its flags, `run` imports what it needs and does it."""
