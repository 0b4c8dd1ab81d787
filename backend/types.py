"""The engine's nouns: what is asked (Request), what is tracked (Sequence), what a step gives (StepOutput).

Plain Python without torch. Request and StepOutput cross the process border as msgpack.
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
    """How the next token of one sequence is drawn. The gateway has checked every range.

    Stop *strings* are not here: text belongs to the gateway, which cancels the request on a match.
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
    seed: int | None = None  # None: the engine draws one
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # None: off; n: the sampled token's and the n best
    prompt_logprobs: int | None = None  # same, for each prompt token but the first

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: the most likely token, no draw."""
        return self.temperature == 0.0


class DraftOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One request's own word on speculative decoding, where the policy lets requests have one."""

    drafter: str | None = None  # None: the model's; "none": no speculation
    max_tokens: int | None = None  # drafted per step, at most the model's; of a prediction as many as it says


class GrammarSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the output must look like; compiled in the engine's process."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    text: str  # a JSON schema; a regular expression; a JSON list of strings; a Lark grammar with rule `start`
    is_exact: bool = False  # JSON schema: refuse keywords that cannot be enforced, rather than ignore them
    param: str = "response_format"  # the API field that a refusal names
    # What comes first: nothing; the rest of a thought that the prompt opened; a whole thought with its tags.
    thought: Literal["none", "inside", "whole"] = "none"


class Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One sequence to generate. A chat request with n > 1 is n of these."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    tenant_salt: str = ""  # part of every page's identity: tenants never share KV
    adapter: str = ""  # content hash of the LoRA weights; "" is the base model
    adapter_name: str = ""  # what it was asked for as; only counted
    traceparent: str = ""  # W3C; "" when the request is not traced
    grammar: GrammarSpec | None = None
    draft: DraftOptions | None = None  # None: as the model is configured
    prediction_token_ids: list[int] = []  # what the output may look like; only its speed depends on it


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one position, of the distribution before temperature and filters."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]  # (token id, logprob), best first
    rank: int = 0  # 1: the most likely token


class StepOutput(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What one step produced for one request."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None  # one per token id, when asked for
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # with the first token; [0] is None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the EOS or stop token that ended it; not in token_ids
    error: str = ""  # a sentence for the user, with finish_reason "error"
    error_param: str = ""  # the API field at fault, when the request is: nothing is wrong with the engine
    num_cached_tokens: int = 0  # prompt tokens found in the prefix tree; valid from the first output on
    num_drafted: int = 0  # draft tokens that this step verified
    num_accepted: int = 0  # of these, how many are in the output
    num_predicted: int = 0  # of num_drafted, those from the request's prediction
    num_predicted_accepted: int = 0


class TokenGrammar(Protocol):
    """A grammar that follows the output of one sequence (backend.structured.grammar).

    Masks are bits per token, least significant first, in int32 words.
    """

    @property
    def error(self) -> str:
        """A sentence for the user once the grammar cannot be followed any further."""
        ...

    @property
    def is_over(self) -> bool:
        """The output is complete and nothing may follow."""
        ...

    def fill_mask(self, row: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may come next."""
        ...

    def fill_masks(self, rows: NDArray[np.int32], drafts: Draft) -> None:
        """As `fill_mask` for [k + 1] rows: before each of the k drafts, and after all of them.

        Of a tree, row i + 1 is that behind node i.
        """
        ...

    def advance(self, token_id: int) -> None:
        """A token was kept."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        ...

    def filter_drafts(self, token_ids: list[int]) -> int:
        """How many of these tokens, from the first on, may follow."""
        ...

    def allowed_nodes(self, tree: DraftTree) -> list[int]:
        """The nodes whose path may follow, in ascending order."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that spell what must come next; empty when there is a choice."""
        ...


class SequenceStatus(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # in the queue; new, or preempted
    RUNNING = "running"  # owns a row and pages
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through the engine. Owned by the scheduler; compared by identity.

    `tokens` is prompt + output. `num_computed_tokens` counts those whose keys and values lie in `pages`;
    a decode step has exactly one token left to compute, a fresh or preempted sequence has many.
    """

    request: Request
    tokens: list[int]
    num_prompt_tokens: int
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0  # prefix hit when first admitted
    pages: list[int] = field(default_factory=list)
    row: int = -1  # in the state table; for as long as it runs
    adapter_slot: int = -1  # of its adapter on the device, for as long as it runs; -1: none
    seed: int = 0  # set by the engine when the request gives none
    num_preemptions: int = 0
    grammar: TokenGrammar | None = None  # in the state after the sequence's output tokens
    is_blocked: bool = False  # waits for its grammar: passed over in the queue
    # Times are time.monotonic() of the engine's process; -1: not yet.
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
        """Tokens known but not yet in KV memory."""
        return len(self.tokens) - self.num_computed_tokens


@functools.lru_cache(maxsize=256)
def tree_depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    """How many tokens each node of a tree lies behind its root, which is no node: 1 for the first."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return tuple(depths)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Guesses at what comes next that branch: node i says `tokens[i]` after the path to node `parents[i]`.

    Parent -1 is the sequence's last token. Nodes come in order of promise, each behind its parent: what does
    not fit in a step is cut from the end. Of siblings with equal tokens only the first can be accepted.
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
        """Most tokens in a row."""
        return max(tree_depths(self.parents), default=0)

    @property
    def is_chain(self) -> bool:
        """True when nothing branches."""
        return self.parents == tuple(range(-1, len(self.parents) - 1))

    def cut(self, max_depth: int, max_nodes: int) -> DraftTree:
        """The tree's first nodes, without those that lie too deep."""
        if len(self) <= max_nodes and self.depth <= max_depth:
            return self
        fits = [i for i, depth in enumerate(tree_depths(self.parents)) if depth <= max_depth]
        return self.keep(fits[: max(0, max_nodes)])

    def keep(self, nodes: list[int]) -> DraftTree:
        """Only these nodes, in ascending order, each with its parent."""
        number = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return DraftTree(
            tuple(self.tokens[node] for node in nodes), tuple(number[self.parents[node]] for node in nodes)
        )


Draft = list[int] | DraftTree
"""Guesses at what follows a sequence: tokens in a row, or several ways on."""


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """`num_tokens` of one sequence to compute in this step, from position `start` on.

    The last of them may be a `draft`: guesses at what comes next, computed to be verified. Where these
    branch, they have `parents` as in DraftTree; they lie in KV memory one behind the other all the same.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    draft: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # empty: each draft token follows the one before it

    @property
    def end(self) -> int:
        """Position after the chunk's last token: the context length that attention sees."""
        return self.start + self.num_tokens

    @property
    def guess(self) -> Draft:
        """The draft as a drafter would hand it over."""
        return DraftTree(self.draft, self.parents) if self.parents else list(self.draft)

    @property
    def draft_depth(self) -> int:
        """Most draft tokens in a row."""
        return max(tree_depths(self.parents)) if self.parents else len(self.draft)

    @property
    def samples(self) -> bool:
        """True when the chunk reaches the sequence's last token, so that its logits give the next one."""
        return self.end >= len(self.sequence.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """The scheduler's one word to the runner: decodes first, then prefill chunks."""

    chunks: list[ScheduledChunk]
    preempted: list[Sequence] = field(default_factory=list)  # lost their row and pages in this step
    num_drafts: int = 0  # draft tokens in all chunks

    @property
    def sampled(self) -> list[ScheduledChunk]:
        """The chunks that draw a token."""
        return [chunk for chunk in self.chunks if chunk.samples]

    @property
    def num_tokens(self) -> int:
        """Tokens in the step."""
        return sum(chunk.num_tokens for chunk in self.chunks)
