"""The features that must work together: what each changes, and how one sees that it was really at work.

What is *asked for* stays on both sides of a comparison. The rest only changes how an answer is computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from backend.types import GrammarSpec, Request, SamplingParams, SequenceStatus
from tests.backend.engine.pairs.stage import PICO_SMALL, Record, Stage

Ask = Callable[[Stage, str, Request], Request]

PROMPTS = {
    "a": "Sort these numbers in ascending order: 41, 7, 93, 18, 66, 25, 80, 3.",
    "b": "Give me the data as JSON: Anna Smith is 34 years old and lives in Rome.",
    "c": "Sort these words in alphabetical order: pear, apple, stone, river, cloud, lamp.",
}
VICTIM = "v"
VICTIMS_PROMPT = "Anna has 14 apples and buys 25 more. Then she gives 9 to Tom. How many are left?"
TEMPERATURES = {"a": 0.0, "b": 0.8, "c": 1.2, VICTIM: 0.8}
CANCELLED_AFTER_TOKENS = 9
SEEDS = (7, 17, 27)
"""Seeds of the first choice: after new training, another one may be the one that uses every feature."""
FEW_PAGES = {3: 11, 4: 15, 6: 17}
"""By number of requests: the newest one is preempted, after its feature was used."""
LETTERS = GrammarSpec(kind="regex", text="[a-z ]{12,60}")
TEXT = GrammarSpec(
    kind="json_schema",
    text='{"type": "object", "properties": {"result": {"type": "string", "minLength": 24}}, '
    '"required": ["result"], "additionalProperties": false}',
)


@dataclass(slots=True)
class Scene:
    """One cell of the matrix: what was asked for and what happened."""

    stage: Stage
    features: tuple[Feature, ...]
    asked: dict[str, Request]
    seed: int = SEEDS[0]
    record: Record = field(default_factory=Record)

    def changed_by(self, ask: Ask) -> set[str]:
        """The requests whose plain answer would be another without the feature that asks for this."""
        features = [f for f in self.features if f.ask is not ask]
        others = requests(self.stage, features, self.asked, self.seed)
        return {
            name
            for name, request in self.asked.items()
            if self.stage.plain(request).tokens("plain") != self.stage.plain(others[name]).tokens("plain")
        }


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """A row and a column of the matrix."""

    name: str
    test: str  # what the matrix does with it, for the docs
    proof: str  # what a cell must have seen, for the docs
    happened: Callable[[Scene], set[str]]  # the requests on which it was at work
    is_asked_for: bool = False
    ask: Ask = lambda stage, name, request: request
    engine: Mapping[str, object] = field(default_factory=dict)  # what Stage.engine is told
    model: str = PICO_SMALL  # whose the drafter is
    knows_others: bool = False  # it learns from outputs of other requests
    is_any_models: bool = False  # the same code whatever the model is: it sees tokens, or logits in float32
    # When the victim of a cancellation has had enough of this feature; None: after some tokens.
    is_under_way: Callable[[Record, str], bool] | None = None


def engine_settings(features: Iterable[Feature], num_requests: int) -> list[dict[str, object]]:
    """Engines that show these features, the likeliest first: whom it preempts is the scheduler's affair."""
    values: dict[str, object] = {"prefix_cache": False, "num_pages": 64}
    for feature in features:
        values |= feature.engine
    if PREEMPTION not in features:
        return [values]
    likely = FEW_PAGES[num_requests]
    pools = sorted(range(likely - 3, likely + 4), key=lambda num_pages: abs(num_pages - likely))
    return [values | {"num_pages": num_pages} for num_pages in pools]


def scenes(stage: Stage, features: tuple[Feature, ...]) -> Iterator[tuple[Scene, dict[str, object]]]:
    """The same thing in ever other ways, each with the settings of its engine."""
    prompts = [*PROMPTS, *([VICTIM] if CANCEL in features else [])]
    names = [f"{p}/{i}" for p in prompts for i in range(2)] if CHOICES in features else prompts
    for seed in SEEDS:
        asked = requests(stage, features, names, seed)
        for settings in engine_settings(features, len(asked)):
            yield Scene(stage, features, asked, seed), settings


def requests(
    stage: Stage, features: Iterable[Feature], names: Iterable[str], seed: int
) -> dict[str, Request]:
    """The requests of these names ("a", or "a/1" for a second choice) with these features."""
    found: dict[str, Request] = {}
    for name in names:
        prompt, _, choice = name.partition("/")
        text = PROMPTS.get(prompt, VICTIMS_PROMPT)
        request = Request(
            request_id=name,
            prompt_token_ids=stage.tokenizer.encode_chat([{"role": "user", "content": text}]),
            params=SamplingParams(
                max_tokens=24, min_tokens=16, temperature=TEMPERATURES[prompt], seed=seed + int(choice or 0)
            ),
        )
        for feature in sorted(features, key=lambda feature: not feature.is_asked_for):
            request = feature.ask(stage, prompt, request)
        found[name] = request
    return found


def with_params(request: Request, **changes: Any) -> Request:  # noqa: ANN401
    params = msgspec.structs.replace(request.params, **changes)
    return msgspec.structs.replace(request, params=params)


def _adapt(stage: Stage, prompt: str, request: Request) -> Request:
    digests = dict(zip(("b", "c", VICTIM), itertools.cycle(stage.adapters), strict=False))
    return msgspec.structs.replace(request, adapter=digests.get(prompt, ""))


def _constrain(stage: Stage, prompt: str, request: Request) -> Request:
    return msgspec.structs.replace(request, grammar={"a": None, "b": LETTERS}.get(prompt, TEXT))


def _penalise(stage: Stage, prompt: str, request: Request) -> Request:
    """With 0.8 a draw on pico-large lies within 1e-7 of the border of two tokens, and falls either way."""
    return with_params(
        request,
        repetition_penalty=1.0 if prompt == "b" else 1.3,
        presence_penalty=1.5 if prompt == "b" else 0.0,
        frequency_penalty=0.7,
    )


def _score(stage: Stage, prompt: str, request: Request) -> Request:
    return with_params(request, logprobs=3, prompt_logprobs=1 if prompt == "a" else None)


def _heat(stage: Stage, prompt: str, request: Request) -> Request:
    return with_params(request, temperature=1.0)


def _predict(stage: Stage, prompt: str, request: Request) -> Request:
    """The answer, with a word too much, one too few and one wrong."""
    tokens = stage.plain(request).tokens("plain")
    guess = [*tokens[:3], 300, *tokens[3:8], *tokens[9:13], 301, *tokens[14:]]
    return msgspec.structs.replace(request, prediction_token_ids=guess)


def _scored(scene: Scene) -> set[str]:
    found = {name for name, outputs in scene.record.outputs.items() if any(o.logprobs for o in outputs)}
    for name in found:
        records = [r.token_id for o in scene.record.outputs[name] for r in o.logprobs or []]
        assert records == scene.record.tokens(name)
    return found


def _side_by_side(scene: Scene) -> set[str]:
    """Choices that were computed in a step with another of their prompt, and say something else."""
    plain = {name: scene.stage.plain(request).tokens("plain") for name, request in scene.asked.items()}
    found = set()
    for step in scene.record.steps:
        names = sorted(chunk.sequence.request.request_id for chunk in step)
        for one, other in itertools.pairwise(names):
            if one.partition("/")[0] == other.partition("/")[0] and plain[one] != plain[other]:
                found |= {one, other}
    return found


def drafted(scene: Scene) -> set[str]:
    """Requests with accepted drafts, where some were rejected as well."""
    verified = scene.record.verified
    if all(accepted == drafted for found in verified.values() for drafted, accepted in found):
        return set()
    return {name for name, found in verified.items() if any(accepted for _, accepted in found)}


def has_accepted(record: Record, name: str) -> bool:
    """Whether a draft of this request was of use by now."""
    return any(accepted for _, accepted in record.verified.get(name, []))


def _cached(scene: Scene) -> set[str]:
    sequences = scene.record.sequences
    return {name for name in scene.asked if sequences[name].num_cached_tokens > 0}


def _preempted(scene: Scene) -> set[str]:
    sequences = scene.record.sequences
    return {name for name in scene.asked if sequences[name].num_preemptions > 0}


def _chunked(scene: Scene) -> set[str]:
    return {
        name
        for name in scene.asked
        if any(c.end < len(scene.asked[name].prompt_token_ids) for c in scene.record.chunks(name))
    }


def _cancelled(scene: Scene) -> set[str]:
    sequences = scene.record.sequences
    return {name for name in scene.asked if sequences[name].finish_reason == "abort"}


def _is_mid_prompt(record: Record, name: str) -> bool:
    sequence = record.sequences[name]
    return 0 < sequence.num_computed_tokens < sequence.num_prompt_tokens


def _waits_again(record: Record, name: str) -> bool:
    sequence = record.sequences[name]
    return sequence.num_preemptions > 0 and sequence.status is SequenceStatus.WAITING


ADAPTER = Feature(
    "adapter",
    "three adapters beside the base model in one batch",
    "the answer is another than the base model's",
    lambda scene: scene.changed_by(_adapt),
    is_asked_for=True,
    ask=_adapt,
)
DRAFTER = Feature(
    "drafter",
    "the plain answer with three mistakes as the prediction",
    "drafts were accepted, and some rejected",
    drafted,
    ask=_predict,
    is_under_way=has_accepted,
)
GRAMMAR = Feature(
    "grammar",
    "a JSON schema and a regular expression beside free text",
    "the answer is another than without",
    lambda scene: scene.changed_by(_constrain),
    is_asked_for=True,
    ask=_constrain,
    is_any_models=True,
)
PENALTIES = Feature(
    "penalties",
    "repetition, presence and frequency",
    "the answer is another than without",
    lambda scene: scene.changed_by(_penalise),
    is_asked_for=True,
    ask=_penalise,
    is_any_models=True,
)
LOGPROBS = Feature(
    "logprobs",
    "of the output, once of the prompt as well",
    "each token has its record",
    _scored,
    is_asked_for=True,
    ask=_score,
    is_any_models=True,
)
CHOICES = Feature(
    "n > 1",
    "two choices of each prompt",
    "both were computed in one step and differ",
    _side_by_side,
    is_asked_for=True,
    ask=_heat,
    engine={"prefix_cache": True},
)
PREFIX_HIT = Feature(
    "prefix hit",
    "prompts, or their beginnings, were asked before, with and without adapters",
    "computing began behind known pages",
    _cached,
    engine={"prefix_cache": True},
)
PREEMPTION = Feature(
    "preemption",
    "too few pages for all",
    "the sequence lost its pages and came back",
    _preempted,
    is_under_way=_waits_again,
)
CHUNKED_PREFILL = Feature(
    "chunked prefill",
    "24 tokens a step",
    "a step ended within the prompt",
    _chunked,
    engine={"max_batch_tokens": 24},
    is_under_way=_is_mid_prompt,
)
CANCEL = Feature(
    "cancel",
    "one more request is cancelled when the other feature is at work on it, then asked again",
    "it had not ended; nothing came after",
    _cancelled,
    is_any_models=True,
)

FEATURES = (
    ADAPTER,
    DRAFTER,
    GRAMMAR,
    PENALTIES,
    LOGPROBS,
    CHOICES,
    PREFIX_HIT,
    PREEMPTION,
    CHUNKED_PREFILL,
    CANCEL,
)
