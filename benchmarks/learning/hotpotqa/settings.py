"""Does a pretrained model of 135M parameters learn to search? HotpotQA, over the ten paragraphs of each question.

SmolLM2-135M-Instruct, dequantised from Q4_1; 220 questions to train on, of which half are demonstrated, 50 others to
test on. All of it was fixed before the cells ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import mean

from agent_r1_gym.run.record import Trajectory
from benchmarks.common.commands import SKIPPING, Recipe, recipe_profiles
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment
from benchmarks.common.tables import Cells, arms, contrasts_of, markdown

RECIPE = Recipe(
    env="HotpotQA",
    options=("--dataset", "{data}", "--setting", "distractor", "--option", "tool_style=signature"),
    max_completion_length=3584,
    data="benchmarks/learning/hotpotqa/get_data.py",
)
_SFT = RECIPE.sft("{half}", "--shuffle-tasks", "True")
ARMS: Mapping[str, Arm] = {
    "naive-rag": Arm("Naive RAG", learn=RECIPE.untrained(prompt="naive-rag")),
    "base": Arm("Base Tool Call", learn=RECIPE.untrained("--option", "shots=0")),
    "base-2": Arm("Base Tool Call, 2 shots", learn=RECIPE.untrained("--option", "shots=2")),
    "sft": Arm("110 demonstrations", learn=RECIPE.trained(_SFT)),
    "grpo": Arm("110 demonstrations, then GRPO", learn=RECIPE.trained(_SFT, RECIPE.after_sft(*SKIPPING))),
    "rejection": Arm(
        "110 demonstrations, then rejection sampling", learn=RECIPE.trained(_SFT, RECIPE.rejection(samples=23))
    ),
}
"""40 steps of GRPO have 5,120 rollouts, rejection sampling 220 x 23 = 5,060; both learn from exact match."""


def f1_scores(episodes: Iterable[Trajectory]) -> list[float]:
    """F1 of each answer; 0 without one."""
    return [round(episode.scores.get("f1", 0.0), 3) for episode in episodes]


PROFILES = {
    name: replace(profile, test_measures={"f1": f1_scores})
    for name, profile in recipe_profiles(
        "AgentR1/HotpotQA-v0", test="HotpotQA", questions=50, validated=30, tasks=220, half=110
    ).items()
}
CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Contrasts": (
        Contrast("GRPO - demonstrations alone", "grpo", "sft", "end"),
        Contrast("GRPO - Base Tool Call, 2 shots", "grpo", "base-2", "end"),
        Contrast("GRPO - Naive RAG", "grpo", "naive-rag", "end"),
        Contrast("GRPO - rejection sampling", "grpo", "rejection", "end"),
    ),
}


def f1(cells: Cells) -> str:
    """Mean F1 on the test questions, by seed."""
    rows = []
    for title, found in cells.rows():
        means = [mean(cell["f1"]) for cell in found]
        rows.append((title, f"{mean(means):.3f}", " ".join(f"{each:.3f}" for each in means)))
    return markdown(("arm", "F1", "by seed"), rows)


EXPERIMENT = Experiment(
    name="hotpotqa",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
    tables={"Arms": arms, "F1": f1, **{title: contrasts_of(title) for title in CONTRASTS}},
)
