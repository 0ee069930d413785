"""Does a critic that reads the answer, or a teacher, help where hardly any rollout succeeds?

The task and the warm starts are those of `discovery`: chains of two searches, which no demonstration showed, with the
outcome as the only reward. All arms play the same number of rollouts per step, but for `grpo-refill`, which plays more
and is in no contrast for that reason. The toy policy has never read a text in front of its prompt, so it cannot teach
itself: the teacher is the policy that comes with the package, which has seen chains. All of it was fixed before any
cell ran; the contrasts were named after those of `short` and before those of the main profile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment, Profile, Start
from benchmarks.common.tables import Cells, Point, by_step, contrasts_of, markdown, share, spread
from benchmarks.learning.discovery.settings import CHAIN
from benchmarks.learning.discovery.settings import EXPERIMENT as DISCOVERY
from trainers.toy.held_out import held_out

_TEACHER = {"teacher_model_name_or_path": "trainers/toy/weights"}
"""From the repository's root, where the command runs: results name no folder of a machine."""
ARMS: Mapping[str, Arm] = {
    "grpo": Arm("GRPO"),
    "grpo-refill": Arm("GRPO, groups refilled", {"refill_groups": 4}),
    "grpo-teacher": Arm("GRPO with a teacher", {**_TEACHER, "distillation_weight": 0.1}),
    "opd": Arm("teacher alone", {"algorithm": "opd", **_TEACHER}),
    "ppo": Arm("PPO", {"algorithm": "ppo"}),
    "ppo-answer": Arm("PPO, critic reads the answer", {"algorithm": "ppo", "critic_privileged": "answer"}),
    "ppo-passages": Arm("PPO, critic reads the passages", {"algorithm": "ppo", "critic_privileged": "passages"}),
    "dgpo": Arm("DGPO", {"algorithm": "dgpo", **_TEACHER, "distillation_weight": 0.01}),
}
CONTRASTS = (
    Contrast("critic reads the answer, PPO", "ppo-answer", "ppo"),
    Contrast("critic reads the passages, PPO", "ppo-passages", "ppo"),
    Contrast("a teacher, GRPO", "grpo-teacher", "grpo"),
    Contrast("teacher alone - GRPO", "opd", "grpo"),
    Contrast("DGPO - PPO", "dgpo", "ppo"),
)
"""Tested together: their p-values are Holm's. All by the area over the hardest questions."""
_SHORT = Profile(
    starts=(Start(),),
    seeds=(0, 1, 2, 3),
    training={
        "style": "compact",
        "entities": 800,
        "questions": 2000,
        "mix": {"3hop": 0.3, "4hop": 0.7},
        "reward": "em",
    },
    steps=24,
    trainer={"per_device_train_batch_size": 64, "gradient_accumulation_steps": 1},
    validation={"4 hops": held_out("test", "4hop")},
    validation_questions=60,
    every=6,
    evaluate_first=True,
)
"""Chains of three and four searches from the policy that comes with the package; 8 questions x 8 rollouts per step. It
is its own teacher there, so the arms with a teacher are not run."""
PROFILES: Mapping[str, Profile] = {
    name: replace(
        profile,
        seeds=(0, 1, 2, 3) if name == "cpu" else (0,),
        training={**profile.training, "reward": "em"},
        validation={CHAIN: profile.validation[CHAIN]},
        steps=60 if name == "cpu" else 1,
        evaluate_first=True,
    )
    for name, profile in DISCOVERY.profiles.items()
} | {"short": _SHORT}
"""The cells of `cpu` are those that the question needs: 12 pairs, of which sign flips can give .0005, and .0025 after
Holm. `short` is what a quarter of an hour can say."""


def solved(point: Point) -> float:
    """The share of the hardest questions that an evaluation solved."""
    return share(point["4 hops"] if "4 hops" in point else point[CHAIN])


def scores(cells: Cells) -> str:
    """Share of the hardest questions solved: before, at the end, and on average over all evaluations.

    The contrasts' area leaves out the one before training.
    """
    rows = []
    for title, found in cells.rows():
        curves = [[solved(point) for point in cell["curve"]] for cell in found]
        before, after = ([curve[at] for curve in curves] for at in (0, -1))
        rows.append((title, str(len(found)), spread(before), spread(after), spread([*map(statistics.mean, curves)])))
    return markdown(("arm", "cells", "before", "after", "mean of all evaluations, step 0 too"), rows)


EXPERIMENT = Experiment(
    name="privileged",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("short",),
    contrasts={"Contrasts": CONTRASTS},
    tables={
        "Solved": scores,
        "Contrasts": contrasts_of("Contrasts"),
        "Curves": lambda cells: by_step(cells, "solved after steps", solved),
    },
)
