"""Sections that serve models: sizes and targets by arithmetic, and all with tiny models on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.bench.gpu import served, served_ratios
from tests.bench.gpu.__main__ import SERVED as SECTIONS
from tests.bench.gpu.cards import CARDS
from tests.bench.gpu.jobs import MEMORY_SHARE, jobs, plan_rows, sized
from tests.bench.gpu.models import StoredWeights, open_engine, random_model, stored_model
from tests.bench.gpu.profiled import idle_share
from tests.bench.gpu.served import Setting, attempted, drive, judged, requests
from tests.bench.gpu.shapes import SERVED, TINY_FAMILIES, config_of

FIGURES = {
    "8B bf16, one stream": ((156, 180), (224, 258)),
    "8B FP8, one stream": ((225, 281), (322, 403)),
    "8B int4, one stream": ((290, 420), (416, 600)),
    "Mixtral FP8": ((5000, 7000), (7000, 10_000)),
    "70B FP8, FP8 pages": (None, (2100, 2900)),
}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("card", ["h100", "h200"])
def test_targets_are_the_figures_that_were_asked_for(name: str, card: str) -> None:
    """Computed by hand for both cards, before this was written."""
    wanted = FIGURES[name][card == "h200"]
    found = [row for row in plan_rows(CARDS[card]) if row["row"] == name]
    assert bool(found) == (wanted is not None)
    if wanted is not None:
        assert (found[0]["at least tok/s"], found[0]["aim tok/s"]) == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_jobs_fit_their_card(card: Any) -> None:  # noqa: ANN401
    for asked in jobs(card.memory_bytes):
        job, note = sized(asked, card.memory_bytes)
        if job is None:
            assert asked.weight_bytes > 0.8 * MEMORY_SHARE * card.memory_bytes and "needs" in note
            continue
        assert job.needed_bytes <= MEMORY_SHARE * card.memory_bytes
        assert (job.streams < asked.streams) == bool(note)


@pytest.mark.parametrize("stored", ["bf16", "fp8", "int4"])
def test_stored_bytes_are_those_of_the_format(stored: str) -> None:
    """The bytes of the tensors of a checkpoint without values."""
    (job,) = [job for job in jobs(80e9) if (job.section, job.stored) == ("alone", stored)]
    weights = StoredWeights(SERVED[job.model], stored, "meta")
    sites = random_model(SERVED[job.model], "meta", torch.bfloat16).sites
    count = 0
    for name, part in sites.items():
        kinds = ["weight_packed", "weight_scale"] if stored == "int4" else ["weight", "weight_scale"]
        if stored == "bf16":
            tensors = [weights.get(f"{name}.weight", (part.columns, part.in_features))]
        else:
            tensors = [
                weights.read(f"{name}.{kind}", ()) for kind in kinds if weights.shape(f"{name}.{kind}")
            ]
        if "layers" in name:
            count += sum(tensor.nbytes for tensor in tensors)
    assert count == pytest.approx(job.layer_bytes * config_of(SERVED[job.model]).num_layers, rel=0.02)


def _rows(section: str, card: str = "h200") -> list[dict[str, Any]]:
    return list(SECTIONS[section](Setting("cpu", CARDS[card], 300.0)))


def test_all_but_the_slowest_sections_serve_tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_ratios, "DRAFTS", ((3, 2.5, 3.5),))
    rows = [row for section in ("batch", "mixtral", "70b", "drafts", "prefix") for row in _rows(section)]
    assert {row["check"] for row in rows} <= {"ok", "aim", "below"}, rows
    assert all(row["measured"] > 0 for row in rows if "measured" in row)
    names = [row["row"] for row in rows]
    assert names[:3] == ["8B bf16, many streams", "Mixtral FP8", "70B FP8, FP8 pages"]
    assert "prefix hits of 75%, tokens" in names and "right predictions, 3 streams, tokens" in names


def test_adapters_are_there_unused_alone_and_together() -> None:
    rows = _rows("adapters")
    assert [row["row"].partition(" ")[0] for row in rows] == ["adapters", "1", "8"], rows
    assert all(row["measured"] > 0 and row["unit"] == "share" for row in rows), rows


def test_other_tokens_than_without_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that draws other tokens when its steps are launched ahead."""
    model = random_model(TINY_FAMILIES["llama"], "cpu", torch.float32, "cpu", 0.2)

    def opened(*arguments: Any, is_ahead: bool = False, **options: bool) -> Any:  # noqa: ANN401
        engine = open_engine(*arguments, is_ahead=is_ahead, **options)
        if is_ahead:
            sampler: Any = engine._runner
            sample = sampler._sampler.sample
            sampler._sampler.sample = lambda *values: ((found := sample(*values))[0] ^ 1, found[1])
        return engine

    monkeypatch.setattr(served, "open_engine", opened)
    rows = {row["row"]: row["check"] for row in served._equal("llama", model, [[1, 2, 3], [4, 5]])}
    assert rows.pop("llama, overlap on") == "FAILED" and set(rows.values()) == {"ok"}, rows


def test_a_run_that_is_cut_counts_what_it_made() -> None:
    model = stored_model(SERVED["tiny-wide"], "bf16", "cpu", "auto")
    engine = open_engine(model, 2, 64)
    run = drive(engine, requests([[1, 2], [50]], 40), most_s=0.0)
    assert run.is_cut and 0 < run.num_tokens < 80 and not engine.has_work
    seen = []
    whole = drive(engine, requests([[1, 2], [50]], 8), probe=lambda step: seen.append(step()))
    assert whole.tokens == {"0": [*range(3, 11)], "1": [*range(51, 59)]} and len(seen) == 1
    assert whole.num_tokens == 14  # the step of the probe made two


def test_a_row_that_fails_tells_why_and_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"row": "first"}
        raise RuntimeError("out of memory\nno more")

    first, last = attempted("second", broken)
    assert first == {"row": "first"}
    assert (last["row"], last["check"], last["note"]) == ("second", "FAILED", "RuntimeError: out of memory")
    made = served.stored_model
    monkeypatch.setattr(served, "stored_model", lambda *values: 1 / 0 if "fp8" in values else made(*values))
    checks = {row["row"]: row["check"] for row in _rows("alone")}
    assert checks.pop("8B FP8, one stream") == "FAILED" and "FAILED" not in checks.values()


def test_what_is_not_reached_is_skipped_with_the_reason() -> None:
    assert [row["check"] for row in _rows("70b", "h100")] == ["skipped"]
    (row,) = SECTIONS["mixtral"](Setting("cpu", CARDS["l40s"], 300.0, is_quick=True))
    assert row["check"] in ("aim", "ok", "below")  # tiny models fit everywhere
    job, note = sized(next(job for job in jobs(48e9) if job.section == "mixtral"), 48e9)
    assert job is None and "90% of this card's memory are 43 GB" in note


def test_weights_that_are_held_in_more_bytes_leave_fewer_streams() -> None:
    wide = [replace(job, times_held=2.0) for job in jobs(141e9) if job.stored == "fp8"]
    found = {job.name: sized(job, 141e9)[0] for job in wide}
    mixtral, large = found["Mixtral FP8"], found["70B FP8, FP8 pages"]
    assert large is None and mixtral is not None and 100 < mixtral.streams < 120
    assert mixtral.decode_bytes(1500) < mixtral.weight_bytes  # the target is that of the format


def test_verdicts() -> None:
    marks = [judged("x", "", measured, 0.6, 0.75, "")["check"] for measured in (0.5, 0.6, 0.8)]
    assert marks == ["below", "ok", "aim"]


def test_idle_time_is_between_spans() -> None:
    assert idle_share([(0.0, 4.0), (1.0, 2.0), (6.0, 8.0), (8.0, 10.0)]) == pytest.approx(0.2)
