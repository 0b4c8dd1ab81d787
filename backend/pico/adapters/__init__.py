"""LoRA adapters of the family: small changes of manner that can be graded, in PEFT's format."""
