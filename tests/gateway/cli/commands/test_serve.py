"""The help of `penstock serve`."""

from __future__ import annotations

import pytest

from gateway import settings
from gateway.cli.main import main


def test_the_help_names_every_variable_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  PENSTOCK_")]
    found = {name: default for name, *default in lines}
    assert found.keys() == {*settings.VARIABLES, *settings.OTHER_VARIABLES} - {"PENSTOCK_URL"}
    assert found["PENSTOCK_PORT"] == ["8080"] and found["PENSTOCK_IDLE_TIMEOUT_S"] == ["60"]
    assert found["PENSTOCK_MAX_BODY_BYTES"] == [str(16 * 1024 * 1024)] and not found["PENSTOCK_API_KEYS"]
