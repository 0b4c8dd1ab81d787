"""The engine: one step = plan → run (prepare, forward, sample) → commit. Token ids in, StepOutputs out.

One thread; not re-entrant. An error hits the request that has it (`attempts.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from backend.config import EngineConfig
from backend.engine.attempts import Attempts
from backend.engine.base import Runner, StepResult
from backend.engine.checks import check_request
from backend.engine.grammars import Grammars, advance_drafts
from backend.engine.report import RequestTrace, StepReport
from backend.errors import AdapterGone
from backend.kv.manager import KVManager
from backend.lora.store import AdapterStore
from backend.scheduler.config import SchedulerConfig
from backend.scheduler.scheduler import Scheduler
from backend.speculative.base import Drafter
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.speculator import Speculator
from backend.speculative.suffix import SuffixDrafter
from backend.structured.compiler import GrammarCompiler
from backend.types import (
    Draft,
    FinishReason,
    Plan,
    Request,
    ScheduledChunk,
    Sequence,
    StepOutput,
    TokenGrammar,
)

_ADAPTER_WAIT_S = 0.05


@dataclass(slots=True)
class _Active:
    """What the engine keeps of one unfinished request."""

    sequence: Sequence
    stop_ids: frozenset[int]
    last_token_s: float = -1.0
    trace: RequestTrace | None = None


class Engine:
    """Owns scheduler and KV pages, drives a runner. `step()` while `has_work`."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        clock: Callable[[], float] = time.monotonic,
        drafters: Iterable[Drafter] = (),
        adapters: AdapterStore | None = None,
        grammars: GrammarCompiler | None = None,
        work_clock: Callable[[], float] | None = None,
    ) -> None:
        """`drafters`: those that need a model, beside the built-in ones. `grammars`: None refuses them.

        `work_clock` tells what steps cost where drafts are weighed; `clock` unless given.
        """
        facts = runner.facts
        self._runner = runner
        self._attempts = Attempts(runner)
        self._clock = clock
        self._work_clock = work_clock or clock
        self._vocab_size = facts.vocab_size
        self._eos_token_ids = facts.eos_token_ids
        self.kv = KVManager(
            facts.num_pages,
            revision=facts.revision,
            kv_dtype=facts.kv_dtype,
            prefix_cache=config.prefix_cache,
        )
        limits = SchedulerConfig(
            max_model_tokens=facts.max_model_tokens,
            max_batch_tokens=max(config.max_batch_tokens, config.max_running),
            max_running=config.max_running,
            max_queue=config.max_queue,
        )
        self.adapters = adapters
        self.scheduler = Scheduler(limits, self.kv, clock, adapters.slots if adapters else None)
        builtin: list[Drafter] = [NgramDrafter(), SuffixDrafter(), PredictionDrafter()]
        self.speculator = Speculator(config.speculative, [*builtin, *drafters])
        self._grammars = Grammars(grammars)
        if grammars is not None:
            self.speculator.constraint = self._grammars
        self._active: dict[str, _Active] = {}
        self._num_traced = 0
        self._ended_traces: list[RequestTrace] = []
        self._last_report: StepReport | None = None

    @property
    def has_work(self) -> bool:
        """True while a request is unfinished."""
        return self.scheduler.has_work

    @property
    def last_report(self) -> StepReport | None:
        """Figures of the last step; None when it had nothing to compute."""
        return self._last_report

    def close(self) -> None:
        """End what was started beside the loop."""
        self._grammars.close()
        if self.adapters is not None:
            self.adapters.close()

    def add(self, request: Request) -> None:
        """Admit a request to the queue. Raises RequestError, PromptTooLong or QueueFull."""
        check_request(request, self._vocab_size)
        if request.adapter and (self.adapters is None or not self.adapters.knows(request.adapter)):
            raise AdapterGone(f"the adapter {request.adapter!r} is not loaded here; load it again", "model")
        self.speculator.check(request, self._vocab_size)
        params = request.params
        seed = secrets.randbits(63) if params.seed is None else params.seed
        prompt = request.prompt_token_ids
        sequence = Sequence(request, list(prompt), len(prompt), seed=seed)
        grammar = self._grammars.submit(request)
        self.scheduler.add(sequence)
        if grammar is not None:
            self._grammars.follow(sequence, grammar)
        self.speculator.add(sequence)
        if self.adapters is not None and request.adapter:
            self.adapters.hold(request.adapter, request.adapter_name)
        stops = frozenset(params.stop_token_ids)
        active = _Active(sequence, stops if params.ignore_eos else stops | self._eos_token_ids)
        if request.traceparent:
            active.trace = RequestTrace(
                request.traceparent, request.request_id, len(prompt), sequence.arrival_s
            )
            self._num_traced += 1
        self._active[request.request_id] = active

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its pages at once; False when it is not known (any more)."""
        sequence = self.scheduler.abort(request_id)
        if sequence is None:
            return False
        self._retire(self._active[request_id], "abort")
        return True

    def step(self) -> list[StepOutput]:
        """Compute one step. Raises what the runner raised when no request at all could be computed."""
        adapters = self.adapters
        if adapters is None or not adapters.is_busy:
            return self._step()
        outputs = [*self._settle_adapters(adapters), *self._step()]
        if self._last_report is None and not outputs:
            adapters.wait(_ADAPTER_WAIT_S)  # nobody can go on before files are read
        return outputs

    def _settle_adapters(self, adapters: AdapterStore) -> list[StepOutput]:
        """Take what was read; requests whose adapter can be read no more end."""
        outputs: list[StepOutput] = []
        for digest, message in adapters.poll().items():
            for active in list(self._active.values()):
                request = active.sequence.request
                if request.adapter == digest:  # none of them runs: no slot holds it
                    self.scheduler.abort(request.request_id)
                    self._retire(active, "error")
                    outputs.append(
                        StepOutput(
                            request_id=request.request_id,
                            finish_reason="error",
                            error=message,
                            error_param="model",
                        )
                    )
        return outputs

    def _propose(self) -> dict[Sequence, Draft]:
        scheduler, speculator = self.scheduler, self.speculator
        has_prompts = not speculator.is_asleep and scheduler.has_prompts
        return speculator.propose(
            scheduler.num_running, has_prompts=has_prompts, num_joining=scheduler.num_joining
        )

    def _step(self) -> list[StepOutput]:
        """Compute one step. Raises what the runner raised when no request at all could be computed."""
        started_s, work_started_s = self._clock(), self._work_clock()
        self._last_report = None
        hits_before = self.kv.prefix_hit_tokens_total
        outputs = self._settle_grammars() if self._grammars.has_pending else []
        speculator = self.speculator
        drafts = self._propose() if speculator.has_work else None
        plan = self.scheduler.schedule(drafts)
        for sequence in plan.preempted:
            self._runner.forget(sequence)
            speculator.forget(sequence)
        if not plan.chunks:
            if self._grammars.has_pending:
                self._grammars.pause()
            return outputs
        done, result = self._run(plan, outputs)
        now_s, work_s = self._clock(), self._work_clock() - work_started_s
        num_prompt_tokens = self._note_chunks(done, now_s)
        sampled = done.sampled
        accepted = self._append_accepted(sampled, result) if done.num_drafts else None
        self.scheduler.commit(done, now_s - started_s, accepted)
        if drafts is not None:
            speculator.measure(len(done.chunks), done.num_drafts, work_s, num_prompt_tokens=num_prompt_tokens)
        ttfts_s: list[float] = []
        gaps_s: list[float] = []
        verified: list[tuple[int, int]] = []
        for i, chunk in enumerate(sampled):
            active = self._active[chunk.sequence.request.request_id]
            if active.last_token_s < 0:
                ttfts_s.append(now_s - chunk.sequence.arrival_s)
            else:
                gaps_s.append(now_s - active.last_token_s)
            active.last_token_s = now_s
            is_predicted = bool(chunk.draft) and speculator.is_from_prediction(chunk.sequence)
            output = self._take(active, result, i)
            outputs.append(output)
            if chunk.draft:
                output.num_drafted, output.num_accepted = len(chunk.draft), len(result.accepted.get(i, ()))
                if is_predicted:
                    _mark_predicted(output)
                verified.append((chunk.draft_depth, output.num_accepted))
                gaps_s += [gaps_s.pop() / (1 + output.num_accepted)] * (1 + output.num_accepted)
        self._last_report = StepReport(
            duration_s=now_s - started_s,
            num_tokens=done.num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            num_generated_tokens=len(sampled) + sum(count for _, count in verified),
            num_prefix_hit_tokens=self.kv.prefix_hit_tokens_total - hits_before,
            num_preempted=len(plan.preempted),
            ttfts_s=ttfts_s,
            inter_token_s=np.array(gaps_s, dtype=np.float64),
            drafts=verified,
            grammars=self._grammars.report(result.mask_s),
        )
        return outputs

    def take_traces(self) -> list[RequestTrace]:
        """Traces of requests that ended since the last call."""
        traces, self._ended_traces = self._ended_traces, []
        return traces

    def _settle_grammars(self) -> list[StepOutput]:
        """Let go of sequences whose grammars are compiled; those whose are refused end."""
        outputs: list[StepOutput] = []
        for sequence, error in self._grammars.settle():
            request_id = sequence.request.request_id
            self.scheduler.abort(request_id)
            self._retire(self._active[request_id], "error")
            outputs.append(
                StepOutput(
                    request_id=request_id,
                    finish_reason="error",
                    error=str(error),
                    error_param=error.param or "",
                )
            )
        return outputs

    def _run(self, plan: Plan, outputs: list[StepOutput]) -> tuple[Plan, StepResult]:
        """Run the plan; requests that cannot be computed end with an error and leave it."""
        done, result, failed = self._attempts.run(plan)
        outputs += [self._fail(sequence, message) for sequence, message in failed.items()]
        return done, result

    def _append_accepted(
        self, sampled: list[ScheduledChunk], result: StepResult
    ) -> dict[Sequence, list[int]]:
        """Append what was accepted of each draft, up to a token that ends its sequence."""
        appended: dict[Sequence, list[int]] = {}
        for i, chunk in enumerate(sampled):
            if not chunk.draft:
                continue
            sequence = chunk.sequence
            active = self._active[sequence.request.request_id]
            tokens = result.accepted.get(i, [])
            end = next((n for n, token_id in enumerate(tokens) if token_id in active.stop_ids), None)
            if sequence.grammar is not None:
                over = advance_drafts(sequence.grammar, tokens[:end])
                if over is not None:
                    end = over
                    if i in result.logprobs:
                        result.logprobs[i] = result.logprobs[i][: end + 1]
            if end is not None:
                result.token_ids[i], result.accepted[i] = tokens[end], tokens[:end]
            appended[sequence] = tokens[:end]
            for token_id in tokens[:end]:
                self.scheduler.append_token(sequence, token_id)
            if active.trace is not None:
                active.trace.num_accepted_tokens += len(tokens[:end])
            self.speculator.observe(sequence, chunk.draft_depth, len(tokens[:end]))
        return appended

    def _take(self, active: _Active, result: StepResult, i: int) -> StepOutput:
        """Append the i-th drawn token to its sequence, or end it; accepted drafts are there already."""
        sequence, token_id = active.sequence, result.token_ids[i]
        output = StepOutput(
            request_id=sequence.request.request_id, num_cached_tokens=sequence.num_cached_tokens
        )
        if sequence.grammar is not None and sequence.grammar.error:
            return self._fail_grammar(active, sequence.grammar, output)
        if result.prompt_logprobs:
            output.prompt_logprobs = result.prompt_logprobs.get(i)
        if result.accepted:
            output.token_ids = result.accepted.get(i, [])
        records = result.logprobs.get(i) if result.logprobs else None
        if token_id in active.stop_ids:
            if records is not None and output.token_ids:
                output.logprobs = records[: len(output.token_ids)]
            output.stop_token_id = token_id
            self._finish(active, output, "stop")
            return output
        output.token_ids = [*output.token_ids, token_id]
        output.logprobs = records
        self.scheduler.append_token(sequence, token_id)
        if sequence.grammar is not None:
            sequence.grammar.advance(token_id)
            if sequence.grammar.error:
                return self._fail_grammar(active, sequence.grammar, output)
            if sequence.grammar.is_over:
                self._finish(active, output, "stop")
                return output
        if sequence.num_output_tokens >= sequence.request.params.max_tokens:
            self._finish(active, output, "length")
        return output

    def _finish(self, active: _Active, output: StepOutput, reason: FinishReason) -> None:
        output.finish_reason = reason
        self.scheduler.finish(active.sequence, reason)
        self._retire(active, reason)

    def _fail(self, sequence: Sequence, message: str) -> StepOutput:
        request_id = sequence.request.request_id
        output = StepOutput(request_id=request_id, error=message)
        self._finish(self._active[request_id], output, "error")
        return output

    def _fail_grammar(self, active: _Active, grammar: TokenGrammar, output: StepOutput) -> StepOutput:
        """End a sequence whose grammar cannot be followed any further, without what it has just drawn."""
        spec = active.sequence.request.grammar
        output.token_ids, output.logprobs = [], None
        output.error, output.error_param = grammar.error, spec.param if spec is not None else ""
        self._finish(active, output, "error")
        return output

    def _retire(self, active: _Active, reason: FinishReason) -> None:
        """The scheduler has let go of it; so does everybody else."""
        sequence = active.sequence
        del self._active[sequence.request.request_id]
        self._runner.forget(sequence)
        self.speculator.forget(sequence)
        if self.adapters is not None and sequence.request.adapter:
            self.adapters.release(sequence.request.adapter)
        self._grammars.forget(sequence)
        trace = active.trace
        if trace is not None:
            self._num_traced -= 1
            trace.scheduled_s = sequence.scheduled_s
            trace.first_token_s = active.sequence.first_token_s
            trace.finished_s = self._clock()
            trace.finish_reason = reason
            trace.num_cached_tokens = sequence.num_cached_tokens
            trace.num_preemptions = sequence.num_preemptions
            trace.num_output_tokens = sequence.num_output_tokens
            self._ended_traces.append(trace)

    def _note_chunks(self, plan: Plan, now_s: float) -> int:
        """Note chunks of traced requests. Returns how many prompt tokens the step computed."""
        num_prompt_tokens = 0
        for chunk in plan.chunks:
            num_left = chunk.sequence.num_prompt_tokens - chunk.start
            if num_left > 0:
                num_prompt_tokens += min(chunk.num_tokens, num_left)
        if self._num_traced:
            for chunk in plan.chunks:
                trace = self._active[chunk.sequence.request.request_id].trace
                if trace is None:
                    continue
                if chunk.num_tokens - len(chunk.draft) == 1 and chunk.sequence.num_output_tokens:
                    trace.num_decode_steps += 1
                    trace.num_drafts += bool(chunk.draft)
                    trace.num_drafted_tokens += len(chunk.draft)
                else:
                    trace.chunks.append((now_s, chunk.start, chunk.num_tokens))
        return num_prompt_tokens


def _mark_predicted(output: StepOutput) -> None:
    """The drafts were pieces of the request's prediction."""
    output.num_predicted, output.num_predicted_accepted = output.num_drafted, output.num_accepted
