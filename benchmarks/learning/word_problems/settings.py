"""Does a pretrained model of 135M parameters learn to use a calculator? Training on MAWPS, tests on SVAMP.

SmolLM2-135M-Instruct, dequantised from Q4_1; all 1,000 problems of SVAMP, greedy. None of them is in the training data.
An arm is the commands that a user types. The final weights of a run are tested: no checkpoint is chosen.
Except for the exploratory arms, all was fixed before the cells ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.report.plots import Curve, curves, standalone
from agent_r1_gym.support.files import atomic_file
from benchmarks.common.commands import CONTROLS, SKIPPING, Recipe, recipe_profiles
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment
from benchmarks.common.tables import Cells, arms, contrasts_of, markdown, share
from benchmarks.learning.word_problems.controls import CHANGED_RESULTS, WITHOUT_QUESTION

RECIPE = Recipe(
    env="SVAMP",
    options=("--dataset", "{data}", "--option", "tool_style=signature"),
    data="examples/smollm2/get_data.py",
)
_NO_TOOL = ("--option", "tools=none")
_FEW, _MANY = RECIPE.sft("{few}"), RECIPE.sft("{many}")
_ALL = RECIPE.sft("1263")  # all whose solution is known; the profile of the committed cells has no word for it

_MODULE = "benchmarks.learning.word_problems.controls"
_CONTROLS = {
    "without the question": f"{_MODULE}:{WITHOUT_QUESTION}",
    "changed results": f"{_MODULE}:{CHANGED_RESULTS}",
}
"""Environments with all 1,000 problems again, for policies after GRPO."""


ARMS: Mapping[str, Arm] = {
    "untrained": Arm("untrained", learn=RECIPE.untrained("--option", "shots=0")),
    "untrained-1": Arm("untrained, 1 shot", learn=RECIPE.untrained("--option", "shots=1")),
    "untrained-2": Arm("untrained, 2 shots", learn=RECIPE.untrained("--option", "shots=2")),
    "sft-few": Arm("100 demonstrations", learn=RECIPE.trained(_FEW)),
    "sft": Arm("240 demonstrations", learn=RECIPE.trained(_MANY)),
    "grpo": Arm("240 demonstrations, then GRPO", learn=RECIPE.trained(_MANY, RECIPE.after_sft(), controls=_CONTROLS)),
    "rejection": Arm("240 demonstrations, then rejection sampling", learn=RECIPE.trained(_MANY, RECIPE.rejection())),
    "grpo-shots": Arm(
        "GRPO from two shots alone, at temperature 1",
        learn=RECIPE.trained(RECIPE.train("--model", "{model}", "--option", "shots=2", "--temperature", "1")),
    ),
    "ppo": Arm(
        "240 demonstrations, then PPO",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--algorithm", "ppo", "--critic-learning-rate", "1e-3")),
    ),
    "reinforce++": Arm(
        "240 demonstrations, then REINFORCE++",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--algorithm", "reinforce++")),
    ),
    "grpo-no-mask": Arm(
        "GRPO without loss mask",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--loss-mask", "False", "--advantage-mask", "False")),
    ),
    "no-tool-sft": Arm("no tool, 240 demonstrations", learn=RECIPE.trained(RECIPE.sft("{many}", *_NO_TOOL))),
    "no-tool-grpo": Arm(
        "no tool, 240 demonstrations, then GRPO",
        learn=RECIPE.trained(RECIPE.sft("{many}", *_NO_TOOL), RECIPE.after_sft(*_NO_TOOL)),
    ),
    # Exploratory: added after four seeds of the arms `sft`, `grpo` and `rejection` were tested.
    "grpo-cool": Arm(
        "240 demonstrations, then GRPO at temperature 1",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--temperature", "1")),
    ),
    "grpo-kl": Arm(
        "240 demonstrations, then GRPO with a KL penalty of .05",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--beta", "0.05")),
    ),
    "grpo-slow": Arm(
        "240 demonstrations, then GRPO at a quarter of the rate",
        learn=RECIPE.trained(_MANY, RECIPE.after_sft("--learning-rate", f"{RECIPE.learning_rate / 4:g}")),
    ),
    # Exploratory too: what reinforcement learning adds after as many demonstrations as there can be.
    "sft-all": Arm("1,263 demonstrations", learn=RECIPE.trained(_ALL)),
    "grpo-all": Arm(
        "1,263 demonstrations, then GRPO", learn=RECIPE.trained(_ALL, RECIPE.after_sft(*SKIPPING), controls=_CONTROLS)
    ),
}
"""An arm changes one thing; each begins with the same demonstrations and seed, unless its title says otherwise."""

PROFILES = recipe_profiles(
    "AgentR1/SVAMP-v0", test="SVAMP", questions=1000, validated=100, tasks=640, few=100, many=240
)
"""A step of GRPO has 16 problems x 8 rollouts; rejection sampling has as many rollouts as 40 steps, 640 x 8."""

CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Main contrasts": (
        Contrast("GRPO - demonstrations alone", "grpo", "sft", "end"),
        Contrast("GRPO - rejection sampling", "grpo", "rejection", "end"),
    ),
    "Further contrasts": (
        Contrast("rejection sampling - demonstrations alone", "rejection", "sft", "end"),
        Contrast("240 - 100 demonstrations", "sft", "sft-few", "end"),
        Contrast("the tool, GRPO", "grpo", "no-tool-grpo", "end"),
        Contrast("loss mask, GRPO", "grpo", "grpo-no-mask", "end"),
        Contrast("PPO - GRPO", "ppo", "grpo", "end"),
        Contrast("REINFORCE++ - GRPO", "reinforce++", "grpo", "end"),
    ),
    "Exploratory": (
        Contrast("GRPO, slow - demonstrations alone", "grpo-slow", "sft", "end"),
        Contrast("GRPO at temperature 1 - demonstrations alone", "grpo-cool", "sft", "end"),
        Contrast("GRPO with a KL penalty - demonstrations alone", "grpo-kl", "sft", "end"),
    ),
    "Exploratory, all demonstrations": (
        Contrast("1,263 - 240 demonstrations", "sft-all", "sft", "end"),
        Contrast("GRPO - demonstrations alone, 1,263 of them", "grpo-all", "sft-all", "end"),
    ),
}


CHART = Path(__file__).parents[3] / "docs" / "_static" / "word_problems.svg"


def controls(cells: Cells) -> str:
    """Shares of the controls, by seed; without the question, those that are solved nevertheless."""
    rows = []
    for title, found in cells.rows():
        for name in next(({*cell[CONTROLS]} for cell in found if CONTROLS in cell), ()):
            shares = [share(cell[CONTROLS][name]) for cell in found]
            rows.append((title, name, f"{mean(shares):.3f}", " ".join(f"{each:.3f}" for each in shares)))
    return markdown(("arm", "control", "mean", "by seed"), sorted(rows))


def chart(cells: Cells) -> None:
    """Draws accuracy on MAWPS while GRPO trains, and on SVAMP in the end; bands reach over all seeds.

    Raises:
        ConfigurationError: the cells are of another profile than the committed chart, or one of its arms has none.
    """
    if cells.profile is not PROFILES["gpu"]:
        raise ConfigurationError(f"The chart {CHART.name} is that of the profile gpu: leave --profile out.")
    short = {"sft": "demonstrations", "grpo": "GRPO", "rejection": "rejection sampling"}
    if missing := [arm for arm in short if arm not in cells.by_arm]:
        raise ConfigurationError(f"{cells.path} has no cells of {', '.join(missing)}, which the chart shows: run them.")
    found = cells.by_arm["grpo"]
    rewards = list(zip(*(cell["training"]["reward"] for cell in found), strict=True))
    points = list(zip(*(cell["validation"] for cell in found), strict=True))
    greedy = [[score for _, score in point] for point in points]
    series = {
        "training problems, sampled at temperature 1.4": _curve(range(1, len(rewards) + 1), rewards),
        "validation problems, greedy": _curve([point[0][0] for point in points], greedy),
    }
    lines = {f"SVAMP in the end, {name}": cells.mean(arm, "end").mean for arm, name in short.items()}
    with atomic_file(CHART) as temporary:
        temporary.write_text(
            standalone(curves("SmolLM2-135M learns word problems: accuracy", series, lines=lines), list(series)),
            encoding="utf-8",
        )


def _curve(steps: Sequence[int], rows: Sequence[Sequence[float]]) -> Curve:
    return Curve(steps, [(mean(row), min(row), max(row)) for row in rows])


EXPERIMENT = Experiment(
    name="word_problems",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
    tables={"Arms": arms, **{title: contrasts_of(title) for title in CONTRASTS}, "Controls": controls},
    chart=chart,
)
