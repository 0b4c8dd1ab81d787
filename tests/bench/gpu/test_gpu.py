"""The plan, and that the whole command needs six packages."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.bench.gpu as command
from tests.bench import host, report
from tests.bench.gpu.cards import CARDS
from tests.bench.gpu.plan import launches
from tests.bench.gpu.profiled import kernel_names
from tests.bench.gpu.sections import SECTIONS, step_bytes, step_flops
from tests.bench.gpu.shapes import MODELS, config_of
from tests.bench.gpu.trace import Work, traced

ALLOWED = {"torch", "triton", "numpy", "numba", "safetensors", "msgspec"}
NEEDED_BY_THEM = {
    "functorch", "torchgen", "llvmlite", "filelock", "fsspec", "networkx", "sympy", "mpmath",
    "typing_extensions",
}  # fmt: skip
ONLY_ALLOWED = f"""
import importlib.metadata, sys
installed = {{name for name in importlib.metadata.packages_distributions() if name.isidentifier()}}
for name in installed - {ALLOWED | NEEDED_BY_THEM!r} - set(sys.stdlib_module_names):
    if name not in {{"backend", "tests"}}:
        sys.modules[name] = None  # import raises ModuleNotFoundError
from tests.bench.__main__ import main
main()
"""


def bench(*arguments: str, code: int = 0) -> str:
    """What the command prints where only those packages are installed."""
    command = [sys.executable, "-c", ONLY_ALLOWED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The lines of the whole plan, by section or by model and work."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    bench("--json", str(path), "gpu", "--plan")
    tables = [json.loads(line)["rows"] for line in path.read_text().splitlines()]
    assert [row["section"] for row in tables.pop()] == list(command.NAMES)
    assert [row["section"] for row in tables.pop()] == ["alone"] * 3 + ["batch", "mixtral"]
    return {row.get("section") or (row["model"], row["work"]): row for table in tables for row in table}


def test_the_plan_has_every_section_and_model(plan: dict[str, Any]) -> None:
    assert {section.name for section in SECTIONS} <= set(plan)
    assert {name for name, _ in set(plan) - {section.name for section in SECTIONS}} == set(MODELS) - {"tiny"}
    for name in (
        "rms_norm",
        "kv_write",
        "paged_attention decode",
        "paged_attention prefill",
        "swiglu",
        "experts",
        "lora",
    ):
        assert plan[name]["launches"] >= 1 and plan[name]["programs/SM"], name


def test_a_dense_layer_has_ten_launches_and_a_step_one_copy_each_way(plan: dict[str, Any]) -> None:
    for (name, streams), row in ((key, row) for key, row in plan.items() if isinstance(key, tuple)):
        assert "waits in" not in row, (name, streams)
        assert row["uploads"] == row["downloads"] == 1, (name, streams)
        assert row["launches a layer"] <= (20 if name == "Qwen3-30B-A3B" else 10), (name, streams)


def test_floors_are_those_of_the_targets(plan: dict[str, Any]) -> None:
    """Figures that were computed by hand: 8B in bfloat16 reads 15 GB for a token, in 5 ms of an H100."""
    one = plan["Llama-3.1-8B", "1 x 1 of 1024"]
    assert one["MB"] == pytest.approx(15_000, rel=0.02) and one["tok/s"] == pytest.approx(156, rel=0.02)
    prefill = plan["paged_attention prefill"]
    assert prefill["GFLOP"] * 1e9 / (prefill["at most µs"] / 1e6) == pytest.approx(400e12)


@pytest.mark.parametrize("name", ["Qwen3-8B", "Llama-3.1-8B", "tiny"])
def test_formulas_are_what_the_step_computes(name: str) -> None:
    """Products that torch was asked for: their FLOPs and bytes are those of the section's formulas."""
    config, section = config_of(MODELS[name]), next(each for each in SECTIONS if each.name == "products")
    layer, _ = launches(name, section.work, 90)
    own = [kernel for kernel in layer if kernel.op == "products"]
    assert sum(kernel.num_flops for kernel in own) == section.num_flops(config, section.work)
    assert sum(kernel.num_bytes for kernel in own) == section.num_bytes(config, section.work)


def test_a_step_is_its_layers_and_its_head() -> None:
    shape, work = MODELS["tiny"], Work(4, context=64)
    found, config = traced(shape, work, 90), config_of(shape)
    heads, num_keys = config.attention, config.num_layers * work.streams * work.context
    own = found.of("products")
    assert sum(
        kernel.num_flops for kernel in own
    ) + 4 * num_keys * heads.num_heads * heads.head_dim == step_flops(config, work)
    products = sum(kernel.num_bytes for kernel in own)  # and their inputs and outputs
    assert step_bytes(config, work) == pytest.approx(
        products + 4 * num_keys * heads.num_kv_heads * heads.head_dim, rel=0.06
    )
    assert found.copies["downloads"] == 1


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_every_card_has_launches(card: Any) -> None:  # noqa: ANN401
    layer, _ = launches("tiny", Work(2, context=64), card.arch)
    assert {"rms_norm", "paged_attention", "swiglu", "products"} <= {kernel.op for kernel in layer}


@pytest.mark.timeout(400)  # loops in Numba are compiled after each change of a kernel
def test_everything_is_exercised_on_a_cpu(tmp_path: Path) -> None:
    shown = bench("--dir", str(tmp_path), "gpu", "--device", "cpu", "--only", "draws,alone")
    records = [json.loads(line) for line in (tmp_path / "results" / "cpu.json").read_text().splitlines()]
    assert [record["section"] for record in records] == ["draws", "alone"]
    assert all(record["is_right"] for record in records), shown
    drawn, generated = (record["rows"] for record in records)
    assert {row["check"] for row in drawn} == {"ok"} and len(drawn) == 6
    assert [row["row"] for row in generated if "measured" in row] == [
        f"8B {kind}, one stream" for kind in ("bf16", "FP8", "int4")
    ]
    assert all(row["share of roofline"] > 0 for row in generated if "measured" in row)
    kept = (tmp_path / "results" / "cpu.rows.jsonl").read_text().splitlines()
    assert [json.loads(line)["section"] for line in kept] == ["draws"] * 6 + ["alone"] * len(generated)
    table = (tmp_path / "results" / "cpu.md").read_text().splitlines()
    assert len(table) == 2 + len(generated) and "| alone | 8B bf16, one stream | 1 x 12/6 |" in table[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    assert "finds no CUDA device" in bench("gpu", code=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--only speed", "--only speed: choose from compile, tokens"),
        ("--plan --only speed", "--only speed: choose from compile, tokens"),
        ("--only tokens,,Alone", "--only Alone: choose from compile, tokens"),
        ("--device cpu --results {file}", "no results can be kept in {file} (File exists); name a folder"),
        ("--device cpu --results {file}/more", "no results can be kept in {file}/more (Not a directory)"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(tmp_path: Path, options: str, message: str) -> None:
    file = tmp_path / "file"
    file.touch()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        command.run(parser.parse_args(options.format(file=file).split()))
    assert f"gpu: {message.format(file=file)}" in str(ended.value)


@pytest.mark.parametrize(
    "options", [["--rows", "0"], ["--rows", "-5"], ["--rows", "9999999"], ["--steps", "1"]]
)
def test_host_refuses_sizes_that_it_cannot_measure(options: list[str]) -> None:
    parser = argparse.ArgumentParser()
    host.add_arguments(parser)
    with pytest.raises(SystemExit, match="--rows from 1 to 512 and --steps from 2"):
        host.run(parser.parse_args(options))


LINES = [
    'print(\'{"check": "FAILED"}\')',
    'print(\'{"check": "ok"}\')',
    'raise RuntimeError("illegal address")',
]


def test_what_fails_or_breaks_off_is_told_and_the_next_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sections are replaced by programs that print their lines, or break off after one."""
    programs = iter(LINES)
    monkeypatch.setattr(report, "machine", lambda: {})
    monkeypatch.setattr(command, "_command", lambda *_: [sys.executable, "-c", next(programs)])
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(
        ["--device", "cpu", "--only", "tokens,draws,alone", "--results", str(tmp_path)]
    )
    arguments.json = None
    with pytest.raises(SystemExit) as ended:
        command.run(arguments)
    assert ended.value.code == 1
    records = [json.loads(line) for line in (tmp_path / "cpu.json").read_text().splitlines()]
    assert [record["is_right"] for record in records] == [False, True, False]
    assert "illegal address" in records[2]["reason"] and "illegal address" in capsys.readouterr().out


def test_kernels_of_a_profile_are_found_by_name() -> None:
    assert kernel_names(("kv_write", "rotary", "paged_attention")).fullmatch("attend")
    assert not kernel_names(("swiglu",)).fullmatch("attend") and not kernel_names(()).fullmatch("")
    assert kernel_names(("products",)).fullmatch("nvjet_tst_128x64_64x6_1x2_h_bz_TNN")


def test_rows_of_a_section_that_is_cut_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = """print('{"row": "first"}', flush=True); import threading; threading.Event().wait()"""
    monkeypatch.setattr(report, "machine", lambda: {})
    monkeypatch.setattr(command, "_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr(command, "LEAST_S", 0.0)
    monkeypatch.setitem(command.LIMIT_S, "alone", 0.1)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    arguments = parser.parse_args(["--device", "cpu", "--only", "alone", "--results", str(tmp_path)])
    arguments.json = None
    with pytest.raises(SystemExit):
        command.run(arguments)
    assert json.loads((tmp_path / "cpu.rows.jsonl").read_text()) == {"section": "alone", "row": "first"}
    assert "took longer than 1 s" in json.loads((tmp_path / "cpu.json").read_text())["reason"]
