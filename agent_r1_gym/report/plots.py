"""Plots as inline SVG: grouped bars with intervals, and curves with bands. Colours come from `page.css`.

Every y axis begins at 0 (or below it), so that a small change looks small.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agent_r1_gym.report.page import Html, heading

_WIDTH, _HEIGHT = 420, 240
_RIGHT, _TOP, _BOTTOM = 12, 10, 36
_LETTER = 6.6
"""Approximate width of a letter."""
_LONGEST_LABEL = 22
_SLANT = 55
"""Rotation in degrees of labels that do not fit next to each other."""
_FEW = 12
"""Maximum number of points that are marked: a line through two points is not a trend."""
_LEGEND_COLUMNS = 2
_CODES = ("#0072b2", "#c25400", "#00795a", "#a3457d", "#8a6d00", "#2b86b8")
_STYLE = (
    "svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#555}line{stroke-width:1}.axis{stroke:#ddd}"
    ".curve{fill:none;stroke-width:2}.dots{fill:none;stroke-width:3;stroke-linecap:round;opacity:.5}"
    ".band{stroke:none;opacity:.12}.across{stroke:#888;stroke-dasharray:4 3}.whisker{stroke:#333}"
)
"""Style of a standalone plot: that of the page in its light scheme."""
COLOURS = 6
"""Number of distinct colours; further series reuse them in order."""

Range = tuple[float, float, float]
"""Mean, and the low and high end of its interval."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot.

    Attributes:
        x: positions, rising.
        y: a mean with its band at each.
        raw: points (x, y) that the line smooths, drawn faintly behind it.
    """

    x: Sequence[float]
    y: Sequence[Range]
    raw: Sequence[tuple[float, float]] = ()


_Scale = Callable[[float], float]


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def bars(title: str, categories: Sequence[str], series: Mapping[str, Sequence[Range | None]], note: str = "") -> Html:
    """Draw a bar for each category and series, with a whisker over its interval; None leaves a gap."""
    ends = [end for values in series.values() for value in values if value for end in value]
    ticks = nice_ticks(min([0.0, *ends]), max([0.0, *ends]))
    left = _left(ticks)
    slot = (_WIDTH - left - _RIGHT) / max(1, len(categories))
    labels = [_shortened(category) for category in categories]
    longest = max(map(len, labels), default=0) * _LETTER
    slanted = longest > slot
    bottom = 20 + (longest * math.sin(math.radians(_SLANT)) if slanted else 6)
    height = _HEIGHT - _BOTTOM + bottom
    y = _scale(ticks[0], ticks[-1], height - bottom, _TOP)
    width = min(0.8 * slot / max(1, len(series)), 48)
    parts = [_grid(ticks, y, left)]
    for at, category in enumerate(categories):
        middle = left + (at + 0.5) * slot
        parts.append(_text(middle, height - bottom + 16, labels[at], "end" if slanted else "middle", turn=slanted))
        for number, (name, values) in enumerate(series.items()):
            if (value := values[at]) is not None:
                start = middle + (number - len(series) / 2) * width
                parts.append(_bar(start, width * 0.9, y, value, number, f"{category}, {name}"))
    return _figure(title, parts, note=note, height=height)


def curves(
    title: str,
    series: Mapping[str, Curve],
    *,
    x_label: str = "optimiser step",
    lines: Mapping[str, float] | None = None,
    note: str = "",
) -> Html:
    """Draw a line for each series, over its band and its raw points.

    Args:
        title: title of the plot.
        series: curves by name.
        x_label: label of the x axis.
        lines: reference values by name, drawn across the plot.
        note: a few words below the title.
    """
    points = [value for curve in series.values() for value in curve.y]
    positions = [x for curve in series.values() for x in curve.x]
    if not points:
        return Html("")
    values = [end for point in points for end in point]
    values += [value for curve in series.values() for _, value in curve.raw]
    values += (lines or {}).values()
    ticks = nice_ticks(min(0.0, *values), max(0.0, *values))
    left = _left(ticks)
    y = _scale(ticks[0], ticks[-1], _HEIGHT - _BOTTOM, _TOP)
    first, last = min(positions), max(positions)
    x = _scale(first, last if last > first else first + 1, left, _WIDTH - _RIGHT)
    parts = [_grid(ticks, y, left)]
    parts += [_text(x(at), _HEIGHT - _BOTTOM + 15, _plain(at), "middle") for at in _positions(first, last)]
    parts.append(_text(left + (_WIDTH - left) / 2, _HEIGHT - 5, x_label, "middle"))
    parts += [_dots(curve, number % COLOURS, x, y) for number, curve in enumerate(series.values())]
    parts += [
        _line(name, curve, number % COLOURS, x, y) for number, (name, curve) in enumerate(series.items()) if curve.y
    ]
    parts.append(_across(lines or {}, y, left))
    return _figure(title, parts, note=note)


def legend(names: Sequence[str]) -> Html:
    """List the names of series with their colours."""
    entries = (
        f'<li><i class="fill{number % COLOURS}"></i>{html.escape(name)}</li>' for number, name in enumerate(names)
    )
    return Html(f'<ul class="legend">{"".join(entries)}</ul>')


def standalone(figure: Html, names: Sequence[str] = ()) -> str:
    """Convert a figure to a standalone SVG file, for pages without this project's style sheet.

    Args:
        figure: figure of `bars` or `curves`.
        names: names of the series for a legend below; default: no legend.
    """
    [(height, parts)] = re.findall(r'<svg viewBox="0 0 \d+ (\d+)".*?>(.*)</svg>', figure.text, re.S)
    legend_rows = [names[at : at + _LEGEND_COLUMNS] for at in range(0, len(names), _LEGEND_COLUMNS)]
    entries = [
        f'<circle class="fill{(row * _LEGEND_COLUMNS + column) % COLOURS}" cx="{left + 4:.0f}" cy="{y - 4}" r="4"/>'
        + _text(left + 14, y, name, "start")
        for row, row_names in enumerate(legend_rows)
        for y in [int(height) + 14 + 16 * row]
        for column, name in enumerate(row_names)
        for left in [12 + column * _WIDTH / _LEGEND_COLUMNS]
    ]
    colours = "".join(f".line{at}{{stroke:{code}}}.fill{at}{{fill:{code}}}" for at, code in enumerate(_CODES))
    whole = int(height) + 16 * len(legend_rows) + (6 if legend_rows else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {whole}" role="img">'
        f"<style>{_STYLE}{colours}</style>{parts}{''.join(entries)}</svg>\n"
    )


def grid(figures: Sequence[Html]) -> Html:
    """Lay out figures side by side, as many as fit."""
    return Html(f'<div class="plots">{"".join(figure.text for figure in figures)}</div>')


def plot_groups(groups: Mapping[str, Sequence[Html]]) -> list[Html]:
    """Lay out groups of figures, each below its heading; a group without figures is skipped."""
    return [part for name, figures in groups.items() if figures for part in (heading(name), grid(figures))]


def nice_ticks(low: float, high: float) -> list[float]:
    """Choose about five round, evenly spaced ticks that enclose `low` and `high`."""
    size = max(abs(low), abs(high))
    spread = high - low if high - low > 1e-6 * size else size or 1.0  # a rounding error is no difference
    power = 10.0 ** math.floor(math.log10(spread / 4))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if spread / (power * factor) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Format ticks, all with as many decimals as their distance needs."""
    step, size = ticks[1] - ticks[0], max(map(abs, ticks))
    if step < 1e-4:
        texts = ["0" if abs(tick) < step / 2 else f"{tick:.3g}" for tick in ticks]
        return [text.replace("e-0", "e-") for text in texts]
    decimals = next(count for count in range(9) if abs(step * 10**count - round(step * 10**count)) < 1e-6)
    return [f"{tick / 1000:g}k" if size >= 1e4 else f"{tick + 0.0:.{decimals}f}" for tick in ticks]


def _positions(first: float, last: float) -> list[float]:
    """Choose round positions on an axis, whole numbers only: steps are counted."""
    if last <= first:
        return [first]
    return [tick for tick in nice_ticks(first, last) if first <= tick <= last and abs(tick - round(tick)) < 1e-9]


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value - round(value)) < 1e-9 else f"{value:g}"


def _left(ticks: Sequence[float]) -> float:
    return 12 + max(map(len, tick_labels(ticks))) * _LETTER


def _grid(ticks: Sequence[float], y: _Scale, left: float) -> str:
    lines = []
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        at = f"{y(tick):.1f}"
        lines.append(f'<line class="axis" x1="{left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        lines.append(_text(left - 6, y(tick) + 4, label, "end"))
    return "".join(lines)


def _bar(left: float, width: float, y: _Scale, value: Range, number: int, name: str) -> str:
    mean, low, high = value
    top, bottom = sorted((y(mean), y(0.0)))
    middle = left + width / 2
    spread = f" [{low:.3f}, {high:.3f}]" if low < high else ""
    label = html.escape(f"{name}: {mean:.3f}{spread}")
    whisker = f'<line class="whisker" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>'
    return (
        f"<g><title>{label}</title>"
        f'<rect class="fill{number % COLOURS}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{max(bottom - top, 1):.1f}"/>{whisker if spread else ""}</g>'
    )


def _dots(curve: Curve, colour: int, x: _Scale, y: _Scale) -> str:
    dots = "".join(f"M{x(at):.1f} {y(value):.1f}h0" for at, value in curve.raw)
    return f'<path class="dots line{colour}" d="{dots}"/>' if dots else ""


def _line(name: str, curve: Curve, colour: int, x: _Scale, y: _Scale) -> str:
    points = list(zip(map(x, curve.x), curve.y, strict=True))
    up = [(at, y(high)) for at, (_, _, high) in points]
    down = [(at, y(low)) for at, (_, low, _) in points]
    means = [(at, y(mean)) for at, (mean, _, _) in points]
    shape = f'<path class="curve line{colour}" d="{_path(means)}"><title>{html.escape(name)}</title></path>'
    if len(means) == 1:
        shape = ""
    if len(means) <= _FEW:
        marks = zip(means, curve.y, strict=True)
        shape += "".join(
            f'<circle class="fill{colour}" cx="{at:.1f}" cy="{height:.1f}" r="3"><title>{mean:.4g}</title></circle>'
            for (at, height), (mean, _, _) in marks
        )
    has_band = any(low < high for _, low, high in curve.y)
    band = f'<path class="band fill{colour}" d="{_path([*up, *reversed(down)])}Z"/>' if has_band else ""
    return band + shape


def _across(lines: Mapping[str, float], y: _Scale, left: float) -> str:
    """Draw dashed reference lines, with names above them (below at the top of the plot) that never overlap."""
    parts, last = [], math.inf
    for name, value in sorted(lines.items(), key=lambda line: line[1]):
        at = y(value)
        last = min(at - 3 if at > _TOP + 24 else at + 13, last - 13)
        parts.append(f'<line class="across" x1="{left:.1f}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<g class="named">{_text(_WIDTH - _RIGHT, last, f"{name} {value:.3f}", "end")}</g>')
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _text(x: float, y: float, text: str, anchor: str, *, turn: bool = False) -> str:
    turned = f' transform="rotate(-{_SLANT} {x:.1f} {y - 4:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}>{html.escape(text)}</text>'


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…"


def _figure(title: str, parts: Sequence[str], *, note: str = "", height: float = _HEIGHT) -> Html:
    label = html.escape(title)
    below = f"<small>{html.escape(note)}</small>" if note else ""
    return Html(
        f'<figure><figcaption>{label}{below}</figcaption><svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg></figure>'
    )
