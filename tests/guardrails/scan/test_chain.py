from __future__ import annotations

import pytest
import regex

from guardrails.scan.chain import ScannerChain
from guardrails.scan.scanner import Blocked, Rule, Scanner


def rule(pattern: str, replacement: str | None = None) -> Rule:
    def replace(match: regex.Match[str]) -> str:
        if replacement is None:
            raise Blocked("kind")
        return replacement

    return Rule(regex.compile(pattern), replace)


def chain(*rules: Rule) -> ScannerChain:
    return ScannerChain([Scanner(each) for each in rules])


def test_each_scanner_gets_what_the_one_before_it_lets_through() -> None:
    found = chain(rule("ab", "c"), rule("cc", "d"))
    assert found.feed("xa") + found.feed("bab") + found.finish() == "xd"


def test_what_comes_before_a_block_passes_the_scanners_after_it() -> None:
    found = chain(rule("STOP"), rule("ab+", "c"))
    assert found.feed("1 ab") == "1 "
    with pytest.raises(Blocked) as caught:
        found.feed("b STOP ab")
    assert caught.value.sent == "c "


def test_no_scanners_change_nothing() -> None:
    assert chain().feed("text") + chain().finish() == "text"


def test_what_comes_before_a_later_block_passes_only_the_scanners_after_it() -> None:
    for finish in (False, True):
        found = chain(rule("a", "aa"), rule("STOP"), rule("aab", "d"))
        with pytest.raises(Blocked) as caught:
            found.finish("ab STOP") if finish else found.feed("ab STOP ab")
        assert caught.value.sent == "d "
