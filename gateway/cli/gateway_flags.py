"""The flags of every command that talks to a running gateway: where it is, and the key for it."""

from __future__ import annotations

import argparse


def add_gateway_flags(parser: argparse.ArgumentParser) -> None:
    """Declare `--url` and `--api-key`."""
    parser.add_argument("--url", help="gateway URL, default $PENSTOCK_URL or http://127.0.0.1:8080")
    parser.add_argument("--api-key", metavar="KEY", help="default: the first of $PENSTOCK_API_KEYS")


def gateway_of(options: argparse.Namespace) -> tuple[str, str]:
    """The URL and the key, "" for none. Raises SettingsError."""
    from gateway import settings  # here: slow to import
    from gateway.gateway_url import gateway_url

    url = options.url or settings.default_url()
    gateway_url(url)
    return url, settings.client_key(options.api_key)
