from __future__ import annotations

import asyncio

import numpy as np
import pytest
from numpy import float32
from numpy.typing import NDArray

from gateway.errors import Unavailable
from gateway.response_cache.sampling import Sampler


async def embed(text: str) -> NDArray[float32] | None:
    """One direction a first word; "near" is close to all of them."""
    if text.startswith("unknown"):
        return None
    directions = {"Paris": (1.0, 0.0), "Rome": (0.0, 1.0), "It": (0.95, 0.31), "Perhaps": (0.8, 0.6)}
    return np.array(directions[text.split()[0]], float32)


async def verdict(one: str, other: str) -> tuple[list[str], list[bool]]:
    seen: list[str] = []
    judged: list[bool] = []
    sampler = Sampler(embed, lambda model, found: seen.append(f"{model} {found}"))

    async def texts() -> tuple[str, str]:
        return one, other

    sampler.consider(1.0, "m", texts, judged.append)
    await asyncio.gather(*sampler._running)
    return seen, judged


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("It is  Paris.", "It is Paris.", "right"),
        ("Paris is it", "It is Paris", "right"),
        ("Paris in 1990", "Paris in 1991", "wrong"),
        ("Paris", "Rome", "wrong"),
        ("Paris", "Perhaps Paris", "unsure"),
        ("Paris is it", "It is not Paris", "wrong"),
        ("unknown", "Paris", "unsure"),
    ],
)
async def test_verdicts(one: str, other: str, found: str) -> None:
    seen, judged = await verdict(one, other)
    assert seen == [f"m {found}"] and judged == ([] if found == "unsure" else [found == "right"])


async def test_a_share_is_sampled_and_one_check_runs_at_a_time() -> None:
    asked, go_on = 0, asyncio.Event()

    async def texts() -> tuple[str, str]:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return "a", "a"

    sampler = Sampler(embed, lambda model, found: None)
    for _ in range(5):
        sampler.consider(0.0, "m", texts, lambda is_right: None)
    for _ in range(5):
        sampler.consider(1.0, "m", texts, lambda is_right: None)
        await asyncio.sleep(0)
    assert asked == 1
    go_on.set()
    await asyncio.gather(*sampler._running)


async def test_a_model_that_is_away_gives_no_verdict() -> None:
    async def texts() -> tuple[str, str]:
        raise Unavailable("no")

    seen: list[str] = []
    sampler = Sampler(embed, lambda model, found: seen.append(found))
    sampler.consider(1.0, "m", texts, lambda is_right: None)
    await asyncio.gather(*sampler._running)
    assert seen == []
