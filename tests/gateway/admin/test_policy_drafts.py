"""Drafts: the same problems as `penstock check`, and nothing opened that only a draft names."""

from __future__ import annotations

import asyncio
import builtins
import io
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.admin.policy_drafts import MAX_LOG_BYTES, Drafts, embed_from, latest_records
from gateway.admin.policy_files import PolicyFolder
from gateway.errors import InvalidRequest
from gateway.exchange.prompt_embedding import no_meaning
from policies import plugins
from policies.load import load_folder
from router.log import Record

GOOD = """\
models:
  one: {upstream: {base_url: "http://127.0.0.1:9/v1"}, price: PRICE}
  two: {upstream: {base_url: "http://127.0.0.1:9/v1"}}
routes:
  auto:
    rules: [{when: request.has_tools, model: two}]
    model: one
probes:
  plain: {request: {model: auto, messages: [{role: user, content: hi}]}, expect: {model: one}}
""".replace("PRICE", "{input_usd_per_million_tokens: 1, output_usd_per_million_tokens: 1}")


@pytest.fixture
def drafts(tmp_path: Path) -> Drafts:
    (tmp_path / "a.yaml").write_text(GOOD)
    return Drafts(PolicyFolder(tmp_path, ["mill-canary"]), load_folder(tmp_path).policies, frozenset)


def check(drafts: Drafts, text: str) -> dict[str, Any]:
    return drafts.check({"a.yaml": text}, no_meaning)


def test_a_good_draft_has_a_version_and_its_probes_pass(drafts: Drafts, tmp_path: Path) -> None:
    version = load_folder(tmp_path).policies.version
    found = {"problems": [], "warnings": [], "version": version, "probes": 1, "unchecked": ""}
    assert check(drafts, GOOD) == found


def test_problems_have_file_line_column_and_the_nearest_name(drafts: Drafts) -> None:
    found = check(drafts, GOOD.replace("rules:", "rulse:"))["problems"]
    message = "unknown key 'rulse' in routes.auto; did you mean 'rules'?"
    assert found == [{"file": "a.yaml", "line": 6, "column": 5, "message": message}]


def test_a_probe_that_fails_is_a_problem(drafts: Drafts) -> None:
    (found,) = check(drafts, GOOD.replace("expect: {model: one}", "expect: {model: two}"))["problems"]
    assert found["line"] == 9 and "probe 'plain'" in found["message"]


def test_a_draft_of_a_new_file_is_merged_with_those_on_disk(drafts: Drafts) -> None:
    (found,) = drafts.check({"b.yaml": "models: {one: {upstream: {service: openai}}}"}, no_meaning)[
        "problems"
    ]
    assert found["file"] == "b.yaml" and "already defined at a.yaml:2:3" in found["message"]


def test_no_secret_of_the_gateway_is_in_a_message(drafts: Drafts) -> None:
    found = check(drafts, "models: {mill-canary: {upstraem: 1}}")
    assert found["problems"] and "canary" not in str(found)


OUTSIDE = {
    "a checkpoint": "models: {x: {engine: {checkpoint: SECRET}}}",
    "an adapter": 'models: {x: {engine: {checkpoint: "builtin:pico-small", adapters: {l: {path: SECRET}}}}}',
    "an encoder": "models: {x: {encoder: {checkpoint: SECRET}}}",
    "a CA bundle": "models: {x: {upstream: {base_url: 'https://h/v1', ca_bundle: SECRET}}}",
    "an estimate": "models: {x: {upstream: {service: ollama}}}\nsignals: {estimate: SECRET}",
    "a verifier": "models: {x: {upstream: {service: ollama}}}\ncache: {verifier: SECRET}",
    "domains": "models: {x: {upstream: {service: ollama}}}\nsignals: {domains: SECRET}",
    "a classifier": "models: {x: {upstream: {service: ollama}}}\nguardrails: {classifier: SECRET}",
}


@pytest.mark.parametrize("text", OUTSIDE.values(), ids=OUTSIDE)
def test_no_file_that_only_a_draft_names_is_opened(
    drafts: Drafts, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_text("canary-content")
    opened: list[str] = []
    for module in (builtins, io):
        real = module.open

        def noting(path: Any, *arguments: Any, _real: Any = real, **options: Any) -> Any:  # noqa: ANN401
            opened.append(str(path))
            return _real(path, *arguments, **options)

        monkeypatch.setattr(module, "open", noting)
    found = drafts.check({"b.yaml": text.replace("SECRET", str(secret))}, no_meaning)
    assert str(secret) not in opened and "canary-content" not in str(found)
    assert found["problems"] or "when it is applied" in found["unchecked"], found


def test_a_file_that_the_files_on_disk_name_is_checked(drafts: Drafts, tmp_path: Path) -> None:
    """The operator has put it there, so it is opened, by `penstock check` too."""
    on_disk = GOOD.replace("two: {upstream: {", f"two: {{upstream: {{ca_bundle: {tmp_path}/none.pem, ")
    (tmp_path / "a.yaml").write_text(on_disk)
    (found,) = check(drafts, on_disk)["problems"]
    assert "ca_bundle" in found["message"] and found["line"] == 3


def test_no_package_that_only_a_draft_names_is_imported(
    drafts: Drafts, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = EntryPoint("shouting", "penstock_canary.check:SHOUTING", "penstock.checks")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == entry.group else [])
    loaded: list[str] = []
    monkeypatch.setattr(EntryPoint, "load", lambda self: loaded.append(self.name))
    found = check(drafts, GOOD + "guardrails: {profiles: {p: {checks: {own: {check: shouting}}}}}\n")
    assert found["problems"] == [] and "packages" in found["unchecked"]
    assert loaded == [] and "penstock_canary" not in sys.modules


def test_the_encoder_that_is_served_gives_vectors_across_threads() -> None:
    async def embed(text: str) -> Any:  # noqa: ANN401
        return [asyncio.get_running_loop(), text]

    async def ask() -> None:
        own = asyncio.get_running_loop()
        asked = embed_from(own, embed)
        assert await asyncio.to_thread(lambda: asyncio.run(_first(asked))) == [own, "hi"]

    async def _first(asked: Any) -> Any:  # noqa: ANN401
        return await asked("hi")

    asyncio.run(ask())


ASKING = """\
models: {one: {upstream: {service: ollama}}, vectors: {encoder: {checkpoint: "builtin:all-minilm-l6-v2"}}}
routes: {auto: {rules: [{when: "signals.domain == 'law'", model: one}], model: one}}
probes: {asks: {ask: "Who wrote it?", expect: {model: one}}}
"""


async def test_an_encoder_that_hangs_ends_the_check_with_a_problem(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def hang(text: str) -> Any:  # noqa: ANN401
        asked.set()
        await asyncio.Event().wait()

    (tmp_path / "a.yaml").write_text(ASKING)
    drafts = Drafts(PolicyFolder(tmp_path), load_folder(tmp_path).policies, frozenset)
    embed = embed_from(asyncio.get_running_loop(), hang, limit_s=0.01)
    (found,) = (await asyncio.to_thread(drafts.check, {}, embed))["problems"]
    assert asked.is_set() and found["file"] == "encoder"
    assert "not answered a probe within 0.01 s; check again" in found["message"]


def record(model: str, number: int = 0, **more: Any) -> bytes:  # noqa: ANN401
    facts = {"request.model": "auto", "request.has_tools": False, "time": "2026-11-01T00:00:00+00:00"}
    found = Record(facts=facts, version="v", id=str(number), model=model, input_tokens=1_000_000, **more)
    return msgspec.json.encode(found) + b"\n"


def test_a_replay_compares_shares_costs_and_moves(drafts: Drafts, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(record("one") * 3 + b'{"label_of": "1", "scores": {}}\n' + b'{"half a li')
    found = drafts.replay({"a.yaml": GOOD.replace("    model: one\nprobes", "    model: two\nprobes")}, log)
    nothing = {"requests": 0.0, "cost_usd": 0.0, "seconds": None, "quality": None}
    three = {"requests": 3.0, "cost_usd": 0.0, "seconds": 0.0, "quality": None}
    assert found["models"] == [["one", {**three, "cost_usd": 3.0}, nothing], ["two", nothing, three]]
    ((before, after, _, count),) = found["moves"]
    assert (before, after, count, found["requests"]) == ("one", "two", 3.0, 3)


def test_a_replay_of_a_broken_draft_says_what_is_wrong(drafts: Drafts, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="unknown key") as caught:
        drafts.replay({"a.yaml": "models: {mill-canary: {upstraem: 1}}"}, tmp_path / "none")
    assert "canary" not in caught.value.message


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"x" * MAX_LOG_BYTES + b"\n" + record("one", 1) + record("one", 2))
    assert [each.id for each in latest_records(log)] == ["1", "2"]
