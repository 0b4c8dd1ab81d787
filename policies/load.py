"""A folder of YAML documents → `Policies`. Documents are merged; a name that two of them define is an error.

Every problem of a folder is reported at once, each with its file and line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from policies.convert import Converter, nearest
from policies.document import Document, ModelEntry, Policies
from policies.errors import Place, PolicyError, Problem
from policies.nodes import read_documents

_SECTIONS = {field.name: field.type for field in inspect.type_info(Document).fields}  # type: ignore[attr-defined]
_KINDS = ("engine", "upstream", "encoder")


def load_policies(folder: Path) -> Policies:
    """Read `*.yaml` and `*.yml` of the folder (or the one file given). Raises PolicyError.

    Top-level keys that begin with `x-` are ignored: a place for anchors.
    """
    merge = _Merge()
    for path in _files(folder):
        merge.add_file(path)
    merge.check_references()
    if merge.problems:
        raise PolicyError(sorted(merge.problems, key=lambda p: (p.place.file, p.place.line)))
    return merge.policies()


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise PolicyError([Problem(Place(str(folder)), "is neither a folder of YAML files nor a file")])
    files = sorted(
        p for p in folder.iterdir() if p.suffix in {".yaml", ".yml"} and not p.name.startswith(".")
    )
    if not files:
        raise PolicyError([Problem(Place(str(folder)), "holds no *.yaml file; put models.yaml there")])
    return files


class _Merge:
    """What the documents read so far say together, and what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
        self.places: dict[tuple[str, ...], Place] = {}

    def add_file(self, path: Path) -> None:
        try:
            documents = read_documents(path)
        except PolicyError as error:
            self.problems += error.problems
            return
        for document in documents:
            self.add_document(path, document)

    def add_document(self, path: Path, root: yaml.Node) -> None:
        converter = Converter(str(path))
        if isinstance(root, yaml.MappingNode):
            root.value = [(k, v) for k, v in root.value if not str(k.value).startswith("x-")]
            kind = inspect.type_info(Document)
            for section, names in converter.convert(root, kind, ()).items():
                self._add_names(section, names, converter.places, path)
        elif root.value != "":  # an empty document is fine
            converter.report(root, f"a policy document must be a mapping with {', '.join(_SECTIONS)}")
        self.problems += converter.problems

    def _add_names(
        self, section: str, names: dict[str, Any], places: dict[tuple[str, ...], Place], path: Path
    ) -> None:
        for name, value in names.items():
            key = (section, name)
            if name in self.sections[section]:
                message = f"{section}.{name} is already defined at {self.places[key]}; remove one"
                self.problems.append(Problem(places[key], message))
                continue
            self.sections[section][name] = _with_absolute_checkpoint(value, path.parent)
            self.places.update({p: place for p, place in places.items() if p[:2] == key})

    def check_references(self) -> None:
        """Report models without exactly one section, and routes that lead nowhere."""
        models = self.sections["models"]
        for name, entry in models.items():
            given = [kind for kind in _KINDS if entry is not None and ("models", name, kind) in self.places]
            if entry is not None and len(given) != 1:
                what = " and ".join(given) if given else "none"
                message = f"models.{name} needs exactly one of {', '.join(_KINDS)}, has {what}"
                self.problems.append(Problem(self.places[("models", name)], message))
            self._check_adapters(name)
        for name, route in self.sections["routes"].items():
            self._check_route(name, (route or {}).get("model"), models)

    def _check_adapters(self, model: str) -> None:
        """An adapter is asked for by its name: no model and no route may have it."""
        taken = {**self.sections["models"], **self.sections["routes"]}
        for path, place in self.places.items():
            if path[:4] != ("models", model, "engine", "adapters") or len(path) != 5:
                continue
            for name in (path[4], f"{model}:{path[4]}"):
                if name in taken:
                    message = f"adapter {path[4]!r} of {model!r} has the name of a model or route, {name!r}"
                    self.problems.append(Problem(place, f"{message}; rename one"))

    def _adapters(self) -> dict[str, list[str]]:
        """The adapters of each model that has some."""
        found: dict[str, list[str]] = {}
        for path in self.places:
            if len(path) == 5 and path[0] == "models" and path[2:4] == ("engine", "adapters"):
                found.setdefault(path[1], []).append(path[4])
        return found

    def _check_route(self, name: str, target: str | None, models: dict[str, Any]) -> None:
        if name in models:
            where = self.places[("models", name)]
            message = f"route {name!r} has the name of a model, defined at {where}; rename one"
            self.problems.append(Problem(self.places[("routes", name)], message))
        if target is None:
            return
        place = self.places[("routes", name, "model")]
        if target not in models:
            adapters = self._adapters()
            bases = adapter_bases(adapters, target)
            known = [*models, *(name for found in adapters.values() for name in found)]
            known += [f"{base}:{each}" for base, found in adapters.items() for each in found]
            if len(bases) > 1:
                choice = " or ".join(f"{base}:{target}" for base in bases)
                message = f"route {name!r} leads to {target!r}, an adapter of several models; write {choice}"
                self.problems.append(Problem(place, message))
            elif not bases:
                message = f"route {name!r} leads to the unknown model {target!r}{nearest(target, known)}"
                self.problems.append(Problem(place, message))
        elif ("models", target, "encoder") in self.places:
            message = f"route {name!r} leads to {target!r}, an encoder, which cannot chat"
            self.problems.append(Problem(place, message))

    def policies(self) -> Policies:
        """Return the merged, checked result."""
        content = msgspec.json.encode(self.sections, order="deterministic")
        version = hashlib.sha256(content).hexdigest()[:12]
        return msgspec.convert({**self.sections, "version": version}, type=Policies)


def _with_absolute_checkpoint(entry: Any, folder: Path) -> Any:  # noqa: ANN401 - a raw ModelEntry or Route
    """Make a relative checkpoint path start at the folder of the file that names it."""
    for kind in ("engine", "encoder"):
        section = (entry or {}).get(kind) or {}
        checkpoint = section.get("checkpoint", "builtin:")
        section["checkpoint"] = _absolute(checkpoint, folder)
        for adapter in (section.get("adapters") or {}).values():
            if adapter and "path" in adapter:
                adapter["path"] = _absolute(adapter["path"], folder)
        drafters = (section.get("speculative") or {}).get("drafters") or {}
        for drafter in drafters.values():
            if drafter and drafter.get("path"):
                drafter["path"] = _absolute(drafter["path"], folder)
        loading = section.get("adapter_loading") or {}
        if "folders" in loading:
            loading["folders"] = [_absolute(each, folder) for each in loading["folders"] if each]
    return entry


def _absolute(path: str, folder: Path) -> str:
    return path if path.startswith("builtin:") else str((folder / Path(path).expanduser()).resolve())


def adapter_bases(adapters: Mapping[str, Collection[str]], name: str) -> list[str]:
    """The models whose adapter this may mean, its own name or `BASE:NAME`; `adapters` are those of each."""
    whole = [base for base, found in adapters.items() if any(name == f"{base}:{each}" for each in found)]
    return whole or [base for base, found in adapters.items() if name in found]


def merge_models(policies: Policies, models: dict[str, ModelEntry]) -> Policies:
    """Return the policies with these models added or replaced, under a version of their own."""
    merged = {**policies.models, **models}
    content = msgspec.json.encode([merged, policies.routes], order="deterministic")
    version = hashlib.sha256(content).hexdigest()[:12]
    return Policies(models=merged, routes=policies.routes, version=version)
