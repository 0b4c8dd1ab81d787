"""Input lines are checked with their numbers; output lines are single lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import MAX_FAULTS, answer_line, check_lines, read_lines, usage_of
from gateway.batches.records import Fault

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "secret"}]}


def line(custom_id: object = "a", **more: object) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT, "body": BODY} | more)


def check(tmp_path: Path, text: str, max_lines: int = 100) -> tuple[int, list[Fault]]:
    path = tmp_path / "in.jsonl"
    path.write_text(text)
    return check_lines(path, CHAT, max_lines=max_lines, max_line_bytes=1000)


def test_valid_lines_are_read_with_their_bodies(tmp_path: Path) -> None:
    text = f"{line('a')}\r\n\n{line('b', body=BODY | {'model': 'other'})}"
    assert check(tmp_path, text) == (2, [])
    first, second = read_lines(tmp_path / "in.jsonl")
    assert (first.number, first.custom_id, json.loads(first.body)) == (1, "a", BODY)
    assert (second.number, second.custom_id) == (3, "b")


@pytest.mark.parametrize(
    ("bad", "code", "param"),
    [
        ("{", "invalid_json_line", None),
        ("[" * 5000, "line_too_long", None),
        ("[" * 900, "invalid_line", None),
        ('"x"', "invalid_line", None),
        (line(custom_id=7), "invalid_line", None),
        (line(custom_id=""), "invalid_custom_id", "custom_id"),
        (line(extra=1), "invalid_line", None),
        (line(body="x"), "invalid_line", None),
        (line(body={"messages": []}), "missing_required_parameter", "body.model"),
        (line(body={"model": 1}), "invalid_line", None),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/embeddings"), "invalid_url", "url"),
        (line(body=BODY | {"stream": True}), "unsupported_parameter", "body.stream"),
        (line("first"), "duplicate_custom_id", "custom_id"),
    ],
)
def test_faults_have_line_and_field_and_quote_nothing(
    tmp_path: Path, bad: str, code: str, param: str | None
) -> None:
    _, (fault,) = check(tmp_path, f"{line('first')}\n{bad}\n")
    assert (fault.line, fault.code, fault.param) == (2, code, param)
    assert "secret" not in fault.message and fault.message


def test_empty_and_long_files_are_faults(tmp_path: Path) -> None:
    assert [fault.code for fault in check(tmp_path, " \n\n")[1]] == ["empty_file"]
    text = "\n".join(line(str(number)) for number in range(4))
    assert [fault.code for fault in check(tmp_path, text, max_lines=3)[1]] == ["too_many_lines"]
    assert len(check(tmp_path, "{\n" * 500)[1]) == MAX_FAULTS


@given(
    st.text(),
    st.recursive(st.none() | st.booleans() | st.text(), lambda each: st.dictionaries(st.text(), each)),
    st.sampled_from([None, 2]),
)
def test_an_answer_is_one_line(custom_id: str, body: object, indent: int | None) -> None:
    written = answer_line(custom_id, 200, "req", json.dumps(body, indent=indent).encode())
    assert written.count(b"\n") == 1
    found = json.loads(written)
    assert (found["custom_id"], found["response"]["body"], found["error"]) == (custom_id, body, None)


def test_an_answer_that_is_not_json_is_kept_as_text() -> None:
    assert json.loads(answer_line("a", 502, "req", b"<html>\n"))["response"]["body"] == "<html>\n"


def test_usage_is_read_from_both_shapes() -> None:
    chat = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    responses = {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    found = [usage_of(json.dumps({"usage": usage}).encode()) for usage in (chat, responses)]
    assert found[0] == found[1] and found[0].total_tokens == 5
    assert found[0].plus(found[1]).input_tokens_details.cached_tokens == 2
    assert usage_of(b'{"usage": 3}') == usage_of(b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"usage": {"prompt_tokens": -5, "completion_tokens": 3}}',
        b'{"usage": {"prompt_tokens": 1e300}}',
        b'{"usage": {"prompt_tokens": 99999999999999999999}}',
        b'{"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -1}}}',
        b'{"usage": {"input_tokens": "many"}}',
    ],
)
def test_a_usage_that_cannot_be_is_none(answer: bytes) -> None:
    assert usage_of(answer) == usage_of(b"{}")
