"""Where the family is trained: on a GPU where there is one, else on the CPU."""

from __future__ import annotations

import argparse

import torch

FOR_A_GPU = "with a GPU, so many make its data, and 8 are not too many"  # what `--workers` is there


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """`--device auto|cpu|cuda`, as a torch.device."""
    parser.add_argument(
        "--device",
        type=device_named,
        default="auto",
        help="auto (default: a GPU if there is one), cpu or cuda",
    )


def positive(text: str) -> int:
    """A number of processes. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; give 1 or more")
    return int(text)


def device_named(name: str) -> torch.device:
    """Raises ArgumentTypeError for an unknown name, and for a GPU that torch does not find."""
    if name not in ("auto", "cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; choose auto, cpu or cuda")
    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise argparse.ArgumentTypeError("torch finds no GPU for 'cuda'; choose auto or cpu")
    if name == "cpu" or not has_gpu:
        return torch.device("cpu")
    torch.set_float32_matmul_precision("high")  # TF32: several times as fast as products of full fp32
    return torch.device("cuda")
