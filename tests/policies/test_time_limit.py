"""The time that reading policies may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.errors import Place, PolicyError
from policies.load import MAX_PROBLEMS, load_folder
from policies.tenants import tenant_problems
from policies.time_limit import at_most, check_time


def test_nothing_is_raised_without_a_limit() -> None:
    check_time()
    with at_most(3600):
        check_time()


def test_when_the_time_is_up_a_load_ends_with_a_problem_that_says_so() -> None:
    path = Path("/nowhere/p.yaml")
    with at_most(0), pytest.raises(PolicyError, match="take over 0 s to check; make them shorter"):
        load_folder(path.parent, (), {path: b"models: {a: {upstream: {base_url: 'http://h/v1'}}}"})
    check_time()


def test_texts_are_read_in_place_of_files_and_what_they_name_is_known() -> None:
    path = Path("/nowhere/p.yaml")
    text = "models: {a: {engine: {checkpoint: w}}, b: {engine: {checkpoint: 'builtin:pico-small'}}}"
    assert load_folder(path.parent, (), {path: text.encode()}).outside == {("checkpoint", "/nowhere/w")}


@pytest.mark.parametrize("name", ["~no-such-user-here/x", "a\\0b", "a\\ud800b"])
def test_a_path_that_no_file_can_have_is_a_problem(name: str) -> None:
    path = Path("/nowhere/p.yaml")
    with pytest.raises(PolicyError, match=r"p.yaml:1:35: models.a.engine.checkpoint is not a path"):
        load_folder(path.parent, (), {path: f'models: {{a: {{engine: {{checkpoint: "{name}"}}}}}}'.encode()})


def test_problems_beyond_the_first_are_counted() -> None:
    path = Path("/nowhere/p.yaml")
    with pytest.raises(PolicyError) as caught:
        load_folder(path.parent, (), {path: "".join(f"k{n}: 1\n" for n in range(MAX_PROBLEMS + 7)).encode()})
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert caught.value.problems[-1].message == "and 7 more problems after this one"


def test_a_parent_of_a_parent_and_so_on_is_followed_within_the_time() -> None:
    sections = {"tenants": {f"t{n}": {"parent": f"t{n + 1}"} for n in range(3)}, "tiers": {}}
    places = {("tenants", name): Place("p.yaml") for name in sections["tenants"]}
    with at_most(0), pytest.raises(PolicyError, match="take over 0 s"):
        list(tenant_problems({**sections, "models": {}, "routes": {}}, places))
