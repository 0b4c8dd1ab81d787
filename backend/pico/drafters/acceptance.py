"""How many drafted tokens the target accepts: `python -m backend.pico.drafters.acceptance --target DIR`.

The target answers prompts of the test split greedily, once. Rounds then run along each answer: a round
drafts up to K tokens, the longest right start of them is accepted, and the target adds one token of its
own. No decoding is needed for that: a draft is only looked at where all before it were right.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from backend.pico.batches import CPU, Limits, group_by_length, make_batch
from backend.pico.conversations import Conversation
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.pico.decoder import Decoder
from backend.pico.drafters.drafter import Drafter, ahead
from backend.pico.drafters.store import DRAFTERS, load_drafter
from backend.pico.drafters.target import Target, load_target
from backend.pico.drafters.train import MEMBER, drafter_folder
from backend.pico.tokenizer import TURN_END, render, special_id

GROUPS = ("all", "direct", "thinking")
CHAIN, TREE = "chain", "top-2 tree"  # the tree holds every path of first and second candidates


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt and the target's greedy answer to it."""

    ids: list[int]
    written: list[bool]  # by the target
    thinking: bool


@dataclass(slots=True)
class Tally:
    """Counts over rounds; position i (from 0) is the i-th drafted token."""

    rounds: int = 0
    reached: list[int] = field(default_factory=list)  # rounds whose answer has a token there
    tried: list[int] = field(default_factory=list)  # of those, all drafts before it were right
    accepted: list[int] = field(default_factory=list)

    def add(self, right: Sequence[bool]) -> int:
        """Count a round; `right` ends where the answer does. Returns how many drafts are accepted."""
        self.rounds += 1
        while len(self.reached) < len(right):
            for counts in (self.reached, self.tried, self.accepted):
                counts.append(0)
        taken = 0
        for position, is_right in enumerate(right):
            self.reached[position] += 1
            if taken == position:
                self.tried[position] += 1
                self.accepted[position] += is_right
                taken += is_right
        return taken

    @property
    def mean_accepted_length(self) -> float:
        """1 + accepted drafts / rounds: tokens per step of the target."""
        return 1 + sum(self.accepted) / max(1, self.rounds)

    @property
    def conditional(self) -> list[float]:
        """Per position: accepted, of the rounds where all drafts before it were."""
        return _shares(self.accepted, self.tried)

    @property
    def cumulative(self) -> list[float]:
        """Per position: accepted, of the rounds whose answer reaches it."""
        return _shares(self.accepted, self.reached)

    def summary(self) -> dict[str, object]:
        """For JSON."""
        return {
            "rounds": self.rounds,
            "mean_accepted_length": self.mean_accepted_length,
            "conditional": self.conditional,
            "cumulative": self.cumulative,
        }


def _shares(parts: Sequence[int], wholes: Sequence[int]) -> list[float]:
    return [part / max(1, whole) for part, whole in zip(parts, wholes, strict=True)]


Tallies = dict[str, dict[str, dict[str, Tally]]]  # by drafter, group and mode


def greedy_answers(decoder: Decoder, conversations: Sequence[Conversation]) -> list[Answered]:
    """The target's own answers instead of the given ones; direct questions come first."""
    end = special_id(decoder.tokenizer, TURN_END)
    answered = []
    for thinking in (False, True):
        asked = [found for found in conversations if is_thinking(found) == thinking]
        for conversation, completion in zip(asked, decoder.answer(asked, thinking=thinking), strict=True):
            text = render(
                conversation["messages"][:-1],
                conversation["tools"],
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            prompt: list[int] = decoder.tokenizer.encode(text).ids
            answer = completion.token_ids + ([end] if completion.is_complete else [])
            written = [False] * len(prompt) + [True] * len(answer)
            answered.append(Answered(prompt + answer, written, thinking))
    return answered


def is_thinking(conversation: Conversation) -> bool:
    """Whether the last answer is thought about."""
    return "reasoning_content" in conversation["messages"][-1]


def follow(tally: Tally, right: Tensor, answered: Answered) -> None:
    """Run the rounds along one answer: right [length, K], by start, whether each draft is."""
    start, last = answered.written.index(True) - 1, len(answered.ids) - 1
    # Token start + 1 is the target's own; drafts stand for the tokens from start + 2 to the last.
    while start + 1 < last:
        start += 1 + tally.add(right[start, : last - start - 1].tolist())


def measure(target: Target, drafters: Mapping[str, Drafter], answered: Sequence[Answered]) -> Tallies:
    """Tallies by drafter, group and mode."""
    tallies = {name: {group: {CHAIN: Tally(), TREE: Tally()} for group in GROUPS} for name in drafters}
    encoded = [(found.ids, found.written) for found in answered]
    for indices in group_by_length(encoded, Limits.on(CPU)):
        view = target.observe(make_batch(encoded, indices))
        for name, drafter in drafters.items():
            best = drafter.drafts(target, view)
            actual = [ahead(view.ids, 1 + step) for step in range(1, best.shape[2] + 1)]
            hits = best == torch.stack(actual, dim=2).unsqueeze(-1)
            for row, index in enumerate(indices):
                found = answered[index]
                for group in ("all", "thinking" if found.thinking else "direct"):
                    follow(tallies[name][group][CHAIN], hits[row, ..., 0], found)
                    follow(tallies[name][group][TREE], hits[row].any(-1), found)
    return tallies


def table(tallies: Tallies) -> str:
    """As Markdown: percent accepted, given that all before were / of all rounds; and the mean length."""
    length = max(len(tally.tried) for groups in tallies.values() for tally in groups["all"].values())
    heads = ["drafter", "mode", "answers", *(f"token {i + 1}" for i in range(length)), "mean accepted length"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for name, groups in tallies.items():
        for mode in (CHAIN, TREE):
            for group, modes in groups.items():
                cells = _cells(modes[mode], length)
                lines.append("| " + " | ".join([name, mode, group, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cells(tally: Tally, length: int) -> list[str]:
    pairs = zip(tally.conditional, tally.cumulative, strict=True)
    cells = [f"{100 * given:.1f} / {100 * total:.1f}" for given, total in pairs]
    return cells + [""] * (length - len(cells)) + [f"{tally.mean_accepted_length:.2f}"]


def summaries(tallies: Tallies) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    """The same for JSON."""
    return {
        name: {
            group: {mode: tally.summary() for mode, tally in modes.items()} for group, modes in groups.items()
        }
        for name, groups in tallies.items()
    }


def main() -> None:
    """Read the options, measure every drafter that is there, write the table to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="the target in Hugging Face's layout")
    parser.add_argument("--count", type=int, default=400, help="conversations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the counts and shares here")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    target = load_target(options.target)
    folders = {name: drafter_folder(options.target, name) for name in DRAFTERS}
    drafters = {name: load_drafter(folder) for name, folder in folders.items() if folder.exists()}
    rng = Random(f"acceptance:{options.seed}")
    conversations = sample_conversations(rng, Mix(EMPHASIS[MEMBER]), options.count, "test")
    answered = greedy_answers(Decoder(options.target), conversations)
    tallies = measure(target, drafters, answered)
    if options.json:
        options.json.write_text(json.dumps(summaries(tallies), indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(tallies))


if __name__ == "__main__":
    main()
