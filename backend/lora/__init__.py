"""LoRA adapters: names, reading, host memory, device slots."""
