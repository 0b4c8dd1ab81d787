"""Whether a question can be understood without the turns before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.classifiers.linear import WEIGHTS, load_head
from cache.verify.words import Sentence, read

Array = NDArray[np.float32]

MAX_TURNS = 8
"""Turns of the history that are compared, the latest."""

_PRONOUNS = frozenset(
    "it its they them their theirs he him his she her hers itself themselves himself herself".split()
)
_POINTERS = frozenset(
    "this that these those there such one ones latter former same other others another both".split()
)
_CONTINUES = frozenset(
    "and so but also or then ok okay oh yes no well besides interesting thanks great wow".split()
)
_COMMON = frozenset(
    """a an the is are was were be been am do does did have has had can could will would should may might
    must of in on at by for from to with about as into over after before between and or not no what
    which who whom whose when where why how many much i you we me my your our us it they he she this
    that these those there tell describe explain give show know like want need get make use used more
    most some any other find learn good best difference main types type kind""".split()
)
_WH_ONLY = re.compile(
    r"^(why|how|when|where|who|which|what|really|how so|why not)( (one|ones|is that|not|so|else))?\s*[?.!]*$"
)
_WHAT_ABOUT = re.compile(
    r"\b((what|how) about|tell me more|what else|anything else|more about|go on|any other)\b"
)
_BARE_THE = re.compile(
    r"\bthe ([a-z]+)s?\b(?! (of|in|for|on|to|from|between|that|who|which|about|at|with)\b)"
)
_OPEN_END = re.compile(r"\b(of|in|for|on|to|from|with|about|like|by)\s*[?.!]*$")


def markers(text: str, history: Sequence[str]) -> list[float]:
    """Signs of a missing antecedent, and what the question shares with the turns before."""
    sentence = read(text)
    words, lower = sentence.words, text.lower().strip()
    content = {word for word in sentence.stems.values() if word not in _COMMON}
    turns = [read(turn) for turn in history[-MAX_TURNS:]]
    return [
        float(any(word in _PRONOUNS for word in words)),
        float(any(word in _POINTERS for word in words)),
        float("it" in words or "they" in words or "its" in words or "their" in words),
        float(bool(words) and words[0] in _CONTINUES),
        float(bool(_WHAT_ABOUT.search(lower))),
        float(bool(_WH_ONLY.match(lower))),
        float(bool(_OPEN_END.search(lower))),
        float(len(_BARE_THE.findall(lower))),
        1.0 / max(1, len(content)),
        float(len(content) <= 1),
        float(len(content) == 2),
        min(len(content), 8) / 8,
        min(len(words), 20) / 20,
        float(bool(sentence.names)),
        float(any(char.isdigit() for char in lower)),
        float(not turns),
        *_shared(sentence, content, turns),
    ]


def _shared(sentence: Sentence, content: set[str], turns: Sequence[Sentence]) -> list[float]:
    """Shares of content words that the first, the last and all turns have; names repeated; missing."""
    if not turns:
        return [0.0, 0.0, 0.0, 0.0, 0.0]
    stems = {key for key, word in sentence.stems.items() if word in content}
    share = [len(stems & turn.stems.keys()) / max(1, len(stems)) for turn in turns]
    everything = set().union(*(turn.stems for turn in turns))
    names = frozenset().union(*(turn.names for turn in turns))
    return [
        share[0],
        share[-1],
        len(stems & everything) / max(1, len(stems)),
        float(bool(sentence.names & names)),
        float(bool(names) and names.isdisjoint(sentence.words)),
    ]


def needs_context(text: str, vector: Array, history: Sequence[str], weights: Path | None = WEIGHTS) -> float:
    """P(not understandable without the earlier turns); `history` has the earlier user turns, oldest first.

    The first turn of a conversation needs none. `weights`: None where none are of the vector's encoder: every
    later turn may need them then.
    """
    if not history:
        return 0.0
    if weights is None:
        return 1.0
    return load_head("followup", weights).probability(markers(text, history), vector)
