"""The device and worker options of the training commands."""

from __future__ import annotations

import argparse

import torch

GPU_WORKERS_HELP = (
    "with a GPU, the number that prefetch its data (8 is reasonable)"  # what `--workers` means there
)


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--device auto|cpu|cuda`, parsed to a torch.device."""
    parser.add_argument(
        "--device",
        type=device_named,
        default="auto",
        help="auto (default: a GPU if there is one), cpu or cuda",
    )


def positive(text: str) -> int:
    """Parse a number of processes. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes; give 1 or more")
    return int(text)


def device_named(name: str) -> torch.device:
    """Parse a device name. Raises ArgumentTypeError if it is unknown or torch finds no GPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose auto, cpu or cuda")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise argparse.ArgumentTypeError("torch finds no GPU for 'cuda'; choose auto or cpu")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")  # TF32: several times the speed of fp32 matrix products
    return torch.device("cuda")
