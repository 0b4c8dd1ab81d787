"""Renders a checkpoint's chat template as `apply_chat_template` of transformers does: messages → prompt.

Any failure is a TemplateError with the template's line. The sandbox is in template_sandbox.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from jinja2 import Template, TemplateSyntaxError, UndefinedError, nodes
from jinja2.exceptions import SecurityError

from backend.errors import CheckpointError, TemplateError
from backend.tokenizer.template_sandbox import MAX_SIZE, TemplateEnvironment, new_budget

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_FILE_NAME = "<template>"  # Jinja's file name for templates compiled from a string
_MAX_REASON = 500
_QUOTED = re.compile(r"['\"]([^'\"]*)['\"]")
_OBJECTS = {f"{name} object" for name in ("str", "int", "float", "bool", "list", "dict")}


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, checkpoint: str) -> None:
        """Compile. Raises CheckpointError if the source is not a valid template, or too long."""
        if len(source) > MAX_SIZE:
            raise CheckpointError(f"The chat template of {checkpoint!r} is too long ({len(source)}).")
        environment = TemplateEnvironment()
        try:
            self._template: Template = environment.from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", 1)
            raise CheckpointError(
                f"The chat template of {checkpoint!r} is broken at line {line} ({error}): repair it."
            ) from error
        self._source = source
        self._texts = {node.value for node in environment.parse(source).find_all(nodes.Const)}
        self._reads_content = "content" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """Return the prompt. Raises TemplateError, which quotes no message."""
        if not messages:
            raise TemplateError("There are no messages: send at least one.", param="messages")
        chat = [_plain(message) for message in messages]
        if not continue_final_message:
            return self._run(chat, variables, add_generation_prompt)
        if add_generation_prompt:
            raise TemplateError(
                "continue_final_message continues the last message and add_generation_prompt begins a new "
                "one: set only one of them.",
                param="continue_final_message",
            )
        final = self._tag_final(chat)
        return _cut_at_tag(self._run(chat, variables, False), final)

    def _run(
        self, chat: list[dict[str, Any]], variables: Mapping[str, Any], add_generation_prompt: bool
    ) -> str:
        context = {**variables, "messages": chat, "add_generation_prompt": add_generation_prompt}
        pieces: list[str] = []
        try:
            with new_budget() as budget:
                for piece in self._template.generate(context):
                    budget.spend_size(len(piece))
                    pieces.append(piece)
        except Exception as error:  # a template can raise anything: its failure is the request's
            line = _line(error.__traceback__)
            raise TemplateError(
                f"The chat template refuses these messages at its line {line}: {self._reason(error)}",
                param="messages",
            ) from error
        return "".join(pieces)

    def _reason(self, error: Exception) -> str:
        """The error's message if all of it is the template's own or the library's, else its type."""
        reason = str(error)[:_MAX_REASON]
        is_library = isinstance(error, UndefinedError | SecurityError | ZeroDivisionError) and all(
            text in self._source or text in _OBJECTS for text in _QUOTED.findall(reason)
        )
        return reason if is_library or reason in self._texts else type(error).__name__

    def _tag_final(self, chat: list[dict[str, Any]]) -> str:
        """Append a tag to the text of the last message; return the text without it."""
        content = chat[-1].get("content")
        if isinstance(content, str) and self._reads_content:
            chat[-1]["content"] = content + _CONTINUE_TAG
            return content
        if isinstance(content, list) and self._reads_content:
            for i in range(len(content) - 1, -1, -1):
                if "text" in content[i]:
                    text = str(content[i]["text"])
                    parts = [*content[:i], {**content[i], "text": text + _CONTINUE_TAG}, *content[i + 1 :]]
                    chat[-1]["content"] = parts
                    return text
        raise TemplateError(
            "continue_final_message is set, but the last message has no text to continue.",
            param="continue_final_message",
        )


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a message without nulls (clients send `content: null`), its reasoning under all common names."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[key] for key in _REASONING_FIELDS if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _cut_at_tag(prompt: str, final: str) -> str:
    """Cut the prompt at the end of the last message's text, dropping what the template adds after it."""
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in prompt or tag not in prompt:
        raise TemplateError(
            "continue_final_message is set, but the model's chat template changes or drops the last message.",
            param="continue_final_message",
        )
    end = prompt.rindex(tag)
    # If the tag has lost its trailing space, the template trims messages, so the text is trimmed as well.
    return prompt[:end] if prompt.startswith(_CONTINUE_TAG, end) else prompt[:end].rstrip()


def _line(traceback: TracebackType | None) -> int:
    """Return the innermost template line of a traceback that Jinja has rewritten."""
    line = 1
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILE_NAME:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
