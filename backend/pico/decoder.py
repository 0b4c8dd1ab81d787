"""Greedy decoding of a stored model by the engine, in process and without a server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.models.loaded import load_model
from backend.pico.conversations import Conversation
from backend.pico.tokenizer import THOUGHT_END, TURN_END, render
from backend.types import PAGE_TOKENS, Request, SamplingParams

LOG = logging.getLogger("backend.pico.decoder")
ROWS = 64
CONTEXT_TOKENS = 1024  # question, reasoning and answer; the longest has about 600
MAX_NEW_TOKENS = {False: 96, True: 400}  # by whether it reasons
LOG_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated turn: its text with all special tokens but the end of turn."""

    text: str
    token_ids: list[int]
    is_complete: bool  # False: cut off at the token limit
    lowest_logprob: float = field(default=0.0, compare=False)  # of its tokens


class Decoder:
    """A checkpoint in an in-process engine, computing in fp32 on the CPU."""

    def __init__(self, folder: Path, *, threads: int = 1, rows: int = ROWS) -> None:
        self.folder = folder
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._config = EngineConfig(
            model=folder.name,
            checkpoint=str(folder.resolve()),
            device="cpu",
            dtype="float32",  # reproducible across machines
            max_model_tokens=CONTEXT_TOKENS,
            num_pages=rows * CONTEXT_TOKENS // (2 * PAGE_TOKENS),
            max_running=rows,
            max_queue=1_000_000,
            num_threads=threads,
            prefix_cache=False,
        )
        model = load_model(self._config)
        facts = runner_facts(self._config, model)
        self._runner = ModelRunner(model, model.new_kv_storage(facts.num_pages), facts, rows)

    def complete(self, prompts: Sequence[str], max_tokens: int) -> list[Completion]:
        """Return greedy continuations of rendered prompts, in order."""
        engine = Engine(self._config, self._runner)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, logprobs=0)
        for index, prompt in enumerate(prompts):
            ids = self.tokenizer.encode(prompt).ids
            engine.add(Request(request_id=str(index), prompt_token_ids=ids, params=params))
        found: list[list[int]] = [[] for _ in prompts]
        lowest = [0.0] * len(prompts)
        reasons: dict[int, str] = {}
        while engine.has_work:
            for output in engine.step():
                if output.error:
                    raise RuntimeError(f"{self.folder}: prompt {output.request_id}: {output.error}")
                index = int(output.request_id)
                found[index] += output.token_ids
                lowest[index] = min([lowest[index], *(each.logprob for each in output.logprobs or ())])
                if output.finish_reason is not None:
                    reasons[index] = output.finish_reason
                    if len(reasons) % LOG_EVERY == 0:
                        LOG.info("%d of %d answered", len(reasons), len(prompts))
        return [
            Completion(
                self.tokenizer.decode(ids, skip_special_tokens=False),
                ids,
                reasons[index] == "stop",
                lowest[index],
            )
            for index, ids in enumerate(found)
        ]

    def answer(self, asked: Sequence[Conversation], *, thinking: bool) -> list[Completion]:
        """Generate a replacement for the last message of each conversation."""
        prompts = [prompt_of(found, thinking=thinking) for found in asked]
        return self.complete(prompts, MAX_NEW_TOKENS[thinking])


def prompt_of(conversation: Conversation, *, thinking: bool) -> str:
    """Render everything before the last message as a prompt."""
    messages, tools = conversation["messages"][:-1], conversation["tools"]
    return render(messages, tools, add_generation_prompt=True, enable_thinking=thinking)


def answer_in(text: str, *, thinking: bool) -> str:
    """Return the answer in a decoded turn: the text after the reasoning, or "" if that does not end."""
    turn = text.split(TURN_END, 1)[0]
    if thinking:
        turn = turn.partition(THOUGHT_END)[2]
    return turn.strip()
