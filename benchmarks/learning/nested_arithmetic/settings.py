"""Does a pretrained model of 135M parameters learn to compute nested terms in words, one call per operation?

SmolLM2-135M-Instruct, dequantised from Q4_1; `AgentR1/Arithmetic-v0` with problems of the type "nested", 1 to 5
operations. From 3 operations on, no tree of operations of the test problems is in training. All of it was fixed before
the cells ran.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common.commands import CommandProfile, Recipe
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment
from benchmarks.learning.word_problems import settings as word_problems

RECIPE = Recipe(env="Arithmetic", options=("--option", "tool_style=signature", "--option", "problem_types=nested"))
_SFT = RECIPE.sft("{few}")
ARMS: Mapping[str, Arm] = {
    "untrained": Arm("untrained", learn=RECIPE.untrained("--option", "shots=0")),
    "untrained-2": Arm("untrained, 2 shots", learn=RECIPE.untrained("--option", "shots=2")),
    "sft": Arm("100 demonstrations", learn=RECIPE.trained(_SFT)),
    "grpo": Arm("100 demonstrations, then GRPO", learn=RECIPE.trained(_SFT, RECIPE.after_sft())),
    "rejection": Arm("100 demonstrations, then rejection sampling", learn=RECIPE.trained(_SFT, RECIPE.rejection())),
}


def _here(profile: CommandProfile, questions: int) -> CommandProfile:
    """A profile of the word problems, for this environment."""
    tests = {"nested": {"split": "test"}}
    return CommandProfile(
        starts=profile.starts,
        seeds=profile.seeds,
        env="AgentR1/Arithmetic-v0",
        training={},
        steps=profile.steps,
        tests=tests,
        test_questions=questions,
        words=profile.words,
    )


PROFILES: Mapping[str, CommandProfile] = {
    name: _here(word_problems.PROFILES[name], questions)
    for name, questions in (("gpu", 500), ("cpu", 500), ("smoke", 4))
}
CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Contrasts": (
        Contrast("GRPO - demonstrations alone", "grpo", "sft", "end"),
        Contrast("GRPO - rejection sampling", "grpo", "rejection", "end"),
    ),
}

EXPERIMENT = Experiment(
    name="nested_arithmetic",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
)
