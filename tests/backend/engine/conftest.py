from __future__ import annotations

import torch

# Tiny models gain nothing from threads, and lose much where other processes use the cores.
torch.set_num_threads(1)
