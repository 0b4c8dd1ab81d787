"""`penstock eval`: measures models, cache, router and guardrails."""

from __future__ import annotations

import argparse

from gateway.cli.late_parser import LateParser

OFFLINE = ["eval", "semantic"]
"""The extras of what runs an encoder itself."""


def add(commands: argparse._SubParsersAction[LateParser]) -> None:
    """Declare the kinds of evaluation."""
    evaluate = commands.add_parser("eval", help="measure models, cache, router and guardrails")
    evaluate.set_defaults(run=run)
    kinds = evaluate.add_subparsers(title="what to evaluate", dest="kind", required=True, metavar="KIND")
    for name, text, declare, needs in (
        ("models", "ask models of an OpenAI-compatible API test questions", _models_flags, ["eval"]),
        ("cache", "measure the semantic cache on pairs and streams of questions", _cache_flags, OFFLINE),
        ("route", "measure a route of a running gateway beside its models", _route_flags, ["eval"]),
        ("router", "measure estimates of which model a prompt needs", _router_flags, OFFLINE),
        ("guardrails", "measure the guardrails on labelled texts", _guardrails_flags, OFFLINE),
    ):
        kinds.add_parser(name, help=text, declare=declare).set_defaults(needs=needs)


def run(options: argparse.Namespace) -> int:
    """Measure, print and write. Raises SettingsError or WeightsError."""
    measure = {
        "models": _models,
        "cache": _cache,
        "route": _route,
        "router": _router,
        "guardrails": _guardrails,
    }
    return measure[options.kind](options)


def _models_flags(parser: argparse.ArgumentParser) -> None:
    from gateway.evaluation.flags import add_data_flags, add_flags

    add_flags(parser)
    add_data_flags(parser)


def _models(options: argparse.Namespace) -> int:
    from gateway.evaluation.command import evaluate_models
    from gateway.evaluation.flags import read_plan

    return evaluate_models(read_plan(options))


def _cache_flags(parser: argparse.ArgumentParser) -> None:
    from gateway.evaluation.cache.inputs import add_flags

    add_flags(parser)


def _cache(options: argparse.Namespace) -> int:
    from gateway.evaluation.cache.command import evaluate_cache
    from gateway.evaluation.cache.inputs import read_plan

    return evaluate_cache(read_plan(options))


def _route_flags(parser: argparse.ArgumentParser) -> None:
    from gateway.evaluation.route.flags import add_flags

    add_flags(parser)


def _route(options: argparse.Namespace) -> int:
    from gateway.evaluation.route.command import evaluate_route
    from gateway.evaluation.route.flags import read_plan

    return evaluate_route(read_plan(options))


def _router_flags(parser: argparse.ArgumentParser) -> None:
    from gateway.evaluation.router.inputs import add_flags

    add_flags(parser)


def _router(options: argparse.Namespace) -> int:
    from gateway.evaluation.router.command import evaluate_router
    from gateway.evaluation.router.inputs import read_plan

    return evaluate_router(read_plan(options))


def _guardrails_flags(parser: argparse.ArgumentParser) -> None:
    from gateway.evaluation.guardrails.inputs import add_flags

    add_flags(parser)


def _guardrails(options: argparse.Namespace) -> int:
    from gateway.evaluation.guardrails.command import evaluate_guardrails
    from gateway.evaluation.guardrails.inputs import read_plan

    return evaluate_guardrails(read_plan(options))
