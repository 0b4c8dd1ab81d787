"""Trees of drafts through scheduler, KV memory and engine, with a model that reads its context back."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.engine import Engine
from backend.speculative import verify
from backend.speculative.tree import (
    TreeBudget,
    accepted_nodes,
    best_nodes,
    depth_of,
    first_tokens,
    paths,
    shorten,
)
from backend.types import DraftTree, Request, SamplingParams, Sequence, StepOutput
from tests.backend.engine.fake_runner import VOCAB_SIZE, FakeRunner, expected, next_token
from tests.backend.speculative.drafters import GuessingDrafter, TreeDrafter

TREE = DraftTree((5, 6, 7, 8, 6), (-1, -1, 1, 1, 3))  # 5 | 6 → 7, 8 → 6


def test_the_draws_choose_the_way() -> None:
    def nodes(*drawn: int) -> list[int]:
        return accepted_nodes(TREE.tokens, TREE.parents, drawn)

    assert nodes(6, 0, 8, 0, 6, 9) == [1, 3, 4]
    assert nodes(6, 0, 8, 0, 5, 9) == [1, 3]
    assert nodes(5, 6, 8, 0, 6, 9) == [0]  # 6 follows in another branch only
    assert nodes(9, 5, 6, 7, 8, 6) == []


def test_of_equal_siblings_the_first_is_taken() -> None:
    assert accepted_nodes((5, 5, 6, 7), (-1, -1, 0, 1), (5, 7, 7, 0, 0)) == [0]


def test_paths_end_with_the_node_itself() -> None:
    assert paths(TREE.tokens, TREE.parents) == [(5,), (6,), (6, 7), (6, 8), (6, 8, 6)]


def test_chains_and_trees_are_measured_alike() -> None:
    assert depth_of(TREE) == 3 and depth_of([4, 5]) == 2
    assert first_tokens(TREE) == (5, 6) and first_tokens([4, 5]) == (4,) and first_tokens([]) == ()
    assert shorten([4, 5, 6], 2) == [4, 5] and shorten(TREE, 1) == DraftTree((5, 6), (-1, -1))
    assert shorten(DraftTree((4, 5, 6), (-1, 0, 1)), 2) == [4, 5]


def test_a_verdict_names_the_draws_along_the_path() -> None:
    drafts, parents = [(1,), TREE.tokens, ()], [(), TREE.parents, ()]
    verdict = verify.verify(drafts, [1, 2, 6, 0, 8, 0, 4, 0, 3], parents)
    assert verdict.token_ids == [2, 4, 3] and verdict.accepted == {0: [1], 1: [6, 8]}
    assert [list(verdict.draws(chunk)) for chunk in range(3)] == [[0, 1], [2, 4, 6], [8]]
    assert verify.detours(verdict, [10, 11, 20, 21, 22, 23, 24, 25, 30]) == ([22, 24], [21, 22])


class Scripted:
    """Always proposes the same tree, with the right token in place of 0."""

    name, is_cheap = "scripted", False

    def __init__(self, tree: DraftTree) -> None:
        self.observed: list[tuple[int, int]] = []
        self._tree = tree

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[DraftTree]:
        return [self._filled(sequence.tokens) for sequence in sequences]

    def _filled(self, tokens: list[int]) -> DraftTree:
        found: list[int] = []
        for node, parent in enumerate(self._tree.parents):
            before: list[int] = []
            while parent >= 0:
                before, parent = [found[parent], *before], self._tree.parents[parent]
            found.append(self._tree.tokens[node] or next_token(tokens + before))
        return DraftTree(tuple(found), self._tree.parents)

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.observed.append((num_drafted, num_accepted))

    def forget(self, sequence: Sequence) -> None:
        pass

    def drop_cached(self) -> None:
        return


def new_engine(
    runner: FakeRunner, drafter: GuessingDrafter | Scripted, k: int = 4, **changes: object
) -> Engine:
    values: dict[str, object] = {"max_running": 8, "max_batch_tokens": 64, "max_queue": 64}
    config = EngineConfig(
        model="fake",
        checkpoint="/none",
        speculative=SpeculativeConfig(drafter=drafter.name, max_tokens=k, adaptive=False),
        **(values | changes),  # type: ignore[arg-type]
    )
    return Engine(config, runner, drafters=[drafter])


def trees(skill: float, seed: int = 0, max_nodes: int = 12) -> TreeDrafter:
    return TreeDrafter(next_token, VOCAB_SIZE, skill, seed, max_nodes)


def ask(request_id: str, prompt: list[int], max_tokens: int = 8, **params: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    return Request(request_id=request_id, prompt_token_ids=prompt, params=sampling)


def drain(engine: Engine) -> list[StepOutput]:
    outputs: list[StepOutput] = []
    while engine.has_work:
        outputs += engine.step()
        engine.scheduler.check_invariants()
    return outputs


def text(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def test_a_path_through_a_tree_gives_several_tokens_per_step() -> None:
    drafter = Scripted(DraftTree((1, 0, 3, 0, 4), (-1, -1, 0, 1, 1)))
    engine = new_engine(FakeRunner(), drafter)
    engine.add(ask("a", [5, 6, 7], 31, ignore_eos=True))
    outputs = drain(engine)
    assert text(outputs) == expected([5, 6, 7], 31)
    assert len(outputs) == 11, "two accepted and one drawn, each step but the first"
    assert outputs[3].num_drafted == 5 and outputs[3].num_accepted == 2
    assert set(drafter.observed) == {(2, 2)}


def test_rejected_nodes_leave_no_trace() -> None:
    engine = new_engine(FakeRunner(), trees(0.4))
    prompt = [5] * 14
    engine.add(ask("a", prompt, 30, ignore_eos=True))
    while engine.has_work:
        engine.step()
        for sequence in engine.scheduler._running.values():
            assert len(sequence.pages) == -(-sequence.num_computed_tokens // 16), "pages of rejected drafts"
            assert sequence.num_uncomputed_tokens == 1
    engine.add(ask("b", prompt + expected(prompt, 30), 4))
    outputs = drain(engine)
    assert outputs[0].num_cached_tokens == 32, "only what was accepted is found again"
    assert text(outputs) == expected(prompt + expected(prompt, 30), 4)


def test_max_tokens_counts_depth_and_the_context_counts_nodes() -> None:
    runner = FakeRunner(max_model_tokens=32)
    engine = new_engine(runner, Scripted(DraftTree((0, 1, 2, 0, 3, 0), (-1, -1, -1, 0, 0, 3))))
    engine.add(ask("a", [5, 6], 30, ignore_eos=True))
    assert text(drain(engine)) == expected([5, 6], 30)
    chunks = [chunk for plan in runner.plans for chunk in plan.chunks if chunk.draft]
    assert max(chunk.end for chunk in chunks) == 32
    assert all(chunk.start + 1 + chunk.draft_depth < 2 + 30 for chunk in chunks)


def test_what_has_no_room_is_cut_from_the_end() -> None:
    runner = FakeRunner()
    engine = new_engine(
        runner, Scripted(DraftTree((0, 1, 0), (-1, -1, 0))), max_batch_tokens=16, max_running=8
    )
    for name in "abcdefgh":
        engine.add(ask(name, [ord(name)], 20, ignore_eos=True))
    drain(engine)
    assert max(plan.num_tokens for plan in runner.plans) <= 16
    shapes = {chunk.parents for plan in runner.plans for chunk in plan.chunks if chunk.draft}
    assert shapes == {(-1, -1, 0), (-1, -1), ()}


def test_a_stop_token_on_an_accepted_path_ends_there() -> None:
    tokens = expected([9, 9], 12)
    engine = new_engine(FakeRunner(), Scripted(DraftTree((1, 0, 0, 0, 0), (-1, -1, 1, 2, 3))))
    engine.add(ask("a", [9, 9], 12, stop_token_ids=(tokens[3],)))
    outputs = drain(engine)
    assert text(outputs) == tokens[:3]
    assert outputs[-1].stop_token_id == tokens[3] and outputs[-1].finish_reason == "stop"


def drive(seed: int, num_pages: int, budget: int, skill: float, k: int, max_nodes: int) -> None:
    """Requests come, are aborted and preempted, and say what they say without drafts."""
    rng = random.Random(seed)
    runner = FakeRunner(num_pages=num_pages, max_model_tokens=120)
    engine = new_engine(runner, trees(skill, seed, max_nodes), k, max_batch_tokens=budget)
    shared = [rng.randrange(10, 1000) for _ in range(64)]
    wanted: dict[str, list[int]] = {}
    got: dict[str, list[int]] = {}
    for number in range(30):
        if rng.random() < 0.5:
            prompt = shared[: rng.randrange(65)] + [
                rng.randrange(10, 1000) for _ in range(rng.randrange(1, 30))
            ]
            max_tokens = rng.randrange(1, 25)
            engine.add(ask(str(number), prompt, max_tokens))
            wanted[str(number)] = expected(prompt, max_tokens)
        if wanted and rng.random() < 0.1:
            victim = rng.choice(sorted(wanted))
            if engine.abort(victim):
                del wanted[victim]
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.token_ids)
        engine.scheduler.check_invariants()
    for output in drain(engine):
        got.setdefault(output.request_id, []).extend(output.token_ids)
    assert {key: got.get(key, []) for key in wanted} == wanted
    assert not runner.rows and engine.kv.free_pages == num_pages and not engine.speculator.has_work


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([10, 16, 64]),
    budget=st.sampled_from([16, 40, 128]),
    skill=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    k=st.sampled_from([1, 3, 20]),
    max_nodes=st.sampled_from([3, 12, 40]),
)
def test_any_mix_of_add_abort_and_preemption_gives_the_same_text(
    seed: int, num_pages: int, budget: int, skill: float, k: int, max_nodes: int
) -> None:
    drive(seed, num_pages, budget, skill, k, max_nodes)


def test_the_test_fails_when_acceptance_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def generous(tokens: tuple[int, ...], parents: tuple[int, ...], drawn: list[int]) -> list[int]:
        """Takes the first way down, whatever was drawn."""
        path, here = [], -1
        for node, parent in enumerate(parents):
            if parent == here:
                path.append(node)
                here = node
        return path

    monkeypatch.setattr(verify, "accepted_nodes", generous)
    with pytest.raises(AssertionError):
        drive(seed=1, num_pages=64, budget=128, skill=0.5, k=3, max_nodes=12)


def test_candidates_are_taken_by_their_whole_path() -> None:
    tokens, parents = [5, 6, 7, 8, 9], [-1, -1, 0, 0, 1]
    logprobs = [math.log(p) for p in (0.6, 0.4, 0.3, 0.01, 0.39)]
    assert best_nodes(tokens, parents, logprobs, 9) == DraftTree((5, 6, 9, 7), (-1, -1, 1, 0))
    assert best_nodes(tokens, parents, logprobs, 2) == DraftTree((5, 6), (-1, -1))


def test_of_equal_candidates_parents_come_first() -> None:
    assert best_nodes([5, 6, 7], [-1, 0, 1], [0.0, 0.0, 0.0], 2) == DraftTree((5, 6), (-1, 0))


def test_the_best_guess_is_given_however_unlikely() -> None:
    assert best_nodes([5, 6], [-1, -1], [-9.0, -9.5], 4) == DraftTree((5,), (-1,))


def test_a_budget_shrinks_with_the_depth() -> None:
    budget = TreeBudget(num_nodes=12, depth=4)
    assert [budget.of(depth) for depth in (1, 2, 3, 4, 5)] == [3, 6, 9, 12, 15]
    assert TreeBudget(num_nodes=2, depth=4).of(4) == 4
