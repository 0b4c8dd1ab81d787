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


WRITERS: dict[str, Writer] = {
    "qwen3_coder": _qwen3_coder,
    "seed_oss": _seed_oss,
    "glm45": _glm45,
    "minimax_m2": _minimax_m2,
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
}
"""By the syntax's name."""
