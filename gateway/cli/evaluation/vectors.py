"""The sentence vectors of many texts, with a progress bar."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder
from backend.errors import RequestError
from gateway.settings import SettingsError

BATCH_TOKENS = 512
Array = NDArray[np.float32]


def embed_all(
    texts: Sequence[str], num_threads: int | None, *, is_int8: bool = False, skip_long: bool = False
) -> dict[str, Array]:
    """The vector of each distinct text.

    Raises SettingsError for one that is too long; with `skip_long` it has no vector.
    """
    encoder = SentenceEncoder.from_checkpoint(BUILTIN, num_threads, is_int8=is_int8)
    distinct, ids = [], []
    for text in sorted(set(texts)):
        try:
            ids.append(encoder.tokenize([text])[0])
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
        vectors |= zip((distinct[i] for i in batch), encoder.embed([ids[i] for i in batch]), strict=True)
    return vectors
