"""The look-up in its tiers: the exact key, then the nearest questions, behind guards and the verifier."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy import float16, float32
from numpy.typing import NDArray

from cache.entry import Entry, Selector
from cache.evidence import Verdict, judge, may_answer, posterior
from cache.memory_store import MemoryStore
from cache.question import Question
from cache.verify.guards import Guard, stopped_by

NUM_CANDIDATES = 5
MIN_COSINE = 0.75
"""The verifier is not asked about candidates further away: of 2,548 hits on a stream none was."""
NEAR_COSINE = 0.80
"""From here on a near hit that was not verified is offered as a draft, which costs only time when wrong."""


class Verifier(Protocol):
    """Says how likely a stored answer is right for another question."""

    version: str

    def probabilities(
        self,
        asked: str,
        asked_vector: NDArray[float32],
        known: Sequence[str],
        known_vectors: NDArray[float32],
    ) -> NDArray[float32]:
        """P(one answer serves both) for each known question, calibrated. Vectors: (384,) and (k, 384)."""
        ...

    def threshold(self, max_false_share: float) -> float:
        """The least P to serve at, so that at most this share of the hits is false."""
        ...


class Known(NamedTuple):
    """A question that an answer is there for, or under way, and what it means."""

    text: str
    vector: NDArray[float32]


class Judged(NamedTuple):
    """What is known of one candidate: P(one answer serves both), or the guard that stops it."""

    probability: float
    guard: Guard | None = None


class Equal(NamedTuple):
    """One of several known questions that one answer serves too."""

    place: int
    similarity: float
    probability: float


@dataclass(frozen=True, slots=True)
class Match:
    """A stored answer and why it may be served. `near`: it may not, but it is a good draft."""

    entry: Entry
    tier: Literal["exact", "semantic", "near"]
    similarity: float = 1.0
    probability: float = 1.0
    guard: str = ""  # the name of the guard that stopped a near one


class StoreUnavailable(Exception):
    """The store that replicas share fails; the message is the reason, in words."""


class SharedStore(Protocol):
    """What replicas share: it fills the memory of each, and may be away."""

    async def get(self, key: bytes) -> Entry | None:
        """The entry of this key, soon, or None."""
        ...

    def put(self, entry: Entry, vector: NDArray[float16] | None) -> None:
        """Tell the others of an entry, without waiting."""
        ...

    def update(self, entry: Entry, verdict: Verdict) -> None:
        """Tell the others of a verdict, which the entry has already, without waiting."""
        ...

    async def forget(self, selector: Selector) -> int:
        """Remove matching entries everywhere; their number."""
        ...


def judge_known(verifier: Verifier, asked: Known, known: Sequence[Known]) -> list[Judged]:
    """Guards first; the verifier is asked about the questions that none of them stops."""
    guards = [stopped_by(asked.text, each.text) for each in known]
    left = [each for each, guard in zip(known, guards, strict=True) if guard is None]
    if not left:
        return [Judged(0.0, guard) for guard in guards]
    vectors = np.stack([each.vector for each in left])
    found = iter(verifier.probabilities(asked.text, asked.vector, [each.text for each in left], vectors))
    return [Judged(float(next(found))) if guard is None else Judged(0.0, guard) for guard in guards]


class SemanticCache:
    """Answers by question."""

    def __init__(
        self,
        store: MemoryStore,
        verifier: Verifier | None,
        now_s: Callable[[], float] = time.time,
        shared: SharedStore | None = None,
    ) -> None:
        """Without a verifier nothing is served by meaning."""
        self.store = store
        self.now_s = now_s
        self._verifier = verifier
        self._shared = shared

    async def find_exact(self, question: Question) -> Match | None:
        """The answer to the same request."""
        entry = self.store.get(question.key, self.now_s())
        if entry is None and self._shared is not None:
            entry = await self._shared.get(question.key)
        if entry is None:
            return None
        entry.hits += 1
        self.store.evidence.count(question.labels.model, question.tenant, is_semantic=False)
        return Match(entry, "exact")

    def find_similar(
        self, question: Question, vector: NDArray[float32], max_error_rate: float
    ) -> Match | None:
        """The answer to a question that means the same, else a near one. `vector`: (384,), unit length."""
        if self._verifier is None:
            return None
        nearest = self.store.nearest(question.partition, vector, NUM_CANDIDATES, self.now_s())
        found = [each for each in nearest if each[1].cosine >= MIN_COSINE]
        if not found:
            return None
        entries = [entry for entry, _ in found]
        known = [Known(entry.text, each.vector) for entry, each in found]
        judged = judge_known(self._verifier, Known(question.text, vector), known)
        refined = [
            posterior(entry, each.probability)
            if each.guard is None and may_answer(entry, question.key)
            else 0.0
            for entry, each in zip(entries, judged, strict=True)
        ]
        best = max(range(len(refined)), key=refined.__getitem__)
        probability = refined[best]
        if probability >= self._threshold(question, max_error_rate):
            entries[best].hits += 1
            self.store.record_hit(entries[best].key)
            self.store.evidence.count(question.labels.model, question.tenant, is_semantic=True)
            return Match(entries[best], "semantic", found[best][1].cosine, probability)
        entry, closest = found[0]
        if closest.cosine < NEAR_COSINE:
            return None
        guard = judged[0].guard
        return Match(
            entry, "near", closest.cosine, judged[0].probability, "" if guard is None else guard.name
        )

    def find_equal(
        self, question: Question, vector: NDArray[float32], others: Sequence[Known], max_error_rate: float
    ) -> Equal | None:
        """Which of `others`, of the same partition, one answer serves too, by the verifier."""
        if self._verifier is None or not others:
            return None
        cosines = np.array([other.vector @ vector for other in others])
        near = [place for place in np.argsort(-cosines)[:NUM_CANDIDATES] if cosines[place] >= MIN_COSINE]
        if not near:
            return None
        judged = judge_known(self._verifier, Known(question.text, vector), [others[place] for place in near])
        best = max(range(len(near)), key=lambda number: judged[number].probability)
        probability = judged[best].probability
        if probability < self._threshold(question, max_error_rate):
            return None
        return Equal(int(near[best]), float(cosines[near[best]]), probability)

    def _threshold(self, question: Question, max_error_rate: float) -> float:
        assert self._verifier is not None
        model, tenant = question.labels.model, question.tenant
        return self._verifier.threshold(self.store.evidence.allowed(model, max_error_rate, tenant))

    def add(
        self,
        question: Question,
        vector: NDArray[float32] | None,
        answer: bytes,
        saved_tokens: int,
        ttl_s: float,
        asked_s: float,
    ) -> bool:
        """Store an answer. False: not admitted, or forgotten since its question was asked at `asked_s`."""
        now_s = self.now_s()
        entry = Entry(
            question.key,
            question.partition,
            question.tenant,
            question.text,
            answer,
            saved_tokens,
            now_s,
            now_s + ttl_s,
            question.labels,
        )
        if self.store.was_forgotten(entry, asked_s):
            return False
        stored = None if vector is None else vector.astype(float16)
        is_admitted = self.store.add(entry, stored)
        if is_admitted and self._shared is not None:
            self._shared.put(entry, stored)
        return is_admitted

    async def entry(self, key: bytes) -> Entry | None:
        """The entry of this key, wherever it is."""
        found = self.store.peek(key, self.now_s())
        return found if found is not None or self._shared is None else await self._shared.get(key)

    def judge(self, entry: Entry, question_key: bytes, verdict: Verdict) -> None:
        """Note whether an entry was the right answer to another question."""
        judge(entry, question_key, is_right=verdict.is_right)
        section, max_error_rate, is_right, tenant = verdict
        self.store.evidence.record(section, max_error_rate, tenant, is_right=is_right)
        if self._shared is not None:
            self._shared.update(entry, verdict)

    async def forget(self, selector: Selector) -> int:
        """Remove matching entries, here and where they are shared; their number.

        Answers to questions that are under way are not stored if they match.
        """
        found = self.store.forget(selector, self.now_s())
        return found if self._shared is None else max(found, await self._shared.forget(selector))
