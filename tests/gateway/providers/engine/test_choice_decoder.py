"""The text of a choice does not depend on how outputs are cut: stop strings, characters, token records."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from backend.tokenizer import Tokenizer
from backend.types import FinishReason, StepOutput, TokenLogprobs
from gateway.answer import Delta
from gateway.providers.engine.choice_decoder import ChoiceDecoder
from gateway.providers.engine.reasoning_splitter import ReasoningSplitter
from gateway.tool_calls.hermes import HERMES
from gateway.tool_calls.parser import ToolCallParser
from tests.backend.tokenizer.checkpoints import save_byte_level

TEXT = "Größe: 雨が降る 🎉🎉 and again and again."


def outputs(
    ids: Sequence[int], cuts: Sequence[int], reason: FinishReason, *, logprobs: bool
) -> list[StepOutput]:
    """The tokens in pieces that end at `cuts`; the last carries the finish reason."""
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    found = []
    for start, end in itertools.pairwise(bounds):
        records = [TokenLogprobs(i, -0.5, [(i, -0.5), (0, -9.0)]) for i in ids[start:end]]
        found.append(
            StepOutput(request_id="r", token_ids=list(ids[start:end]), logprobs=records if logprobs else None)
        )
    found[-1].finish_reason = reason
    return found


def run(choice: ChoiceDecoder, steps: Sequence[StepOutput]) -> list[Delta]:
    deltas = []
    for step in steps:
        if choice.is_finished:
            break
        deltas.append(choice.push(step))
    assert choice.is_finished
    return deltas


def make(tokenizer: Tokenizer, stops: Sequence[str], **options: object) -> ChoiceDecoder:
    return ChoiceDecoder(0, tokenizer, tokenizer.detokenizer(), stops, **options)  # type: ignore[arg-type]


CUTS = st.lists(st.integers(0, 200), max_size=12)


@settings(deadline=None)
@given(
    cuts=CUTS, stop=st.sampled_from(["🎉", "降る", "again.", "e: 雨", ".", "nowhere"]), logprobs=st.booleans()
)
def test_cuts_change_nothing(tokenizer: Tokenizer, cuts: list[int], stop: str, logprobs: bool) -> None:
    ids = tokenizer.encode(TEXT)
    choice = make(tokenizer, [stop], wants_logprobs=logprobs)
    deltas = run(choice, outputs(ids, cuts, "length", logprobs=logprobs))
    text = "".join(delta.text for delta in deltas)
    at = TEXT.find(stop)
    assert text == (TEXT if at < 0 else TEXT[:at])
    assert all("\ufffd" not in delta.text for delta in deltas)
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == ("length" if at < 0 else "stop")
    through_stop = next(
        n for n in range(len(ids) + 1) if n == len(ids) or stop in tokenizer.decode(ids[:n]).rstrip("\ufffd")
    )
    assert choice.num_tokens == through_stop
    tokens = [info for delta in deltas for info in delta.tokens]
    if logprobs:
        assert b"".join(info.token_bytes for info in tokens).startswith(text.encode())
        assert all(info.text_offset < max(len(text), 1) for info in tokens) or at < 0
        offsets = [info.text_offset for info in tokens]
        assert offsets == sorted(offsets)
    else:
        assert tokens == []


@settings(deadline=None)
@given(cuts=CUTS)
def test_records_are_never_released_before_their_text(tokenizer: Tokenizer, cuts: list[int]) -> None:
    choice = make(tokenizer, ["and again and never"], wants_logprobs=True)
    shown = 0
    for delta in run(choice, outputs(tokenizer.encode(TEXT), cuts, "stop", logprobs=True)):
        shown += len(delta.text)
        assert all(info.text_offset <= shown for info in delta.tokens)


def test_every_record_is_released_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    deltas = run(
        make(tokenizer, ["nowhere"], wants_logprobs=True), outputs(ids, [3, 9], "stop", logprobs=True)
    )
    tokens = [info for delta in deltas for info in delta.tokens]
    assert b"".join(info.token_bytes for info in tokens) == TEXT.encode()
    assert tokens[0].top[1] == (tokenizer.token_text(0), tokenizer.token_bytes(0), -9.0)


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("and and and")
    first = len(tokenizer.encode("and"))
    choice = make(tokenizer, ["and"], min_tokens=first)
    text = "".join(delta.text for delta in run(choice, outputs(ids, [1, 2], "stop", logprobs=False)))
    assert text == "and "


def test_an_unfinished_character_shows_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🜁")[:-1]
    deltas = run(make(tokenizer, []), outputs(ids, [], "length", logprobs=False))
    assert deltas[-1].text.startswith("a") and deltas[-1].text.endswith("\ufffd")


def test_a_stop_string_at_the_very_end_wins_over_length(tokenizer: Tokenizer) -> None:
    deltas = run(make(tokenizer, ["."]), outputs(tokenizer.encode("so."), [], "length", logprobs=False))
    assert (deltas[-1].text, deltas[-1].finish_reason) == ("so", "stop")


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_the_engines_reason_is_kept(tokenizer: Tokenizer, reason: FinishReason) -> None:
    deltas = run(make(tokenizer, []), outputs([40, 41], [1], reason, logprobs=False))
    assert deltas[-1].finish_reason == reason


def test_an_output_without_tokens_can_end_a_choice(tokenizer: Tokenizer) -> None:
    choice = make(tokenizer, ["x y"])
    assert choice.push(StepOutput(request_id="r", token_ids=tokenizer.encode("x"))).text == ""
    assert choice.push(StepOutput(request_id="r", finish_reason="stop")) == Delta(0, "x", [], "stop")


TAGS = ("<think>", "</think>")


def reasoning_tokenizer(folder: Path, kind: str) -> Tokenizer:
    """Its tags are special tokens, tokens as others, or several tokens."""
    added = [] if kind == "several" else [AddedToken(tag, special=kind == "special") for tag in TAGS]
    return Tokenizer.from_checkpoint(save_byte_level(folder, added=added))


@pytest.fixture(scope="module", params=["special", "single", "several"])
def reasoner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return reasoning_tokenizer(tmp_path_factory.mktemp("reasoning"), request.param)


REASONING, ANSWER = "Größe: 7+5=12; again?\n\n🎉 yes.", "It is 雨 12.\n\nAgain!"
REASONED = f"{REASONING}\n</think>\n\n{ANSWER}"


@settings(deadline=None, max_examples=30)
@given(
    cuts=CUTS,
    begins_inside=st.booleans(),
    stop=st.sampled_from(["", "again", "yes", "\n\n", " 雨 12", "<", "nowhere"]),
    logprobs=st.booleans(),
)
def test_cuts_do_not_change_reasoning(
    reasoner: Tokenizer, cuts: list[int], begins_inside: bool, stop: str, logprobs: bool
) -> None:
    ids = reasoner.encode(REASONED if begins_inside else "<think>\n" + REASONED)
    choice = make(
        reasoner,
        [stop] if stop else [],
        wants_logprobs=logprobs,
        splitter=ReasoningSplitter(begins_inside=begins_inside),
    )
    deltas = run(choice, outputs(ids, cuts, "stop", logprobs=logprobs))
    assert "".join(delta.reasoning for delta in deltas) == REASONING
    expected = ANSWER.partition(stop)[0] if stop else ANSWER
    assert "".join(delta.text for delta in deltas) == expected
    tail = reasoner.encode("\n\n" + ANSWER)
    assert choice.num_reasoning_tokens == len(ids) - len(tail)
    tokens = [info for delta in deltas for info in delta.tokens]
    if logprobs:
        shown = b"".join(info.token_bytes for info in tokens).lstrip(b"\n")
        assert shown.startswith(expected.encode()) and (ANSWER.encode()).startswith(shown)
    else:
        assert tokens == []


@pytest.mark.parametrize("kind", ["special", "single", "several"])
def test_tags_around_an_answer_leave_no_records(tmp_path: Path, kind: str) -> None:
    around = ("<answer>", "</answer>")
    added = [] if kind == "several" else [AddedToken(tag, special=kind == "special") for tag in around]
    template = f"<think></think>{'{}'.join(around)}"
    folder = save_byte_level(tmp_path, added=added, chat_template=template)
    tokenizer = Tokenizer.from_checkpoint(folder)
    ids = tokenizer.encode(f"<think>a</think>\n<answer>\n{ANSWER}\n</answer>")
    for cuts in (range(len(ids)), ()):
        tags = tokenizer.thinking.tags
        choice = make(
            tokenizer,
            ["nowhere"],
            wants_logprobs=True,
            splitter=ReasoningSplitter(begins_inside=False, tags=tags),
        )
        deltas = run(choice, outputs(ids, cuts, "stop", logprobs=True))
        assert "".join(delta.text for delta in deltas) == ANSWER
        records = [info.token_bytes for delta in deltas for info in delta.tokens]
        assert b"".join(records).strip(b"\n").decode() == ANSWER
        assert choice.num_reasoning_tokens == len(tokenizer.encode("<think>a</think>"))


@pytest.mark.parametrize("end", range(1, 30))
def test_reasoning_may_be_cut_anywhere(reasoner: Tokenizer, end: int) -> None:
    ids = reasoner.encode(REASONED)[:end]
    choice = make(reasoner, ["7"], wants_logprobs=True, splitter=ReasoningSplitter(begins_inside=True))
    deltas = run(choice, outputs(ids, [], "length", logprobs=True))
    reasoning = "".join(delta.reasoning for delta in deltas)
    if "</think>" in reasoner.decode(ids, skip_special_tokens=False):
        assert reasoning == REASONING and choice.num_reasoning_tokens <= end
        return
    assert reasoner.decode(ids, skip_special_tokens=False).startswith(reasoning)
    assert (deltas[-1].text, deltas[-1].tokens, deltas[-1].finish_reason) == ("", [], "length")
    assert choice.num_reasoning_tokens == end


def test_an_answer_without_reasoning_is_whole(reasoner: Tokenizer) -> None:
    text = "<b>12</b>\n"
    choice = make(reasoner, ["12"], wants_logprobs=True, splitter=ReasoningSplitter(begins_inside=False))
    deltas = run(choice, outputs(reasoner.encode(text), range(9), "stop", logprobs=True))
    assert "".join(delta.text for delta in deltas) == "<b>"
    assert b"".join(info.token_bytes for delta in deltas for info in delta.tokens) == b"<b>"
    assert choice.num_reasoning_tokens == 0


ARGUMENTS = '{"text": "Größe}\\n雨", "n": [1, {"again": "again"}]}'
CALL = f'<tool_call>\n{{"name": "say", "arguments": {ARGUMENTS}}}\n</tool_call>'
CALL_TAGS = ("<tool_call>", "</tool_call>")


@pytest.fixture(scope="module", params=["special", "single", "several"])
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    is_special = request.param == "special"
    added = [] if request.param == "several" else [AddedToken(tag, special=is_special) for tag in CALL_TAGS]
    folder = tmp_path_factory.mktemp("caller")
    return Tokenizer.from_checkpoint(save_byte_level(folder, added=added))


@settings(deadline=None, max_examples=40)
@given(
    cuts=CUTS,
    stop=st.sampled_from(["", "again", "done", "u don", "see", "nowhere"]),
    hold=st.sampled_from([0, 20, 256]),
    logprobs=st.booleans(),
)
def test_cuts_do_not_change_calls(
    caller: Tokenizer, cuts: list[int], stop: str, hold: int, logprobs: bool
) -> None:
    text = f"I see. {CALL}\n{CALL} You done."
    ids = caller.encode(text)
    choice = ChoiceDecoder(
        0,
        caller,
        caller.detokenizer(shown=CALL_TAGS),
        [stop] if stop else [],
        wants_logprobs=logprobs,
        parser=ToolCallParser(HERMES, ["say"], hold_chars=hold),
    )
    deltas = run(choice, outputs(ids, cuts, "stop", logprobs=logprobs))
    expected = "I see. \n You done.".partition(stop or "nowhere")[0]
    assert "".join(delta.text for delta in deltas) == expected
    arguments = ["", ""]
    for call in (call for delta in deltas for call in delta.tool_calls):
        arguments[call.index] += call.arguments
    assert arguments == ([ARGUMENTS] * 2 if stop != "see" else ["", ""])
    assert deltas[-1].finish_reason == ("tool_calls" if stop != "see" else "stop")
    tokens = b"".join(info.token_bytes for delta in deltas for info in delta.tokens).decode()
    if stop in ("", "again", "nowhere") and logprobs:
        assert tokens == text
    else:
        assert text.startswith(tokens) and bool(tokens) == logprobs


@settings(deadline=None, max_examples=40)
@given(cuts=CUTS, at=st.integers(1, 200), stop=st.sampled_from(["say", "\n", "again", '"', "e t"]))
def test_a_call_that_is_cut_has_no_stop_strings(
    caller: Tokenizer, cuts: list[int], at: int, stop: str
) -> None:
    parser = ToolCallParser(HERMES, ["say"])
    choice = ChoiceDecoder(0, caller, caller.detokenizer(shown=CALL_TAGS), [stop], parser=parser)
    begin, whole = (len(caller.encode(text)) for text in ("Well <tool_call>", f"Well {CALL}"))
    ids = caller.encode(f"Well {CALL}")[: min(begin + at, whole - 1)]
    deltas = run(choice, outputs(ids, cuts, "length", logprobs=False))
    assert deltas[-1].finish_reason == "length"
    if not parser.num_calls:
        shown = caller.detokenizer(shown=CALL_TAGS)
        assert "".join(delta.text for delta in deltas) == shown.push(ids) + shown.flush()


def test_stop_strings_apply_to_text_after_a_broken_call(caller: Tokenizer) -> None:
    ids = caller.encode('Well <tool_call>\n{"name": "sing"} then stop')
    choice = ChoiceDecoder(
        0, caller, caller.detokenizer(shown=CALL_TAGS), ["then"], parser=ToolCallParser(HERMES, ["say"])
    )
    deltas = run(choice, outputs(ids, [], "length", logprobs=False))
    assert "".join(delta.text for delta in deltas) == 'Well <tool_call>\n{"name": "sing"} '
    assert deltas[-1].finish_reason == "stop"


def test_max_calls_end_a_choice_with_all_of_its_text(caller: Tokenizer) -> None:
    parser = ToolCallParser(HERMES, ["say"], max_calls=1)
    choice = ChoiceDecoder(0, caller, caller.detokenizer(shown=CALL_TAGS), ["I see what"], parser=parser)
    deltas = run(choice, outputs(caller.encode(f"I see {CALL} what"), range(90), "stop", logprobs=False))
    assert "".join(delta.text for delta in deltas) == "I see"
    assert (
        deltas[-1].finish_reason == "tool_calls"
        and choice.num_tokens < len(caller.encode(f"{CALL} what")) + 9
    )
