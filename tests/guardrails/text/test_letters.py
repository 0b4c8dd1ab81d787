from __future__ import annotations

from guardrails.text.letters import LOOKALIKES, styled_letters, unleet


def test_styled_letters() -> None:
    assert "ᴀʙᴄ🅐🅱🇦ɐɹʇøł".translate(styled_letters()) == "abcabaartol"


def test_lookalikes() -> None:
    assert "іgnоrе Αll".translate(LOOKALIKES) == "ignore All"


def test_one_is_i_or_l() -> None:
    assert unleet("1gn0r3") == ("ignore", "lgnore")
    assert "al1"[:2] + "l" in unleet("al1")
