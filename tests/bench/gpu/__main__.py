"""A section in a process of its own: python -m tests.bench.gpu SECTION DEVICE CARD SECONDS QUICK."""

from __future__ import annotations

import json
import sys

from tests.bench.gpu import measures, served, served_ratios
from tests.bench.gpu.cards import CARDS
from tests.bench.gpu.served import Setting

SERVED = {
    "equal": served.equal,
    "alone": served.alone,
    "batch": served.batch,
    "mixtral": served.mixtral,
    "70b": served.large,
    "drafts": served_ratios.drafts,
    "adapters": served_ratios.adapters,
    "prefix": served_ratios.prefix,
}

if __name__ == "__main__":
    name, device, card, seconds, is_quick = sys.argv[1:]
    if name in SERVED:
        rows = SERVED[name](Setting(device, CARDS[card], float(seconds), is_quick == "True"))
    else:
        rows = measures.SECTIONS[name](device, CARDS[card])
    for row in rows:
        print(json.dumps(row), flush=True)
