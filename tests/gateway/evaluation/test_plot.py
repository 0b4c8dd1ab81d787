"""Numbers on axes are plain, and no text of a plot overlaps another or leaves the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from gateway.evaluation.cache import report as cache
from gateway.evaluation.cache.replay import Outcome
from gateway.evaluation.cache.results import StreamResult
from gateway.evaluation.plot import Panel, Plot, Series, draw, figure_of, wrapped
from gateway.evaluation.quality_plot import quality_plot
from gateway.evaluation.route import report as route
from gateway.evaluation.router import report as router
from gateway.evaluation.runner import Subject
from tests.gateway.evaluation.scripted import PRICE, outcome, run_of

LONG = "an-organisation-with-a-long-name/model-with-a-long-name-70b-instruct:free"


def models() -> Plot:
    names = ["same", "same too", LONG, "x", "y", "z", "w"]
    outcomes = [outcome("right", tier=tier) for tier in (1, 2, 3, 4, 5)]
    plot, _ = quality_plot([run_of(*outcomes, subject=Subject(name, price=PRICE)) for name in names])
    assert plot is not None
    return plot


def one_route() -> Plot:
    curve = [{"accuracy": 0.7 + 0.01 * step, "machine_s": 0.001 * step} for step in range(21)]
    subjects = [{"name": name, "accuracy": 0.9, "machine_s": 0.02} for name in ("a", LONG, "auto")]
    return route.plot_of({"curves": {"quality per cost": curve, "cascade": curve}, "subjects": subjects})


def many_sources() -> Plot:
    found = {"kind": "in domain", "curve": [*np.linspace(0.5, 0.8, 21)], "apgr": 0.6, "oracle": 0.9}
    results = [found | {"source": f"source {name}", "strong": LONG} for name in ("a", "b", "c", "d", LONG)]
    return router.plot_of({"results": results})


def two_streams() -> Plot:
    found = [
        Outcome(
            step / 20, num_requests=400, num_exact_only=40, num_hits=200 - 8 * step, num_false=20 - step,
            num_semantic=99, saved_share=0.3,
        )
        for step in range(21)
    ]  # fmt: skip
    none = np.zeros((0, 2), np.float32)
    return cache.plot_of(
        [
            StreamResult(f"/data/{name}", found, found[::-1], None, None, found[0], none)
            for name in ("s", LONG)
        ]
    )


def no_stream() -> Plot:
    return cache.plot_of([])


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


@pytest.mark.parametrize("make", [models, one_route, many_sources, two_streams, no_stream])
def test_texts_are_apart_and_inside(make: Callable[[], Plot]) -> None:
    figure = figure_of(make())
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


def test_files_are_reproducible() -> None:
    files = [draw(Plot(Panel(series=[], title="five < six")), "svg") for _ in range(2)]
    assert files[0] == files[1] and b"five &lt; six" in files[0]


def test_a_png() -> None:
    assert draw(Plot(Panel(series=[])), "png").startswith(b"\x89PNG")


def test_panels_of_equal_limits_share_their_labels() -> None:
    one = Panel(series=[Series("a", (0, 1), (0, 1), "#000000")], y_limits=(0, 2))
    for panel, shares in ((one, True), (replace(one, y_limits=None), False)):
        left, right = figure_of(Plot(small=[panel, panel])).axes
        assert left.yaxis.get_tick_params()["labelleft"]
        assert right.yaxis.get_tick_params()["labelleft"] is not shares


def test_long_names_break() -> None:
    assert max(map(len, wrapped(LONG, 40).split("\n"))) <= 40
