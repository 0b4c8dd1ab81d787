"""Is this text allowed, and what must be masked in it. Pure on text: knows neither HTTP nor the gateway."""
