"""One section in a process of its own: python -m tests.bench.gpu SECTION DEVICE CARD prints its lines."""

from __future__ import annotations

import json
import sys

from tests.bench.gpu.cards import CARDS
from tests.bench.gpu.measures import SECTIONS

if __name__ == "__main__":
    name, device, card = sys.argv[1:]
    for row in SECTIONS[name](device, CARDS[card]):
        print(json.dumps(row), flush=True)
