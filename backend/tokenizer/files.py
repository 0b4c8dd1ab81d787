"""What a checkpoint folder says about its text: special tokens, chat templates, end-of-sequence tokens.

Precedence between files is that of transformers, which wrote them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from backend.errors import CheckpointError

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The text side of a checkpoint, read and checked but not yet interpreted."""

    folder: Path
    tokenizer: str  # tokenizer.json as it is
    decoder: dict[str, Any] | None  # its section of that name
    config: dict[str, Any]  # tokenizer_config.json; {} when there is none
    special_tokens: dict[str, AddedToken]  # "bos_token" … as chat templates name them
    chat_templates: dict[str, str]  # name → Jinja source; the usual one is "default"
    eos_token_ids: tuple[int, ...]  # every token that ends an answer; may be empty


def read_files(folder: Path) -> TokenizerFiles:
    """Read `folder`. Raises CheckpointError when tokenizer.json is missing or any file is broken."""
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {str(folder)!r}: give the checkpoint's folder.")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"There is no tokenizer.json in {str(folder)!r}: save the checkpoint's tokenizer in the format "
            "of the `tokenizers` library (save_pretrained of transformers does)."
        )
    config = _read_json(folder / "tokenizer_config.json")
    tokenizer = _read_json(path)
    return TokenizerFiles(
        folder=folder,
        tokenizer=_read_text(path),
        decoder=tokenizer.get("decoder"),
        config=config,
        special_tokens=_special_tokens(config, _read_json(folder / "special_tokens_map.json")),
        chat_templates=_chat_templates(folder, config),
        eos_token_ids=_eos_token_ids(folder, config, tokenizer),
    )


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Every token that ends an answer of the checkpoint in `folder`; files that are missing say nothing.

    The list of generation_config.json, else of config.json, and the tokenizer's own EOS token: chat models
    often name their end of turn in only one of them.
    """
    config = _read_json(folder / "tokenizer_config.json")
    return _eos_token_ids(folder, config, _read_json(folder / "tokenizer.json"))


def as_added_token(value: str | dict[str, Any], path: Path) -> AddedToken:
    """A token as config files write it: its text, or a record with its text and how it matches."""
    if isinstance(value, str):
        return AddedToken(value, special=True, normalized=False)
    content = value.get("content")
    if not isinstance(content, str):
        raise CheckpointError(f"{str(path)!r} lists a token without its text (`content`): {value!r}.")
    flags = {name: bool(value.get(name, False)) for name in ("lstrip", "rstrip", "single_word")}
    special = bool(value.get("special", True))
    flags["normalized"] = bool(value.get("normalized", not special))
    return AddedToken(content, special=special, **flags)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{str(path)!r} is not UTF-8 (byte {error.start}): fetch it again.") from error
    except OSError as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error.strerror}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{str(path)!r} is not valid JSON (line {error.lineno}: {error.msg}): fetch it again."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{str(path)!r} holds a {type(value).__name__}, not an object: fetch it again.")
    return value


def _special_tokens(config: dict[str, Any], legacy: dict[str, Any]) -> dict[str, AddedToken]:
    tokens = {}
    for source, path in ((legacy, "special_tokens_map.json"), (config, "tokenizer_config.json")):
        for name, value in source.items():
            if name.endswith("_token") and isinstance(value, str | dict) and value:
                tokens[name] = as_added_token(value, Path(path))
    return tokens


def _chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """The file chat_template.jinja, else the key of tokenizer_config.json (one source, or a named list)."""
    named = {path.stem: _read_text(path) for path in sorted((folder / TEMPLATE_FOLDER).glob("*.jinja"))}
    if (folder / TEMPLATE_FILE).is_file():
        return {**named, "default": _read_text(folder / TEMPLATE_FILE)}
    value = config.get("chat_template")
    if value is None:
        return named
    if isinstance(value, str):
        return {**named, "default": value}
    try:
        return {**named, **{str(entry["name"]): str(entry["template"]) for entry in value}}
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"`chat_template` in {str(folder / 'tokenizer_config.json')!r} is neither a template nor a list "
            "of {name, template}: fetch the file again."
        ) from error


def _eos_token_ids(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        value = _read_json(path).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(token_id) is int and token_id >= 0 for token_id in ids):
            raise CheckpointError(f"`eos_token_id` in {str(path)!r} is {value!r}: it must be token ids.")
        break
    legacy = _read_json(folder / "special_tokens_map.json")
    eos = _special_tokens(config, legacy).get("eos_token")
    if eos is not None:
        vocab = tokenizer.get("model", {}).get("vocab", {})
        known = dict(vocab) if isinstance(vocab, dict) else {}
        known.update((token["content"], token["id"]) for token in tokenizer.get("added_tokens", []))
        ids = [*ids, *([known[eos.content]] if eos.content in known else [])]
    return tuple(dict.fromkeys(ids))
