"""Environment + policy -> trajectories, many episodes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_r1_gym.core import StepReturn, ToolEnv
from agent_r1_gym.policies import Policy, PolicyInput
from agent_r1_gym.trajectory import Trajectory, Turn
from agent_r1_gym.vector import step_together


def rollout(envs: Sequence[ToolEnv], policy: Policy, task_indices: Sequence[int]) -> Iterator[Trajectory]:
    """Plays one episode per task index and yields each trajectory when it ends.

    An environment whose episode ended takes the next task at once; the calls of all running episodes are executed
    together.

    Args:
        envs: environments over the same tasks; their number is the number of episodes side by side.
        policy: who acts.
        task_indices: the tasks to play, in order.
    """
    queue = iter(task_indices)
    running: list[_Episode] = []
    idle = list(envs)
    while True:
        while idle and (index := next(queue, None)) is not None:
            running.append(_Episode.start(idle.pop(), index))
        if not running:
            return
        actions = policy.act([episode.policy_input() for episode in running])
        steps = step_together([episode.env for episode in running], actions)
        for episode, action, step in zip(running, actions, steps, strict=True):
            episode.add(action, step)
            if episode.ended:
                idle.append(episode.env)
                yield episode.trajectory(policy.name)
        running = [episode for episode in running if not episode.ended]


@dataclass(slots=True)
class _Episode:
    """An episode that is being played."""

    env: ToolEnv
    task_index: int
    observation: str
    info: dict[str, Any]
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @classmethod
    def start(cls, env: ToolEnv, task_index: int) -> _Episode:
        observation, info = env.reset(options={"task_index": task_index})
        return cls(env, task_index, observation, info)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    def policy_input(self) -> PolicyInput:
        turn = len(self.turns)
        return PolicyInput(
            observation=self.observation,
            messages=self.info["messages"],
            turn=turn,
            turns_left=self.env.max_turns - turn,
            outcomes=self.info["tool_outcomes"],
            parser=self.env.parser,
            task=self.env.task,
        )

    def add(self, action: str, step: StepReturn) -> None:
        self.observation, reward, self.terminated, self.truncated, self.info = step
        errors = tuple(outcome.error for outcome in self.info["tool_outcomes"])
        codes = tuple(error.code for error in self.info["parse_errors"])
        self.turns.append(Turn(action, reward, self.info["reward_terms"], errors, codes))

    def trajectory(self, policy: str) -> Trajectory:
        return Trajectory(
            env_id=self.env.spec.id if self.env.spec else "",
            dataset=self.info["dataset"],
            policy=policy,
            task_id=self.info["task_id"],
            task_index=self.task_index,
            gold_answers=self.env.task.answers,
            answer=self.info["answer"],
            messages=self.info["messages"],
            turns=tuple(self.turns),
            terminated=self.terminated,
            truncated=self.truncated,
            end_reason=self.info["end_reason"],
            infrastructure_error=self.info["infrastructure_error"],
        )
