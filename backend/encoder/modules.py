"""What a folder of sentence-transformers says about its model, read without the library and without torch.

Only what is known to be data is accepted: modules of the library, safetensors, no code of the folder's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from backend.errors import CheckpointError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""How token vectors become one."""
_LIBRARY = "sentence_transformers."
_KINDS = ("Transformer", "Pooling", "Dense", "Normalize")
_LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
_TEXT = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
"""Settings of a transformer that reads text; a key that is missing has this value."""
_PLAIN_KEYS = {"max_seq_length", "do_lower_case", *_TEXT}
"""Keys of a transformer's settings that are read. Others change how the library loads it."""
_NO_LENGTH = 1e9
"""A tokenizer without a limit has a huge one."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a sentence encoder, in order: a transformer, a pooling, then layers over the vector."""

    transformer: Path  # its folder
    pooling: tuple[str, ...]  # of POOLING_MODES; the results are joined
    pools_prompt: bool = True
    num_dense: int = 0
    output_size: int | None = None  # of the last dense layer
    is_normalized: bool = False
    weights: tuple[Path, ...] = ()  # safetensors
    is_lower_case: bool = False
    max_tokens: int | None = None


def read_modules(folder: Path, pooling: str | None = None) -> Modules:
    """Read modules.json and what it names. Raises CheckpointError.

    `pooling`: of a folder without modules.json, which says nothing about it.
    """
    listed = _list(folder, pooling)
    if listed is None:
        assert pooling is not None
        modes: tuple[str, ...] = (pooling,)
        return _with_length(folder, Modules(folder, modes, weights=weights_of(folder)))
    kinds = [kind for kind, _ in listed]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        raise CheckpointError(
            f"The encoder in {str(folder)!r} has the modules {', '.join(kinds)}: Transformer and Pooling are "
            "served, with Dense and Normalize after them."
        )
    transformer = listed[0][1]
    modes, pools_prompt = _pooling(listed[1][1])
    dense = [path for kind, path in listed if kind == "Dense"]
    sizes = [_dense_size(path) for path in dense]
    for kind, path in listed:
        if kind == "Normalize":
            _check_normalize(path)
    found = Modules(
        transformer,
        modes,
        pools_prompt,
        len(dense),
        sizes[-1] if sizes else None,
        kinds[-1] == "Normalize",
        weights=tuple(file for path in (transformer, *dense) for file in weights_of(path)),
    )
    return _with_length(transformer, found)


def _list(folder: Path, pooling: str | None) -> list[tuple[str, Path]] | None:
    """(kind, folder) of each module; None without modules.json."""
    path = folder / "modules.json"
    if not path.exists():
        if pooling is None:
            raise CheckpointError(
                f"{str(folder)!r} has no modules.json, so nothing says how token vectors become one: give "
                "`pooling`, such as mean, or the folder that sentence-transformers saved."
            )
        return None
    if pooling is not None:
        raise CheckpointError(f"{str(path)!r} says how {str(folder)!r} pools: leave `pooling` out.")
    entries = read_json(path, list)
    found: list[tuple[str, Path]] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise CheckpointError(f"{str(path)!r} holds {entry!r}, which is no module: fetch it again.")
        kind, place = str(entry.get("type")), str(entry.get("path", ""))
        name = kind.rpartition(".")[2]
        if not kind.startswith(_LIBRARY) or name not in _KINDS:
            raise CheckpointError(
                f"{str(path)!r} names the module {kind!r}: only {', '.join(_KINDS)} of sentence-transformers "
                "are served, and code of a checkpoint is never run."
            )
        if PurePosixPath(place).is_absolute() or ".." in PurePosixPath(place).parts:
            raise CheckpointError(f"{str(path)!r} names the folder {place!r}, which is outside of it.")
        found.append((name, folder / place))
    return found


def _pooling(folder: Path) -> tuple[tuple[str, ...], bool]:
    """The modes, and whether the tokens of a prompt take part."""
    path = folder / "config.json"
    config = read_json(path)
    given = config.get("pooling_mode")
    if given is None:
        suffixes = {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"}
        names = suffixes | {"weightedmean_tokens": "weightedmean"} | {name: name for name in POOLING_MODES}
        flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        given = [names.get(flag.removeprefix("pooling_mode_"), flag) for flag in flags]
        given.sort(key=lambda mode: POOLING_MODES.index(mode) if mode in POOLING_MODES else -1)
    modes = tuple([given] if isinstance(given, str) else given if isinstance(given, list) else ())
    unknown = [mode for mode in modes if mode not in POOLING_MODES]
    if unknown or not modes:
        what = f"the pooling {unknown[0]!r}" if unknown else "no pooling"
        raise CheckpointError(f"{str(path)!r} names {what}: known are {', '.join(POOLING_MODES)}.")
    return modes, config.get("include_prompt", True) is not False


def _dense_size(folder: Path) -> int:
    """How many numbers a dense layer gives."""
    path = folder / "config.json"
    config = read_json(path)
    activation = str(config.get("activation_function", "torch.nn.Tanh"))
    if not activation.startswith("torch.nn."):
        raise CheckpointError(f"{str(path)!r} names the activation {activation!r}: only torch.nn's are run.")
    weights_of(folder)
    return number(path, config, "out_features")


def _check_normalize(folder: Path) -> None:
    path = folder / "config.json"
    config = read_json(path) if path.exists() else {}
    name = config.get("module_input_name", "sentence_embedding")
    if name != "sentence_embedding":
        raise CheckpointError(f"{str(path)!r} normalises {name!r}: only the sentence's vector is supported.")


def _with_length(folder: Path, modules: Modules) -> Modules:
    """With what the settings of the transformer say."""
    path = next((folder / name for name in _LENGTH_FILES if (folder / name).exists()), None)
    config = {} if path is None else read_json(path)
    used = {key for key, value in config.items() if value not in (None, {}, [])}
    if path is not None and used - _PLAIN_KEYS:
        raise CheckpointError(
            f"{str(path)!r} sets {min(used - _PLAIN_KEYS)!r}, which is not supported: remove it, or save the "
            "model without it."
        )
    if any(config.get(key, value) != value for key, value in _TEXT.items()):
        raise CheckpointError(
            f"{str(path)!r} is not of an encoder of plain text, whose hidden states are pooled."
        )
    is_lower_case = config.get("do_lower_case") is True
    if path is not None and config.get("max_seq_length") is not None:
        return replace(
            modules, is_lower_case=is_lower_case, max_tokens=number(path, config, "max_seq_length")
        )
    tokenizer = folder / "tokenizer_config.json"  # where newer versions of the library write the length
    length = read_json(tokenizer).get("model_max_length") if tokenizer.exists() else None
    is_limit = isinstance(length, (int, float)) and 1 <= length < _NO_LENGTH
    return replace(modules, is_lower_case=is_lower_case, max_tokens=int(length or 0) if is_limit else None)


def weights_of(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a module. Raises CheckpointError, by name for files that can run code."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if index.is_file():
        names = sorted({str(name) for name in read_json(index).get("weight_map", {}).values()})
        for name in names:
            if PurePosixPath(name).name != name or not (folder / name).is_file():
                raise CheckpointError(f"{str(index)!r} names {name!r}, which is missing: fetch it again.")
        if names:
            return tuple(folder / name for name in names)
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{str(folder)!r} holds its weights only as {pickled[0]!r}, a format that can run code when "
            "it is read: convert them to safetensors, as sentence-transformers saves them."
        )
    raise CheckpointError(f"{str(single)!r} is missing: fetch the encoder again.")


def number(path: Path, config: Mapping[str, Any], key: str) -> int:
    """A positive whole number of a configuration. Raises CheckpointError."""
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{str(path)!r} has {key} {value!r}, not a whole number from 1: fetch it again."
        )
    return value


def read_json(path: Path, kind: type[Any] = dict) -> Any:  # noqa: ANN401 - JSON
    """The content of a JSON file, an object unless `kind` is list. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is missing or not JSON: fetch the encoder again.") from error
    if not isinstance(value, kind):
        what = "list" if kind is list else "object"
        raise CheckpointError(f"{str(path)!r} is not a JSON {what}: fetch the encoder again.")
    return value
