"""The embedded model in an engine with grammars, and requests for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from backend.config import EngineConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.models.loaded import load_model
from backend.speculative.drafter import Drafter
from backend.structured.compiler import GrammarCompiler
from backend.tokenizer import Tokenizer
from backend.types import GrammarSpec, Request, SamplingParams, StepOutput

PICO = Path(__file__).parents[3] / "backend/pico/weights/pico-small"


class Pico:
    """One set of weights and one compiler, shared by any number of engines."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_checkpoint(PICO)
        self._config = self._configure()
        self._model = load_model(self._config)
        facts = runner_facts(self._config, self._model)
        self.vocab_size = facts.vocab_size
        self.compiler = GrammarCompiler(PICO, facts.vocab_size, facts.eos_token_ids)

    def engine(
        self,
        *,
        max_running: int = 32,
        num_pages: int = 1024,
        compiler: GrammarCompiler | Literal["own"] | None = "own",
        drafters: Iterable[Drafter] = (),
        **changes: object,
    ) -> Engine:
        config = self._configure(max_running=max_running, num_pages=num_pages, **changes)
        facts = runner_facts(config, self._model)
        runner = ModelRunner(self._model, self._model.new_kv_storage(num_pages), facts, max_running)
        grammars = self.compiler if compiler == "own" else compiler
        return Engine(config, runner, drafters=drafters, grammars=grammars)

    def request(self, name: str, question: str, grammar: GrammarSpec | None, **params: object) -> Request:
        prompt = self.tokenizer.encode_chat([{"role": "user", "content": question}])
        values: dict[str, object] = {"max_tokens": 200, "temperature": 0.0} | params
        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            params=SamplingParams(**values),  # type: ignore[arg-type]
            grammar=grammar,
        )

    def text(self, outputs: list[StepOutput]) -> str:
        return self.tokenizer.decode([token for output in outputs for token in output.token_ids])

    @staticmethod
    def _configure(**changes: object) -> EngineConfig:
        values: dict[str, object] = {"model": "pico", "checkpoint": str(PICO), "device": "cpu"} | changes
        return EngineConfig(**values)  # type: ignore[arg-type]
