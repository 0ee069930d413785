"""What is audited, and how thoroughly: both as plain data, so that another process can make the same environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import gymnasium

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.envs.harbor.tasks import is_task_folder
from agent_r1_gym.envs.trl_class import TRLClassEnv, is_trl_class
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import (
    TextEnv,
    find_registered,
    full_id,
    make_text_env,
    register,
    register_text_env,
    registered_id,
)
from agent_r1_gym.support.checks import check_integer, check_seconds
from agent_r1_gym.support.packages import import_named_module, import_object
from agent_r1_gym.wrappers import split_window

_NAMESPACE = "Audited"
_HARBOR = "AgentR1/Harbor-v0"


@dataclass(frozen=True)
class Target:
    """What is audited, in a form that another process can make.

    Attributes:
        env: a registered id or its short name, MODULE:ID, MODULE:CLASS (also of a class for TRL's
            `environment_factory`), or a folder of tasks in Harbor's format.
        options: options of the environment, as JSON values.
        imports: modules to import first.
        oracle: the policy that plays best, as `--policy` takes it; "": the environment's own oracle.
    """

    env: str
    options: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    oracle: str = ""

    def make(self) -> TextEnv:
        """Make an instance.

        Raises:
            AgentR1Error: there is no such environment, its options do not fit, or it is not a text environment.
        """
        return make_text_env(self.env_id, self.all_options)

    @property
    def all_options(self) -> Mapping[str, Any]:
        """The options, with the folder if the target is one."""
        return {"dataset": self.env, **self.options} if self._is_folder else self.options

    @property
    def _is_trl_class(self) -> bool:
        """Whether the target is a class for TRL's `environment_factory`."""
        return isinstance(gymnasium.spec(self.env_id).entry_point, functools.partial)

    @functools.cached_property
    def _is_folder(self) -> bool:
        """Whether the target is a folder of tasks; a registered name comes first."""
        return find_registered(self.env) is None and is_task_folder(Path(self.env))

    @functools.cached_property
    def env_id(self) -> str:
        """The registered id; a class that MODULE:CLASS names is registered under an id of its own."""
        for imported in self.imports:
            import_named_module(imported, f"--import {imported}")
        if self._is_folder:
            return _HARBOR
        module, _, name = self.env.rpartition(":")
        if not module or "/" in name:
            return registered_id(full_id(self.env))
        import_named_module(module, repr(self.env))
        if name in gymnasium.registry:
            return name
        creator = import_object(self.env)
        if not callable(creator):
            raise ConfigurationError(
                f"{self.env} is a {type(creator).__name__}; name an id, or a class as MODULE:CLASS."
            )
        identifier = f"{_NAMESPACE}/{name}-v0"
        gymnasium.registry.pop(identifier, None)  # a class of the same name in another module
        if is_trl_class(creator):
            register(identifier, functools.partial(TRLClassEnv, factory=creator))
            return identifier
        is_tool_env = isinstance(creator, type) and issubclass(creator, ToolEnv)
        (register if is_tool_env else register_text_env)(identifier, creator)
        return identifier

    def code(self, lines: str = "env = MAKE\n") -> str:
        """Write the Python code that makes the environment.

        Args:
            lines: the lines after the imports, with `MAKE` where an instance is made.
        """
        options = "".join(f", {name}={value!r}" for name, value in self.all_options.items())
        module, _, name = self.env.rpartition(":")
        imports = "".join(f"import {imported}\n" for imported in self.imports)
        registers = f"import {module}\n" if module and not self._is_folder else "import agent_r1_gym\n"
        if self.env_id.startswith(f"{_NAMESPACE}/"):
            imports += "from agent_r1_gym.envs.trl_class import TRLClassEnv\n" if self._is_trl_class else ""
            imports += f"from {module} import {name}\n"
            made = f"TRLClassEnv(factory={name}{options})" if self._is_trl_class else f"{name}({options[2:]})"
        elif split_window(self.options)[1]:  # a wrapper of this suite adds it
            imports += f"{registers}from agent_r1_gym.registry import make_text_env\n"
            made = f"make_text_env({self.env_id!r}, {dict(self.all_options)!r})"
        else:
            imports += f"import gymnasium\n{registers}"
            made = f"gymnasium.make({self.env_id!r}{options})"
        return f"{imports}\n{lines.replace('MAKE', made)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain data."""
        return {"env": self.env, "options": dict(self.options), "imports": list(self.imports), "oracle": self.oracle}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Restore a target from the output of `to_dict`."""
        return cls(data["env"], data["options"], tuple(data["imports"]), data["oracle"])


@dataclass(frozen=True, slots=True)
class Settings:
    """How thoroughly an environment is audited, and its limits.

    Attributes:
        episodes: tasks, or seeds, that each player plays.
        seed: seed of the first episode.
        call_seconds: seconds that one call of the environment may take; a longer one hangs.
        rule_seconds: seconds that one rule may take.
        total_seconds: seconds that the whole audit may take.
        memory: bytes that the processes of an audit may hold.
        network: whether the environment may connect to other machines.
    """

    episodes: int = 20
    seed: int = 0
    call_seconds: float = 30.0
    rule_seconds: float = 120.0
    total_seconds: float = 1_200.0
    memory: int = 8 * 2**30
    network: bool = False

    def __post_init__(self) -> None:
        check_integer("episodes", self.episodes, 1)
        check_integer("seed", self.seed, 0)
        check_integer("memory", self.memory, 2**28)
        for name in ("call_seconds", "rule_seconds", "total_seconds"):
            check_seconds(name, getattr(self, name))
