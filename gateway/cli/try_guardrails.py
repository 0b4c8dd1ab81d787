"""`penstock guardrails try`: score, threshold, language and deciding words of each check on one text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from backend.encoder.checkpoint import BUILTIN
from gateway.extras import require
from gateway.settings import SettingsError
from guardrails.checks.classifier import CATEGORIES, KINDS, Check, Score, least_score, plan, score
from guardrails.checks.injection import find_injection
from guardrails.checks.personal_data.patterns import KINDS as PERSONAL_DATA
from guardrails.deciding import deciding_words
from guardrails.findings import Segment
from guardrails.masking import Masking
from guardrails.text.normalise import read
from policies.guardrails import GuardrailProfile, HarmRules, InjectionRules
from policies.load import load_policies

if TYPE_CHECKING:
    from backend.encoder.model import SentenceEncoder

STRICT = GuardrailProfile(injection=InjectionRules(), harm=HarmRules())
"""Without policies: both classifiers, with their defaults."""
BATCH = 16
_CHECKS: tuple[Check, ...] = ("injection", "harm")


def try_guardrails(options: argparse.Namespace, out: TextIO) -> int:
    """Print a line for each check. Raises SettingsError, PolicyError, WeightsError."""
    profile = _profile(options.policies, options.profile)
    text = _text(options.text)
    if profile.needs_encoder:
        require("this command", ["semantic"])
    for line in report(text, profile, options.segment):
        out.write(f"{line}\n")
    return 0


def report(text: str, profile: GuardrailProfile, segment: str) -> Iterator[str]:
    """What each check of the profile says about a text."""
    reading, trust = read(text), cast("Segment", segment)
    planned = plan(reading, trust)
    languages = sorted({piece.language for piece in planned.pieces})
    yield f"text: {len(text)} characters, read as {', '.join(languages) or 'no language'}"
    if profile.injection is not None:
        for found in find_injection(reading, trust):
            place = text[found.start : found.end]
            yield f"injection  {found.kind}: flagged by a {found.reason}: {place[:80]!r}"
    for check in _CHECKS:
        if getattr(profile, check) is not None:
            yield from (f"{check}  unreadable: {name}" for name in planned.unreadable(check))
    if profile.needs_language and planned.pieces:
        scores = score(planned, embed(planned.texts))
        for name, head, rate in _heads(profile, scores):
            yield _line(name, head, scores, least_score(head, scores[head].language, rate))
    if (data := profile.personal_data) is not None:
        masking = Masking(PERSONAL_DATA if data.kinds is None else tuple(data.kinds), "flag")
        masking.mask(text)
        yield from (f"personal_data  {kind}: {count} found" for kind, count in sorted(masking.found.items()))


def _heads(profile: GuardrailProfile, scores: dict[str, Score]) -> Iterator[tuple[str, str, float]]:
    """Check, head and rate of the heads that decide under a profile."""
    if (attacks := profile.injection) is not None and attacks.classifier:
        for head in ("attack", "indirect"):
            if head in scores:
                yield "injection", head, attacks.false_positive_rate
    if (harm := profile.harm) is not None:
        for head in ("harmful_topic", "toxicity", *CATEGORIES):
            if head in harm.categories:
                yield "harm", head, harm.false_positive_rate


def _line(check: str, head: str, scores: dict[str, Score], limit: float) -> str:
    found = scores[head]
    name = max(KINDS, key=lambda kind: scores[kind].value) if head == "attack" else head
    verdict = "flagged" if found.value >= limit else "passes"
    line = f"{check}  {name}: {found.value:.3f}, threshold {limit:.3f}, {verdict}, {found.language}"
    words = ", ".join(deciding_words(head, found, embed))
    return f"{line}; words: {words}" if words else line


def _profile(folder: Path | None, name: str | None) -> GuardrailProfile:
    if folder is None:
        if name is not None:
            raise SettingsError(f"--profile {name!r} needs the policy folder DIR that defines it")
        return STRICT
    section = load_policies(folder).guardrails
    if section.classifier is not None:
        raise SettingsError(
            "guardrails.classifier names weights of one's own encoder, and `try` reads the shipped ones: "
            "measure with `penstock eval guardrails --weights FILE --encoder FOLDER`"
        )
    chosen = name or section.default
    if chosen is None or chosen not in section.profiles:
        known = ", ".join(section.profiles) or "none"
        raise SettingsError(f"--profile {chosen!r} is no profile of {str(folder)!r}; there are: {known}")
    return section.profiles[chosen]


def _text(given: str) -> str:
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):  # too long or with a NUL: no path
        is_file = False
    try:
        return Path(given).read_text("utf-8") if is_file else given
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{given!r} cannot be read as UTF-8 text: {error}") from None


@cache
def _encoder() -> SentenceEncoder:
    from backend.encoder.model import SentenceEncoder  # its runtime is in the extra `semantic`

    return SentenceEncoder.from_checkpoint(BUILTIN, 1, is_int8=True)


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of some texts, by the embedded encoder."""
    encoder = _encoder()
    parts = [
        encoder.embed(encoder.tokenize(list(texts[start : start + BATCH])))
        for start in range(0, len(texts), BATCH)
    ]
    return np.concatenate(parts)
