"""The stages that every request passes, and the one object that travels through them."""
