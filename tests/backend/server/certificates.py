"""Certificates of two authorities, made when they are first asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files."""

    folder: Path

    @property
    def ca(self) -> str:
        """The authority."""
        return str(self.folder / "ca.pem")

    @property
    def certificate(self) -> str:
        """A certificate of 127.0.0.1, 127.0.0.2 and localhost by it."""
        return str(self.folder / "certificate.pem")

    @property
    def key(self) -> str:
        """The certificate's key."""
        return str(self.folder / "key.pem")


def make_certificates(folder: Path) -> Certificates:
    """By a new authority."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1", "127.0.0.2", "localhost")
    found = Certificates(folder)
    authority.cert_pem.write_to_path(found.ca)
    made.private_key_pem.write_to_path(found.key)
    found_certificate = Path(found.certificate)
    found_certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    return found
