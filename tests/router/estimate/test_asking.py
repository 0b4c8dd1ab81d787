"""What of a prompt asks: small talk before it does not change what is predicted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.estimate import load_estimate
from router.estimate.asking import asking_part
from tests.router.estimate.openings import openings

EASY, HARD = (
    "What is 17 + 25?",
    ("Tom has 14 apples, gives away 3, then doubles what is left and sells 5. How many apples remain?"),
)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Hi! How are you? What is 17 + 25?", "What is 17 + 25?"),
        ("I woke up at 6 today. It's sunny. What is 17 + 25?", "What is 17 + 25?"),
        ("I ran for 30 minutes at 6 today. What is 17 + 25?", "What is 17 + 25?"),
        ("So nice 😀 Good luck :) What is 17 + 25?", "What is 17 + 25?"),
        ("Hallo. Ich hoffe, es geht dir gut. Was ist 17 + 25?", "Was ist 17 + 25?"),
        ("你好！今天天气真好。请问17加25等于多少？", "请问17加25等于多少？"),
        ("Hi,\n\nI hope you are well.\n\nHow many days are in 3 weeks?", "How many days are in 3 weeks?"),
        ("Hey what's up :) lovely day. Sort these: 3, 1, 2", "Sort these: 3, 1, 2"),
    ],
)
def test_small_talk_is_left_out(text: str, asked: str) -> None:
    assert asking_part(text) == asked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello!",
        "17 + 25",
        "Write a poem about spring. Make it rhyme.",  # the task comes first, and nothing marks it
        "Sort the numbers. 5, 2, 9",
        "Summarize the text below. Founded in 1998, the firm grew. It was sold.",
        "Which of these are vehicles? Answer in reverse order: tram, plum, apple",
        "Tom goes to the shop. He has 3 apples. How many apples has Tom?",
        "All bloops are razzies. Some razzies are lazzies. Are 2 bloops lazzies?",
        "Let x be seven. What is 3 + x * 2?",
        "Each box holds 4. Tom packs 3 boxes of pens and 2 of pencils. How many pens has he?",
        "Tom has 9 pens and sells 4. How many pens are left? What is 2 + 2?",
        "Compute 583 + 503. How much is 767 - 7?",
        "- name, animal\n- Clara, duck\nWhich animal has Clara?",
        "def f(x):\n    return x\nWhat does f(3) return?",
    ],
)
def test_what_belongs_to_the_task_stays(text: str) -> None:
    assert asking_part(text) == text


@given(st.text(max_size=200))
def test_what_is_left_ends_the_text_and_asks_itself(text: str) -> None:
    found = asking_part(text)
    assert text.rstrip().endswith(found.rstrip())
    assert asking_part(found) == found


@given(st.text(alphabet='a1.? \n"“。', max_size=20_000))
def test_long_texts_take_linear_time(text: str) -> None:
    asking_part(text * 20)


@pytest.mark.parametrize("name", ["builtin:pico", "builtin:general", "builtin:reasoning"])
def test_openings_in_six_languages_change_few_decisions(name: str) -> None:
    estimate = load_estimate(name)
    plain = {ask: estimate.predict(ask).gain for ask in (EASY, HARD)}
    assert abs(plain[EASY] - plain[HARD]) > 0.1
    middle = sum(plain.values()) / 2
    found = [
        (
            abs(estimate.predict(f"{text} {ask}").gain - gain),
            (estimate.predict(f"{text} {ask}").gain > middle),
        )
        for _, _, text in openings()
        for ask, gain in plain.items()
    ]
    kept = sum(
        high == (plain[ask] > middle) for (_, high), ask in zip(found, [EASY, HARD] * 480, strict=True)
    )
    assert kept >= 0.95 * len(found)
    assert sum(moved < 0.01 for moved, _ in found) >= 0.9 * len(found)
