"""Does a pretrained model of 135M parameters learn to call functions whose names it was not trained on? BFCL v4.

SmolLM2-135M-Instruct, dequantised from Q4_1; the categories simple_python, multiple and irrelevance, one turn. No
function of a test row is in a training row, not even as one to avoid; but full names decide, so that `math.gcd` is
tested and `number_theory.gcd` trained on: about nine of the 42 test rows with a right call have such a near twin.
Half of the training rows are demonstrated. Scored by the official AST rules. All of it was fixed before the cells ran.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import mean

from benchmarks.common.commands import Recipe, recipe_profiles
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment
from benchmarks.common.tables import Cells, arms, contrasts_of, markdown

_TEST = "BFCL"
CATEGORIES = {"simple_python": slice(0, 31), "multiple": slice(31, 42), "irrelevance": slice(42, 86)}
"""Where the test rows of each category stand."""
_SHARING = ((2, 3, 4, 18, 23, 25, 35, 40, 41), (5, 44), (12, 58), (15, 16), (27, 83), (30, 42))
GROUPS = [next((rows[0] for rows in _SHARING if row in rows), row) for row in range(86)]
"""By test row the first one that it shares a function with, directly or by others: 73 groups."""
RECIPE = Recipe(
    env="BFCL",
    options=(
        *("--dataset", "{data}", "--option", "tool_style=signature"),
        *("--option", f"category={json.dumps([*CATEGORIES])}"),
    ),
    turn_tokens=160,
    max_completion_length=160,
    data="benchmarks/learning/function_calling/get_data.py",
)
_SHUFFLED = ("--shuffle-tasks", "True")  # the rows are sorted by category
_FEW, _MANY = RECIPE.sft("{few}", *_SHUFFLED), RECIPE.sft("{many}", *_SHUFFLED)
ARMS: Mapping[str, Arm] = {
    "base": Arm("Base Tool Call", learn=RECIPE.untrained("--option", "shots=0")),
    "base-2": Arm("Base Tool Call, 2 shots", learn=RECIPE.untrained("--option", "shots=2")),
    "sft-few": Arm("100 demonstrations", learn=RECIPE.trained(_FEW)),
    "sft": Arm("335 demonstrations", learn=RECIPE.trained(_MANY)),
    "grpo-few": Arm("100 demonstrations, then GRPO", learn=RECIPE.trained(_FEW, RECIPE.after_sft())),
    "grpo": Arm("335 demonstrations, then GRPO", learn=RECIPE.trained(_MANY, RECIPE.after_sft())),
    "rejection": Arm(
        "335 demonstrations, then rejection sampling", learn=RECIPE.trained(_MANY, RECIPE.rejection(*_SHUFFLED))
    ),
}
"""A demonstration is the accepted call of a training row, or a sentence where no function fits. 40 steps of GRPO have
5,120 rollouts, rejection sampling 671 x 8 = 5,368."""

PROFILES = recipe_profiles("AgentR1/BFCL-v0", test=_TEST, questions=86, validated=83, tasks=671, few=100, many=335)
CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Contrasts": (
        Contrast("GRPO - demonstrations alone", "grpo", "sft", "end"),
        Contrast("GRPO - demonstrations alone, from 100", "grpo-few", "sft-few", "end"),
        Contrast("GRPO - rejection sampling", "grpo", "rejection", "end"),
        Contrast("GRPO - Base Tool Call", "grpo", "base", "end"),
    ),
}


def categories(cells: Cells) -> str:
    """Share of right turns by category, mean of the seeds."""
    rows = []
    for title, found in cells.rows():
        marks = [[mark for cell in found for mark in cell["exact"][_TEST][part]] for part in CATEGORIES.values()]
        rows.append((title, *(f"{mean(map(float, each)):.3f}" if each else "" for each in marks)))
    return markdown(("arm", *CATEGORIES), rows)


EXPERIMENT = Experiment(
    name="function_calling",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
    cluster={_TEST: GROUPS},
    tables={"Arms": arms, "Categories": categories, **{title: contrasts_of(title) for title in CONTRASTS}},
)
