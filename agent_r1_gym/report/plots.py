"""Plots as inline SVG: grouped bars with intervals, and curves with bands. Colours are the page's (`page.css`)."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent_r1_gym.report.page import Html

_WIDTH, _HEIGHT = 420, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 34
COLOURS = 6
"""Number of series in a plot that look different; the next looks like the first again."""

Range = tuple[float, float, float]
"""A mean, and the low and high end of its interval."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot.

    Attributes:
        x: positions, rising.
        y: a mean with its band at each.
    """

    x: Sequence[float]
    y: Sequence[Range]


_Scale = Callable[[float], float]


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def bars(title: str, categories: Sequence[str], series: Mapping[str, Sequence[Range | None]]) -> Html:
    """Returns a bar for each category and series, with a whisker over its interval; None leaves a gap."""
    ends = [end for values in series.values() for value in values if value for end in value]
    ticks = nice_ticks(min([0.0, *ends]), max([0.0, *ends]))
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    slot = (_WIDTH - _LEFT - _RIGHT) / max(1, len(categories))
    width = min(0.8 * slot / max(1, len(series)), 48)
    parts = [_grid(ticks, y)]
    for at, category in enumerate(categories):
        middle = _LEFT + (at + 0.5) * slot
        parts.append(_text(middle, _HEIGHT - _BOTTOM + 16, _shortened(category, slot), "middle"))
        for number, (name, values) in enumerate(series.items()):
            if (value := values[at]) is not None:
                left = middle + (number - len(series) / 2) * width
                parts.append(_bar(left, width * 0.9, y, value, number, f"{category}, {name}"))
    return _figure(title, parts)


def curves(title: str, series: Mapping[str, Curve], *, x_label: str = "optimiser step") -> Html:
    """Returns a line for each series, over its band."""
    points = [value for curve in series.values() for value in curve.y]
    positions = [x for curve in series.values() for x in curve.x]
    if not points:
        return Html("")
    ticks = nice_ticks(min(low for _, low, _ in points), max(high for _, _, high in points))
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    first, last = min(positions), max(positions)
    x = _scale(first, last if last > first else first + 1, _LEFT, _WIDTH - _RIGHT)
    parts = [_grid(ticks, y)]
    for anchor, position in {last: ("end", last), first: ("start", first)}.values():
        parts.append(_text(x(position), _HEIGHT - _BOTTOM + 14, f"{position:g}", anchor))
    parts.append(_text(_LEFT + (_WIDTH - _LEFT) / 2, _HEIGHT - 6, x_label, "middle"))
    for number, (name, curve) in enumerate(series.items()):
        if curve.y:
            parts.append(_line(name, curve, number % COLOURS, x, y))
    return _figure(title, parts)


def legend(names: Sequence[str]) -> Html:
    """Returns the names of series beside their colours."""
    entries = (
        f'<li><i class="fill{number % COLOURS}"></i>{html.escape(name)}</li>' for number, name in enumerate(names)
    )
    return Html(f'<ul class="legend">{"".join(entries)}</ul>')


def grid(figures: Sequence[Html]) -> Html:
    """Returns figures side by side, as many as fit."""
    return Html(f'<div class="plots">{"".join(figure.text for figure in figures)}</div>')


def nice_ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers, evenly spaced, from at or below `low` to at or above `high`."""
    size = max(abs(low), abs(high))
    spread = high - low if high - low > 1e-6 * size else size or 1.0  # what rounding left is no difference
    power = 10.0 ** math.floor(math.log10(spread / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if spread / (power * factor) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _grid(ticks: Sequence[float], y: _Scale) -> str:
    lines = []
    for tick in ticks:
        at = f"{y(tick):.1f}"
        lines.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        lines.append(_text(_LEFT - 6, y(tick) + 4, f"{tick:.4g}", "end"))
    return "".join(lines)


def _bar(left: float, width: float, y: _Scale, value: Range, number: int, name: str) -> str:
    mean, low, high = value
    top, bottom = sorted((y(mean), y(0.0)))
    middle = left + width / 2
    label = html.escape(f"{name}: {mean:.3f} [{low:.3f}, {high:.3f}]")
    return (
        f"<g><title>{label}</title>"
        f'<rect class="fill{number % COLOURS}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{max(bottom - top, 1):.1f}"/>'
        f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/></g>'
    )


def _line(name: str, curve: Curve, colour: int, x: _Scale, y: _Scale) -> str:
    points = list(zip(map(x, curve.x), curve.y, strict=True))
    up = [(at, y(high)) for at, (_, _, high) in points]
    down = [(at, y(low)) for at, (_, low, _) in points]
    means = [(at, y(mean)) for at, (mean, _, _) in points]
    label = html.escape(name)
    shape = f'<path class="curve line{colour}" d="{_path(means)}"><title>{label}</title></path>'
    if len(means) == 1:
        shape = f'<circle class="fill{colour}" cx="{means[0][0]:.1f}" cy="{means[0][1]:.1f}" r="3"/>'
    return f'<path class="band fill{colour}" d="{_path([*up, *reversed(down)])}Z"/>{shape}'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _shortened(text: str, width: float) -> str:
    most = max(3, int(width / 6.5))
    return text if len(text) <= most else text[: most - 1] + "…"


def _figure(title: str, parts: Sequence[str]) -> Html:
    label = html.escape(title)
    return Html(
        f'<figure><figcaption>{label}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )
