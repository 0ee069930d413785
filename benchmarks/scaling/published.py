"""What others said that their runs took, beside what the model says of runs with their settings.

Taken in: runs of agents with tools over several turns that train a whole model, where time per step, GPUs, batch and
rollouts are known, from those who ran them. Those with a search tool calibrate; the others are shown, and say why not.
Lengths of episodes are known of none and assumed as everywhere here, and every episode is taken to use all its turns.
Not in the model, but in these figures: validation, a pass for the log-probs before the update, offloading.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.terminal import table
from benchmarks.scaling import settings as given
from benchmarks.scaling.model import Machine
from benchmarks.scaling.plan import planned_jobs, step_ends

Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Published:
    """A run of somebody else.

    Attributes:
        name: what is shown.
        project: whose engine and trainer it is; runs of one project are not independent of each other.
        seconds: of a step, the least and the most that were said.
        source: where that stands.
        settings: what `predict` would be asked for, as far as it differs from what it takes otherwise.
        assumed: what of it nobody said.
        otherwise: settings that it may have had instead of what is assumed.
        beside: why it is shown only; empty if it calibrates.
    """

    name: str
    project: str
    seconds: Ends
    source: str
    settings: Mapping[str, Any]
    assumed: str
    otherwise: Mapping[str, Any] | None = None
    beside: str = ""


HOUR, MINUTE = 3600, 60
GITHUB = "https://github.com/"
RLINF = "https://rlinf.readthedocs.io/en/latest/rst_source/examples/agentic/searchr1.html"
AGENT_R1 = {"model": "1.5B", "gpu": "a100-40", "gpus": 4, "turns": 5, "context": 16_384}
AGENT_R1 |= {"micro_batch": 2, "mini_batches": 2}
SEARCH_R1 = {"turns": 3, "batch": 512, "response_tokens": 500, "micro_batch": 8, "mini_batches": 2}
PPO = {"rollouts": 1, "critic": True}
PUBLISHED = (
    Published(
        name="Agent-R1, GRPO",
        project="Agent-R1",
        seconds=(10 * HOUR / 100, 10 * HOUR / 100),
        source=f"{GITHUB}AgentR1/Agent-R1/issues/1",
        settings=AGENT_R1,
        assumed="1.5B, turns and micro-batch of the repository's script of that time, read in a fork",
        otherwise={"model": "3B"},
    ),
    Published(
        name="Agent-R1, PPO",
        project="Agent-R1",
        seconds=(3 * HOUR / 100, 3 * HOUR / 100),
        source=f"{GITHUB}AgentR1/Agent-R1/issues/1",
        settings=AGENT_R1 | PPO,
        assumed="as above; the same 3 hours are said of REINFORCE++",
        otherwise={"model": "3B"},
    ),
    Published(
        name="Search-R1, PPO",
        project="Search-R1",
        seconds=(2 * HOUR / 200, 3 * HOUR / 200),
        source=f"{GITHUB}PeterGriffinJin/Search-R1/issues/1",
        settings=SEARCH_R1 | PPO,
        assumed="PPO, the script its page starts with; a user's 6 to 7 hours, method unknown, are not counted",
        otherwise={"rollouts": 5, "critic": False},
    ),
    Published(
        name="Search-R1, GRPO, timed by RLinf",
        project="RLinf",
        seconds=(133, 133),
        source=RLINF,
        settings=SEARCH_R1,
        assumed="5 rollouts per question, as in Search-R1's script; RLinf's own has 4",
        otherwise={"rollouts": 4},
    ),
    Published(
        name="RLinf, GRPO",
        project="RLinf",
        seconds=(133 * 0.45, 133 / 1.55),
        source=RLINF,
        settings=SEARCH_R1 | {"rollouts": 4, "micro_batch": 4},
        assumed='"55% speedup" over 133 s, read both ways; 11,008 tokens per micro-batch, taken as 4 episodes',
    ),
    Published(
        name="verl-agent, search",
        project="verl-agent",
        seconds=(13 * HOUR / 200, 13 * HOUR / 200),
        source=f"{GITHUB}langfengQ/verl-agent/issues/228",
        settings={"gpus": 4, "turns": 4, "batch": 256, "micro_batch": 16, "mini_batches": 10},
        assumed="batch, rollouts, turns of the script asked about; there a turn is a row of its own, history included",
    ),
    Published(
        name="R-Search, GRPO",
        project="R-Search",
        seconds=(5 * MINUTE, 9 * MINUTE),
        source=f"{GITHUB}QingFei1/R-Search/issues/2",
        settings={"gpu": "a100", "turns": 5, "batch": 256, "micro_batch": 8},
        assumed="3B and not 7B; 8 GPUs, batch and turns of the repository's script",
        otherwise={"model": "7B"},
    ),
    Published(
        name="ASearcher",
        project="ASearcher",
        seconds=(8 * HOUR / 200, 10 * HOUR / 200),
        source=f"{GITHUB}inclusionAI/ASearcher/issues/18",
        settings={"model": "7B", "batch": 128, "rollouts": 16, "no_reference": True, "micro_batch": 4},
        assumed="7B, batch and rollouts of the repository's settings, read in forks; H800 as H100",
        beside="an author's estimate; rollouts and updates at the same time, on half of the GPUs each",
    ),
    Published(
        name="Endless Terminals, PPO",
        project="SkyRL",
        seconds=(8 * MINUTE, 9 * MINUTE),
        source="https://yichuan-w.github.io/blog/oss-agentic-rl-reproduction/",
        settings={"model": "7B", "gpus": 4, "turns": 16, "context": 16_384, "batch": 16}
        | {"rollouts": 16, "critic": True, "no_reference": True},
        assumed="all 16 turns that an episode may have, in 16k tokens",
        beside="the tool is a shell in a container, with pytest at the end",
    ),
    Published(
        name="Search-R1, PPO, a complaint",
        project="Search-R1",
        seconds=(1081, (24 * HOUR + 7 * MINUTE + 5) / 79),
        source=f"{GITHUB}PeterGriffinJin/Search-R1/issues/152",
        settings=SEARCH_R1 | PPO | {"gpu": "a100", "gpus": 4, "micro_batch": 1},
        assumed="A100 of 80 GB",
        beside='asked as "the time is too long, is this normal?", without an answer',
    ),
    Published(
        name="ReSearch, GRPO, a complaint",
        project="ReSearch",
        seconds=(40 * MINUTE, 50 * MINUTE),
        source=f"{GITHUB}Agent-RL/ReCall/issues/37",
        settings={"gpu": "a100-40", "gpus": 64, "batch": 256},
        assumed="5 rollouts per question and 5 turns",
        beside="asked as too slow; the author says that speed is a problem of that version",
    ),
)
"""Each was read at its source, in an archived copy; settings are those of the scripts where `assumed` says nothing."""

STUDENT = MappingProxyType({2: 1.886, 3: 1.638, 4: 1.533, 5: 1.476, 6: 1.440, 7: 1.415, 8: 1.397, 9: 1.383})
"""Nine tenths of Student's t lie below, by degrees of freedom: eight tenths lie within plus and minus."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What published times are of the centre of the predicted range.

    Attributes:
        factor: published / centre, the geometric mean.
        spread: eight of ten further runs lie within factor / spread to factor * spread, if they are of this kind.
    """

    factor: float
    spread: float

    def between(self, ends: Ends) -> Ends:
        """Returns the calibrated range of a predicted one."""
        middle = centre(ends) * self.factor
        return middle / self.spread, middle * self.spread


def calibrate(ratios: Mapping[str, Sequence[float]]) -> Calibration:
    """Returns the calibration by published / centre of the runs of each project.

    Logarithms are taken to be normal: the interval of one more run is mean +- t s sqrt(1 + 1 / n). Runs of one project
    are not independent, so that n, with n - 1 degrees of freedom, is the number of projects.
    """
    n, logs = len(ratios), [math.log(value) for runs in ratios.values() for value in runs]
    if n - 1 not in STUDENT:
        raise ConfigurationError(f"{n} projects: expected {min(STUDENT) + 1} to {max(STUDENT) + 1}.")
    width = STUDENT[n - 1] * statistics.stdev(logs) * math.sqrt(1 + 1 / n)
    return Calibration(math.exp(statistics.fmean(logs)), math.exp(width))


def predicted(settings: Mapping[str, Any], host: Machine) -> Ends:
    """Returns the least and the most seconds of a step with these settings and assumed lengths."""
    options = argparse.Namespace(**{**given.OPTIONS, **settings})
    return step_ends(planned_jobs(options)["assumed"], given.GPUS[options.gpu], host, uneven=True)


def centre(ends: Ends) -> float:
    """Returns the geometric middle."""
    return math.sqrt(ends[0] * ends[1])


def place(value: float, ends: Ends) -> float:
    """Returns where a value lies between two ends on a log scale: 0 at the lower, 1 at the upper, else outside."""
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def by_project(host: Machine, *, without: str = "", otherwise: str = "") -> dict[str, list[float]]:
    """Returns published / centre of the runs that calibrate.

    Args:
        host: machine whose seconds per turn and step are taken.
        without: a project that is left out.
        otherwise: a project whose runs are taken to have been what they may have been instead.
    """
    found: dict[str, list[float]] = {}
    for run in PUBLISHED:
        if not run.beside and run.project != without:
            settings = {**run.settings, **((run.otherwise or {}) if run.project == otherwise else {})}
            found.setdefault(run.project, []).append(centre(run.seconds) / centre(predicted(settings, host)))
    return found


def calibration_of(host: Machine) -> Calibration:
    """Returns the calibration on all runs that calibrate."""
    return calibrate(by_project(host))


def left_out(host: Machine) -> list[tuple[float, bool]]:
    """Returns, for each run that calibrates, published / calibrated on the other projects, and whether it is inside."""
    found = []
    for project, runs in by_project(host).items():
        others = calibrate(by_project(host, without=project))
        found += [
            (value / others.factor, abs(math.log(value / others.factor)) <= math.log(others.spread)) for value in runs
        ]
    return found


HEADER = ("run", "published s per step", "predicted", "place", "published / centre", "assumed, or why only shown")


def report(host: Machine) -> str:
    """Returns the table of published runs, and what the calibration is worth."""
    rows = []
    for run in PUBLISHED:
        ends, said = predicted(run.settings, host), centre(run.seconds)
        shown = (f"{place(said, ends):.2f}", f"{said / centre(ends):.2f}", run.beside or run.assumed)
        rows.append((run.name, between(run.seconds), between(ends), *shown))
    return table(HEADER, rows) + "\n\n" + "\n".join(_worth(host)) + "\n" + "\n".join(_sources())


def _worth(host: Machine) -> list[str]:
    """Returns the lines under the table: the calibration, its error, and what it owes to what nobody said."""
    runs, found, errors = by_project(host), calibration_of(host), left_out(host)
    ratios = [value for values in runs.values() for value in values]
    sizes = [abs(math.log(error)) for error, _ in errors]
    others = [calibrate(by_project(host, otherwise=project)) for project in runs]
    factors, spreads = [found.factor for found in others], [found.spread for found in others]
    return [
        f"{len(ratios)} runs of {len(runs)} projects calibrate: published / centre {min(ratios):.2f} to "
        f"{max(ratios):.2f}, geometric mean {found.factor:.2f}; 80 % of further runs within a factor of "
        f"{found.spread:.2f}.",
        f"Calibrated on the other projects only: wrong by a factor of {math.exp(statistics.fmean(sizes)):.2f} on the "
        f"(geometric) average, {math.exp(max(sizes)):.2f} at worst; {sum(inside for _, inside in errors)} of "
        f"{len(errors)} inside their 80 %.",
        f"If one project's settings were not what is assumed: mean {min(factors):.2f} to {max(factors):.2f}, within a "
        f"factor of {min(spreads):.2f} to {max(spreads):.2f}.",
    ]


def _sources() -> list[str]:
    return [f"  {run.name}: {run.source}" for run in PUBLISHED]


def between(values: Ends) -> str:
    """Returns the two ends in words."""
    low, high = (f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in values)
    return low if low == high else f"{low} to {high}"
