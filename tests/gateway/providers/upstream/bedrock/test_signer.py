"""Where the region and the credentials come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import UpstreamFailed
from gateway.providers.upstream.bedrock.signer import Signer
from gateway.settings import SettingsError


@pytest.fixture(autouse=True)
def no_aws_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


async def test_the_region_is_the_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    signer = Signer("m", "https://bedrock-runtime.ap-south-1.amazonaws.com")
    headers = await signer.headers("/model/x/converse", b"{}")
    assert "/ap-south-1/bedrock/aws4_request" in headers["authorization"]
    assert "content-type" not in headers


def test_without_a_region_it_does_not_start() -> None:
    with pytest.raises(SettingsError, match="AWS_DEFAULT_REGION is not set"):
        Signer("m", "http://127.0.0.1:1")


async def test_without_credentials_requests_fail_by_name() -> None:
    with pytest.raises(UpstreamFailed, match="has no AWS credentials for model 'm'"):
        await Signer("m", "https://bedrock-runtime.eu-west-1.amazonaws.com").headers("/x", b"")
