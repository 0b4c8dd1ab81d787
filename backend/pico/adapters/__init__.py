"""LoRA adapters of the family: gradable changes of style, in PEFT's format."""
