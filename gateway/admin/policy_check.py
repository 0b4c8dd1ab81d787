"""What is wrong with a policy folder and the files that it names, each with its line."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import msgspec

from backend.classifiers.weights import WeightsError
from backend.encoder.checkpoint import Checkpoint, Reading, check_runtime, read_checkpoint
from backend.encoder.language import LANGUAGES
from backend.errors import AdapterError, CheckpointError
from backend.server.engine_check import check_adapter, check_context, check_model, check_quantize, check_ranks
from backend.tokenizer import Tokenizer
from gateway.admin.encoder_check import encoder_problems
from gateway.checkpoints import adapter_folder, check_drafters, checkpoint_folder, drafter_entries
from gateway.errors import ApiError
from gateway.exchange.prompt_embedding import Embed
from gateway.extras import extra_problems, lacks_of
from gateway.providers.engine.remote import tls_of
from gateway.providers.upstream.apis import APIS, open_api
from gateway.providers.upstream.tls import tls_context
from gateway.requests.reasoning import default_effort_error
from gateway.routing.probe_result import failures
from gateway.settings import SettingsError
from guardrails.checks.check import CHECK_ERRORS, open_check
from guardrails.checks.patterns import LinearRule
from guardrails.scan.pattern_prefix import UnsupportedPattern
from policies.comparisons import Known, doubts
from policies.convert import KeyPath, nearest_place
from policies.document import EncoderModel, EngineModel, ModelEntry, Policies
from policies.errors import PolicyError, Problem
from policies.languages import LANGUAGES as ISO_LANGUAGES
from policies.load import Loaded, load_folder, without_secrets
from policies.names import nearest
from policies.probes import Probe
from policies.routes import Rule
from policies.time_limit import check_time
from router.estimate import load_estimate

PROBES_LIMIT_S = 60.0
"""Seconds for all probes together: a reload waits for them."""

Check = tuple[KeyPath, Callable[[], object]]
"""A key of the policies, and what raises an error about its value."""


def load_checked(folder: Path, tenants: Collection[str] = ()) -> Loaded:
    """Load the folder, check the files that it names and run its probes. Raises PolicyError.

    `tenants`: those that callers can be whatever the policies say.
    """
    return check_loaded(load_folder(folder, tenants))


def check_loaded(loaded: Loaded, embed: Embed | None = None, *, is_trusted: bool = True) -> Loaded:
    """The same for what has been loaded. `embed`: what gives vectors in place of an encoder of its own.

    Unless it is trusted, no file that it names is opened, no package imported and no probe run.
    """
    problems = [*extra_problems(loaded), *_broken_patterns(loaded)]
    if is_trusted:
        problems += _broken_parts(loaded)
    if is_trusted and not problems and (loaded.policies.probes or loaded.policies.guardrails.profiles):
        problems += asyncio.run(_failed_probes(loaded, embed))
    if problems:
        raise PolicyError([without_secrets(problem, loaded.secrets) for problem in problems])
    warnings = [*loaded.warnings, *_undetected_languages(loaded)]
    return dataclasses.replace(loaded, warnings=warnings)


def _broken_parts(loaded: Loaded) -> Iterator[Problem]:
    """Problems of the files and packages that the policies name."""
    for key, run in _named_parts(loaded.policies):
        check_time()
        try:
            run()
        except (CheckpointError, AdapterError, SettingsError, WeightsError) as error:
            yield Problem(nearest_place(loaded.places, key), f"{'.'.join(key)}: {error}")
    yield from _broken_checks(loaded)
    yield from encoder_problems(loaded)


def _named_parts(policies: Policies) -> Iterator[Check]:
    lacking = lacks_of(policies)
    for name, entry in policies.models.items():
        path: KeyPath = ("models", name, entry.kind)
        if path not in lacking:
            yield from (((*path, *keys), run) for keys, run in _checks(name, entry))
    for place, action in policies.actions():
        section = action.choose or action.cascade
        if section is not None and section.estimate is not None:
            key = (*place.split("."), action.destination, "estimate")
            yield key, partial(load_estimate, section.estimate)


def _undetected_languages(loaded: Loaded) -> Iterator[Problem]:
    """Conditions that compare the language with one that no text is found to be in."""
    others = "|".join(code for code in ISO_LANGUAGES if code not in LANGUAGES)
    known = Known((), f"(?!(?:{others})$).*", "language that can be detected")
    told = {warning.place for warning in loaded.warnings}
    for path, action in loaded.policies.actions():
        if isinstance(action, Rule) and action.when:
            place = nearest_place(loaded.places, (*path.split("."), "when"))
            for doubt in () if place in told else doubts(action.when, {"signals.language": known}):
                yield Problem(place, doubt)


def _broken_patterns(loaded: Loaded) -> Iterator[Problem]:
    for name, profile in loaded.policies.guardrails.profiles.items():
        for pattern, rules in profile.patterns.items():
            check_time()
            if rules.regex is None:
                continue
            try:
                LinearRule(rules.regex, lambda: None)
            except UnsupportedPattern as error:
                key = ("guardrails", "profiles", name, "patterns", pattern, "regex")
                yield Problem(nearest_place(loaded.places, key), f"{'.'.join(key)} cannot be used: {error}")


def _broken_checks(loaded: Loaded) -> Iterator[Problem]:
    for name, profile in loaded.policies.guardrails.profiles.items():
        for own, rules in profile.checks.items():
            try:
                open_check(rules)
            except CHECK_ERRORS as error:
                part = "options" if isinstance(error, msgspec.ValidationError) else "check"
                key = ("guardrails", "profiles", name, "checks", own, part)
                yield Problem(nearest_place(loaded.places, key), f"{'.'.join(key)}: {error}")


def _remedy(error: ApiError, probe: Probe, loaded: Loaded) -> str:
    """What is wrong with a probe's request, in the terms of the policies."""
    if error.code != "model_not_found":
        return error.message
    model, known = str(probe.body()["model"]), [*loaded.policies.names(), *loaded.policies.routes]
    default = "" if "model" in probe.request else ", its default; set `request: {model: NAME}`"
    return f"no model or route is called {model!r}{default}{nearest(model, known)}"


async def _failed_probes(loaded: Loaded, embed: Embed | None) -> list[Problem]:
    from gateway.pipeline.dry_run import DryRun  # here: it imports the whole pipeline of requests

    dry_run = DryRun(loaded.policies, embed=embed)
    found: list[Problem] = []
    give_up_s = time.monotonic() + PROBES_LIMIT_S
    for name, probe in loaded.policies.probes.items():
        check_time()
        place = loaded.places["probes", name]
        if time.monotonic() > give_up_s:
            text = f"has not run: those before it took over {PROBES_LIMIT_S:g} s; make them fewer or shorter"
            return [*found, Problem(place, f"probe {name!r} {text}")]
        try:
            decision = await dry_run.probe(probe)
        except ApiError as error:
            found.append(
                Problem(place, f"probe {name!r} has no valid request: {_remedy(error, probe, loaded)}")
            )
            continue
        found += [Problem(place, f"probe {name!r}: {failure}") for failure in failures(probe, decision)]
    return found


def _checks(name: str, entry: ModelEntry) -> Iterator[Check]:
    if entry.engine is not None:
        yield from _engine_checks(name, entry.engine)
    elif entry.encoder is not None:
        encoder = entry.encoder
        yield ("checkpoint",), lambda: encoder_checkpoint(encoder)
    elif entry.upstream is not None:
        api, ca_bundle = entry.upstream.api, entry.upstream.ca_bundle or ""
        if api not in APIS:  # the built-in ones import only what `extra_problems` looks for
            yield ("api",), lambda: open_api(name, api)
        yield ("ca_bundle",), lambda: tls_context(ca_bundle)


def encoder_checkpoint(encoder: EncoderModel) -> Checkpoint:
    """What its files say. Raises CheckpointError."""
    reading = Reading(encoder.prompt, encoder.prompt_name, encoder.pooling)
    found = read_checkpoint(encoder.checkpoint, reading)
    check_runtime(found, is_int8=encoder.dtype == "int8")
    return found


def _engine_checks(name: str, engine: EngineModel) -> Iterator[Check]:
    """The checkpoint first: where that is wrong, the other files cannot be compared with it."""
    try:
        folder = checkpoint_folder(engine.checkpoint)
        check_model(folder)
        tokenizer = Tokenizer.from_checkpoint(folder)
    except CheckpointError as error:
        yield ("checkpoint",), _raiser(error)
        return
    yield ("max_model_tokens",), lambda: check_context(folder, engine.max_model_tokens)
    if effort_error := default_effort_error(tokenizer.thinking, engine.reasoning):
        yield ("reasoning", "default_effort"), _raiser(CheckpointError(effort_error))
    if engine.is_remote:  # what follows is read where its engines are
        yield ("connection",), lambda: tls_of(engine)
        return
    if (quantize := engine.quantize) is not None:
        yield ("quantize",), lambda: check_quantize(folder, quantize.calibration)
    yield ("speculative",), lambda: check_drafters(engine)
    yield ("parallel",), lambda: _check_ranks(folder, engine)
    for each, adapter in engine.adapters.items():

        def check_one(path: str = adapter.path, force: bool = adapter.force) -> None:
            check_adapter(adapter_folder(path), (name, str(folder)), force=force)

        yield ("adapters", each), check_one


def _check_ranks(folder: Path, engine: EngineModel) -> None:
    scheme = "" if engine.quantize is None else engine.quantize.scheme
    check_ranks(folder, msgspec.structs.asdict(engine.parallel), drafter_entries(engine), scheme)


def _raiser(error: CheckpointError) -> Callable[[], object]:
    def fail() -> None:
        raise error

    return fail
