"""The runner that owns a model and its KV memory: Plan in, drawn tokens out."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from backend.engine.base import RunnerFacts, StepResult
from backend.engine.inputs import PreparedStep, prepare
from backend.engine.state import StateTable
from backend.kv.storage import KVStorage
from backend.models import LoadedModel
from backend.sampling.logits import apply_edits, ban_tokens
from backend.sampling.logprobs import prompt_logprobs, token_logprobs
from backend.sampling.sampler import Sampler
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, Sequence, TokenLogprobs


class ModelRunner:
    """Model, KV memory, state table and sampler on one device."""

    def __init__(self, model: LoadedModel, storage: KVStorage, facts: RunnerFacts, max_running: int) -> None:
        self._model = model
        self._storage = storage
        self._facts = facts
        self._table = StateTable(max_running, facts.max_model_tokens, facts.eos_token_ids)
        self._sampler = Sampler(facts.vocab_size, model.device)
        self._prompt_scores: dict[Sequence, list[TokenLogprobs | None]] = {}

    @property
    def facts(self) -> RunnerFacts:
        """Constant while the process lives."""
        return self._facts

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """One forward pass and one draw."""
        step = prepare(plan, self._table, self._model.device)
        hidden = self._model.forward(step.step_input, self._storage)
        self._score_prompts(plan, step, hidden)
        unsound = _unsound(plan, step, hidden)
        result = StepResult([], [])
        if step.sampled:
            if len(step.token_index) != hidden.shape[0]:
                hidden = hidden[torch.from_numpy(step.token_index).to(hidden.device)]
            result = self._sample(step, self._model.logits(hidden))
            unsound |= {c.sequence for c, ok in zip(step.sampled, result.is_sound, strict=True) if not ok}
        result.is_sound = [chunk.sequence not in unsound for chunk in plan.chunks]
        if unsound:
            self._scrub([chunk for chunk in plan.chunks if chunk.sequence in unsound])
        return result

    def forget(self, sequence: Sequence) -> None:
        """Free the sequence's row."""
        self._table.forget(sequence)
        self._prompt_scores.pop(sequence, None)

    def _sample(self, step: PreparedStep, logits: Tensor) -> StepResult:
        """Draw from `logits` [R, V], which it changes."""
        table, rows = self._table, step.rows
        positions = np.array([chunk.end for chunk in step.sampled], dtype=np.int64)
        wanted = table.logprobs(rows)
        own_logits = logits[[i for i, _ in wanted]] if wanted else None  # a copy: edits come later
        apply_edits(logits, table.edits(rows))
        ban_tokens(logits, table.bans(rows, positions))
        token_ids, is_sound = self._sampler.sample(logits, table.sampling(rows, positions))
        result = StepResult(token_ids, is_sound)
        if own_logits is not None:
            drawn = [token_ids[i] for i, _ in wanted]
            scored = token_logprobs(own_logits, drawn, [num_top for _, num_top in wanted])
            result.logprobs = {i: record for (i, _), record in zip(wanted, scored, strict=True)}
        if self._prompt_scores:
            self._hand_out_prompt_scores(step, result)
        table.count(rows, token_ids)  # last: a step that failed before is run again
        return result

    def _scrub(self, chunks: list[ScheduledChunk]) -> None:
        """Zero what these chunks wrote: attention multiplies masked slots by 0, and 0 * NaN is NaN."""
        for chunk in chunks:
            pages = chunk.sequence.pages[chunk.start // PAGE_TOKENS :]
            for layer in self._storage.layers:
                layer[pages] = 0

    def _score_prompts(self, plan: Plan, step: PreparedStep, hidden: Tensor) -> None:
        """Log-probabilities of prompt tokens, for the chunks of requests that want them."""
        for chunk, offset in zip(plan.chunks, step.offsets.tolist(), strict=True):
            sequence = chunk.sequence
            num_top = sequence.request.params.prompt_logprobs
            if num_top is None or sequence.num_output_tokens:
                continue
            # The hidden state at one position says how likely the token at the next one is.
            targets = sequence.tokens[chunk.start + 1 : min(chunk.end, sequence.num_prompt_tokens - 1) + 1]
            part = hidden[offset : offset + len(targets)]
            scored = prompt_logprobs(part, targets, num_top, self._model.logits, self._facts.vocab_size)
            scores = self._prompt_scores.setdefault(sequence, [None] * sequence.num_prompt_tokens)
            scores[chunk.start + 1 : chunk.start + 1 + len(targets)] = scored

    def _hand_out_prompt_scores(self, step: PreparedStep, result: StepResult) -> None:
        for i, chunk in enumerate(step.sampled):
            scores = self._prompt_scores.pop(chunk.sequence, None)
            if scores is not None:
                result.prompt_logprobs[i] = scores


def _unsound(plan: Plan, step: PreparedStep, hidden: Tensor) -> set[Sequence]:
    """Sequences of whose prompt chunk any token of `hidden` [T, D] is not finite.

    Chunks that do not sample have no logits to tell, and a window may hide an early token from the last.
    """
    found: list[tuple[Sequence, Tensor]] = []
    for chunk, offset in zip(plan.chunks, step.offsets.tolist(), strict=True):
        if chunk.num_tokens > 1 or not chunk.samples:
            found.append((chunk.sequence, hidden[offset : offset + chunk.num_tokens].isfinite().all()))
    if not found:
        return set()
    is_finite = torch.stack([finite for _, finite in found]).tolist()
    return {sequence for (sequence, _), ok in zip(found, is_finite, strict=True) if not ok}
