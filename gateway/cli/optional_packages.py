"""Names the extra of an optional package that a command lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gateway.settings import SettingsError

EVALUATION = {"httpx2", "openai", "rich"}


@contextlib.contextmanager
def named_missing_packages() -> Iterator[None]:
    """Raise SettingsError where an import inside lacks a package of the extra `eval`."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EVALUATION:  # an import of our own that is broken
            raise
        raise SettingsError(f"`penstock eval` needs {missing}: pip install 'penstock[eval]'") from None
