"""When a reward fell and which alarm would have flagged it before, from a run's log; tables and a picture of that."""

from __future__ import annotations

import functools
import html
import statistics
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState

from agent_r1_gym.run.evaluation.statistics import permutation_test
from agent_r1_gym.support.files import atomic_file
from benchmarks.common.results import Cell
from benchmarks.common.tables import Cells, markdown, spread
from trainers.config.agent import AgentConfig
from trainers.monitoring import alarms
from trainers.toy.quickstart import configuration

ALARMS: Mapping[str, float] = {
    "alarm_entropy_below": 0.003,
    "alarm_entropy_above": 0.15,
    "alarm_repetition_above": 0.3,
    "alarm_calls_below": 0.5,
    "alarm_answer_share_above": 0.8,
    "alarm_infra_failures_above": 0.5,
}
"""The same for all causes, and for healthy runs."""
PATIENCE = 3
DRIFT = 0.02
"""Nats on average per token, of any batch: the trainer checks each where an engine has weights of its own."""
DRIFT_OPTION = "alarm_drift_above"
METRICS: Mapping[str, str] = {
    "entropy": "entropy",
    "repetition": "rollout/repetition",
    "calls": "rollout/calls",
    "answer_share": "rollout/answer_share",
    "infra_failures": "rollout/infra_failures",
    "drift": "sampling/logprob_drift_mean",
}
"""What a cell keeps of a log, all that the alarms watch: name in the cell to name in the log."""
OUTAGE = (5, 25)
"""First batch of the twenty without a search backend, and the one after the last."""
EARLY = 10
"""Steps before the fall at which a flag still helps."""
LIMITS = (0.02, 0.05, 0.1, 0.5)
"""Nats; the last is the trainer's default."""
_ENDS = 5
"""Steps at the beginning and at the end of a run that are averaged."""
Log = Mapping[str, Sequence[float | None]]
"""Metrics of a run, one value per step; None where a step did not log it. `em` is always there."""


# --- falls and flags --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fall:
    """When a reward has fallen: so many steps in a row below a share of the best running mean of the steps before.

    Attributes:
        steps: number in a row; the fall is the first of them.
        share: of the best running mean.
        window: number of steps of the running mean.
        least: that the best running mean must have reached.
    """

    steps: int = 3
    share: float = 0.5
    window: int = 5
    least: float = 0.2


FALL = Fall()


def fall_of(em: Sequence[float], rule: Fall) -> int | None:
    """Returns the step (the first is 1) at which exact match fell, None if it did not."""
    for step in range(rule.window + 1, len(em) - rule.steps + 2):
        before = em[: step - 1]
        best = max(statistics.mean(before[at : at + rule.window]) for at in range(len(before) - rule.window + 1))
        if best >= rule.least and all(now < rule.share * best for now in em[step - 1 : step - 1 + rule.steps]):
            return step
    return None


def flags_of(log: Log) -> dict[str, int]:
    """Returns the step at which each alarm would have stopped a run, by its option, the earliest first."""
    flags = {option: step for option in ALARMS if (step := _stopped_at(option, log)) is not None}
    if (drift := drift_above(DRIFT, log)) is not None:
        flags[DRIFT_OPTION] = drift
    return dict(sorted(flags.items(), key=lambda flag: flag[1]))


def from_the_first_batch(flags: Mapping[str, int]) -> bool:
    """Returns whether an alarm stops as early as it can, so that its metric is beyond the limit from the first batch.

    Then the cause shows in how the metric is counted, whatever the policy does: the steps until the reward falls are
    not a lead, and a rollback, which goes back to the first batch, meets the same alarm again.
    """
    return any(step == (1 if option == DRIFT_OPTION else PATIENCE) for option, step in flags.items())


def drift_above(limit: float, log: Log) -> int | None:
    """Returns the first step whose log-probs drift by more than so many nats, None if none does."""
    means = enumerate(log.get("drift", ()), start=1)
    return next((step for step, mean in means if mean is not None and mean > limit), None)


def _stopped_at(option: str, log: Log) -> int | None:
    """The step at which the trainer's alarm stops, with this option alone."""
    alarm, control = alarms.CollapseAlarm(_watching(option)), TrainerControl()
    alarms.logger.disabled = True  # its messages are about a run that is long over
    try:
        for step in range(1, len(log["em"]) + 1):
            values = {name: log[name][step - 1] for name in METRICS if name in log}
            row: dict[str, Any] = {METRICS[name]: value for name, value in values.items() if value is not None}
            row["grad_norm"] = 0.0  # always finite: a run with another one stops, and its log ends there
            alarm.on_log(None, TrainerState(global_step=step), control, logs=row)
            if control.should_training_stop:
                return step
    finally:
        alarms.logger.disabled = False
    return None


@functools.cache
def _watching(option: str) -> AgentConfig:
    others: dict[str, Any] = dict.fromkeys(ALARMS)
    chosen = others | {option: ALARMS[option], "alarm_patience": PATIENCE, "alarm_zero_std_steps": 0}
    return configuration(Path(tempfile.gettempdir()), algorithm="grpo", steps=1, seed=0, **chosen)  # nothing is written


def start(cell: Cell) -> float:
    """Returns mean exact match of a run's first steps."""
    return float(statistics.mean(cell["log"]["em"][:_ENDS]))


def end(cell: Cell) -> float:
    """Returns mean exact match of a run's last steps."""
    return float(statistics.mean(cell["log"]["em"][-_ENDS:]))


def recovered(cell: Cell, *, steps: int) -> bool:
    """Returns whether a run took all its steps, never fell in the log that it ends with, and ended above its start."""
    em = cell["log"]["em"]
    return len(em) == steps and fall_of(em, FALL) is None and end(cell) > start(cell)


# --- tables -----------------------------------------------------------------------------------------------------------


def _rows(
    cells: Cells, arms: Iterable[str], row: Callable[[Sequence[Cell]], Iterable[str]]
) -> Iterator[tuple[str, ...]]:
    for name in arms:
        if found := cells.by_arm.get(name):
            yield cells.title(name), str(len(found)), *row(found)


def warned(cells: Cells, *, arms: Iterable[str]) -> str:
    """Per cause the first alarm, when it flags, when the reward falls, and the steps between.

    Runs that are flagged `from_the_first_batch` have no lead, and are counted apart.
    """

    def row(found: Sequence[Cell]) -> Iterator[str]:
        flags = [flags_of(cell["log"]) for cell in found]
        falls = [fall_of(cell["log"]["em"], FALL) for cell in found]
        firsts = Counter(next(iter(options), "none") for options in flags)
        yield ", ".join(f"`{option}` {count}" for option, count in firsts.most_common())
        at = [min(options.values(), default=None) for options in flags]
        yield _listed(at)
        yield _listed(falls)
        at_once = [*map(from_the_first_batch, flags)]
        leads = [
            None if flag is None or fall is None or first else fall - flag
            for flag, fall, first in zip(at, falls, at_once, strict=True)
        ]
        yield _listed(leads)
        later = len(found) - sum(at_once)
        early = f"{sum(lead is not None and lead >= EARLY for lead in leads)} of {later}" if later else ""
        yield ", ".join(filter(None, [early, f"{sum(at_once)} from the first batch" if any(at_once) else ""]))

    header = ("cause", "seeds", "warns first", "flagged at", "falls at", "lead", f"{EARLY} or more before")
    return markdown(header, _rows(cells, arms, row))


def saved(cells: Cells, *, arms: Iterable[str]) -> str:
    """What a rollback saves."""

    def row(found: Sequence[Cell]) -> Iterator[str]:
        yield _listed([len(cell["rollbacks"]) for cell in found])
        back = [rollback["to"] for cell in found for rollback in cell["rollbacks"]]
        yield f"{back.count(0)} of {len(back)}"
        yield f"{sum(not cell['stopped'] for cell in found)} of {len(found)}"
        yield f"{sum(recovered(cell, steps=cells.profile.steps) for cell in found)} of {len(found)}"
        yield spread([end(cell) for cell in found])

    header = ("with a rollback", "seeds", "rollbacks", "to step 0", "takes all steps", "recovers", "EM at the end")
    return markdown(header, _rows(cells, arms, row))


def healthy(cells: Cells, *, arms: Iterable[str]) -> str:
    """False alarms."""

    def row(found: Sequence[Cell]) -> Iterator[str]:
        yield str(sum(bool(flags_of(cell["log"])) for cell in found))
        yield str(sum(fall_of(cell["log"]["em"], FALL) is not None for cell in found))
        yield spread([end(cell) for cell in found])

    return markdown(("healthy", "seeds", "false alarms", "falls", "EM at the end"), _rows(cells, arms, row))


def outage(cells: Cells, *, arms: Iterable[str]) -> str:
    """Exact match before, during and after an outage."""

    def row(found: Sequence[Cell]) -> Iterator[str]:
        for last in OUTAGE:
            yield spread([statistics.mean(cell["log"]["em"][last - _ENDS : last]) for cell in found])
        yield spread([end(cell) for cell in found])

    header = ("20 steps without a backend", "seeds", "EM before", "at their end", "at the end of the run")
    return markdown(header, _rows(cells, arms, row))


def paired_outages(cells: Cells, *, arms: Iterable[str]) -> str:
    """How far dropped rollouts are ahead of rollouts that are scored 0, seed by seed."""
    dropped, scored = ({cell["seed"]: cell["log"]["em"] for cell in cells.by_arm.get(name, ())} for name in arms)
    rows = []
    if seeds := sorted(dropped.keys() & scored):
        for title, last in (("at their end", OUTAGE[1]), ("at the end of the run", None)):
            ends = slice(last - _ENDS, last) if last else slice(-_ENDS, None)
            ahead = [statistics.mean(dropped[seed][ends]) - statistics.mean(scored[seed][ends]) for seed in seeds]
            p_value = permutation_test(ahead, [0.0] * len(ahead))
            each = " ".join(f"{value:+.2f}" for value in ahead)
            rows.append((title, each, f"{statistics.mean(ahead):+.3f}", f"{p_value:.2f}"))
    return markdown(("dropped - scored 0, by seed", "EM", "mean", "p (sign flips)"), rows)


def drift_limits(cells: Cells, *, arms: Iterable[str]) -> str:
    """The step at which each run first drifts by more than a limit."""
    rows = (
        (cells.title(name), *(_listed([drift_above(limit, cell["log"]) for cell in found]) for limit in LIMITS))
        for name in arms
        if (found := cells.by_arm.get(name))
    )
    return markdown(("drift above, in any batch", *(f"{limit} nats" for limit in LIMITS)), rows)


def _listed(numbers: Sequence[int | None]) -> str:
    return " ".join("-" if number is None else str(number) for number in numbers)


# --- picture ----------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 360, 204, 34, 44, 14, 28
_LINE, _LETTERS = 13, 54
"""Height of a line of a title, and how many letters have room in it."""
_COLUMNS, _LEGEND = 2, 26
_SMOOTH = 3
"""Steps of which each point is the mean: falls stay sharp, single batches do not."""
_STYLE = (
    "svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#555}.title{fill:#222;font-weight:600}"
    ".axis{stroke:#ddd}path{fill:none;stroke-width:1.3}.healthy{stroke:#999;stroke-width:2;stroke-dasharray:4 3}"
    ".run{stroke:#0a6ebd;opacity:.55}.flag{fill:#e08a00}.fall{stroke:#c0232c;stroke-width:2}"
    ".dropped{stroke:#0a6ebd;stroke-width:2}.zeroed{stroke:#c0232c;stroke-width:2}.outage{fill:#f3e6d0}"
)


def write_chart(cells: Cells, path: Path, *, causes: Iterable[str], outages: Iterable[str], healthy: str) -> None:
    """Writes as SVG exact match of the rollouts by cause, with flag and fall marked, and an outage handled two ways.

    Args:
        cells: the finished ones.
        path: of the file.
        causes: arms with a panel each.
        outages: arms of the last panel.
        healthy: arm whose mean is drawn in each panel.
    """
    mean = _mean(cells.by_arm[healthy]) if healthy in cells.by_arm else []
    panels = [_cause(cells.title(name), cells.by_arm[name], mean) for name in causes if name in cells.by_arm]
    panels += [_outage(cells, outages)] if any(name in cells.by_arm for name in outages) else []
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + _LEGEND
    placed = (
        f'<g transform="translate({at % _COLUMNS * _WIDTH} {at // _COLUMNS * _HEIGHT})">{panel}</g>'
        for at, panel in enumerate(panels)
    )
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>Exact match of the rollouts by optimiser step</title><style>{_STYLE}</style>"
        f"{''.join(placed)}{_legend(height - 10)}</svg>\n"
    )
    with atomic_file(path) as temporary:
        temporary.write_text(svg, encoding="utf-8")


def smooth(em: Sequence[float]) -> list[float]:
    """Returns for each step the mean of its neighbours and itself."""
    reach = _SMOOTH // 2
    return [statistics.mean(em[max(0, at - reach) : at + reach + 1]) for at in range(len(em))]


def _cause(title: str, cells: Sequence[Cell], healthy: Sequence[float]) -> str:
    steps = max(len(healthy), *(len(cell["log"]["em"]) for cell in cells))
    parts = [_frame(title, steps), _line("healthy", healthy, steps)]
    parts += [_line("run", smooth(cell["log"]["em"]), steps) for cell in cells]
    return "".join([*parts, *(mark for cell in cells for mark in _marks(cell, steps))])


def _marks(cell: Cell, steps: int) -> Iterator[str]:
    """Yields a dot where the first alarm would have come, and a cross where the reward fell."""
    line = smooth(cell["log"]["em"])
    flag, fall = min(flags_of(cell["log"]).values(), default=None), fall_of(cell["log"]["em"], FALL)
    if flag is not None:
        yield f'<circle class="flag" cx="{_x(flag, steps):.1f}" cy="{_y(line[flag - 1]):.1f}" r="3.5"/>'
    if fall is not None:
        x, y = _x(fall, steps), _y(line[fall - 1])
        yield f'<path class="fall" d="M{x - 4:.1f} {y - 4:.1f}l8 8m-8 0l8 -8"/>'


def _outage(cells: Cells, outages: Iterable[str]) -> str:
    names = [name for name in outages if name in cells.by_arm]
    steps = max(len(cell["log"]["em"]) for name in names for cell in cells.by_arm[name])
    left, right, height = _x(OUTAGE[0] + 1, steps), _x(OUTAGE[1], steps), _HEIGHT - _BOTTOM - _TOP
    shade = f'<rect class="outage" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{height}"/>'
    lines = (_line(name, _mean(cells.by_arm[name]), steps) for name in names)
    return shade + _frame("no search backend for 20 steps: mean of the seeds", steps) + "".join(lines)


def _mean(cells: Sequence[Cell]) -> list[float]:
    return smooth([statistics.mean(step) for step in zip(*(cell["log"]["em"] for cell in cells), strict=False)])


def _frame(title: str, steps: int) -> str:
    levels = (0.0, 0.5, 1.0)
    lines = (f'<path class="axis" d="M{_LEFT} {_y(level):.1f}H{_WIDTH - _RIGHT}"/>' for level in levels)
    names = (_text(_LEFT - 6, _y(level) + 4, f"{level:g}", "end") for level in levels)
    ticks = (_text(_x(step, steps), _HEIGHT - _BOTTOM + 15, str(step)) for step in (1, *range(10, steps + 1, 10)))
    heading = (
        f'<text class="title" x="{_LEFT}" y="{_TOP - 26 + at * _LINE}">{html.escape(words)}</text>'
        for at, words in enumerate(textwrap.wrap(title, _LETTERS))
    )
    return "".join([*heading, *lines, *names, *ticks])


def _line(name: str, values: Sequence[float], steps: int) -> str:
    points = "L".join(f"{_x(step, steps):.1f} {_y(value):.1f}" for step, value in enumerate(values, start=1))
    return f'<path class="{name}" d="M{points}"/>' if values else ""


def _legend(y: float) -> str:
    entries = (
        ("M0 -4h18", "run", "one seed"),
        ("M0 -4h18", "healthy", "healthy, mean"),
        ("", "flag", "first alarm"),
        ("M2 -8l8 8m-8 0l8 -8", "fall", "fall"),
        ("M0 -4h18", "dropped", "lost rollouts dropped"),
        ("M0 -4h18", "zeroed", "scored 0"),
    )
    parts, x = [], float(_LEFT)
    for path, name, words in entries:
        shape = f'<path class="{name}" d="{path}"/>' if path else f'<circle class="{name}" cx="8" cy="-4" r="3.5"/>'
        parts.append(f'<g transform="translate({x:.0f} {y:.0f})">{shape}{_text(23, 0, words, "start")}</g>')
        x += 42 + 6 * len(words)
    return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _x(step: float, steps: int) -> float:
    return _LEFT + (step - 1) / max(1, steps - 1) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float) -> float:
    return _HEIGHT - _BOTTOM - value * (_HEIGHT - _BOTTOM - _TOP)
