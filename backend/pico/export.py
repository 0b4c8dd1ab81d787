"""Export a run's weights as a checkpoint: `python -m backend.pico.export --model NAME --run-dir DIR`."""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import logging
from pathlib import Path

import torch

from backend.classifiers.training_files import run
from backend.pico.curriculum import EMPHASIS
from backend.pico.model import CONTEXT_TOKENS, SHAPES
from backend.pico.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, TURN_END, chat_template, special_id
from backend.pico.train import WEIGHTS, Run, open_run

LOG = logging.getLogger("backend.pico.export")
MAX_BYTES = {"pico-small": 4_000_000, "pico-large": 16_000_000, "pico-draft": 800_000}


def write_model(run: Run, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors, rounded to bf16."""
    rounded = copy.deepcopy(run.model).bfloat16()
    rounded.config.dtype = torch.bfloat16
    # Greedy by default: the models are trained on exact answers.
    rounded.generation_config.do_sample = False
    rounded.generation_config.eos_token_id = special_id(run.tokenizer, TURN_END)
    rounded.generation_config.pad_token_id = special_id(run.tokenizer, END_OF_TEXT)
    rounded.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    size = (folder / "model.safetensors").stat().st_size
    if size > MAX_BYTES[run.name]:
        limit = MAX_BYTES[run.name]
        raise ValueError(f"model.safetensors has {size} bytes, more than {limit}; make the model smaller")


def write_tokenizer(run: Run, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat template (to both of its usual places)."""
    run.tokenizer.save(str(folder / "tokenizer.json"))
    template = chat_template(thinks=any(thinking for _, thinking in EMPHASIS[run.name]))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": list(SPECIAL_TOKENS[1:2] + SPECIAL_TOKENS[3:]),
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--model", choices=sorted(SHAPES), required=True)
    parser.add_argument("--hyper", action="store_true", help="the run was made with HyperMoE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="default: the weights of this package")
    options = parser.parse_args()
    out = options.out or WEIGHTS / options.model
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    run = open_run(options.run_dir, options.model, options.seed, hyper=options.hyper)
    out.mkdir(parents=True, exist_ok=True)
    write_model(run, out)
    write_tokenizer(run, out)
    weights = out / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    LOG.info("step %d tokens %d busy hours %.2f", run.step, run.tokens, run.busy_s / 3600)
    LOG.info("%d parameters, %d bytes, SHA-256 %s", parameters, weights.stat().st_size, digest)


if __name__ == "__main__":
    run(main)
