"""`penstock cache explain`: why two prompts do or do not match, offline, under any policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from backend.encoder.checkpoint import Reading
from backend.encoder.model import SentenceEncoder
from backend.encoder.network import unit
from cache.classifiers import freshness, needs_context
from cache.classifiers.timeliness import lifetime_s
from cache.question import normalised
from cache.semantic_cache import MIN_COSINE, NEAR_COSINE
from cache.verify import Verifier
from cache.verify.guards import GUARDS, Guard, stopped_by, unreadable
from gateway.admin.encoder_check import refuse_other_encoders
from gateway.encoder_fit import EncoderFit
from gateway.response_cache.settings import CacheSettings
from gateway.response_cache.use import MAX_CONTEXT_NEED
from gateway.settings import SettingsError
from policies.document import EncoderModel
from policies.load import load_folder

UNREADABLE = {
    "several lines": "a text of several lines is not compared by meaning",
    "code": "code is not compared by meaning",
    "long": "the vector of a long text hides one changed word, so it is not compared by meaning",
    "about text": "where a text itself is asked about, each sign counts, so it is not compared by meaning",
    "language": "it is in a language that the encoder does not read, so it is not compared by meaning",
}
REASONS = UNREADABLE | {guard.name: guard.reason for guard in GUARDS}


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the cache would do with `asked` when it holds an answer to `known`, in one partition."""

    verdict: str  # exact, semantic, near or miss
    reason: str
    cosine: float
    probability: float
    threshold: float
    guard: str  # the name of the guard that stops the pair, or why one of both is not compared; or ""
    freshness: str
    ttl_s: float  # of the stored answer, at most
    context_need: float | None  # P(the asked turn depends on earlier turns); None: there are none


def explain(
    asked: str, known: str, folder: Path, max_error_rate: float | None = None, history: Sequence[str] = ()
) -> Explanation:
    """Compare two prompts as the cache of these policies does.

    `history`: the user's turns before both. Raises PolicyError, SettingsError, WeightsError, CheckpointError,
    and RequestError for a prompt that is too long for the encoder.
    """
    loaded = load_folder(folder)
    refuse_other_encoders(loaded)
    policies, fit = loaded.policies, EncoderFit(loaded.policies)
    if policies.encoder is None:
        raise SettingsError(f"{folder} has no model with a section `encoder`: nothing is compared by meaning")
    rules = CacheSettings.of(policies.cache)
    encoder, verifier = _load(policies.encoder), Verifier.load(fit.verifier)
    vectors = [unit(encoder.embed(encoder.tokenize([text])))[0] for text in (asked, known)]
    cosine = float(vectors[0] @ vectors[1])
    probability = float(verifier.probabilities(asked, vectors[0], [known], vectors[1][None])[0])
    threshold = verifier.threshold(max_error_rate or rules.max_error_rate)
    languages = policies.encoder_languages
    unread = unreadable(asked, languages) or unreadable(known, languages)
    stopped = stopped_by(asked, known)
    kept = freshness(known, vectors[1], fit.readable_heads)
    need = needs_context(asked, vectors[0], history, fit.readable_heads)
    if kept == "never":
        verdict, reason = "miss", "its answer is not stored: the known question is about the asker's own data"
    elif normalised(asked) == normalised(known):
        verdict, reason = "exact", "both are the same after normalisation"
    elif unread is not None:
        verdict, reason = "miss", UNREADABLE[unread]
    elif need >= MAX_CONTEXT_NEED:
        verdict, reason = "miss", "it depends on earlier turns, so it is not compared by meaning"
    else:
        verdict, reason = _by_meaning(cosine, stopped, is_probable=probability >= threshold)
    return Explanation(
        verdict=verdict,
        reason=reason,
        cosine=cosine,
        probability=probability,
        threshold=threshold,
        guard=unread or ("" if stopped is None else stopped.name),
        freshness=kept,
        ttl_s=0.0 if kept == "never" else lifetime_s(kept, rules.ttl_s),
        context_need=need if history else None,
    )


def _load(section: EncoderModel) -> SentenceEncoder:
    reading = Reading(section.prompt, section.prompt_name, section.pooling)
    return SentenceEncoder.from_checkpoint(
        section.checkpoint, 1, is_int8=section.dtype == "int8", reading=reading
    )


def _by_meaning(cosine: float, stopped: Guard | None, *, is_probable: bool) -> tuple[str, str]:
    """In the order of `SemanticCache.find_similar`."""
    if cosine < MIN_COSINE:
        return "miss", f"their meanings are too far apart to be compared: the cosine is below {MIN_COSINE:g}"
    if stopped is not None:
        return "near" if cosine >= NEAR_COSINE else "miss", stopped.reason
    if is_probable:
        return "semantic", "one answer serves both with enough probability"
    if cosine >= NEAR_COSINE:
        return "near", "alike, but not surely of one answer: our engine gets the stored answer as a draft"
    return "miss", "one answer probably does not serve both"


def show(found: Explanation, out: TextIO, *, as_json: bool) -> None:
    """Print the explanation."""
    if as_json:
        values = {name: getattr(found, name) for name in Explanation.__slots__}
        out.write(json.dumps(values) + "\n")
        return
    rows = {
        "verdict": f"{found.verdict}: {found.reason}",
        "P(one answer)": f"{found.probability:.3f}, needs {found.threshold:.3f}",
        "cosine": f"{found.cosine:.3f}, compared from {MIN_COSINE:g} on",
        "guard": f"{found.guard}: {REASONS[found.guard]}" if found.guard else "none",
        "freshness": f"{found.freshness}: the stored answer lives {found.ttl_s:g} s at most",
    }
    if found.context_need is not None:
        need = f"P = {found.context_need:.2f}, compared below {MAX_CONTEXT_NEED:g}"
        rows["depends on earlier turns"] = need
    width = max(map(len, rows))
    out.writelines(f"{name:<{width}}  {text}\n" for name, text in rows.items())
