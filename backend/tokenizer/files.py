"""Reads the tokenizer files of a checkpoint: special tokens, chat templates, EOS tokens.

Files take precedence over each other as in transformers, which writes them.
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
    """A checkpoint's tokenizer files, read and validated but not yet interpreted."""

    folder: Path
    tokenizer: str  # text of tokenizer.json
    decoder: dict[str, Any] | None  # the section `decoder` of tokenizer.json
    config: dict[str, Any]  # tokenizer_config.json; {} if missing
    special_tokens: dict[str, AddedToken]  # by the names that chat templates use, "bos_token" …
    chat_templates: dict[str, str]  # name → Jinja source; the main one is "default"
    eos_token_ids: tuple[int, ...]  # all tokens that end an answer; may be empty
    is_multimodal: bool = False  # the model reads images as well, or speech


def read_files(folder: Path) -> TokenizerFiles:
    """Read the folder. Raises CheckpointError if tokenizer.json is missing or any file is broken."""
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
        is_multimodal=bool(_text_config(_read_json(folder / "config.json"))),
    )


def read_eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Return all tokens that end an answer of the checkpoint in `folder`; missing files are skipped.

    These are the list in generation_config.json, else in config.json, plus the tokenizer's EOS token: chat
    models often name their end-of-turn token in only one of them.
    """
    config = _read_json(folder / "tokenizer_config.json")
    return _eos_token_ids(folder, config, _read_json(folder / "tokenizer.json"))


def as_added_token(value: str | dict[str, Any], path: Path) -> AddedToken:
    """Convert a token from a config file: a string, or a record with `content` and matching flags."""
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
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is not valid JSON ({error}): fetch it again.") from error
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
    """Return chat_template.jinja, else the template(s) in tokenizer_config.json, by name."""
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


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """What the config.json of a model of text and images says about its text; {} for other models."""
    found = config.get("text_config")
    return found if isinstance(found, dict) else {}


def _eos_token_ids(folder: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> tuple[int, ...]:
    ids: list[int] = []
    for path in (folder / "generation_config.json", folder / "config.json"):
        found = _read_json(path)
        value = found.get("eos_token_id", _text_config(found).get("eos_token_id"))
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
