"""Types of names that several sections of the policy language share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", max_length=128)]
"""A model or route name, as clients send it."""
