"""Names that installed packages add to the policy language by entry points; each is imported when used.

The built-in names are known without looking for packages, and no package can replace them.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Literal, NamedTuple, TypeVar

from msgspec import Meta

from policies.names import nearest

Group = Literal["penstock.providers", "penstock.checks"]
OURS = "penstock"
"""The distribution whose entry points are the built-in ones."""
KINDS: dict[Group, str] = {"penstock.providers": "provider API", "penstock.checks": "guardrail check"}

T = TypeVar("T")


class PluginError(Exception):
    """A name that no package adds, or whose package is broken; the text names the remedy."""


class Names(NamedTuple):
    """What a field of the policies may hold: built-in names, and those that packages add."""

    group: Group
    built_in: tuple[str, ...]

    def all(self) -> list[str]:
        """Every name, the built-in ones first. Reads the metadata of what is installed."""
        return [*self.built_in, *(name for name in _added(self.group) if name not in self.built_in)]

    def fault(self, name: str) -> str:
        """What is expected in place of `name`, as in "one of …"; "" where it is known."""
        return "" if name in self.built_in or name in (known := self.all()) else f"one of {', '.join(known)}"


def known_names(names: Names, description: str) -> Meta:
    """Annotates a text as one of these names, for the loader, the published schema and the reference."""
    added = f"Packages can add others (entry points `{names.group}`)."
    schema = {"anyOf": [{"enum": list(names.built_in)}, {"type": "string"}]}
    return Meta(
        min_length=1, description=f"{description} {added}", extra={"names": names}, extra_json_schema=schema
    )


def load(group: Group, name: str, kind: type[T]) -> T:
    """Import what a package adds under this name. Raises PluginError."""
    found = _added(group).get(name, [])
    if not found:
        known = nearest(name, _added(group)) or "; no installed package adds one"
        raise PluginError(f"{name!r} is no {KINDS[group]}{known}; install the package that adds it")
    if len(found) > 1:
        packages = " and ".join(sorted(map(package_of, found)))
        raise PluginError(f"the packages {packages} both add the {KINDS[group]} {name!r}; uninstall one")
    (entry,) = found
    try:
        loaded = entry.load()
    except Exception as error:
        raise broken(group, name, f"{type(error).__name__}: {error}") from error
    if not isinstance(loaded, kind):
        raise broken(group, name, f"{entry.value} is not of the type {kind.__module__}.{kind.__name__}")
    return loaded


def broken(group: Group, name: str, why: str) -> PluginError:
    """The error about a package whose code does not work."""
    package = " and ".join(map(package_of, _added(group).get(name, [])))
    return PluginError(
        f"the package {package}, which adds the {KINDS[group]} {name!r}, cannot be used: {why}; install a "
        f"version of it that works, or remove {name!r} from the policies"
    )


def package_of(entry: EntryPoint) -> str:
    """The name and version of the package that an entry point is of."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module


def _added(group: Group) -> dict[str, list[EntryPoint]]:
    """The entry points of other packages; not kept, as packages may be installed while we run."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=package_of):
        if entry.dist is None or entry.dist.name != OURS:
            found.setdefault(entry.name, []).append(entry)
    return found
