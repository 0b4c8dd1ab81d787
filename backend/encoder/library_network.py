"""Any encoder that sentence-transformers knows, on torch: what the ONNX graph cannot compute.

Only processes that run such an encoder import this module, by name. The folder was checked before
(modules.py): modules of the library, safetensors, no code of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

# Before the imports, which read them: a folder is complete, so nothing is ever looked up in the network, and
# threads that spin would take cores from other work (encoder processes start with it, commands do not).
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer
from transformers.utils import logging as library_logging

from backend.encoder.checkpoint import MAX_TOKENS, Checkpoint
from backend.errors import CheckpointError

_LOCAL = {"local_files_only": True, "trust_remote_code": False}
_UNUSED = {"pooler", "lm_head"}
"""Parts whose weights may be missing: no vector comes from them."""


class LibraryNetwork:
    """The library's modules, called as its `encode` calls them."""

    def __init__(self, checkpoint: Checkpoint, num_threads: int | None) -> None:
        """Raises CheckpointError for what the library cannot load, or only in part."""
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
        library_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            self._model = _load(checkpoint)
            _check_complete(self._model[0].model, checkpoint)
        except CheckpointError:
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            raise CheckpointError(
                f"sentence-transformers cannot load {str(checkpoint.folder)!r} "
                f"({type(error).__name__}: {reason}): fetch it again, or use another encoder."
            ) from error
        tokenizer = self._model.tokenizer
        self.tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        """The tokenizer as the library has set it up."""
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self._pad_id = tokenizer.pad_token_id or 0
        self._pads_left = tokenizer.padding_side == "left"
        self._truncated_size = checkpoint.truncated_size
        self._prompt_length = _prompt_length(self._model, checkpoint)
        self.dimensions = checkpoint.output_size
        self.vocab_size = _num_ids(self._model[0].model)
        self.max_tokens = min(checkpoint.max_tokens, tokenizer.model_max_length, _num_positions(self._model))

    def embed(self, batch: Sequence[list[int]]) -> NDArray[np.float32]:
        """Vectors [B, D] of tokenized inputs."""
        longest = max(map(len, batch))
        ids = torch.full((len(batch), longest), self._pad_id)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, each in enumerate(batch):
            place = slice(longest - len(each), longest) if self._pads_left else slice(0, len(each))
            ids[row, place] = torch.tensor(each)
            mask[row, place] = 1
        features: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "modality": "text"}
        if self._prompt_length is not None:
            features["prompt_length"] = self._prompt_length
        with torch.inference_mode():
            vectors: torch.Tensor = self._model(features)["sentence_embedding"][:, : self._truncated_size]
        found: NDArray[np.float32] = vectors.float().numpy()
        return found


def _load(checkpoint: Checkpoint) -> SentenceTransformer:
    weights = {"dtype": torch.float32, "use_safetensors": True, **_LOCAL}
    folder = str(checkpoint.folder)
    if (checkpoint.folder / "modules.json").exists():
        model = SentenceTransformer(
            folder, device="cpu", model_kwargs=weights, local_files_only=True, trust_remote_code=False
        )
    else:  # the library would choose the pooling itself
        transformer = Transformer(
            folder, model_kwargs=weights, processor_kwargs=dict(_LOCAL), config_kwargs=dict(_LOCAL)
        )
        pooling = Pooling(transformer.get_embedding_dimension(), list(checkpoint.modules.pooling))
        model = SentenceTransformer(modules=[transformer, pooling], device="cpu", local_files_only=True)
    if set(model.modalities) != {"text"}:
        raise CheckpointError(
            f"{folder!r} is not an encoder of plain text: it reads {', '.join(map(str, model.modalities))}."
        )
    return model.float().eval()


def _check_complete(model: Any, checkpoint: Checkpoint) -> None:  # noqa: ANN401 - untyped library
    """Raise CheckpointError where weights are missing: the library would draw them at random."""
    _, info = type(model).from_pretrained(
        checkpoint.modules.transformer,
        output_loading_info=True,
        use_safetensors=True,
        dtype=torch.float32,
        **_LOCAL,
    )
    missing = [name for name in info["missing_keys"] if not _UNUSED & set(name.split("."))]
    if missing:
        raise CheckpointError(
            f"The weights in {str(checkpoint.modules.transformer)!r} have no {min(missing)!r} "
            f"({len(missing)} missing): fetch the encoder again."
        )


def _prompt_length(model: SentenceTransformer, checkpoint: Checkpoint) -> int | None:
    """Tokens of the prompt that pooling leaves out, as the library counts them."""
    if checkpoint.modules.pools_prompt or not checkpoint.prompt:
        return None
    found = model.preprocess(["."], prompt=checkpoint.prompt).get("prompt_length")
    return None if found is None else int(found)


def _num_ids(model: Any) -> int:  # noqa: ANN401 - untyped library
    return int(model.get_input_embeddings().weight.shape[0])


def _num_positions(model: SentenceTransformer) -> int:
    """How many tokens the learnt positions suffice for; RoBERTa's begin behind the padding's."""
    found = [MAX_TOKENS]
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            start = 0 if module.padding_idx is None else module.padding_idx + 1
            found.append(module.num_embeddings - start)
    return min(found)
