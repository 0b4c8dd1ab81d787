"""gpt-oss: a message to a recipient, `<|channel|>commentary to=functions.NAME …<|message|>{…}<|call|>`.

`HarmonySplitter` brings every such message to this form.
"""

from __future__ import annotations

import re

from gateway.tool_calls.call_syntax import CallSink, Matcher, container, next_tag, nonspace, text_before
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import CallForm, Syntax

MESSAGE, END, TEXT_END = "<|message|>", "<|call|>", "<|end|>"
_RECIPIENT = re.compile(r"(?:functions\.)?([\w.-]+)\s*(?:<\|constrain\|>)?\s*[\w.+/-]*\s*")


def _match(sink: CallSink) -> Matcher[None]:
    header = _RECIPIENT.fullmatch((yield from text_before(MESSAGE)))
    if header is None:
        raise NotACall
    sink.begin(header[1])
    if (char := (yield from nonspace())) != "{":
        raise NotACall
    yield from container(char, sink.put)
    sink.end()
    if not (yield from next_tag((END,)))[0]:
        raise NotACall


_ROLE = "<|start|>assistant<|channel|>"
_FORM = CallForm(
    "",
    _ROLE + "commentary to=functions.{name} <|constrain|>json<|message|>",
    "",
    END,
    text=_ROLE + "final<|message|>",
    preamble=(_ROLE + "commentary<|message|>", TEXT_END),
)
HARMONY = Syntax(
    "harmony",
    _match,
    marks=("<|channel|>commentary to=", "<|channel|>analysis to="),
    tokens=("<|start|>", "<|channel|>", "<|constrain|>", MESSAGE, END, TEXT_END),
    endings=(END,),
    form=_FORM,
    merges_text=True,
    has_single_calls=True,
)
