from __future__ import annotations

from gateway.fleet.stays import MAX_CONVERSATIONS, Stays


def test_conversations_are_bounded() -> None:
    stays = Stays()
    stays.remember(b"", "nowhere")
    assert stays.target_of(b"") == ""
    stays.remember(b"first", "a")
    for number in range(MAX_CONVERSATIONS - 1):
        stays.remember(str(number).encode(), "b")
    assert stays.target_of(b"first") == "a"
    stays.remember(b"first", "c")
    stays.remember(b"more", "b")
    assert stays.target_of(b"first") == "c" and stays.target_of(b"0") == ""
