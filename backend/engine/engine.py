"""The engine: one step = plan → run (prepare, forward, sample) → commit → report. Token ids in and out.

Where the runner `is_ahead` a step is planned and launched while the device computes the one before, which is
then read and committed: plan N + 1, launch N + 1, read N, commit N, draw N + 1. So grammars and penalties
stay on the host and exact. Steps with drafts need the tokens before them, and are run as on a CPU.

One thread; not re-entrant. An error ends only the request that causes it (`step_recovery.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from backend.config import EngineConfig
from backend.engine.checks import check_request
from backend.engine.flight import Flight, live
from backend.engine.grammars import Grammars
from backend.engine.machine_time import MachineTime
from backend.engine.outputs import ActiveRequest, build_output, cut_accepted
from backend.engine.runner_protocol import Runner, StepResult
from backend.engine.step_accountant import StepAccountant
from backend.engine.step_recovery import StepRecovery
from backend.engine.step_report import StepReport
from backend.errors import AdapterGone, TryAgain
from backend.kv.checkpoints import CheckpointPool
from backend.kv.manager import KVManager
from backend.kv.windows import WindowPages
from backend.lora.store import AdapterStore
from backend.scheduler.config import SchedulerConfig
from backend.scheduler.scheduler import Scheduler
from backend.speculative.drafter import Drafter
from backend.speculative.ngram import NgramDrafter
from backend.speculative.prediction import PredictionDrafter
from backend.speculative.speculator import PREDICTION, Speculator
from backend.speculative.suffix import SuffixDrafter
from backend.types import (
    Draft,
    FinishReason,
    Plan,
    Request,
    RequestTrace,
    ScheduledChunk,
    Sequence,
    StepOutput,
)

if TYPE_CHECKING:
    from backend.structured.compiler import GrammarCompiler

_ADAPTER_WAIT_S = 0.05


class Engine:
    """Owns scheduler and KV pages, drives a runner. Call `step` while `has_work`."""

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
        """`drafters`: those that need weights, beside the built-in ones. `grammars`: None rejects them.

        `work_clock` times steps for the choice of draft lengths; `clock` unless given.
        """
        facts = runner.facts
        self._runner = runner
        self._recovery = StepRecovery(runner)
        self._vocab_size = facts.vocab_size
        self._eos_token_ids = facts.eos_token_ids
        self.kv = KVManager(
            facts.num_pages,
            revision=facts.revision,
            kv_dtype=facts.kv_dtype,
            prefix_cache=config.prefix_cache and facts.num_checkpoints != 0,
            checkpoints=CheckpointPool(facts.num_checkpoints, facts.max_running)
            if facts.num_checkpoints
            else None,
            windows=WindowPages(facts.num_window_pages, facts.window) if facts.num_window_pages else None,
        )
        self.max_running = min(config.max_running, facts.max_running)
        limits = SchedulerConfig(
            max_model_tokens=facts.max_model_tokens,
            max_batch_tokens=max(config.max_batch_tokens, self.max_running),
            max_running=self.max_running,
            max_queue=config.max_queue,
            max_draft_tokens=facts.max_draft_tokens,
        )
        self.adapters = adapters
        self.scheduler = Scheduler(limits, self.kv, clock, adapters.slots if adapters else None)
        builtin: list[Drafter] = [NgramDrafter(), SuffixDrafter(), PredictionDrafter()]
        self.speculator = Speculator(config.speculative, [*builtin, *drafters])
        self._grammars = Grammars(grammars)
        if grammars is not None:
            self.speculator.constraint = self._grammars
        self._active: dict[str, ActiveRequest] = {}
        self._accountant = StepAccountant(self.kv, clock, work_clock or clock)
        self.machine = MachineTime(clock)
        self.on_begin: Callable[[list[Sequence]], None] | None = None  # called before their first step
        self._last_report: StepReport | None = None
        self._flight: Flight | None = None

    @property
    def runner(self) -> Runner:
        """What computes its steps."""
        return self._runner

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self.scheduler.has_work

    @property
    def last_report(self) -> StepReport | None:
        """Figures of the last step; None when it had nothing to compute."""
        return self._last_report

    def close(self) -> None:
        """Stop the threads and processes that compile grammars and read adapters."""
        self._grammars.close()
        if self.adapters is not None:
            self.adapters.close()

    def add(self, request: Request) -> None:
        """Add a request to the queue. Raises RequestError, PromptTooLong, AdapterGone or QueueFull."""
        check_request(request, self._vocab_size)
        if request.adapter and (self.adapters is None or not self.adapters.knows(request.adapter)):
            raise AdapterGone(f"the adapter {request.adapter!r} is not loaded here; load it again", "model")
        self.speculator.check(request, self._vocab_size)
        params, prompt = request.params, request.prompt_token_ids
        seed = secrets.randbits(63) if params.seed is None else params.seed
        sequence = Sequence(request, [*prompt, *request.resume_token_ids], len(prompt), seed=seed)
        grammar = self._grammars.submit(request)
        self.scheduler.add(sequence)
        if grammar is not None:
            self._grammars.block(sequence, grammar)
        self.speculator.add(sequence)
        if self.adapters is not None and request.adapter:
            self.adapters.hold(request.adapter, request.adapter_name)
        stops = frozenset(params.stop_token_ids)
        stop_ids = stops if params.ignore_eos else stops | self._eos_token_ids
        self._active[request.request_id] = ActiveRequest(sequence, stop_ids)
        self._accountant.add_request(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free its pages at once; False when there is no such request (any more)."""
        sequence = self.scheduler.abort(request_id)
        if sequence is None:
            return False
        self._retire(sequence, "abort")
        if not self.has_work:
            self._flight = None
            self.machine.rest()
        return True

    def drop_cached(self) -> None:
        """Forget what pages hold, while no request is there: the device loses its memory."""
        self.kv.drop_cached()
        self.speculator.drop_cached()

    def take_traces(self) -> list[RequestTrace]:
        """Traces of requests that ended since the last call."""
        return self._accountant.take_traces()

    def step(self) -> list[StepOutput]:
        """Compute one step. Raises the runner's error when no request at all could be computed."""
        self._last_report = None
        self.machine.begin_step()
        self._accountant.begin_step(is_in_flight=self._flight is not None)
        outputs = self._settle_waiting()
        if self._flight is not None and self.speculator.may_propose(self.scheduler.num_running):
            return outputs + self._land()
        plan = self._plan()
        if not plan.chunks:
            if self._flight is not None:
                return outputs + self._land()
            self._wait(outputs)
        elif plan.num_drafts or self._recovery.is_limited or not self._runner.is_ahead:
            outputs += self._conclude(plan, *self._recovery.run(plan))
        else:
            outputs += self._launch(plan)
        return outputs

    def _launch(self, plan: Plan) -> list[StepOutput]:
        """Launch a plan behind the step in flight, and return the outputs of that one.

        What fails behind another step is planned again when that has been read.
        """
        was_ahead = self._flight is not None
        try:
            step = self._runner.launch(plan)
        except Exception as error:  # noqa: BLE001 - any failure of a model may be one request's fault
            return self._land() if was_ahead else self._again(plan, plan, error)
        outputs, is_sound = self._read() if was_ahead else ([], True)
        if not is_sound:
            return outputs
        try:
            step.draw()
        except Exception as error:  # noqa: BLE001 - see above
            return outputs if was_ahead else self._again(plan, plan, error)
        if self.has_work:
            self._flight = Flight(plan, step)
            self._flight.take_off()
        return outputs

    def _land(self) -> list[StepOutput]:
        """Read the step in flight before another is planned."""
        return self._read()[0]

    def _read(self) -> tuple[list[StepOutput], bool]:
        """The outputs of the step in flight, and whether it was computed at once."""
        flight, self._flight = self._flight, None
        assert flight is not None
        try:
            plan, result = flight.land()
        except Exception as error:  # noqa: BLE001 - see _launch
            return self._again(flight.plan, flight.turn_back(), error), False
        computed, result, failed = self._recovery.sift(plan, result)
        return self._conclude(flight.plan, computed, result, failed, timed=flight.plan), True

    def _again(self, plan: Plan, left: Plan, error: Exception) -> list[StepOutput]:
        """Compute what is `left` of a plan that failed, one request after the other."""
        return self._conclude(plan, *self._recovery.again(left, error, len(plan.chunks)))

    def _conclude(
        self,
        plan: Plan,
        computed: Plan,
        result: StepResult,
        failed: dict[Sequence, str],
        *,
        timed: Plan | None = None,
    ) -> list[StepOutput]:
        """Commit what was computed of a plan; its outputs, and those of the requests that failed.

        `timed`: what took the step's time, if some of that is dropped.
        """
        sampled = computed.sampled
        is_whole = len(sampled) == len(computed.chunks)
        partial = [] if is_whole else [c.sequence for c in computed.chunks if not c.samples]
        told = [*failed, *(chunk.sequence for chunk in sampled), *partial]
        outputs = self._fail(failed) + self._commit(timed or computed, sampled, result)
        outputs += [StepOutput(request_id=sequence.request.request_id) for sequence in partial]
        self._share_time(plan, told, outputs)
        self._last_report = self._accountant.report(plan, computed, self._grammars.report(result.mask_s))
        return outputs

    def _settle_waiting(self) -> list[StepOutput]:
        """Unblock requests whose adapter or grammar is ready now; end those for which it failed."""
        outputs: list[StepOutput] = []
        if self.adapters is not None and self.adapters.is_busy:
            for digest, message in self.adapters.poll().items():
                sequences = [active.sequence for active in self._active.values()]
                outputs += [
                    self._reject(sequence, message, "model")  # none of them runs: no slot holds the adapter
                    for sequence in sequences
                    if sequence.request.adapter == digest
                ]
        if self._grammars.has_pending:
            for sequence, error in self._grammars.settle():
                if isinstance(error, TryAgain):
                    output = self._reject(sequence, str(error), "")
                    output.retry_after_s = error.retry_after_s
                else:
                    output = self._reject(sequence, str(error), error.param or "")
                outputs.append(output)
        return outputs

    def _plan(self) -> Plan:
        """Collect drafts, schedule, and drop the state of preempted sequences."""
        drafts = None
        if self._flight is not None:
            self.speculator.pass_over()
        elif self.speculator.has_work:
            drafts = self._propose()
        plan = self.scheduler.schedule(drafts)
        for sequence in plan.preempted:
            self._runner.forget(sequence)
            self.speculator.forget(sequence)
        self._copy_states()
        begun = [chunk.sequence for chunk in plan.chunks if not chunk.sequence.has_begun]
        for sequence in begun:
            sequence.has_begun = True
        if self.on_begin is None or not begun:
            return plan
        self.on_begin(begun)
        return live(plan)  # a gateway that is gone takes its requests with it

    def _copy_states(self) -> None:
        if copies := self.kv.take_state_copies():
            self._runner.copy_states(copies)

    def _propose(self) -> dict[Sequence, Draft]:
        scheduler = self.scheduler
        return self.speculator.propose(
            scheduler.num_running, has_prompts=scheduler.has_prompts, num_joining=scheduler.num_joining
        )

    def _wait(self, outputs: list[StepOutput]) -> None:
        """Nothing can run: wait a moment for the grammars or adapters that all requests need."""
        self.machine.rest()
        if self._grammars.has_pending:
            self._grammars.pause()
        if self.adapters is not None and self.adapters.is_busy and not outputs:
            self.adapters.wait(_ADAPTER_WAIT_S)

    def _fail(self, failed: dict[Sequence, str]) -> list[StepOutput]:
        """End running requests that could not be computed."""
        for sequence in failed:
            self._finish(sequence, "error")
        return [_error(sequence, message) for sequence, message in failed.items()]

    def _share_time(self, plan: Plan, sequences: list[Sequence], outputs: list[StepOutput]) -> None:
        """Add the step's time to the sequences of the plan; each output tells what its own has taken."""
        self.machine.share(plan.chunks)
        for sequence, output in zip(sequences, outputs, strict=True):
            output.machine_s = sequence.machine_s
        if not self.has_work:
            self.machine.rest()

    def _commit(self, plan: Plan, sampled: list[ScheduledChunk], result: StepResult) -> list[StepOutput]:
        """Add tokens to sequences, publish full pages, end finished requests."""
        accountant, speculator = self._accountant, self.speculator
        accountant.end_compute(plan)
        accepted = self._append_accepted(sampled, result) if plan.num_drafts else None
        self.scheduler.commit(plan, accountant.duration_s, accepted)
        self._copy_states()
        if speculator.has_work:
            speculator.measure(
                len(plan.chunks),
                plan.num_drafts,
                accountant.work_s,
                num_prompt_tokens=accountant.num_prompt_tokens,
            )
        active, append_token = self._active, self.scheduler.append_token
        outputs = [
            build_output(active[chunk.sequence.request.request_id], chunk, result, i, append_token)
            for i, chunk in enumerate(sampled)
        ]
        accountant.count_outputs(sampled, outputs, speculator.drafter_of)
        for chunk, output in zip(sampled, outputs, strict=True):
            if chunk.draft and speculator.drafter_of(chunk.sequence) == PREDICTION:
                output.num_predicted, output.num_predicted_accepted = output.num_drafted, output.num_accepted
            if output.finish_reason is not None:
                self._finish(chunk.sequence, output.finish_reason)
        return outputs

    def _append_accepted(
        self, sampled: list[ScheduledChunk], result: StepResult
    ) -> dict[Sequence, list[int]]:
        """Append accepted drafts to their sequences; returns them."""
        appended: dict[Sequence, list[int]] = {}
        for i, chunk in enumerate(sampled):
            if not chunk.draft:
                continue
            sequence = chunk.sequence
            tokens = cut_accepted(self._active[sequence.request.request_id], result, i)
            for token_id in tokens:
                self.scheduler.append_token(sequence, token_id)
            appended[sequence] = tokens
            self.speculator.observe(sequence, chunk.draft_depth, len(tokens))
        return appended

    def _reject(self, sequence: Sequence, message: str, param: str) -> StepOutput:
        """End a request that still waits in the queue."""
        self.scheduler.abort(sequence.request.request_id)
        self._retire(sequence, "error")
        return _error(sequence, message, param)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a running request."""
        self.scheduler.finish(sequence, reason)
        self._retire(sequence, reason)

    def _retire(self, sequence: Sequence, reason: FinishReason) -> None:
        """Drop all state of a sequence that the scheduler has dropped."""
        del self._active[sequence.request.request_id]
        self._runner.forget(sequence)
        self.speculator.forget(sequence)
        if self.adapters is not None and sequence.request.adapter:
            self.adapters.release(sequence.request.adapter)
        self._grammars.forget(sequence)
        self._accountant.end_request(sequence, reason)


def _error(sequence: Sequence, message: str, param: str = "") -> StepOutput:
    return StepOutput(
        request_id=sequence.request.request_id,
        finish_reason="error",
        error=message,
        error_param=param,
        machine_s=sequence.machine_s,
    )
