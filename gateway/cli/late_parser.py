"""A parser that declares its flags only when its command is given: some defaults are slow to import."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Declare = Callable[[argparse.ArgumentParser], None]


class LateParser(argparse.ArgumentParser):
    """The parser of a command."""

    def __init__(self, *arguments: Any, declare: Declare | None = None, **options: Any) -> None:  # noqa: ANN401
        """`declare` adds the flags; None where the caller does."""
        super().__init__(*arguments, **options)
        self._declare = declare

    def parse_known_args(self, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Declare the flags first."""
        declare, self._declare = self._declare, None
        if declare is not None:
            declare(self)
        return super().parse_known_args(*arguments, **options)
