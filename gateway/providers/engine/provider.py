"""Our own engine as a provider: templates and tokens on the way in, text and stop strings on the way out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from backend.errors import AdapterGone, EngineError, EngineUnavailable, RequestError
from backend.server.client import EngineClient, RequestStream
from backend.server.messages import Hello
from backend.tokenizer import Tokenizer
from backend.tokenizer.tokenizer import LONG_TEXT_CHARS
from backend.types import GrammarSpec, Request, SamplingParams, StepOutput
from gateway.answer import Delta, Generated, Relayed, Usage
from gateway.errors import (
    ApiError,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
    retry_after,
    to_api_error,
)
from gateway.providers.base import ModelCall
from gateway.providers.engine.choice_decoder import Choice, token_info
from gateway.providers.engine.reasoning_splitter import ThoughtSplitter
from gateway.providers.engine.stream_merge import merged
from gateway.providers.engine.tool_calling import Tools, adapt_ids, check_readable, decide_tools
from gateway.requests.field_support import CHAT, COMPLETIONS, check_supported
from gateway.requests.messages import plain_messages, text_size
from gateway.requests.prompts import Prompt, parse_prompts
from gateway.requests.reasoning import Thinking, choose, decide, is_inside_thought
from gateway.requests.sampling import (
    base_params,
    check_prompt,
    check_request,
    choice_params,
    max_tokens_for,
)
from gateway.requests.speculation import predicted_text, read_draft
from gateway.requests.structured_output import grammar_for, with_thought
from gateway.requests.tools import read_tools
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.tool_calls.families import find_syntax
from policies.document import Reasoning, Speculative, ToolParser

MAX_SEQUENCES = 1024
"""Prompts times choices of one request."""
RETRY_S = 2.0

T = TypeVar("T")


@dataclass(slots=True)
class Job:
    """One sequence to generate and what turns its tokens into deltas."""

    request: Request
    choice: Choice
    echo: str | None = None  # the prompt's text, when it is to be repeated
    counts_prompt: bool = True  # one of a prompt's choices reports what was cached
    shows_output: bool = True  # False: max_tokens was 0, the one token that the engine makes is not shown
    tools: Tools | None = None


class EngineProvider:
    """Answers with the engine behind `client`. Text questions (`encode` …) also serve /tokenize."""

    def __init__(
        self,
        name: str,
        client: EngineClient,
        tokenizer: Tokenizer,
        start_wait_s: float = 0.0,
        reasoning: Reasoning | None = None,
        tool_parser: ToolParser = "auto",
        speculative: Speculative | None = None,
    ) -> None:
        """`start_wait_s`: how long requests wait for an engine that is starting or restarting."""
        self.name = name
        self.client = client
        self.tokenizer = tokenizer
        self._reasoning = reasoning or Reasoning()
        self._speculative = speculative or Speculative()
        self._call_syntax = find_syntax(tokenizer.tool_use, tool_parser)
        self._start_wait_s = start_wait_s
        self._num_waiting = 0
        self._adapter = ""  # its name in the engine; "": the base model

    def adapted(self, adapter: str, name: str) -> EngineProvider:
        """The same engine, answering with an adapter, as the model `name`."""
        twin = copy.copy(self)
        twin.name, twin._adapter = name, adapter
        return twin

    @property
    def _adapter_digest(self) -> str:
        """What the engine calls the adapter now. Raises NotFound when it is not loaded, or Unavailable."""
        if not self._adapter:
            return ""
        self.check_loaded()
        info = self.client.adapters.get(self._adapter)
        if info is None:
            raise self.unavailable()
        return info.digest

    @property
    def is_loaded(self) -> bool:
        """False when the engine has said what it serves, and the adapter is not of it."""
        return not self._adapter or self.client.has_adapter(self._adapter)

    def check_loaded(self) -> None:
        """Raise NotFound unless `is_loaded`."""
        if not self.is_loaded:
            raise self._not_loaded()

    def _not_loaded(self) -> NotFound:
        why = "its adapter is not loaded"
        if self._adapter in self.client.adapter_names:
            why = "its adapter's files are gone, or have changed since it was loaded. Load it anew"
        message = f"The model {self.name!r} does not exist: {why}."
        return NotFound(message, param="model", code="model_not_found")

    @property
    def hello(self) -> Hello:
        """What the engine serves; raises Unavailable when it does not answer."""
        hello = self.client.hello
        if hello is None or not self.client.ready:
            raise self.unavailable()
        return hello

    async def _reached(self) -> Hello:
        """`hello`, after a bounded wait for an engine that is on its way, by a bounded crowd."""
        if not self.client.ready and self._start_wait_s and self._num_waiting < MAX_SEQUENCES:
            self._num_waiting += 1
            try:
                await self.client.wait_ready(self._start_wait_s)
            except EngineUnavailable:
                raise self.unavailable() from None
            finally:
                self._num_waiting -= 1
        return self.hello

    @property
    def _max_model_tokens(self) -> int | None:
        hello = self.client.hello
        return None if hello is None else hello.max_model_tokens

    @property
    def fingerprint(self) -> str | None:
        """Names the weights in answers; None while the engine is away."""
        hello = self.client.hello
        info = self.client.adapters.get(self._adapter)
        if info is not None:
            return f"fp_{info.digest[:12]}"
        return f"fp_{hello.revision[:12]}" if hello is not None and hello.revision else None

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Answer /v1/chat/completions."""
        request = call.request
        check_supported(call.body, CHAT, self.name)
        check_request(request)
        grammar = grammar_for(request)
        thinking = decide(request, self.tokenizer.thinking, self._reasoning)
        tools = decide_tools(read_tools(request), self.tokenizer.tool_use, self._call_syntax, grammar)
        if tools is not None:
            grammar = tools.grammar(grammar, self.tokenizer.special_id)
        prompt = await self.encode_messages(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            max_tokens=self._max_model_tokens,
            variables=thinking.variables,
            tools=tools.definitions if tools else None,
        )
        begins_inside = self._begins_inside(request, prompt) if thinking.thinks else None
        hello = await self._reached()
        base = base_params(request, hello.vocab_size)
        limit = max_tokens_for(request.token_limit, len(prompt), hello.max_model_tokens, "messages")
        jobs = [
            self._job(
                call,
                index,
                prompt,
                choice_params(base, request, index, limit),
                continues=bool(request.continue_final_message),
                splitter=None if begins_inside is None else ThoughtSplitter(begins_inside=begins_inside),
                tools=tools,
            )
            for index in range(request.num_choices)
        ]
        await self._add_drafts(request, jobs)
        answer = self._start(_with_grammar(jobs, with_thought(grammar, begins_inside)))
        answer.shows_reasoning = thinking.thinks and thinking.is_shown
        answer.offers_tools = tools is not None
        return answer

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Answer /v1/completions."""
        request = call.request
        check_supported(call.body, COMPLETIONS, self.name)
        check_request(request)
        grammar = grammar_for(request)
        prompts = parse_prompts(request.prompt, "prompt")
        _check_count(len(prompts), request.num_choices)
        hello = await self._reached()
        base = base_params(request, hello.vocab_size)
        found = await self.encode_prompts(prompts, max_tokens=hello.max_model_tokens)
        jobs: list[Job] = []
        for prompt, token_ids in zip(prompts, found, strict=True):
            check_prompt(token_ids, hello.vocab_size)
            limit = max_tokens_for(request.token_limit, len(token_ids), hello.max_model_tokens, "prompt")
            echo = None
            if request.echo:
                echo = prompt if isinstance(prompt, str) else await self.decode(prompt)
            for index in range(request.num_choices):
                # The engine always makes a token; with 0 asked for (to score a prompt) it is not shown.
                params = choice_params(base, request, index, max(limit, 1))
                job = self._job(call, len(jobs), token_ids, params, continues=True, echo=echo)
                job.counts_prompt = index == 0
                job.shows_output = limit > 0
                jobs.append(job)
        await self._add_drafts(request, jobs)
        return self._start(_with_grammar(jobs, grammar))

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Relayed:
        """Refuse: this model generates text."""
        raise InvalidRequest(
            f"The model {self.name!r} does not make embeddings; GET /v1/models lists those that exist.",
            param="model",
            code="model_not_supported",
        )

    def thinking(self, effort: str | None, template_kwargs: Mapping[str, Any] | None) -> Thinking:
        """Whether a chat with these fields thinks. Raises InvalidRequest."""
        return choose(effort, template_kwargs, self.tokenizer.thinking, self._reasoning)

    def _begins_inside(self, request: ChatRequest, prompt: list[int]) -> bool | None:
        """Whether the output goes on with a thought that the prompt opened; None: with the answer."""
        if request.continue_final_message:
            return is_inside_thought(request.messages[-1]) or None
        return self.tokenizer.opens_thought(prompt)

    async def encode_messages(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool,
        variables: Mapping[str, Any],
        max_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Token ids of a chat's prompt. Raises InvalidRequest, also when the template refuses.

        `variables` are the template's. With `max_tokens` a text that surely has more is refused before it
        costs time to count them.
        """
        opens_answer = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        return await self._text_work(
            "messages",
            text_size(messages) + (len(str(tools)) if tools else 0),
            lambda: self.tokenizer.encode_chat(
                self._plain_messages(messages),
                opens_answer,
                continue_final_message,
                tools,
                max_tokens,
                **variables,
            ),
        )

    def _plain_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        plain = plain_messages(messages)
        check_readable(plain, self.tokenizer.tool_use)
        adapt_ids(plain, self._call_syntax)
        return plain

    async def encode_prompts(
        self, prompts: Sequence[Prompt], *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[list[int]]:
        """Token ids of plain prompts; those given as ids stay as they are. Raises InvalidRequest.

        `max_tokens` as in `encode_messages`.
        """
        return await self._text_work(
            "prompt",
            sum(len(prompt) for prompt in prompts if isinstance(prompt, str)),
            lambda: [
                self.tokenizer.encode(prompt, add_special_tokens, max_tokens)
                if isinstance(prompt, str)
                else prompt
                for prompt in prompts
            ],
        )

    async def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens. Raises InvalidRequest."""
        return await self._text_work("tokens", 4 * len(token_ids), lambda: self.tokenizer.decode(token_ids))

    async def _text_work(self, param: str, num_chars: int, work: Callable[[], T]) -> T:
        """Do it, in a thread when it is much. `param` is the field that an error without one is about."""
        try:
            return await asyncio.to_thread(work) if num_chars > LONG_TEXT_CHARS else work()
        except RequestError as error:
            failure = to_api_error(error)
            failure.param = failure.param or param
            raise failure from None

    def _job(
        self,
        call: ModelCall[ChatRequest] | ModelCall[CompletionRequest],
        index: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        continues: bool,
        echo: str | None = None,
        splitter: ThoughtSplitter | None = None,
        tools: Tools | None = None,
    ) -> Job:
        choice = Choice(
            index,
            self.tokenizer,
            self.tokenizer.detokenizer(continues=continues, shown=tools.syntax.tokens if tools else ()),
            call.request.stops,
            wants_logprobs=params.logprobs is not None,
            min_tokens=params.min_tokens,
            splitter=splitter,
            parser=tools.parser() if tools else None,
        )
        choice.start_behind(len(echo or ""))
        if echo is not None and params.logprobs is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=params.logprobs)
        request = Request(
            request_id=f"{call.request_id}/{index}",
            prompt_token_ids=prompt,
            params=params,
            tenant_salt=call.tenant_salt,
            traceparent=call.traceparent,
        )
        return Job(request, choice, echo, counts_prompt=index == 0, tools=tools)

    async def _add_drafts(self, request: ChatRequest | CompletionRequest, jobs: list[Job]) -> None:
        """Put what the request says about drafts into its sequences. Raises InvalidRequest."""
        draft, text = read_draft(request, self._speculative), predicted_text(request)
        if draft is None and not text:
            return
        predicted: list[int] = []
        if text:
            text = self.tokenizer.beginning(text, max(job.request.params.max_tokens for job in jobs))
            (predicted,) = await self.encode_prompts([text], add_special_tokens=False)
        for job in jobs:
            job.request = msgspec.structs.replace(
                job.request, draft=draft, prediction_token_ids=predicted[: job.request.params.max_tokens]
            )

    def _start(self, jobs: list[Job]) -> Generated:
        usage = Usage()
        usage.prompt_tokens = sum(len(job.request.prompt_token_ids) for job in jobs if job.counts_prompt)
        return Generated(self._run(jobs, usage), usage)

    async def _run(self, jobs: list[Job], usage: Usage) -> AsyncGenerator[Delta, None]:
        """Deltas of all jobs as they come. Ending early, in whatever way, cancels what still runs."""
        adapter = self._adapter_digest
        name = self._adapter
        requests = [msgspec.structs.replace(job.request, adapter=adapter, adapter_name=name) for job in jobs]
        streams: list[RequestStream] = []
        try:
            streams = self.client.submit(requests)
            async with aclosing(merged(streams)) as outputs:
                async for number, output in outputs:
                    if jobs[number].choice.is_finished:
                        continue
                    delta = self._delta(jobs[number], output, usage)
                    if delta.finish_reason is not None:
                        streams[number].cancel()
                    yield delta
        except EngineUnavailable:
            raise self.unavailable() from None
        except AdapterGone:
            if self._adapter_digest == adapter:
                raise self._not_loaded() from None
            # Loaded anew while the request was on its way, and none of its sequences was admitted.
            async with aclosing(self._run(jobs, usage)) as deltas:
                async for delta in deltas:
                    yield delta
        except EngineError as error:
            raise to_api_error(error) from None
        finally:
            for stream in streams:
                stream.cancel()

    def _delta(self, job: Job, output: StepOutput, usage: Usage) -> Delta:
        if output.finish_reason in ("error", "abort"):
            raise self._failure(job, output)
        if job.counts_prompt and output.num_cached_tokens > 0:
            usage.cached_tokens += output.num_cached_tokens
            job.counts_prompt = False
        choice = job.choice
        before, thought_before = choice.num_tokens, choice.num_thought_tokens
        if job.shows_output:
            delta = choice.push(output)
            usage.completion_tokens += choice.num_tokens - before
            usage.reasoning_tokens += choice.num_thought_tokens - thought_before
            # What a stop string cut off was predicted for nothing.
            accepted = min(output.num_predicted_accepted, choice.num_tokens - before)
            usage.accepted_prediction_tokens += accepted
            usage.rejected_prediction_tokens += output.num_predicted - accepted
        else:
            delta = choice.skip(output)
        if job.echo is not None:
            self._echo(job, output, delta)
        return delta

    def _echo(self, job: Job, output: StepOutput, delta: Delta) -> None:
        """Put the prompt's text and token records in front of a choice's first delta."""
        assert job.echo is not None
        delta.text = job.echo + delta.text
        job.echo = None
        if output.prompt_logprobs is not None:
            offset = 0
            records = []
            detokenizer = self.tokenizer.detokenizer(continues=True)
            for token_id, logprobs in zip(job.request.prompt_token_ids, output.prompt_logprobs, strict=True):
                records.append(token_info(self.tokenizer, token_id, logprobs, offset))
                offset += len(detokenizer.push((token_id,)))
            delta.tokens = records + delta.tokens

    def _failure(self, job: Job, output: StepOutput) -> ApiError:
        if output.error_param == "model":
            return self._not_loaded()
        if output.error_param:
            error, grammar = InvalidRequest(output.error, param=output.error_param), job.request.grammar
            return job.tools.explained(error, grammar) if job.tools and grammar else error
        if output.finish_reason == "abort":
            return Unavailable(
                f"The engine of {self.name!r} ended this answer early: it is shutting down. Try again.",
                headers=retry_after(RETRY_S),
            )
        return ServerError(output.error or "The engine failed to answer this request.", code="engine_error")

    def unavailable(self) -> Unavailable:
        """The error while the engine does not answer."""
        # The engine client's own message names a socket's path, which is nothing for callers.
        return Unavailable(
            f"The model {self.name!r} cannot answer now: its engine is starting or restarting. Try again.",
            headers=retry_after(RETRY_S),
        )


def _with_grammar(jobs: list[Job], grammar: GrammarSpec | None) -> list[Job]:
    if grammar is not None:
        for job in jobs:
            job.request = msgspec.structs.replace(job.request, grammar=grammar)
    return jobs


def _check_count(num_prompts: int, num_choices: int) -> None:
    if num_prompts * num_choices > MAX_SEQUENCES:
        raise InvalidRequest(
            f"{num_prompts} prompts with n={num_choices} choices each are more than the {MAX_SEQUENCES} "
            "sequences that one request may ask for. Send several requests.",
            param="n" if num_choices > 1 else "prompt",
        )
