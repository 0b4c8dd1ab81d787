"""What an engine process would refuse at start, as far as configuration files tell: no torch, no weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from backend.config import ParallelConfig
from backend.digests import revision_of
from backend.lora.adapter_config import check_base, read_config
from backend.models.checkpoint_config import context_tokens, read_model_config
from backend.models.quantization import check_unquantized
from backend.models.weight_files import weight_files
from backend.parallel.shape import check_parallel
from backend.quant.prompts import read_prompts
from backend.tokenizer import Tokenizer


def check_model(folder: Path) -> None:
    """Raise CheckpointError unless the engine supports the model that config.json describes."""
    read_model_config(folder)


def check_files(folder: Path, *, is_served: bool = True) -> None:
    """Raise CheckpointError unless the tokenizer can be read and, to be served, the weights are there."""
    Tokenizer.from_checkpoint(folder)
    if is_served:
        weight_files(folder)


def weight_bytes(folder: Path) -> int:
    """The size of the files with the weights. Raises CheckpointError or OSError."""
    return sum(path.stat().st_size for path in weight_files(folder))


def read_identity(folder: Path) -> tuple[int, str]:
    """The vocabulary's size, and the weights' revision; "" where only the tokenizer is there.

    Raises CheckpointError.
    """
    has_weights = any(folder.glob("*.safetensors"))
    return read_model_config(folder).vocab_size, revision_of(folder) if has_weights else ""


def check_context(folder: Path, max_model_tokens: int | None) -> None:
    """Raise CheckpointError for a limit on the context that exceeds the checkpoint's own."""
    context_tokens(read_model_config(folder), max_model_tokens)


def check_quantize(folder: Path, calibration: str | None) -> None:
    """Raise CheckpointError for a checkpoint whose weights cannot be rounded, and for wrong prompts."""
    check_unquantized(read_model_config(folder))
    if calibration:
        read_prompts(Path(calibration).expanduser(), folder, 1)


def check_ranks(folder: Path, parallel: Mapping[str, int], drafters: Collection[str], scheme: str) -> None:
    """Raise CheckpointError for ranks that cannot be; `scheme`: how weights are rounded, "" for not."""
    config = ParallelConfig(**parallel)
    check_parallel(config, read_model_config(folder), drafters, quantizes=bool(scheme))


def check_adapter(folder: Path, served: Sequence[str], *, force: bool) -> None:
    """Raise AdapterError unless the adapter is LoRA and for this model, of which `served` are the names."""
    config = read_config(folder)
    if not force:
        check_base(folder, config.base, served)
