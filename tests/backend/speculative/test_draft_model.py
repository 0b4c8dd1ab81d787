"""The engine's draft model says what the same model says in transformers, however its round came about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from backend.models.loaded import LoadedModel
from backend.speculative.draft_model import DraftModelDrafter
from tests.backend.engine.driving import texts
from tests.backend.speculative.model_targets import (
    draft_in,
    load,
    new_engine,
    requests,
    set_min_path_probability,
    write_model,
)
from tests.backend.speculative.recording import RecordingDrafter, Said

NAME = "draft_model"
KINDS = {
    "qwen3": ("qwen3", {"hidden_size": 16, "head_dim": 8, "num_hidden_layers": 2}),
    "qwen2": ("qwen2", {"num_hidden_layers": 1, "tie_word_embeddings": False}),
    "llama": ("llama", {"num_hidden_layers": 2, "mlp_bias": True, "attention_bias": True}),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def whole_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that was not trained is never sure."""
    set_min_path_probability(monkeypatch, 0.0)


@pytest.fixture(autouse=True, params=["compiled", "torch", "ahead"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How small draft models are computed, and larger ones."""
    draft_in(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("target")
    write_model(folder)
    return load(folder)


@pytest.fixture(scope="module", params=KINDS)
def draft(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    kind, changes = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_model(folder, kind, seed=2, **changes)


def check(model: PreTrainedModel, said: list[Said], least: int, *, whole: bool = True) -> None:
    """Enough drafts, each the model's own greedy continuation, and as long as asked for if `whole`."""
    drafts = [each for each in said if each.draft]
    assert len(drafts) >= least
    for each in drafts[:: len(drafts) // 16 + 1]:
        with torch.inference_mode():
            logits = model(torch.tensor([each.tokens + each.draft])).logits[0, len(each.tokens) - 1 : -1]
        assert each.draft == logits.argmax(dim=-1).tolist()
        assert len(each.draft) == each.k or not whole


def recorded(recording: RecordingDrafter | None) -> tuple[RecordingDrafter, DraftModelDrafter]:
    assert recording is not None and isinstance(recording.inner, DraftModelDrafter)
    return recording, recording.inner


def test_says_what_the_model_says(target: LoadedModel, draft: tuple[Path, PreTrainedModel], way: str) -> None:
    folder, model = draft
    asked = requests()
    plain = texts(new_engine(target)[0], asked)
    engine, found = new_engine(target, NAME, folder)
    recording, drafter = recorded(found)
    is_plain_qwen3 = type(model).__name__.startswith("Qwen3")
    assert (drafter._network.chain is not None) == (way != "torch" and is_plain_qwen3)
    assert texts(engine, asked) == plain
    assert recording.most_together == 4
    assert texts(engine, asked) == plain, "with prefix hits in both trees"
    check(model, recording.said, 30)
    assert drafter.kv.prefix_hit_tokens_total > 0
    assert not drafter._mirrors and drafter.kv.free_pages == 128
    drafter.kv.check_invariants([])


@pytest.mark.parametrize("pages", [12, 40])
def test_says_it_when_preempted_in_small_chunks(target: LoadedModel, tmp_path: Path, pages: int) -> None:
    model = write_model(tmp_path, "qwen3", seed=2, num_hidden_layers=2)
    asked = requests(max_tokens=40)
    plain = texts(new_engine(target)[0], asked)
    engine, found = new_engine(target, NAME, tmp_path, num_pages=pages, max_batch_tokens=24, max_running=4)
    recording, drafter = recorded(found)
    assert texts(engine, asked) == plain
    assert (engine.scheduler.preemptions_total > 0) == (pages == 12)
    check(model, recording.said, 20)
    assert not drafter._mirrors and drafter.kv.free_pages == pages


@pytest.mark.parametrize("least_reached", [1.1, 0.4])
def test_a_chain_ends_where_the_model_is_not_sure(
    target: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least_reached: float
) -> None:
    set_min_path_probability(monkeypatch, least_reached)
    model = write_model(tmp_path, "qwen3", seed=2, num_hidden_layers=2)
    asked = requests(max_tokens=40)
    engine, found = new_engine(target, NAME, tmp_path)
    recording, drafter = recorded(found)
    assert texts(engine, asked) == texts(new_engine(target)[0], asked)
    check(model, recording.said, 20, whole=False)
    lengths = {len(each.draft) for each in recording.said if each.draft}
    assert lengths == {1} if least_reached > 1 else len(lengths) > 2
    drafter.kv.check_invariants([])


def test_beyond_the_model_s_context_nothing_is_drafted(target: LoadedModel, tmp_path: Path) -> None:
    asked = requests(max_tokens=40)
    lengths = sorted(len(request.prompt_token_ids) for request in asked)
    most = lengths[0] + 20  # some outgrow it, longer prompts never fit
    model = write_model(tmp_path, "qwen3", seed=2, num_hidden_layers=2, max_position_embeddings=most)
    engine, found = new_engine(target, NAME, tmp_path)
    recording, _ = recorded(found)
    assert texts(engine, asked) == texts(new_engine(target)[0], asked)
    assert lengths[-1] > most
    assert max(len(each.tokens) + len(each.draft) - 1 for each in recording.said if each.draft) == most
    check(model, recording.said, 5, whole=False)
