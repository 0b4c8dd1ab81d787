"""Chooses the models to evaluate, those of the plan or the server's own, and their prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from gateway.evaluation.client import ListedModel
from gateway.evaluation.flags import ModelsPlan
from gateway.evaluation.price import TokenPrice
from gateway.evaluation.runner import Subject
from gateway.settings import SettingsError

NAMES_SHOWN = 12
OURS = "penstock"  # the owner that our gateway states


def choose_subjects(plan: ModelsPlan, listed: Sequence[ListedModel]) -> list[Subject]:
    """The models to evaluate. Raises SettingsError for unknown names and prices without a model."""
    known = {model.id: model for model in listed}
    chosen = plan.models or tuple((name, plan.effort) for name in _own_models(listed))
    names = [name for name, _ in chosen]
    for name in plan.prices:
        if name not in names:
            raise SettingsError(f"--price names {name!r}, which is not evaluated; these are: {_some(names)}")
    # Other servers may accept names that they do not list.
    if any(model.owned_by == OURS for model in listed):
        _check_names(names, known)
    return [Subject(name, effort, _price(name, plan, known)) for name, effort in chosen]


def check_judge(plan: ModelsPlan, listed: Sequence[ListedModel]) -> None:
    """Raise SettingsError for a judge that our gateway does not have."""
    if plan.judge and any(model.owned_by == OURS for model in listed):
        _check_names([plan.judge], {model.id: model for model in listed})


def _own_models(listed: Sequence[ListedModel]) -> list[str]:
    """Models of Penstock's engines, without routes and adapters; another server's only model."""
    if len(listed) == 1:
        return [listed[0].id]
    own = [
        model.id
        for model in listed
        if model.owned_by == OURS
        and model.max_model_len is not None  # an encoder has none
        and model.parent is None
        and model.root in {None, model.id}
    ]
    if not own:
        names = [model.id for model in listed]
        raise SettingsError(f"name what to evaluate with --model; the server has: {_some(names)}")
    return own


def _check_names(names: Sequence[str], known: Mapping[str, ListedModel]) -> None:
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {_some(list(known))}"
            raise SettingsError(f"the server has no model {name!r}; {hint}")


def _price(name: str, plan: ModelsPlan, known: Mapping[str, ListedModel]) -> TokenPrice | None:
    given = plan.prices.get(name)
    if given is not None:
        return given
    return known[name].price if name in known else None


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return (", ".join(names[:NAMES_SHOWN]) or "none") + more
