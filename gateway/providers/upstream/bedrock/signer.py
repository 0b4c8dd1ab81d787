"""Signs requests with AWS credentials: of the environment, profiles, containers or the instance."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from gateway.errors import UpstreamFailed
from gateway.settings import SettingsError

_REGION = re.compile(r"bedrock-runtime(-fips)?\.(?P<region>[a-z0-9-]+)\.")


class Signer:
    """Makes the headers of Signature Version 4, in a thread: finding credentials may call AWS."""

    def __init__(self, model: str, base_url: str) -> None:
        """The region is the URL's, else that of AWS's settings. Raises SettingsError without one."""
        self._model = model
        self._base_url = base_url.rstrip("/")
        self._session = Session()
        found = _REGION.match(urlsplit(base_url).hostname or "")
        self._region = found["region"] if found else self._session.get_config_variable("region")
        if not self._region:
            raise SettingsError(
                f"model {model!r}: its base_url names no AWS region, and AWS_DEFAULT_REGION is not set"
            )

    async def headers(self, path: str, body: bytes) -> Mapping[str, str]:
        """The headers that authenticate a POST. Raises UpstreamFailed without credentials."""
        try:
            return await asyncio.to_thread(self._sign, path, body)
        except BotoCoreError as error:  # its text may name hosts and profiles
            raise self._failed(type(error).__name__) from error

    def _sign(self, path: str, body: bytes) -> Mapping[str, str]:
        credentials = self._session.get_credentials()
        if credentials is None:
            raise self._failed("there are none")
        signer = SigV4Auth(credentials.get_frozen_credentials(), "bedrock", self._region)
        headers = {"content-type": "application/json"}
        request = AWSRequest("POST", self._base_url + path, headers=headers, data=body)
        signer.add_auth(request)
        del request.headers["content-type"]  # which all requests have
        return {name.lower(): value for name, value in request.headers.items()}

    def _failed(self, why: str) -> UpstreamFailed:
        return UpstreamFailed(
            f"The gateway has no AWS credentials for model {self._model!r} ({why}); its operator must check "
            "the credentials that AWS's tools find, or set `api_key_env`.",
            code="upstream_authentication_error",
        )
