"""The number of threads is checked where it is read."""

from __future__ import annotations

import argparse

import pytest

from gateway.evaluation.encoder_flags import add_encoder_flags, read_threads
from gateway.settings import SettingsError


def test_threads() -> None:
    parser = argparse.ArgumentParser()
    add_encoder_flags(parser)
    assert read_threads(parser.parse_args([])) is None
    assert read_threads(parser.parse_args(["--threads", "2"])) == 2
    with pytest.raises(SettingsError, match="--threads -1 must be 1 or more"):
        read_threads(parser.parse_args(["--threads", "-1"]))
