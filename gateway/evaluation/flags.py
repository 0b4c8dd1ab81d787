"""The flags of `penstock eval models`, and the validated plan made from them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from gateway import settings
from gateway.evaluation.outputs import Outputs, add_output_flags, read_outputs
from gateway.evaluation.own.graders import GRADERS
from gateway.evaluation.own.rows import OwnData, read_data
from gateway.evaluation.price import TokenPrice
from gateway.gateway_url import gateway_url
from gateway.settings import SettingsError
from policies.urls import is_loopback

DEFAULT_LIMIT = 20
ALL_TIERS = "1-5"
EFFORTS = ("none", "low", "medium", "high")
PER_MILLION = 1_000_000
DESCRIPTION = """
Asks the held-out test questions of the pico family and grades the answers. Graders are exact about form, in
which pico was trained: "The answer is 91." is wrong where "91" is right, and so are a missing unit, a list
in brackets, JSON in a code fence and words before a tool call. Other models therefore score lower than they
could; --json keeps their answers. A question whose request fails counts as not right;
questions that offer tools are skipped where the server refuses tools.
"""
DATA_DESCRIPTION = """
A line of --data is {"prompt": TEXT, "expected": VALUE}, or has `messages` (and perhaps `tools`) in place of
`prompt`. Its `grader` is exact (the whole answer is `expected`, or one of a list; `ignore_case`), regex (the
RE2 expression `expected` matches somewhere), json (the same value; `subset`: objects may have more keys),
numeric (the last number; `tolerance`, `relative_tolerance`) or judge (--judge decides by `expected` or
`rubric`). `group` names its row in the table, `id` the line. The file of --json serves as the evaluation of a
release.
"""
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")


@dataclass(frozen=True, slots=True)
class ModelsPlan:
    """What to ask which models; validated as far as possible without the server."""

    base_url: str
    api_key: str
    proxy: str  # URL, which may hold a password; "" for none
    models: tuple[tuple[str, str], ...]  # (name, effort); none: those that the server lists as its own
    effort: str  # of models that name none; "" leaves it to the server
    prices: dict[str, TokenPrice]  # by model
    families: tuple[str, ...]
    tiers: tuple[int, ...]
    limit: int  # of a family and tier, as of the embedded questions
    seed: int
    max_tokens: int
    concurrency: int
    timeout_s: float
    outputs: Outputs = Outputs()
    data: OwnData | None = None  # in place of the embedded questions
    judge: str = ""  # the model that grades, of own questions


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of own questions."""
    parser.epilog = DATA_DESCRIPTION
    own = parser.add_argument_group("questions of your own")
    add = own.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="JSON lines, in place of pico's questions",
    )
    add("--grader", choices=GRADERS, help="of lines that name none, default exact")
    add("--judge", metavar="MODEL", help="the model that grades where the grader is judge")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags and the description."""
    parser.description = DESCRIPTION
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        metavar="NAME[@EFFORT]",
        help="evaluate this one; may be repeated; default: every model of the server's own engines",
    )
    add("--url", help="an OpenAI-compatible API, default $PENSTOCK_URL or http://127.0.0.1:8080/v1")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--api-key", metavar="KEY", help="the API key; a variable hides it from `ps`")
    keys.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="the variable that holds the API key; for this machine the default is $PENSTOCK_API_KEYS",
    )
    add("--tiers", default=ALL_TIERS, help="for example 1,2,5 or 1-3; default all")
    add("--families", default="", help="names separated by commas; default all")
    add(
        "--limit",
        type=int,
        metavar="N",
        help="questions per family and tier, default 20; of a group of --data",
    )
    parser.set_defaults(data=[], grader=None, judge=None)
    add("--reasoning", choices=EFFORTS, default="", help="the reasoning_effort of models without @EFFORT")
    add("--max-tokens", type=int, default=1024, metavar="N", help="per answer, default 1024; 0: no limit")
    add("--concurrency", type=int, default=8, metavar="N", help="requests at once, default %(default)s")
    add(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="per answer, retries included, default 300",
    )
    add("--seed", type=int, default=0, help="seed of the questions, default 0")
    add(
        "--price",
        action="append",
        default=[],
        metavar="MODEL=IN,OUT",
        help="USD per million input and output tokens; default: the prices that the server lists",
    )
    add_output_flags(
        parser,
        "all results there, each answer included",
        "quality against cost, or against seconds if no cost is known",
    )


def read_plan(options: argparse.Namespace) -> ModelsPlan:
    """Validate the flags. Raises SettingsError."""
    from backend.pico.tasks import FAMILIES  # not needed by other commands

    base_url = _base_url(options.url or settings.default_url())
    for flag, value, least in (
        ("--limit", 1 if options.limit is None else options.limit, 1),
        ("--concurrency", options.concurrency, 1),
        ("--max-tokens", options.max_tokens, 0),
    ):
        if value < least:
            raise SettingsError(f"{flag} {value} must be {least} or more")
    if not options.timeout > 0:
        raise SettingsError(f"--timeout {options.timeout:g} must be more than 0 seconds")
    return ModelsPlan(
        base_url=base_url,
        api_key=_api_key(options, base_url),
        proxy=settings.environment_proxy(base_url),
        models=tuple(dict.fromkeys(_model(text, options.reasoning) for text in options.model)),
        effort=options.reasoning,
        prices=dict(_price(text) for text in options.price),
        families=_families(options.families, FAMILIES),
        tiers=_tiers(options.tiers, {tier for family in FAMILIES.values() for tier in family.tiers}),
        limit=DEFAULT_LIMIT if options.limit is None else options.limit,
        seed=options.seed,
        max_tokens=options.max_tokens,
        concurrency=options.concurrency,
        timeout_s=options.timeout,
        outputs=read_outputs(options),
        data=_own_data(options),
        judge=options.judge or "",
    )


def _own_data(options: argparse.Namespace) -> OwnData | None:
    if not options.data:
        if options.grader or options.judge:
            raise SettingsError("--grader and --judge are for the questions of --data FILE")
        return None
    if options.families or options.tiers != ALL_TIERS or options.seed:
        raise SettingsError("--families, --tiers and --seed are for pico's questions; --data has its own")
    found = read_data(options.data, options.grader or "exact", options.limit)
    if found.needs_judge and not options.judge:
        raise SettingsError("--data has questions for a judge: name the model that grades with --judge MODEL")
    return found


def _base_url(text: str) -> str:
    """Add /v1 to a URL without a path."""
    if not _URL.fullmatch(text):
        raise SettingsError(f"--url {text!r} must have the form http://HOST:PORT/v1 or https://HOST/v1")
    gateway_url(text)
    text = text.rstrip("/")
    return text if urlsplit(text).path else f"{text}/v1"


def _api_key(options: argparse.Namespace, base_url: str) -> str:
    if options.api_key is not None:
        return settings.client_key(options.api_key)
    if options.api_key_env is not None:
        return settings.api_key_of(options.api_key_env)
    # The local gateway's key is never sent to another server.
    is_ours = is_loopback(urlsplit(base_url).hostname or "") or base_url == _base_url(settings.default_url())
    return settings.client_key(None) if is_ours else ""


def _model(text: str, effort: str) -> tuple[str, str]:
    name, at, suffix = text.rpartition("@")
    if at and name and suffix in EFFORTS:
        return name, suffix
    if not text:
        raise SettingsError("--model '' names no model")
    return text, effort


def _price(text: str) -> tuple[str, TokenPrice]:
    model, _, prices = text.rpartition("=")
    try:
        read, written = (Decimal(part) / PER_MILLION for part in prices.split(","))
    except (InvalidOperation, ValueError):
        read = written = Decimal(-1)
    if not model or not (read.is_finite() and written.is_finite()) or min(read, written) < 0:
        raise SettingsError(
            f"--price {text!r} must have the form MODEL=IN,OUT in USD per million tokens, such as a=0.1,0.4"
        )
    return model, TokenPrice(read, written)


def _families(text: str, known: Iterable[str]) -> tuple[str, ...]:
    names = sorted(known)
    chosen = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in chosen:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
            raise SettingsError(f"--families names the unknown family {name!r}; {hint}")
    return chosen or tuple(names)


def _tiers(text: str, known: Iterable[int]) -> tuple[int, ...]:
    chosen: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d)\s*(?:-\s*(\d)\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not _are_known(range(first, last + 1), known):
            raise SettingsError(
                f"--tiers {text!r} must be tiers of 1 to {max(known)}, such as 1,2,5 or 1-3; wrong: {part!r}"
            )
        chosen.update(range(first, last + 1))
    return tuple(sorted(chosen))


def _are_known(tiers: Sequence[int], known: Iterable[int]) -> bool:
    return bool(tiers) and set(tiers) <= set(known)
