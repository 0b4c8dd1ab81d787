"""`penstock eval cache`: embeds the questions, judges pairs, replays streams, reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from backend.heads.weights import replace_tensors
from cache.verify import Verifier
from cache.verify.verifier import WEIGHTS
from gateway.cli.evaluation.cache import report
from gateway.cli.evaluation.cache.inputs import PairRow, Plan, StreamRow
from gateway.cli.evaluation.cache.replay import Replay, finest
from gateway.cli.evaluation.cache.results import PairResult, StreamResult
from gateway.cli.evaluation.files import write_file
from gateway.cli.evaluation.vectors import embed_all

EXIT_FAILED = 1
COSINES = tuple(np.round(np.arange(0.80, 0.9951, 0.01), 3).tolist())
PROBABILITIES = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)

FALSE_SHARES = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
MARGIN = 0.9
"""Of a false share, kept on the development stream, as other streams differ from it."""

Array = NDArray[np.float32]


def evaluate_cache(plan: Plan) -> int:
    """Measure, print, write the files; returns the exit code. Raises SettingsError."""
    if plan.plot_path is not None:
        report.check_plot(plan.plot_path)
    verifier = Verifier.load()
    texts = [text for rows in plan.pairs.values() for row in rows for text in (row.a, row.b)]
    texts += [row.query for rows in plan.streams.values() for row in rows]
    vectors = embed_all(texts, plan.num_threads, is_int8=plan.is_int8)
    pairs = [
        result for file, rows in plan.pairs.items() for result in judge_pairs(file, rows, vectors, verifier)
    ]
    streams = [
        replay_stream(file, rows, vectors, verifier, plan.max_false_share)
        for file, rows in plan.streams.items()
    ]
    if plan.fits_thresholds:
        replace_tensors(WEIGHTS, {"thresholds": streams[0].thresholds})
    document = report.as_document(pairs, streams, verifier.version, plan.max_false_share)
    is_written = _write_json(plan.json_path, document)
    report.show(Console(), document)
    if plan.plot_path is not None:
        report.save_plot(streams, plan.plot_path)
    return 0 if is_written else EXIT_FAILED


def judge_pairs(
    file: str, rows: Sequence[PairRow], vectors: dict[str, Array], verifier: Verifier
) -> list[PairResult]:
    """Score all pairs: one result for each source, and one for all when there are several."""
    cosines = np.array([vectors[row.a] @ vectors[row.b] for row in rows], np.float32)
    judged = [verifier.probabilities(row.a, vectors[row.a], [row.b], vectors[row.b][None])[0] for row in rows]
    probabilities, labels = np.array(judged, np.float32), np.array([row.same for row in rows])
    sources = np.array([row.source for row in rows])
    names = sorted(set(sources.tolist()))
    masks = [(name, sources == name) for name in names]
    masks += [("all", np.ones(len(rows), bool))] if len(names) > 1 else []
    return [PairResult(file, name, labels[m], cosines[m], probabilities[m]) for name, m in masks]


def replay_stream(
    file: str,
    rows: Sequence[StreamRow],
    vectors: dict[str, Array],
    verifier: Verifier,
    max_false_share: float,
) -> StreamResult:
    """Replay at every threshold, with the cosine and with the verifier as judge."""
    stacked = np.stack([vectors[row.query] for row in rows])
    tokens = [row.tokens or len(row.query.split()) for row in rows]
    replay = Replay([row.query for row in rows], [row.answer_id for row in rows], stacked, tokens)

    def by_cosine(number: int, candidates: Sequence[int], cosines: Array) -> Array:
        return cosines

    def by_verifier(number: int, candidates: Sequence[int], cosines: Array) -> Array:
        texts = [rows[each].query for each in candidates]
        return verifier.probabilities(rows[number].query, stacked[number], texts, stacked[list(candidates)])

    cosine = [replay.run(threshold, by_cosine) for threshold in COSINES]
    judged = [replay.run(threshold, by_verifier) for threshold in PROBABILITIES]
    kept = [(share, finest(replay, by_verifier, judged, MARGIN * share)) for share in FALSE_SHARES]
    return StreamResult(
        file=file,
        cosine=cosine,
        verifier=judged,
        cosine_best=finest(replay, by_cosine, cosine, max_false_share),
        verifier_best=finest(replay, by_verifier, judged, max_false_share),
        verifier_shipped=replay.run(verifier.threshold(max_false_share), by_verifier),
        thresholds=np.array([(share, best.threshold) for share, best in kept if best], np.float32),
    )


def _write_json(path: Path | None, document: dict[str, object]) -> bool:
    """False when the file could not be written; prints the reason."""
    if path is None:
        return True
    try:
        write_file(path, f"{json.dumps(document, indent=1)}\n".encode())
    except OSError as error:
        sys.stderr.write(f"penstock: --json {str(path)!r} cannot be written: {error.strerror}\n")
        return False
    return True
