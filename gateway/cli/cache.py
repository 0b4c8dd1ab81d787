"""`penstock cache explain`: why two prompts do or do not match, offline, with the shipped verifier."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TextIO

from backend.encoder.checkpoint import BUILTIN
from backend.encoder.model import SentenceEncoder
from cache.guards import ENGLISH, GUARDS, stopped_by, unreadable
from cache.heads import freshness, needs_context
from cache.heads.timeliness import lifetime_s
from cache.question import normalised
from cache.semantic_cache import NEAR_COSINE
from cache.verify import Verifier
from gateway.response_cache.use import MAX_CONTEXT_NEED
from policies.cache import DEFAULTS

DAY_S = 86_400.0
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
    context_need: float  # P(the asked turn depends on earlier turns)


def explain(asked: str, known: str, max_error_rate: float) -> Explanation:
    """Compare two prompts as the cache does. Raises WeightsError or CheckpointError."""
    encoder, verifier = SentenceEncoder.from_checkpoint(BUILTIN, 1), Verifier.load()
    vectors = [encoder.embed(encoder.tokenize([text]))[0] for text in (asked, known)]
    cosine = float(vectors[0] @ vectors[1])
    probability = float(verifier.probabilities(asked, vectors[0], [known], vectors[1][None])[0])
    unread = unreadable(asked, ENGLISH) or unreadable(known, ENGLISH)
    stopped = stopped_by(asked, known)
    threshold = verifier.threshold(max_error_rate)
    kept = freshness(known, vectors[1])
    need = needs_context(asked, vectors[0], ())
    verdict, reason = _verdict(asked, known, cosine, kept, is_probable=probability >= threshold)
    if verdict in ("semantic", "near") and unread is not None:
        verdict, reason = "miss", UNREADABLE[unread]
    elif verdict in ("semantic", "near") and stopped is not None:
        verdict, reason = "near" if cosine >= NEAR_COSINE else "miss", stopped.reason
    if need >= MAX_CONTEXT_NEED and verdict != "exact":
        verdict, reason = "miss", "it depends on earlier turns, so it is not compared by meaning"
    return Explanation(
        verdict=verdict,
        reason=reason,
        cosine=cosine,
        probability=probability,
        threshold=threshold,
        guard=unread or ("" if stopped is None else stopped.name),
        freshness=kept,
        ttl_s=0.0 if kept == "never" else lifetime_s(kept, DEFAULTS.ttl_s or DAY_S),
        context_need=need,
    )


def _verdict(asked: str, known: str, cosine: float, kept: str, *, is_probable: bool) -> tuple[str, str]:
    if kept == "never":
        return "miss", "the known question is about the asker's own data, so its answer is not stored"
    if normalised(asked) == normalised(known):
        return "exact", "both are the same after normalisation"
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
        "cosine": f"{found.cosine:.3f}",
        "guard": f"{found.guard}: {REASONS[found.guard]}" if found.guard else "none",
        "freshness": f"{found.freshness}: the stored answer lives {found.ttl_s:g} s at most",
        "depends on earlier turns": f"P = {found.context_need:.2f}, compared below {MAX_CONTEXT_NEED:g}",
    }
    width = max(map(len, rows))
    out.writelines(f"{name:<{width}}  {text}\n" for name, text in rows.items())
