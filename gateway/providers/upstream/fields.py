"""What an API that is not OpenAI's does with each field of a chat."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gateway.requests.field_support import CHAT, HONOURED, Rule

_HONOURED = (
    "model", "messages", "stream", "stream_options", "temperature", "top_p", "stop", "max_tokens",
    "max_completion_tokens", "response_format", "reasoning_effort", "include_reasoning", "tools",
    "tool_choice", "reasoning",
)  # fmt: skip
_ACCEPTED = ("metadata", "prompt_cache_key", "prompt_cache_retention", "user", "safety_identifier")
_HARMLESS = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "store": (False,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
}


def field_rules(api: str, honoured: Iterable[str] = (), lacking: Collection[str] = ()) -> Mapping[str, Rule]:
    """The rule of every field; the API has the `honoured` ones besides the usual, of which it lacks some."""
    none = Rule("refused", f"{api} has no such field")
    ignored = Rule("ignored", f"{api} has no such field")
    speed = Rule("ignored", "it affects only the speed")
    rules = {name: none._replace(harmless=values) for name, values in _HARMLESS.items()}
    rules |= dict.fromkeys(_ACCEPTED, Rule("accepted"))
    no_end = f"{api} does not continue an answer: the last message must be the user's or a tool's"
    rules |= {
        "continue_final_message": Rule("refused", no_end, (False,)),
        "add_generation_prompt": ignored._replace(harmless=(True,)),
        "verbosity": ignored._replace(harmless=("medium",)),
        "service_tier": CHAT["service_tier"],
        "prompt_cache_options": ignored._replace(harmless=({},)),
        "thinking_token_budget": ignored,
        "prediction": speed,
        "speculative": speed,
    }
    usual = (name for name in _HONOURED if name not in lacking)
    rules |= dict.fromkeys((*usual, *honoured), HONOURED)
    return {name: rules.get(name, none) for name in CHAT}
