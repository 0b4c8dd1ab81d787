"""What errors may quote of a request: identifiers.

Any other string may be text of a prompt in the wrong field.
"""

from __future__ import annotations

import re

FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""A function's name, as OpenAI defines it."""

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""A field of the API, or a property in a JSON schema."""

CALL_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
"""The id of a tool call."""

CHOICE = re.compile(r"[A-Za-z0-9_.-]{1,16}")
"""A value of a closed enumeration, such as `reasoning_effort`: short, as the wrong ones are typing errors."""


def quoted(value: object, kind: re.Pattern[str], otherwise: str = "") -> str:
    """The value's `repr` when it is an identifier of this kind, else `otherwise`."""
    return repr(value) if isinstance(value, str) and kind.fullmatch(value) else otherwise


def text_name(name: str) -> str:
    """A decoder's tensor or module in a checkpoint of several models, under the name that it has alone.

    transformers 5 writes `model.language_model.layers…` and `lm_head`; before, and in many adapters, they are
    `language_model.model.layers…` and `language_model.lm_head`.
    """
    inner = name.removeprefix("model.language_model.")
    return f"model.{inner}" if inner != name else name.removeprefix("language_model.")
