"""Plots: heights and bands are where the numbers are."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest

from agent_r1_gym.report.plots import Curve, bars, curves, nice_ticks, standalone, tick_labels


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.5, 1.3, [-0.5, 0, 0.5, 1.0, 1.5]),
        (0, 7, [0, 2, 4, 6, 8]),
    ],
)
def test_ticks_are_round_and_enclose(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 0.9, -3.0, 3e-7, 1e9])
def test_one_value_has_a_scale_too(value: float) -> None:
    ticks = nice_ticks(value, value)
    assert ticks[0] <= value <= ticks[-1] and ticks[0] < ticks[-1]
    assert len(nice_ticks(value, value * (1 + 1e-15))) < 9


def test_a_bar_is_as_high_as_its_value() -> None:
    figure = bars("EM", ["2", "3"], {"a": [(1.0, 1.0, 1.0), (0.25, 0.0, 0.5)], "<b>": [None, (0.5, 0.5, 0.5)]}).text
    heights = [float(height) for height in re.findall(r"<rect[^>]* height=.([\d.]+)", figure)]
    assert heights == pytest.approx([heights[0], heights[0] / 4, heights[0] / 2], abs=0.11)
    assert "&lt;b&gt;" in figure and "<b>" not in figure
    assert "3, a: 0.250 [0.000, 0.500]" in figure


def test_a_band_goes_along_the_highs_and_back_along_the_lows() -> None:
    figure = curves("return", {"ppo": Curve([0, 10], [(0.5, 0.0, 1.0), (0.5, 0.5, 0.5)]), "empty": Curve([], [])}).text
    bands = re.findall(r'class="band fill0" d="M([^"]+)Z"', figure)
    points = [tuple(map(float, point.split())) for point in bands[0].split("L")]
    assert [x for x, _ in points] == [points[0][0], points[1][0], points[1][0], points[0][0]]
    top, bottom = points[0][1], points[3][1]
    assert top < bottom and points[1][1] == pytest.approx((top + bottom) / 2, abs=0.11)
    assert "NaN" not in figure and len(bands) == 1


def test_one_step_is_a_dot() -> None:
    assert "<circle" in curves("kl", {"a": Curve([5], [(3e-7, 3e-7, 3e-7)])}).text
    assert curves("kl", {"a": Curve([], [])}).text == ""


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0, 0.25, 0.5], ["0.00", "0.25", "0.50"]),
        ([0.0, 0.2, 0.4], ["0.0", "0.2", "0.4"]),
        ([0, 2, 4], ["0", "2", "4"]),
        ([0, 0.0025, 0.005], ["0.0000", "0.0025", "0.0050"]),
        ([0, 0.00025, 0.0005], ["0.00000", "0.00025", "0.00050"]),
        ([0, 1e-7, 2e-7], ["0", "1e-7", "2e-7"]),
        ([0, 2.5e-5, 5e-5, 1.25e-4], ["0", "2.5e-5", "5e-5", "0.000125"]),
        ([0, 5000, 10000], ["0k", "5k", "10k"]),
    ],
)
def test_ticks_have_as_many_digits_as_they_need(ticks: list[float], labels: list[str]) -> None:
    assert tick_labels(ticks) == labels


def test_labels_say_where_their_ticks_are() -> None:
    for power, high, low in itertools.product(range(-9, 13), (1.0, 1.2, 1.7, 2.4, 4.9, 9.9), (0.0, -0.4, -3.0)):
        ticks = nice_ticks(low * 10.0**power, high * 10.0**power)
        for tick, label in zip(ticks, tick_labels(ticks), strict=True):
            shown = float(label.removesuffix("k")) * (1000 if label.endswith("k") else 1)
            assert shown == pytest.approx(tick, rel=1e-3, abs=1e-9 * ticks[-1])


def test_axes_begin_at_zero_and_no_label_leaves_the_picture() -> None:
    """Zoomed to its data, a step from .277 to .300 filled the panel."""
    small = Curve([1, 100], [(0.277, 0.277, 0.277), (0.3, 0.3, 0.3)])
    figure = curves("return", {"a": small}, lines={"Naive RAG": 0.1475, "a much longer name of a baseline": 0.15}).text
    texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"[^>]*>([^<]+)<', figure)
    assert "0.0" in [text for *_, text in texts]
    assert {"20", "40", "60", "80", "100"} <= {text for *_, text in texts}
    for x, _, anchor, text in texts:
        width = 6.6 * len(text)
        left = float(x) - {"end": width, "middle": width / 2, "start": 0}[anchor]
        assert left >= -1 and left + width <= 421, text
    heights = [float(y) for _, y, _, text in texts if "0.1" in text and len(text) > 6]
    assert len(heights) == 2 and abs(heights[0] - heights[1]) >= 12  # labels next to each other stay readable


def test_points_lie_behind_the_line_and_few_of_them_are_marked() -> None:
    flat = [(0.5, 0.5, 0.5)]
    few = curves("kl", {"a": Curve([1, 2], flat * 2, [(1, 0.4), (2, 0.6)])}).text
    assert few.count("<circle") == 2 and few.count("h0") == 2 and "band" not in few
    assert "<circle" not in curves("kl", {"a": Curve(range(20), flat * 20)}).text


def test_labels_that_do_not_fit_are_turned_instead_of_cut() -> None:
    bar = [(1.0, 1.0, 1.0)] * 6
    names = ["malformed_call", "repeated_query", "new_support", "valid_call", "failed_call", "em"]
    figure = bars("terms", names, {"a": bar}).text
    assert all(name in figure for name in names) and figure.count("rotate(") == 6 and "whisker" not in figure


def test_a_plot_on_its_own_is_an_image_with_its_colours_and_a_legend() -> None:
    figure = curves("solved", {name: Curve([0, 1], [(0.1, 0.0, 0.2), (0.5, 0.4, 0.6)]) for name in ("a & b", "c", "d")})
    whole = ElementTree.fromstring(standalone(figure, ["a & b", "c", "d"]))
    alone = ElementTree.fromstring(standalone(figure))
    space = "{http://www.w3.org/2000/svg}"
    heights = [float(svg.get("viewBox", "").split()[3]) for svg in (whole, alone)]
    assert heights[0] == heights[1] + 2 * 16 + 6  # two lines of two names
    words = [text.text for text in whole.iter(f"{space}text")]
    assert words[-3:] == ["a & b", "c", "d"]
    ends = [float(text.get("y", "")) for text in whole.iter(f"{space}text")]
    assert max(ends) <= heights[0]
    [style] = [element.text or "" for element in whole.iter(f"{space}style")]
    used = {name for element in whole.iter() for name in element.get("class", "").split()}
    assert all(f".{name}{{" in style for name in used - {"named"}), used
