from __future__ import annotations

import pytest

from guardrails.train.fuzz import main


def test_random_unicode_breaks_no_check(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seconds", "4", "--seed", "7"])
    assert int(capsys.readouterr().out.split()[0]) > 20
