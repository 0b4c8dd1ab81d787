"""`penstock router train`: an estimate of quality from outcomes, for the key `estimate` of a `choose`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from backend.encoder.chosen import chosen_encoder
from gateway.cli.decision_records import read_log
from gateway.evaluation.encoder_flags import read_threads
from gateway.evaluation.outputs import check_path
from gateway.settings import SettingsError
from router.estimate.train import (
    OWN_WEIGHT,
    Features,
    Outcome,
    OutcomeError,
    fit,
    gains_of,
    order_by_score,
    read_outcomes,
    save,
)
from router.log import outcomes_of
from router.signals.domain import fit_domains, read_domains

MIN_OUTCOMES = 50
MIN_LABELS = 30


def train(options: argparse.Namespace, out: TextIO) -> int:
    """Fit and write; returns the exit code. Raises SettingsError."""
    if options.out.suffix != ".safetensors":
        raise SettingsError(f"--out {str(options.out)!r} must end with .safetensors")
    check_path("--out", options.out)
    if options.form == "domains":
        return _train_domains(options, out)
    try:
        own = _own(options)
        outcomes = read_outcomes(options.data) + own * (OWN_WEIGHT if options.data else 1)
        pairs = _pairs(options, outcomes)
        used = [each for each in outcomes if pairs.get(each.source, pairs.get("")) is not None]
        gains = np.concatenate(
            [
                np.zeros(0, np.float32),
                *(gains_of([each], *pairs.get(each.source, pairs.get("", ("", "")))) for each in used),
            ]
        )
    except OutcomeError as error:
        raise SettingsError(str(error)) from None
    if len(used) < MIN_OUTCOMES:
        raise SettingsError(f"{len(used)} outcomes are too few; at least {MIN_OUTCOMES} are needed")
    vectors = None
    if options.form == "blend":
        from gateway.evaluation.vectors import embed_all  # needs an optional package

        encoder = chosen_encoder(options)
        prompts = [each.prompt for each in used]
        vectors = embed_all(prompts, read_threads(options), is_int8=True, skip_long=True, encoder=encoder)
    numbers = {id(each) for each in own}
    labelled = np.flatnonzero([id(each) in numbers for each in used]) if own and options.data else None
    tensors = fit(Features.of(used, vectors), gains, *_of_cascade(used, pairs), own=labelled)
    card = {
        "form": options.form,
        "predicts": "score of the strong model less that of the weak one",
        "pairs": {source or "all": list(pair) for source, pair in pairs.items()},
        "outcomes": dict(Counter(each.source or "unnamed" for each in used)),
        "mean_gain": round(float(gains.mean()), 4),
    }
    if vectors is not None:
        card["encoder"] = encoder.card()
    if "answer_tokens" in tensors:
        card["answer_tokens"] = [round(each, 1) for each in tensors["answer_tokens"].tolist()]
    save(options.out, tensors, card)
    out.write(f"{options.out}: {len(used)} outcomes, mean gain {gains.mean():.3f}\n")
    return 0


def _of_cascade(
    used: Sequence[Outcome], pairs: Mapping[str, tuple[str, str]]
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """What the outcomes tell about a cascade of the pair; nothing where there are several pairs."""
    if len(pairs) != 1:
        return None, None
    weak, strong = next(iter(pairs.values()))
    has_kept = all(weak in each.kept for each in used)
    has_tokens = all({weak, strong} <= each.answer_tokens.keys() for each in used)
    kept = [each.kept[weak] for each in used] if has_kept else None
    tokens = [[each.answer_tokens[weak], each.answer_tokens[strong]] for each in used] if has_tokens else None
    return (
        None if kept is None else np.array(kept, np.float32),
        None if tokens is None else np.array(tokens, np.float32),
    )


def _own(options: argparse.Namespace) -> list[Outcome]:
    """Labelled requests of the log."""
    if options.log is None:
        return []
    found = [*outcomes_of(read_log(options.log))]
    if len(found) < MIN_LABELS:
        raise SettingsError(
            f"{options.log} has {len(found)} requests with text and scores of two models; {MIN_LABELS} are "
            "needed: set `observability.decision_texts`, and `is_right` of a `shadow`"
        )
    return found


def _train_domains(options: argparse.Namespace, out: TextIO) -> int:
    from gateway.evaluation.vectors import embed_all  # needs an optional package

    try:
        outcomes = read_outcomes(options.data)
    except OutcomeError as error:
        raise SettingsError(str(error)) from None
    _, tasks, sentences = read_domains()
    labelled = [
        (each.prompt, domain, each.source)
        for each in outcomes
        if (domain := tasks.get(each.task.rpartition("/")[2] or each.source)) is not None
    ]
    texts = [text for text, *_ in (*labelled, *sentences)]
    encoder = chosen_encoder(options)
    vectors = embed_all(texts, read_threads(options), is_int8=True, skip_long=True, encoder=encoder)
    used = [each for each in labelled if each[0] in vectors]
    if len(used) < MIN_OUTCOMES:
        raise SettingsError(f"{len(used)} outcomes of known tasks are too few; {MIN_OUTCOMES} are needed")
    tensors = fit_domains(
        np.stack([vectors[text] for text, *_ in used]),
        [domain for _, domain, _ in used],
        np.stack([vectors[text] for text, _ in sentences]),
        [domain for _, domain in sentences],
    )
    questions = dict(Counter(source or "unnamed" for *_, source in used))
    card = {"predicts": "the domain", "questions": questions, "sentences of our own": len(sentences)}
    card |= {"encoder": encoder.card()}
    save(options.out, tensors, card)
    out.write(f"{options.out}: {len(used)} questions of known tasks\n")
    return 0


def _pairs(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> dict[str, tuple[str, str]]:
    """By source, the weak and the strong model; "" is every source."""
    found: dict[str, tuple[str, str]] = {}
    for text in options.pair:
        source, _, models = text.partition("=")
        weak, comma, strong = models.partition(",")
        if not (source and weak and comma and strong):
            raise SettingsError(f"--pair {text!r} must have the form SOURCE=WEAK,STRONG")
        found[source] = weak, strong
    if found:
        return found
    order = order_by_score(outcomes)
    if len(order) < 2 and not (options.weak and options.strong):
        raise SettingsError("the outcomes need the scores of two models")
    weak, strong = options.weak or order[0], options.strong or order[-1]
    if weak == strong:
        raise SettingsError(f"--weak and --strong are both {weak!r}; name two models")
    return {"": (weak, strong)}
