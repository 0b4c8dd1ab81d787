"""The console's charts by themselves: round axes, units, heights that add up, and what an empty one says."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, Route

from tests.e2e.browser.watched import SCRIPTED, Watched, gives_file

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def page(scripted: Watched) -> Page:
    """A page of the console's origin, whose gateway answers nothing but files."""

    def answer(route: Route) -> None:
        if not gives_file(route):
            route.fulfill(body="<!doctype html><title>t</title><body>", content_type="text/html")

    page = scripted.open()
    page.route("**/*", answer)
    page.goto(f"{SCRIPTED}/")
    return page


def call(page: Page, name: str, *arguments: Any) -> Any:  # noqa: ANN401
    """What a function of charts.js returns; a chart as its text, bars and tables."""
    script = """async ([name, given]) => {
        const found = (await import("/console/charts.js"))[name](...given);
        if (!(found instanceof Element)) return found;
        document.body.replaceChildren(found);
        return {
            text: found.textContent,
            bars: [...found.querySelectorAll("svg[role] rect")].map((each) => +each.getAttribute("height")),
            paths: [...found.querySelectorAll("path")].map((each) => each.getAttribute("d")),
            rows: found.querySelectorAll("tbody tr").length,
            images: found.querySelectorAll("img").length,
        };
    }"""
    return page.evaluate(script, [name, arguments])


@pytest.mark.parametrize("most", [0, 1e-6, 0.004, 0.9, 1, 3, 4, 7.5, 10, 99, 101, 12345, 3e9])
def test_axes_end_at_round_numbers_above_the_highest(page: Page, most: float) -> None:
    marks = call(page, "ticks", most)
    step = marks[1] - marks[0]
    assert marks[0] == 0 and marks[-1] >= most * (1 - 1e-9) and marks[-1] - step < max(most, 1)
    assert 3 <= len(marks) <= 7 and f"{step:e}"[0] in "125"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "s", "–"),
        (0.0123, "s", "12.3 ms"),
        (1.5, "s", "1.5 s"),
        (600, "s", "10 min"),
        (7200, "s", "2 h"),
        (259_200, "s", "3 d"),
        (0.256, "%", "26 %"),
        (12.5, "usd", "$12.50"),
        (1234, "", "1234"),
        (123_456, "", "123 k"),
        (2_500_000, "bytes", "2.5 MB"),
        (3.14159, "/s", "3.14 /s"),
    ],
)
def test_numbers_with_units(page: Page, value: float | None, unit: str, shown: str) -> None:
    assert call(page, "show", value, unit) == shown


def test_bars_stack_to_their_sum(page: Page) -> None:
    series = [{"name": HOSTILE, "values": [1, 2]}, {"name": "b", "values": [3, 2]}]
    found = call(page, "bars", {"title": "t", "labels": ["x", "y"], "series": series, "empty": "e"})
    first, second = found["bars"][:2], found["bars"][2:]
    assert sum(first) == pytest.approx(sum(second)) and first[1] == pytest.approx(3 * first[0])
    assert found["rows"] == 2 and HOSTILE in found["text"] and found["images"] == 0


def test_a_line_has_gaps_where_there_is_no_value(page: Page) -> None:
    series = [{"name": "p50", "values": [1, None, 2, 3]}]
    found = call(page, "lines", {"title": "t", "labels": list("wxyz"), "series": series, "empty": "e"})
    assert found["paths"][0].count("M") == 2 and found["paths"][0].count("L") == 1


@pytest.mark.parametrize("chart", ["lines", "bars", "scatter"])
def test_an_empty_chart_says_what_to_do(page: Page, chart: str) -> None:
    axis = {"label": "l", "unit": ""}
    given = {"title": "t", "labels": [], "series": [], "points": [], "x": axis, "y": axis, "empty": "do this"}
    assert "do this" in call(page, chart, given)["text"]
