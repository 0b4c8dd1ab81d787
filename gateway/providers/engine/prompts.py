"""Messages and texts to token ids, and back: chat template and tokenizer, off the event loop when long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from backend.errors import RequestError
from backend.tokenizer import Tokenizer
from backend.tokenizer.tokenizer import LONG_TEXT_CHARS
from gateway.errors import to_api_error
from gateway.providers.engine.tool_calling import adapt_calls, check_readable
from gateway.requests.messages import plain_messages, refuse_images, text_size
from gateway.requests.prompts import Prompt
from gateway.tool_calls.parser import Syntax

T = TypeVar("T")


class PromptEncoder:
    """The tokenizer of one engine. Every method raises InvalidRequest naming the field."""

    def __init__(self, tokenizer: Tokenizer, call_syntax: Syntax | None) -> None:
        """`call_syntax`: how the model writes tool calls; None: unknown."""
        self._tokenizer = tokenizer
        self._call_syntax = call_syntax

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
        """Token ids of a chat's prompt; InvalidRequest also when the template refuses the messages.

        `variables` are passed to the template. With `max_tokens`, a text that must have more tokens is
        refused before it is tokenised.
        """
        opens_answer = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        return await self._run(
            "messages",
            text_size(messages) + (len(str(tools)) if tools else 0),
            lambda: self._tokenizer.encode_chat(
                self._plain_messages(messages),
                opens_answer,
                continue_final_message,
                tools,
                max_tokens,
                **variables,
            ),
        )

    def _plain_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self._tokenizer.is_multimodal:
            refuse_images(messages)
        plain = plain_messages(messages)
        check_readable(plain, self._tokenizer.tool_use)
        adapt_calls(plain, self._call_syntax, self._tokenizer.tool_use)
        return plain

    async def encode_prompts(
        self, prompts: Sequence[Prompt], *, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> list[list[int]]:
        """Token ids of plain prompts; those given as ids stay as they are. `max_tokens` as above."""
        return await self._run(
            "prompt",
            sum(len(prompt) for prompt in prompts if isinstance(prompt, str)),
            lambda: [
                self._tokenizer.encode(prompt, add_special_tokens, max_tokens)
                if isinstance(prompt, str)
                else prompt
                for prompt in prompts
            ],
        )

    async def encode_beginning(self, text: str, num_tokens: int) -> list[int]:
        """The first `num_tokens` token ids of a text."""
        return await self._run(
            "prediction", len(text), lambda: self._tokenizer.encode_beginning(text, num_tokens)
        )

    async def decode(self, token_ids: list[int]) -> str:
        """The text of these tokens."""
        return await self._run("tokens", 4 * len(token_ids), lambda: self._tokenizer.decode(token_ids))

    async def _run(self, param: str, num_chars: int, work: Callable[[], T]) -> T:
        """Run `work`, in a thread for long texts. `param` is blamed for errors that name no field."""
        try:
            return await asyncio.to_thread(work) if num_chars > LONG_TEXT_CHARS else work()
        except RequestError as error:
            failure = to_api_error(error)
            failure.param = failure.param or param
            raise failure from None
