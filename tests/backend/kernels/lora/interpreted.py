"""Compares Triton's kernels, interpreted on the CPU, with the reference: for test_lora.py."""

from __future__ import annotations

import numpy as np
import torch

from backend.kernels.lora import AdapterRows, kernel, reference
from tests.backend.kernels.lora.test_lora import CPU, FEATURES, NARROW, PATTERNS, make_weights


def main() -> None:
    for columns in (NARROW, (70, 150)):
        weights, _ = make_weights(columns)
        for name, slots in PATTERNS.items():
            rows = AdapterRows(np.array(slots), CPU)
            x = torch.randn(len(slots), FEATURES)
            ours = torch.randn(len(slots), sum(columns))
            theirs = ours.clone()
            kernel.add_adapters(ours, x, weights, rows.on_device)
            reference.add_adapters(theirs, x, weights, rows)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


if __name__ == "__main__":
    main()
