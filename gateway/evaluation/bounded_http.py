"""The HTTP client under the SDK of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

from gateway.providers.upstream.httpx_transport import proxy_with_tls
from gateway.providers.upstream.tls import tls_context

CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_FRAMING_HEADERS = {"content-encoding", "content-length", "transfer-encoding"}


class AnswerTooLong(Exception):
    """An answer of more than MAX_ANSWER_BYTES, which is not read to its end."""


class BoundedHttp(httpx2.AsyncClient):
    """Reads nothing from the environment, follows no redirects, and bounds answers, which it reads whole.

    `hidden_status` finds the status in the body of an error that came with status 200, 0 when it is none. The
    answer gets that status, so that the SDK treats it, and retries it, like any other.
    """

    def __init__(self, proxy: str, hidden_status: Callable[[bytes], int]) -> None:
        """`proxy`: a URL, or "" for none."""
        tls = tls_context()
        super().__init__(
            verify=tls,
            proxy=proxy_with_tls(proxy, tls),
            trust_env=False,
            follow_redirects=False,
            limits=httpx2.Limits(),  # the runner bounds the requests at once
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        )
        self._hidden_status = hidden_status

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:  # noqa: ANN401
        """Send the request and read the whole answer. Raises AnswerTooLong, and what httpx does."""
        response = await super().send(request, **{**options, "stream": True})
        try:
            body = await _read(response)
        finally:
            await response.aclose()
        status = response.status_code
        if status == httpx2.codes.OK:
            status = self._hidden_status(body) or status
        headers = [pair for pair in response.headers.multi_items() if pair[0] not in _FRAMING_HEADERS]
        return httpx2.Response(status, headers=headers, content=body, request=request)


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise AnswerTooLong(f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
    return bytes(body)
