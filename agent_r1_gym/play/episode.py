"""Environment + policy -> trajectories, many episodes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1_gym.core import StepReturn, ToolEnv
from agent_r1_gym.play.policy import Policy, PolicyInput
from agent_r1_gym.play.record import Trajectory, Turn
from agent_r1_gym.rewards import new_support
from agent_r1_gym.text import encodable
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
    running: list[Episode] = []
    idle = list(envs)
    while True:
        while idle and (index := next(queue, None)) is not None:
            running.append(Episode.start(idle.pop(), index))
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
class Episode:
    """An episode that is being played.

    Attributes:
        env: where.
        task_index: which task.
        observation: what the last step returned; the same for `info`.
        turns: the model's turns so far.
        terminated: the task ended by its own rules.
        truncated: a budget ran out.
        end_reason: why, where the environment does not know: "max_tokens" (the model's context is full), "no_answer"
            (the one turn that it had gives none).
    """

    env: ToolEnv
    task_index: int
    observation: str
    info: Mapping[str, Any]
    turns: list[Turn] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    end_reason: str = "interrupted"

    @classmethod
    def start(cls, env: ToolEnv, task_index: int, *, seed: int | None = None) -> Episode:
        """Resets `env` to the task; `seed` reseeds its generator."""
        observation, info = env.reset(seed=seed, options={"task_index": task_index})
        return cls(env, task_index, observation, info)

    @property
    def ended(self) -> bool:
        """Whether no further turn is taken."""
        return self.terminated or self.truncated

    def policy_input(self) -> PolicyInput:
        """Returns what a policy may look at now."""
        turn = len(self.turns)
        return PolicyInput(
            observation=self.observation,
            messages=self.info["messages"],
            turn=turn,
            turns_left=self.env.max_turns - turn,
            outcomes=self.info["tool_outcomes"],
            parser=self.env.parser,
            task=self.env.task,
            tools=self.env.tool_schemas,
        )

    def add(
        self, action: str, step: StepReturn, *, prompt_tokens: int | None = None, completion_tokens: int | None = None
    ) -> None:
        """Books what `env.step(action)` returned."""
        self.observation, reward, self.terminated, self.truncated, self.info = step
        self.turns.append(make_turn(action, reward, self.info, prompt_tokens, completion_tokens))

    def truncate(self, reason: str = "max_tokens") -> None:
        """Ends the episode from outside; the reward of that goes to the last turn."""
        reward = self.env.truncate()
        self.truncated, self.end_reason = True, reason
        if self.turns:
            self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + reward)

    def trajectory(self, policy: str, *, infrastructure_error: str | None = None) -> Trajectory:
        """Returns the episode as it stands.

        Args:
            policy: who acted.
            infrastructure_error: what failed outside the environment, if something did.
        """
        task, info = self.env.task, self.info
        gold = getattr(task, "supporting_titles", ())
        recall = sum(new_support(transition) for transition in self.env.transitions) if gold else None
        return Trajectory(
            env_id=self.env.spec.id if self.env.spec else "",
            dataset=info["dataset"],
            policy=policy,
            task_id=info["task_id"],
            task_index=self.task_index,
            gold_answers=task.answers,
            answer=info["answer"],
            messages=info["messages"],
            turns=tuple(self.turns),
            terminated=self.terminated,
            truncated=self.truncated,
            end_reason=info["end_reason"] or self.end_reason,
            infrastructure_error=infrastructure_error or info["infrastructure_error"],
            support_recall=recall,
        )


def make_turn(
    action: str, reward: float, info: Mapping[str, Any], prompt_tokens: int | None, completion_tokens: int | None
) -> Turn:
    """Returns one turn as data, from what `step` returned."""
    errors = tuple(outcome.error for outcome in info["tool_outcomes"])
    codes = tuple(error.code for error in info["parse_errors"])
    return Turn(encodable(action), reward, info["reward_terms"], errors, codes, prompt_tokens, completion_tokens)
