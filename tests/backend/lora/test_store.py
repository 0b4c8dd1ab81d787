"""Adapters in the real engine write what their merged models write, whatever else is in the batch."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from backend.config import EngineConfig, SpeculativeConfig
from backend.errors import AdapterError, AdapterExists, RequestError
from backend.kernels.compiled import ThreadedFunction
from backend.kernels.lora import loop
from backend.lora.adapter_weights import Adapter, read_adapter
from backend.lora.info import AdapterInfo
from backend.lora.store import AdapterLimits, AdapterStore
from backend.models.loaded import LoadedModel, load_model
from tests.backend.engine.driving import run, texts
from tests.backend.lora.making import (
    CPU,
    Recipe,
    ask,
    checkpoint,
    greedy,
    make_engine,
    make_store,
    write_adapter,
    write_merged,
)
from tests.backend.models.driver import random_tokens

PROMPT = random_tokens(40, seed=3)
RECIPES = {
    "all": Recipe(seed=1),
    "attention": Recipe(rank=2, is_rank_stabilised=True, seed=2, ends=("q_proj", "v_proj", "o_proj")),
    "mixed": Recipe(rank=3, rank_pattern={"v_proj": 7}, alpha_pattern={"q_proj": 20.0}, seed=3),
}
FAMILIES = ["llama-mha-tied", "qwen2-window", "mixtral", "qwen3-moe-mixed"]


@dataclass
class Subject:
    """A base model, and adapters with what their merged models write."""

    config: EngineConfig
    model: LoadedModel
    adapters: dict[str, Path]
    merged: dict[str, list[int]]  # 64 greedy tokens after PROMPT, by adapter; "": the base model's


def make_subject(family: str, folder: Path, names: list[str]) -> Subject:
    config = checkpoint(family, folder / "base")
    model = load_model(config)
    subject = Subject(config, model, {}, {"": greedy(config, PROMPT)})
    for name in names:
        adapter = write_adapter(folder / name, model, RECIPES[name])
        subject.adapters[name] = adapter
        merged = write_merged(folder / "base", adapter, folder / f"{name}-merged", RECIPES[name])
        subject.merged[name] = greedy(merged, PROMPT)
    assert len({tuple(tokens) for tokens in subject.merged.values()}) == len(names) + 1
    return subject


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return make_subject("qwen3", tmp_path_factory.mktemp("qwen3"), list(RECIPES))


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_merged_model(family: str, tmp_path: Path) -> None:
    subject = make_subject(family, tmp_path, ["all"])
    store = make_store(subject.model)
    digest = store.load_now("all", subject.adapters["all"]).digest
    engine = make_engine(subject.config, subject.model, store)
    requests = [ask("a", PROMPT, digest), ask("b", PROMPT), ask("c", PROMPT, digest)]
    want = [subject.merged["all"], subject.merged[""], subject.merged["all"]]
    assert texts(engine, requests) == want
    assert texts(engine, requests) == want, "with prefix hits, too"


def test_a_mixed_batch_of_mixed_ranks_in_small_chunks(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    digests = {name: store.load_now(name, path).digest for name, path in qwen3.adapters.items()}
    digests[""] = ""
    requests = [ask(f"{name}/{i}", PROMPT, digests[name]) for i in range(3) for name in digests]
    want = [qwen3.merged[name] for _ in range(3) for name in digests]
    engine = make_engine(qwen3.config, qwen3.model, store, max_batch_tokens=23)
    assert texts(engine, requests) == want
    assert engine.kv.prefix_hit_tokens_total == 4 * 2 * 32, "each finds what its own adapter computed"
    preempted = make_engine(qwen3.config, qwen3.model, store, num_pages=14, prefix_cache=False)
    assert texts(preempted, requests) == want
    assert preempted.scheduler.preemptions_total > 0


def test_drafts_are_verified_with_the_adapter(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    digests = {name: store.load_now(name, path).digest for name, path in qwen3.adapters.items()}
    options = SpeculativeConfig(drafter="none", adaptive=False)
    engine = make_engine(qwen3.config, qwen3.model, store, speculative=options)
    requests = []
    for name, digest in digests.items():
        guess = [t if i % 20 else (t + 1) % 199 for i, t in enumerate(qwen3.merged[name])]
        request = ask(name, PROMPT, digest)
        requests.append(msgspec.structs.replace(request, prediction_token_ids=guess))
    for name, outputs in run(engine, requests).items():
        assert [t for output in outputs for t in output.token_ids] == qwen3.merged[name]
        assert any(len(output.token_ids) > 1 for output in outputs), "some drafts are accepted"


def test_the_first_step_finds_the_loop_compiled(qwen3: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, asked = ThreadedFunction.__call__, []

    def call(function: ThreadedFunction, job: Sequence[int], num_threads: int) -> None:
        asked.append(function)
        compiled(function, job, num_threads)

    monkeypatch.setattr(ThreadedFunction, "__call__", call)
    loops = {loop.add_rows_bfloat16, loop.add_rows_float32}
    store = make_store(qwen3.model)
    assert loops <= set(asked)
    asked.clear()
    digest = store.load_now("all", qwen3.adapters["all"]).digest
    texts(make_engine(qwen3.config, qwen3.model, store), [ask(name, PROMPT, digest, 4) for name in "ab"])
    assert loops & set(asked)


def test_the_prefix_tree_keeps_adapters_apart(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    digest = store.load_now("all", qwen3.adapters["all"]).digest
    engine = make_engine(qwen3.config, qwen3.model, store)
    for adapter, cached in (("", 0), (digest, 0), (digest, 32), ("", 32)):
        outputs = run(engine, [ask("a", PROMPT, adapter, 4)])["a"]
        assert outputs[0].num_cached_tokens == cached


def test_logprobs_of_prompt_and_answer_are_the_adapters(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model)
    digest = store.load_now("all", qwen3.adapters["all"]).digest
    merged = write_merged(
        Path(qwen3.config.checkpoint), qwen3.adapters["all"], tmp_path / "m", RECIPES["all"]
    )
    options = {"logprobs": 2, "prompt_logprobs": 1}
    ours = run(make_engine(qwen3.config, qwen3.model, store), [ask("a", PROMPT, digest, 3, **options)])["a"]
    theirs = run(make_engine(merged, load_model(merged)), [ask("a", PROMPT, "", 3, **options)])["a"]
    for mine, other in zip(ours, theirs, strict=True):
        pairs = zip(
            (mine.prompt_logprobs or [])[1:] + (mine.logprobs or []),
            (other.prompt_logprobs or [])[1:] + (other.logprobs or []),
            strict=True,
        )
        for one, two in pairs:
            assert one is not None and two is not None
            assert one.token_id == two.token_id and one.logprob == pytest.approx(two.logprob, abs=1e-3)


def test_a_reload_under_the_same_name_never_meets_old_keys(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model)
    engine = make_engine(qwen3.config, qwen3.model, store)
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"])
    first = store.load_now("name", folder)
    assert texts(engine, [ask("1", PROMPT, first.digest)]) == [qwen3.merged["all"]]
    assert store.load_now("name", folder) == first, "equal files are the same adapter"
    write_adapter(folder, qwen3.model, RECIPES["attention"])
    second = store.load_now("name", folder)
    assert second.digest != first.digest and [info.name for info in store.infos] == ["name"]
    found = run(engine, [ask("2", PROMPT, second.digest)])["2"]
    assert found[0].num_cached_tokens == 0
    assert [t for output in found for t in output.token_ids] == qwen3.merged["attention"]
    with pytest.raises(RequestError, match="is not loaded"):
        engine.add(ask("3", PROMPT, first.digest))


def test_requests_are_counted_by_the_name_asked_for(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    engine = make_engine(qwen3.config, qwen3.model, store)

    def count(name: str, digest: str) -> None:
        engine.add(msgspec.structs.replace(ask("r", PROMPT, digest), adapter_name=name))
        engine.abort("r")

    digest = store.load_now("a", qwen3.adapters["all"]).digest
    assert store.load_now("alias", qwen3.adapters["all"]).digest == digest
    for _ in range(2):
        count("a", digest)
    assert store.requests() == {"a": 2, "alias": 0}
    digest = store.load_now("a", qwen3.adapters["mixed"]).digest
    assert store.requests() == {"a": 2, "alias": 0}, "other weights, the same name"
    store.unload("a")
    assert store.requests() == {"alias": 0}
    store.load_now("a", qwen3.adapters["mixed"])
    count("a", digest)
    assert store.requests() == {"a": 3, "alias": 0}


def test_what_cannot_be_restored_is_lost_until_it_is_loaded_anew(qwen3: Subject, tmp_path: Path) -> None:
    kept, changed = tmp_path / "kept", tmp_path / "changed"
    infos = [
        make_store(qwen3.model).load_now("x", write_adapter(f, qwen3.model, RECIPES["all"]))
        for f in (kept, changed)
    ]
    write_adapter(changed, qwen3.model, RECIPES["attention"])
    store = make_store(qwen3.model)
    store.restore("kept", kept, infos[0].digest)
    store.restore("changed", changed, infos[1].digest)
    store.restore("gone", tmp_path / "nowhere", infos[1].digest)
    assert [info.name for info in store.infos] == ["kept"] and store.lost == ["changed", "gone"]
    engine = make_engine(qwen3.config, qwen3.model, store)
    assert texts(engine, [ask("1", PROMPT, infos[0].digest)]) == [qwen3.merged["all"]]
    store.load_now("changed", changed)
    with pytest.raises(AdapterError, match="no adapter is called 'gone'"):
        store.unload("gone")
    assert store.lost == [] and len(store.infos) == 2


def test_unloading_lets_requests_finish(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    digest = store.load_now("all", qwen3.adapters["all"]).digest
    engine = make_engine(qwen3.config, qwen3.model, store, max_running=2)
    outputs: dict[str, list[int]] = {name: [] for name in "abcd"}
    for name in outputs:
        engine.add(ask(name, PROMPT, digest))
    for _ in range(5):
        for output in engine.step():
            outputs[output.request_id] += output.token_ids
    store.unload("all")
    assert not store.infos and not store.knows(digest)
    while engine.has_work:
        for output in engine.step():
            outputs[output.request_id] += output.token_ids
    assert list(outputs.values()) == [qwen3.merged["all"]] * 4
    assert store.host_bytes == 0 and not store.slots.resident, "nothing of it is left"
    with pytest.raises(AdapterError, match="no adapter is called 'all'"):
        store.unload("all")


def test_more_adapters_than_slots_and_than_host_memory(qwen3: Subject) -> None:
    limits = AdapterLimits(num_slots=2, host_bytes=1)
    store = make_store(qwen3.model, limits)
    digests = [store.load_now(name, path).digest for name, path in qwen3.adapters.items()]
    engine = make_engine(qwen3.config, qwen3.model, store, max_running=4)
    requests = [ask(f"{i}/{n}", PROMPT, d) for n in range(4) for i, d in enumerate(digests)] + [
        ask("b", PROMPT)
    ]
    found = texts(engine, requests)
    assert found == [*list(qwen3.merged[name] for name in qwen3.adapters) * 4, qwen3.merged[""]]
    assert store.slots.loads_total <= 6, "an adapter is copied once per turn, not once per request"


def test_two_hundred_adapters_in_eight_slots(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model, AdapterLimits(num_slots=8, host_bytes=200_000))
    small = Recipe(rank=1, ends=("0.self_attn.q_proj", "0.self_attn.v_proj"))
    digests = []
    for i in range(200):
        recipe = Recipe(rank=1, ends=small.ends, seed=i)
        digests.append(store.load_now(f"n{i}", write_adapter(tmp_path / str(i), qwen3.model, recipe)).digest)
    assert len(set(digests)) == 200 and len(store.infos) == 200
    engine = make_engine(qwen3.config, qwen3.model, store, max_running=16, max_queue=400)
    requests = [ask(f"{n}/{i}", PROMPT[:8], d, 2) for n in range(2) for i, d in enumerate(digests)]
    outputs = run(engine, requests)
    assert all(found[-1].finish_reason == "length" for found in outputs.values())
    assert store.slots.loads_total <= 210


def test_loads_in_the_background(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model)
    engine = make_engine(qwen3.config, qwen3.model, store)
    told: list[AdapterInfo | AdapterError] = []
    store.load("all", qwen3.adapters["all"], told.append)
    store.load("none", tmp_path / "none", told.append)
    engine.add(ask("b", PROMPT))
    while engine.has_work or store.is_busy:
        if engine.has_work:
            engine.step()
        else:
            store.wait(5.0)
            store.poll()
    info, error = told
    assert isinstance(info, AdapterInfo) and info.name == "all" and info.rank == 4
    assert isinstance(error, AdapterError) and "does not exist" in str(error)


def test_a_load_that_hangs_fails_by_itself(qwen3: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, may_end = [0.0], threading.Event()
    limits = AdapterLimits(read_limit_s=30)
    store = AdapterStore(qwen3.model.sites, limits, qwen3.model.dtype, CPU, lambda: now_s[0])
    dead = Path("/dead/adapter")

    def hang(folder: Path, *rest: Any) -> Adapter:  # noqa: ANN401
        if folder == dead:
            may_end.wait(20)
        return read_adapter(folder, *rest)

    monkeypatch.setattr("backend.lora.store.read_adapter", hang)
    told: list[AdapterInfo | AdapterError] = []
    store.load("dead", dead, told.append)
    store.load("good", qwen3.adapters["all"], told.append)
    store.poll()
    assert not told and store.is_busy
    now_s[0] = 30.0
    while store.is_busy:
        store.poll()
        store.wait(5)
    may_end.set()
    error, info = told
    assert isinstance(error, AdapterError) and "/dead/adapter was not read within 30 s" in str(error)
    assert isinstance(info, AdapterInfo) and store.infos == [info]


@pytest.mark.parametrize(
    "base", ["Maker/Tiny-8B", "/data/tiny-8b/", "models--Maker--Tiny-8B/snapshots/c", ""]
)
def test_the_named_base_may_be_a_name_or_a_folder(base: str, qwen3: Subject, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"], base_model_name_or_path=base)
    assert store_on(qwen3.model).load_now("a", folder).base == base


@pytest.mark.parametrize("base", ["Maker/Tiny-70B", "Maker/Tiny-8B-Instruct", "Maker/Tiny"])
def test_another_base_is_refused_unless_forced(
    base: str, qwen3: Subject, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"], base_model_name_or_path=base)
    store = store_on(qwen3.model)
    message = f"names {base!r} as its base model, but this engine serves 'small' in 'tiny-8b'"
    with pytest.raises(AdapterError, match=message):
        store.load_now("a", folder)
    told: list[AdapterInfo | AdapterError] = []
    for force in (False, True):
        store.load("a", folder, told.append, force=force)
        while store.is_busy:
            store.wait(5)
            store.poll()
    error, info = told
    assert isinstance(error, AdapterError) and message in str(error)
    assert isinstance(info, AdapterInfo) and store.infos == [info] and "by force" in caplog.text
    restored = store_on(qwen3.model)
    restored.restore("a", folder, info.digest)
    assert [each.name for each in restored.infos] == ["a"]


def store_on(model: LoadedModel) -> AdapterStore:
    """A store of the model `small`, in a folder of Hugging Face's cache."""
    bases = ("small", "/cache/models--Maker--Tiny-8B/snapshots/0a1b")
    return AdapterStore(model.sites, AdapterLimits(), model.dtype, CPU, bases=bases)


def test_of_those_who_do_not_replace_the_first_gets_the_name(qwen3: Subject) -> None:
    store = make_store(qwen3.model)
    told: list[AdapterInfo | AdapterError] = []
    for name in ("all", "mixed", "attention"):
        store.load("new", qwen3.adapters[name], told.append, replaces=False)
    while store.is_busy:
        store.wait(5)
        store.poll()
    first, *others = told
    assert isinstance(first, AdapterInfo) and store.infos == [first]
    assert all(isinstance(error, AdapterExists) for error in others) and len(others) == 2
    store.load("new", qwen3.adapters["mixed"], told.append)
    while store.is_busy:
        store.wait(5)
        store.poll()
    assert store.infos == told[3:] and told[3] != first


def test_what_lies_in_a_slot_is_not_read_again(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model, AdapterLimits(num_slots=2, host_bytes=1))
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"])
    digests = [store.load_now("a", folder).digest, store.load_now("b", qwen3.adapters["mixed"]).digest]
    engine = make_engine(qwen3.config, qwen3.model, store)
    run(engine, [ask(digest, PROMPT, digest, 2) for digest in digests])
    store.load_now("c", qwen3.adapters["attention"])
    assert set(store.slots.resident) == set(digests) and store.host_bytes == 0
    num_reads = store.reads_total
    shutil.rmtree(folder)
    for i in range(2):
        assert texts(engine, [ask(str(i), PROMPT, digests[0])]) == [qwen3.merged["all"]]
    assert store.reads_total == num_reads and not store.is_busy
    assert [info.name for info in store.infos] == ["a", "b", "c"]


def test_copies_of_one_adapter_stand_in_for_each_other(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model, AdapterLimits(host_bytes=1))
    folders = {name: write_adapter(tmp_path / name, qwen3.model, RECIPES["all"]) for name in ("x", "y", "z")}
    (digest,) = {store.load_now(name, folders[name]).digest for name in folders}
    assert {info.name: info.path for info in store.infos} == {n: str(f) for n, f in folders.items()}
    shutil.rmtree(folders["x"])
    write_adapter(folders["z"], qwen3.model, RECIPES["attention"])
    engine = make_engine(qwen3.config, qwen3.model, store)
    assert texts(engine, [ask("1", PROMPT, digest)]) == [qwen3.merged["all"]]
    assert store.unload("y").path == str(folders["y"])
    assert [info.name for info in store.infos] == ["x", "z"]


def test_what_was_loaded_anew_need_not_be_read_again(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model, AdapterLimits(host_bytes=1))
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"])
    digest = store.load_now("a", folder).digest
    shutil.rmtree(folder)
    store.hold(digest)  # begins to read
    store.load_now("again", qwen3.adapters["all"])
    engine = make_engine(qwen3.config, qwen3.model, store)
    assert texts(engine, [ask("1", PROMPT, digest)]) == [qwen3.merged["all"]]
    assert [info.name for info in store.infos] == ["a", "again"]


def test_files_that_change_behind_our_back_fail_their_requests_only(qwen3: Subject, tmp_path: Path) -> None:
    store = make_store(qwen3.model, AdapterLimits(num_slots=2, host_bytes=1))
    folder = write_adapter(tmp_path / "a", qwen3.model, RECIPES["all"])
    gone = store.load_now("gone", folder).digest
    kept = store.load_now("kept", qwen3.adapters["mixed"]).digest
    write_adapter(folder, qwen3.model, RECIPES["attention"])
    engine = make_engine(qwen3.config, qwen3.model, store)
    outputs = run(engine, [ask("x", PROMPT, gone), ask("y", PROMPT, kept), ask("z", PROMPT)])
    assert outputs["x"][-1].finish_reason == "error" and "changed" in outputs["x"][-1].error
    assert [t for o in outputs["y"] for t in o.token_ids] == qwen3.merged["mixed"]
    assert [t for o in outputs["z"] for t in o.token_ids] == qwen3.merged[""]
    assert [info.name for info in store.infos] == ["kept"]


def test_a_device_has_slots_from_the_load_on(qwen3: Subject) -> None:
    model = load_model(qwen3.config)
    devices = CPU, torch.device("meta")  # the latter has no values: loading reads none
    taken = []
    for device in devices:
        store = AdapterStore(model.sites, AdapterLimits(), model.dtype, device)
        store.load_now("all", qwen3.adapters["all"])
        linears = {site.linear for site in model.sites.values()}
        taken.append([linear.adapters.down.shape[0] for linear in linears if linear.adapters is not None])
    assert taken == [[], [AdapterLimits().num_slots] * len(linears)]


def test_a_load_without_memory_for_slots_fails_by_itself(
    qwen3: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AdapterStore(qwen3.model.sites, AdapterLimits(), qwen3.model.dtype, torch.device("meta"))

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("backend.lora.placement.AdapterPlacement.reserve", full)
    with pytest.raises(AdapterError, match="no memory on meta"):
        store.load_now("all", qwen3.adapters["all"])
    assert not store.infos
