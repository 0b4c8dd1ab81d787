"""What became known of answers served by meaning: the live share of false ones, and how strict to be.

A section is what has one error rate: a model of the policies, and each tenant's share of it. Verdicts come
from feedback, and from sampled hits that were answered again; both follow what a tenant asks and says. So its
verdicts count for itself, and for all only where the others' verdicts say the same without them.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from backend.classifiers.measures import wilson
from cache.entry import Entry

LOG = logging.getLogger("penstock.cache")

MAX_VERDICTS = 2000
"""Verdicts kept of one section at one level; older ones are forgotten."""
MIN_VERDICTS = 20
"""At one level, before it moves."""
MAX_LEVEL = 5
PRIOR_STRENGTH = 4.0
"""Verdicts on one entry that weigh as much as the verifier's estimate."""
MAX_WRONG = 3
"""An entry with more wrong verdicts than this, and more than right ones, is not served by meaning again."""
MAX_REJECTED = 16
"""Questions that an entry is known not to answer; the oldest are forgotten."""


Saved = tuple[int, list[tuple[str, bool]], int, int]
"""A section in a snapshot: level, verdicts with their tenants, hits, hits by meaning."""


class Verdict(NamedTuple):
    """Whether a hit of a section was right for a tenant, and the error rate that its policy allows."""

    section: str
    max_error_rate: float
    is_right: bool
    tenant: str


@dataclass(slots=True)
class Section:
    """Verdicts at the present level. Each level halves the error rate that is allowed."""

    level: int = 0
    verdicts: deque[tuple[str, bool]] = field(default_factory=lambda: deque(maxlen=MAX_VERDICTS))
    num_hits: int = 0  # exact ones included
    num_semantic: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of false hits among those by meaning."""
        return wilson(self.num_wrong, len(self.verdicts))

    @property
    def num_wrong(self) -> int:
        """False hits among the verdicts."""
        return sum(not is_right for _, is_right in self.verdicts)

    def without_each(self) -> Iterator[tuple[int, int]]:
        """How many verdicts are wrong, of how many, in the eyes of all tenants but one, for each of them."""
        count = Counter(tenant for tenant, _ in self.verdicts)
        wrong = Counter(tenant for tenant, is_right in self.verdicts if not is_right)
        for tenant in count:
            yield wrong.total() - wrong[tenant], count.total() - count[tenant]

    @property
    def semantic_share(self) -> float:
        """The share of semantic hits in all hits: only these can be false."""
        return (self.num_semantic + 1) / (self.num_hits + 1)


class Evidence:
    """Tightens a section whose hits are false too often; relaxes it when they have been right for long."""

    def __init__(self) -> None:
        self._sections: defaultdict[str, Section] = defaultdict(Section)

    def section(self, name: str, tenant: str = "") -> Section:
        """The verdicts of a section, of all tenants or one."""
        return self._sections[f"{name}\n{tenant}" if tenant else name]

    def level(self, name: str) -> int:
        """How often the section was tightened, for all tenants; 0 for one that is not known."""
        return self._sections[name].level if name in self._sections else 0

    def saved(self) -> dict[str, Saved]:
        """Each section, for `restore`."""
        return {
            name: (each.level, list(each.verdicts), each.num_hits, each.num_semantic)
            for name, each in self._sections.items()
        }

    def restore(self, saved: Mapping[str, Saved]) -> None:
        """Go on from what was saved."""
        for name, (level, verdicts, num_hits, num_semantic) in saved.items():
            section = self._sections[name]
            section.level, section.num_hits, section.num_semantic = level, num_hits, num_semantic
            section.verdicts.extend(verdicts)

    def count(self, name: str, tenant: str, *, is_semantic: bool) -> None:
        """A section has served an answer to a tenant."""
        for section in (self.section(name), self.section(name, tenant)):
            section.num_hits += 1
            section.num_semantic += is_semantic

    def allowed(self, name: str, max_error_rate: float, tenant: str) -> float:
        """The error rate to serve a tenant at: the policy's, or less."""
        level = max(self.section(name).level, self.section(name, tenant).level)
        return max_error_rate / (1 << level)

    def record(self, name: str, max_error_rate: float, tenant: str, *, is_right: bool) -> None:
        """A hit by meaning was right or wrong for a tenant.

        A level rises once false ones are known to be more of all hits than the policy allows, or when
        verdicts enough to show the opposite do not. It falls when they show that it is half as many.
        """
        own, all_tenants = self.section(name, tenant), self.section(name)
        for section in (own, all_tenants):
            section.verdicts.append((tenant, is_right))
        self._move(f"{name} for {tenant}", own, _step(own, max_error_rate, own.num_wrong, len(own.verdicts)))
        steps = {_step(all_tenants, max_error_rate, *seen) for seen in all_tenants.without_each()}
        if len(steps) == 1:  # no tenant alone makes the difference
            self._move(name, all_tenants, steps.pop())

    def _move(self, name: str, section: Section, step: int) -> None:
        if step:
            self._set_level(name, section, section.level + step)

    def _set_level(self, name: str, section: Section, level: int) -> None:
        wrong, count = section.num_wrong, len(section.verdicts)
        change = "tightens" if level > section.level else "relaxes"
        LOG.warning("the cache of %s %s: %d of %d checked hits were false", name, change, wrong, count)
        section.level = level
        section.verdicts.clear()  # they were about another threshold


def _step(section: Section, max_error_rate: float, num_wrong: int, count: int) -> int:
    """By how much its level moves if these are the verdicts."""
    if count < MIN_VERDICTS:
        return 0
    share = section.semantic_share
    low, high = (bound * share for bound in wilson(num_wrong, count))
    has_enough = wilson(0, count)[1] * share <= max_error_rate / 2
    if section.level < MAX_LEVEL and (low > max_error_rate or (has_enough and high > max_error_rate)):
        return 1
    return -1 if section.level and has_enough and high <= max_error_rate / 2 else 0


def posterior(entry: Entry, probability: float) -> float:
    """The verifier's P(correct), refined by the verdicts on this entry: the mean of a Beta distribution."""
    count = entry.right + entry.wrong
    return (PRIOR_STRENGTH * probability + entry.right) / (PRIOR_STRENGTH + count) if count else probability


def judge(entry: Entry, question_key: bytes, *, is_right: bool) -> None:
    """Note a verdict on an entry that was served for another question."""
    if is_right:
        entry.right += 1
        return
    entry.wrong += 1
    entry.rejected = (*entry.rejected, question_key)[-MAX_REJECTED:]


def may_answer(entry: Entry, question_key: bytes) -> bool:
    """Whether nothing is known against serving the entry for this question."""
    is_bad = entry.wrong > MAX_WRONG and entry.wrong > entry.right
    return not is_bad and question_key not in entry.rejected
