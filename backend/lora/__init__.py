"""LoRA adapters: reading them, which are on the device, and who may use them now."""
