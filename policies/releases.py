"""Releases: new versions of a model beside it, in stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from policies.convert import KeyPath
from policies.errors import Place, Problem
from policies.names import FilePath, Name, nearest

Stage = Literal["canary", "stable", "previous", "retired"]
UNUSED: tuple[Stage, ...] = ("previous", "retired")
Share = Annotated[float, Meta(ge=0.0, le=1.0)]


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This model is a version of another one. `penstock models promote` and `rollback` write the stage."""

    of: Annotated[Name, Meta(description="The model whose requests it gets, by rules as well as by name.")]
    stage: Annotated[
        Stage,
        Meta(
            description="`canary`: it gets `share` of the requests, always the same users; `stable`: all of "
            "them; `previous`, to which a `rollback` of the stable one leads, and `retired`: none, unless it "
            "is named."
        ),
    ]
    version: Annotated[str, Meta(max_length=64, description="Any text, for people.")] = ""
    share: Annotated[Share, Meta(description="Of a canary.")] = 0.1
    evaluation: Annotated[
        FilePath | None, Meta(description="What `penstock eval models --json` wrote about it.")
    ] = None
    min_accuracy: Annotated[Share, Meta(description="Of the evaluation; without it `promote` refuses.")] = 0.0


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `choose` needs to know of a model; what it lacks goes to other candidates."""

    context_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: bool = True
    reasoning: bool = True


def release_problems(sections: Mapping[str, Any], places: Mapping[KeyPath, Place]) -> Iterator[Problem]:
    """Releases of models that do not exist or are releases themselves, and two of one stage."""
    models, seen = sections["models"], dict[tuple[str, str], str]()
    for name, entry in models.items():
        release = (entry or {}).get("release")
        if not release or not release.get("of"):
            continue
        base, stage, place = release["of"], release.get("stage", ""), places["models", name, "release"]
        if base not in models or base == name or (models[base] or {}).get("release"):
            known = [each for each in models if not (models[each] or {}).get("release") and each != name]
            yield Problem(place, f"models.{name}.release.of {base!r} is no base model{nearest(base, known)}")
        if stage != "retired" and (base, stage) in seen:
            yield Problem(place, f"models.{name} and {seen[base, stage]!r} are both the {stage} of {base!r}")
        seen[base, stage] = name
