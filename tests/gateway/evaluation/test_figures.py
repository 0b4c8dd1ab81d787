"""Numbers on axes are plain, and no text of a plot overlaps another or leaves the picture."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from gateway.evaluation import plot
from gateway.evaluation.cache import report as cache
from gateway.evaluation.figures import save_figure, wrapped
from gateway.evaluation.route import report as route
from gateway.evaluation.router import report as router
from gateway.evaluation.runner import Subject
from tests.gateway.evaluation.scripted import PRICE, outcome, run_of

LONG = "an-organisation-with-a-long-name/model-with-a-long-name-70b-instruct:free"


def models(path: Path) -> None:
    names = ["same", "same too", LONG, "x", "y", "z", "w"]
    outcomes = [outcome("right", tier=tier) for tier in (1, 2, 3, 4, 5)]
    plot.save_plot([run_of(*outcomes, subject=Subject(name, price=PRICE)) for name in names], path)


def one_route(path: Path) -> None:
    curve = [{"accuracy": 0.7 + 0.01 * step, "machine_s": 0.001 * step} for step in range(21)]
    subjects = [{"name": name, "accuracy": 0.9, "machine_s": 0.02} for name in ("a", LONG, "auto")]
    route.save_plot({"curves": {"quality per cost": curve, "cascade": curve}, "subjects": subjects}, path)


def many_sources(path: Path) -> None:
    found = {"kind": "in domain", "curve": [*np.linspace(0.5, 0.8, 21)], "apgr": 0.6, "oracle": 0.9}
    results = [found | {"source": f"source {name}", "strong": LONG} for name in ("a", "b", "c", "d", LONG)]
    router.save_plot({"results": results}, path)


def no_stream(path: Path) -> None:
    cache.save_plot([], path)


def beyond_the_axes(figure: Figure) -> list[Text]:
    """Labels of ticks outside of what an axis shows, which are not drawn."""
    found = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            found += [each.label1 for each in ticks if not low <= each.get_loc() <= high]
            found += [each.label2 for each in ticks]
    return found


@pytest.mark.parametrize("draw", [models, one_route, many_sources, no_stream])
def test_texts_are_apart_and_inside(
    draw: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Figure] = []
    for module in (plot, route, router, cache):
        monkeypatch.setattr(module, "save_figure", lambda figure, path: kept.append(figure))
    draw(tmp_path / "a.png")
    (figure,) = kept
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    texts = [each for each in texts if each not in beyond_the_axes(figure)]
    boxes = [(each.get_text(), each.get_window_extent()) for each in texts]
    width, height = canvas.get_width_height()
    for text, box in boxes:
        assert -1 <= box.x0 and box.x1 <= width + 1 and -1 <= box.y0 and box.y1 <= height + 1, text
        assert "10^" not in text
    for (one, first), (other, second) in combinations(boxes, 2):
        is_apart = first.x1 <= second.x0 + 1 or second.x1 <= first.x0 + 1
        assert is_apart or first.y1 <= second.y0 + 1 or second.y1 <= first.y0 + 1, (one, other)


def test_files_are_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        figure = Figure()
        figure.add_subplot().set_title("five < six")
        save_figure(figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_long_names_break() -> None:
    assert max(map(len, wrapped(LONG, 40).split("\n"))) <= 40
