"""transformers' greedy `generate`, tokens/s by batch size: CHECKPOINT WORDS MAX_TOKENS → one JSON line."""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.bench.load import prompts

BATCHES = (1, 8)
REPEATS = 3


def main(checkpoint: str, words: int, max_tokens: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    found = {}
    for batch in BATCHES:
        best_s = float("inf")
        for seed in range(REPEATS):
            inputs = tokenizer(prompts(batch, words, seed), return_tensors="pt", padding=True)
            inputs.pop("token_type_ids", None)
            started_s = time.perf_counter()
            model.generate(**inputs, max_new_tokens=max_tokens, min_new_tokens=max_tokens, do_sample=False)
            best_s = min(best_s, time.perf_counter() - started_s)
        found[batch] = batch * max_tokens / best_s
    print(json.dumps(found))


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
