"""The sentence vectors of many texts, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from backend.encoder.chosen import SHIPPED, ChosenEncoder
from backend.encoder.network import unit
from backend.errors import RequestError
from gateway.settings import SettingsError

BATCH_TOKENS = 512
Array = NDArray[np.float32]


def embed_all(
    texts: Sequence[str],
    num_threads: int | None,
    *,
    is_int8: bool = False,
    skip_long: bool = False,
    encoder: ChosenEncoder = SHIPPED,
) -> dict[str, Array]:
    """The vector of each distinct text, of length 1.

    Raises SettingsError for one that is too long; with `skip_long` it has no vector.
    """
    loaded = encoder.load(num_threads, is_int8=is_int8)
    distinct, ids = [], []
    for text in sorted(set(texts)):
        try:
            ids.append(loaded.tokenize([text])[0])
            distinct.append(text)
        except RequestError as error:
            if not skip_long:
                raise SettingsError(f"a question cannot be embedded: {error}") from None
    order = sorted(range(len(distinct)), key=lambda i: len(ids[i]))
    batches: list[list[int]] = [[]]
    for i in order:
        if batches[-1] and (len(batches[-1]) + 1) * len(ids[i]) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(i)
    vectors: dict[str, Array] = {}
    console = Console(stderr=True)
    for batch in track(batches, "Embedding", console=console, disable=not console.is_terminal):
        found = unit(loaded.embed([ids[i] for i in batch]))
        vectors |= zip((distinct[i] for i in batch), found, strict=True)
    return vectors
