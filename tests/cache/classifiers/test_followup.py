from __future__ import annotations

from cache.classifiers import needs_context
from tests.cache.classifiers.encoder import vector_of

HISTORY = ["What is Rust?", "Who uses Rust?"]
FRAGMENTS = ["How does it compare to Go?", "And why?", "Make it shorter", "What about Java?"]
COMPLETE = ["What is the capital of Peru?", "Who wrote Hamlet?", "How do volcanoes form?"]


def test_fragments_need_the_turns_before_more_than_complete_questions() -> None:
    needs = [
        [needs_context(text, vector_of(text), HISTORY) for text in each] for each in (FRAGMENTS, COMPLETE)
    ]
    assert min(needs[0]) > 0.8 > max(needs[1])


def test_the_first_turn_needs_none() -> None:
    assert needs_context("And why?", vector_of("And why?"), []) == 0
