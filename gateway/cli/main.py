"""`penstock init | serve | check | explain | replay | policy | models | chat | cache | eval | …`."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from backend.classifiers.weights import WeightsError
from backend.errors import CheckpointError, RequestError
from gateway import settings
from gateway.cli.cache_flags import add_cache
from gateway.cli.gateway_flags import add_gateway_flags, gateway_of
from gateway.cli.init.flags import add_init
from gateway.cli.init.plan import check_address
from gateway.cli.keys import add_keys
from gateway.cli.policy_flags import add_explain, add_policy, add_replay
from gateway.cli.policy_reference import reference_text
from gateway.cli.policy_schema import schema_text
from gateway.cli.releases.flags import add_models
from gateway.cli.router_flags import add_flags as add_router_flags
from gateway.cli.version import add_version
from gateway.evaluation.cache.inputs import add_flags as add_cache_flags
from gateway.evaluation.cache.inputs import read_plan as read_cache_plan
from gateway.evaluation.flags import add_data_flags, read_plan
from gateway.evaluation.flags import add_flags as add_evaluation_flags
from gateway.evaluation.guardrails.inputs import add_flags as add_guardrail_flags
from gateway.evaluation.guardrails.inputs import read_plan as read_guardrail_plan
from gateway.evaluation.route.flags import add_flags as add_route_flags
from gateway.evaluation.router.inputs import add_flags as add_router_eval_flags
from gateway.evaluation.router.inputs import read_plan as read_router_plan
from gateway.log import configure_logging, hide, without_hidden
from gateway.providers.upstream.tls import tls_context
from gateway.settings import Settings, SettingsError
from policies.check_routes import adapter_bases
from policies.document import EngineModel, ModelEntry, Policies
from policies.errors import PolicyError
from policies.load import merge_models
from policies.services import SERVICES
from policies.urls import api_url_fault

EXIT_USAGE = 2
_EVAL_PACKAGES = {"httpx2", "openai", "rich"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except (SettingsError, PolicyError, CheckpointError, RequestError, WeightsError) as error:
        hide(settings.environment_secrets())
        sys.stderr.write(f"penstock: {without_hidden(str(error))}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="penstock", description="An AI gateway with its own engine.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_init(commands.add_parser("init", help="write a first policy folder, from questions or flags"))
    _add_serve(commands.add_parser("serve", help="run the gateway and the engines of its models"))
    check = commands.add_parser(
        "check", help="validate a policy folder and the configuration of its checkpoints and adapters"
    )
    check.add_argument("policies", type=Path, metavar="DIR")
    check.set_defaults(run=_check)
    add_explain(commands.add_parser("explain", help="say which rule and model a request gets, and why"))
    add_replay(commands.add_parser("replay", help="decide about recorded requests with other policies"))
    add_policy(commands.add_parser("policy", help="show policies; reload or roll back those of a gateway"))
    chat = commands.add_parser("chat", help="talk to a running gateway")
    chat.add_argument("message", nargs="*", help="send this and exit; without it, start a conversation")
    add_gateway_flags(chat)
    chat.add_argument("--model", default="auto", help="model or route, default auto")
    chat.add_argument("--system", help="system message")
    chat.add_argument("--max-tokens", type=int, help="maximum tokens per answer")
    chat.add_argument("--effort", help="reasoning_effort: none, low, medium, high …; default: the server's")
    chat.set_defaults(run=_chat)
    add_models(commands.add_parser("models", help="list and promote the releases of models"))
    _add_adapters(commands.add_parser("adapters", help="list, load and unload adapters of a running gateway"))
    add_cache(commands.add_parser("cache", help="say why two prompts do or do not share an answer"))
    _add_guardrails(commands.add_parser("guardrails", help="say what each check makes of a text"))
    _add_eval(commands.add_parser("eval", help="measure models, cache, router and guardrails"))
    _add_router(commands.add_parser("router", help="train what predicts which model a prompt needs"))
    _add_batch(commands.add_parser("batch", help="answer a file of requests without a running server"))
    add_keys(commands.add_parser("keys", help="print the ids of API keys; make a key"))
    schema = commands.add_parser("schema", help="print the JSON Schema of policy documents")
    schema.add_argument("--markdown", action="store_true", help="print the reference page instead")
    schema.set_defaults(run=_schema)
    return parser


def _add_eval(evaluate: argparse.ArgumentParser) -> None:
    kinds = evaluate.add_subparsers(title="what to evaluate", required=True, metavar="KIND")
    models = kinds.add_parser("models", help="ask models of an OpenAI-compatible API test questions")
    add_evaluation_flags(models)
    add_data_flags(models)
    models.set_defaults(run=_eval_models)
    semantic_cache = kinds.add_parser(
        "cache", help="measure the semantic cache on pairs and streams of questions"
    )
    add_cache_flags(semantic_cache)
    semantic_cache.set_defaults(run=_eval_cache)
    route = kinds.add_parser("route", help="measure a route of a running gateway beside its models")
    add_evaluation_flags(route)
    add_route_flags(route)
    route.set_defaults(run=_eval_route)
    routing = kinds.add_parser("router", help="measure estimates of which model a prompt needs")
    add_router_eval_flags(routing)
    routing.set_defaults(run=_eval_router)
    guarding = kinds.add_parser("guardrails", help="measure the guardrails on labelled texts")
    add_guardrail_flags(guarding)
    guarding.set_defaults(run=_eval_guardrails)


def _add_guardrails(guardrails: argparse.ArgumentParser) -> None:
    kinds = guardrails.add_subparsers(title="what to do", required=True, metavar="ACTION")
    trying = kinds.add_parser("try", help="scores, thresholds, language and words that decided, of one text")
    add = trying.add_argument
    add("text", help="a text, or the path of a file that holds one")
    add(
        "--policies", type=Path, metavar="DIR", help="take the profile from here; default: injection and harm"
    )
    add("--profile", metavar="NAME", help="of the policies; default: their default profile")
    add("--segment", choices=("user", "system", "tool"), default="user", help="who wrote it, default user")
    trying.set_defaults(run=_guardrails_try)


def _add_router(router: argparse.ArgumentParser) -> None:
    kinds = router.add_subparsers(title="what to do", required=True, metavar="ACTION")
    train = kinds.add_parser("train", help="an estimate from outcomes")
    add_router_flags(train)
    train.set_defaults(run=_router_train)


def _add_serve(serve: argparse.ArgumentParser) -> None:
    _add_model_flags(serve)
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
    serve.set_defaults(run=_serve)


def _add_model_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--policies", type=Path, metavar="DIR", help="policy folder, default $PENSTOCK_POLICIES"
    )
    command.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=CHECKPOINT_DIR",
        help="serve a checkpoint in Hugging Face format; may be repeated",
    )
    command.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="NAME=BASE_URL[#MODEL]",
        help="add a model of an OpenAI-compatible API; MODEL is its name there; a known service such as "
        "ollama may stand for its BASE_URL; may be repeated",
    )
    command.add_argument(
        "--only",
        action="store_true",
        help="serve the models of --model and --upstream alone, without those that ship with Penstock",
    )


def _add_batch(batch: argparse.ArgumentParser) -> None:
    batch.add_argument("file", type=Path, metavar="FILE", help="one request per line, as for /v1/batches")
    batch.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="answers, then errors")
    _add_model_flags(batch)
    batch.set_defaults(run=_batch)


def _add_adapters(adapters: argparse.ArgumentParser) -> None:
    actions = adapters.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list loaded adapters and their base models")
    load = actions.add_parser("load", help="load an adapter, or reload it")
    unload = actions.add_parser("unload", help="unload an adapter; running requests finish")
    for action in (load, unload):
        action.add_argument("name")
        action.add_argument("--base", help="base model, required when several engines run")
    load.add_argument("path", help="absolute folder on the gateway's machine, or builtin:NAME")
    load.add_argument("--force", action="store_true", help="load it even if it names another base model")
    for action in (listing, load, unload):
        add_gateway_flags(action)
    adapters.set_defaults(run=_adapters)


def _adapters(options: argparse.Namespace) -> int:
    from gateway.cli.adapters import AdapterCommand

    command = AdapterCommand(*gateway_of(options), sys.stdout)
    if options.action == "load":
        return command.load(options.name, options.path, options.base, force=options.force)
    return command.unload(options.name, options.base) if options.action == "unload" else command.list()


def _serve(options: argparse.Namespace) -> int:
    from gateway.cli.serve import serve  # here: its imports would slow down the other commands

    names = ("host", "port", "workers", "drain_timeout_s", "access_log")
    flags = {name: getattr(options, name) for name in names}
    flags["api_keys"] = tuple(options.api_keys) if options.api_keys else None
    folder, chosen, policies, load = _prepare(options, flags)
    return serve(chosen, policies, load, folder)


def _batch(options: argparse.Namespace) -> int:
    from gateway.cli.batch import run_batch

    _, chosen, policies, load = _prepare(options, {})
    return run_batch(chosen, policies, load, options.file, options.output, sys.stderr)


def _prepare(
    options: argparse.Namespace, flags: dict[str, object]
) -> tuple[Path, Settings, Policies, Callable[[], tuple[Policies, Settings]]]:
    """The policy folder, settings and policies to serve, and what reads both again. Raises SettingsError."""
    from gateway.cli.read_policies import PolicyReader

    configure_logging()
    folder = options.policies or settings.default_policies()
    chosen = settings.read_settings(flags)
    hide(chosen.secrets)
    check_settings(chosen)
    if options.only:
        _check_only(options, folder)

    def complete(policies: Policies) -> tuple[Policies, Settings]:
        if options.only:
            policies = msgspec.structs.replace(policies, models={}, routes={})
        policies = with_flag_models(policies, options.model, options.upstream)
        check_checkpoints(policies, options.model)
        check_ca_bundles(policies)
        return policies, settings.with_policies(chosen, policies)

    reader = PolicyReader(folder, complete)
    policies, complete_settings = reader.first()
    return folder, complete_settings, policies, reader.again


def _check_only(options: argparse.Namespace, folder: Path) -> None:
    if not (options.model or options.upstream):
        raise SettingsError("--only leaves no model: add --model NAME=FOLDER or --upstream NAME=BASE_URL")
    if folder != settings.DEFAULT_POLICIES:
        raise SettingsError(
            f"--only is for a start without policies, and {str(folder)!r} lists the models that it serves"
        )


def check_checkpoints(policies: Policies, models: Sequence[str]) -> None:
    """Raise CheckpointError for a checkpoint that no engine can serve; `models` are `--model` flags."""
    from backend.server.engine_check import check_files, check_model  # here: slow to import
    from gateway.checkpoints import checkpoint_folder

    flagged = {text.partition("=")[0] for text in models}
    for name, entry in policies.models.items():
        if entry.engine is None:
            continue
        try:
            folder = checkpoint_folder(entry.engine.checkpoint)
            check_model(folder)
            check_files(folder)
        except CheckpointError as error:
            where = f"--model {name}" if name in flagged else f"models.{name}.engine.checkpoint"
            raise CheckpointError(f"{where}: {error}") from None


def with_flag_models(policies: Policies, models: Sequence[str], upstreams: Sequence[str]) -> Policies:
    """The policies plus the models of `--model` and `--upstream` flags. Raises SettingsError.

    A flag's model replaces the policies' model of the same name; all others stay.
    """
    added: dict[str, ModelEntry] = {}
    for text in models:
        name, value = _name_and_value("--model", text, "NAME=CHECKPOINT_DIR")
        folder = value if value.startswith("builtin:") else str(Path(value).expanduser().resolve())
        _check_given_once("--model", name, added)
        added[name] = ModelEntry(engine=EngineModel(checkpoint=folder))
    for text in upstreams:
        name, value = _name_and_value("--upstream", text, "NAME=BASE_URL[#MODEL]")
        url, _, remote = value.partition("#")
        _check_given_once("--upstream", name, added)
        added[name] = _upstream_entry(name, url, remote)
    kept = {base: found for base, found in _adapters_of(policies).items() if base not in added}
    adapters = {name for base, found in kept.items() for each in found for name in (each, f"{base}:{each}")}
    for taken, what in ((set(policies.routes), "a route"), (adapters, "an adapter")):
        if clash := sorted(set(added) & taken):
            raise SettingsError(f"{clash[0]!r} is the name of {what}; give the model another name")
    if not added:
        return policies
    merged = merge_models(policies, added)
    for place, action in merged.actions():
        for target in action.all_targets():
            if target not in merged.models and not adapter_bases(_adapters_of(merged), target):
                raise SettingsError(
                    f"{place} leads to {target!r}, an adapter of a model that the flags replace; "
                    "give the model another name"
                )
    return merged


def _adapters_of(policies: Policies) -> dict[str, list[str]]:
    engines = {name: entry.engine for name, entry in policies.models.items()}
    return {name: list(engine.adapters) for name, engine in engines.items() if engine is not None}


def _name_and_value(flag: str, text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise SettingsError(f"{flag} {text!r} must have the form {form}")
    return name, value


def _upstream_entry(name: str, url: str, remote: str) -> ModelEntry:
    """No message quotes the URL, which may hold a password."""
    address = url.rstrip("/")
    check_address(name, address)
    where, url = ("service", address) if address in SERVICES else ("base_url", url)
    try:
        entry = msgspec.convert({"upstream": {where: url, "model": remote or None}}, type=ModelEntry)
    except msgspec.ValidationError as error:
        raise SettingsError(f"--upstream {name} cannot be used: {error}") from None
    if entry.upstream is not None and (fault := api_url_fault(entry.upstream.base_url)):
        raise SettingsError(f"--upstream {name} cannot be used: the URL {fault}")
    return entry


def _check_given_once(flag: str, name: str, added: Mapping[str, ModelEntry]) -> None:
    if name in added:
        raise SettingsError(f"{flag} {name}: two flags give a model this name; give one another name")


def check_settings(chosen: Settings) -> None:
    """Raise SettingsError for values out of range, and for a public address without an API key."""
    if not 0 <= chosen.port <= 65535:
        raise SettingsError(f"--port {chosen.port} is not a port; use 0 to 65535")
    if chosen.workers < 1:
        raise SettingsError(f"--workers {chosen.workers} is too few; use 1 or more")
    if chosen.drain_timeout_s <= 0:
        raise SettingsError(f"--drain-timeout {chosen.drain_timeout_s:g} must be more than 0 seconds")
    if not all(key and key.isascii() and key.isprintable() for key in chosen.api_keys):
        raise SettingsError("an API key is empty or holds characters that an HTTP header cannot carry")
    if not chosen.api_keys and not settings.is_loopback(chosen.host):
        raise SettingsError(
            f"--host {chosen.host} can be reached from other machines, and no API key is configured: "
            "add --api-key KEY (or set PENSTOCK_API_KEYS), or leave --host at 127.0.0.1"
        )


def check_ca_bundles(policies: Policies) -> None:
    """Raise SettingsError for a CA bundle that cannot be read, before any worker starts."""
    for name, entry in policies.models.items():
        if entry.upstream is not None and entry.upstream.ca_bundle:
            try:
                tls_context(entry.upstream.ca_bundle)
            except SettingsError as error:
                raise SettingsError(f"models.{name}.upstream.ca_bundle: {error}") from None


def _check(options: argparse.Namespace) -> int:
    from gateway.cli.check import check

    hide(settings.environment_secrets())
    found = io.StringIO()
    try:
        return check(options.policies, found)
    finally:
        sys.stdout.write(without_hidden(found.getvalue()))


def _schema(options: argparse.Namespace) -> int:
    sys.stdout.write(reference_text() if options.markdown else schema_text())
    return 0


def _chat(options: argparse.Namespace) -> int:
    from gateway.cli.chat import Terminal

    terminal = Terminal(
        *gateway_of(options),
        options.model,
        system=options.system,
        max_tokens=options.max_tokens,
        effort=options.effort,
    )
    return terminal.run(" ".join(options.message))


def _eval_models(options: argparse.Namespace) -> int:
    plan = read_plan(options)
    with _eval_packages():
        from gateway.evaluation.command import evaluate_models
    return evaluate_models(plan)


def _guardrails_try(options: argparse.Namespace) -> int:
    from gateway.cli.try_guardrails import try_guardrails

    return try_guardrails(options, sys.stdout)


def _router_train(options: argparse.Namespace) -> int:
    from gateway.cli.train_router import train

    with _eval_packages():
        return train(options, sys.stdout)


def _eval_cache(options: argparse.Namespace) -> int:
    plan = read_cache_plan(options)
    with _eval_packages():
        from gateway.evaluation.cache.command import evaluate_cache
    return evaluate_cache(plan)


def _eval_route(options: argparse.Namespace) -> int:
    plan = read_plan(options)
    with _eval_packages():
        from gateway.evaluation.route.command import evaluate_route
    return evaluate_route(plan, options)


def _eval_router(options: argparse.Namespace) -> int:
    plan = read_router_plan(options)
    with _eval_packages():
        from gateway.evaluation.router.command import evaluate_router
    return evaluate_router(plan)


def _eval_guardrails(options: argparse.Namespace) -> int:
    plan = read_guardrail_plan(options)
    with _eval_packages():
        from gateway.evaluation.guardrails.command import evaluate_guardrails
    return evaluate_guardrails(plan)


@contextlib.contextmanager
def _eval_packages() -> Iterator[None]:
    """Name the optional packages that an import inside lacks."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EVAL_PACKAGES:  # an import of our own that is broken
            raise
        raise SettingsError(f"`penstock eval` needs {missing}: pip install 'penstock[eval]'") from None
