"""TLS contexts for connections to upstreams."""

from __future__ import annotations

import ssl

from gateway.settings import SettingsError


def tls_context(ca_bundle: str = "") -> ssl.SSLContext:
    """Trust the CAs in the PEM file `ca_bundle`, by default the system's. Raises SettingsError."""
    try:
        return ssl.create_default_context(cafile=ca_bundle or None)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or "it holds no PEM certificate"
        if isinstance(error, ssl.SSLError):
            reason = "it holds no PEM certificate"
        raise SettingsError(f"the CA bundle {ca_bundle!r} cannot be read: {reason}") from None
