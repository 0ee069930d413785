"""Which half of StepPO matters: advantages by turn, or one ratio per turn?

The task and the warm starts are those of `credit`: LongRead, page by page with notes, up to 12 turns. Each batch is
trained on twice (`num_iterations`), since before the first update every ratio is 1, so a run has twice the steps of
`credit` and as many batches. PPO with both halves still counts a turn by its tokens; StepPO counts each turn once. All
of it was fixed before any cell ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment, Profile
from benchmarks.common.tables import contrasts_of
from benchmarks.learning.credit import warm_starts
from benchmarks.learning.credit.settings import PROFILES as CREDIT

_PPO = {"algorithm": "ppo", "lam": 0.95, "beta": 0.0}
_RATIO = {"importance_sampling_level": "turn"}
ARMS: Mapping[str, Arm] = {
    "ppo": Arm("PPO", _PPO),
    "ppo-advantage": Arm("PPO, advantages by turn", {**_PPO, "gae_level": "turn"}),
    "ppo-ratio": Arm("PPO, ratios by turn", {**_PPO, **_RATIO}),
    "ppo-both": Arm("PPO, both by turn", {**_PPO, "gae_level": "turn", **_RATIO}),
    "steppo": Arm("StepPO", {"algorithm": "steppo", "lam": 0.95}),
    "grpo": Arm("GRPO", {"algorithm": "grpo", "beta": 0.0}),
    "gagpo": Arm("GAGPO", {"algorithm": "gagpo", "beta": 0.0}),
    "gagpo-token": Arm(
        "GAGPO, ratios by token", {"algorithm": "gagpo", "importance_sampling_level": "token", "beta": 0.0}
    ),
}
CONTRASTS = (
    Contrast("ratios by turn, PPO", "ppo-ratio", "ppo"),
    Contrast("advantages by turn, PPO", "ppo-advantage", "ppo"),
    Contrast("ratios by turn, PPO with advantages by turn", "ppo-both", "ppo-advantage"),
    Contrast("each turn once, PPO with both by turn", "steppo", "ppo-both"),
    Contrast("StepPO - PPO", "steppo", "ppo"),
    Contrast("StepPO - GRPO", "steppo", "grpo"),
    Contrast("ratios by turn, GAGPO", "gagpo", "gagpo-token"),
)
"""Tested together: their p-values are Holm's. All by the area, the main measure."""
_PASSES = 2


def _profile(credit: Profile) -> Profile:
    """Trains on each batch twice, with the batches of `credit` and evaluations after the same ones."""
    trainer = {**credit.trainer, "num_iterations": _PASSES, "warmup_steps": _PASSES * credit.trainer["warmup_steps"]}
    assert credit.every is not None
    return replace(credit, trainer=trainer, steps=_PASSES * credit.steps, every=_PASSES * credit.every)


PROFILES: Mapping[str, Profile] = {name: _profile(profile) for name, profile in CREDIT.items()}

EXPERIMENT = Experiment(
    name="steppo",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    contrasts={"Contrasts": CONTRASTS},
    cluster=warm_starts.key_of,
    tables={"Arms": warm_starts.arms_and_notes, "Contrasts": contrasts_of("Contrasts"), "Curves": warm_starts.curves},
)
