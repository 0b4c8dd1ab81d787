"""How long each engine has worked, from the gateway's metrics."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request

from gateway.settings import SettingsError

TIMEOUT_S = 10.0
SETTLE_S = 1.5
"""Longer than engines wait between two heartbeats, which carry the sums."""
_SUM = re.compile(r'^penstock_engine_step_seconds_sum\{model="([^"]+)"\} (\S+)$', re.MULTILINE)


async def machine_seconds(base_url: str) -> dict[str, float]:
    """Seconds of steps by model, since each engine has started. Raises SettingsError."""
    await asyncio.sleep(SETTLE_S)
    url = base_url.removesuffix("/v1") + "/metrics"
    try:
        text = await asyncio.to_thread(_read, url)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise SettingsError(f"{url} cannot be read ({error}): is it a gateway of Penstock?") from None
    return {model: float(value) for model, value in _SUM.findall(text)}


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:  # noqa: S310 - http(s), as checked
        return str(response.read().decode())
