"""The `guardrails` section of the policy language: profiles of checks, which models name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import Name, nearest

PersonalDataKind = Literal["private_key", "jwt", "api_key", "email", "iban", "card", "ssn", "phone", "ip"]
PersonalDataAction = Literal["mask", "redact", "block", "flag"]


class PersonalDataRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Personal data and secrets in requests and answers."""

    kinds: Annotated[
        list[PersonalDataKind] | None, Meta(description="What to look for. Default: everything.")
    ] = None
    action: Annotated[
        PersonalDataAction,
        Meta(
            description="`mask`: the model gets placeholders such as `[EMAIL_1]`, and the caller gets the "
            "values back in the answer; `redact`: `[EMAIL]` for good; `block`: refuse; `flag`: only say so "
            "in the trace."
        ),
    ] = "mask"
    answers: Annotated[
        bool, Meta(description="Also for what the model writes itself: masked without a way back.")
    ] = True


class InjectionRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attacks on the prompt in what users, tools and documents say, as far as patterns recognise them."""

    action: Literal["block", "flag"] = "block"


class GuardrailProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checks that belong together."""

    personal_data: PersonalDataRules | None = None
    injection: InjectionRules | None = None
    dry_run: Annotated[
        bool, Meta(description="Change and refuse nothing: only say in the trace what was found.")
    ] = False


class GuardrailsSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profiles by name."""

    profiles: dict[Name, GuardrailProfile] = {}
    default: Annotated[
        Name | None, Meta(description="The profile of models that name none. Default: no checks.")
    ] = None


def guardrail_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """References to profiles that do not exist."""
    profiles = sections["guardrails"].get("profiles") or {}
    named: dict[KeyPath, str | None] = {("guardrails", "default"): sections["guardrails"].get("default")}
    for section in ("models", "routes"):
        for owner, entry in sections[section].items():
            named[section, owner, "guardrails"] = (entry or {}).get("guardrails")
            named |= _of_rules((section, owner), entry or {})
    named |= _of_rules(("routing",), sections["routing"])
    for path, name in named.items():
        if name is not None and name not in profiles:
            message = f"{'.'.join(path)} {name!r} is not a guardrail profile{nearest(name, profiles)}"
            yield Problem(places[path], message)


def _of_rules(path: KeyPath, section: Mapping[str, Any]) -> dict[KeyPath, str | None]:
    """The profiles that the rules of a section name."""
    rules = enumerate(section.get("rules") or [])
    return {
        (*path, "rules", str(number), "guardrails"): (rule or {}).get("guardrails") for number, rule in rules
    }
