"""The family's byte-level BPE: its training, and conversations as token ids with a loss mask.

Every digit is a token of its own, so that a number is tokenized the same way everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from backend.pico.conversations import Message
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.tasks.words import CITIES, FIRST_NAMES, JOBS, NOUNS, invented_word

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
# The last ones are reserved for future models of the family, since all share one vocabulary.
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
THOUGHT_START, THOUGHT_END = "<think>\n", "</think>"
_ROLES = ("user", "assistant", "tool")  # any other becomes "system"
TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")
_THOUGHT_IN_TEMPLATE = re.compile(r"\{#- thought -#\}.*?\{#- end of thought -#\}\n", re.DOTALL)
VOCAB_SIZE = 1536
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(seed: int, conversations: int = 40_000) -> Tokenizer:
    """Train the vocabulary on the training split, deterministic in the seed."""
    rng = Random(f"tokenizer:{seed}")
    texts = [
        message["content"]
        for conversation in sample_conversations(rng, Mix(EMPHASIS["pico-small"]), conversations)
        for message in conversation["messages"]
        if message["role"] != "system" and message["content"]
    ]
    # Invented words, so that the vocabulary learns syllables and not only whole words.
    texts += [" ".join(invented_word(rng) for _ in range(8)) for _ in range(conversations // 20)]
    # Roles, and listed words with and without a leading space, get a token each.
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


def chat_template(*, thinks: bool) -> str:
    """Return the Jinja source; without the reasoning tags and switch for models not trained to reason."""
    source = TEMPLATE_PATH.read_text(encoding="utf-8")
    return source if thinks else _THOUGHT_IN_TEMPLATE.sub("", source)


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a special token."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = False,
    enable_thinking: bool = False,
) -> str:
    """Render a conversation exactly as the chat template does, for messages with string content."""
    text = "".join(piece for piece, _ in _pieces(messages, tools, past=add_generation_prompt))
    if add_generation_prompt:
        text += f"{TURN_START}assistant\n" + (THOUGHT_START if enable_thinking else "")
    return text


def encode_training(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
) -> tuple[list[int], list[bool]]:
    """Return token ids and the loss mask.

    The loss counts the answers with their end of turn, and the last answer's reasoning if it has
    `reasoning_content`.
    """
    pieces = _pieces(messages, tools, past=False)
    encoding = tokenizer.encode("".join(piece for piece, _ in pieces))
    by_character = [is_learnt for piece, is_learnt in pieces for _ in piece]
    return encoding.ids, [by_character[start] for start, _ in encoding.offsets]


def _pieces(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, past: bool
) -> list[tuple[str, bool]]:
    """Return pieces of the rendered conversation with their loss mask; `past` omits the last reasoning."""
    listed = "\n".join(["Tools:", *map(_tool_line, tools)]) if tools else ""
    pieces: list[tuple[str, bool]] = []
    if listed and messages[0]["role"] in _ROLES:
        pieces.append((f"{TURN_START}system\n{listed}{TURN_END}\n", False))
    for index, message in enumerate(messages):
        role = message["role"] if message["role"] in _ROLES else "system"
        if role == "assistant":
            pieces += _answer(message, is_last=index == len(messages) - 1 and not past)
            continue
        text = message["content"] or ""
        if listed and index == 0 and role == "system":
            text += ("\n\n" if text else "") + listed
        pieces.append((f"{TURN_START}{role}\n{text}{TURN_END}\n", False))
    return pieces


def _answer(message: Message, *, is_last: bool) -> list[tuple[str, bool]]:
    head, text = f"{TURN_START}assistant\n", message.get("content") or ""
    thought = message.get("reasoning_content") if is_last else None
    if not is_last and THOUGHT_END in text:
        text = text.rsplit(THOUGHT_END, 1)[1].lstrip("\n")
    calls = "\n".join(map(_call_text, message.get("tool_calls") or ()))
    text += ("\n" if text and calls else "") + calls
    if thought is not None:
        head += THOUGHT_START
        text = thought + ("\n" if thought else "") + f"{THOUGHT_END}\n\n{text}"
    return [(head, False), (f"{text}{TURN_END}", True), ("\n", False)]


def _tool_line(tool: Mapping[str, Any]) -> str:
    function = tool.get("function", tool)
    properties = (function.get("parameters") or {}).get("properties") or {}
    kinds = {name: schema.get("type") for name, schema in properties.items()}
    listed = [f"{name}: {kind if isinstance(kind, str) else 'any'}" for name, kind in kinds.items()]
    return f"{function['name']}({', '.join(listed)}): {function.get('description') or ''}"


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
