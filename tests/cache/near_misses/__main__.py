"""Writes the near misses: `python -m tests.cache.near_misses FILE [--count N] [--seed S]`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tests.cache.near_misses import Generator


def main() -> None:
    """Write JSON lines with `a`, `b`, `same` and `kind`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=25, help="pairs of each kind, default 25")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    pairs = Generator(options.seed).pairs(options.count)
    rows = [json.dumps(pair._asdict() | {"source": "near misses"}, ensure_ascii=False) for pair in pairs]
    options.file.write_text("\n".join(rows) + "\n", "utf-8")


if __name__ == "__main__":
    main()
