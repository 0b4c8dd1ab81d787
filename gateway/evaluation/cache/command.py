"""`penstock eval cache`: embeds the questions, judges pairs, replays streams, reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from backend.classifiers.weights import replace_tensors
from cache.verify import Verifier
from gateway.evaluation.cache import report
from gateway.evaluation.cache.inputs import CachePlan, PairRow, StreamRow
from gateway.evaluation.cache.judging import Judge
from gateway.evaluation.cache.replay import Replay, finest
from gateway.evaluation.cache.results import KindResult, PairResult, StreamResult
from gateway.evaluation.vectors import embed_all

EXIT_FAILED = 1
COSINES = tuple(np.round(np.arange(0.80, 0.9951, 0.01), 3).tolist())
PROBABILITIES = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)

FALSE_SHARES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05)

Array = NDArray[np.float32]


def evaluate_cache(plan: CachePlan) -> int:
    """Measure, print, write the files; returns the exit code. Raises SettingsError, WeightsError."""
    verifier = Verifier.load(plan.weights)
    plan.encoder.check_weights(plan.weights)
    texts = [text for rows in plan.pairs.values() for row in rows for text in (row.a, row.b)]
    texts += [row.query for rows in plan.streams.values() for row in rows]
    vectors = embed_all(texts, plan.num_threads, is_int8=plan.is_int8, skip_long=True, encoder=plan.encoder)
    judge = Judge(verifier, vectors, plan.encoder.languages)
    threshold = verifier.threshold(plan.max_false_share)
    pairs = [each for file, rows in plan.pairs.items() for each in judge_pairs(file, rows, judge)]
    kinds = [
        each
        for file, rows in plan.pairs.items()
        if plan.shows_kinds
        for each in judge_kinds(file, rows, judge, threshold)
    ]
    streams = [
        replay_stream(file, rows, vectors, judge, threshold, plan.max_false_share)
        for file, rows in plan.streams.items()
    ]
    if plan.fits_thresholds:
        replace_tensors(plan.weights, {"thresholds": streams[0].thresholds})
    document = report.as_document(pairs, streams, verifier.version, plan.max_false_share, kinds)
    is_written = plan.outputs.write(document, report.plot_of(streams))
    report.show(Console(), document)
    return 0 if is_written else EXIT_FAILED


def judge_pairs(file: str, rows: Sequence[PairRow], judge: Judge) -> list[PairResult]:
    """Score all pairs: one result for each source, and one for all when there are several."""
    cosines = np.array([judge.cosine(row.a, row.b) for row in rows], np.float32)
    probabilities = np.array([judge.probability(row.a, row.b) for row in rows], np.float32)
    stopped = np.array([judge.is_stopped(row.a, row.b) for row in rows])
    labels = np.array([row.same for row in rows])
    sources = np.array([row.source for row in rows])
    names = sorted(set(sources.tolist()))
    masks = [(name, sources == name) for name in names]
    masks += [("all", np.ones(len(rows), bool))] if len(names) > 1 else []
    return [PairResult(file, name, labels[m], cosines[m], probabilities[m], stopped[m]) for name, m in masks]


def judge_kinds(file: str, rows: Sequence[PairRow], judge: Judge, threshold: float) -> list[KindResult]:
    """What is served of each kind, in the order of the file."""
    by_kind: dict[str, list[tuple[bool, bool]]] = {}
    for row in rows:
        is_served = judge.is_served(row.a, row.b, threshold)
        by_kind.setdefault(row.kind or row.source, []).append((row.same, is_served))
    return [KindResult.of(file, kind, found) for kind, found in by_kind.items()]


def replay_stream(
    file: str,
    rows: Sequence[StreamRow],
    vectors: dict[str, Array],
    judge: Judge,
    threshold: float,
    max_false_share: float,
) -> StreamResult:
    """Replay at every threshold, with the cosine and with the verifier as judge; its own is `threshold`."""
    no_vector = np.zeros_like(next(iter(vectors.values())))
    stacked = np.stack([vectors.get(row.query, no_vector) for row in rows])
    tokens = [row.tokens or len(row.query.split()) for row in rows]
    replay = Replay([row.query for row in rows], [row.answer_id for row in rows], stacked, tokens)

    def by_cosine(number: int, candidates: Sequence[int], cosines: Array) -> Array:
        return cosines

    def by_verifier(number: int, candidates: Sequence[int], cosines: Array) -> Array:
        found = judge.scores(rows[number].query, [rows[each].query for each in candidates])
        return np.array(found, np.float32)

    cosine = [replay.run(threshold, by_cosine) for threshold in COSINES]
    judged = [replay.run(threshold, by_verifier) for threshold in PROBABILITIES]
    kept = [(share, finest(replay, by_verifier, judged, share)) for share in FALSE_SHARES]
    return StreamResult(
        file=file,
        cosine=cosine,
        verifier=judged,
        cosine_best=finest(replay, by_cosine, cosine, max_false_share),
        verifier_best=finest(replay, by_verifier, judged, max_false_share),
        verifier_shipped=replay.run(threshold, by_verifier),
        thresholds=np.array([(share, best.threshold) for share, best in kept if best], np.float32),
    )
