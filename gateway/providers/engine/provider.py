"""Our own engine as a provider: a checked request becomes engine requests and their decoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from backend.errors import EngineUnavailable
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import Hello
from backend.server.quote import Quote
from backend.tokenizer.thinking import HARMONY
from backend.tokenizer.tokenizer import LONG_TEXT_CHARS
from backend.types import GrammarSpec, Request, SamplingParams
from gateway.answer import Generated, Relayed
from gateway.errors import ApiError, InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.engine.choice_decoder import ChoiceDecoder, Splitter
from gateway.providers.engine.generation import Generation, SequenceJob
from gateway.providers.engine.harmony_splitter import HarmonySplitter
from gateway.providers.engine.model import EngineModel
from gateway.providers.engine.reasoning_splitter import ReasoningSplitter
from gateway.providers.engine.replicas import Prompt
from gateway.providers.engine.service import EngineService
from gateway.providers.engine.tool_calling import Tools, decide_tools
from gateway.requests.field_support import CHAT, COMPLETIONS, check_supported
from gateway.requests.messages import text_size
from gateway.requests.prompts import parse_prompts
from gateway.requests.reasoning import (
    ReasoningDecision,
    chat_reasoning,
    ends_inside_reasoning,
    resolve_reasoning,
)
from gateway.requests.sampling import (
    base_params,
    check_prompt,
    check_request,
    choice_params,
    max_tokens_for,
)
from gateway.requests.speculation import predicted_text, read_draft
from gateway.requests.structured_output import grammar_for, with_reasoning
from gateway.requests.tools import read_tools
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from gateway.requests.unknown_fields import collecting, names

MAX_SEQUENCES = 1024
"""Prompts times choices of one request."""

TextCall = ModelCall[ChatRequest] | ModelCall[CompletionRequest]


def only_text(name: str, path: str) -> InvalidRequest:
    """The refusal of a request for anything else than text, also where no engine runs."""
    return InvalidRequest(
        f"The model {name!r} makes text; it does not answer {path}. GET /v1/models lists those that exist.",
        param="model",
        code="model_not_supported",
    )


@dataclass(frozen=True, slots=True)
class EngineProvider:
    """A base model, or an adapter on it. Light: one is made per request; what is shared is in `service`."""

    service: EngineService
    name: str
    adapter: str = ""

    def with_adapter(self, adapter: str, name: str) -> EngineProvider:
        """The same engine answering with an adapter, as the model `name`."""
        return replace(self, name=name, adapter=adapter)

    @property
    def model(self) -> EngineModel:
        """The model on a replica that is ready, if any is."""
        return self._on(self.service.client)

    @property
    def client(self) -> EngineClient:
        """A replica, for what does not depend on which."""
        return self.service.client

    def _on(self, client: EngineClient) -> EngineModel:
        return EngineModel(client, self.name, self.adapter, self.service.peers)

    def _placed(self, call: TextCall, jobs: Sequence[SequenceJob]) -> EngineModel:
        """The model on the replica that gets these sequences, all together."""
        longest = max((job.request for job in jobs), key=lambda request: len(request.prompt_token_ids))
        prompt = Prompt(
            longest.prompt_token_ids,
            call.tenant_salt,
            self.adapter,
            longest.params.max_tokens,
            num_sequences=len(jobs),
        )
        return self._on(self.service.replicas.choose(prompt, call.placements))

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Answer /v1/chat/completions."""
        request, service = call.request, self.service
        tokenizer = service.tokenizer
        ignored = check_supported(call.body, CHAT, self.name, service.unknown_fields)
        check_request(request)
        grammar = grammar_for(request)
        is_strict = service.unknown_fields == "refuse"
        reasoning = chat_reasoning(request, tokenizer.thinking, service.reasoning, is_strict=is_strict)
        if reasoning.ignores_effort:
            ignored.append("reasoning_effort")
        tools = decide_tools(read_tools(request), tokenizer.tool_use, service.call_syntax)
        budget = request.thinking_token_budget or 0
        tags = tokenizer.thinking.tags
        if tools is not None:
            grammar = tools.grammar(
                grammar, tokenizer.special_id, follows_budget=reasoning.is_on and budget > 0
            )
            if grammar is not None and tools.syntax.form.text:
                tags = replace(tags, answer="")  # the grammar has it
        if service.unknown_fields == "ignore":
            with collecting() as unknown:
                prompt = await self._encode_chat(request, reasoning, tools)
            ignored += names(unknown)
        else:
            prompt = await self._encode_chat(request, reasoning, tools)
        begins_inside = self._begins_inside(request, prompt) if reasoning.is_on else None
        has_tags = bool(tags.around_answer[0]) and not request.continue_final_message
        is_split = begins_inside is not None or has_tags
        hello = await self._wait_ready(request.num_choices)
        base = base_params(request, hello.vocab_size)
        asked = request.token_limit
        if call.clips_limit and asked is not None and asked > hello.max_model_tokens - len(prompt):
            asked = None
        limit = max_tokens_for(asked, len(prompt), hello.max_model_tokens, "messages")
        jobs = [
            self._job(
                call,
                index,
                prompt,
                choice_params(base, request, index, limit),
                continues=bool(request.continue_final_message),
                splitter=self._splitter(bool(begins_inside), tools) if is_split else None,
                tools=tools,
            )
            for index in range(request.num_choices)
        ]
        await self._add_drafts(request, jobs)
        _add_grammar(jobs, with_reasoning(grammar, begins_inside, budget, tags))
        return Generation(self._placed(call, jobs), tokenizer, jobs, call.deaths, call.computed).answer(
            shows_reasoning=reasoning.is_on and reasoning.is_shown,
            offers_tools=tools is not None,
            ignored_fields=ignored,
        )

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Answer /v1/completions."""
        request, text = call.request, self.service.prompts
        ignored = check_supported(call.body, COMPLETIONS, self.name, self.service.unknown_fields)
        check_request(request)
        grammar = grammar_for(request)
        prompts = parse_prompts(request.prompt, "prompt")
        hello = await self._wait_ready(request.num_choices, len(prompts))
        base = base_params(request, hello.vocab_size)
        encoded = await text.encode_prompts(prompts, max_tokens=hello.max_model_tokens)
        jobs: list[SequenceJob] = []
        for prompt, token_ids in zip(prompts, encoded, strict=True):
            check_prompt(token_ids, hello.vocab_size)
            limit = max_tokens_for(request.token_limit, len(token_ids), hello.max_model_tokens, "prompt")
            echo = None
            if request.echo:
                echo = prompt if isinstance(prompt, str) else await text.decode(prompt)
            for index in range(request.num_choices):
                params = choice_params(base, request, index, limit)
                job = self._job(call, len(jobs), token_ids, params, continues=True, echo=echo)
                job.counts_prompt = index == 0
                job.shows_output = limit > 0  # with 0, to score a prompt, the engine still draws one token
                jobs.append(job)
        await self._add_drafts(request, jobs)
        _add_grammar(jobs, grammar)
        return Generation(
            self._placed(call, jobs), self.service.tokenizer, jobs, call.deaths, call.computed
        ).answer(ignored_fields=ignored)

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Relayed:
        """Refuse: this model generates text."""
        raise only_text(self.name, "/v1/embeddings")

    async def quote(self, request: ChatRequest, tenant_salt: str) -> Quote | None:
        """What a chat would cost the engine now; None while it is away, or for a chat that it refuses."""
        try:
            prompt = await self.prompt(request, tenant_salt)
        except ApiError:
            return None
        return self.service.replicas.quote(prompt)

    async def prompt(self, request: ChatRequest, tenant_salt: str) -> Prompt:
        """What decides where a chat is computed. Raises ApiError for one that the engine refuses."""
        service = self.service
        reasoning = chat_reasoning(request, service.tokenizer.thinking, service.reasoning, is_strict=False)
        grammar_for(request)  # raises
        tools = decide_tools(read_tools(request), service.tokenizer.tool_use, service.call_syntax)
        prompt = await self._encode_chat(request, reasoning, tools)
        self.model.check_loaded()
        return Prompt(prompt, tenant_salt, self.adapter, request.token_limit)

    def reasoning(self, effort: str | None, template_kwargs: Mapping[str, Any] | None) -> ReasoningDecision:
        """Whether a chat with these fields reasons first. Raises InvalidRequest."""
        return resolve_reasoning(
            effort, template_kwargs, self.service.tokenizer.thinking, self.service.reasoning
        )

    async def _wait_ready(self, num_choices: int = 1, num_prompts: int = 1) -> Hello:
        """What the engine serves. Raises InvalidRequest for more sequences than it can ever queue."""
        _check_count(num_choices, num_prompts, MAX_SEQUENCES)
        try:
            await self.service.wait_ready()
        except EngineUnavailable:
            raise self.model.unavailable() from None
        hello = self.model.hello()
        _check_count(num_choices, num_prompts, hello.max_queue)
        return hello

    async def _encode_chat(
        self, request: ChatRequest, reasoning: ReasoningDecision, tools: Tools | None
    ) -> list[int]:
        hello = self.client.hello
        if hello is None and text_size(request.messages) > LONG_TEXT_CHARS:
            hello = await self._wait_ready()  # its context bounds the work
        return await self.service.prompts.encode_messages(
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            max_tokens=None if hello is None else hello.max_model_tokens,
            variables=reasoning.variables,
            tools=tools.definitions if tools else None,
        )

    def _begins_inside(self, request: ChatRequest, prompt: list[int]) -> bool | None:
        """Whether the output starts inside of reasoning that the prompt opened; None: in the answer."""
        if request.continue_final_message:
            return ends_inside_reasoning(request.messages[-1], self.service.tokenizer.thinking.tags) or None
        return self.service.tokenizer.opens_thought(prompt)

    def _splitter(self, begins_inside: bool, tools: Tools | None) -> Splitter:
        tags = self.service.tokenizer.thinking.tags
        if tags is HARMONY:
            return HarmonySplitter()
        marks = (*tools.syntax.marks, *tools.syntax.bare_marks) if tools else ()
        return ReasoningSplitter(begins_inside=begins_inside, tags=tags, marks=marks)

    def _job(
        self,
        call: TextCall,
        index: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        continues: bool,
        echo: str | None = None,
        splitter: Splitter | None = None,
        tools: Tools | None = None,
    ) -> SequenceJob:
        tokenizer = self.service.tokenizer
        decoder = ChoiceDecoder(
            index,
            tokenizer,
            tokenizer.detokenizer(continues=continues, shown=tools.syntax.tokens if tools else ()),
            call.request.stops,
            wants_logprobs=params.logprobs is not None,
            min_tokens=params.min_tokens,
            splitter=splitter,
            parser=tools.parser() if tools else None,
        )
        decoder.start_after(len(echo or ""))
        if echo is not None and params.logprobs is not None:
            params = msgspec.structs.replace(params, prompt_logprobs=params.logprobs)
        request = Request(
            request_id=f"{call.request_id}/{index}",
            prompt_token_ids=prompt,
            params=params,
            tenant_salt=call.tenant_salt,
            traceparent=call.traceparent,
            wants_trace=call.computed is not None,
            priority=call.priority,
        )
        return SequenceJob(request, decoder, echo, counts_prompt=index == 0, tools=tools)

    async def _add_drafts(self, request: ChatRequest | CompletionRequest, jobs: list[SequenceJob]) -> None:
        """Add what the request says about drafts to its sequences. Raises InvalidRequest."""
        draft, text = read_draft(request, self.service.speculative), predicted_text(request)
        if draft is None and not text:
            return
        predicted: list[int] = []
        if text:
            longest = max(job.request.params.max_tokens for job in jobs)
            predicted = await self.service.prompts.encode_beginning(text, longest)
        for job in jobs:
            job.request = msgspec.structs.replace(
                job.request, draft=draft, prediction_token_ids=predicted[: job.request.params.max_tokens]
            )


def _add_grammar(jobs: list[SequenceJob], grammar: GrammarSpec | None) -> None:
    if grammar is not None:
        for job in jobs:
            job.request = msgspec.structs.replace(job.request, grammar=grammar)


def _check_count(num_choices: int, num_prompts: int, max_sequences: int) -> None:
    if num_prompts * num_choices > max_sequences:
        raise InvalidRequest(
            f"{num_prompts * num_choices} sequences (prompts: {num_prompts}, n: {num_choices}) are more than "
            f"the {max_sequences} that one request to this model may ask for. Send several requests.",
            param="n" if num_choices > 1 else "prompt",
            code="invalid_value",
        )
