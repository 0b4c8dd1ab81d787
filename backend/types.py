"""The engine's data types: Request (input), Sequence (state), Plan (one step) and StepOutput (its output).

Plain Python without torch. Request and StepOutput cross the process boundary as msgpack.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "abort", "error"]

PAGE_TOKENS = 16
"""Tokens in one page of KV memory."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Sampling parameters of one sequence; the gateway has validated every range.

    Stop *strings* are not here: the gateway detokenizes, and cancels the request on a match.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over output only, as in OpenAI's API
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None  # None: the engine picks one
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # None: off; n: the sampled token and the n most likely ones
    prompt_logprobs: int | None = None  # the same for each prompt token but the first

    @property
    def is_greedy(self) -> bool:
        """True at temperature 0: take the most likely token."""
        return self.temperature == 0.0


class DraftOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request's overrides of speculative decoding, where the policy allows them."""

    drafter: str | None = None  # None: the model's default; "none": no speculation
    max_tokens: int | None = None  # draft tokens per step; above the model's limit only for a prediction


class GrammarSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A constraint on the output, compiled in the engine process."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str  # a JSON schema; a regular expression; a JSON list of strings; a Lark grammar with rule `start`
    is_exact: bool = False  # JSON schema: refuse keywords that cannot be enforced instead of ignoring them
    param: str = "response_format"  # the API field that an error names
    # Free text before the constrained part: none; the rest of a reasoning block opened by the prompt; a whole
    # reasoning block with its tags.
    thought: Literal["none", "inside", "whole"] = "none"
    max_thought_tokens: int = 0  # after that many the block is closed; 0: no limit
    thought_tags: tuple[str, str] = ("<think>", "</think>")


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sequence to generate. A chat request with n > 1 becomes n of these."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    tenant_salt: str = ""  # part of every page's digest: tenants never share KV pages
    adapter: str = ""  # content hash of the LoRA weights; "" is the base model
    adapter_name: str = ""  # the name it was requested by, for metrics
    traceparent: str = ""  # W3C trace context; "" when the request is not traced
    wants_trace: bool = False  # in its last output
    grammar: GrammarSpec | None = None
    draft: DraftOptions | None = None  # None: the model's configuration
    priority: int = 0  # 1: background; computed when none with 0 has a prompt to compute
    prediction_token_ids: list[int] = []  # expected output, used as drafts; does not change the result
    # Output that an engine which is gone has generated already: counts as output, and is not repeated.
    resume_token_ids: list[int] = []


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log probabilities (natural) at one position, before temperature and top-k/top-p filters."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # (token id, logprob), most likely first
    rank: int = 0  # 1: the most likely token


@dataclass(slots=True)
class RequestTrace:
    """The history of one request that asks for it; times are time.monotonic() of its engine, -1: never."""

    traceparent: str  # "": its spans are not exported
    request_id: str
    num_prompt_tokens: int
    arrival_s: float
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    finished_s: float = -1.0
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_output_tokens: int = 0
    num_decode_steps: int = 0
    num_drafts: int = 0  # decode steps that verified a draft
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    drafters: dict[str, list[int]] = field(default_factory=dict)  # drafts, their tokens, those accepted
    chunks: list[tuple[float, int, int]] = field(default_factory=list)  # (end time, start, tokens)


class StepOutput(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The output of one step for one request."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None  # one per token id, if requested
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # with the first token; [0] is None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the EOS or stop token that ended the output; not in token_ids
    error: str = ""  # message for the user, with finish_reason "error"
    error_param: str = ""  # the API field that caused it; "": the engine's fault
    retry_after_s: float = 0.0  # with an error: it may pass; 0.0: not known to
    num_cached_tokens: int = 0  # prompt tokens that were prefix hits; valid from the first output on
    num_drafted: int = 0  # draft tokens verified in this step
    num_accepted: int = 0  # accepted draft tokens
    num_predicted: int = 0  # draft tokens from the request's prediction, included in num_drafted
    num_predicted_accepted: int = 0
    machine_s: float = 0.0  # worked for the request so far; an output without tokens tells only this
    trace: RequestTrace | None = None  # with the last output of a request that `wants_trace`


class TokenGrammar(Protocol):
    """Grammar state of one sequence (backend.structured.grammar).

    A mask is a bitmask over the vocabulary in int32 words, least significant bit first.
    """

    @property
    def error(self) -> str:
        """A message for the user once the grammar can no longer be applied, else ""."""
        ...

    @property
    def is_over(self) -> bool:
        """True when the output is complete and no token may follow."""
        ...

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next."""
        ...

    def fill_masks(self, rows: NDArray[np.int32], drafts: Draft) -> None:
        """Fill the masks of [k + 1] rows: row 0 before the k draft tokens, row i + 1 after draft token i.

        In a tree, row i + 1 is the mask after node i.
        """
        ...

    def advance(self, token_id: int) -> None:
        """Accept a token of the output."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""
        ...

    def filter_drafts(self, token_ids: list[int]) -> int:
        """Return the length of the longest prefix of these tokens that the grammar accepts."""
        ...

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        """Return the nodes whose path from the root the grammar accepts, in ascending order."""
        ...

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next (jump-forward decoding); empty when there is a choice."""
        ...


class SequenceStatus(enum.Enum):
    """Scheduling state of a sequence."""

    WAITING = "waiting"  # in the queue; new, resumed or preempted
    RUNNING = "running"  # owns a row and pages
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class StateCheckpoint:
    """A kept copy of a recurrent state, see kv/checkpoints.py."""

    digest: bytes  # of the prefix that it is the state behind
    position: int  # tokens of that prefix
    slot: int  # -1 once the slot holds another
    is_kept: bool  # False: the next one of the sequence that wrote it takes its place


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one request in the engine. Owned by the scheduler; compared by identity.

    `tokens` is prompt + output. `num_computed_tokens` counts those whose keys and values are in `pages`;
    a decode step has exactly one token left to compute, a new or preempted sequence has many. An engine that
    runs ahead of its device counts what was launched, and a token that was drawn but not read as pending.
    """

    request: Request
    tokens: list[int]
    num_prompt_tokens: int
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_read_tokens: int = 0  # of these, those whose step has been read: their pages may be published
    num_pending: int = 0  # 1: the token after `tokens` is drawn, and only the device knows it
    num_cached_tokens: int = 0  # prefix hit at first admission
    pages: list[int] = field(default_factory=list)
    window_pages: list[int] = field(default_factory=list)  # in their place, of layers that have their own
    checkpoint: StateCheckpoint | None = None  # the newest of its recurrent state; None: at its beginning
    row: int = -1  # in the state table while it runs
    adapter_slot: int = -1  # device slot of its adapter while it runs; -1: none
    seed: int = 0  # the request's, or picked by the engine
    num_preemptions: int = 0
    num_charged_tokens: int = 0  # computed before it was preempted: counted for its tenant already
    grammar: TokenGrammar | None = None  # state after the output tokens so far
    has_begun: bool = False  # it was in a step
    is_blocked: bool = False  # waiting for its grammar to compile: skipped in the queue
    machine_s: float = 0.0  # its share of the steps that it was in
    # Times are time.monotonic() in the engine process; -1: not yet.
    arrival_s: float = -1.0
    scheduled_s: float = -1.0
    first_token_s: float = -1.0
    finish_reason: FinishReason | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are not in KV memory yet."""
        return len(self.tokens) + self.num_pending - self.num_computed_tokens


@functools.lru_cache(maxsize=256)
def tree_depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the depth of each node of a draft tree; nodes with parent -1 have depth 1."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return tuple(depths)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A draft tree: node i proposes `tokens[i]` after the path to node `parents[i]`.

    Parent -1 is the sequence's last token. Nodes are ordered by priority, parents before children: nodes that
    do not fit in a step are cut from the end. Of siblings with equal tokens only the first can be accepted.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents), "every node of a tree has a token and a parent"
        assert all(-1 <= parent < i for i, parent in enumerate(self.parents)), "a node precedes its parent"

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depth(self) -> int:
        """Length of the longest path, in tokens."""
        return max(tree_depths(self.parents), default=0)

    @property
    def is_chain(self) -> bool:
        """True if no node has siblings."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    def first_path(self) -> list[int]:
        """Return the tokens of the first node, its first child, and so on."""
        path: list[int] = []
        last = -1
        for node, parent in enumerate(self.parents):
            if parent == last:
                path.append(self.tokens[node])
                last = node
        return path

    def cut(self, max_depth: int, max_nodes: int) -> DraftTree:
        """Return the first `max_nodes` nodes of depth `max_depth` or less."""
        if len(self) <= max_nodes and self.depth <= max_depth:
            return self
        fits = [i for i, depth in enumerate(tree_depths(self.parents)) if depth <= max_depth]
        return self.keep(fits[: max(0, max_nodes)])

    def keep(self, nodes: list[int]) -> DraftTree:
        """Return the subtree of these nodes, which are in ascending order and include their parents."""
        number = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return DraftTree(
            tuple(self.tokens[node] for node in nodes), tuple(number[self.parents[node]] for node in nodes)
        )


Draft = list[int] | DraftTree
"""Draft tokens for one sequence: a chain or a tree."""


class ScheduledChunk(msgspec.Struct, frozen=True):
    """`num_tokens` tokens of one sequence to compute in this step, from position `start` on.

    The last ones may be a `draft` to verify. The nodes of a draft tree have `parents` as in DraftTree, and
    take consecutive KV slots like those of a chain.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    draft: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # empty: the draft is a chain

    @property
    def end(self) -> int:
        """Position after the chunk's last token: the context length for attention."""
        return self.start + self.num_tokens

    @property
    def guess(self) -> Draft:
        """The draft in the form that drafters return."""
        return DraftTree(self.draft, self.parents) if self.parents else list(self.draft)

    @property
    def draft_depth(self) -> int:
        """Length of the longest draft path, in tokens."""
        return max(tree_depths(self.parents)) if self.parents else len(self.draft)

    @property
    def samples(self) -> bool:
        """True if the chunk includes the sequence's last token, whose logits give the next token."""
        return self.start + self.num_tokens >= len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one step: decodes first, then prefill chunks."""

    chunks: list[ScheduledChunk]
    preempted: list[Sequence] = field(default_factory=list)  # lost their row and pages in this step
    num_drafts: int = 0  # draft tokens in all chunks

    @property
    def sampled(self) -> list[ScheduledChunk]:
        """The chunks that sample a token."""
        # As `samples` has it: a call for each would cost as much as all else here.
        return [c for c in self.chunks if c.start + c.num_tokens >= len(c.sequence.tokens)]

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return sum(chunk.num_tokens for chunk in self.chunks)
