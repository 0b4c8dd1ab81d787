"""Training of the model of names; its card says on what."""
