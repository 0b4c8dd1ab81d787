"""The questions of `penstock init` on a terminal: a wrong answer is asked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.cli.init.plan import (
    CACHES,
    EMBEDDED,
    GUARDS,
    Plan,
    engine_of,
    make_plan,
    tenant_of,
    upstream_of,
    variable_of,
)
from gateway.settings import SettingsError

Ask = Callable[[str], str]
_T = TypeVar("_T")


def ask_plan(ask: Ask, tell: Callable[[str], object], check_engine: Callable[[str], object]) -> Plan:
    """The plan of a person's answers. Raises EOFError where the input ends.

    `check_engine` raises SettingsError for a checkpoint that cannot be served.
    """
    tell(
        "Empty answers take what is in brackets. Ctrl-C leaves; nothing is written before the last answer.\n"
    )
    embedded = _again(ask, tell, f"Serve the embedded models {' and '.join(EMBEDDED)}? [yes] ", _yes)
    models = _several(ask, tell, "Checkpoint to run, as NAME=FOLDER [no more]: ", check_engine)
    upstreams: list[str] = []
    variables: list[str] = []
    while text := _again(
        ask, tell, "API to call, as NAME=URL#MODEL or NAME=SERVICE#MODEL [no more]: ", _optional(_upstream)
    ):
        upstreams.append(text)
        found = upstream_of(text, {})
        question = f"  variable that holds its key, - for none [{found.key_variable or '-'}]: "
        given = _again(ask, tell, question, _variable)
        if given:
            variables.append(f"{found.name}={'' if given == '-' else given}")
    tell("Tenants each get a key; without any, only this machine can call, and needs none.\n")
    tenants = _several(ask, tell, "Tenant, a name [no more]: ", tenant_of)
    cache = _again(ask, tell, f"Cache of answers: {', '.join(CACHES)} [exact] ", _choice(CACHES, "exact"))
    guardrails = _again(ask, tell, f"Guardrails: {', '.join(GUARDS)} [mask] ", _choice(GUARDS, "mask"))
    return make_plan(
        models, upstreams, variables, tenants, embedded=embedded, cache=cache, guardrails=guardrails
    )


def _again(ask: Ask, tell: Callable[[str], object], question: str, read: Callable[[str], _T]) -> _T:
    while True:
        try:
            return read(ask(question).strip())
        except SettingsError as error:
            tell(f"  {error}\n")


def _several(
    ask: Ask, tell: Callable[[str], object], question: str, check: Callable[[str], object]
) -> list[str]:
    found: list[str] = []
    while text := _again(ask, tell, question, _optional(check)):
        found.append(text)
    return found


def _optional(check: Callable[[str], object]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text:
            check(text)
        return text

    return read


def _upstream(text: str) -> object:
    return upstream_of(text, {})


def _variable(text: str) -> str:
    return text if text == "-" else variable_of(text)


def _yes(text: str) -> bool:
    if text.lower() not in {"", "y", "yes", "n", "no"}:
        raise SettingsError("answer yes or no")
    return text.lower() in {"", "y", "yes"}


def _choice(choices: Sequence[_T], default: _T) -> Callable[[str], _T]:
    def read(text: str) -> _T:
        if not text:
            return default
        found = next((each for each in choices if each == text.lower()), None)
        if found is None:
            raise SettingsError(f"answer one of {', '.join(map(str, choices))}")
        return found

    return read


def checkpoint_of(text: str) -> str:
    """The checkpoint of `NAME=FOLDER`. Raises SettingsError."""
    return engine_of(text).checkpoint
