"""The byte-level BPE of the family: its training, and conversations as token ids with a loss mask.

Digits are single tokens, so that a number looks the same wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from backend.pico.curriculum import Message, Mix, sample_conversations
from backend.pico.tasks.words import CITIES, FIRST_NAMES, JOBS, NOUNS, invented_word

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The last ones are reserved for later members of the family, so that all share one vocabulary.
SPECIAL_TOKENS = (
    END_OF_TEXT,
    TURN_START,
    TURN_END,
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|reserved|>",
)
TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")
VOCAB_SIZE = 1536
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(seed: int, conversations: int = 40_000) -> Tokenizer:
    """Train the vocabulary on text of the training split; the same seed gives the same vocabulary."""
    rng = Random(f"tokenizer:{seed}")
    texts = [
        message["content"]
        for messages in sample_conversations(rng, Mix(), conversations)
        for message in messages
        if message["role"] != "system"
    ]
    # Invented words teach syllables instead of spending the vocabulary on whole sentences only.
    texts += [" ".join(invented_word(rng) for _ in range(8)) for _ in range(conversations // 20)]
    # Roles, and listed words with and without a leading space, are worth one token each.
    for word in ("user", "assistant", "system", *NOUNS, *FIRST_NAMES, *CITIES, *JOBS):
        texts += [f"{word} {word}"] * (conversations // 100)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=20,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def render(messages: Iterable[Message], *, add_generation_prompt: bool = False) -> str:
    """The conversation as text; the same as the chat template, for plain string contents."""
    text = "".join(f"{TURN_START}{m['role']}\n{m['content']}{TURN_END}\n" for m in messages)
    return text + (f"{TURN_START}assistant\n" if add_generation_prompt else "")


def encode_training(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """Token ids, and for each whether the model must learn to predict it (answers and their end)."""
    ids: list[int] = []
    learnt: list[bool] = []
    for message in messages:
        is_answer = message["role"] == "assistant"
        head = tokenizer.encode(f"{TURN_START}{message['role']}\n").ids
        body = tokenizer.encode(f"{message['content']}{TURN_END}").ids
        tail = tokenizer.encode("\n").ids
        ids += head + body + tail
        learnt += [False] * len(head) + [is_answer] * len(body) + [False] * len(tail)
    return ids, learnt
