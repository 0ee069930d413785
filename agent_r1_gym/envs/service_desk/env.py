"""ServiceDesk: a shop's service desk under a policy that is drawn from a grammar, over a database of the episode's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.datasets.service_desk.dataset import Tickets
from agent_r1_gym.datasets.service_desk.style import STYLES
from agent_r1_gym.datasets.service_desk.tickets import Ticket
from agent_r1_gym.envs.service_desk.grading import PRESETS, closing, solved
from agent_r1_gym.envs.service_desk.scripts import SCRIPTS, next_call
from agent_r1_gym.envs.service_desk.tools import Door, desk_tools
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice
from agent_r1_gym.tool import Tool
from agent_r1_gym.types import Task, ToolCall, Transition

_STYLE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "natural": {},
    "compact": {"system_prompt": "", "feedback": "short"},
}
_MAX_TURNS = {"natural": {1: 16, 2: 24, 3: 32}, "compact": {1: 8, 2: 12, 3: 16}}
_DIFFICULTY = {"natural": 2, "compact": 1}


class ServiceDeskEnv(ToolEnv):
    """X."""

    held_out_splits: Sequence[str] = ("validation", "test", "ood")
    set_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "dataset")
    scripts = SCRIPTS
    instructions: ClassVar[str] = (
        "You are a clerk at the service desk of a shop. Handle the ticket as the policy says: look up what you need, "
        "verify the customer where the policy wants it, change what the policy allows and nothing else, then call "
        "close_ticket, which ends your work. Do not write an answer: it would leave the ticket open. A call that fails "
        "with HTTP 424 may be repeated."
    )

    def __init__(
        self,
        *,
        world_seed: int = 0,
        tickets: int = 1_000,
        split: str = "train",
        style: str = "natural",
        difficulty: int | None = None,
        sleep: bool = False,
        reward: Any = "em",
        **options: Any,
    ) -> None:
        check_choice("style", style, tuple(STYLES))
        hardness = _DIFFICULTY[style] if difficulty is None else difficulty
        self._door = Door()
        served = Tickets(tickets, seed=world_seed, split=split, style=style, difficulty=hardness)
        super().__init__(
            tasks=served,
            tools=desk_tools(STYLES[style], self._door, sleep=sleep),
            reward=PRESETS.get(reward, reward) if isinstance(reward, str) else reward,
            **{"max_turns": _MAX_TURNS[style][hardness], **_STYLE_DEFAULTS[style], **options},
        )

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Returns the tools, whose desk is that of `task`."""
        if not isinstance(task, Ticket):
            raise ConfigurationError(f"A service desk plays its own tickets, got a {type(task).__name__}.")
        self._door.scene = task.scene
        return self.tools

    def is_terminated(self, transition: Transition) -> bool:
        """Returns whether the ticket was closed, or left open by an answer."""
        return closing(transition) is not None or super().is_terminated(transition)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | None:
        """Returns the planner's next call."""
        return next_call(task.plan, history) if isinstance(task, Ticket) else None

    def success(self, task: Task, history: Sequence[Transition]) -> float:
        """Returns 1 if the ticket was closed as the policy wants it, else 0."""
        return solved(history[-1]) if history else 0.0
