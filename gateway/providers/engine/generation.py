"""One request's sequences while the engine generates them: step outputs in, deltas and usage out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from backend.errors import AdapterGone, EngineError, EngineUnavailable, HandedBack, QueueFull
from backend.server.engine_client import RequestStream
from backend.tokenizer import Tokenizer
from backend.types import Request, StepOutput
from gateway.answer import Delta, Generated, Usage
from gateway.errors import ApiError, InvalidRequest, ServerError, Unavailable, retry_after, to_api_error
from gateway.providers.base import Deaths
from gateway.providers.engine.choice_decoder import ChoiceDecoder, token_info
from gateway.providers.engine.model import RETRY_S, EngineModel
from gateway.providers.engine.resumption import Resumption
from gateway.providers.engine.stream_merge import merged
from gateway.providers.engine.tool_calling import Tools
from gateway.telemetry.request import Computed


@dataclass(slots=True)
class SequenceJob:
    """One sequence to generate and what decodes its tokens."""

    request: Request
    decoder: ChoiceDecoder
    echo: str | None = None  # the prompt's text, when it is to be repeated
    counts_prompt: bool = True  # one of a prompt's choices reports what was cached
    shows_output: bool = True  # False: max_tokens was 0, and the one token that the engine makes is dropped
    tools: Tools | None = None
    received: list[int] = field(default_factory=list)  # token ids: all that the decoder has seen


class Generation:
    """The sequences of one request. Closing the answer's deltas early cancels what still runs.

    When the engine dies they go on, on the restarted one, from the tokens that were received.
    """

    def __init__(
        self,
        model: EngineModel,
        tokenizer: Tokenizer,
        jobs: list[SequenceJob],
        deaths: Deaths | None = None,
        computed: list[Computed] | None = None,
    ) -> None:
        """`deaths`: what the request has met before, with other models. `computed` gets engines' traces."""
        self._computed = computed
        self._model = model
        self._tokenizer = tokenizer
        self._jobs = jobs
        self._resumption = Resumption(deaths or Deaths())
        self._weights: tuple[str, ...] = ()  # those that began the answer
        self._usage = Usage(
            prompt_tokens=sum(len(job.request.prompt_token_ids) for job in jobs if job.counts_prompt)
        )

    def answer(
        self, *, shows_reasoning: bool = False, offers_tools: bool = False, ignored_fields: Sequence[str] = ()
    ) -> Generated:
        """The answer; nothing is submitted before its first delta is asked for."""
        return Generated(
            self._deltas(),
            self._usage,
            shows_reasoning=shows_reasoning,
            offers_tools=offers_tools,
            ignored_fields=ignored_fields,
        )

    async def _deltas(self) -> AsyncGenerator[Delta, None]:
        model = self._model
        self._resumption.check(model.name)
        weights = model.weights()
        jobs = [job for job in self._jobs if not job.decoder.is_finished]
        requests = self._requests(jobs, weights)
        streams: list[RequestStream] = []
        paid_s = self._usage.machine_seconds
        try:
            sent_s = time.perf_counter()
            streams = model.client.submit(requests)
            self._expect_traces(streams, sent_s)
            async with aclosing(merged(streams)) as outputs:
                async for number, output in outputs:
                    job = jobs[number]
                    if job.decoder.is_finished:
                        continue
                    delta = self._delta(job, output)
                    if delta.finish_reason is not None:
                        streams[number].cancel()
                        self._usage.machine_seconds = paid_s + sum(s.machine_s for s in streams)
                    yield delta
            return
        except EngineError as error:
            await self._recover(error, requests, was_running=_have_begun(streams))
        except (asyncio.CancelledError, GeneratorExit):
            if _have_begun(streams):
                self._resumption.note_hang(model.client.heartbeat_age_s, _request_id(requests))
            raise
        finally:
            for stream in streams:
                stream.cancel()
            self._usage.machine_seconds = paid_s + sum(stream.machine_s for stream in streams)
        async with aclosing(self._deltas()) as deltas:
            async for delta in deltas:
                yield delta

    def _expect_traces(self, streams: Sequence[RequestStream], sent_s: float) -> None:
        if self._computed is not None:
            for stream in streams:
                self._computed.append(computed := Computed(sent_s))
                stream.on_trace = computed.settle

    async def _recover(self, error: EngineError, sent: list[Request], *, was_running: bool) -> None:
        """Return once the sequences may be sent again. Raises ApiError if they may not."""
        model, resumption = self._model, self._resumption
        if isinstance(error, EngineUnavailable):
            if not isinstance(error, HandedBack):
                resumption.note_death(model, _request_id(sent), was_running=was_running)
            self._model = await resumption.next_engine(model, self._weights)
        elif isinstance(error, AdapterGone):
            # Replaced while the request was in flight, before any of its sequences was admitted: retry.
            if model.adapter_digest() == sent[0].adapter:
                raise model.not_loaded() from None
        elif not (isinstance(error, QueueFull) and await resumption.wait_for_room(error)):
            self._refuse()
            raise to_api_error(error) from None

    def _requests(self, jobs: list[SequenceJob], weights: tuple[str, ...]) -> list[Request]:
        """What the engine is to generate, or to go on with. Raises Unavailable if its weights are others."""
        model = self._model
        if weights != self._weights and any(job.received for job in jobs):
            raise Unavailable(
                f"The weights of {model.name!r} were replaced while it generated this answer. Try again.",
                headers=retry_after(RETRY_S),
            )
        self._weights = weights
        return [
            msgspec.structs.replace(
                job.request, adapter=weights[1], adapter_name=model.adapter, resume_token_ids=job.received[:]
            )
            for job in jobs
        ]

    def _delta(self, job: SequenceJob, output: StepOutput) -> Delta:
        if output.finish_reason in ("error", "abort"):
            raise self._failure(job, output)
        job.received += output.token_ids
        usage, decoder = self._usage, job.decoder
        if job.counts_prompt and output.num_cached_tokens > 0:
            usage.cached_tokens += output.num_cached_tokens
            job.counts_prompt = False
        before, reasoning_before = decoder.num_tokens, decoder.num_reasoning_tokens
        if job.shows_output:
            delta = decoder.push(output)
            usage.completion_tokens += decoder.num_tokens - before
            usage.reasoning_tokens += decoder.num_reasoning_tokens - reasoning_before
            # Tokens that a stop string cut off do not count as accepted.
            accepted = min(output.num_predicted_accepted, decoder.num_tokens - before)
            usage.accepted_prediction_tokens += accepted
            usage.rejected_prediction_tokens += output.num_predicted - accepted
        else:
            delta = decoder.skip(output)
        if job.echo is not None:
            self._echo(job, job.echo, output, delta)
        return delta

    def _echo(self, job: SequenceJob, text: str, output: StepOutput, delta: Delta) -> None:
        """Put the prompt's text and token records in front of a choice's first delta."""
        delta.text = text + delta.text
        job.echo = None
        if output.prompt_logprobs is not None:
            offset = 0
            records = []
            detokenizer = self._tokenizer.detokenizer(continues=True)
            for token_id, logprobs in zip(job.request.prompt_token_ids, output.prompt_logprobs, strict=True):
                records.append(token_info(self._tokenizer, token_id, logprobs, offset))
                offset += len(detokenizer.push((token_id,)))
            delta.tokens = records + delta.tokens

    def _refuse(self) -> None:
        """Where nothing was computed, the prompt is not charged."""
        if not self._usage.completion_tokens:
            self._usage.prompt_tokens = 0

    def _failure(self, job: SequenceJob, output: StepOutput) -> ApiError:
        if output.error_param == "model":
            return self._model.not_loaded()
        if output.error_param:
            error, grammar = InvalidRequest(output.error, param=output.error_param), job.request.grammar
            return job.tools.explained(error, grammar) if job.tools and grammar else error
        if output.retry_after_s:
            self._refuse()
            return Unavailable(output.error, headers=retry_after(output.retry_after_s))
        if output.finish_reason == "abort":
            return Unavailable(
                f"The engine of {self._model.name!r} ended this answer early: it is shutting down. "
                "Try again.",
                headers=retry_after(RETRY_S),
            )
        return ServerError(output.error or "The engine failed to answer this request.", code="engine_error")


def _have_begun(streams: Sequence[RequestStream]) -> bool:
    return any(stream.has_begun for stream in streams)


def _request_id(sequences: Sequence[Request]) -> str:
    return sequences[0].request_id.rpartition("/")[0]
