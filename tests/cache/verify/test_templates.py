from __future__ import annotations

from random import Random

from cache.verify.templates import SLOTS, families, make_pair


def test_all_slots_are_known_and_families_have_several_wordings() -> None:
    for wordings, _ in families():
        assert len(wordings) >= 2
        for wording in wordings:
            wording.format_map({f"{kind}{n}": "x" for kind in SLOTS for n in ("", "1", "2")})


def test_pairs_are_labelled_by_what_was_changed() -> None:
    pairs = [make_pair(random) for random in [Random(0)] for _ in range(500)]
    kinds = {kind: {same for _, _, same, each in pairs if each == kind} for _, _, _, kind in pairs}
    assert kinds == {"same": {True}, "roles": {False}, "slot": {False}, "number": {False}}
    assert all(a != b for a, b, same, _ in pairs if not same)
