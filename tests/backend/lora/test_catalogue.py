"""Names move between adapters, requests keep adapters alive, and lost names are listed until removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import AdapterError
from backend.lora.catalogue import AdapterCatalogue
from backend.lora.info import AdapterInfo


def info(name: str, digest: str, folder: str = "") -> AdapterInfo:
    return AdapterInfo(name, digest, "base", 4, 100, folder or f"/{name}")


@pytest.fixture
def dropped() -> list[str]:
    return []


@pytest.fixture
def catalogue(dropped: list[str]) -> AdapterCatalogue:
    return AdapterCatalogue(dropped.append)


def test_a_name_means_one_adapter_and_an_adapter_may_have_several(
    catalogue: AdapterCatalogue, dropped: list[str]
) -> None:
    assert catalogue.add(info("a", "x")) == info("a", "x")
    assert catalogue.add(info("b", "x")) == info("b", "x")
    assert catalogue.sources("x") == [Path("/a"), Path("/b")]
    catalogue.add(info("a", "y"))
    assert catalogue.infos == [info("b", "x"), info("a", "y")] and catalogue.sources("x") == [Path("/b")]
    assert not dropped
    catalogue.add(info("b", "y"))
    assert dropped == ["x"] and not catalogue.has_digest("x")


def test_requests_keep_an_adapter_without_a_name(catalogue: AdapterCatalogue, dropped: list[str]) -> None:
    catalogue.add(info("a", "x"))
    catalogue.hold("x", "a")
    catalogue.hold("x", "a")
    assert catalogue.remove("a") == info("a", "x")
    assert catalogue.is_wanted("x") and not catalogue.is_named("x") and not catalogue.has_name("a")
    assert catalogue.sources("x") == [Path("/a")], "it may have to be read again"
    catalogue.release("x")
    assert not dropped
    catalogue.release("x")
    assert dropped == ["x"] and not catalogue.is_wanted("x")


def test_requests_are_counted_by_name(catalogue: AdapterCatalogue) -> None:
    catalogue.add(info("a", "x"))
    catalogue.add(info("b", "x"))
    catalogue.hold("x", "a")
    assert catalogue.requests() == {"a": 1, "b": 0}


def test_what_cannot_be_read_again_loses_all_its_names(
    catalogue: AdapterCatalogue, dropped: list[str]
) -> None:
    catalogue.add(info("a", "x"))
    catalogue.add(info("b", "x"))
    catalogue.hold("x", "b")
    assert catalogue.lose("x") == "a" and catalogue.lost == ["a", "b"] and not catalogue.infos
    assert not dropped, "its request has not ended yet"
    catalogue.add(info("a", "y"))
    assert catalogue.lost == ["b"]
    with pytest.raises(AdapterError, match="no adapter is called 'b' here; loaded are: a"):
        catalogue.remove("b")
    assert catalogue.lost == []


def test_every_change_has_a_version(catalogue: AdapterCatalogue) -> None:
    seen = [catalogue.version]
    catalogue.add(info("a", "x"))
    seen.append(catalogue.version)
    catalogue.lose_name("old")
    seen.append(catalogue.version)
    catalogue.remove("a")
    seen.append(catalogue.version)
    assert seen == sorted(set(seen)), "strictly growing"
    catalogue.requests()
    assert catalogue.version == seen[-1]
