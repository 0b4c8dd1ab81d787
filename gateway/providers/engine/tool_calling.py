"""Tool calling with one model: whether it can, the definitions in its prompt, the parser and the grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.identifiers import FUNCTION_NAME, quoted
from backend.tokenizer.tool_use import ToolUse
from backend.types import GrammarSpec
from gateway.errors import InvalidRequest
from gateway.providers.engine.grammar_words import TokenId
from gateway.providers.engine.tool_grammar import (
    argument_rules,
    call_grammar,
    definition_place,
    input_opening,
)
from gateway.requests import refusals
from gateway.requests.tools import ToolChoice
from gateway.tool_calls.parser import HOLD_CHARS, Syntax, ToolCallParser

_AT_LINE = re.compile(r"at (?P<line>\d+)\(\d+\): (failed to compile JSON schema: )?")
_RULE = re.compile(r"^[^\S\n]*[?!]?(\w+)(?:\.-?\d+)?\s*:", re.MULTILINE)
_REMEDY = "; simplify or correct it"
_SHOWN = 4
"""Custom tools that an error names."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions that one chat may call and the syntax in which its model writes calls."""

    choice: ToolChoice
    syntax: Syntax

    @property
    def definitions(self) -> Sequence[Mapping[str, Any]]:
        """Tool definitions for the chat template."""
        return self.choice.definitions

    def parser(self) -> ToolCallParser:
        """A new parser; each choice of the answer needs its own."""
        choice = self.choice
        hold_chars = 0 if choice.is_required else HOLD_CHARS  # calls enforced by a grammar are valid
        return ToolCallParser(
            self.syntax,
            choice.names,
            hold_chars=hold_chars,
            max_calls=choice.max_calls,
            schemas=choice.parameters,
        )

    def grammar(
        self, content: GrammarSpec | None, token_id: TokenId, *, follows_budget: bool = False
    ) -> GrammarSpec | None:
        """The grammar of the whole answer; `content` is that of its text. Raises InvalidRequest.

        `follows_budget`: reasoning before it has a limit, which needs a grammar of what comes next. None: the
        answer is free.
        """
        choice = self.choice
        is_limited = choice.is_required or choice.strict or choice.grammars or follows_budget
        if content is None and not is_limited:
            return None
        if content is not None and content.kind != "json_schema":
            raise InvalidRequest(
                f"'{content.param}' and 'tools' exclude each other unless it is a JSON schema. Send one.",
                param=content.param,
                code="invalid_value",
            )
        text = call_grammar(self.syntax, choice, token_id, content)
        param = choice.param if choice.is_required or content is None else content.param
        return GrammarSpec(kind="lark", text=text, param=param)

    def explained(self, error: InvalidRequest, grammar: GrammarSpec) -> InvalidRequest:
        """The engine's error about this grammar, naming the tool's schema or grammar that caused it.

        The engine names a line of the grammar, which the caller has not sent; it is left out.
        """
        found = _AT_LINE.search(error.message)
        if found is None:
            return self._suspected(error)
        number = max(1, int(found["line"]))
        fault = error.message[found.end() :].removesuffix(_REMEDY)
        lines = grammar.text.split("\n")[:number]
        rule = lines[-1].partition(":")[0] if len(lines) == number else ""
        for name, each in zip(self.choice.names, argument_rules(self.choice), strict=True):
            if rule == each or rule.startswith(f"{each}_j"):
                return InvalidRequest(
                    f"Invalid schema for function {name!r}: {fault}{_REMEDY}.",
                    param=self.choice.places.get(name, error.param),
                    code="invalid_function_parameters",
                )
            if name in self.choice.grammars and (opening := input_opening(each)) in lines:
                opened = lines.index(opening) + 1
                if "}" not in lines[opened:]:
                    return self._invalid_grammar(name, fault, number - opened)
        return InvalidRequest(error.message[: found.start()] + fault + _REMEDY, param=error.param)

    def _invalid_grammar(self, name: str, fault: str, line: int) -> InvalidRequest:
        """The error at a line of a custom tool's grammar, naming the rule that it belongs to."""
        text = "\n".join(self.choice.grammars[name].definition.split("\n")[:line])
        rules = _RULE.findall(text) if self.choice.grammars[name].syntax == "lark" else ()
        rule = quoted(rules[-1], FUNCTION_NAME) if rules else ""
        at = f" (line {line}, rule {rule})" if rule else ""
        place = definition_place(self.choice, name)
        what = f"'{place}' of the tool {name!r} cannot be enforced: {fault}{at}{_REMEDY}"
        return refusals.unsupported(place, what)

    def _suspected(self, error: InvalidRequest) -> InvalidRequest:
        """An error without a place, with the custom tools' grammars that it may be about."""
        names = list(self.choice.grammars)
        if not names or error.param not in ("tools", "tool_choice"):
            return error
        places = [f"'{definition_place(self.choice, name)}' of the tool {name!r}" for name in names[:_SHOWN]]
        more = ", …" if len(names) > _SHOWN else ""
        param = definition_place(self.choice, names[0]) if len(names) == 1 else "tools"
        message = f"{error.message.removesuffix('.')}. See {', '.join(places)}{more}."
        return InvalidRequest(message, param=param, code=error.code)


def decide_tools(choice: ToolChoice | None, use: ToolUse, syntax: Syntax | None) -> Tools | None:
    """None without tools. Raises InvalidRequest if the model cannot."""
    if choice is None:
        return None
    check_offerable(use)
    if syntax is None:
        raise _cannot(
            "tools",
            "its chat template writes calls in an unknown syntax. Leave 'tools' out, or name the "
            "syntax in the policy: engine.tool_parser.",
        )
    is_json = not syntax.form.parameter[0]  # else descriptions tell what custom tools take
    return Tools(choice if is_json else replace(choice, grammars={}), syntax)


def check_offerable(use: ToolUse) -> None:
    """Raise InvalidRequest when the template would drop tools."""
    if not use.reads_tools:
        raise _cannot("tools", "its chat template does not show tools to the model. Leave 'tools' out.")


def check_readable(messages: Sequence[Mapping[str, Any]], use: ToolUse) -> None:
    """Raise InvalidRequest when messages have calls or results that the template would drop."""
    if use.reads_results:
        return
    for index, message in enumerate(messages):
        if message["role"] == "tool" or "tool_calls" in message:
            field = "role" if message["role"] == "tool" else "tool_calls"
            raise _cannot(
                f"messages[{index}].{field}", "its chat template has no place for tool calls and results."
            )


def adapt_calls(messages: list[dict[str, Any]], syntax: Syntax | None, use: ToolUse) -> None:
    """Give earlier calls the ids, and their arguments the form, that the model's template needs."""
    ids: dict[str, str] = {}
    number = 0
    if syntax is not None and syntax.has_single_calls:
        messages[:] = _with_single_calls(messages)
    for message in messages:
        if syntax is not None and syntax.merges_text and "tool_calls" in message:
            texts = (message.get("reasoning_content"), message.get("content"))
            if all(texts):
                message |= {"reasoning_content": "\n\n".join(map(str, texts)), "content": ""}
        for call in message.get("tool_calls", ()):
            if syntax is not None and syntax.call_id is not None:
                adapted = syntax.call_id(call["id"], call["function"]["name"], number)
                ids[call["id"]] = call["id"] = adapted
            if use.takes_text:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                call["function"] = {**call["function"], "arguments": arguments}
            number += 1
        if "tool_call_id" in message:
            message["tool_call_id"] = ids.get(message["tool_call_id"], message["tool_call_id"])


def _with_single_calls(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each call in a message of its own, before its result."""
    results = {message["tool_call_id"]: message for message in messages if "tool_call_id" in message}
    moved: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            if message.get("tool_call_id") not in moved:
                yield message
            continue
        for i, call in enumerate(calls):
            first = message if i == 0 else {"role": "assistant", "content": ""}
            yield {**first, "tool_calls": [call]}
            if (result := results.get(call["id"])) is not None:
                moved.add(call["id"])
                yield result


def _cannot(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' asks for something that this model cannot do: {why}",
        param=param,
        code="unsupported_parameter",
    )
