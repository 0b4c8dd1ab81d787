"""Checks of guardrails against other parts of the policies: profiles, encoders, models that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import nearest
from policies.urls import url_fault


def guardrail_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Profiles that do not exist, checks without the encoder that they need, patterns without content."""
    profiles = sections["guardrails"].get("profiles") or {}
    named: dict[KeyPath, str | None] = {("guardrails", "default"): sections["guardrails"].get("default")}
    for section in ("models", "routes"):
        for owner, entry in sections[section].items():
            named[section, owner, "guardrails"] = (entry or {}).get("guardrails")
            named |= _of_rules((section, owner), entry or {})
    named |= _of_rules(("routing",), sections["routing"])
    for path, name in named.items():
        if name is not None and name not in profiles:
            message = f"{'.'.join(path)} {name!r} is not a guardrail profile"
            message += nearest(name, profiles) or "; there is none: add it to guardrails.profiles"
            yield Problem(places[path], message)
    has_encoder = any(path[0] == "models" and path[2:] == ("encoder",) for path in places)
    for name, profile in profiles.items():
        path = ("guardrails", "profiles", name)
        yield from _profile_problems(path, profile or {}, places, has_encoder)
        yield from _unknown_tenants(path, profile or {}, sections["tenants"], places)
    for route, entry in sections["routes"].items():
        for path, action in _actions(("routes", route), entry or {}):
            yield from _mixed_profiles(path, action, sections, places)


def _actions(path: KeyPath, route: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """A route's own action, and its rules with the route's changes where they have none."""
    changes = {key: route[key] for key in ("guardrails", "fallback") if route.get(key) is not None}
    yield path, route
    for number, rule in enumerate(route.get("rules") or []):
        own = {key: value for key, value in (rule or {}).items() if value is not None}
        yield (*path, "rules", str(number)), changes | own


def _mixed_profiles(
    path: KeyPath, action: Mapping[str, Any], sections: Mapping[str, Any], places: Mapping[KeyPath, Place]
) -> Iterator[Problem]:
    """A request is screened once, for the model that it goes to first: those that follow need the same."""
    if action.get("guardrails") is not None:
        return
    cascade = list((action.get("cascade") or {}).get("models") or [])
    first = [action["model"]] if action.get("model") else cascade[:1]
    first += [*((action.get("split") or {}).get("models") or {})]
    first += [*((action.get("choose") or {}).get("candidates") or {})]
    following = cascade[1:] + [
        name for names in (action.get("fallback") or {}).values() for name in names or []
    ]
    default = sections["guardrails"].get("default")
    profiles = {
        name: (sections["models"].get(name) or {}).get("guardrails") or default for name in first + following
    }
    for name in following:
        other = next((each for each in first if profiles[each] != profiles[name]), None)
        if other is not None:
            message = (
                f"{'.'.join(path)}: {name!r} has the guardrails {profiles[name]!r} and may follow {other!r}, "
                f"which has {profiles[other]!r}; name one profile for the route with `guardrails`"
            )
            yield Problem(places[path] if path in places else places[path[:2]], message)
            return


def unscreened_paths(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Warnings: paths that are passed through as they are, although all models have guardrails."""
    if sections["guardrails"].get("default") is not None:
        for path in sections["passthrough"]:
            message = f"passthrough.{path}: guardrails do not see what is passed through"
            yield Problem(places["passthrough", path], message)


def _profile_problems(
    path: KeyPath, profile: Mapping[str, Any], places: Mapping[KeyPath, Place], has_encoder: bool
) -> Iterator[Problem]:
    learned = [name for name in ("injection", "harm", "topics") if profile.get(name) is not None]
    if not (profile.get("injection") or {}).get("classifier", True):
        learned.remove("injection")
    for name in learned if not has_encoder else ():
        message = f"{'.'.join((*path, name))} needs an encoder; add a model with a section `encoder`"
        message += ", or set `classifier: false`" if name == "injection" else ""
        yield Problem(places[*path, name], message)
    for name, rules in (profile.get("patterns") or {}).items():
        if ((rules or {}).get("words") is None) == ((rules or {}).get("regex") is None):
            where = (*path, "patterns", name)
            yield Problem(places[where], f"{'.'.join(where)} needs either `words` or `regex`")

    injection = profile.get("injection") or {}
    if injection.get("session_limit") is not None and not injection.get("classifier", True):
        where = (*path, "injection", "session_limit")
        yield Problem(places[where], f"{'.'.join(where)} needs the classifier, which is switched off")
    for name, rules in (profile.get("hooks") or {}).items():
        where = (*path, "hooks", name, "url")
        url = (rules or {}).get("url", "")
        if url.startswith("http") and (fault := url_fault(url)):
            yield Problem(places[where], f"{'.'.join(where)} {fault}")


def _unknown_tenants(
    path: KeyPath, profile: Mapping[str, Any], tenants: Mapping[str, Any], places: Mapping[KeyPath, Place]
) -> Iterator[Problem]:
    for tenant in profile.get("exempt_tenants") or []:
        if tenant not in (None, "default", *tenants) and not re.fullmatch("key-[0-9a-f]{8}", tenant):
            where = (*path, "exempt_tenants")
            message = f"{'.'.join(where)} has the unknown tenant {tenant!r}{nearest(tenant, tenants)}"
            yield Problem(places[where], message)


def _of_rules(path: KeyPath, section: Mapping[str, Any]) -> dict[KeyPath, str | None]:
    """The profiles that the rules of a section name."""
    rules = enumerate(section.get("rules") or [])
    return {
        (*path, "rules", str(number), "guardrails"): (rule or {}).get("guardrails") for number, rule in rules
    }
