"""Does a pretrained model of 135M parameters learn to compute nested terms in words, one call per operation?

SmolLM2-135M-Instruct, dequantised from Q4_1; `AgentR1/Arithmetic-v0` with problems of the type "nested", 1 to 5
operations. From 3 operations on, no tree of operations of the test problems is in training. All of it was fixed before
the cells ran, but for the arm `process`, which was added after seed 0 of `sft` and `grpo`.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common.commands import SKIPPING, Recipe, recipe_profiles
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment

RECIPE = Recipe(env="Arithmetic", options=("--option", "tool_style=signature", "--option", "problem_types=nested"))
_SFT = RECIPE.sft("{few}")
ARMS: Mapping[str, Arm] = {
    "untrained": Arm("untrained", learn=RECIPE.untrained("--option", "shots=0")),
    "untrained-2": Arm("untrained, 2 shots", learn=RECIPE.untrained("--option", "shots=2")),
    "sft": Arm("100 demonstrations", learn=RECIPE.trained(_SFT)),
    "grpo": Arm("100 demonstrations, then GRPO", learn=RECIPE.trained(_SFT, RECIPE.after_sft(*SKIPPING))),
    "process": Arm(
        "100 demonstrations, then GRPO with process rewards",
        learn=RECIPE.trained(_SFT, RECIPE.after_sft(*SKIPPING, "--option", "reward=process")),
    ),
    "rejection": Arm("100 demonstrations, then rejection sampling", learn=RECIPE.trained(_SFT, RECIPE.rejection())),
}


PROFILES = recipe_profiles("AgentR1/Arithmetic-v0", test="nested", questions=500, validated=100, tasks=640, few=100)
CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Contrasts": (
        Contrast("GRPO - demonstrations alone", "grpo", "sft", "end"),
        Contrast("GRPO - rejection sampling", "grpo", "rejection", "end"),
    ),
    "Process rewards": (Contrast("process rewards - outcome alone", "process", "grpo", "end"),),
}

EXPERIMENT = Experiment(
    name="nested_arithmetic",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
)
