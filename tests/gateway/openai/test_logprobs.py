from __future__ import annotations

from gateway.answer import TokenInfo
from gateway.openai.logprobs import chat_logprobs, completion_logprobs


def test_of_two_tokens_with_one_text_the_most_likely_is_shown() -> None:
    top = [(" a", b" a", -0.5), ("b", b"b", -1.0), (" a", b" a", -2.0)]
    info = TokenInfo(" a", b" a", -2.0, top)
    assert completion_logprobs([info])["top_logprobs"] == [{" a": -0.5, "b": -1.0}]
    assert completion_logprobs([info])["token_logprobs"] == [-2.0]
    (entry,) = chat_logprobs([info])["content"]
    assert [(each["token"], each["logprob"]) for each in entry["top_logprobs"]] == [
        (" a", -0.5),
        ("b", -1.0),
        (" a", -2.0),
    ]


def test_the_sampled_token_is_among_the_top_ones() -> None:
    info = TokenInfo("c", b"c", -3.0, [("a", b"a", -0.5)])
    assert completion_logprobs([info])["top_logprobs"] == [{"a": -0.5, "c": -3.0}]


def test_incomplete_characters_are_told_apart_by_their_bytes() -> None:
    info = TokenInfo("\ufffd", b"\xf0", -1.0, [("\ufffd", b"\xf0", -1.0), ("\ufffd", b"\xe2", -2.0)])
    assert completion_logprobs([info])["top_logprobs"] == [{"bytes:\\xf0": -1.0, "bytes:\\xe2": -2.0}]
