from __future__ import annotations

import random

import pytest

from backend.speculative.suffix import MATCH_TOKENS, OutputIndex, SuffixDrafter
from tests.backend.speculative.sequences import ended, running

QUESTION, ANSWER = [1, 2, 3, 4], list(range(10, 40))


def test_an_equal_question_finds_its_answer_from_the_first_token_on() -> None:
    drafter = SuffixDrafter()
    drafter.forget(ended(QUESTION, ANSWER))
    sequence = running(QUESTION, ANSWER[:1])
    assert drafter.propose([sequence], [5]) == [ANSWER[1:6]]
    sequence.tokens += ANSWER[1:9]
    assert drafter.propose([sequence], [100]) == [ANSWER[9:]], "drafts do not run into the next answer"


def test_a_part_of_another_answer_is_enough() -> None:
    drafter = SuffixDrafter()
    drafter.forget(ended(QUESTION, ANSWER))
    assert drafter.propose([running([99], [*ANSWER[7:10]])], [3]) == [ANSWER[10:13]]
    assert drafter.propose([running([99], [*ANSWER[7:9]])], [3]) == [[]], "two tokens are not"


def test_the_newest_answer_wins() -> None:
    drafter = SuffixDrafter()
    drafter.forget(ended(QUESTION, ANSWER))
    drafter.forget(ended(QUESTION, [*ANSWER[:10], 77, 78, 79]))
    assert drafter.propose([running(QUESTION, ANSWER[:10])], [2]) == [[77, 78]]


def test_tenants_and_adapters_share_nothing() -> None:
    drafter = SuffixDrafter()
    drafter.forget(ended(QUESTION, ANSWER, salt="a"))
    for salt, adapter in (("b", ""), ("", ""), ("a", "x")):
        assert drafter.propose([running(QUESTION, ANSWER[:4], salt=salt, adapter=adapter)], [2]) == [[]]
    assert drafter.propose([running(QUESTION, ANSWER[:4], salt="a")], [2]) == [ANSWER[4:6]]


def test_its_own_text_helps_where_no_other_does() -> None:
    assert SuffixDrafter().propose([running([5, 6, 7, 8], [5, 6])], [2]) == [[7, 8]]


def test_memory_is_bounded_and_the_recent_is_kept() -> None:
    drafter = SuffixDrafter(max_tokens=100, max_spaces=2)
    for number in range(50):
        base = 1000 * number
        drafter.forget(ended([base], list(range(base + 1, base + 31))))
    assert all(len(g.tokens) < 100 + 33 for gs in drafter._spaces.values() for g in gs)
    assert drafter.propose([running([49_000], [49_001, 49_002])], [1]) == [[49_003]]
    assert drafter.propose([running([1_000], [1_001, 1_002])], [1]) == [[]]
    for salt in "abc":
        drafter.forget(ended(QUESTION, ANSWER, salt=salt))
    assert {salt for salt, _ in drafter._spaces} == {"b", "c"}


def test_a_match_survives_a_new_generation() -> None:
    drafter = SuffixDrafter(max_tokens=40)
    drafter.forget(ended(QUESTION, ANSWER))
    sequence = running(QUESTION, ANSWER[:5])
    assert drafter.propose([sequence], [1]) == [ANSWER[5:6]]
    drafter.forget(ended([7], list(range(100, 130))))
    drafter.forget(ended([8], list(range(200, 230))))
    sequence.tokens += ANSWER[5:7]
    assert drafter.propose([sequence], [1]) == [ANSWER[7:8]]


@pytest.mark.parametrize("alphabet", [1, 2, 4, 30])
def test_matches_are_the_longest_and_really_there(alphabet: int) -> None:
    """The longest of the lengths that are looked up; of equal ones the newest."""
    rng = random.Random(alphabet)
    outputs, text, read = OutputIndex(), list[int](), list[int]()
    for _ in range(4):
        output = [rng.randrange(alphabet) for _ in range(60)]
        outputs.add(output)
        text += [*output, -1]
    for _ in range(300):
        read.append(rng.randrange(alphabet + 1))
        length, end = outputs.find(read)
        assert length == max((n for n in MATCH_TOKENS if occurs(text, read, n)), default=0)
        assert length == 0 or text[end - length : end] == read[-length:]
        assert not occurs(text[end - length + 1 :], read, length)


def occurs(text: list[int], read: list[int], n: int) -> bool:
    return 0 < n <= len(read) and any(text[i : i + n] == read[-n:] for i in range(len(text) - n + 1))
