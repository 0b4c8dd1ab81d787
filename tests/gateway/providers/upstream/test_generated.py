"""Every dialect of an upstream's chat gives the same deltas, however its stream is cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Delta, Relayed, ToolCallDelta, Usage
from gateway.errors import ApiError
from gateway.exchange.shape import CollectedChoice
from gateway.providers.upstream.generated import generated

DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return b"data: %s\n\n" % json.dumps({"choices": [choice]}).encode()


class Source:
    """An upstream's stream that knows whether it was closed."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = iter(pieces)
        self.is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            if piece:
                return piece
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.is_closed = True


async def deltas(body: bytes | Sequence[bytes]) -> list[Delta]:
    answer = generated(Relayed(body if isinstance(body, bytes) else Source(body), Usage()))
    return [delta async for delta in answer.deltas]


async def collected(body: bytes | Sequence[bytes], index: int = 0) -> CollectedChoice:
    choice = CollectedChoice()
    for delta in await deltas(body):
        if delta.index == index:
            choice.add(delta)
    return choice


def shown(choice: CollectedChoice) -> tuple[str, str, list[tuple[str, str]], str | None]:
    calls = [(call.name, call.arguments) for call in choice.tool_calls]
    return "".join(choice.text_pieces), "".join(choice.reasoning_pieces), calls, choice.finish_reason


def call(index: int | None = None, **members: object) -> dict[str, Any]:
    """A delta with a piece of a call; members other than `id` are those of `function`."""
    outer = {"id": members.pop("id")} if "id" in members else {}
    numbered = outer if index is None else {"index": index, **outer}
    return {"tool_calls": [{**numbered, "function": members}]}


TWO_CALLS = [("add", '{"a": 1}'), ("sub", "{}")]
DIALECTS: dict[str, tuple[list[bytes], tuple[str, str, list[tuple[str, str]], str]]] = {
    "plain": (
        [
            event({"role": "assistant", "content": ""}),
            event({"content": "Hé"}),
            event({"content": "y"}, "stop"),
        ],
        ("Héy", "", [], "stop"),
    ),
    "an empty finish reason in every chunk": (
        [event({"content": "a"}, ""), event({"content": "b"}, ""), event({}, "length")],
        ("ab", "", [], "length"),
    ),
    "text after the finish reason": (
        [event({"content": "a"}, "stop"), event({"content": "b"}), event(None, "stop")],
        ("ab", "", [], "stop"),
    ),
    "reasoning_content": (
        [event({"content": None, "reasoning_content": "hm"}), event({"content": "a"}, "stop")],
        ("a", "hm", [], "stop"),
    ),
    "reasoning under both names": (
        [event({"reasoning": "hm", "reasoning_content": "hm"}), event({"content": "a"}, "end_turn")],
        ("a", "hm", [], "stop"),
    ),
    "content parts": (
        [
            event({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
            event({"content": [{"type": "text", "text": "a"}]}, "model_length"),
        ],
        ("a", "hm", [], "length"),
    ),
    "refusal": ([event({"refusal": "No."}), event({}, "content_filter")], ("No.", "", [], "content_filter")),
    "calls by index": (
        [
            event(call(0, id="x", name="add", arguments="")),
            event(call(0, arguments='{"a":')),
            event(call(0, arguments=" 1}")),
            event(call(1, id="y", name="sub", arguments="{}"), "tool_calls"),
        ],
        ("", "", TWO_CALLS, "tool_calls"),
    ),
    "calls without index, finished as stop": (
        [
            event(call(id="x", name="add", arguments='{"a": 1}')),
            event(call(id="y", name="sub", arguments="{")),
            event(call(arguments="}"), "stop"),
        ],
        ("", "", TWO_CALLS, "tool_calls"),
    ),
    "two calls under one index": (
        [
            event(call(0, id="x", name="add", arguments='{"a": 1}')),
            event(call(0, id="y", name="sub", arguments="{}"), "tool_calls"),
        ],
        ("", "", TWO_CALLS, "tool_calls"),
    ),
    "id and name in every piece": (
        [
            event(call(0, id="x", name="add", arguments='{"a"')),
            event(call(0, id="x", name="add", arguments=": 1}")),
            event(call(1, id="y", name="sub", arguments=None)),
            event(call(1, id="", name="", arguments="{}"), "tool_calls"),
        ],
        ("", "", TWO_CALLS, "tool_calls"),
    ),
    "interleaved calls": (
        [
            event(call(0, id="x", name="add", arguments='{"a"')),
            event(call(1, id="y", name="sub", arguments="{")),
            event(call(0, arguments=": 1}")),
            event(call(1, arguments="}"), "tool_calls"),
        ],
        ("", "", TWO_CALLS, "tool_calls"),
    ),
    "arguments as an object": (
        [event(call(0, id="x", name="add", arguments={"a": 1}), "tool_calls")],
        ("", "", [("add", '{"a":1}')], "tool_calls"),
    ),
    "function_call": (
        [
            event({"function_call": {"name": "add", "arguments": '{"a"'}}),
            event({"function_call": {"arguments": ": 1}"}}, "function_call"),
        ],
        ("", "", [("add", '{"a": 1}')], "tool_calls"),
    ),
}


@pytest.mark.parametrize(("pieces", "expected"), DIALECTS.values(), ids=DIALECTS.keys())
async def test_dialects_give_one_form_at_every_cut(
    pieces: list[bytes], expected: tuple[str, str, list[tuple[str, str]], str]
) -> None:
    raw = b"".join(pieces) + DONE
    whole = await deltas([raw])
    choice = CollectedChoice()
    for delta in whole:
        choice.add(delta)
    assert shown(choice) == expected
    assert [d.finish_reason for d in whole if d.finish_reason] == [whole[-1].finish_reason]
    for cut in range(len(raw)):
        assert shown(await collected([raw[:cut], raw[cut:]])) == expected
    assert shown(await collected([raw[i : i + 1] for i in range(len(raw))])) == expected


@pytest.mark.parametrize("name", sorted(set(DIALECTS) - {"text after the finish reason"}))
async def test_a_stream_that_ends_anywhere_is_whole_or_an_error(name: str) -> None:
    pieces, expected = DIALECTS[name]
    raw = b"".join(pieces)
    num_whole = 0
    for end in range(len(raw) + 1):
        try:
            found = await collected([raw[:end]])
        except ApiError as error:
            assert error.code == "upstream_invalid_response"
        else:
            num_whole += 1
            assert shown(found) == expected
    assert num_whole == 3  # without the last line feeds


@given(st.data())
async def test_any_cuts_give_the_same_answer(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6))
    arguments = data.draw(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=4))
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = [event({"content": text}) for text in texts]
    events.append(event(call(0, id="x", name="f", arguments="")))
    events += [event(call(0, arguments=piece)) for piece in arguments]
    raw = b"".join([*events, event({}, "tool_calls"), DONE]).replace(b"\n", end.encode())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    found = shown(await collected(pieces))
    assert found == ("".join(texts), "", [("f", "".join(arguments))], "tool_calls")


async def test_the_stop_string_is_kept_where_the_upstream_names_it() -> None:
    found = await collected([event({"content": "a"}, "stop", stop_reason="END"), DONE])
    assert found.stop_string == "END"
    found = await collected([event({"content": "a"}, "stop", stop_reason=151643), DONE])
    assert found.stop_string == ""


async def test_a_whole_answer_gives_the_same_form() -> None:
    message = {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "y", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
        ],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    found = await collected(json.dumps(body).encode())
    assert shown(found) == ("a", "hm", TWO_CALLS, "tool_calls")
    assert [each.call_id for each in found.tool_calls] == ["x", "y"]


async def test_a_completion_has_its_text_in_the_choice() -> None:
    choices = [{"index": 1, "text": "Hi", "finish_reason": "stop"}]
    assert shown(await collected(msgspec.json.encode({"choices": choices}), 1))[0] == "Hi"


async def test_calls_have_an_id_where_the_upstream_gives_none() -> None:
    found = await deltas([event({"function_call": {"name": "f", "arguments": "{}"}}, "function_call"), DONE])
    assert found[0].tool_calls == [ToolCallDelta(0, "{}", "call_0_0", "f")]


async def test_log_probabilities_and_choices() -> None:
    entry = {"token": "é", "logprob": -0.5, "bytes": None}
    logprobs = {"content": [{**entry, "top_logprobs": [{**entry, "bytes": [195, 169]}]}]}
    first, second, *ends = await deltas(
        [
            event({"content": "é"}, logprobs=logprobs),
            event({"content": "b"}, "length", index=1),
            event({}, "stop"),
            DONE,
        ]
    )
    (token,) = first.tokens
    assert (token.token_bytes, token.logprob, token.top) == ("é".encode(), -0.5, [("é", "é".encode(), -0.5)])
    assert (second.index, second.text) == (1, "b")
    assert [(end.index, end.finish_reason) for end in ends] == [(0, "stop"), (1, "length")]


@pytest.mark.parametrize(
    "pieces",
    [[], [DONE], [event({"content": "a"}), DONE], [b"data: {\n\n"], [b"data: \xff\n\n"], [b'data: "x"\n\n']],
    ids=["nothing", "only done", "no finish reason", "no json", "no utf-8", "no object"],
)
async def test_what_is_no_answer_is_an_error(pieces: list[bytes]) -> None:
    with pytest.raises(ApiError, match="sent an invalid answer"):
        await deltas(pieces)


async def test_closing_closes_the_upstream_even_before_the_first_delta() -> None:
    source = Source([event({"content": "a"})])
    answer = generated(Relayed(source, Usage()))
    await answer.deltas.aclose()  # type: ignore[attr-defined]
    assert source.is_closed


async def test_calls_of_custom_tools_are_those_of_the_functions_that_stand_for_them() -> None:
    def piece(index: int, text: str, **more: object) -> dict[str, Any]:
        custom = {"input": text} | ({"name": "edit"} if more else {})
        return {"tool_calls": [{"index": index, **more, "type": "custom", "custom": custom}]}

    pieces = [piece(0, 'a"', id="c0"), piece(0, "\n"), piece(1, "x", id="c1"), piece(0, "é"), piece(1, "y")]
    found = await collected([*map(event, pieces), event({}, "tool_calls"), DONE])
    calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in found.tool_calls]
    assert calls == [("c0", "edit", {"input": 'a"\né'}), ("c1", "edit", {"input": "xy"})]
    message = {"tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "edit", "input": "a\n"}}]}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
    (call,) = (await collected(body.encode())).tool_calls
    assert (call.name, json.loads(call.arguments)) == ("edit", {"input": "a\n"})
