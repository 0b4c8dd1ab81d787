from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.sampling.stop import StopMatcher


def expected(text: str, stops: list[str]) -> tuple[str, str | None, str]:
    """By definition: (the text sent in the end, the match, the text that can be sent so far)."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop, text[: end - len(stop)]
    held = max((n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])), default=0)
    return text, None, text[: len(text) - held]


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown, seen = "", ""
    for piece in pieces:
        emit, matched = matcher.push(piece)
        shown += emit
        seen += piece
        _, stop, may_show = expected(seen, stops)
        assert (shown, matched) == (may_show, stop)  # sent neither too early nor later than needed
    return shown + matcher.flush(), matcher.matched


stops_strategy = st.lists(st.text("abc", min_size=1, max_size=5), min_size=0, max_size=5)


@given(st.lists(st.text("abc", max_size=4), max_size=8), stops_strategy)
def test_any_pieces_any_overlapping_stops(pieces: list[str], stops: list[str]) -> None:
    shown, matched, _ = expected("".join(pieces), stops)
    assert run(pieces, stops) == (shown, matched)


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        ("abcd", ["abcd", "bc"], "a", "bc"),  # complete first
        ("xabc", ["bc", "abc"], "x", "abc"),  # complete together: the longest
        ("aaab", ["aab"], "a", "aab"),
        ("ababac", ["abac"], "ab", "abac"),
        ("one\n\nUser: two", ["\nUser:", "###"], "one\n", "\nUser:"),
        ("no stop, nearly ##", ["###"], "no stop, nearly ##", None),
        ("été 🎉 fin", ["🎉"], "été ", "🎉"),
        ("stop", ["stop"], "", "stop"),
    ],
)
def test_every_split_in_three(text: str, stops: list[str], shown: str, matched: str | None) -> None:
    for i in range(len(text) + 1):
        for j in range(i, len(text) + 1):
            assert run([text[:i], text[i:j], text[j:]], stops) == (shown, matched)


def test_after_a_match_no_text_is_sent() -> None:
    matcher = StopMatcher(["."])
    assert matcher.push("One. Two.") == ("One", ".")
    assert matcher.push(" Three") == ("", ".")
    assert matcher.flush() == ""


def test_without_stops_text_passes() -> None:
    assert StopMatcher([]).push("anything") == ("anything", None)


def test_a_long_periodic_stop_stays_linear() -> None:
    stop = "a" * 5_000 + "b"
    matcher = StopMatcher([stop])
    shown = sum(len(matcher.push("a" * 50)[0]) for _ in range(400))
    assert shown == 20_000 - 5_000


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["x", ""])
