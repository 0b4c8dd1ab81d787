"""The first question need not wait for language detection to load."""

from __future__ import annotations

from backend.encoder import language
from tests.gateway.pipeline.exchanges import response_cache


async def test_language_detection_is_loaded_at_the_start() -> None:
    language.identifier.cache_clear()
    language.language_of.cache_clear()
    cache = response_cache()
    await cache.start()
    assert language.identifier.cache_info().currsize == 1
    await cache.close()
