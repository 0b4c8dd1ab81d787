"""Export an adapter in PEFT format: `python -m backend.pico.adapters.export --name json --run-dir DIR`."""

from __future__ import annotations

import argparse
import hashlib
import logging
from pathlib import Path

from backend.classifiers.training_files import run
from backend.pico.adapters.card import write_card
from backend.pico.adapters.specs import SPECS
from backend.pico.adapters.train import Run, open_run
from backend.pico.adapters.weights import ADAPTERS, WEIGHTS, save_adapter

LOG = logging.getLogger("backend.pico.adapters.export")
MAX_BYTES = 400_000


def export(run: Run, folder: Path) -> Path:
    """Write weights, configuration and card of the adapter; return the path of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_adapter(run.adapted, folder)
    write_card(run.spec, folder)
    weights = folder / "adapter_model.safetensors"
    size = weights.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{weights.name} has {size} bytes, more than {MAX_BYTES}; choose a smaller rank")
    return weights


def main() -> None:
    """Export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=sorted(SPECS), required=True)
    parser.add_argument("--base", type=Path, help="folder of the base's weights; default: this package's")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="default: the weights of this package")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    base = options.base or WEIGHTS / SPECS[options.name].base
    run = open_run(options.run_dir, options.name, base, seed=0)
    weights = export(run, options.out or ADAPTERS / options.name)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    LOG.info("step %d, %d bytes, SHA-256 %s", run.step, weights.stat().st_size, digest)


if __name__ == "__main__":
    run(main)
