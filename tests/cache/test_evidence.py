"""The live false-hit rate, and the error rate that follows from it."""

from __future__ import annotations

import random

import pytest

from cache.evidence import MAX_LEVEL, MIN_VERDICTS, Evidence, judge, may_answer, posterior
from tests.cache.entries import entry_of, key_of

TARGET = 0.02


def test_a_section_without_verdicts_serves_at_the_policys_rate() -> None:
    assert Evidence().allowed("m", TARGET, "a") == TARGET


def test_a_section_that_is_wrong_too_often_tightens(caplog: pytest.LogCaptureFixture) -> None:
    evidence = Evidence()
    for _ in range(MIN_VERDICTS - 1):
        evidence.record("m", TARGET, "a", is_right=False)
    assert evidence.allowed("m", TARGET, "a") == TARGET
    for _ in range(3):
        evidence.record("m", TARGET, "a", is_right=False)
    assert evidence.allowed("m", TARGET, "a") < TARGET and evidence.allowed("other", TARGET, "a") == TARGET
    assert "tightens" in caplog.text


def test_one_wrong_answer_among_many_changes_nothing() -> None:
    evidence = Evidence()
    for number in range(1000):
        evidence.record("m", TARGET, "a", is_right=number != 500)
    assert evidence.allowed("m", TARGET, "a") == TARGET
    low, high = evidence.section("m", "a").interval
    assert low < 0.001 < high < TARGET


def test_a_tightened_section_relaxes_by_evidence() -> None:
    evidence = Evidence()
    for _ in range(MIN_VERDICTS):
        evidence.record("m", TARGET, "a", is_right=False)
    level = evidence.section("m", "a").level
    for _ in range(1000):
        evidence.record("m", TARGET, "a", is_right=True)
    assert evidence.section("m", "a").level < level


def test_what_one_tenant_says_counts_for_itself_alone() -> None:
    evidence = Evidence()
    for tenant, is_right in [("liar", False)] * 1000 + [("honest", True)] * 100:
        evidence.record("m", TARGET, tenant, is_right=is_right)
    assert evidence.allowed("m", TARGET, "liar") < TARGET
    assert evidence.allowed("m", TARGET, "honest") == evidence.allowed("m", TARGET, "other") == TARGET


def test_what_several_tenants_say_counts_for_all() -> None:
    evidence = Evidence()
    for number in range(3 * MIN_VERDICTS):
        evidence.record("m", TARGET, f"tenant {number % 3}", is_right=False)
    assert evidence.allowed("m", TARGET, "other") < TARGET
    for _ in range(1000):
        evidence.record("m", TARGET, "liar", is_right=True)
    assert evidence.allowed("m", TARGET, "other") < TARGET  # nor does one relax it
    for number in range(1000):
        evidence.record("m", TARGET, f"tenant {number % 3}", is_right=True)
    assert evidence.section("m").level < MAX_LEVEL


@pytest.mark.parametrize("factor", [1.0, 3.0, 10.0])
def test_the_served_share_of_false_hits_comes_to_the_target(factor: float) -> None:
    """A verifier that is wrong `factor` times as often as it says."""
    draw, evidence, wrong = random.Random(1), Evidence(), []
    for _ in range(12_000):
        is_wrong = draw.random() < factor * evidence.allowed("m", TARGET, "a")
        evidence.record("m", TARGET, "a", is_right=not is_wrong)
        wrong.append(is_wrong)
    assert sum(wrong[4_000:]) / 8_000 <= 1.3 * TARGET
    assert evidence.section("m", "a").level <= MAX_LEVEL


def test_verdicts_on_an_entry_refine_its_probability() -> None:
    entry = entry_of(1)
    assert posterior(entry, 0.97) == 0.97
    judge(entry, key_of(2), is_right=True)
    assert 0.97 < posterior(entry, 0.97) < 1.0
    judge(entry, key_of(3), is_right=False)
    assert posterior(entry, 0.97) < 0.9


def test_an_entry_never_again_answers_a_question_that_it_got_wrong() -> None:
    entry = entry_of(1)
    judge(entry, key_of(2), is_right=False)
    assert not may_answer(entry, key_of(2)) and may_answer(entry, key_of(3))
    for number in range(3, 30):
        judge(entry, key_of(number), is_right=False)
    assert not may_answer(entry, key_of(1000)) and len(entry.rejected) == 16


def test_exact_hits_count_as_right() -> None:
    """One in ten hits by meaning is false, and one hit in twenty is by meaning: half a per cent of all."""
    evidence = Evidence()
    for number in range(4000):
        evidence.count("m", "a", is_semantic=number % 20 == 0)
    for number in range(600):
        evidence.record("m", TARGET, "a", is_right=number % 10 != 9)
    assert evidence.section("m", "a").semantic_share == pytest.approx(0.05, abs=0.001)
    assert evidence.allowed("m", TARGET, "a") == TARGET
    alone = Evidence()
    for number in range(600):
        alone.record("m", TARGET, "a", is_right=number % 10 != 9)
    assert alone.allowed("m", TARGET, "a") < TARGET
