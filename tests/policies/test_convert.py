"""Settings of an engine as people mistype them: each is refused with its line, its value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import PolicyError
from policies.load import load_policies

DEVICES = "must be a string of the form ^(auto|cpu|cuda(:(0|[1-9][0-9]?))?)$, not "
CARDS = "; write auto, cpu, cuda or a card by its number, such as cuda:1"
SHARE = "must be a number >= 0.05 and <= 0.98, not "
WHOLE = "must be a whole number >= 1, not "


def fault(folder: Path, setting: str) -> str:
    """What is wrong with an engine that has this setting in line 5, without the place."""
    text = f"models:\n  m:\n    engine:\n      checkpoint: builtin:pico-small\n      {setting}\n"
    (folder / "m.yaml").write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_policies(folder)
    (problem,) = caught.value.problems
    assert problem.place.line == 5 and problem.place.file == str(folder / "m.yaml")
    return problem.message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("device: cuda:-1", f"{DEVICES}'cuda:-1'{CARDS}"),
        ("device: mps", f"{DEVICES}'mps'{CARDS}"),
        ("device: gpu", f"{DEVICES}'gpu'{CARDS}"),
        ("device: CUDA", f"{DEVICES}'CUDA'{CARDS}"),
        ("device: cuda:100", f"{DEVICES}'cuda:100'{CARDS}"),
        ("device: cuda:01", f"{DEVICES}'cuda:01'{CARDS}"),  # torch knows no such card
        ("device: cuda:\u0663", f"{DEVICES}'cuda:\u0663'{CARDS}"),
        ('device: "cuda:1\\n"', f"{DEVICES}'cuda:1\\n'{CARDS}"),
        ('device: ""', f"{DEVICES}''{CARDS}"),
        ("device: 1", f"must be a string, not 1{CARDS}"),
        ("device: true", f"must be a string, not true{CARDS}"),
        ("device: null", f"must be a string, not null{CARDS}"),
        ("device: ['cuda:0']", f"must be a string, not a list{CARDS}"),
        ("gpu_memory: 85%", f"{SHARE}'85%'; write 0.85"),
        ("gpu_memory: 85", f"{SHARE}85"),
        ("gpu_memory: '0.85'", f"{SHARE}'0.85'; write 0.85"),
        ("gpu_memory: 5e-1", f"{SHARE}'5e-1'; write 0.5"),
        ("gpu_memory: 40GB", f"{SHARE}'40GB'"),
        ("gpu_memory: .nan", f"{SHARE}.nan"),
        ("gpu_memory: .inf", f"{SHARE}.inf"),
        ("gpu_memory: -0.5", f"{SHARE}-0.5"),
        ("gpu_memory: 1", f"{SHARE}1"),
        ("gpu_memory: true", f"{SHARE}true"),
        ("gpu_memory: [0.5]", f"{SHARE}a list"),
        ("kv_cache_bytes: 4GiB", f"{WHOLE}'4GiB'; write 4294967296"),
        ("kv_cache_bytes: 4 gb", f"{WHOLE}'4 gb'; write 4000000000"),
        ("kv_cache_bytes: 1e9", f"{WHOLE}'1e9'; write 1000000000"),
        ("kv_cache_bytes: 1e99", f"{WHOLE}'1e99'"),
        ("kv_cache_bytes: 1.5", f"{WHOLE}1.5"),
        ("kv_cache_bytes: 85%", f"{WHOLE}'85%'"),
        ("kv_cache_bytes: '2.5'", f"{WHOLE}'2.5'"),
        ("kv_cache_bytes: -1", f"{WHOLE}-1"),
        (f"kv_cache_bytes: '{'9' * 400}'", f"{WHOLE}a text of 400 characters"),
        ("kv_cache_bytes: lots", f"{WHOLE}'lots'"),
        ("kv_cache_bytes: 1{0}", f"must be a whole number >= 1 below 2**63, not 1{'0' * 30}"),
        ("num_pages: 0", f"{WHOLE}0"),
        ("num_pages: 4k", f"{WHOLE}'4k'; write 4000"),
        ("max_queue: 1{0}", f"must be a whole number >= 1 below 2**63, not 1{'0' * 30}"),
        ("max_running: 1{0}", f"must be a whole number >= 1 and <= 65536, not 1{'0' * 30}"),
        ("max_batch_tokens: 1{0}", f"must be a whole number >= 16 and <= 1048576, not 1{'0' * 30}"),
        ("num_threads: 1{0}", f"must be a whole number >= 1 and <= 1024, not 1{'0' * 30}"),
        ("grammar_cache_bytes: 1", "must be a whole number >= 1048576, not 1"),
        ("enforce_eager: 1", "must be true or false, not 1"),
        ("enforce_eager: 'true'", "must be true or false, not 'true'"),
        ("enforce_eager: null", "must be true or false, not null"),
        ("dtype: float16", "must be one of auto, bfloat16, float32, not 'float16'; did you mean 'bfloat16'?"),
        (
            "kv_dtype: FP8",
            "must be one of auto, bfloat16, float32, fp8, int8, not 'FP8'; did you mean 'fp8'?",
        ),
        ("kv_dtype: [fp8]", "must be one of auto, bfloat16, float32, fp8, int8, not a list"),
    ],
)
def test_a_wrong_value(tmp_path: Path, setting: str, message: str) -> None:
    setting = setting.replace("{0}", "0" * 30)
    assert fault(tmp_path, setting) == f"models.m.engine.{setting.split(':')[0]} {message}"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("speculative: {max_tokens: .nan}", "speculative.max_tokens must be a whole number >= 1 and <= 64"),
        ("speculative: {max_tokens: 65}", "speculative.max_tokens must be a whole number >= 1 and <= 64"),
        ("speculative: {drafter: magic}", "speculative.drafter must be one of draft_model, eagle, medusa"),
        ("speculative: ngram", "speculative must be a mapping of keys to values, not 'ngram'"),
        (
            "replicas: {min: 0, max: 1, sleep_after_s: .inf}",
            "replicas.sleep_after_s must be a number > 0 below",
        ),
        ("replicas: {min: .nan, max: 1}", "replicas.min must be a whole number >= 0 and <= 64, not .nan"),
    ],
)
def test_a_wrong_value_inside(tmp_path: Path, setting: str, message: str) -> None:
    assert fault(tmp_path, setting).startswith(f"models.m.engine.{message}")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "gpu_memory_utilization: 0.9",
            "'gpu_memory_utilization' in models.m.engine; did you mean 'gpu_memory'?",
        ),
        ("enforce-eager: true", "in models.m.engine; did you mean 'enforce_eager'?"),
        ("cuda_graphs: false", "'cuda_graphs' in models.m.engine; known: adapter_host_bytes, "),
        (
            "speculative: {num_speculative_tokens: 4}",
            "'num_speculative_tokens' in models.m.engine.speculative",
        ),
    ],
)
def test_an_unknown_key(tmp_path: Path, setting: str, message: str) -> None:
    assert fault(tmp_path, setting).startswith(f"unknown key {message}")


def test_quotes_are_advised_where_they_help(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("routes: {a: {model: 2026}}\n")
    with pytest.raises(PolicyError, match='must be a string, not 2026; write it in "quotes"'):
        load_policies(tmp_path)
