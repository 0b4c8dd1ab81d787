"""Adds the models of `--model` and `--upstream` flags to policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gateway.cli.init.plan import check_address
from gateway.settings import SettingsError
from policies.check_routes import adapter_bases
from policies.document import EngineModel, ModelEntry, Policies
from policies.load import merge_models
from policies.services import SERVICES
from policies.urls import api_url_fault


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
