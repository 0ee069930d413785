"""What an algorithm's name stands for: an estimator of advantages, and the options that its paper sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.support.packages import import_object, load_plugin, plugins, warn_of_shadowing
from trainers.config import options

PRESET_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {name: preset.value for name, preset in options.constraints(options.Preset).items()}
)
"""Options that a preset may set, where the user leaves them at None, and their values where it does not: those of
Agent-R1's scripts (arXiv 2511.14460: 5 rollouts per prompt, KL 0.001 by the plain k3 estimator, a loss that is a mean
over tokens), else TRL's."""
CISPO_CLIP = 5.0
"""Default of `epsilon_high` in the loss `cispo`: an upper bound of the ratio itself, where other losses bound its
distance from 1."""
REGISTERED = "registered_algorithm"
"""Attribute of a function that a user registered: the name of its algorithm."""
PLUGINS = "agent_r1_gym.algorithms"
"""Group of entry points: an installed package adds an algorithm here, as "name" = "module:function"."""
ON_DEMAND = ("values", "state_ids")
"""What a preset may need."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What an algorithm's name stands for.

    Attributes:
        estimator: key in `advantages.ESTIMATORS`, or MODULE:NAME of a function like those in it.
        settings: value of each preset field that the user left at None.
        single_rollout: one rollout per prompt is enough.
        needs: fields of `CreditInputs` that cost something and are made on demand: "values" (by a critic, trained on
            the `returns` of the estimator's `Credit`), "state_ids".
        return_based: rollouts of a group whose returns are equal get zero advantages, so that `refill_groups` may
            replace the group.
    """

    estimator: str
    settings: Mapping[str, Any]
    single_rollout: bool = False
    needs: tuple[str, ...] = ()
    return_based: bool = False


def make_preset(
    estimator: str,
    *,
    single_rollout: bool = False,
    needs: Sequence[str] = (),
    return_based: bool = False,
    **settings: Any,
) -> Preset:
    """Make a preset: `PRESET_DEFAULTS`, except for `settings`.

    Raises:
        ConfigurationError: a setting that no preset has, or an unknown need.
    """
    for name in needs:
        if name not in ON_DEMAND:
            raise ConfigurationError(f"The preset of {estimator!r} needs {name!r}. {suggest(name, ON_DEMAND)}")
    for name in settings:
        if name not in PRESET_DEFAULTS:
            raise ConfigurationError(f"The preset of {estimator!r} sets {name!r}. {suggest(name, PRESET_DEFAULTS)}")
    values = MappingProxyType({**PRESET_DEFAULTS, **settings})
    return Preset(estimator, values, single_rollout, tuple(needs), return_based)


_ALGORITHMS = {
    "grpo": make_preset("grpo", return_based=True),
    "rloo": make_preset("rloo", return_based=True),
    "reinforce++": make_preset("reinforce++", single_rollout=True, kl_placement="reward"),
    "reinforce++-baseline": make_preset("reinforce++-baseline"),
    "ppo": make_preset("ppo", single_rollout=True, needs=["values"], kl_placement="reward", num_generations=1),
    "steppo": make_preset(
        "steppo",
        single_rollout=True,
        needs=["values"],
        num_generations=1,
        importance_sampling_level="turn",
        beta=0.0,
    ),
    "dr_grpo": make_preset("grpo", return_based=True, loss_type="dr_grpo", scale_rewards="none", beta=0.0),
    "dapo": make_preset(
        "grpo", return_based=True, epsilon_high=0.28, beta=0.0, mask_truncated_completions=True, refill_groups=4
    ),
    "gspo": make_preset(
        "grpo",
        return_based=True,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
        beta=0.0,
    ),
    "cispo": make_preset("grpo", return_based=True, loss_type="cispo", beta=0.0),
    "turn_group": make_preset("turn_group"),
    "gigpo": make_preset("gigpo", needs=["state_ids"]),
    "gagpo": make_preset("gagpo", needs=["state_ids"], lam=0.95, importance_sampling_level="turn"),
    "mt_grpo": make_preset("mt_grpo", step_weight=0.5),
    "opd": make_preset(
        "opd", single_rollout=True, return_based=True, num_generations=1, beta=0.0, distillation_weight=1.0
    ),
    "opsd": make_preset(
        "opd",
        single_rollout=True,
        return_based=True,
        num_generations=1,
        beta=0.0,
        distillation_weight=1.0,
        teacher_privileged="solution",
    ),
    "dgpo": make_preset(
        "ppo",
        single_rollout=True,
        needs=["values"],
        num_generations=1,
        beta=0.0,
        distillation_weight=0.001,
        distillation_placement="reward",
        distillation_failures_only=True,
    ),
}
ALGORITHMS: Mapping[str, Preset] = MappingProxyType(_ALGORITHMS)
"""Presets by name: the paper's five, TRL's loss variants (each with its own paper's clip range), credit by turn, a
teacher's, and those of users (`advantages.register_algorithm`)."""
_BUILT_IN = frozenset(_ALGORITHMS)
"""Names that no plug-in replaces."""


def add_preset(name: str, preset: Preset) -> None:
    """Add an algorithm; `advantages.register_algorithm` is for users, and refuses a name that is taken."""
    _ALGORITHMS[name] = preset


def find_preset(name: str) -> Preset:
    """Look up what an algorithm's name stands for.

    Args:
        name: key in `ALGORITHMS`, the name of an installed plug-in, or MODULE:NAME of a function; the module is looked
            for in the current folder first.

    Raises:
        ConfigurationError: there is no such algorithm.
    """
    if name in ALGORITHMS:
        if name in _BUILT_IN:
            warn_of_shadowing(PLUGINS, name)
        return ALGORITHMS[name]
    if not name.rpartition(":")[0]:
        function = load_plugin(PLUGINS, name)
        if function is None:
            known = [*ALGORITHMS, *plugins(PLUGINS)]
            raise ConfigurationError(f"algorithm: got {name!r}. {suggest(name, known)} One of your own is MODULE:NAME.")
        name = plugins(PLUGINS)[name].value
    else:
        function = import_object(name)
    if not callable(function):
        raise ConfigurationError(
            f"algorithm: {name!r} is {type(function).__name__} {function!r:.40}; expected a function from "
            "CreditInputs and CreditOptions to Credit."
        )
    registered = getattr(function, REGISTERED, None)
    return make_preset(name) if registered is None else ALGORITHMS[registered]
