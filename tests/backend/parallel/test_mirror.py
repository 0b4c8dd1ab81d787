"""An engine of two processes gives the tokens of one, and adapters, moves and zeroes reach both."""

from __future__ import annotations

import pytest
import torch

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.parallel.mirror import check_cards
from backend.types import DraftOptions, GrammarSpec, Request, SamplingParams
from tests.backend.engine.driving import texts
from tests.backend.parallel.conftest import TwoRanks


def requests(two_ranks: TwoRanks) -> list[Request]:
    assert two_ranks.engine.adapters is not None
    (german,) = (info.digest for info in two_ranks.engine.adapters.infos)
    prompt = [300 + 7 * i % 900 for i in range(40)]

    def ask(name: str, tokens: list[int], **more: object) -> Request:
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        return Request(request_id=name, prompt_token_ids=tokens, params=params, **more)  # type: ignore[arg-type]

    return [
        ask("plain", prompt),
        ask("other", prompt[3:30]),
        ask("hit", [*prompt[:32], 5, 6]),
        ask("adapter", prompt[:20], adapter=german),
        ask("draft", [5, 6, 7, 8] * 6, draft=DraftOptions(drafter="ngram", max_tokens=4)),
    ]


def test_tokens_are_those_of_one_process(two_ranks: TwoRanks) -> None:
    alone = two_ranks.alone()
    want = texts(alone, requests(two_ranks))
    alone.close()
    assert texts(two_ranks.engine, requests(two_ranks)) == want


@pytest.mark.parametrize("two_ranks", ["pipeline"], indirect=True)
def test_draws_grammars_and_preempted_requests_are_those_of_one_process(two_ranks: TwoRanks) -> None:
    def ask(seed: int, max_tokens: int = 190, grammar: GrammarSpec | None = None) -> Request:
        return Request(
            request_id=str(seed),
            prompt_token_ids=[300 + 11 * i % 900 for i in range(seed, seed + 20)],
            params=SamplingParams(
                max_tokens=max_tokens, presence_penalty=0.5, ignore_eos=grammar is None, seed=seed
            ),
            grammar=grammar,
        )

    asked = [ask(seed) for seed in range(6)]  # 6 * 210 tokens, and 64 pages of 16
    asked.append(ask(6, 40, GrammarSpec(kind="regex", text="[a-z ]{30}")))
    alone = two_ranks.alone()
    want = texts(alone, asked)
    alone.close()
    assert texts(two_ranks.engine, asked) == want


def test_both_ranks_have_the_same_pages(two_ranks: TwoRanks) -> None:
    assert two_ranks.hello.num_pages == 64
    assert two_ranks.model.with_common_pages(0).num_pages == 64


def test_no_memory_for_pages_is_said_on_all_ranks(two_ranks: TwoRanks) -> None:
    with pytest.raises(CheckpointError, match="cannot be allocated"):
        two_ranks.model.new_kv_storage(1 << 45, model="pico")
    kv = two_ranks.model.new_kv_storage(2)
    kv.zero(3, 3)
    kv.move(torch.tensor([1]), torch.tensor([2]))
    assert two_ranks.model.with_common_pages(0).num_pages == 64  # both are in step


@pytest.mark.parametrize(
    ("device", "num_ranks", "count", "is_refused"),
    [
        ("auto", 2, 2, False),
        ("cuda", 4, 8, False),
        ("cpu", 4, 2, False),
        ("auto", 4, 0, False),  # there is no card: all compute on the CPU
        ("cuda:1", 1, 2, False),  # of several machines
        ("auto", 4, 2, True),
        ("cuda:1", 2, 2, True),
    ],
)
def test_each_rank_needs_a_card(
    device: str, num_ranks: int, count: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    config = EngineConfig(model="m", checkpoint="", device=device)
    if not is_refused:
        check_cards(config, num_ranks)
        return
    wanted = (
        f"model 'm' has {num_ranks} ranks here as parallel says, device '{device}', and torch finds {count} "
    )
    with pytest.raises(
        CheckpointError, match=f"^{wanted}cards: each rank needs its own; set device to 'cuda'"
    ):
        check_cards(config, num_ranks)
