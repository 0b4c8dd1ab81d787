"""Replies of a scripted server that are event streams of AWS."""

from __future__ import annotations

from tests.gateway.providers.upstream.provider_calls import Script
from tests.gateway.providers.upstream.scripted_server import END, STREAM_HEAD, always, chunk

HEAD = STREAM_HEAD.replace(b"text/event-stream", b"application/vnd.amazon.eventstream")


def stream_reply(*pieces: bytes, end: bytes = END) -> Script:
    return always(HEAD, *map(chunk, pieces), end, close=not end)
