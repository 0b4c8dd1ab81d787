from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.engine.step_report import GrammarReport, StepReport
from backend.server.stats import Histogram, StatsCollector
from tests.backend.engine.fake_runner import FakeRunner


@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 99.0])))
def test_counts_are_cumulative_and_both_ways_to_observe_agree(values: list[float]) -> None:
    one_by_one, at_once = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for value in values:
        one_by_one.observe(value)
    at_once.observe_many(np.array(values, dtype=np.float64))
    want = [sum(v <= 1 for v in values), sum(v <= 2 for v in values), len(values)]
    assert one_by_one.cumulative() == at_once.cumulative() == want
    assert one_by_one.total == at_once.total == sum(values)


def test_grammars_are_counted_where_there_are_some() -> None:
    collector = StatsCollector()
    times = np.array([], dtype=np.float64)
    for grammars in (None, GrammarReport(0.002, [0.3, 9.0], 5), GrammarReport(0.0, [], 1)):
        collector.observe(StepReport(0.1, 1, 0, 1, 0, 0, [], times, grammars=grammars))
    found = collector.snapshot(Engine(EngineConfig(model="m", checkpoint="/c"), FakeRunner()))
    assert found.forced_tokens_total == 6
    assert found.grammar_mask_s[-1] == 1 and found.grammar_mask_sum_s == 0.002
    assert found.grammar_compile_s[-2:] == [1, 2] and found.grammar_compile_sum_s == 9.3


def test_work_is_summed_up() -> None:
    collector = StatsCollector()
    for work_s in (0.25, 0.5):
        collector.observe(StepReport(1.0, 1, 0, 1, 0, 0, [], np.zeros(0), work_s=work_s))
    found = collector.snapshot(Engine(EngineConfig(model="m", checkpoint="/c"), FakeRunner()))
    assert (found.work_s_total, found.step_time_sum_s) == (0.75, 2.0)


def test_drafts_are_counted_by_position() -> None:
    collector = StatsCollector()
    drafts = [(4, 2), (20, 20), (1, 0)]
    times = np.array([], dtype=np.float64)
    collector.observe(StepReport(0.1, 30, 0, 25, 0, 0, [], times, drafts))
    found = collector.snapshot(Engine(EngineConfig(model="m", checkpoint="/c"), FakeRunner()))
    assert found.drafts_total == 3
    assert found.drafted_tokens_total == [3, 2, 2, 2] + [1] * 11 + [5]
    assert found.accepted_tokens_total == [2, 2] + [1] * 13 + [5]
    assert sum(found.drafted_tokens_total) == 25 and sum(found.accepted_tokens_total) == 22
