from __future__ import annotations

from pathlib import Path

import pytest

from backend.encoder.language import LANGUAGES as DETECTED
from policies.document import Policies
from policies.errors import PolicyError
from policies.languages import LANGUAGES
from policies.load import load_policies

ENCODER = "models:\n  e:\n    encoder:\n      checkpoint: builtin:all-minilm-l6-v2\n"


def load(folder: Path, languages: str, more: str = "") -> Policies:
    (folder / "a.yaml").write_text(f"{ENCODER}{languages}{more}")
    return load_policies(folder)


def test_an_encoder_reads_english_unless_more_is_declared(tmp_path: Path) -> None:
    assert load(tmp_path, "").encoder_languages == {"en"}
    found = load(tmp_path, '      languages: [de, "no", zh]\n')
    assert found.encoder_languages == {"de", "no", "zh"}
    assert found.encoder_name == "e" and found.encoder is not None


def test_the_languages_are_those_of_the_encoder_that_compares(tmp_path: Path) -> None:
    other = "  f: {encoder: {checkpoint: x, languages: [fr]}}\n"
    assert load(tmp_path, "      languages: [de]\n", other).encoder_languages == {"de"}
    named = load(tmp_path, "      languages: [de]\n", other + "cache: {encoder: f}\n")
    assert (named.encoder_name, named.encoder_languages) == ("f", {"fr"})


def test_without_an_encoder_no_language_is_read() -> None:
    assert Policies().encoder is None and Policies().encoder_languages == frozenset()


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ("[de, german]", "holds 'german', no code of ISO 639-1; did you mean 'de' (German)?"),
        ("[ger]", "holds 'ger', no code of ISO 639-1; did you mean 'de' (German)?"),
        ("[rus]", "did you mean 'ru' (Russian)?"),
        ("[zh-CN]", "did you mean 'zh' (Chinese)?"),
        ("[pt_BR]", "did you mean 'pt' (Portuguese)?"),
        ("[EN]", "did you mean 'en' (English)?"),
        ("[xx]", "holds 'xx', no code of ISO 639-1, such as en, de or zh"),
        ("[de, de]", "holds 'de' twice; remove one"),
        ("[no]", 'must be a string, not no; write it in "quotes"'),
        ("[]", "models.e.encoder.languages"),
        ("de", "models.e.encoder.languages must be a list"),
        ('[""]', "models.e.encoder.languages"),
    ],
)
def test_codes_that_are_none(tmp_path: Path, languages: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, f"      languages: {languages}\n")
    (problem,) = caught.value.problems
    assert problem.place.line == 5 and message in problem.message


def test_every_language_that_is_detected_can_be_declared() -> None:
    assert len(LANGUAGES) == 183
    assert set(DETECTED) <= set(LANGUAGES)
