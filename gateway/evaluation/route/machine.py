"""How much each engine has worked and computed, from the gateway's metrics."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.settings import SettingsError

TIMEOUT_S = 10.0
SETTLE_S = 1.5
"""Longer than engines wait between two heartbeats, which carry the sums."""
_SUM = re.compile(
    r"^penstock_engine_(work_seconds|prompt_tokens|prefix_hit_tokens|generated_tokens)_total"
    r'\{model="([^"]+)"\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one engine."""

    seconds: float = 0.0  # of its thread or device: another process that takes the core does not count
    # Of prompts and answers with reasoning, rejected ones too. Prefix hits count as if computed: there are so
    # many only because all subjects are asked the same.
    tokens: float = 0.0

    def __sub__(self, other: Work) -> Work:
        return Work(self.seconds - other.seconds, self.tokens - other.tokens)

    def __add__(self, other: Work) -> Work:
        return Work(self.seconds + other.seconds, self.tokens + other.tokens)


async def engine_work(base_url: str) -> dict[str, Work]:
    """By model, since each engine has started. Raises SettingsError."""
    await asyncio.sleep(SETTLE_S)
    url = base_url.removesuffix("/v1") + "/metrics"
    try:
        text = await asyncio.to_thread(_read, url)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise SettingsError(f"{url} cannot be read ({error}): is it a gateway of Penstock?") from None
    found: dict[str, Work] = {}
    for kind, model, value in _SUM.findall(text):
        one = Work(seconds=float(value)) if kind == "work_seconds" else Work(tokens=float(value))
        found[model] = found.get(model, Work()) + one
    return found


def spent(before: Mapping[str, Work], after: Mapping[str, Work]) -> dict[str, Work]:
    """Between two readings."""
    return {model: work - before.get(model, Work()) for model, work in after.items()}


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # http(s), as checked
        return str(response.read().decode())
