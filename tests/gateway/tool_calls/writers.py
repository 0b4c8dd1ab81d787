"""Calls as each family's chat template renders them, and what models write instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]
Writer = Callable[[Sequence[Call]], str]


def kind(value: object) -> str:
    """The JSON Schema type of a value."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def schemas(calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    """Schemas that these calls fit, by function name."""
    return {
        name: {"type": "object", "properties": {key: {"type": kind(value)} for key, value in values.items()}}
        for name, values in calls
    }


def text_of(value: object) -> str:
    """A value as templates print it between tags: strings as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _qwen3_coder(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{text_of(value)}\n</parameter>\n" for key, value in values.items())
        + "</function>\n</tool_call>"
        for name, values in calls
    )


def _seed_oss(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<seed:tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>{text_of(value)}</parameter>\n" for key, value in values.items())
        + "</function>\n</seed:tool_call>"
        for name, values in calls
    )


def _glm45(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>{name}\n"
        + "".join(
            f"<arg_key>{key}</arg_key>\n<arg_value>{text_of(value)}</arg_value>\n"
            for key, value in values.items()
        )
        + "</tool_call>"
        for name, values in calls
    )


def _minimax_m2(calls: Sequence[Call]) -> str:
    written = [
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{text_of(value)}</parameter>\n' for key, value in values.items())
        + "</invoke>\n"
        for name, values in calls
    ]
    return f"<minimax:tool_call>\n{''.join(written)}</minimax:tool_call>"


def _dsml(block: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        written = [
            f'<｜DSML｜invoke name="{name}">\n'
            + "".join(
                f'<｜DSML｜parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
                f"{text_of(value)}</｜DSML｜parameter>\n"
                for key, value in values.items()
            )
            + "</｜DSML｜invoke>\n"
            for name, values in calls
        ]
        return f"<｜DSML｜{block}>\n{''.join(written)}</｜DSML｜{block}>"

    return write


def _named(opening: str, call: str, between: str, closing: str) -> Writer:
    """`call` with NAME, NUMBER and ARGS."""

    def write(calls: Sequence[Call]) -> str:
        written = [
            call.replace("NAME", name)
            .replace("NUMBER", str(i))
            .replace("ARGS", json.dumps(values, ensure_ascii=False))
            for i, (name, values) in enumerate(calls)
        ]
        return opening + between.join(written) + closing

    return write


def _python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def gemma(value: object) -> str:
    """A value as Gemma 4's template prints it."""
    if isinstance(value, dict):
        keys = (key if key.isalnum() or key == "n_1" else gemma(key) for key in value)
        return "{" + ",".join(f"{key}:{gemma(value[k])}" for key, k in zip(keys, value, strict=True)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else str(value)


_DEEPSEEK = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_NAMED = '{"name": "NAME", "arguments": ARGS}'
_ACTION = '{"tool_call_id": "NUMBER", "tool_name": "NAME", "parameters": ARGS}'

WRITERS: dict[str, Writer] = {
    "hermes": _named("", f"<tool_call>\n{_NAMED}\n</tool_call>", "\n", ""),
    "llama3_json": _named("<|python_tag|>", '{"name": "NAME", "parameters": ARGS}', "; ", ""),
    "mistral": _named("[TOOL_CALLS][", _NAMED, ", ", "]"),
    "pythonic": lambda calls: f"<|python_start|>[{', '.join(map(_python_call, calls))}]<|python_end|>",
    "lfm2": lambda calls: f"<|tool_call_start|>[{', '.join(map(_python_call, calls))}]<|tool_call_end|>",
    "olmo3": lambda calls: "<function_calls>" + "\n".join(map(_python_call, calls)) + "</function_calls>",
    "gemma4": lambda calls: "".join(
        f"<|tool_call>call:{name}{gemma(values)}<tool_call|>" for name, values in calls
    ),
    "qwen3_coder": _qwen3_coder,
    "seed_oss": _seed_oss,
    "glm45": _glm45,
    "minimax_m2": _minimax_m2,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "deepseek_v3": _named(
        _DEEPSEEK[0],
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGS\n```<｜tool▁call▁end｜>",
        "\n",
        _DEEPSEEK[1],
    ),
    "deepseek_v31": _named(
        _DEEPSEEK[0], "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGS<｜tool▁call▁end｜>", "", _DEEPSEEK[1]
    ),
    "kimi_k2": _named(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.NAME:NUMBER<|tool_call_argument_begin|>ARGS<|tool_call_end|>",
        "",
        "<|tool_calls_section_end|>",
    ),
    "cohere": _named("<|START_ACTION|>[\n    ", _ACTION, ",\n    ", "\n]<|END_ACTION|>"),
    "granite": _named("<|tool_call|>[", _NAMED, ", ", "]"),
    "phi4_mini_json": _named("<|tool_call|>[", _NAMED, ", ", "]<|/tool_call|>"),
    "nemotron_json": _named("<TOOLCALL>[", _NAMED, ", ", "]</TOOLCALL>"),
    "hunyuan_a13b": _named("<tool_calls>[", _NAMED, ", ", "]</tool_calls>"),
    "harmony": lambda calls: "".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{json.dumps(values, ensure_ascii=False)}<|call|>"
        for name, values in calls
    ),
    "apertus": _named("<|tools_prefix|>[", '{"NAME": ARGS}', ", ", "]<|tools_suffix|>"),
}
"""By the syntax's name."""
