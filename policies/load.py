"""A folder of YAML documents → `Policies`. Documents are merged; a name defined twice is an error.

All problems of a folder are reported at once, each with file and line.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from policies.check_cache import cache_problems
from policies.check_callers import caller_problems, caller_warnings
from policies.check_choices import choice_warnings
from policies.check_guardrails import guardrail_problems, unscreened_paths
from policies.check_prices import price_problems
from policies.check_routes import RouteChecks
from policies.convert import Converter, KeyPath
from policies.document import Document, EngineModel, ModelEntry, Policies
from policies.engine_addresses import address_faults
from policies.engine_cards import card_problems
from policies.engine_replicas import range_faults
from policies.errors import Place, PolicyError, Problem
from policies.languages import language_problems
from policies.nodes import read_documents, tag_problems
from policies.passthrough import passthrough_problems
from policies.redaction import hidden, redacted, secret_values
from policies.releases import release_problems
from policies.tenants import tenant_problems
from policies.time_limit import check_time
from policies.upstream import target_faults
from policies.urls import api_url_fault, url_fault

_DOCUMENT = inspect.type_info(Document)
_SECTIONS = {field.name: field.type for field in _DOCUMENT.fields}  # type: ignore[attr-defined]
_SWITCHES = {name for name, kind in _SECTIONS.items() if isinstance(kind, inspect.Metadata)}
_KINDS = ("engine", "upstream", "encoder")
MAX_PROBLEMS = 500
"""Further ones are counted: each message is compared with each secret."""
_ENGINE_DEFAULTS = EngineModel(checkpoint="")


def load_policies(folder: Path) -> Policies:
    """Read `*.yaml` and `*.yml` of the folder, or the one file given. Raises PolicyError.

    Top-level keys that begin with `x-` are ignored, so that they can hold anchors.
    """
    return load_folder(folder).policies


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid folder: its policies, where each key is, and what is suspicious in it."""

    policies: Policies
    places: Mapping[KeyPath, Place]
    warnings: Sequence[Problem]
    secrets: frozenset[str] = frozenset()  # values that no message may show
    outside: frozenset[tuple[str, str]] = frozenset()  # files and plug-ins: the field, and what it names


def without_secrets(problem: Problem, secrets: Collection[str]) -> Problem:
    """The problem with a file and a message that show none of them, and nothing that looks like one."""
    folder, slash, name = problem.place.file.rpartition("/")
    file = hidden(folder, secrets) + slash + redacted(name, secrets)
    place = dataclasses.replace(problem.place, file=file)
    return Problem(place, redacted(problem.message, secrets))


def load_folder(
    folder: Path, tenants: Collection[str] = (), texts: Mapping[Path, bytes] | None = None
) -> Loaded:
    """The same with everything that was found out. Raises PolicyError.

    `tenants`: those that callers can be whatever the policies say. `texts` are read in place of the files.
    """
    merge = _Merge(tenants)
    for path in policy_files(folder) if texts is None else sorted(texts):
        merge.add_file(path, None if texts is None else texts[path])
    merge.check_references()
    if merge.problems:
        raise PolicyError(_shown(merge.problems, merge.secrets))
    warnings = _shown(merge.warnings, merge.secrets)
    return Loaded(
        merge.policies(), merge.places, warnings, frozenset(merge.secrets), frozenset(merge.outside)
    )


def _shown(problems: Sequence[Problem], secrets: Collection[str]) -> list[Problem]:
    found = []
    for problem in sorted(problems, key=lambda p: (p.place.file, p.place.line))[:MAX_PROBLEMS]:
        check_time()
        found.append(without_secrets(problem, secrets))
    if (more := len(problems) - MAX_PROBLEMS) > 0:
        found.append(Problem(found[-1].place, f"and {more} more problems after this one"))
    return found


def policy_files(folder: Path) -> list[Path]:
    """The files of a folder that are read, or the one file given. Raises PolicyError without any."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise PolicyError([Problem(Place(str(folder)), "is neither a folder of YAML files nor a file")])
    files = sorted(
        p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"} and not p.name.startswith(".")
    )
    if not files:
        raise PolicyError([Problem(Place(str(folder)), "holds no *.yaml file; put models.yaml there")])
    others = [p for p in files if p.exists() and not (p.is_file() or p.is_dir())]  # a named pipe would wait
    if others:
        raise PolicyError([Problem(Place(str(path)), "is not a file") for path in others])
    return files


class _Merge:
    """The merged content of the documents read so far, and the problems found in them."""

    def __init__(self, tenants: Collection[str]) -> None:
        self.tenants = tenants
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self.sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS if name not in _SWITCHES}
        self.switches: dict[str, bool] = {}
        self.places: dict[KeyPath, Place] = {}
        self.secrets: set[str] = set()
        self.outside: set[tuple[str, str]] = set()

    def add_file(self, path: Path, data: bytes | None) -> None:
        try:
            documents = read_documents(path, data)
        except PolicyError as error:
            self.problems += error.problems
            return
        if not documents:
            self.warnings.append(Problem(Place(str(path)), "is empty; delete it, or put a section there"))
        for document in documents:
            self.secrets |= secret_values(document)
            self.problems += tag_problems(document, str(path))
            self.add_document(path, document)

    def add_document(self, path: Path, root: yaml.Node) -> None:
        converter = Converter(path)
        if isinstance(root, yaml.MappingNode):
            root.value = [(k, v) for k, v in root.value if not str(k.value).startswith("x-")]
            for section, content in converter.convert(root, _DOCUMENT, ()).items():
                if section in _SWITCHES:
                    self._add_switch(section, content, converter.places)
                else:
                    self._add_names(section, content, converter.places)
        elif root.value != "":  # an empty document is fine
            converter.report(root, f"a policy document must be a mapping with {', '.join(_SECTIONS)}")
        self.problems += converter.problems
        self.outside |= converter.outside

    def _add_switch(self, name: str, value: bool, places: dict[KeyPath, Place]) -> None:
        if name in self.switches:
            message = f"{name} is already defined at {self.places[(name,)]}; remove one"
            self._report(places[(name,)], message)
        else:
            self.switches[name] = value
            self.places[(name,)] = places[(name,)]

    def _add_names(self, section: str, names: dict[str, Any], places: dict[KeyPath, Place]) -> None:
        added = {name: value for name, value in names.items() if name not in self.sections[section]}
        for key in ((section, name) for name in names if name not in added):
            message = f"{section}.{key[1]} is already defined at {self.places[key]}; remove one"
            self._report(places[key], message)
        self.sections[section] |= added
        own = (path for path in places if path[0] == section and len(path) > 1 and path[1] in added)
        self.places.update({path: places[path] for path in own})

    def _report(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))

    def check_references(self) -> None:
        """Report models without exactly one section, name clashes, and routes without a valid target."""
        for name, entry in self.sections["models"].items():
            check_time()
            given = [kind for kind in _KINDS if ("models", name, kind) in self.places]
            if entry is not None and len(given) != 1:
                what = " and ".join(given) if given else "none"
                message = f"models.{name} needs exactly one of {', '.join(_KINDS)}, has {what}"
                self._report(self.places[("models", name)], message)
            self._check_adapters(name, [*(((entry or {}).get("engine") or {}).get("adapters") or {})])
            self._check_batch(name, (entry or {}).get("engine") or {})
            engine = (entry or {}).get("engine") or {}
            for key, fault in (*address_faults(engine), *range_faults(engine)):
                path = ("models", name, "engine", *key)
                self._report(self.places[path], f"{'.'.join(path)}{fault}")
            self._check_network(name, (entry or {}).get("upstream") or {})
        self.problems += card_problems(self.sections, self.places)
        self.problems += cache_problems(self.sections, self.places)
        self.problems += language_problems(self.sections, self.places)
        self.problems += guardrail_problems(self.sections, self.places)
        self.problems += passthrough_problems(self.sections, self.places)
        self.problems += tenant_problems(self.sections, self.places)
        self.problems += caller_problems(self.sections, self.places)
        self.problems += price_problems(self.sections, self.places)
        self.problems += release_problems(self.sections, self.places)
        routes = RouteChecks(self.sections, self.places)
        routes.run()
        self.problems += routes.problems
        self.warnings += routes.warnings
        self.warnings += choice_warnings(self.sections, self.places)
        self.warnings += caller_warnings(self.sections, self.places, self.tenants)
        self.warnings += unscreened_paths(self.sections, self.places)

    def _check_adapters(self, model: str, adapters: list[str]) -> None:
        """Report adapters that share a name with a model or route: clients ask for them by name."""
        taken = {**self.sections["models"], **self.sections["routes"]} if adapters else {}
        for adapter in adapters:
            place = self.places[("models", model, "engine", "adapters", adapter)]
            for name in (adapter, f"{model}:{adapter}"):
                if name in taken:
                    message = f"adapter {adapter!r} of {model!r} has the name of a model or route, {name!r}"
                    self._report(place, f"{message}; rename one")

    def _check_batch(self, model: str, engine: Mapping[str, Any]) -> None:
        """Report a step that is too small for its sequences: each needs a token per step."""
        names = ("max_batch_tokens", "max_running")
        most, running = (engine.get(name, getattr(_ENGINE_DEFAULTS, name)) for name in names)
        if most >= running:
            return
        by_default = "" if names[1] in engine else ", the default"
        message = (
            f"models.{model}.engine.max_batch_tokens is {most}, less than max_running "
            f"({running}{by_default}): each running sequence needs a token per step; raise it or lower "
            "the other"
        )
        place = next(path for name in names if (path := ("models", model, "engine", name)) in self.places)
        self._report(self.places[place], message)

    def _check_network(self, model: str, upstream: Mapping[str, Any]) -> None:
        """Report URLs that cannot be connected to, and network options that exclude each other."""
        place = ("models", model, "upstream")
        for field, fault_of in (("base_url", api_url_fault), ("proxy", url_fault)):
            url = upstream.get(field)
            if url and (fault := fault_of(url)):
                self._report(self.places[(*place, field)], f"models.{model}.upstream.{field} {fault}")
        for fault in target_faults(upstream):
            self._report(self.places[(*place, "targets")], f"models.{model}.upstream.targets{fault}")
        targets = upstream.get("targets") or [{}]
        has_url = all(isinstance(target, dict) and target.get("base_url") for target in targets)
        if upstream and not has_url and not {(*place, "base_url"), (*place, "service")} & self.places.keys():
            message = f"models.{model}.upstream needs a base_url, or the name of a known service as `service`"
            message += ", or a base_url in each of its targets" if upstream.get("targets") else ""
            self._report(self.places[place], message)
        if upstream.get("http2") and str(upstream.get("base_url")).startswith("http://"):
            message = f"models.{model}.upstream.http2 needs a base_url that begins with https://"
            self._report(self.places[(*place, "http2")], message)
        if upstream.get("unix_socket") and upstream.get("proxy"):
            message = f"models.{model}.upstream has both unix_socket and proxy; remove one"
            self._report(self.places[(*place, "proxy")], message)

    def policies(self) -> Policies:
        """Return the merged, validated result."""
        content = self.sections | self.switches
        return msgspec.convert({**content, "version": _version(content)}, type=Policies)


def _version(content: object) -> str:
    """Return the first 12 hex digits of the SHA-256 of the content, independent of the order of keys."""
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:12]


def merge_models(policies: Policies, models: dict[str, ModelEntry]) -> Policies:
    """Return a copy of the policies with these models added or replaced, and its own version."""
    merged = {**policies.models, **models}
    version = _version([merged, policies.version])
    return msgspec.structs.replace(policies, models=merged, version=version)
