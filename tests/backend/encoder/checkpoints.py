"""Tiny random encoders of several architectures, written as sentence-transformers writes them."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    MPNetConfig,
    MPNetModel,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaModel,
)

SIZE, MAX_TOKENS = 32, 56
TEXTS = [
    "Where does the train to Berlin leave?",
    "Wo fährt der Zug nach Berlin ab?",
    "¿Dónde está la estación de autobuses?",
    "Où est la gare la plus proche ?",
    "Где находится ближайшая аптека?",
    "最寄りの駅はどこですか。",
    "كم الساعة الآن؟",
    "सबसे नज़दीकी स्टेशन कहाँ है?",
    "word " * 7,
    "naïve café 🎉 Ⅷ ﬁne",
    "x",
    "line one\nline two\ttab",
]
"""Texts of several languages and lengths."""
_SMALL = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def _wordpiece() -> PreTrainedTokenizerFast:
    """A fixed vocabulary: the trainer numbers equal counts differently in each process."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    normalizer = normalizers.BertNormalizer(lowercase=True)
    texts = [normalizer.normalize_str(text) for text in [*TEXTS, string.printable]]
    letters = sorted({letter for text in texts for letter in text if not letter.isspace()})
    words = sorted({word for text in texts for word in re.findall(r"\w\w+", text)})
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), *words]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _wrapped(tokenizer, special)


def _unigram() -> PreTrainedTokenizerFast:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _wrapped(tokenizer, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"])


def _byte_level() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _wrapped(tokenizer, special)


def _wrapped(tokenizer: Tokenizer, special: Sequence[str]) -> PreTrainedTokenizerFast:
    pad, unknown, first, last, mask = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        unk_token=unknown,
        cls_token=first,
        sep_token=last,
        bos_token=first,
        eos_token=last,
        mask_token=mask,
        model_max_length=64,
    )


def _model(architecture: str) -> tuple[Any, PreTrainedTokenizerFast]:
    torch.manual_seed(7)
    if architecture in ("xlm-roberta", "mpnet"):
        tokenizer = _unigram() if architecture == "xlm-roberta" else _wordpiece()
        kinds = {"xlm-roberta": (XLMRobertaConfig, XLMRobertaModel), "mpnet": (MPNetConfig, MPNetModel)}
        config_type, model_type = kinds[architecture]
        padding = tokenizer.pad_token_id
        config = config_type(
            vocab_size=len(tokenizer), max_position_embeddings=66, pad_token_id=padding, **_SMALL
        )
        return model_type(config), tokenizer
    if architecture == "modernbert":
        tokenizer = _byte_level()
        ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        config = ModernBertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **ids, **_SMALL)
        return ModernBertModel(config), tokenizer
    tokenizer = _wordpiece()
    return BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **_SMALL)), tokenizer


def write_transformer(folder: Path, architecture: str) -> Path:
    """A folder without modules.json, as transformers writes it."""
    model, tokenizer = _model(architecture)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_encoder(
    folder: Path,
    architecture: str,
    *,
    pooling: str | tuple[str, ...] = "mean",
    normalize: bool = True,
    dense: int = 0,
    prompts: dict[str, str] | None = None,
    **settings: object,
) -> Path:
    """A folder as the library saves it; `settings` go into config_sentence_transformers.json."""
    parts = write_transformer(folder.parent / f"{folder.name}-parts", architecture)
    transformer = Transformer(str(parts), max_seq_length=MAX_TOKENS)
    modules: list[Any] = [transformer, Pooling(SIZE, pooling)]
    size = SIZE * (1 if isinstance(pooling, str) else len(pooling))
    if dense:
        modules.append(Dense(size, dense))
    if normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu", prompts=prompts).save(
        str(folder), create_model_card=False
    )
    change_json(folder / "config_sentence_transformers.json", **settings)
    return folder


def change_json(path: Path, **values: object) -> None:
    """Set keys of a JSON file."""
    found = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**found, **values}))
