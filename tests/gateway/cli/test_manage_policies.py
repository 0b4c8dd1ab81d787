"""What `penstock policy versions` prints."""

from __future__ import annotations

from gateway.cli.manage_policies import versions_text


def test_previous_versions_are_newest_first() -> None:
    shown = versions_text("c", ["a", "b"], "")
    assert (
        shown.splitlines()[1] == "previous  b, a  (newest first; `penstock policy rollback` serves the first)"
    )
    assert versions_text("b", ["a"], "broken") == "current   b\nprevious  a\nerror     broken\n"
    assert versions_text("a", [], "") == "current   a\nprevious  none\n"
