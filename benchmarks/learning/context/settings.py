"""What is lost when a pretrained model does not see its whole history? A ledger of five pages, each shown once.

SmolLM2-135M-Instruct, dequantised from Q4_1; `AgentR1/LongRead-v0`. The context is append-only, a sliding window of two
turns, a summary that the model writes, or a window of one turn with a notebook as a tool. All of it was fixed before
the cells ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.common.commands import SKIPPING, CommandProfile, Recipe, recipe_profiles
from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment
from benchmarks.common.tables import arms, contrasts_of
from benchmarks.learning.credit.warm_starts import key_of

LEDGER = {"pages": 5, "facts": 4}
RECIPE = Recipe(
    env="LongRead",
    options=(
        *("--option", "tool_style=signature"),
        *(word for name, value in LEDGER.items() for word in ("--option", f"{name}={value}")),
    ),
    turn_tokens=160,  # a turn of the summariser has up to 123
    max_completion_length=1536,
)
_NO_NOTEBOOK = ("--option", "notebook=false")
CONTEXTS: Mapping[str, tuple[str, Sequence[str], str, int]] = {
    "append": ("append-only", _NO_NOTEBOOK, "oracle", 1),
    "window": (
        "window of 2 turns",
        (*_NO_NOTEBOOK, "--context-window", "2", "--context-mode", "drop_turns"),
        "oracle",
        4,
    ),
    "summary": (
        "summary by the model",
        (*_NO_NOTEBOOK, "--context-window", "1", "--context-mode", "summary"),
        "script:summariser",
        5,
    ),
    "notes": ("window of 1 turn, notebook", ("--context-window", "1", "--context-mode", "drop_turns"), "oracle", 10),
}
"""By name: what the model sees, the options that say so, who demonstrates, and passes of 8 rows in a step of `sft`.

The oracle knows all pages. A row is a context, of which an episode has 1, 4, 5 and 9.5: a step has about 8 episodes.
"""


def _arms(name: str) -> dict[str, Arm]:
    title, options, source, passes = CONTEXTS[name]
    sft = RECIPE.sft("{many}", "--from", source, "--gradient-accumulation-steps", str(passes), *options)
    return {
        f"{name}-sft": Arm(f"{title}, 200 demonstrations", learn=RECIPE.trained(sft)),
        name: Arm(f"{title}, then GRPO", learn=RECIPE.trained(sft, RECIPE.after_sft(*SKIPPING, *options))),
    }


ARMS: Mapping[str, Arm] = {key: arm for name in CONTEXTS for key, arm in _arms(name).items()}


def _few_rows(profile: CommandProfile) -> CommandProfile:
    """Divides an update into passes of 4 rollouts: each has several contexts, and 16 were estimated at 38 GiB."""
    rollouts = profile.words["rows"] * profile.words["micro_batches"]
    words = {**profile.words, "rows": 4, "micro_batches": rollouts // 4, "recompute": False}
    return replace(profile, starts=tuple(replace(start, env=LEDGER) for start in profile.starts), words=words)


_SIZES = {"questions": 500, "validated": 50, "tasks": 200, "many": 200}
PROFILES = {
    name: _few_rows(profile)
    for name, profile in recipe_profiles("AgentR1/LongRead-v0", test="LongRead", **_SIZES).items()
}
CONTRASTS: Mapping[str, tuple[Contrast, ...]] = {
    "Contexts": (
        Contrast("window - append-only", "window", "append", "end"),
        Contrast("summary - append-only", "summary", "append", "end"),
        Contrast("notebook - append-only", "notes", "append", "end"),
        Contrast("summary - window", "summary", "window", "end"),
    ),
    "GRPO": tuple(
        Contrast(f"{title}: GRPO - demonstrations", name, f"{name}-sft", "end")
        for name, (title, *_) in CONTEXTS.items()
    ),
}

EXPERIMENT = Experiment(
    name="context",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    also_committed=("cpu",),
    contrasts=CONTRASTS,
    cluster=key_of,  # the 500 test questions have 364 texts, about 266 items and people
    tables={"Arms": arms, **{title: contrasts_of(title) for title in CONTRASTS}},
)
