"""Access tokens of Google Cloud: Application Default Credentials, found and renewed by google-auth."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import google.auth
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request

from gateway.errors import UpstreamFailed

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class GoogleCredentials:
    """Makes the header of a request; a new token is fetched when the old one is about to expire."""

    def __init__(self, model: str) -> None:
        """`model` is the name here, for errors."""
        self._model = model
        self._lock = asyncio.Lock()
        self._credentials: google.auth.credentials.Credentials | None = None

    async def headers(self) -> Mapping[str, str]:
        """The header that authenticates a request. Raises UpstreamFailed without a token."""
        credentials = self._credentials
        if credentials is None or not credentials.valid:
            async with self._lock:
                credentials = await asyncio.to_thread(self._renewed)
        return {"authorization": f"Bearer {credentials.token}"}

    def _renewed(self) -> google.auth.credentials.Credentials:
        try:
            if self._credentials is None:
                self._credentials, _ = google.auth.default(scopes=SCOPES)
            if not self._credentials.valid:
                self._credentials.refresh(Request())  # type: ignore[no-untyped-call]
            return self._credentials
        except GoogleAuthError as error:  # its text may name accounts and files
            raise UpstreamFailed(
                f"The gateway has no access token of Google for model {self._model!r} "
                f"({type(error).__name__}); its operator must check GOOGLE_APPLICATION_CREDENTIALS.",
                code="upstream_authentication_error",
            ) from error
