"""Session: a running episode; the one place that opens, steps, ends and records episodes, whatever plays them."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, SupportsFloat

from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.rewards import new_support
from agent_r1_gym.core.scoring import sub_exact_match
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ModelAction, ScriptedTurn, Task, Transition
from agent_r1_gym.core.vector import step_together
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.policies import PolicyInput, Prompt, PromptMethod, ToolUse
from agent_r1_gym.run.record import Context, Tokens, Trajectory, Turn
from agent_r1_gym.wrappers.game import TextGame

Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
"""The return value of `env.step`."""
OnEnd = Callable[[Trajectory], None]
ResetFn = Callable[[], tuple[str, dict[str, Any]]]
"""Opens an episode, with the return value of `env.reset`."""
_NO_LIMIT = sys.maxsize
HARD_MAX_TURNS = 1_000
"""Turns after which an episode is truncated if its environment sets no limit."""
_FOREIGN_INFO_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "context_rewritten": bool,
    "infrastructure_error": str,
    "answer": str,
    "end_reason": str,
    "dataset": str,
    "actions": (list, tuple),
}
"""Keys of `info` that are read from environments other than `ToolEnv`, with their types; other keys are ignored."""
_LONGEST_LABEL = 40


ANY_TASK = -1
"""Task index of an episode whose task the environment draws."""


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One episode to play.

    Attributes:
        task_index: position of the task in its data set; number of the question where there is no list of tasks;
            `ANY_TASK`: the environment samples one.
        sample: 0-based number of the episode among those of its task.
        seed: the environment is reset with it.
        sampling_seed: seed of the model's samples; None: the engine chooses one.
        env: name of the environment, where a player has several.
    """

    task_index: int
    sample: int = 0
    seed: int | None = None
    sampling_seed: int | None = None
    env: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the episode within a run."""
        return self.task_index, self.sample


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Prompt and completion tokens of a turn as the server or engine counted them; None: not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Session:
    """A running episode of any text environment, wrapped or not.

    A `ToolEnv` brings messages, tools, a task and a scorer; of another environment every observation is a user turn.

    Args:
        env: any text environment; it is stepped with the wrappers that it has.
        job: which episode; a `ToolEnv` is reset to its task, any environment with its seed.
        method: how a model is prompted.
        policy: name of the policy, for the record.
        on_end: receives the record when the episode is over.
        on_turn: receives this session after each turn, while `info` and `turns[-1]` are those of the turn.
        start: opens the episode; None: `env` is reset with the task and seed of `job`.

    Attributes:
        ended: whether the episode is over.
        model_has_spoken: whether the model has had a turn.
        hit_token_limit: whether a token budget cut the last turn.
        info: the last `info` of the environment; for environments other than `ToolEnv`, the keys that are read here.
        raw_info: the last `info`, unfiltered.
        cancelled: set it from any thread when the episode is no longer needed: its engine then stops it.
        stepping: whether a step waits for a backend; else it is the model's turn.
        phase_started_at: `time.monotonic()` when that began.
    """

    def __init__(
        self,
        env: TextEnv,
        job: Job,
        *,
        method: PromptMethod | None = None,
        policy: str = "",
        on_end: OnEnd | None = None,
        on_turn: OnTurn | None = None,
        start: ResetFn | None = None,
    ) -> None:
        self.env, self.job, self.method = env, job, method or ToolUse()
        self.tool_env = env.unwrapped if isinstance(env.unwrapped, ToolEnv) else None
        self.seed = job.sampling_seed
        self.turns: list[Turn] = []
        self.ended = self.model_has_spoken = self.hit_token_limit = self.cancelled = self.stepping = False
        self.phase_started_at = time.monotonic()
        self._policy, self._on_end, self._on_turn = policy, on_end, on_turn
        self._started = time.perf_counter()
        self._terminated = self._truncated = False
        self._end_reason: str | None = None
        self._infra_error: str | None = None
        with self.error_context():
            self.observation, self.info = (start or self._reset)()
            self._filter_foreign_info()
        self._question = self.observation
        self._messages: tuple[Message, ...] = ()
        self._contexts: list[Context] = []
        self._append_messages(None)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history as the model sees it."""
        return self._messages

    @property
    def task(self) -> Task:
        """The task; in an environment without tasks, a stand-in for the seed."""
        if self.tool_env is not None:
            return self.tool_env.task
        return Task(f"seed {self.job.seed}", self._question)

    @property
    def parser(self) -> Parser | None:
        """Parser of the environment; None if it is no `ToolEnv`."""
        return None if self.tool_env is None else self.tool_env.parser

    def state(self) -> PolicyInput:
        """Collect what a policy may see before the next turn."""
        tool_env, turn = self.tool_env, len(self.turns)
        return PolicyInput(
            observation=self.observation,
            messages=self._messages,
            turn=turn,
            turns_left=self._max_turns() - turn,
            outcomes=self.info.get("tool_outcomes", ()),
            parser=self.parser,
            task=self.task,
            tools=() if tool_env is None else tool_env.tool_schemas,
            scripts=self._scripts(),
            actions=tuple(action for action in self.info.get("actions", ()) if isinstance(action, str)),
            sample=self.job.sample,
        )

    def next_prompt(self) -> Prompt | str:
        """Return the prompt for the model, or the action of a turn that needs no model."""
        return self.method.next_prompt(self.state())

    def action_from_text(self, text: str, usage: TokenUsage, *, is_cut: bool) -> str:
        """Convert the text of a model into an action; other environments than a `ToolEnv` get a plain string.

        Args:
            text: the model's turn.
            usage: its token counts.
            is_cut: whether the token limit cut it.
        """
        action = self.method.action(self.state(), text)
        if self.tool_env is None:
            return action
        return ModelAction(
            action, is_cut=is_cut, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
        )

    def is_io_bound(self, action: str) -> bool:
        """Return whether a step only waits for backends, so that any thread may run it.

        Instant steps stay in the thread that reset the environment, which may own connections.
        """
        if self.tool_env is None:
            return not getattr(self.env, "is_instant", False)
        calls = self.tool_env.begin_step(action)  # inspected only: the step parses the action again
        if not calls:
            return self.tool_env.rewards.waits_for_backend
        return not any(call.tool.is_instant for call in calls)

    def record_step(self, action: str, step: Step, *, model_usage: TokenUsage | None = None) -> None:
        """Add the turn that `env.step(action)` returned.

        Args:
            action: the model's turn.
            step: return value of the environment.
            model_usage: token counts if a model wrote the action; a single-turn method ends the episode then.
        """
        action = encodable(str(action))
        self.observation, reward, terminated, truncated, self.info = step
        self._filter_foreign_info()
        usage = model_usage or TokenUsage()
        self.model_has_spoken = self.model_has_spoken or model_usage is not None
        self.turns.append(self._turn(action, checked_reward(reward, self.env), usage))
        self._append_messages(action)
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        self._infra_error = self.info.get("infrastructure_error") or self._infra_error
        if self._on_turn is not None:
            self._on_turn(self)
        if terminated or truncated:
            self._end()
        elif model_usage is not None and self.method.single_turn:
            self.truncate("no_answer")
        elif len(self.turns) >= HARD_MAX_TURNS and self._max_turns() == _NO_LIMIT:
            self.truncate("max_turns")

    def truncate(self, reason: str = "max_tokens") -> None:
        """Truncate the episode from outside; the reward of the end is added to the last turn."""
        self._truncated, self._end_reason = True, reason
        if self.tool_env is not None:
            end = self.tool_env.truncate_with_terms()
            if self.turns:
                self.turns[-1] = self.turns[-1].with_end_reward(end)
            if end.failure is not None:
                self._infra_error = f"reward: {end.failure}"
        self._end()

    def fail_infra(self, error: str) -> None:
        """End the episode because of an infrastructure failure."""
        self._infra_error = error
        self._end()

    def stop(self) -> None:
        """End the episode in its current state, unless it is over."""
        self._end()

    def record(self) -> Trajectory:
        """Return the episode in its current state as a record."""
        task, info, tool_env = self.task, self.info, self.tool_env
        gold = getattr(task, "supporting_titles", ()) if tool_env is not None else ()
        return Trajectory(
            env_id=self.env.spec.id if self.env.spec else "",
            dataset=info.get("dataset", ""),
            policy=self._policy,
            task_id=encodable(task.id),
            task_index=self.job.task_index,
            sample=self.job.sample,
            seed=self.job.seed,
            question=encodable(task.prompt),
            labels=_labels(task),
            gold_answers=tuple(map(encodable, task.answers)),
            answer=info.get("answer"),
            messages=self._messages,
            earlier_contexts=tuple(self._contexts),
            turns=tuple(self.turns),
            terminated=self._terminated,
            truncated=self._truncated,
            end_reason=self._reason(),
            infrastructure_error=self._infra_error,
            support_recall=sum(map(new_support, tool_env.transitions)) if tool_env is not None and gold else None,
            scorer=tool_env.scorer.name if tool_env is not None else "",
            scores=self._scores(task, info.get("answer")),
            seconds=time.perf_counter() - self._started,
            tokens=self._tokens(),
        )

    @contextmanager
    def error_context(self) -> Iterator[None]:
        """Attach the episode to an exception that passes through."""
        try:
            yield
        except Exception as error:
            if getattr(error, "__notes__", ()):  # an inner context has named the episode already
                raise
            error.add_note(
                f"Raised by {env_display_name(self.env)} in turn {len(self.turns)} of the episode of task "
                f"{self.job.task_index}, seed {self.job.seed}."
            )
            raise

    def _scripts(self) -> Mapping[str, Callable[[], ScriptedTurn | None]]:
        tool_env, game = self.tool_env, self.env.unwrapped
        if tool_env is None:
            oracle = getattr(game, "oracle", None)
            return {"oracle": oracle} if callable(oracle) else {}
        task, history = tool_env.task, tool_env.transitions
        seen = _visible_history(history, self.info.get("hidden_turns", ()))
        scripts = {name: functools.partial(script, tool_env, task, seen) for name, script in tool_env.scripts.items()}
        # An oracle may use hidden state and gold answers; every other script sees what a model sees.
        return {"oracle": functools.partial(tool_env.oracle, task, history), **scripts}

    def _reset(self) -> tuple[str, dict[str, Any]]:
        draws = self.tool_env is None or self.job.task_index == ANY_TASK
        return self.env.reset(seed=self.job.seed, options=None if draws else {"task_index": self.job.task_index})

    def _tokens(self) -> Tokens | None:
        return None

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            if self._on_end is not None:
                self._on_end(self.record())

    def _filter_foreign_info(self) -> None:
        """Keep only the info keys that are defined for environments other than `ToolEnv`."""
        self.raw_info = self.info
        if self.tool_env is None:
            self.info = {
                name: self.info[name]
                for name, kind in _FOREIGN_INFO_KEYS.items()
                if isinstance(self.info.get(name), kind)
            }

    def _max_turns(self) -> int:
        """Return the turn limit: the smaller of the environment's own and that of Gymnasium's `TimeLimit`."""
        limit = self.env.spec.max_episode_steps if self.env.spec else None
        bare = self.env.unwrapped
        own = bare.max_turns if isinstance(bare, ToolEnv | TextGame) else None
        return min(own or _NO_LIMIT, limit or _NO_LIMIT)

    def _turn(self, action: str, reward: float, usage: TokenUsage) -> Turn:
        info = self.info
        return Turn(
            action=action,
            reward=reward,
            reward_terms=info.get("reward_terms", {}),
            outcome_reward=info.get("outcome_reward", reward),  # unlabelled reward counts as outcome
            call_errors=tuple(outcome.error for outcome in info.get("tool_outcomes", ())),
            parse_errors=tuple(error.code for error in info.get("parse_errors", ())),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )

    def _append_messages(self, action: str | None) -> None:
        """Append the new messages, or start a new context where the environment rewrote earlier ones."""
        before = self._messages
        if action is not None:
            own = self.info["new_messages"][0] if self.tool_env is not None else Message("assistant", action)
            before = (*before, own)
        if action is not None and self.info.get("context_rewritten"):
            earlier_turns = sum(context.turns for context in self._contexts)
            reason = str(self.info.get("rewrite_reason", ""))
            self._contexts.append(Context(before, len(self.turns) - earlier_turns, reason))
            before = ()
        if self.tool_env is not None:
            self._messages = tuple(self.info["messages"])
        else:
            self._messages = (*before, Message("user", self.observation))

    def _reason(self) -> str:
        reason: str | None = self.info.get("end_reason") or self._end_reason
        return reason or ("goal" if self._terminated else "time_limit" if self._truncated else "interrupted")

    def _scores(self, task: Task, answer: str | None) -> dict[str, float]:
        if self.tool_env is None:
            return {}
        success = self.tool_env.success(task, self.tool_env.transitions)
        if success is not None:
            return {"em": _checked_success(success, self.env)}
        if not task.answers:
            return {}
        scorer = self.tool_env.scorer
        metrics = {"em": scorer.em, "f1": scorer.f1, "sub_em": sub_exact_match}
        return {name: 0.0 if answer is None else metric(answer, task.answers) for name, metric in metrics.items()}


OnTurn = Callable[[Session], None]


def _visible_history(history: Sequence[Transition], hidden: Sequence[int]) -> tuple[Transition, ...]:
    """Remove the tool output that a context window hides from transitions.

    Args:
        history: the transitions.
        hidden: `info["hidden_turns"]`.
    """
    hidden_turns = {len(history) + turn for turn in hidden}
    seen: list[Transition] = []
    for index, step in enumerate(history):
        blank = [replace(outcome, content="", data=None) for outcome in step.outcomes] if index in hidden_turns else ()
        seen.append(
            replace(step, outcomes=tuple(blank) or step.outcomes, earlier=tuple(seen)) if hidden_turns else step
        )
    return tuple(seen)


def _labels(task: Task) -> dict[str, Any]:
    """Return the labels for breakdowns: type and hops of the question, and short metadata values."""
    labels = {name: value for name in ("type", "hops") if (value := getattr(task, name, None))}
    for name, value in task.metadata.items():
        if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _LONGEST_LABEL):
            labels.setdefault(name, value)
    return labels


def step_sessions(
    sessions: Sequence[Session], actions: Sequence[str], *, model_usage: Sequence[TokenUsage] | None = None
) -> None:
    """Step several sessions together: the calls of all `ToolEnv`s run as one batch per tool."""
    steps = step_together([session.env for session in sessions], actions)
    for number, (session, action, step) in enumerate(zip(sessions, actions, steps, strict=True)):
        session.record_step(action, step, model_usage=model_usage[number] if model_usage else None)


def checked_reward(reward: Any, env: TextEnv) -> float:
    """Validate a reward and return it as a float.

    Raises:
        ConfigurationError: it is not a finite number.
    """
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = float("nan")
    if not isfinite(value):
        raise ConfigurationError(f"{env_display_name(env)} returned the reward {reward!r}; expected a finite number.")
    return value


def _checked_success(success: Any, env: TextEnv) -> float:
    """Validate what `ToolEnv.success` returned, and return it as a float.

    Raises:
        ConfigurationError: it is not a number between 0 and 1.
    """
    try:
        value = float(success)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value <= 1:
        raise ConfigurationError(
            f"success() of {env_display_name(env)} returned {success!r:.80}; expected None, or a number from 0 to 1."
        )
    return value


def env_display_name(env: TextEnv) -> str:
    """Return the id of an environment, or its class, for messages."""
    return env.spec.id if env.spec else type(env).__name__
