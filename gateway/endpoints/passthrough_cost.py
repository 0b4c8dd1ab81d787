"""What an answer that passes through has cost: tokens, images and seconds, as far as it tells."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.accounting.ledger import cost_usd
from gateway.accounting.receipt import Charged
from gateway.answer import Usage
from gateway.batches.lines import usage_of
from policies.prices import Price

MAX_COUNTED_BYTES = 1 << 20
"""Size of a JSON answer whose usage is counted; images are counted in any."""
_IMAGE = re.compile(rb'"(?:b64_json|url)"\s{0,8}:\s{0,8}"')
_LONGEST_MATCH = 28
_Seconds = Annotated[float, Meta(ge=0, le=1e6)] | None


class _Duration(msgspec.Struct):
    seconds: _Seconds = None


class _Media(msgspec.Struct):
    """A transcription tells `usage.seconds`, or `duration` if it is verbose; a video `seconds`, as text."""

    usage: _Duration | None = None
    duration: _Seconds = None
    seconds: _Seconds = None


_decode_media = msgspec.json.Decoder(_Media, strict=False).decode


class PassthroughCost:
    """Follows one answer. Reading, as of a job that is asked for again and again, costs nothing."""

    def __init__(self, price: Price | None, method: str) -> None:
        self._price, self._is_paid = price if method == "POST" else None, method == "POST"
        self._body: bytearray | None = None
        self._tail = b""
        self._num_images = 0
        self._is_answered = self._is_json = False

    def begin(self, status: int, media_type: str) -> None:
        """An answer arrives. Errors cost nothing."""
        self._is_answered = status < 400
        self._is_json = self._is_answered and self._is_paid and media_type.startswith("application/json")
        self._body = bytearray() if self._is_json else None

    def add(self, piece: bytes) -> None:
        """Take the next bytes."""
        if self._is_json and self._price is not None and self._price.image_usd:
            self._tail += piece
            end = 0
            for found in _IMAGE.finditer(self._tail):
                self._num_images += 1
                end = found.end()
            self._tail = self._tail[max(end, len(self._tail) - _LONGEST_MATCH) :]
        if self._body is not None:
            self._body += piece
            self._body = None if len(self._body) > MAX_COUNTED_BYTES else self._body

    @property
    def usage(self) -> Usage | None:
        """Its tokens, where it tells them."""
        found = usage_of(bytes(self._body or b"{}"))
        if not found.total_tokens:
            return None
        of_input, of_output = found.input_tokens_details, found.output_tokens_details
        counts = (found.input_tokens, found.output_tokens, of_input.cached_tokens, of_output.reasoning_tokens)
        return Usage(*counts)

    def charged(self, usage: Usage | None) -> Charged:
        """All of it, after its end or before."""
        usage, price = usage or Usage(), self._price
        if price is None or not self._is_answered:
            return Charged(usage)
        usd = cost_usd(price, usage) or price.request_usd
        usd += self._num_images * price.image_usd + self._seconds() * price.second_usd
        return Charged(usage, usd)

    def _seconds(self) -> float:
        try:
            found = _decode_media(self._body or b"{}")
        except (ValueError, RecursionError):  # an upstream's, which may be no JSON
            return 0.0
        of_usage = found.usage.seconds if found.usage is not None else None
        return of_usage or found.duration or found.seconds or 0.0
