"""What our engine does with each field of OpenAI's API: honoured, accepted, ignored or refused.

The tables are complete (a test compares them with OpenAI's published types) and serve as documentation.
Upstream models get every field forwarded instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.unknown_fields import MAX_COLLECTED
from policies.document import UnknownFields

MAX_LISTED = 16
"""Names of ignored fields in one response header."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Rule(NamedTuple):
    """How one field is treated. A refused or ignored one may still be null or one of the `harmless` values.

    "accepted": it asks for nothing that the answer could show. "ignored": it has no effect with this model,
    and the answer says so in a header, unless the policy refuses it.
    """

    verdict: Literal["honoured", "accepted", "ignored", "refused"]
    note: str = ""
    harmless: tuple[Any, ...] = ()
    choices: tuple[str, ...] = ()  # where OpenAI lists the values; an ignored field must have one of them


HONOURED = Rule("honoured")

SAMPLING: Mapping[str, Rule] = {
    "model": HONOURED,
    "stream": HONOURED,
    "stream_options": Rule("honoured", "include_usage; include_obfuscation (default: false)"),
    "temperature": HONOURED,
    "top_p": HONOURED,
    "n": HONOURED,
    "stop": Rule("honoured", "a string, or up to four; matched in the answer, not in the reasoning"),
    "seed": Rule("honoured", "same seed, same text, on CPUs in any batch; choice i uses seed + i"),
    "max_tokens": HONOURED,
    "presence_penalty": HONOURED,
    "frequency_penalty": HONOURED,
    "logit_bias": HONOURED,
    "user": Rule("accepted", "checked; the principal comes from the API key"),
    "top_k": Rule("honoured", "extension; 0 or -1: off"),
    "min_p": Rule("honoured", "extension"),
    "repetition_penalty": Rule("honoured", "extension"),
    "ignore_eos": Rule("honoured", "extension"),
    "min_tokens": Rule("honoured", "extension; a grammar that allows only the end takes precedence"),
    "stop_token_ids": Rule("honoured", "extension"),
    "response_format": Rule("honoured", "extension; as in chat"),
    "guided_json": Rule("honoured", "extension; a JSON schema, as an object or a string"),
    "guided_regex": Rule("honoured", "extension; for the whole answer"),
    "guided_choice": Rule("honoured", "extension; a list of strings"),
    "guided_grammar": Rule("honoured", "extension; Lark or GBNF"),
    "structured_outputs": Rule(
        "honoured", "extension; one of json, regex, choice, grammar, json_object, as in vLLM"
    ),
    "speculative": Rule(
        "honoured",
        "extension: drafter, max_tokens (for a drafter at most the policy's, for a prediction up to 64); "
        "affects only the speed",
    ),
}

CHAT: Mapping[str, Rule] = {
    **SAMPLING,
    "messages": Rule(
        "honoured", "text: string or parts; all roles but function; tool calls and their results"
    ),
    "max_completion_tokens": HONOURED,
    "logprobs": Rule("honoured", "of the answer's tokens, not of the reasoning"),
    "top_logprobs": HONOURED,
    "metadata": Rule("honoured", "returned in answers that are not streamed"),
    "add_generation_prompt": Rule("honoured", "extension"),
    "continue_final_message": Rule("honoured", "extension: continue the last assistant message"),
    "chat_template_kwargs": Rule("honoured", "extension: enable_thinking or thinking, a boolean; no others"),
    "include_reasoning": Rule("honoured", "extension; false: reason, but do not show it"),
    "thinking_token_budget": Rule("honoured", "extension: the reasoning is closed after that many tokens"),
    "safety_identifier": Rule("accepted", "checked; the principal comes from the API key"),
    "prompt_cache_key": Rule("accepted", "the prefix tree finds shared prefixes without it"),
    "prompt_cache_retention": Rule(
        "accepted", "an upper bound: KV memory keeps prompts for less than either value"
    ),
    "prompt_cache_options": Rule("ignored", "cache breakpoints", ({}, {"mode": "implicit"})),
    "service_tier": Rule(
        "ignored",
        "there is one tier",
        ("auto", "default"),
        choices=("auto", "default", "flex", "scale", "priority"),
    ),
    "store": Rule("honoured", "kept here as the policies' `responses` say, for every model"),
    "modalities": Rule("refused", "text only", (["text"],)),
    "response_format": Rule("honoured", "text, json_object, json_schema; applies after the reasoning"),
    "verbosity": Rule(
        "ignored", "local models have no such control", ("medium",), choices=("low", "medium", "high")
    ),
    "reasoning_effort": Rule(
        "honoured",
        "none: no reasoning; every other value: reasoning. Ignored where a model cannot do that",
    ),
    "reasoning": Rule("honoured", "extension, as OpenRouter's: effort, max_tokens, exclude, enabled"),
    "prediction": Rule("honoured", "content: a string or text parts; affects only the speed"),
    "audio": Rule("refused", "audio output"),
    "moderation": Rule("refused", "moderation inside the answer"),
    "web_search_options": Rule("refused", "web search"),
    "tools": Rule(
        "honoured", "functions, strict or not, and custom tools; refused where the chat template has no tools"
    ),
    "tool_choice": Rule(
        "honoured", "none, auto, required, a function, allowed_tools; a grammar enforces them"
    ),
    "parallel_tool_calls": Rule("honoured", "false: an answer ends after its first call"),
    "functions": Rule("refused", "deprecated by OpenAI in favour of 'tools'"),
    "function_call": Rule("refused", "deprecated by OpenAI in favour of 'tool_choice'"),
}

INERT: Mapping[str, Rule] = {
    name: Rule("refused", note, harmless)
    for name, note, harmless in (
        ("add_special_tokens", "the chat template adds them", (True, False)),
        ("allowed_token_ids", "token lists", ([],)),
        ("bad_words", "word lists", ([],)),
        ("cache_salt", "tenants never share a cache", ("",)),
        ("chat_template", "templates of a request", ("",)),
        ("detokenize", "answers are text", (True,)),
        ("documents", "documents for the chat template", ([],)),
        ("early_stopping", "beam search", (False,)),
        ("include_stop_str_in_output", "stop strings are left out", (False,)),
        ("kv_transfer_params", "transfers of KV memory", ({},)),
        ("length_penalty", "beam search", (1,)),
        ("logits_processors", "processors of logits", ([],)),
        ("mm_processor_kwargs", "processors of images", ({},)),
        ("models", "the policies' routes choose and fall back", ([],)),
        ("plugins", "plugins", ([],)),
        ("priority", "the policies set priorities", (0,)),
        ("prompt_logprobs", "log-probabilities of the prompt", (0, False)),
        ("provider", "the policies choose providers", ({},)),
        ("return_token_ids", "token ids in answers", (False,)),
        ("return_tokens_as_token_ids", "token ids in answers", (False,)),
        ("route", "the policies' routes choose and fall back", ("fallback",)),
        ("skip_special_tokens", "special tokens are never shown", (True,)),
        ("spaces_between_special_tokens", "special tokens are never shown", (True, False)),
        ("top_a", "this filter", (0,)),
        ("transforms", "prompts are not changed", ([],)),
        ("truncate_prompt_tokens", "prompts are not cut", (-1,)),
        ("usage", "every answer has it", ({"include": True}, {"include": False}, {})),
        ("use_beam_search", "beam search", (False,)),
        ("vllm_xargs", "arguments of vLLM's plugins", ({},)),
    )
}
"""Names of vLLM and OpenRouter that clients send with values that ask for nothing."""

PASSED = frozenset(
    {name for name, rule in CHAT.items() if rule.note.startswith("extension")} | set(INERT)
) - {"add_generation_prompt", "continue_final_message", "reasoning", "response_format", "usage", "models"} | {
    "frequency_penalty", "logit_bias", "presence_penalty", "seed",
}  # fmt: skip
"""Fields of a chat that requests of other APIs may have as well: extensions, and controls of sampling."""

COMPLETIONS: Mapping[str, Rule] = {
    **SAMPLING,
    "prompt": Rule("honoured", "a string, strings, token ids, or lists of token ids"),
    "echo": HONOURED,
    "logprobs": HONOURED,
    "best_of": Rule("honoured", "equal to n; more candidates are refused"),
    "suffix": Rule("refused", "insertion", ("",)),
}

EMBEDDINGS: Mapping[str, Rule] = {
    "model": HONOURED,
    "input": HONOURED,
    "encoding_format": Rule("honoured", "float or base64"),
    "dimensions": Rule("honoured", "the model's own number; others are refused"),
    "user": Rule("accepted", "checked; the principal comes from the API key"),
}


def check_supported(
    body: Mapping[str, Any], table: Mapping[str, Rule], model: str, unknown: UnknownFields | None = None
) -> list[str]:
    """Return the names of the fields that have no effect and that the policy, `unknown`, lets pass.

    Raises InvalidRequest for the first field that is refused.
    """
    ignored: list[str] = []
    for name, value in body.items():
        rule = table.get(name) or INERT.get(name)
        if rule is None:
            if unknown != "ignore" or len(ignored) >= MAX_COLLECTED:
                raise refusals.unknown_field(name, table)
            ignored.append(refusals.shown_name(name))
        elif rule.verdict in ("refused", "ignored") and value is not None and value not in rule.harmless:
            if rule.verdict == "refused" and name not in table and unknown == "ignore":
                ignored.append(name)
                continue
            if rule.verdict == "refused" or unknown == "refuse":
                raise _unsupported(name, value, model, rule)
            if rule.choices and value not in rule.choices:
                raise refusals.wrong_value(name, f"expected one of {', '.join(rule.choices)}", value)
            ignored.append(name)
    return ignored


def listed_names(names: Iterable[str]) -> str:
    """Field names for a response header: sorted, and of bounded length, as clients choose them.

    Characters that have a meaning there become "?"; names that do not fit are counted.
    """
    shown = sorted({_UNSAFE.sub("?", name[: refusals.MAX_NAME_CHARS]) for name in names})
    more = f", ... ({len(shown) - MAX_LISTED} more)" if len(shown) > MAX_LISTED else ""
    return ", ".join(shown[:MAX_LISTED]) + more


def _unsupported(name: str, value: object, model: str, rule: Rule) -> InvalidRequest:
    shown = refusals.got(value) if rule.choices or not isinstance(value, str) else ""  # may be prompt text
    instead = " or ".join(repr(each) for each in rule.harmless)
    remedy = f"Leave it out, or send {instead}." if instead else "Leave it out."
    return InvalidRequest(
        f"'{name}' is not supported with the model {model!r}{shown}: {rule.note}. {remedy}",
        param=name,
        code="unsupported_parameter",
    )
