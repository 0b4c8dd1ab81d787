"""Time of guardrails: patterns on whole texts and on streams, with and without the model of names."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from guardrails.checks.personal_data import names
from guardrails.checks.personal_data.patterns import KINDS
from guardrails.masking import Masking
from tests.bench import report

TOKEN_CHARS = 4
TOKENS_PER_S = 100 * 100  # of 100 clients

PROSE = (
    "The committee met on Tuesday to look at the plan for the new bridge, which the city wants since 1987."
    " Most of the 14 speakers were in favour; some asked what the works would cost, and who will pay. "
)
LOG = (
    "2023-04-06T13:24:14.372Z WARN gateway timeout after 35s trace_id=27169561e21b31176d8279de87744a94\n"
    'GET /api/v2/items/3215687970?page=51&size=50 200 67713B 8ms "Mozilla/5.0 Chrome/120.0.0.0" 10.0.4.7\n'
)
CODE = (
    "def retry(fn, attempts=4, delay=2.3):\n    for i in range(attempts):\n        token = tokens[i]['x']\n"
)
DATA = (
    "{name}{n}@example.com, +49 30 9018{n}, card 4111 1111 1111 1111, from 8.8.{n}.8, "
    "key sk-proj-a{n}bcdefghijklmnop\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench guardrails`."""
    parser.add_argument("--repeats", type=int, default=15, help="the best of this many runs is reported")


def run(arguments: argparse.Namespace) -> None:
    """Measure processor time and print, in one process."""
    rows = [_row(name, text, arguments.repeats) for name, text in _texts().items()]
    report.show(
        "guardrails · personal data; the stream: 100 clients with 100 tokens/s each",
        rows,
        arguments.json,
    )


def _texts() -> dict[str, str]:
    draw = random.Random(0)
    data = "".join(DATA.format(name=draw.choice(["ann", "bob"]), n=draw.randint(100, 250)) for _ in range(10))
    texts = {"prose": PROSE, "code": CODE, "log lines": LOG, "personal data in every line": data}
    return {name: (text * (4096 // len(text) + 1))[:4096] for name, text in texts.items()}


def _row(name: str, text: str, repeats: int) -> dict[str, object]:
    row: dict[str, object] = {"text": name}
    for prefix, kinds in (("", KINDS), ("names too: ", (*KINDS, *names.KINDS))):
        masking = Masking(kinds, "mask")
        per_token_s = (
            _best_s(lambda masking=masking: _stream(masking, text), repeats) / len(text) * TOKEN_CHARS
        )
        whole_s = _best_s(lambda masking=masking: masking.mask(text), repeats)
        row[f"{prefix}us/KB"] = round(whole_s / len(text) * 1024e6, 1)
        row[f"{prefix}us/token of a stream"] = round(per_token_s * 1e6, 2)
        row[f"{prefix}stream, % of a core"] = round(100 * per_token_s * TOKENS_PER_S, 1)
    return row


def _stream(masking: Masking, text: str) -> None:
    scanner = masking.restorer(screens_answers=True)
    for start in range(0, len(text), TOKEN_CHARS):
        scanner.feed(text[start : start + TOKEN_CHARS])
    scanner.finish()


def _best_s(work: Callable[[], object], repeats: int) -> float:
    """The shortest processor time."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)
