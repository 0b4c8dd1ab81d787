"""screen_request: the model's guardrails on what is asked; the cache never sees what they mask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

from gateway.answer import Delta, Generated, Usage
from gateway.errors import ApiError, InvalidRequest
from gateway.exchange.exchange import Exchange, Stage
from gateway.exchange.prompt_embedding import Meaning
from gateway.exchange.turns import user_turns
from gateway.requests.parse import typed
from gateway.requests.prompts import num_choices, parse_prompts
from gateway.requests.types import CompletionRequest, GenerationRequest
from gateway.routing.other_models import OtherModels
from gateway.screening.answer import check_failed
from gateway.screening.guards import Guards
from gateway.telemetry import spans
from guardrails.scan.scanner import Blocked
from guardrails.screen.answer_checks import checks_answers, holds_back
from guardrails.screen.screening import CheckFailed, Screening, checks_requests
from guardrails.screen.segments import longest_field, texts
from guardrails.screen.verdicts import Check, OnVerdict, Outcome

HEADER = "x-penstock-guardrails"


class ScreenRequest(Stage):
    """The stage, under one version of the policies."""

    def __init__(self, guards: Guards, others: OtherModels) -> None:
        """`others`: the models that may answer what the guardrails of the first one refuse."""
        self._guards = guards
        self._others = others

    async def enter(self, exchange: Exchange) -> None:
        """Screen for the model, or for the one of `fallback.refused` that takes over. Raises ApiError."""
        while True:
            try:
                return await self._screen(exchange)
            except ApiError as error:
                if not self._others.try_replace_refusing(exchange, error):
                    raise

    async def _screen(self, exchange: Exchange) -> None:
        """Fill `exchange.screening`; change `body` and `request`, or fill `answer` with a refusal.

        Raises InvalidRequest (`content_filter`), or Unavailable for a check that failed.
        """
        model, tenant = exchange.chosen_model, exchange.principal.tenant
        guard = self._guards.of(model.guardrails) if model.guardrails else None
        if guard is None or tenant in guard.profile.exempt_tenants:
            return
        on_verdict = _telling(exchange, model.metrics_label or model.name)
        screening = exchange.screening = Screening(guard, on_verdict, tenant)
        if not _fits(exchange, screening, model.guardrails):
            return
        _check_logprobs(exchange, screening)
        _check_tokens(exchange, screening)
        with exchange.asked.telemetry.stage(spans.STAGE_SCREEN):
            await _share_meaning(exchange, screening)
            try:
                body = await screening.request_body(exchange.body)
            except Blocked as blocked:
                _expose(exchange, screening)
                _refuse(exchange, screening, blocked)
                return
            except CheckFailed as failed:
                raise check_failed(failed) from None
        _expose(exchange, screening)
        if body != exchange.body:
            exchange.body = body
            exchange.request = typed(body, exchange.asked.endpoint.request)
        turns = user_turns(exchange.request)
        if exchange.meaning is None and turns and turns[-1] in screening.vectors:
            exchange.meaning = Meaning.known(turns[-1], screening.vectors[turns[-1]])


def _telling(exchange: Exchange, label: str) -> OnVerdict:
    """Tells telemetry, which is not for threads, also from the one that changes long texts."""
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def tell(text: str, check: Check, outcome: Outcome, language: str) -> None:
        screened = partial(exchange.asked.telemetry.screened, text, check, outcome, label, language)
        if threading.get_ident() == thread:
            screened()
        else:
            loop.call_soon_threadsafe(screened)

    return tell


async def _share_meaning(exchange: Exchange, screening: Screening) -> None:
    """A vector that the router has asked for need not be asked for again."""
    meaning = exchange.meaning
    if meaning is not None and screening.profile.needs_encoder:
        vector = await meaning.vector()
        if vector is not None:
            screening.vectors[meaning.text] = vector


def _expose(exchange: Exchange, screening: Screening) -> None:
    if screening.profile.expose and str(screening.verdicts):
        exchange.response_headers[HEADER] = str(screening.verdicts)


def _check_logprobs(exchange: Exchange, screening: Screening) -> None:
    request = exchange.request
    if request.num_logprobs is None:
        return
    is_read_anew = isinstance(request, CompletionRequest) and exchange.chosen_model.kind == "upstream"
    if holds_back(screening) or (is_read_anew and checks_answers(screening)):
        raise InvalidRequest(
            f"'logprobs' would show what the guardrails of {exchange.chosen_model.name!r} change or hold "
            "back: leave it out.",
            param="logprobs",
        )


def _fits(exchange: Exchange, screening: Screening, profile: str) -> bool:
    """Whether it can be checked; a dry run goes on without. Raises InvalidRequest."""
    most = screening.profile.max_chars
    num_chars = sum(len(text) for _, text in texts(exchange.body))
    if num_chars <= most or not checks_requests(screening.profile):
        return True
    if screening.profile.dry_run:
        screening.verdicts.add("unread", "too_long", "failed_open")
        return False
    field = longest_field(exchange.body)
    raise InvalidRequest(
        f"'{field}' is too long for the guardrails: the request has {num_chars} characters, and they check "
        f"at most {most} (guardrails.profiles.{profile}.max_chars). Send less, or ask the operator for more.",
        param=field,
        code="string_above_max_length",
    )


def _check_tokens(exchange: Exchange, screening: Screening) -> None:
    request = exchange.request
    name = request.INPUT_FIELD
    prompts = parse_prompts(request.inputs, name) if name else []
    if all(isinstance(each, str) for each in prompts) or not checks_requests(screening.profile):
        return
    if not screening.profile.dry_run:
        message = f"'{name}' holds token ids, and guardrails read text: send the text."
        raise InvalidRequest(message, param=name)
    screening.verdicts.add("unread", "token_ids", "failed_open")


def _refuse(exchange: Exchange, screening: Screening, blocked: Blocked) -> None:
    """Answer with the policy's refusal. Raises InvalidRequest where it has none."""
    refusal, request = screening.profile.refusal, exchange.request
    if refusal is None or not isinstance(request, GenerationRequest):
        raise InvalidRequest(
            f"The request was refused by a guardrail ({blocked.kind}): take that out of it.",
            code="content_filter",
            headers=dict(exchange.response_headers),
        ) from None

    async def deltas() -> AsyncIterator[Delta]:
        for index in range(num_choices(request)):
            yield Delta(index, refusal, finish_reason="content_filter")

    exchange.answer = Generated(deltas(), Usage())
