"""Drafts of a small model of its own, with its own keys and values, pages and prefix tree.

It is a decoder as any the engine serves. It computes what the target has written since the last round, then
its own drafts, all sequences in one pass per token. Keys and values of accepted drafts stay. A sequence that
is new here, or was preempted, catches up first: by prefix hits in the drafter's own tree, then by computing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from backend.config import EngineConfig, ModelConfig
from backend.errors import CheckpointError
from backend.kernels import draft_chain
from backend.kernels.upload import upload
from backend.kv.manager import KVManager
from backend.kv.storage import KVLayout, KVStorage
from backend.layers.step_input import Ints, StepInput, step_of_tables
from backend.models.build import DecoderBuilder
from backend.models.checkpoint_config import read_model_config
from backend.models.decoder import Decoder
from backend.models.families import FAMILIES
from backend.models.precision import choose_precision
from backend.models.weights import WeightReader
from backend.speculative.device_chains import Ahead, Chains, Level, RollOuts
from backend.speculative.drafter import Drafter
from backend.speculative.rollout import (
    Beam,
    can_compile,
    compile_chain,
    compiled_precision,
    num_elements,
    page_table,
    roll_out,
    roll_out_compiled,
)
from backend.types import Draft, Sequence

CATCH_UP_TOKENS = 512
"""Tokens computed per step for sequences that must catch up: the others do not wait longer for them."""


@dataclass(frozen=True, slots=True)
class DraftNetwork:
    """Weights and arithmetic; holds no state of any sequence."""

    decoder: Decoder
    kv_layout: KVLayout
    max_position_tokens: int
    chain: draft_chain.ChainWeights | None  # for the compiled roll-out


def load_draft_model(config: EngineConfig, folder: str, max_model_tokens: int) -> DraftNetwork:
    """The dense model in `folder`, for a target configured by `config`. Raises CheckpointError."""
    model = read_model_config(folder, max_model_tokens)
    _check(folder, model, max_model_tokens)
    names = FAMILIES[model.architecture].names
    num_positions = min(model.max_position_tokens, max_model_tokens)
    with torch.inference_mode(), WeightReader(folder) as reader:
        precision = choose_precision(config, model, reader.dtype(names.embedding))
        compiled = compiled_precision(precision, num_elements(model)) if can_compile(model, names) else None
        precision = compiled or precision
        decoder = DecoderBuilder(model, names, reader, precision).build()
        for rope in decoder.ropes:
            rope.reserve(num_positions + config.speculative.max_tokens)
    chain = None
    if compiled is not None:
        angles = decoder.rope(torch.arange(num_positions), num_positions)
        table, head = decoder.embedding.weight, decoder.head.matrix
        chain = compile_chain(table, decoder.layers, head, angles, model.rms_norm_eps)
        chain = chain._replace(final_norm=draft_chain.as_floats(decoder.final_norm.weight))
    return DraftNetwork(decoder, precision.kv_layout(model), num_positions, chain)


def _check(folder: str, model: ModelConfig, max_model_tokens: int) -> None:
    if model.experts is not None:
        raise CheckpointError(f"{folder} is a mixture of experts; choose a dense model to draft with")
    if model.states:
        raise CheckpointError(
            f"{folder} has recurrent states; choose a model with attention alone to draft with"
        )
    if any(window is not None and window < max_model_tokens for window in model.windows):
        raise CheckpointError(
            f"{folder} has a sliding window of {min(filter(None, model.windows))} tokens; choose a model "
            "without one to draft with, or lower max_model_tokens"
        )


@dataclass(slots=True)
class _Mirror:
    """A sequence as the drafter has it."""

    own: Sequence  # the same list of tokens, the drafter's own pages
    written: list[int] = field(default_factory=list)  # computed after what counts; drafts may be rejected


class DraftModelDrafter(Drafter):
    """Chains of greedy tokens from a small model."""

    name = "draft_model"
    is_cheap = False

    def __init__(
        self,
        network: DraftNetwork,
        num_pages: int,
        *,
        prefix_cache: bool = True,
        ahead: Ahead | None = None,
    ) -> None:
        """`ahead`: chains do not wait for their device."""
        self.kv = KVManager(num_pages, revision="", kv_dtype="", prefix_cache=prefix_cache)
        self._network = network
        self._spare_page = num_pages  # for what goes on behind a chain's limit
        self._storage = KVStorage(network.kv_layout, num_pages + (ahead is not None))
        self._late = None if ahead is None else ahead.late
        self._roll_outs = None
        if ahead is not None:
            longest = min(ahead.longest, network.max_position_tokens + ahead.tokens)
            self._roll_outs = RollOuts(replace(ahead, longest=longest), self._begin, self._spare_page)
        self._mirrors: dict[Sequence, _Mirror] = {}

    @torch.inference_mode()
    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[Draft]:
        """Chains; none for sequences that must catch up first, or have no room in pages or context."""
        left = CATCH_UP_TOKENS
        drafts: list[Draft] = [[] for _ in sequences]
        ready: dict[int, int] = {}  # limits by index
        for index, (sequence, k) in enumerate(zip(sequences, ks, strict=True)):
            own = self._mirror(sequence).own
            num_missing = own.num_uncomputed_tokens - 1
            limit = min(k, self._network.max_position_tokens - len(own.tokens) + 1)
            end = len(own.tokens) + limit - 1
            if limit > 0 and num_missing > left:
                left -= self._catch_up(own, left)
            elif limit > 0 and self.kv.grow(own, end) == end:
                left -= num_missing
                ready[index] = limit
        if ready:
            mirrors = [self._mirrors[sequences[index]] for index in ready]
            owns = [mirror.own for mirror in mirrors]
            limits = list(ready.values())
            found = self._compute(owns, [own.num_uncomputed_tokens for own in owns], limits)
            for index, mirror, draft in zip(ready, mirrors, found, strict=True):
                assert isinstance(draft, list)
                mirror.written = mirror.own.tokens[mirror.own.num_computed_tokens :] + draft[:-1]
                drafts[index] = draft
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Release the sequence's pages; full ones stay in the prefix tree."""
        mirror = self._mirrors.pop(sequence, None)
        if mirror is not None:
            self.kv.release(mirror.own)

    def drop_cached(self) -> None:
        """Forget the prefix tree and graphs."""
        self.kv.drop_cached()
        if self._roll_outs is not None:
            self._roll_outs.drop()

    def _mirror(self, sequence: Sequence) -> _Mirror:
        """What is kept of the sequence, with what was accepted counted as computed."""
        mirror = self._mirrors.get(sequence)
        if mirror is None:
            own = Sequence(sequence.request, sequence.tokens, sequence.num_prompt_tokens)
            self.kv.attach(own, self.kv.match(own))
            mirror = self._mirrors[sequence] = _Mirror(own)
        elif mirror.written:
            own = mirror.own
            if self._late is not None:
                mirror.written = [*self._late.values(mirror.written)]
            begin = own.num_computed_tokens
            kept, limit = 0, min(len(mirror.written), len(own.tokens) - 1 - begin)
            while kept < limit and mirror.written[kept] == own.tokens[begin + kept]:
                kept += 1
            self.kv.advance(own, kept)
            mirror.written = []
        return mirror

    def _catch_up(self, own: Sequence, limit: int) -> int:
        """Compute at most `limit` tokens; returns how many."""
        begin = own.num_computed_tokens
        count = self.kv.grow(own, begin + limit) - begin
        if count > 0:
            self._compute([own], [count], [0])
            self.kv.advance(own, count)
        return max(count, 0)

    def _compute(self, owns: list[Sequence], counts: list[int], limits: list[int]) -> list[Draft]:
        """Compute the next `counts` tokens of each sequence, then append at most `limits` tokens: the chains.

        Keys and values of all but each chain's last token are stored; pages for them are there.
        """
        network, pages = self._network, [own.pages for own in owns]
        starts = [own.num_computed_tokens for own in owns]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        new = [own.tokens[start:end] for own, start, end in zip(owns, starts, ends, strict=True)]
        if self._roll_outs is not None:
            result = self._rolled_out(self._roll_outs, new, pages, ends, max(limits))
            return [[] for _ in owns] if result is None else self._roll_outs.drafts(result, owns, limits)
        if network.chain is not None:
            return roll_out_compiled(network.chain, self._storage, new, starts, pages, limits, keeps=True)
        hidden = self._forward(torch.tensor([id_ for ids in new for id_ in ids]), pages, starts, counts)
        if not max(limits):
            return [[] for _ in owns]
        logits = network.decoder.logits(hidden[torch.tensor(counts, device=hidden.device).cumsum(0) - 1])

        def advance(beam: Beam) -> Tensor:
            going = [i for i, limit in enumerate(limits) if beam.level < limit]  # others have no pages for it
            places = [ends[i] + beam.level - 1 for i in going]
            own_pages = [pages[i] for i in going]
            hidden = self._forward(beam.tokens[going], own_pages, places, [1] * len(going))
            rows = torch.tensor(going, device=logits.device)
            return torch.zeros_like(logits).index_copy_(0, rows, network.decoder.logits(hidden))

        return roll_out(logits, advance, limits)

    def _rolled_out(
        self, roll_outs: RollOuts, new: list[list[int]], pages: list[list[int]], ends: list[int], depth: int
    ) -> Tensor | None:
        """Queue it on the device: a pass over all new tokens but the last of each, where there are some."""
        counts = [len(ids) - bool(depth) for ids in new]
        going = [i for i, count in enumerate(counts) if count]
        if going:
            token_ids = np.array([id_ for ids, count in zip(new, counts, strict=True) for id_ in ids[:count]])
            starts = [ends[i] - len(new[i]) for i in going]
            self._forward(token_ids, [pages[i] for i in going], starts, [counts[i] for i in going])
        if not depth:
            return None
        table = page_table(pages, max(ends) + depth, self._spare_page)
        lengths, last = [end - 1 for end in ends], [ids[-1] for ids in new]
        arrays, lengths = roll_outs.arrays(last, lengths, table, depth)
        return roll_outs.run(upload(arrays, self._storage.layout.device), lengths)

    def _begin(self, chains: Chains) -> Level:
        decoder = self._network.decoder

        def level(step: StepInput) -> Tensor:
            return decoder.logits(decoder.forward(step.token_ids, decoder.open(step, self._storage)))

        return level

    def _forward(
        self, token_ids: Tensor | Ints, pages: list[list[int]], starts: list[int], counts: list[int]
    ) -> Tensor:
        """Compute `counts` tokens of each sequence from position `starts` on; the residual stream [T, D]."""
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        device, table = self._storage.layout.device, page_table(pages, max(ends))
        step = step_of_tables(token_ids, counts, ends, table, device)
        decoder = self._network.decoder
        return decoder.forward(step.token_ids, decoder.open(step, self._storage))
