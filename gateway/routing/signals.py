"""The values of the variables `signals.…`, read from a prompt's text, each at most once per request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from backend.encoder.language import language_of
from cache.classifiers.timeliness import freshness
from gateway.encoder_fit import EncoderFit
from gateway.exchange.exchange import Exchange
from gateway.exchange.prompt_embedding import Embed, no_meaning
from gateway.exchange.turns import user_turns
from gateway.routing.memory import RoutingMemory
from gateway.routing.predicted_gain import meaning_of, predict_gain
from guardrails.checks.injection import kinds_of
from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from policies.document import Policies
from policies.routes import Action, Rule
from policies.variables import NEED_VECTORS, SIGNALS, UNAVAILABLE
from router.estimate import load_estimate
from router.signals import Surface, domain_of, read_surface

Array = NDArray[np.float32]
REASONING = "builtin:reasoning"
PREVIOUS_MODEL = "signals.previous_model"
_OF_WHOLE_TURN = NEED_VECTORS - {UNAVAILABLE}
_WITHOUT_VECTOR: Mapping[str, object] = {"signals.domain": "", "signals.freshness": "static"}


class Signals:
    """Reads signals under one version of the policies."""

    def __init__(
        self, policies: Policies, embed: Embed = no_meaning, memory: RoutingMemory | None = None
    ) -> None:
        self._section = policies.signals
        self._languages = policies.encoder_languages
        self._fit = fit = EncoderFit(policies)
        self._of_vector: Mapping[str, Callable[[str, Array], object]] = {
            "signals.domain": lambda text, vector: domain_of(vector, fit.domains),
            "signals.freshness": lambda text, vector: freshness(text, vector, fit.readable_heads),
        }
        self._embed = embed
        self._memory = memory or RoutingMemory()
        self._phrases: dict[str, Array] = {}  # by topic, once they were needed: (N, D)
        conditions = [rule.when or "" for _, rule in policies.actions() if isinstance(rule, Rule)]
        self._knows_freshness = any("signals.freshness" in each for each in conditions)
        self._knows_languages = any(map(self._reads_language, (action for _, action in policies.actions())))

    def _reads_language(self, action: Action) -> bool:
        """Whether a condition does, or an estimate that reads vectors of some languages."""
        names = [each.estimate for each in (action.choose, action.cascade) if each is not None]
        when = (action.when or "") if isinstance(action, Rule) else ""
        if "signals.gain" in when:
            names.append(self._section.estimate)
        has_vector = any(load_estimate(name).needs_vector for name in names if name is not None)
        return has_vector or "signals.language" in when

    async def start(self) -> None:
        """Load what would make the first request wait."""
        if self._knows_languages:
            await asyncio.to_thread(language_of, "")
        if self._knows_freshness:
            await asyncio.to_thread(lambda: self._fit.readable_heads)

    async def close(self) -> None:
        """Nothing is open."""

    async def of(
        self, exchange: Exchange, names: Iterable[str], keys: Iterable[tuple[str, str]] = ()
    ) -> dict[str, object]:
        """The value of each name; for `signals.similarity`, those of its keys."""
        names = [*names]
        found: dict[str, object] = {}
        text = _Text((user_turns(exchange.request) or [""])[-1])
        vector = None
        unread: list[str] = []  # as the encoder did not answer
        if text.last and not _OF_WHOLE_TURN.isdisjoint(names):
            vector = await meaning_of(exchange, text.last, self._embed).vector()
        for name in names:
            if name == "signals.similarity":
                values = {topic: await self._similarity(topic, vector) for _, topic in keys}
                found[name] = {topic: value or 0.0 for topic, value in values.items()}
                unread += [name] if None in values.values() else []
            elif name == "signals.gain":
                estimate = load_estimate(self._section.estimate)
                predicted = await predict_gain(exchange, estimate, self._embed, self._languages)
                found[name] = round(predicted.gain, 4)
                unread += [name] if predicted.lacks_vector else []
            elif name == PREVIOUS_MODEL:
                found[name] = self._memory.conversations.previous_model(exchange)
            elif name in self._of_vector:
                read = self._of_vector[name]
                found[name] = _WITHOUT_VECTOR[name] if vector is None else read(text.last, vector)
                unread += [name] if vector is None else []
            elif name != UNAVAILABLE:
                found[name] = _READERS[name](text)
        for name in unread if text.last else ():
            exchange.asked.telemetry.signal_unavailable(name.removeprefix(SIGNALS))
        if UNAVAILABLE in names:
            is_unavailable = await self._is_unavailable(exchange, text.last, names, unread)
            found[UNAVAILABLE] = is_unavailable
        return found

    async def _is_unavailable(
        self, exchange: Exchange, last_turn: str, names: Sequence[str], unread: Sequence[str]
    ) -> bool:
        """Whether the encoder has not given what the signals beside it are read from.

        Each reads its own part of the turn: `signals.gain` the part that asks, others all of it.
        """
        if not last_turn:
            return False
        beside = {*names} & {*_OF_WHOLE_TURN, "signals.gain"}
        if beside:
            return not beside.isdisjoint(unread)
        return await meaning_of(exchange, last_turn, self._embed).vector() is None

    async def _similarity(self, topic: str, vector: Array | None) -> float | None:
        """The highest cosine to a phrase of the topic; None while the encoder does not answer."""
        if vector is None:
            return None
        if topic not in self._phrases:
            vectors = [await self._embed(phrase) for phrase in self._section.phrases[topic]]
            if any(each is None for each in vectors):
                return None
            self._phrases[topic] = np.stack([each for each in vectors if each is not None])
        return round(max(0.0, float((self._phrases[topic] @ vector).max())), 4)


@dataclass(frozen=True)
class _Text:
    """The last turn of the user."""

    last: str

    @cached_property
    def surface(self) -> Surface:
        return read_surface(self.last)


def _has_personal_data(text: str) -> bool:
    return any(PatternFinder(KINDS).spans(text))


def needs_reasoning(text: str) -> float:
    """0 to 1: how much reasoning is expected to help."""
    return round(max(0.0, load_estimate(REASONING).predict(text).gain), 4) if text else 0.0


_READERS: Mapping[str, Callable[[_Text], object]] = {
    "signals.language": lambda text: language_of(text.last),
    "signals.has_code": lambda text: text.surface.has_code,
    "signals.has_maths": lambda text: text.surface.has_maths,
    "signals.has_table": lambda text: text.surface.num_table_rows >= 2,
    "signals.num_words": lambda text: text.surface.num_words,
    "signals.num_constraints": lambda text: text.surface.num_constraints,
    "signals.needs_reasoning": lambda text: needs_reasoning(text.last),
    "signals.has_personal_data": lambda text: _has_personal_data(text.last),
    "signals.has_injection": lambda text: bool(kinds_of(text.last)),
}
