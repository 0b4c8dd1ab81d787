"""The Runner for a real model: it owns the model and its KV memory, and turns a Plan into drawn tokens."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engine.grammars import masked_draws
from backend.engine.graphs import StepGraphs, fits_graphs
from backend.engine.inputs import PreparedStep, prepare
from backend.engine.runner_protocol import RunnerFacts, StepResult
from backend.engine.state import StateTable
from backend.errors import DeviceLost, StepTooLarge
from backend.kernels.graph_keys import Capture
from backend.kernels.lora import rows_of_one
from backend.kernels.sampling.changes import Change, apply_changes
from backend.kernels.upload import upload
from backend.kv.checkpoints import StateCopy
from backend.kv.states import StateStorage
from backend.kv.storage import KVStorage
from backend.lora.store import AdapterStore
from backend.models.loaded import LoadedModel
from backend.sampling.download import Download
from backend.sampling.logits import OriginalRows, RowEdits, ban_changes, edit_changes
from backend.sampling.logprobs import prompt_logprobs, scores, token_records
from backend.sampling.sampler import Sampler
from backend.speculative.backoff import FailureGuard
from backend.speculative.drafter import StepObserver
from backend.speculative.late import LateDrafts
from backend.speculative.verify import Verdict, detours, verify
from backend.types import PAGE_TOKENS, Plan, ScheduledChunk, Sequence, TokenLogprobs

_RESTORED_TOKENS = 512
"""Tokens of one forward pass that computes a lost state again."""


@contextmanager
def _on_device() -> Iterator[None]:
    """Raise StepTooLarge where memory is short, DeviceLost for an error after which a GPU fails all."""
    try:
        with torch.inference_mode():
            yield
    except torch.OutOfMemoryError as error:
        raise StepTooLarge(str(error)) from error
    except torch.AcceleratorError as error:
        try:
            torch.cuda.synchronize()
        except torch.AcceleratorError:
            raise DeviceLost(f"the device of the model is lost: {error}") from error
        raise  # a launch that was refused, for example


class ModelRunner:
    """Model, KV memory, state table and sampler on one device."""

    def __init__(
        self,
        model: LoadedModel,
        storage: KVStorage,
        facts: RunnerFacts,
        max_running: int,
        adapters: AdapterStore | None = None,
        is_ahead: bool = False,
        capture: Capture | None = None,
    ) -> None:
        """`is_ahead`: steps without drafts are launched before those before them have been read.

        Not of models with recurrent states, whose checkpoints are copied between two steps. `capture`: decode
        steps are replayed as graphs that it captures, where `storage` has a page more than `facts` tell of.
        """
        self._model = model
        self._is_ahead = is_ahead and storage.states is None
        self._adapters = adapters
        self.observers: list[StepObserver] = []
        self._guards: dict[str, FailureGuard] = {}  # of observers, by the name of their class
        self._step = 0
        self._storage = storage
        self._facts = facts
        self._table = StateTable(
            *(max_running, facts.max_model_tokens, facts.eos_token_ids, model.device),
            has_window_pages=facts.num_window_pages is not None,
            is_ahead=self._is_ahead,
        )
        self.graphs: StepGraphs | None = None
        if capture is not None and fits_graphs(storage, facts.num_pages):
            self._table.page_table.on_device[max_running] = storage.num_pages - 1
            self.graphs = StepGraphs(model, storage, capture, (max_running, facts.max_model_tokens))
        self._sampler = Sampler(facts.vocab_size, model.device)
        self._prompt_scores: dict[Sequence, list[TokenLogprobs | None]] = {}

    @property
    def facts(self) -> RunnerFacts:
        """Constant while the process lives."""
        return self._facts

    @property
    def late(self) -> LateDrafts:
        """Drafts that are read with the step that verifies them."""
        return self._table.late

    @property
    def is_ahead(self) -> bool:
        """Whether steps may be launched ahead: observers need the tokens of each before the next."""
        return self._is_ahead and not self.observers

    def run(self, plan: Plan) -> StepResult:
        """Launch, draw and read. Raises AdapterError, or whatever torch raises."""
        step = self.launch(plan)
        step.draw()
        return step.read()

    @_on_device()
    def capture_graphs(self) -> None:
        """Capture the graphs that most decode steps need, if steps are replayed."""
        if self.graphs is not None:
            self.graphs.capture_first(self._table.page_table.on_device)

    def drop_graphs(self) -> None:
        """Forget captured graphs: memory that they read goes away."""
        if self.graphs is not None:
            self.graphs.drop()

    @_on_device()
    def launch(self, plan: Plan) -> _LaunchedStep:
        """Prepare, and queue the forward pass. Raises as `run`."""
        if self._adapters is not None:
            self._adapters.fill(plan)
        if self._storage.states is not None:
            self._restore_states(plan, self._storage.states)
        step = prepare(plan, self._table, self._model.device)
        layers: list[Tensor] = []
        wants_layers = any(observer.wants_layers for observer in self.observers)
        hidden = None
        is_drawn = len(step.token_index) == step.step_input.token_ids.shape[0]  # after each token
        if self.graphs is not None and is_drawn and not self.observers:
            version = 0 if self._adapters is None else self._adapters.slots_version
            hidden = self.graphs.forward(step.step_input, version)
        if hidden is None:
            context = self._model.open(step.step_input, self._storage)
            hidden = self._model.forward(step.step_input.token_ids, context, layers if wants_layers else None)
        self._score_prompts(plan, step, hidden)
        checked, checks = _finite_chunks(plan, step, hidden)
        logits = self._logits(step, hidden) if step.sampled else None
        return _LaunchedStep(self, plan, step, hidden, layers, checked, checks, logits)

    @_on_device()
    def _draw(self, launched: _LaunchedStep) -> None:
        """Queue the draw from the step's logits, which it changes, and the step's download."""
        table, step, logits = self._table, launched.prepared, launched.logits
        if logits is None:
            launched.download = Download(launched.checks)
            return
        wanted = dict(table.logprobs(step.rows))
        original = OriginalRows(list(wanted))
        launched.mask_s = self._edit(step, logits, original.changes())
        token_ids, is_sound = self._sampler.sample(logits, step.sampling, step.sampling_words)
        if table.last_draws is not None and step.drawn_rows is not None:
            table.last_draws.index_copy_(0, step.drawn_rows, token_ids.int())
        parts = [token_ids, is_sound, *table.late.results(step.late), *launched.checks]
        if wanted:
            parts += scores(original.logits, token_ids[original.rows], max(wanted.values()))
        launched.wanted, launched.download = wanted, Download(parts)

    @_on_device()
    def _read(self, launched: _LaunchedStep) -> StepResult:
        """Wait for the step's download, verify drafts, and note what was drawn."""
        plan, step, checked = launched.plan, launched.prepared, launched.checked
        found = launched.download.read()  # the step's one wait
        if step.sampled:
            token_ids, soundness, *others = found
            self.late.read(step.late, others[: len(step.late)])
            others = others[len(step.late) :]
            is_finite, scored = others[: len(checked)], others[len(checked) :]
            result = self._result(launched, token_ids, list(map(bool, soundness)), scored)
        else:
            result, is_finite = StepResult([], []), found
        unsound = {sequence for sequence, ok in zip(checked, is_finite, strict=True) if not ok[0]}
        unsound |= {c.sequence for c, ok in zip(step.sampled, result.is_sound, strict=True) if not ok}
        if self.observers:
            self._show(plan, step, launched.layers, launched.hidden)
        result.is_sound = [chunk.sequence not in unsound for chunk in plan.chunks]
        for chunk in plan.chunks:
            if chunk.sequence in unsound and self._table.has(chunk.sequence):
                self._zero(chunk.sequence, chunk.start, self._end_of(chunk))
        return result

    @torch.inference_mode()
    def copy_states(self, copies: list[StateCopy]) -> None:
        """Give sequences kept states, or keep states of theirs."""
        assert self._storage.states is not None
        for copy in copies:
            self._storage.states.copy(*copy)

    def forget(self, sequence: Sequence) -> None:
        """Free the sequence's row."""
        self._table.forget(sequence)
        self._prompt_scores.pop(sequence, None)

    def _restore_states(self, plan: Plan, states: StateStorage) -> None:
        """Compute those again that a failed step has changed, from the newest checkpoints on."""
        for chunk in plan.chunks:
            if not states.is_ready(chunk.sequence.row, chunk.start):
                self._restore_state(chunk.sequence, chunk.start, states, _RESTORED_TOKENS)

    def _restore_state(self, sequence: Sequence, end: int, states: StateStorage, num_tokens: int) -> None:
        """Compute the state before position `end`, `num_tokens` at a time; fewer where memory is short."""
        begin, checkpoint = 0, sequence.checkpoint
        if checkpoint is not None and checkpoint.slot >= 0:
            begin = checkpoint.position
            states.copy(checkpoint.slot, sequence.row, begin)
        try:
            for start in range(begin, end, num_tokens):
                part = ScheduledChunk(sequence, start, min(num_tokens, end - start))
                step = prepare(Plan([part]), self._table, self._model.device).step_input
                self._model.forward(step.token_ids, self._model.open(step, self._storage))
        except torch.OutOfMemoryError:
            if num_tokens == 1:
                raise
            self._restore_state(sequence, end, states, num_tokens // 2)

    def _logits(self, step: PreparedStep, hidden: Tensor) -> Tensor:
        """The logits of the step's N draws, [N, V]."""
        if len(step.token_index) != hidden.shape[0]:
            hidden = hidden.index_select(0, step.drawn_after)
        rows = step.step_input.adapters
        if rows is None or self._model.decoder.head.adapters is None:
            return self._model.logits(hidden)
        return self._model.logits(hidden, rows.select(step.token_index, step.drawn_after))

    def _result(
        self, launched: _LaunchedStep, token_ids: list[int], is_sound: list[bool], scored: list[list[Any]]
    ) -> StepResult:
        """What was drawn, less what verification rejects."""
        step, wanted = launched.prepared, launched.wanted
        records: dict[int, TokenLogprobs] = {}
        if wanted:
            found = token_records([token_ids[i] for i in wanted], list(wanted.values()), scored)
            records = dict(zip(wanted, found, strict=True))
        kept: AbstractSet[int] | None = None
        if step.has_drafts:
            # Residual streams whose rows must follow the accepted path of a draft tree.
            streams = [*launched.layers, launched.hidden]
            result, kept = self._verify(step, streams, token_ids, is_sound, records)
        else:
            result = StepResult(token_ids, is_sound, logprobs={i: [record] for i, record in records.items()})
            if self._is_ahead and self._table.has_edits:  # a row may have another owner by now
                kept = {i for i, chunk in enumerate(step.sampled) if self._table.has(chunk.sequence)}
        result.mask_s = launched.mask_s
        if self._prompt_scores:
            self._attach_prompt_scores(step, result)
        self._table.count(step.rows, token_ids, kept)  # last: StepRecovery runs a step again that failed
        return result

    def _edit(self, step: PreparedStep, logits: Tensor, first: list[Change]) -> float:
        """Apply `first`, then penalties, biases, grammar masks and bans; the seconds that grammars took."""
        table, rows = self._table, step.rows
        edits = table.edits(rows)
        if edits and step.has_drafts:
            edits = _count_drafts(edits, step.drafts_before())
        changes = [*first, *edit_changes(edits)]
        bans = table.bans(rows, step.positions)
        if not table.has_grammars:
            apply_changes(logits, changes + ban_changes(bans))
            return 0.0
        from backend.structured.mask import grammar_changes  # an engine runs without llguidance too

        started_s = time.perf_counter()
        changes += grammar_changes(logits.shape[1], masked_draws(step.sampled))
        apply_changes(logits, changes + ban_changes(bans, is_feasible_only=True))
        return time.perf_counter() - started_s

    def _verify(
        self,
        step: PreparedStep,
        streams: list[Tensor],
        token_ids: list[int],
        is_sound: list[bool],
        records: Mapping[int, TokenLogprobs],
    ) -> tuple[StepResult, AbstractSet[int]]:
        """The result of a step with drafts, and the indices of its valid draws.

        A draw after a rejected draft token is invalid.
        """
        parents = [chunk.parents for chunk in step.sampled] if step.has_trees else None
        drafts = [self.late.values(chunk.draft) for chunk in step.sampled]
        verdict = verify(drafts, token_ids, parents)
        if verdict.paths:
            self._move_accepted_paths(step, verdict, streams)
        spans = [verdict.draws(chunk) for chunk in range(len(verdict.token_ids))]
        result = StepResult(
            verdict.token_ids,
            [all(is_sound[draw] for draw in span) for span in spans],
            verdict.accepted,
            {i: [records[draw] for draw in span] for i, span in enumerate(spans) if span[0] in records},
        )
        if not all(is_sound):
            self._zero_rejected(step, result)
        return result, {draw for span in spans for draw in span}

    def _end_of(self, chunk: ScheduledChunk) -> int:
        """Where the slots end that may hold NaN with those of this chunk: a step behind it has some too."""
        return len(chunk.sequence.pages) * PAGE_TOKENS if self._is_ahead else chunk.end

    def _show(self, plan: Plan, step: PreparedStep, layers: list[Tensor], hidden: Tensor) -> None:
        """Show the step to the observers. Its tokens are drawn: an observer's error must not fail it."""
        self._step += 1
        for observer in self.observers:
            name = type(observer).__name__
            guard = self._guards.setdefault(name, FailureGuard(name))
            if not guard.is_paused(self._step):
                guard.call(self._step, observer.see, plan, step.step_input, layers, hidden)

    def _move_accepted_paths(self, step: PreparedStep, verdict: Verdict, streams: list[Tensor]) -> None:
        """Move accepted tree nodes, in KV memory and in `streams`, to where a chain would have them."""
        sources, targets = detours(verdict, step.token_index.tolist())
        if not sources:
            return
        slots = step.step_input.slots
        old, new = upload([np.array(sources), np.array(targets)], slots.device)
        self._storage.move(slots[old], slots[new])
        if (windowed := step.step_input.windowed) is not None:
            self._storage.move(windowed.slots[old], windowed.slots[new], is_windowed=True)
        if self.observers:
            for stream in streams:
                stream[new] = stream[old]

    def _zero(self, sequence: Sequence, start: int, end: int) -> None:
        """Zero KV memory that holds NaN: attention multiplies masked slots by 0, and 0 * NaN is NaN."""
        pages = sequence.pages, sequence.window_pages or sequence.pages
        for position in range(start, end):
            index, offset = divmod(position, PAGE_TOKENS)
            self._storage.zero(*(own[index] * PAGE_TOKENS + offset for own in pages))

    def _zero_rejected(self, step: PreparedStep, result: StepResult) -> None:
        """Zero the KV memory of rejected drafts, which may hold NaN though the sequence itself is sound."""
        for i, chunk in enumerate(step.sampled):
            first = chunk.end - len(chunk.draft) + len(result.accepted.get(i, ()))
            self._zero(chunk.sequence, first, chunk.end)

    def _score_prompts(self, plan: Plan, step: PreparedStep, hidden: Tensor) -> None:
        """Compute log-probabilities of prompt tokens for the chunks of requests that asked for them."""
        for chunk, offset in zip(plan.chunks, step.offsets, strict=True):
            sequence = chunk.sequence
            num_top = sequence.request.params.prompt_logprobs
            if num_top is None or sequence.num_output_tokens:
                continue
            # The hidden state at a position gives the distribution of the token after it.
            targets = sequence.tokens[chunk.start + 1 : min(chunk.end, sequence.num_prompt_tokens - 1) + 1]
            states = hidden[offset : offset + len(targets)]
            logits_of = functools.partial(self._logits_of_one, sequence.adapter_slot)
            scored = prompt_logprobs(states, targets, num_top, logits_of, self._facts.vocab_size)
            scores = self._prompt_scores.setdefault(sequence, [None] * sequence.num_prompt_tokens)
            scores[chunk.start + 1 : chunk.start + 1 + len(targets)] = scored

    def _logits_of_one(self, adapter_slot: int, hidden: Tensor) -> Tensor:
        """Logits of rows that all belong to one sequence."""
        rows = None
        if self._model.decoder.head.adapters is not None:
            rows = rows_of_one(adapter_slot, len(hidden), hidden.device)
        return self._model.logits(hidden, rows)

    def _attach_prompt_scores(self, step: PreparedStep, result: StepResult) -> None:
        """Add prompt log-probabilities to the result that carries the first token."""
        for i, chunk in enumerate(step.sampled):
            scores = self._prompt_scores.pop(chunk.sequence, None)
            if scores is not None:
                result.prompt_logprobs[i] = scores


@dataclass(slots=True, eq=False)
class _LaunchedStep:
    """A step whose forward pass is queued. It keeps what `draw` and `read` need."""

    runner: ModelRunner
    plan: Plan
    prepared: PreparedStep
    hidden: Tensor  # [T, D]
    layers: list[Tensor]
    checked: list[Sequence]
    checks: list[Tensor]  # whether the activations of `checked` are finite, [1] each
    logits: Tensor | None  # [N, V] float32; None if the step draws nothing, or has drawn
    wanted: dict[int, int] = field(default_factory=dict)  # draw → log-probabilities asked for
    download: Download = field(init=False)
    mask_s: float = 0.0

    def draw(self) -> None:
        """Queue edits, masks, draw and download."""
        self.runner._draw(self)
        self.logits = None

    def read(self) -> StepResult:
        """Wait for the download."""
        return self.runner._read(self)


def _finite_chunks(plan: Plan, step: PreparedStep, hidden: Tensor) -> tuple[list[Sequence], list[Tensor]]:
    """Sequences with a prompt chunk, and whether all `hidden` [T, D] of each are finite: [1] each.

    The logits do not show that for chunks that do not sample, nor for early tokens outside a sliding window.
    Every draft token is checked by its own logits.
    """
    sequences: list[Sequence] = []
    is_finite: list[Tensor] = []
    if len(step.offsets) == step.step_input.token_ids.shape[0] == len(step.sampled):
        return [], []  # decodes alone
    for chunk, offset in zip(plan.chunks, step.offsets, strict=True):
        if (chunk.num_tokens > 1 and not chunk.draft) or not chunk.samples:
            sequences.append(chunk.sequence)
            is_finite.append(hidden[offset : offset + chunk.num_tokens].isfinite().all()[None])
    return sequences, is_finite


def _count_drafts(
    edits: list[tuple[int, RowEdits]], drafts_before: list[tuple[int, ...]]
) -> list[tuple[int, RowEdits]]:
    """Edits whose penalties also count the draft tokens before each draw."""
    return [
        (i, replace(row, counts=row.counts.after(drafts)))
        if (drafts := drafts_before[i]) and row.counts is not None
        else (i, row)
        for i, row in edits
    ]
