"""`penstock chat`: a conversation with a running gateway."""

from __future__ import annotations

import argparse

from gateway.cli.gateway_flags import add_gateway_flags, gateway_of


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    chat = commands.add_parser("chat", help="talk to a running gateway")
    chat.add_argument("message", nargs="*", help="send this and exit; without it, start a conversation")
    add_gateway_flags(chat)
    chat.add_argument("--model", default="", help="model or route; default: auto, else the first chat model")
    chat.add_argument("--system", help="system message")
    chat.add_argument("--max-tokens", type=int, help="maximum tokens per answer")
    chat.add_argument("--effort", help="reasoning_effort: none, low, medium, high …; default: the server's")
    chat.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Send the message, or converse until the input ends. Raises SettingsError."""
    from gateway.cli.terminal_chat import Terminal

    terminal = Terminal(
        *gateway_of(options),
        options.model,
        system=options.system,
        max_tokens=options.max_tokens,
        effort=options.effort,
    )
    return terminal.run(" ".join(options.message))
