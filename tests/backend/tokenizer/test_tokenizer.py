from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from backend.errors import CheckpointError, PromptTooLong, RequestError, TemplateError
from backend.tokenizer import Tokenizer
from backend.tokenizer.files import read_eos_token_ids
from tests.backend.tokenizer.checkpoints import save_byte_level, save_metaspace

UNKNOWN = {"__type": "AddedToken", "content": "<|unknown|>", "lstrip": True, "special": True}

Pair = tuple[Tokenizer, PreTrainedTokenizerBase]
FAMILIES = ["byte_level", "strip", "metaspace", "keep"]

# Any Unicode, with the strings that tokenizers treat specially mixed in.
texts = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from([" ", "  ", "\n", "▁", "Ġ"]),
        st.sampled_from(["<s>", "</s>", "<|im_end|>", "<think>", "<｜tool▁call｜>"]),
        st.sampled_from(["the water", "é", "é", "🎉", "👩‍👩‍👧", "<0x41>", "雨が降る"]),
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    root = tmp_path_factory.mktemp("checkpoints")
    folders = {"byte_level": save_byte_level(root / "byte_level")}
    for kind in FAMILIES[1:]:
        folders[kind] = save_metaspace(root / kind, decoder=kind)
    return {
        name: (Tokenizer.from_checkpoint(folder), AutoTokenizer.from_pretrained(folder))
        for name, folder in folders.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(text=texts, add_special_tokens=st.booleans())
def test_encodes_as_transformers(
    pairs: dict[str, Pair], family: str, text: str, add_special_tokens: bool
) -> None:
    ours, reference = pairs[family]
    expected = reference.encode(text, add_special_tokens=add_special_tokens)
    assert ours.encode(text, add_special_tokens) == expected


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None)
@given(text=texts, skip=st.booleans())
def test_decodes_what_was_encoded_as_transformers(
    pairs: dict[str, Pair], family: str, text: str, skip: bool
) -> None:
    ours, reference = pairs[family]
    ids = ours.encode(text, add_special_tokens=True)
    assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_decodes_any_byte_level_ids_as_transformers(
    pairs: dict[str, Pair], data: st.DataObject, skip: bool
) -> None:
    ours, reference = pairs["byte_level"]
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=24))
    assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


def test_token_bytes_are_exact(pairs: dict[str, Pair]) -> None:
    ours, _ = pairs["byte_level"]
    text = "naïve 🎉\n<think>雨<|im_end|>"
    ids = ours.encode(text)
    assert b"".join(ours.token_bytes(i) for i in ids) == text.encode()
    ours, _ = pairs["strip"]
    ids = ours.encode("the wat 🎉")
    assert b"".join(ours.token_bytes(i) for i in ids) == b" the wat \xf0\x9f\x8e\x89"
    assert ours.token_text(ids[-1]) == "\ufffd"
    assert ours.token_bytes(1) == b"<s>"


def test_unknown_ids_and_invalid_text(pairs: dict[str, Pair]) -> None:
    ours, _ = pairs["byte_level"]
    assert ours.decode([10_000_000, *ours.encode("ok")]) == "ok"
    with pytest.raises(RequestError, match="out of range"):
        ours.decode([-1])
    with pytest.raises(RequestError, match="surrogate"):
        ours.encode("\ud83c")


def test_tokens_defined_only_in_the_configuration(tmp_path: Path) -> None:
    added = {"430": {"content": "<|tool|>", "special": True}, "431": {"content": "<note>", "special": False}}
    folder = save_byte_level(tmp_path, added_tokens_decoder=added, unk_token=UNKNOWN)
    ours, reference = Tokenizer.from_checkpoint(folder), AutoTokenizer.from_pretrained(folder)
    text = "a<|tool|>b<note>c <|unknown|>"
    ids = ours.encode(text)
    assert ids == reference.encode(text)
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True) == "ab<note>c"


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 9]}, {"eos_token_id": 5}, (7, 9, 2)),
        ({"eos_token_id": 7}, {}, (7, 2)),
        ({}, {"eos_token_id": 5}, (5, 2)),
        ({}, {"text_config": {"eos_token_id": [5, 6]}}, (5, 6, 2)),
        ({}, {}, (2,)),
    ],
)
def test_eos_tokens(
    tmp_path: Path, generation: dict[str, int], config: dict[str, int], expected: tuple[int, ...]
) -> None:
    folder = save_byte_level(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text(json.dumps(config))
    assert Tokenizer.from_checkpoint(folder).eos_token_ids == expected
    assert read_eos_token_ids(folder) == expected


def test_a_checkpoint_without_any_text_files_has_no_eos(tmp_path: Path) -> None:
    assert read_eos_token_ids(tmp_path) == ()


def test_rendering_without_a_template_names_the_remedy(pairs: dict[str, Pair]) -> None:
    ours, _ = pairs["strip"]
    assert not ours.has_chat_template
    with pytest.raises(TemplateError, match="chat_template.jinja"):
        ours.render_chat([{"role": "user", "content": "hi"}])


def test_a_decoder_of_another_family_is_refused(tmp_path: Path) -> None:
    path = save_byte_level(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    wordpiece = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    for decoder, name in ((wordpiece, "WordPiece"), (None, "none")):
        path.write_text(json.dumps({**content, "decoder": decoder}))
        with pytest.raises(CheckpointError, match=f"The decoder '{name}'"):
            Tokenizer.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "There is no tokenizer.json"),
        ("tokenizer.json", b'{"version": ', "not valid JSON"),
        ("tokenizer.json", b'{"version": "1.0"}', "is not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "is not UTF-8"),
        ("tokenizer_config.json", b"{,}", "not valid JSON .*line 1"),
        ("tokenizer_config.json", b'{"a":' * 10_000, "not valid JSON"),
        ("tokenizer_config.json", b'{"a": %s}' % (b"9" * 5_000), "not valid JSON"),
        ("tokenizer_config.json", b"[]", "holds a list"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "neither a template"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": 1}}', "is broken"),
        ("tokenizer_config.json", b'{"bos_token": {"text": 1}}', "without its text"),
        ("generation_config.json", b'{"eos_token_id": "x"}', "must be token ids"),
        ("chat_template.jinja", b"line\n{% if %}", "broken at line 2"),
    ],
)
def test_errors_of_broken_checkpoints(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    path = save_byte_level(tmp_path) / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        Tokenizer.from_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="There is no folder"):
        Tokenizer.from_checkpoint(tmp_path / "nowhere")


def test_long_texts_are_encoded_with_the_gil_released(pairs: dict[str, Pair]) -> None:
    ours, theirs = pairs["byte_level"]
    text = "The water turns the wheel. é " * 20_000
    found: list[list[int]] = []
    worker = threading.Thread(target=lambda: found.append(ours.encode(text)))
    worker.start()
    num_turns = 0
    while worker.is_alive():
        num_turns += 1
        time.sleep(0)
    assert num_turns > 100  # one or two if the GIL were held
    assert found == [theirs.encode(text, add_special_tokens=False)]
    with pytest.raises(RequestError, match="surrogate"):
        ours.encode(text + "\ud83d")


@pytest.mark.parametrize("kind", FAMILIES)
def test_texts_that_must_exceed_the_limit_are_refused_without_encoding(
    pairs: dict[str, Pair], kind: str
) -> None:
    tokenizer = pairs[kind][0]
    with pytest.raises(PromptTooLong, match="10000000 characters"):
        tokenizer.encode("x " * 5_000_000, max_tokens=2048)
    longest = max((tokenizer.token_text(i) for i in range(tokenizer.vocab_size)), key=len)
    text = longest * 100
    assert tokenizer.encode(text, max_tokens=100) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", FAMILIES)
def test_only_a_prefix_of_a_text_that_is_too_long_is_encoded(
    pairs: dict[str, Pair], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = pairs[kind][0]
    lengths: list[int] = []
    encode = tokenizer._encode

    def measured(text: str, add_special_tokens: bool = False) -> list[int]:
        lengths.append(len(text))
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", measured)
    text = "Größe ~ 12 %% " * 20_000
    limit = len(tokenizer.encode(text, max_tokens=len(text)))
    with pytest.raises(PromptTooLong, match=r"280000 characters, which are at least [0-9]{4,} tokens"):
        lengths.clear()
        tokenizer.encode(text, max_tokens=2000)
    assert sum(lengths) < len(text) / 4
    assert len(tokenizer.encode(text, max_tokens=limit)) == limit, "what fits is not refused"


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("num_tokens", [1, 7, 3000])
def test_the_beginning_of_a_text_is_encoded_as_in_the_whole(
    pairs: dict[str, Pair], kind: str, num_tokens: int
) -> None:
    tokenizer = pairs[kind][0]
    text = "Größe ~ 12 %% of the water " * 2000
    assert tokenizer.encode_beginning(text, num_tokens) == tokenizer.encode(text)[:num_tokens]
