"""Copying adapters to slots may fail, halfway too: no request is answered by other weights than its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from backend.config import EngineConfig
from backend.kernels.lora import Factors, SlotWeights
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from tests.backend.engine.driving import run, texts
from tests.backend.lora.making import Recipe, ask, checkpoint, make_engine, make_store, write_adapter
from tests.backend.models.driver import random_tokens

PROMPT = random_tokens(12, seed=3)
NUM_TOKENS = 6


@dataclass
class Subject:
    """A base model, an adapter on all of its layers and one on a few, and what each writes after PROMPT."""

    config: EngineConfig
    model: LoadedModel
    folders: dict[str, Path]
    wanted: dict[str, list[int]]

    def store(self, num_slots: int) -> tuple[AdapterStore, dict[str, str]]:
        """A store with empty slots that knows both adapters, and what they are called in requests."""
        for site in self.model.sites.values():
            site.linear.adapters = None
        store = make_store(self.model, AdapterLimits(num_slots=num_slots))
        return store, {name: store.load_now(name, path).digest for name, path in self.folders.items()}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("qwen3")
    config = checkpoint("qwen3", folder / "base")
    model = load_model(config)
    folders = {
        "all": write_adapter(folder / "all", model, Recipe(seed=1, size=1.0)),
        "few": write_adapter(folder / "few", model, Recipe(seed=2, size=1.0, ends=("1.self_attn.o_proj",))),
    }
    subject = Subject(config, model, folders, {})
    store, digests = subject.store(2)
    engine = make_engine(config, model, store)
    for name, digest in [*digests.items(), ("", "")]:
        (subject.wanted[name],) = texts(engine, [ask(name, PROMPT, digest, NUM_TOKENS)])
    assert len({tuple(tokens) for tokens in subject.wanted.values()}) == 3
    return subject


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Call with (a, b): of all layers that are copied from now on, those from number a to b find no room."""
    put = SlotWeights.put

    def allow(first: int, last: int) -> None:
        count = 0

        def scarce(weights: SlotWeights, slot: int, parts: Mapping[int, Factors]) -> None:
            nonlocal count
            count += 1
            put(weights, slot, parts)
            if first <= count <= last:
                raise torch.OutOfMemoryError("out of memory")

        monkeypatch.setattr(SlotWeights, "put", scarce)

    return allow


def test_a_copy_that_failed_is_made_again(subject: Subject, memory: Callable[[int, int], None]) -> None:
    store, digests = subject.store(2)
    engine = make_engine(subject.config, subject.model, store)
    memory(3, 3)
    requests = [ask("x", PROMPT, digests["all"], NUM_TOKENS), ask("y", PROMPT, "", NUM_TOKENS)]
    assert texts(engine, requests) == [subject.wanted["all"], subject.wanted[""]]


def test_an_adapter_without_room_fails_its_own_requests_only(
    subject: Subject, memory: Callable[[int, int], None]
) -> None:
    store, digests = subject.store(1)
    engine = make_engine(subject.config, subject.model, store, prefix_cache=False)
    memory(3, 1000)
    for _ in range(4):
        found = run(engine, [ask(name, PROMPT, digests["all"], NUM_TOKENS) for name in ("x", "y")])
        assert [found[name][-1].finish_reason for name in ("x", "y")] == ["error", "error"]
    beside = [ask("x", PROMPT, digests["all"], NUM_TOKENS), ask("y", PROMPT, "", NUM_TOKENS)]
    found = run(engine, beside)
    assert found["x"][-1].finish_reason == "error" and not found["x"][-1].token_ids
    assert [token for output in found["y"] for token in output.token_ids] == subject.wanted[""]
    memory(1, 0)
    few = [ask("x", PROMPT, digests["few"], NUM_TOKENS)]
    assert texts(engine, few) == [subject.wanted["few"]], "nothing is left of what was half copied"
    assert texts(engine, beside) == [subject.wanted["all"], subject.wanted[""]]
