"""Reads the prompts that weights are rounded for. No message shows anything of them."""

from __future__ import annotations

import errno
import json
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from backend.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from backend.tokenizer import Tokenizer

_SEQUENCE_TOKENS = 512
_MOST_TOKENS = 1 << 15
"""More prompts than that hardly change what is rounded how."""
_MOST_CHARS = 1 << 22  # of a text: more than that many tokens, save in texts of blanks


def open_prompts(path: Path) -> BufferedReader:
    """Open the file. Raises CheckpointError, also for pipes and devices: reading these may never end."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise OSError(errno.EINVAL, "not a file")
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"quantize.calibration: {path} cannot be read ({error.strerror}); give a file of prompts, or "
            "remove the key"
        ) from None


def read_prompts(path: Path, checkpoint: Path, max_tokens: int) -> list[list[int]]:
    """Token ids of prompts of at most `max_tokens`: of each line of JSONL, or of pieces of a text."""
    from backend.tokenizer import Tokenizer  # a model is loaded without one too

    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    length = min(_SEQUENCE_TOKENS, max_tokens)
    found: list[list[int]] = []
    try:
        with TextIOWrapper(
            open_prompts(path), "utf-8-sig"
        ) as file:  # only as much as counts: a file may be huge
            if path.suffix != ".jsonl":
                tokens = tokenizer.encode_beginning(file.read(_MOST_CHARS), _MOST_TOKENS)
                found = [tokens[begin : begin + length] for begin in range(0, len(tokens), length)]
            else:
                found = _lines(file, tokenizer, length)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"quantize.calibration: {path} cannot be read as UTF-8 ({type(error).__name__})"
        ) from None
    found = [tokens for tokens in found if tokens]
    if not found:
        raise CheckpointError(f"quantize.calibration: {path} holds no prompt; add some, or remove the key")
    return found


def _lines(file: TextIO, tokenizer: Tokenizer, length: int) -> list[list[int]]:
    """The tokens of each line, at most `length`, until there are enough."""
    found: list[list[int]] = []
    left = _MOST_TOKENS
    for number, line in enumerate(file, 1):
        if left <= 0:
            break
        if line.strip():
            found.append(_tokens(tokenizer, line, f"{file.name}, line {number}")[: min(length, left)])
            left -= len(found[-1])
    return found


def _tokens(tokenizer: Tokenizer, line: str, place: str) -> list[int]:
    try:
        match json.loads(line):
            case str(text) | {"prompt": str(text)} | {"text": str(text)}:
                return tokenizer.encode(text)
            case {"messages": [*messages]}:
                return tokenizer.encode_chat(messages, add_generation_prompt=False)
    except (ValueError, RecursionError, RequestError, AttributeError, TypeError):
        pass  # messages of these quote the text
    raise CheckpointError(
        f'quantize.calibration: {place}: expected a text, or an object with "prompt", "text" or "messages"'
    )
