"""The drafters beside `prediction`, as features for the matrix: each must go together with all the others."""

from __future__ import annotations

import msgspec

from backend.config import SpeculativeConfig
from backend.types import DraftOptions, Request
from tests.backend.engine.pairs.features import (
    DRAFTER,
    FEATURES,
    Ask,
    Feature,
    Scene,
    drafted,
    has_accepted,
    with_params,
)
from tests.backend.engine.pairs.stage import PICO_LARGE, PICO_SMALL, WEIGHTS, Stage

FEW_LETTERS = "aeio"
BIAS, HOT = 30.0, 2.0
DRAFTED_TOKENS = 4
FEW_DRAFTED_TOKENS = 2
"""Where most are accepted: a request that is done in a few steps makes room before others are preempted."""
TREE_NODES = 8


def _ask(name: str) -> Ask:
    return lambda stage, prompt, request: msgspec.structs.replace(request, draft=DraftOptions(drafter=name))


def _ask_in_few_letters(name: str) -> Ask:
    """Texts of four letters repeat themselves and each other; where they are drawn, hot enough to change."""

    def ask(stage: Stage, prompt: str, request: Request) -> Request:
        bias = {token: BIAS for letter in FEW_LETTERS for token in stage.tokenizer.encode(letter)}
        temperature = HOT if request.params.temperature else 0.0
        return with_params(_ask(name)(stage, prompt, request), logit_bias=bias, temperature=temperature)

    return ask


def _branched(scene: Scene) -> set[str]:
    """The features of `drafted`, when there were trees among their drafts."""
    found = {
        chunk.sequence.request.request_id for step in scene.record.steps for chunk in step if chunk.parents
    }
    return found & drafted(scene)


def _lookup(name: str, test: str, *, knows_others: bool = False) -> Feature:
    speculative = SpeculativeConfig(adaptive=False, max_tokens=FEW_DRAFTED_TOKENS)
    return Feature(
        name,
        test,
        DRAFTER.proof,
        drafted,
        ask=_ask_in_few_letters(name),
        engine={"drafter": name, "speculative": speculative},
        model=PICO_SMALL,
        knows_others=knows_others,
        is_any_models=True,
        is_under_way=has_accepted,
    )


def _with_weights(name: str, test: str, folder: str, tree_nodes: int = 0) -> Feature:
    speculative = SpeculativeConfig(
        adaptive=False,
        max_tokens=DRAFTED_TOKENS,
        tree_nodes=tree_nodes,
        folders={name: str(WEIGHTS / folder)},
    )
    return Feature(
        name,
        test,
        DRAFTER.proof,
        _branched if tree_nodes else drafted,
        ask=_ask(name),
        engine={"drafter": name, "speculative": speculative},
        model=PICO_LARGE,
        is_under_way=has_accepted,
    )


DRAFTERS = (
    _lookup("ngram", "texts of four letters, so that they repeat themselves"),
    _lookup("suffix", "the same, with outputs of other requests alone to look at", knows_others=True),
    _with_weights("draft_model", "chains of pico-draft", "pico-draft"),
    _with_weights("medusa", "chains of the shipped heads", "pico-large/heads/medusa"),
    _with_weights("eagle", "trees of the shipped head", "pico-large/heads/eagle", TREE_NODES),
    _with_weights(
        "mixture_of_attentions", "chains of the shipped head", "pico-large/heads/mixture_of_attentions"
    ),
)
"""By their names in policies."""

OTHERS = tuple(feature for feature in FEATURES if feature is not DRAFTER)
PAIRS = [(drafter, *other) for drafter in DRAFTERS for other in ((), *((each,) for each in OTHERS))]
