"""The pictures of the guides: drawn from their texts, self-contained, and shown."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from deploy.pictures.draw import FOLDER, NAMES, picture

ROOT = Path(__file__).resolve().parents[2]
MAX_IMAGES_BYTES = 600 * 1024
"""What all screenshots may take together: a clone carries them, and every later version of them."""
BOXES = "size 300 100\nbox a 0 0 100 40 A\nbox b 200 0 100 40 B & <C>\nbox c 0 60 100 40 C\n"


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_as_their_texts_say(name: str) -> None:
    drawn = picture((FOLDER / f"{name}.txt").read_text("utf-8"))
    assert (FOLDER / f"{name}.svg").read_text("utf-8") == drawn, "run python deploy/pictures/draw.py"
    ElementTree.fromstring(drawn)
    assert "prefers-color-scheme: dark" in drawn
    assert re.findall(r"https?://[^\"]+|url\(|@import", drawn) == ["http://www.w3.org/2000/svg"]


def test_every_picture_is_shown_and_every_shown_one_is_there() -> None:
    guides = [*ROOT.glob("*.md"), *(ROOT / "gateway").glob("*.md")]
    shown = {
        (guide.parent / target).resolve()
        for guide in guides
        for target in re.findall(r"!\[[^]]+]\(([^)]+)\)", guide.read_text("utf-8"))
    }
    made = {path for path in FOLDER.iterdir() if path.suffix in (".svg", ".png")}
    assert shown == made
    assert sum(path.stat().st_size for path in made if path.suffix == ".png") <= MAX_IMAGES_BYTES


def test_arrows_point_from_one_box_to_the_other_and_words_are_escaped() -> None:
    drawn = picture(BOXES + "arrow b a to & fro\narrow a c")
    assert '<line x1="200" y1="20" x2="106" y2="20"/>' in drawn and '<path d="M100 20 l8 -4 v8 z"/>' in drawn
    assert '<line x1="50" y1="40" x2="50" y2="54"/>' in drawn
    assert "B &amp; &lt;C&gt;" in drawn and "to &amp; fro" in drawn


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("arrow c b", "no straight line"),
        ("box d 0 0 50 40 far too long a title", "does not fit into 50 pixels"),
        ("circle 1 2 3", "unknown kind 'circle'"),
    ],
)
def test_a_text_that_cannot_be_drawn_well_is_refused(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        picture(BOXES + line)
