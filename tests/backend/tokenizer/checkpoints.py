"""Small tokenizers of both families, trained during the test run and saved as Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The water runs down the pipe and turns the wheel, again and again.",
    "Größe, café, naïve; 12.5 km/h; x = [1, 2, 3]; \n\n\tdef f(x): return x ** 2",
    "Il pleut sur la ville. 雨が降る。 Идёт дождь. 🎉🎉 👩‍👩‍👧 done",
] * 8

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


ADDED = (AddedToken("<think>", special=False), AddedToken("<｜tool▁call｜>", special=False))


def save_byte_level(folder: Path, *, added: Sequence[AddedToken] = ADDED, **config: object) -> Path:
    """Save byte-level BPE as in Qwen and Llama 3, with added tokens that are not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([token for token in added if not token.special])
    tokenizer.add_special_tokens([token for token in added if token.special])
    return save(folder, tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", **config})


def save_metaspace(folder: Path, *, decoder: str = "strip", **config: object) -> Path:
    """Save a SentencePiece-style tokenizer: "strip" (Llama 2), "metaspace" (newer) or "keep" (Gemma)."""
    corpus_chars = sorted(set("".join(CORPUS[:1])) | set("▁Größecafé雨"))
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *corpus_chars]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "w"), ("▁", "▁"), ("a", "t"), ("▁w", "at")]
    vocab += [left + right for left, right in merges]
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    plain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    steps: dict[str, list[decoders.Decoder]] = {
        "strip": [*plain, decoders.Strip(" ", 1, 0)],
        "metaspace": [decoders.ByteFallback(), decoders.Metaspace()],
        "keep": plain,
    }
    tokenizer.decoder = decoders.Sequence(steps[decoder])
    bos = [("<s>", ids["<s>"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=bos)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return save(folder, tokenizer, {**named, **config})


def save(folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> Path:
    """Write the files; the generic tokenizer class keeps transformers from adding tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
