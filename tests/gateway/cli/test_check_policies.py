"""`penstock check` opens what the policies name; every problem has file and line, and none needs weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.check_policies import check
from policies.errors import PolicyError
from tests.backend.encoder.checkpoints import write_encoder
from tests.backend.tokenizer.checkpoints import save_byte_level

SHIPPED = Path(__file__).parents[3] / "policies"
FOLDERS = [SHIPPED / "default", *sorted((SHIPPED / "examples").glob("*/"))]
CONFIG = {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 512}
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "mine", "r": 4, "lora_alpha": 8}
POLICIES = """\
models:
  one:
    engine:
      checkpoint: mine
      max_model_tokens: 256
      adapters:
        polite: {path: polite}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A policy folder with a checkpoint and an adapter, both without weights."""
    for name in ("mine", "polite"):
        (tmp_path / name).mkdir()
    save_byte_level(tmp_path / "mine")
    write_json(tmp_path / "mine" / "config.json", CONFIG)
    write_json(tmp_path / "polite" / "adapter_config.json", ADAPTER)
    (tmp_path / "a.yaml").write_text(POLICIES)
    return tmp_path


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def problems(folder: Path) -> list[tuple[int, str]]:
    with pytest.raises(PolicyError) as caught:
        check(folder, io.StringIO())
    assert {problem.place.file for problem in caught.value.problems} == {str(folder / "a.yaml")}
    return [(problem.place.line, problem.message) for problem in caught.value.problems]


def change_policy(folder: Path, old: str, new: str) -> None:
    assert old in POLICIES
    (folder / "a.yaml").write_text(POLICIES.replace(old, new))


def test_a_good_folder(folder: Path) -> None:
    out = io.StringIO()
    assert check(folder, out) == 0
    assert "one (engine)" in out.getvalue()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "'hidden_act' 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'rope_type' 'dynamic' is not supported"),
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture ['GPT2LMHeadModel'] is not supported"),
        ({"num_attention_heads": 0}, "expected a positive whole number"),
    ],
)
def test_a_config_that_the_engine_refuses(folder: Path, changes: dict[str, Any], words: str) -> None:
    write_json(folder / "mine" / "config.json", CONFIG | changes)
    ((line, message),) = problems(folder)
    assert line == 4 and "mine/config.json" in message and words in message


def test_missing_files(folder: Path) -> None:
    (folder / "mine" / "tokenizer.json").unlink()
    ((line, message),) = problems(folder)
    assert line == 4 and "tokenizer.json" in message
    (folder / "mine" / "config.json").unlink()
    ((line, message),) = problems(folder)
    assert line == 4 and "config.json does not exist" in message
    change_policy(folder, "checkpoint: mine", "checkpoint: nowhere")
    ((line, message),) = problems(folder)
    assert line == 4 and "is not a folder" in message


def test_prompts_of_quantize_are_read(folder: Path) -> None:
    change_policy(folder, "256\n", "256\n      quantize: {scheme: int8, calibration: prompts.jsonl}\n")
    ((line, message),) = problems(folder)
    assert line == 6 and "prompts.jsonl cannot be read (No such file or directory)" in message
    (folder / "prompts.jsonl").write_text('"good"\nsecret\n')
    ((line, message),) = problems(folder)
    assert line == 6 and "prompts.jsonl, line 2: expected" in message and "secret" not in message
    (folder / "prompts.jsonl").write_text('"good"\n')
    assert check(folder, io.StringIO()) == 0


def test_a_quantised_checkpoint_is_not_rounded_again(folder: Path) -> None:
    change_policy(folder, "256\n", "256\n      quantize: {scheme: int8}\n")
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    write_json(folder / "mine" / "config.json", CONFIG | {"quantization_config": fp8})
    ((line, message),) = problems(folder)
    assert line == 6 and "is quantised already (fp8): remove `quantize`" in message


@pytest.mark.parametrize(
    ("parallel", "named"),
    [
        ("tensor: 3", "tensor is 3, which does not divide num_attention_heads 32 of"),
        ("pipeline: 33", "has 32 layers; set it to that or less"),
        ("sequence: 2", "sequence is 2, but prompts are not split over ranks so far; set it to 1"),
    ],
)
def test_ranks_that_cannot_share_a_model_are_named(folder: Path, parallel: str, named: str) -> None:
    change_policy(folder, "256\n", f"256\n      parallel:\n        {parallel}\n")
    ((line, message),) = problems(folder)
    assert line == 6 and named in message
    change_policy(folder, "256\n", "256\n      parallel: {tensor: 2}\n")
    assert check(folder, io.StringIO()) == 0


def test_problems_come_together(folder: Path) -> None:
    change_policy(folder, "256\n", "1024\n      reasoning: {default_effort: high}\n")
    write_json(folder / "polite" / "adapter_config.json", ADAPTER | {"use_dora": True})
    (context, effort, adapter) = problems(folder)
    assert (
        context[0] == 5 and "max_model_tokens is 1024" in context[1] and "512 tokens; lower it" in context[1]
    )
    assert effort[0] == 6 and "no reasoning mode" in effort[1]
    assert adapter[0] == 8 and "DoRA" in adapter[1]


def test_an_adapter_of_another_base(folder: Path) -> None:
    write_json(folder / "polite" / "adapter_config.json", ADAPTER | {"base_model_name_or_path": "other"})
    ((line, message),) = problems(folder)
    assert line == 7 and "names 'other' as its base model" in message and "force: true" in message
    change_policy(folder, "{path: polite}", "{path: polite, force: true}")
    assert check(folder, io.StringIO()) == 0


def test_what_is_left_to_a_default_is_reported_at_its_section(folder: Path) -> None:
    change_policy(folder, "256\n", "256\n      speculative: {drafter: eagle}\n")
    ((line, message),) = problems(folder)
    assert line == 6 and "heads/eagle/config.json does not exist" in message


def test_a_drafter_without_weights_is_reported_once(folder: Path) -> None:
    change_policy(folder, "256\n", "256\n      speculative: {drafter: draft_model}\n")
    ((line, message),) = problems(folder)
    assert line == 6 and "give its folder as speculative.drafters.draft_model.path" in message


def test_an_encoder_and_an_upstream(folder: Path) -> None:
    (folder / "a.yaml").write_text(
        "models:\n"
        "  sentences:\n    encoder:\n      checkpoint: mine\n"
        "  far:\n    upstream:\n      base_url: https://h/v1\n      ca_bundle: nowhere.pem\n"
    )
    (encoder, upstream) = problems(folder)
    assert encoder[0] == 4 and "mine" in encoder[1]
    assert upstream[0] == 8 and "ca_bundle" in upstream[1]


def test_what_an_encoder_is_and_reads(tmp_path: Path) -> None:
    write_encoder(tmp_path / "xlm", "xlm-roberta", prompts={"query": "query: "})
    (tmp_path / "a.yaml").write_text(
        "models:\n"
        "  mine: {encoder: {checkpoint: xlm, languages: [de, fr], prompt_name: query}}\n"
        "  minilm: {encoder: {checkpoint: builtin:all-minilm-l6-v2}}\n"
    )
    out = io.StringIO()
    assert check(tmp_path, out) == 0
    assert (
        "encoder mine: xlm-roberta on sentence-transformers, mean pooling, 32 numbers, 56 tokens, after the "
        "prompt 'query: '; reads de, fr\n"
        "encoder minilm: bert on onnx, mean pooling, 384 numbers, 256 tokens; reads en\n"
    ) in out.getvalue()


def test_a_language_that_is_not_detected_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "models:\n  e: {encoder: {checkpoint: builtin:all-minilm-l6-v2, languages: [en, is, eu]}}\n"
    )
    out = io.StringIO()
    assert check(tmp_path, out) == 0
    (warning,) = (line for line in out.getvalue().splitlines() if "warning" in line)
    assert f"{tmp_path / 'a.yaml'}:2:" in warning and "texts in is, eu are taken for another" in warning


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("checkpoint: xlm, dtype: int8", "runs on sentence-transformers in float32"),
        ("checkpoint: xlm, prompt_name: ask", "has no prompt named 'ask'; it has: "),
        ("checkpoint: xlm, pooling: cls", "leave `pooling` out"),
        ("checkpoint: nowhere", "is not a folder"),
        ("checkpoint: .", "has no modules.json"),
    ],
)
def test_encoders_that_cannot_be_served(tmp_path: Path, given: str, words: str) -> None:
    write_encoder(tmp_path / "xlm", "xlm-roberta")
    (tmp_path / "a.yaml").write_text(f"models:\n  mine:\n    encoder: {{{given}}}\n")
    ((line, message),) = problems(tmp_path)
    assert line == 3 and message.startswith("models.mine.encoder.checkpoint: ") and words in message


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_shipped_policies_pass_their_probes_without_warnings(folder: Path) -> None:
    out = io.StringIO()
    assert check(folder, out) == 0
    assert " passed\n" in out.getvalue() and "warning" not in out.getvalue()


def test_probes_run_and_those_that_fail_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "models: {small: {upstream: {base_url: 'http://127.0.0.1:1/v1'}}}\n"
        "routes: {auto: {rules: [{when: 'false', model: small}], model: small}}\n"
        "probes:\n"
        "  first: {ask: hello, expect: {model: small, rule: default}}\n"
    )
    out = io.StringIO()
    assert check(tmp_path, out) == 0
    assert out.getvalue().endswith("probes  1 passed\n")
    assert f"{path}:2:25: warning: rule 1 is never used: its condition is always false\n" in out.getvalue()
    with path.open("a") as file:
        file.write("  second: {expect: {status: 403}}\n  third: {request: {n: 0}, expect: {}}\n")
    with pytest.raises(PolicyError) as caught:
        check(tmp_path, io.StringIO())
    assert [(problem.place.line, problem.message) for problem in caught.value.problems] == [
        (5, "probe 'second': expected status 403, got 200 (route auto, default)"),
        (6, "probe 'third' has no valid request: Invalid value for 'n': expected an integer >= 1 (got 0)."),
    ]


def test_a_broken_expression_of_a_guardrail_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {m: {engine: {checkpoint: builtin:pico-small}}}\n"
        "guardrails:\n  profiles:\n    strict:\n      patterns:\n        id:\n          regex: '^a'\n"
    )
    with pytest.raises(PolicyError) as caught:
        check(tmp_path, io.StringIO())
    (problem,) = caught.value.problems
    assert problem.place.line == 7 and "anchor '^' has no place in a stream" in problem.message


def test_a_folder_without_models_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("# nothing yet\n")
    (tmp_path / "q.yaml").write_text("")
    with pytest.raises(PolicyError, match="defines no model; add one to the section `models`"):
        check(tmp_path, io.StringIO())


def test_comparisons_that_never_hold_are_warned_of(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "models: {m: {upstream: {base_url: 'http://h/v1'}}}\n"
        "tiers: {gold: {}}\n"
        "tenants: {key-00000000: {tier: gold}}\n"
        "routing: {rules: [{when: request.model == 'atuo', model: m}]}\n"
        "routes:\n"
        "  auto:\n"
        "    model: m\n"
        "    rules:\n"
        "      - {when: tenant.tier == '', model: m}\n"
        "      - {when: tenant.name == 'key-0000000', model: m}\n"
        "      - {when: signals.language == 'german', model: m}\n"
        "      - {when: signals.language == 'ia', model: m}\n"
        "      - {when: request.model == 'm', model: m}\n"
        "      - {when: signals.previous_model == 'n', model: m}\n"
        "      - {when: tenant.tier == 'gold' && signals.language == 'de', model: m}\n"
    )
    out = io.StringIO()
    assert check(tmp_path, out) == 0
    found = [line.partition("p.yaml:")[2] for line in out.getvalue().split("\n") if "warning" in line]
    expected = [
        "4:20: request.model == 'atuo': there is no such model or route; did you mean 'auto'?",
        "9:10: tenant.tier == '': there is no such tier; a tenant without a tier has 'default'",
        "10:10: tenant.name == 'key-0000000': there is no such tenant; did you mean 'key-00000000'?",
        "11:10: signals.language == 'german': there is no such code of ISO 639-1; did you mean 'de'",
        "13:10: request.model == 'm': there is no such request: all are for 'auto'; known: auto",
        "14:10: signals.previous_model == 'n': there is no such model; known: m",
        "12:10: signals.language == 'ia': there is no such language that can be detected",
    ]
    shorter = [each.replace(" warning:", "").replace(" never holds:", ":") for each in found]
    assert all(one.startswith(other) for one, other in zip(shorter, expected, strict=True)), shorter


def test_a_probe_of_no_model_names_the_nearest(tmp_path: Path) -> None:
    models = "models: {gpt: {upstream: {base_url: 'http://h/v1'}}}\n"
    for request, words in (
        ("{}", "'auto', its default; set `request"),
        ("{model: gtp}", "did you mean 'gpt'?"),
    ):
        (tmp_path / "a.yaml").write_text(
            f"{models}probes: {{p: {{request: {request}, expect: {{model: gpt}}}}}}"
        )
        ((line, message),) = problems(tmp_path)
        assert line == 2 and words in message


def test_of_engines_elsewhere_only_what_the_gateway_reads_is_checked(folder: Path) -> None:
    adapters = "      adapters:\n        polite: {path: polite}\n"
    elsewhere = "      addresses: [tls://h:1]\n      adapters: {polite: {path: nowhere}}\n"
    change_policy(folder, adapters, elsewhere)
    assert check(folder, io.StringIO()) == 0
    change_policy(folder, adapters, elsewhere + "      connection: {ca: none.pem}\n")
    ((line, message),) = problems(folder)
    assert line == 8 and message.startswith("models.one.engine.connection: the CAs in ")
    assert message.endswith("none.pem' cannot be used: No such file or directory")
