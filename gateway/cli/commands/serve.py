"""`penstock serve`: runs the gateway and the engines of its models."""

from __future__ import annotations

import argparse

from gateway.cli.late_parser import LateParser
from gateway.cli.model_flags import add_model_flags

EPILOG = """\
variables, over which a flag wins, and their defaults:
{variables}

OTEL_EXPORTER_OTLP_ENDPOINT, _PROTOCOL and _HEADERS, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER_ARG and
OTEL_SDK_DISABLED are as OpenTelemetry defines them. The policies name the variables of other keys.
"""


def add(commands: argparse._SubParsersAction[LateParser]) -> None:
    """Declare the command."""
    serve = commands.add_parser(
        "serve",
        help="run the gateway and the engines of its models",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        declare=_declare,
    )
    serve.set_defaults(run=run)


def _declare(serve: argparse.ArgumentParser) -> None:
    known = variables()
    width = max(map(len, known))
    rows = [f"  {name:<{width}}  {_shown(default)}".rstrip() for name, default in known.items()]
    serve.epilog = EPILOG.format(variables="\n".join(rows))
    add_model_flags(serve)
    serve.add_argument("--host", help="address to listen on, default 127.0.0.1")
    serve.add_argument("--port", type=int, help="port to listen on, default 8080; 0: any free port")
    serve.add_argument("--workers", type=int, metavar="N", help="gateway processes, default 1")
    serve.add_argument(
        "--api-key",
        action="append",
        dest="api_keys",
        metavar="KEY",
        help="key that clients must send; may be repeated; $PENSTOCK_API_KEYS hides it from `ps`",
    )
    serve.add_argument(
        "--drain-timeout",
        type=float,
        dest="drain_timeout_s",
        metavar="SECONDS",
        help="how long open requests may take to finish at shutdown, default 30",
    )
    serve.add_argument("--access-log", action="store_true", default=None, help="log one line per request")


def variables() -> dict[str, object]:
    """The variables that a gateway reads, with their defaults; None where there is none."""
    from msgspec.structs import asdict

    from gateway import settings

    parts = (settings.Settings(), settings.Timeouts(), settings.HttpLimits())
    defaults = {name: value for part in parts for name, value in asdict(part).items()}
    found = {name: defaults[field] for name, (field, _) in settings.VARIABLES.items()}
    return found | dict.fromkeys(sorted(settings.OTHER_VARIABLES - {"PENSTOCK_URL"}))


def _shown(default: object) -> str:
    if isinstance(default, (int, float)):
        return f"{int(default) if isinstance(default, bool) else default:.15g}"
    return str(default) if default else ""


def run(options: argparse.Namespace) -> int:
    """Serve until a signal. Raises SettingsError, PolicyError or CheckpointError."""
    from gateway.cli.run_gateway import serve
    from gateway.cli.start import prepare

    names = ("host", "port", "workers", "drain_timeout_s", "access_log")
    flags = {name: getattr(options, name) for name in names}
    flags["api_keys"] = tuple(options.api_keys) if options.api_keys else None
    start = prepare(options, flags)
    return serve(start)
