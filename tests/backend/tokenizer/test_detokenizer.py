from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tokenizer import Detokenizer, Tokenizer
from tests.backend.tokenizer.checkpoints import save_byte_level, save_metaspace

FAMILIES = ["byte_level", "strip", "metaspace", "keep"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root: Path = tmp_path_factory.mktemp("checkpoints")
    folders = {kind: save_metaspace(root / kind, decoder=kind) for kind in FAMILIES[1:]}
    folders["byte_level"] = save_byte_level(root / "byte_level")
    return {kind: Tokenizer.from_checkpoint(folder) for kind, folder in folders.items()}


def pieces_of(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    pieces = [detokenizer.push(ids[a:b]) for a, b in itertools.pairwise(edges)]
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_any_cuts_equal_decode(
    tokenizers: dict[str, Tokenizer], family: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = tokenizers[family]
    # Few distinct ids, so that the interesting ones (special, spaces, single bytes) meet often.
    interesting = [0, 1, 2, *tokenizer.encode("  the 🎉 雨é ▁ <think>"), tokenizer.vocab_size + 5]
    ids = data.draw(st.lists(st.sampled_from(interesting), max_size=20))
    cuts = data.draw(st.lists(st.integers(0, 20), max_size=20))
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    assert "".join(pieces_of(detokenizer, ids, cuts)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_token_by_token_never_splits_a_character(
    tokenizers: dict[str, Tokenizer], family: str, text: str
) -> None:
    tokenizer = tokenizers[family]
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    ids = tokenizer.encode(text)
    pieces = [detokenizer.push([token_id]) for token_id in ids]
    assert detokenizer.flush() == ""
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=False)
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_a_character_appears_with_its_last_byte(tokenizers: dict[str, Tokenizer]) -> None:
    for family in ("byte_level", "strip"):
        tokenizer = tokenizers[family]
        detokenizer = tokenizer.detokenizer(continues=True)
        ids = tokenizer.encode("x🙈")
        pieces = [detokenizer.push([token_id]) for token_id in ids]
        assert pieces[-3:] == ["", "", "🙈"]


def test_an_incomplete_character_shows_at_the_end(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    detokenizer = tokenizer.detokenizer()
    assert detokenizer.push(tokenizer.encode("ok 🙈")[:-1]) == "ok "
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_leading_space_belongs_to_the_text_it_continues(tokenizers: dict[str, Tokenizer]) -> None:
    for family in ("strip", "metaspace"):
        tokenizer = tokenizers[family]
        ids = tokenizer.encode("the wat")
        assert tokenizer.detokenizer().push(ids) == "the wat"
        assert tokenizer.detokenizer(continues=True).push(ids) == " the wat"


def test_the_first_token_is_the_first_that_is_shown(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["metaspace"]
    detokenizer = tokenizer.detokenizer()
    ids = tokenizer.encode("the wat")
    assert [detokenizer.push([1]), detokenizer.push([]), detokenizer.push(ids)] == ["", "", "the wat"]
