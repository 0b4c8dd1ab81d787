"""What `penstock eval models` accepts, and the words with which it refuses."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from backend.pico.tasks import FAMILIES
from gateway.cli import main as cli
from gateway.evaluation.flags import ModelsPlan, read_plan
from gateway.evaluation.price import TokenPrice


def plan(*flags: str) -> ModelsPlan:
    return read_plan(cli.parse(["eval", "models", *flags]))


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_URL", "PENSTOCK_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


def test_defaults() -> None:
    found = plan()
    assert (found.base_url, found.api_key) == ("http://127.0.0.1:8080/v1", "")
    assert (found.models, found.prices, found.tiers) == ((), {}, (1, 2, 3, 4, 5))
    assert set(found.families) == set(FAMILIES)


def test_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", "first,second")
    monkeypatch.setenv("OTHER", "of-a-variable")
    assert plan().api_key == "first"
    assert plan("--api-key", "given", "--url", "https://h/v1").api_key == "given"
    assert plan("--api-key-env", "OTHER").api_key == "of-a-variable"
    with pytest.raises(SystemExit):
        plan("--api-key", "given", "--api-key-env", "OTHER")


def test_help_says_that_form_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval", "models", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Graders are exact about form" in said and "fails counts as not right" in said


def test_everything_given() -> None:
    flags = (
        "--model a@none --model b@c --model a --model a --reasoning low --tiers 5,1-3 --families dates,units"
    )
    found = plan(*flags.split(), "--url", "https://h/api/v1/", "--price", "x=y=0.15,6e-1", "--limit", "3")
    assert found.models == (("a", "none"), ("b@c", "low"), ("a", "low"))
    assert found.tiers == (1, 2, 3, 5)
    assert found.families == ("dates", "units")
    assert found.base_url == "https://h/api/v1"
    assert found.prices == {"x=y": TokenPrice(Decimal("0.00000015"), Decimal("0.0000006"))}


def test_the_proxy_is_the_environments_but_never_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://u:p@proxy:3128")
    assert plan("--url", "https://h/v1").proxy == "http://u:p@proxy:3128"
    assert (
        plan("--url", "http://localhost:1").proxy
        == plan("--url", "http://[::1]:1").proxy
        == plan().proxy
        == ""
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--url", "localhost:8080"], "--url 'localhost:8080' must have the form http://HOST:PORT/v1"),
        (["--url", "http://me:secret@h/v1"], "must have the form"),
        (["--model", ""], "names no model"),
        (["--tiers", "6"], "--tiers '6' must be tiers of 1 to 5"),
        (["--tiers", "3-1"], "wrong: '3-1'"),
        (["--tiers", "1,,2"], "wrong: ''"),
        (["--tiers", "1-9"], "wrong: '1-9'"),
        (["--families", "dats"], "unknown family 'dats'; did you mean 'dates'?"),
        (["--families", "zzzzz"], "known: arithmetic, "),
        (["--limit", "0"], "--limit 0 must be 1 or more"),
        (["--concurrency", "0"], "--concurrency 0 must be 1 or more"),
        (["--max-tokens", "-1"], "--max-tokens -1 must be 0 or more"),
        (["--timeout", "nan"], "--timeout nan must be more than 0"),
        (["--price", "m=1"], "--price 'm=1' must have the form MODEL=IN,OUT"),
        (["--price", "m=1,x"], "must have the form"),
        (["--price", "=1,2"], "must have the form"),
        (["--price", "m=-1,2"], "must have the form"),
        (["--price", "m=nan,2"], "must have the form"),
        (["--json", "/nowhere/x.json"], "there is no folder '/nowhere'"),
        (["--json", "/"], "--json '/' is a folder"),
        (["--plot", "x.pdf"], "--plot 'x.pdf' must end in .svg or .png"),
        (["--plot", "/nowhere/x.svg"], "there is no folder '/nowhere'"),
        (["--api-key-env", "sk-canary"], "never the key itself"),
    ],
)
def test_refusals(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "models", *flags]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "canary" not in error


def test_unknown_effort_is_a_usage_error() -> None:
    with pytest.raises(SystemExit, match="2"):
        plan("--reasoning", "enormous")


def test_the_key_goes_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEYS", "ours,other")
    monkeypatch.setenv("THEIR_KEY", "theirs")
    assert plan().api_key == "ours"
    assert plan("--url", "http://localhost:1").api_key == "ours"
    assert plan("--url", "https://api.example.org/v1").api_key == ""
    assert plan("--url", "https://api.example.org/v1", "--api-key-env", "THEIR_KEY").api_key == "theirs"
    monkeypatch.setenv("PENSTOCK_URL", "https://gateway.example.org")
    assert plan().api_key == "ours"
    assert plan("--url", "https://gateway.example.org/v1").api_key == "ours"


def test_missing_plot_library_is_said_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from gateway.evaluation import outputs

    monkeypatch.setattr(outputs, "find_spec", lambda name: None)
    assert cli.main(["eval", "models", "--plot", str(tmp_path / "x.svg")]) == 2
    assert "pip install 'penstock[plots]'" in capsys.readouterr().err
