"""A device is one of three names; a missing GPU is an error."""

from __future__ import annotations

import argparse

import pytest
import torch

from backend.pico.placement import add_device_argument, positive


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser()
    add_device_argument(found)
    return found


def test_auto_is_the_cpu_without_a_gpu(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert parser.parse_args([]).device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda _: None)
    assert parser.parse_args([]).device == torch.device("cuda")
    assert parser.parse_args(["--device", "cpu"]).device == torch.device("cpu")


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_a_number_of_processes_is_positive(text: str) -> None:
    assert positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match="1 or more"):
        positive(text)


@pytest.mark.parametrize(("name", "remedy"), [("cuda", "auto or cpu"), ("tpu", "auto, cpu or cuda")])
def test_missing_devices_are_refused(
    name: str,
    remedy: str,
    parser: argparse.ArgumentParser,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        parser.parse_args(["--device", name])
    message = capsys.readouterr().err
    assert name in message
    assert remedy in message
