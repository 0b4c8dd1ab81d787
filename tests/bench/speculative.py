"""Tokens per second with each way of drafting against none: one model, this process, a few steps in turn.

So other work on the machine hits all alike.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backend.config import EngineConfig, SpeculativeConfig
from backend.engine.capacity import runner_facts
from backend.engine.engine import Engine
from backend.engine.runner import ModelRunner
from backend.models.loaded import LoadedModel, load_model
from backend.pico.curriculum import EMPHASIS, Mix, sample_conversations
from backend.speculative.draft_length import step_clock
from backend.speculative.loading import load_drafters
from backend.speculative.weights_check import DRAFT_MODEL, MODEL_DRAFTERS, default_folder
from backend.tokenizer import Tokenizer
from backend.types import Request, SamplingParams
from gateway.checkpoints import checkpoint_folder
from tests.bench import report
from tests.bench.stopwatch import Seconds, Stopwatch, median_and_quartiles

PLAIN = "none"
WITHOUT_WEIGHTS = (PLAIN, "ngram", "suffix", "prediction right", "prediction edited", "prediction wrong")
WAYS = (*WITHOUT_WEIGHTS, *MODEL_DRAFTERS)

_TURN_STEPS = 10


@dataclass
class Tally:
    """What one way of drafting gave at one number of streams, by round."""

    tokens_per_s: list[float] = field(default_factory=list)
    tokens_per_processor_s: list[float] = field(default_factory=list)
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


def _ways(text: str) -> list[str]:
    found = text.split(",")
    if unknown := [way for way in found if way not in WAYS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; choose from {', '.join(WAYS)}")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `python -m tests.bench speculative`."""
    parser.add_argument("--checkpoint", default="builtin:pico-small", help="builtin:NAME or a folder")
    parser.add_argument("--member", default="pico-small", help="whose mix of test questions is asked")
    parser.add_argument("--ways", default=",".join(WITHOUT_WEIGHTS), type=_ways, help="comma-separated")
    parser.add_argument("--draft-model", default="builtin:pico-draft", help="builtin:NAME or a folder")
    parser.add_argument("--tree-nodes", type=int, default=0, help="of heads that know several ways on")
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--requests", type=int, default=48, help="per round, at least as many as streams")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--drafted", type=int, default=8, help="most tokens drafted per step")
    parser.add_argument(
        "--engines", type=int, default=3, help="of each way, in turn: where memory lies makes 10 %% and more"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of each engine, after one that warms up")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action="store_true", help="always --max-tokens tokens")
    parser.add_argument(
        "--fixed", action="store_true", help="draft always as many, whatever measurements say"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    folder = str(checkpoint_folder(arguments.checkpoint))
    model = load_model(EngineConfig(model="bench", checkpoint=folder))
    requests = list(_requests(Tokenizer.from_checkpoint(folder), arguments))
    plain = new_engine(model, folder, PLAIN, arguments, 16)
    answers = _answers(plain, requests)
    rows: list[report.Row] = []
    for streams in map(int, arguments.streams.split(",")):
        ways = arguments.ways
        tallies = {way: Tally() for way in ways}
        asked = {way: _with_prediction(way, requests, answers) for way in ways}
        for _ in range(arguments.engines):
            engines = {way: new_engine(model, folder, way, arguments, streams) for way in ways}
            for round_ in range(arguments.rounds + 1):
                # The first round only warms up: tries, measures and fills what a drafter remembers.
                tallied = tallies if round_ else {way: Tally() for way in ways}
                measure([Run(engines[way], asked[way], streams, tallied[way]) for way in ways])
        rows += _rows(streams, tallies)
    what = f"{arguments.checkpoint} · {len(requests)} requests, temperature {arguments.temperature:g}"
    rounds = f"median of {arguments.rounds} rounds of {arguments.engines} engines"
    report.show(f"speculative · {what}, {rounds}", rows, arguments.json)


def new_engine(
    model: LoadedModel, folder: str, way: str, arguments: argparse.Namespace, streams: int
) -> Engine:
    """An engine without prefix cache, so that every round does the same work."""
    drafter = PLAIN if way.startswith("prediction") else way
    config = EngineConfig(
        model="bench",
        checkpoint=folder,
        max_running=streams,
        prefix_cache=False,
        speculative=SpeculativeConfig(
            drafter=drafter,
            max_tokens=arguments.drafted,
            tree_nodes=arguments.tree_nodes,
            adaptive=not arguments.fixed,
            folders=_folders(way, folder, arguments),
        ),
    )
    loaded = load_drafters(config, model)
    facts = runner_facts(config, model, loaded.page_bytes)
    storage = model.new_kv_storage(facts.num_pages)
    runner = ModelRunner(model, storage, facts, config.max_running)
    opened = loaded.open(storage)
    runner.observers += opened.observers
    return Engine(config, runner, drafters=opened.drafters, work_clock=step_clock(model.device))


def _folders(way: str, checkpoint: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Where the weights of this way's drafter lie."""
    if way not in MODEL_DRAFTERS:
        return {}
    if way == DRAFT_MODEL:
        return {way: str(checkpoint_folder(arguments.draft_model))}
    return {way: str(default_folder(way, Path(checkpoint)))}


class Run:
    """All requests in one engine, `streams` at a time."""

    def __init__(self, engine: Engine, requests: list[Request], streams: int, tally: Tally) -> None:
        self._engine, self._streams, self._tally = engine, streams, tally
        self._waiting = list(reversed(requests))
        self._num_running = self._num_tokens = 0
        self._spent = Seconds(0.0, 0.0)

    def turn(self) -> bool:
        """Some steps; whether there is more to do. At the end the tally is complete."""
        stopwatch = Stopwatch()
        for _ in range(_TURN_STEPS):
            while self._waiting and self._num_running < self._streams:
                self._engine.add(self._waiting.pop())
                self._num_running += 1
            if not self._engine.has_work:
                break
            self._step()
        seconds = stopwatch.read()
        self._spent = Seconds(self._spent.wall + seconds.wall, self._spent.processor + seconds.processor)
        if self._waiting or self._engine.has_work:
            return True
        self._tally.tokens_per_s.append(self._num_tokens / self._spent.wall)
        self._tally.tokens_per_processor_s.append(self._num_tokens / self._spent.processor)
        return False

    def _step(self) -> None:
        for output in self._engine.step():
            self._num_tokens += len(output.token_ids)
            self._tally.drafts += output.num_drafted > 0
            self._tally.drafted += output.num_drafted
            self._tally.accepted += output.num_accepted
            self._num_running -= output.finish_reason is not None


def measure(runs: list[Run]) -> None:
    """All of them, a few steps in turn, now this way round and now that."""
    while runs:
        runs = [run for run in runs if run.turn()]
        runs.reverse()


def _requests(tokenizer: Tokenizer, arguments: argparse.Namespace) -> Iterator[Request]:
    params = SamplingParams(
        max_tokens=arguments.max_tokens, temperature=arguments.temperature, ignore_eos=arguments.ignore_eos
    )
    rng = random.Random("speculative")
    found = sample_conversations(rng, Mix(EMPHASIS[arguments.member]), arguments.requests, "test")
    for number, conversation in enumerate(found):
        messages = [dict(message) for message in conversation["messages"][:-1]]
        yield Request(
            request_id=str(number),
            prompt_token_ids=tokenizer.encode_chat(
                messages,
                tools=conversation["tools"],
                enable_thinking="reasoning_content" in conversation["messages"][-1],
            ),
            params=msgspec.structs.replace(params, seed=number),
        )


def _answers(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            answers[output.request_id] += output.token_ids
    return answers


def _with_prediction(way: str, requests: list[Request], answers: dict[str, list[int]]) -> list[Request]:
    """The requests with their own answers, without every tenth token of them, or with another sequence's."""
    if not way.startswith("prediction"):
        return requests
    rng = random.Random(way)
    predicted: list[Request] = []
    for request in requests:
        tokens = list(answers[request.request_id])
        if way == "prediction edited":
            tokens = [token for i, token in enumerate(tokens) if i % 10 != 9]
        elif way == "prediction wrong":
            vocabulary = [token for answer in answers.values() for token in answer]
            tokens = rng.choices(vocabulary, k=len(tokens))
        predicted.append(msgspec.structs.replace(request, prediction_token_ids=tokens))
    return predicted


def _rows(streams: int, tallies: dict[str, Tally]) -> Iterator[report.Row]:
    for way, tally in tallies.items():
        base = tallies.get(PLAIN, tally)
        yield {
            "streams": streams,
            "drafter": way,
            "tok/s": statistics.median(tally.tokens_per_s),
            "speed-up": _quotients(tally.tokens_per_s, base.tokens_per_s),
            "in processor time": _quotients(tally.tokens_per_processor_s, base.tokens_per_processor_s),
            "accepted": tally.accepted / tally.drafted if tally.drafted else None,
            "accepted length": 1 + tally.accepted / tally.drafts if tally.drafts else None,
        }


def _quotients(mine: list[float], plain: list[float]) -> str:
    """Rounds are neighbours in time: their quotients are steadier than the quotient of medians."""
    return median_and_quartiles([a / b for a, b in zip(mine, plain, strict=True)])
