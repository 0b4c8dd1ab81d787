"""LoRA adapters loaded and unloaded at run time: who may, from where, under which name."""
