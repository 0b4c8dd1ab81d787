"""The `penstock` command: one module of `commands` for each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from gateway.cli.commands import (
    adapters,
    batch,
    cache,
    chat,
    check,
    endpoint_picker,
    engine,
    eval,
    explain,
    guardrails,
    init,
    keys,
    models,
    policy,
    replay,
    router,
    schema,
    serve,
    top,
    usage,
)
from gateway.cli.late_parser import LateParser
from gateway.cli.policy_folder import take_folder
from gateway.cli.version import add_version

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130
COMMANDS = (
    init, serve, engine, endpoint_picker, check, explain, replay, policy, chat, models, adapters, cache,
    guardrails, eval, router, batch, keys, usage, top, schema,
)  # fmt: skip
"""In the order of `penstock --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = parse(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        if needs := getattr(options, "needs", ()):
            from gateway.extras import require

            require("this command", needs)
        return run(options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        from gateway.cli.user_errors import USER_ERRORS, tell

        if not isinstance(error, USER_ERRORS):
            raise
        tell(error)
        return EXIT_USAGE


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command's options, with its function `run`. Ends the process where they are wrong."""
    parser = LateParser(prog="penstock", description="An AI gateway with its own engine.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    options, rest = parser.parse_known_args(arguments)
    if rest := take_folder(options, rest):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    found: argparse.Namespace = options
    return found
