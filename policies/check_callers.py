"""Checks of who is named: tenants that no caller can be, API keys in place of names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from policies.convert import KeyPath, nearest_place
from policies.errors import Place, Problem
from policies.known_values import key_owners
from policies.names import nearest
from policies.redaction import looks_secret

_KEY_NAME = re.compile("key-[0-9a-f]{8}")
KEY_NAME_HINT = "`key-` and the first 8 hex digits of the key's SHA-256 (`penstock keys id` prints it)"


def caller_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """API keys where a tenant is to be named. No key is quoted."""
    for path, name in _named(sections):
        if looks_secret(name) and not _KEY_NAME.fullmatch(name):
            message = (
                f"{_section(path)} holds what looks like an API key; write {KEY_NAME_HINT}, never the key"
            )
            yield Problem(nearest_place(places, path), message)


def caller_warnings(
    sections: Mapping[str, Any], places: Mapping[KeyPath, Place], others: Collection[str] = ()
) -> Iterator[Problem]:
    """Names that no caller has: rules for them never hold. `others`: names that callers have anyway."""
    owners, tenants = key_owners(sections), sections["tenants"]
    for name, entry in tenants.items():
        if name not in others and _is_unreachable(name, entry):
            message = (
                "tenants has a name at this place that no caller can have: give the tenant its `keys`, each "
                f"{KEY_NAME_HINT}, or name it so, or name it in the keys file (`penstock keys new --tenant`)"
            )
            yield Problem(places["tenants", name], message)
    for path, name in _named(sections):
        if path[0] == "tenants" or name == "default" or looks_secret(name):
            continue
        if name in owners:
            message = (
                f"{'.'.join(path)}: callers with {name!r} are the tenant {owners[name]!r}; write that name"
            )
            yield Problem(nearest_place(places, path), message)
        elif name not in tenants and name not in others and not _KEY_NAME.fullmatch(name):
            known = [each for each, entry in tenants.items() if not _is_unreachable(each, entry)]
            message = f"{'.'.join(path)} names no tenant that a caller can be{nearest(name, known)}"
            yield Problem(nearest_place(places, path), message)


def _is_unreachable(name: str, entry: Mapping[str, Any] | None) -> bool:
    return name != "default" and not _KEY_NAME.fullmatch(name) and not (entry or {}).get("keys")


def _named(sections: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Every place that names a tenant."""
    yield from ((("tenants", name), name) for name in sections["tenants"])
    lists: dict[tuple[str, ...], Any] = {
        ("admin", "principals"): sections["admin"].get("principals"),
        ("cache", "operators"): sections["cache"].get("operators"),
    }
    for name, profile in (sections["guardrails"].get("profiles") or {}).items():
        lists["guardrails", "profiles", name, "exempt_tenants"] = (profile or {}).get("exempt_tenants")
    for name, rule in sections["passthrough"].items():
        lists["passthrough", name, "tenants"] = (rule or {}).get("tenants")
    for name, entry in sections["models"].items():
        loading = ((entry or {}).get("engine") or {}).get("adapter_loading") or {}
        lists["models", name, "engine", "adapter_loading", "principals"] = loading.get("principals")
    for path, names in lists.items():
        yield from (((*path, str(number)), name) for number, name in enumerate(names or []) if name)
    for name, probe in sections["probes"].items():
        if (probe or {}).get("tenant"):
            yield ("probes", name, "tenant"), probe["tenant"]


def _section(path: KeyPath) -> str:
    """The path without the name itself."""
    return ".".join(path if path[0] != "tenants" else path[:1])
