"""ToolEnv: the extended MDP of Agent-R1 as a `gymnasium.Env` (arXiv 2511.14460).

It parses the model's text, has the tools executed, decides the transition, computes outcome and process rewards, and
packages the new state. It knows no token ids and no chat template.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from agent_r1_gym.core.history import EpisodeState, History
from agent_r1_gym.core.parsing import HOW_TO_ANSWER, Parser, make_parser
from agent_r1_gym.core.parsing.base import NO_ACTION
from agent_r1_gym.core.parsing.plain_turn import ANSWER_EXTRACTORS, plain_answer
from agent_r1_gym.core.rewards import (
    Reward,
    RewardSet,
    RewardTerm,
    StepReward,
    find_scorer,
    make_rewards,
    replace_presets,
)
from agent_r1_gym.core.scoring import AnswerScorer
from agent_r1_gym.core.shots import Shot, TasksWithoutShots, draw_shots, read_shots, shortened
from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.text import (
    FeedbackFormatter,
    encodable,
    opening_turns,
    render_ansi,
    render_message,
    render_text,
)
from agent_r1_gym.core.tool import PendingCall, Tool, execute_calls
from agent_r1_gym.core.toolbox import Toolbox
from agent_r1_gym.core.types import (
    MAX_CALLS_PER_TURN,
    Message,
    ModelAction,
    ParsedTurn,
    ParseError,
    ScriptedPolicy,
    ScriptedTurn,
    Task,
    ToolCall,
    ToolOutcome,
    Transition,
)
from agent_r1_gym.errors import ActionTypeError, ConfigurationError, EpisodeError, InfrastructureError, suggest
from agent_r1_gym.support.checks import StrictOptions, check_choice, check_integer, check_items, check_split

StepReturn = tuple[str, float, bool, bool, dict[str, Any]]
TaskLoader = Callable[[Any, str | None, Mapping[str, str] | None], Sequence[Task]]
"""Loads the tasks of a data set: from what `dataset` names, a split or None, and the columns that `fields` names."""
_TRUNCATION_NOTE = "\n[the history budget is spent]"
_CUT = "The token limit cut the turn there: write less."
_NO_TURN = ParsedTurn()
_HOW_TO_WRITE = "To write to the user, put your message between these tags, without a call in the same turn:"


class SerializableSpec:
    """Keeps Gymnasium's `spec` of an environment fit for `spec.to_json()`.

    A path among its options becomes a string, a reward that is a function of a module becomes its MODULE:NAME.
    """

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """How Gymnasium made the environment, None if it did not."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        if spec is not None:
            spec.kwargs = {name: _serializable(name, value) for name, value in spec.kwargs.items()}
        self._spec = spec


def _serializable(option: str, value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if option == "reward" and isinstance(value, list | tuple):
        return [_serializable(option, part) for part in value]
    if option != "reward" or not isinstance(value, FunctionType) or value.__module__ == "__main__":
        return value
    # Lambdas and inner functions stay as they are: no other process can import them by name.
    is_importable = getattr(sys.modules.get(value.__module__), value.__name__, None) is value
    return f"{value.__module__}:{value.__name__}" if is_importable else value


@dataclass(slots=True)
class PendingStep:
    """A model turn between the two halves of a step: what `ToolEnv.begin_step` leaves for `finish_step`.

    Attributes:
        action: the model's turn.
        parsed: what the parser understood of it.
        calls: the valid calls, to be executed.
        rejected: the outcomes of the other calls, by position among all calls of the turn.
        over_budget: whether the turn exceeds the history budget.
        outcomes: those of `calls`, once `ToolEnv.prepare_step` has stored them.
    """

    action: str
    parsed: ParsedTurn
    calls: tuple[PendingCall, ...]
    rejected: Mapping[int, ToolOutcome]
    over_budget: bool
    outcomes: Sequence[ToolOutcome] | None = None


class ToolEnv(SerializableSpec, StrictOptions, gymnasium.Env[str, str]):
    """A multi-turn, tool-using task.

    Subclasses provide tasks and tools, and override hooks where their rules differ: `sample_task`, `make_tools`,
    `task_prompt`, `is_terminated`, `success`, `oracle`. They leave `reset` and `step`, the contract, alone.

    Observation: the whole history as text. Action: one model turn, free text. `info` (same keys after `reset` and
    `step`): `messages` (the history as `types.Message`s), `new_messages` (what this step added), `task_id`, `dataset`,
    `turn` (model turns so far), `answer`, `reward_terms` (raw values by name; `reward` is their sum under
    `reward_weights`), `outcome_reward` (the part of `reward` that terms of kind "outcome" give), `tool_calls` and
    `tool_outcomes` (one outcome per call), `parse_errors`, `end_reason` ("answer", "goal", "max_turns", "max_history"
    or None), `infrastructure_error` (None, or the backend failure of this episode: of a tool, or of a reward's judge).
    `types.info_to_dict` turns it into JSON.

    Turns are limited by `max_turns`. `gymnasium.make(ID, max_episode_steps=n)` works as with any environment, but its
    wrapper cuts from outside: the last step is truncated without an `end_reason`, and no reward term sees the end.

    Args:
        tasks: what to solve; an episode samples one.
        dataset: where tasks are read from instead: a file, a folder or "hub:NAME", see `data.tasks.load_tasks`.
        split: which tasks of `dataset`; None: its training split.
        fields: columns of `dataset` with other names, such as {"prompt": "Frage", "answers": "Antwort"}.
        tools: the tools of every episode.
        parser: format of the model's turns: "hermes", "search-r1", "retool", "openai", "native", a `Parser` or
            MODULE:NAME.
        reward: a preset, a term, a function of the transition, or several of these, see `rewards.make_rewards`.
        reward_weights: overrides of single weights by term name.
        scorer: key of `scoring.SCORERS`; "plain" compares numbers by value.
        max_turns: model turns per episode; the episode is truncated after the last.
        budgets: calls per episode, by tool; further calls are refused. Tools without a budget are unlimited.
        max_history_chars: maximum length of the observation, in characters; a longer episode is truncated.
        system_prompt: first part of the system turn, before tools and answer format; None: the class's
            `instructions`; "": no system turn at all.
        raw_system_prompt: the whole system turn instead, for instance where a chat template lists the tools.
        tool_style: how the system turn lists the tools, one of `parsing.TOOL_STYLES`; None: as the parser does by
            default.
        plain_turn: what a turn with neither a call nor an answer is: "error", a mistake that is fed back, or "answer",
            the final answer, as in TRL and verifiers.
        answer_extractor: what such a turn answers: "text" (all of it), "number" (its last number), "boxed" (what the
            last LaTeX box contains) or "phrase" (what follows "the answer is").
        shots: number of worked episodes before the task, as real turns: the oracle plays them on training tasks,
            which are then not sampled; or the shots themselves, as `Shot`s or their dictionaries.
        shots_seed: draws the tasks of the shots.
        shots_max_chars: maximum length of a tool's output within a shot; a longer one is cut and ends in "...". A small
            model loses the format in long outputs.
        feedback: "full" explains mistakes in sentences, "short" gives only their codes (for tiny vocabularies).
        markup: further strings to break in foreign text, for instance a tokenizer's special tokens.
        render_mode: None, "ansi" (`render` returns coloured text) or "human" (each step is printed).

    Raises:
        ConfigurationError: an argument has a wrong value.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012
    instructions: ClassVar[str] = "Solve the task. Use the functions below when they help."
    """First part of the system turn, before tools and answer format, unless `system_prompt` replaces it."""
    reward_presets: ClassVar[Mapping[str, Sequence[str | RewardTerm]]] = {}
    """Terms of the class's own for the names of presets, such as "em" and "process"; those of "em" decide `success`."""
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {}
    """Policies for `--policy script:NAME`: near misses, beginners. What a window hides is empty in their `history`."""
    load_tasks: ClassVar[TaskLoader]
    """Reads `dataset`. The package sets it (`data.tasks.open_tasks`): files and the hub do not belong in the core."""
    held_out_splits: Sequence[str] = ()
    """Splits never trained on, where a class defines them; a `dataset` of tasks defines its own."""
    plain_errors: ClassVar[Sequence[list[str]]] = (["no_action"],)
    """Mistakes of a turn that `plain_turn="answer"` takes for an answer: none that begins a call or an answer."""
    waits_at_reset: ClassVar[bool] = False
    """Whether `reset` waits for a backend, and may raise `InfrastructureError`: resets then run side by side, and a
    failure loses the episode instead of ending the run."""
    begins_in_any_order: ClassVar[bool] = False
    """Whether episodes of an environment that waits at reset may begin in another order than they were opened in."""
    _answer_extractor: str | None = None
    """What a turn with neither a call nor an answer answers; None: nothing."""
    _draws_shots: bool = True
    """Whether a number of shots is drawn; False in the twin that plays them."""

    def __init__(
        self,
        *,
        tasks: Sequence[Task] = (),
        dataset: str | os.PathLike[str] | Sequence[Task] | None = None,
        split: str | None = None,
        fields: Mapping[str, str] | None = None,
        tools: Sequence[Tool] = (),
        parser: str | Parser = "hermes",
        reward: Reward | RewardSet | Sequence[Reward] = "em",
        reward_weights: Mapping[str, float] | None = None,
        scorer: str | AnswerScorer = "plain",
        max_turns: int = 5,
        budgets: Mapping[str, int] | None = None,
        max_history_chars: int = 65_536,
        system_prompt: str | None = None,
        raw_system_prompt: str | None = None,
        tool_style: str | None = None,
        plain_turn: str = "error",
        answer_extractor: str = "text",
        shots: int | Sequence[Shot | Mapping[str, Any]] = 0,
        shots_seed: int = 0,
        shots_max_chars: int = 80,
        feedback: str = "full",
        markup: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        check_integer("max_turns", max_turns, 1)
        check_integer("max_history_chars", max_history_chars, 256)
        check_integer("shots_seed", shots_seed, 0)
        check_integer("shots_max_chars", shots_max_chars, 1)
        check_choice("feedback", feedback, ("full", "short"))
        check_choice("plain_turn", plain_turn, ("error", "answer"))
        check_choice("answer_extractor", answer_extractor, tuple(ANSWER_EXTRACTORS))
        if answer_extractor != "text" and plain_turn == "error":
            raise ConfigurationError(
                f'answer_extractor={answer_extractor!r} has no effect with plain_turn="error": set plain_turn="answer".'
            )
        # Set only where it is not the default: environments with at most 29 attributes share one table of their names,
        # with more each takes 1.3 kB for its own.
        if plain_turn == "answer":
            self._answer_extractor = answer_extractor
        if render_mode is not None:
            check_choice("render_mode", render_mode, self.metadata["render_modes"])
            self.render_mode = render_mode
        _check_tools(tools)
        check_items("markup", markup, str)
        for name, prompt in (("system_prompt", system_prompt), ("raw_system_prompt", raw_system_prompt)):
            if prompt is not None and not isinstance(prompt, str):
                raise ConfigurationError(f"{name} must be a string or None, got {prompt!r:.80}.")
        if system_prompt and raw_system_prompt is not None:
            raise ConfigurationError("Give system_prompt or raw_system_prompt, not both.")
        self.tasks = self._load_tasks(tasks, dataset, split, fields)
        self.tools, self.scorer = tuple(tools), find_scorer(scorer)
        self.parser = make_parser(parser, tool_style)
        if self.tools and not any(self.parser.can_call(tool.schema) for tool in self.tools):
            raise ConfigurationError(
                f"The format {self.parser.name!r} cannot call any of the tools {[tool.name for tool in self.tools]}: "
                f"it suits {self.parser.suits or 'others'}. Choose another parser, such as 'hermes'."
            )
        self.rewards = make_rewards(replace_presets(reward, self.reward_presets), reward_weights, scorer=self.scorer)
        if dataset is not None or isinstance(tasks, list | tuple):  # not lazy sequences, which make a task when indexed
            self.rewards.check_tasks(self.tasks)
        self.max_turns, self.max_history_chars = max_turns, max_history_chars
        self.budgets = _check_budgets(budgets, [tool.name for tool in self.tools])
        self.observation_space = UnicodeText(max_history_chars)
        self.action_space = UnicodeText(max_history_chars)
        self._system_prompt, self._raw_system_prompt = system_prompt, raw_system_prompt
        self.markup = tuple(markup)
        self.formatter = FeedbackFormatter(short=feedback == "short", markup=(*self.markup, *self.parser.markup))
        self._np_random_seed = None  # Gymnasium sets it at the first reset, when the shared table has room for one name
        self._history: History | None = None
        self._pending: PendingStep | None = None
        self._shots_max_chars = shots_max_chars
        self.shots = self._take_shots(read_shots(shots), shots_seed)
        """The worked episodes before each task."""
        self.toolbox = Toolbox(())
        self._set_tools(self.tools)

    def _load_tasks(
        self, tasks: Sequence[Task], dataset: Any, split: str | None, fields: Mapping[str, str] | None
    ) -> Sequence[Task]:
        check_split(split)
        if dataset is not None:
            if len(tasks):
                raise ConfigurationError(f"Give tasks or dataset, not both: {len(tasks)} tasks and {dataset!r:.80}.")
            return type(self).load_tasks(dataset, split, fields)
        if fields is not None:
            raise ConfigurationError(f"fields={fields!r:.80} names columns of a custom dataset=, but none is given.")
        if split is not None:
            raise ConfigurationError(f"split={split!r} selects tasks of a dataset=, but no dataset is given.")
        if isinstance(tasks, str | Mapping) or not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
            raise ConfigurationError(f"tasks must be a sequence of Task, got {type(tasks).__name__}.")
        if len(tasks) == 0:
            raise ConfigurationError("tasks is empty; an environment needs at least one task to sample.")
        if not isinstance(tasks[0], Task):
            raise ConfigurationError(
                f"tasks must be a sequence of Task, got one of {type(tasks[0]).__name__}: write Task(id, prompt, "
                "(answer,)), or save the rows as a JSON Lines file and pass dataset='tasks.jsonl'."
            )
        return tasks

    def _take_shots(self, shots: int | tuple[Shot, ...], seed: int) -> tuple[Shot, ...]:
        """Draw the shots with a twin of this environment on the training split, and exclude their tasks here."""
        if not isinstance(shots, int):
            return shots
        if not shots or not self._draws_shots:
            return ()
        changed = {"shots", "shots_seed", "split", "render_mode"}
        options = {name: value for name, value in self._given_options.items() if name not in changed}
        twin = type(self).__new__(type(self), **options)
        twin._draws_shots = False  # a subclass may set the number of shots itself
        twin.__init__(**options)  # type: ignore[misc]
        # The rewards decide nothing here, but a class may compute in a term what its `success` returns.
        needs_rewards = type(self).success is not ToolEnv.success
        kept = [term for term in twin.rewards.terms if needs_rewards and not term.waits_for_backend]
        twin.rewards = RewardSet(tuple(kept))
        try:
            drawn = dict(draw_shots(twin, shots, seed))
            excluded = [index for index in drawn if index < len(self.tasks) and self.tasks[index] == twin.tasks[index]]
        finally:
            twin.toolbox.end()  # not its tools: some are shared
        if len(excluded) == len(self.tasks):
            raise ConfigurationError(f"shots={shots} uses all {len(self.tasks)} tasks; none is left to solve.")
        if excluded:
            self.tasks = TasksWithoutShots(self.tasks, excluded)
        return tuple(drawn.values())

    # --- hooks for subclasses ----------------------------------------------------------------------------------------

    def sample_task(self) -> Task:
        """Draw the task of a new episode with `self.np_random`."""
        return self.tasks[int(self.np_random.random() * len(self.tasks))]  # integers() takes three times as long

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Return the tools of an episode on `task`; override it where tools depend on the task."""
        return self.tools

    def task_prompt(self, task: Task) -> str:
        """Write the first user turn."""
        return task.prompt

    def is_terminated(self, transition: Transition) -> bool:
        """Decide whether the task ended by its own rules; default: an answer was given."""
        return transition.parsed.answer is not None

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """Return the best next turn: a call, several as a tuple, or the final answer, in a `Thought` with its reason.

        None: unknown. Default: the gold answer.
        """
        return task.answers[0] if task.answers else None

    def has_solution(self, task: Task) -> bool:
        """Whether `oracle` knows the way to the answer, and not the answer alone.

        Demonstrations and shots are made of such tasks only. Default: yes.
        """
        return True

    def success(self, task: Task, history: Sequence[Transition]) -> float | None:
        """Score how well the actions of an episode solved `task` (1: fully); None if the answer decides.

        By default, a class whose `reward_presets` have terms for "em" is scored by them, at the last step.
        """
        own_terms = self.reward_presets.get("em")
        if own_terms is None:
            return None
        terms = make_rewards(own_terms, scorer=self.scorer).terms if history else ()
        return sum((term.weight * term.function(history[-1]) for term in terms if term.weight), 0.0)

    def describe_dataset(self) -> str:
        """Describe the tasks, for `info["dataset"]`."""
        if hasattr(self.tasks, "describe"):
            return str(self.tasks.describe())
        return f"{len(self.tasks)} tasks given to the constructor"

    # --- the current episode -----------------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task of the current episode, gold answers included.

        Raises:
            EpisodeError: no episode was started.
        """
        if self._history is None:
            raise EpisodeError("There is no task before the first episode; call reset() first.")
        return self._history.task

    @property
    def prompt_length(self) -> int:
        """Number of messages of the current episode up to the task's own user turn; shots are among them."""
        return self._history.prompt_length if self._history is not None else 0

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The transitions of the current episode so far."""
        return self._history.transitions if self._history is not None else ()

    @property
    def episode_tools(self) -> tuple[Tool, ...]:
        """The tools of the current episode."""
        return tuple(self.toolbox.by_name.values())

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools of the current episode, without one that plays the user, as OpenAI-style function schemas."""
        return [tool.schema for tool in self.toolbox.by_name.values() if not tool.takes_messages]

    @property
    def reward_weights(self) -> dict[str, float]:
        """Weight by name of reward term."""
        return self.rewards.weights

    @property
    def reward_bounds(self) -> tuple[float, float]:
        """Smallest and largest reward of one step."""
        return self.rewards.range

    # --- reset -------------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: reseeds the environment's generator.
            options: `{"task_index": i}` selects a task of the data set, `{"task": Task(...)}` passes one; otherwise a
                task is sampled.

        Returns:
            The observation (system and user turn as text) and `info`.

        Raises:
            ConfigurationError: unknown option, index out of range, or a task longer than the history budget.
        """
        super().reset(seed=seed)
        task = _requested_task(self.tasks, options) or self.sample_task()
        self.rewards.check_tasks((task,))
        self._history = None  # the rest may raise, and then no episode is running
        history = self._begin_episode(task)
        if len(history.text) > self.max_history_chars:
            raise ConfigurationError(
                f"The prompt of task {task.id!r} has {len(history.text)} characters, more than max_history_chars="
                f"{self.max_history_chars}; raise it or shorten system_prompt."
            )
        self._history = history
        return self._observe(new=len(history.messages), step_reward=StepReward(0.0, {}, 0.0), end_reason=None)

    def _begin_episode(self, task: Task) -> History:
        """Set up the tools of an episode on `task` and write its first turns."""
        self._pending = None
        self.toolbox.end()
        tools = tuple(self.make_tools(task))
        if tools != self.toolbox.tools:
            self._set_tools(tools)
        self.toolbox.begin()
        opening, rendered = self._opening
        if task.history:
            system, shots = self._system_and_shots(task.history[0].content if task.history[0].role == "system" else "")
            turns = [turn for turn in task.history if turn.role != "system"]
            opening = (*system, *shots, *self._conversation_messages(turns))
            rendered = render_text(opening)
        user = self.formatter.prompt(self.task_prompt(task))
        rendered += render_message(user)
        return History(task, (*opening, user), rendered, prompt_length=len(opening) + 1)

    def _set_tools(self, tools: tuple[Tool, ...]) -> None:
        """Index the tools and write the system turn and the shots, once for all episodes with the same tools."""
        previous, self.toolbox = self.toolbox, Toolbox(tools)
        try:
            system, shots = self._system_and_shots("")
        except BaseException:
            self.toolbox = previous  # whose opening is still in place
            raise
        self._opening = opening_turns((*system, *shots))

    def _system_and_shots(self, row_system: str) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Write what stands before each task; `row_system` is the system turn of the task itself, "" without one."""
        text = self.system_text(self.parser, self.formatter.sanitize(row_system))
        shots = tuple(message for shot in self.shots for message in self._shot_messages(shot))
        return (Message("system", text),) if text else (), shots

    def _shot_messages(self, shot: Shot) -> Iterator[Message]:
        """Write a worked episode in the format of the parser."""
        yield self.formatter.prompt(shot.prompt)
        for turn in shot.turns:
            action = self.parser.format_turn(turn.action)
            parsed = self.parse(action)
            outcomes = tuple(shortened(outcome, self._shots_max_chars) for outcome in turn.outcomes)
            if parsed.errors or len(parsed.calls) != len(outcomes):
                raise ConfigurationError(
                    f"The format {self.parser.name!r} cannot express a turn of the shot {shot.task_id!r}: "
                    f"{action!r:.120}"
                )
            yield from self._turn_messages(PendingStep(action, parsed, (), {}, over_budget=False), outcomes)

    def system_text(self, parser: Parser, row_system: str = "") -> str:
        """Write the system turn for calls and answers in the format of `parser`; "" if there is none.

        Args:
            parser: the format.
            row_system: system turn of the task's own conversation; it takes the place of the class's `instructions`,
                and follows a `system_prompt`.
        """
        tools_and_format: Any = parser.instructions(self.tool_schemas)
        if not isinstance(tools_and_format, str):
            raise ConfigurationError(
                f"The parser's instructions() returned {tools_and_format!r:.80}; it must return a string."
            )
        if self.toolbox.user is not None:
            tools_and_format = tools_and_format.replace(HOW_TO_ANSWER, _HOW_TO_WRITE)
        raw = self._raw_system_prompt
        if raw is None:
            own = self._system_prompt
            if own == "" or (own is None and not self.instructions):
                return row_system  # no instructions at all: for a model that was trained without
            instructions = [own, row_system] if own else [row_system or self.instructions]
            return "\n\n".join(part for part in (*instructions, tools_and_format) if part)
        # A format whose instructions do not list the tools leaves that to the chat template or the endpoint.
        listed = [name for name in self.toolbox.by_name if name in tools_and_format]
        if raw and listed and not any(name in raw for name in self.toolbox.by_name):
            warnings.warn(
                f"raw_system_prompt names none of the tools {listed}, so the model does not know what it may call. "
                "system_prompt= replaces the instructions only, and keeps tools and answer format.",
                stacklevel=3,
            )
        return f"{raw}\n\n{row_system}".strip() if row_system else raw

    # --- step, in two halves -----------------------------------------------------------------------------------------

    def step(self, action: str) -> StepReturn:
        """Take one model turn: parse it, execute its calls together, reward it, and return the new state.

        Args:
            action: any text.

        Returns:
            observation, reward, terminated, truncated, info; never terminated and truncated at once.

        Raises:
            ActionTypeError: `action` is not a string.
            EpisodeError: no episode is running.
        """
        prepared = self._pending
        calls = self.begin_step(action)
        if prepared is None or prepared.outcomes is None:
            return self.finish_step(execute_calls(calls) if calls else [])
        # `step_together` has begun this step already, executed its calls and stored the outcomes (`prepare_step`); now
        # the wrappers pass on the action. `begin_step` may change what it gets (`encodable`; an override), so the two
        # actions can be compared only after it: hence it runs again above, and its calls are not executed.
        if self._pending is None or self._pending.action != prepared.action:
            self._pending = None
            raise EpisodeError(f"The step was prepared for the action {prepared.action!r:.80}, got {action!r:.80}.")
        return self.finish_step(prepared.outcomes)

    def begin_step(self, action: str) -> tuple[PendingCall, ...]:
        """First half of `step`: parse the turn and return its valid calls, in order, for the caller to execute.

        Changes nothing that `finish_step` does not commit, so a step may be begun again.

        Raises:
            ActionTypeError, EpisodeError: see `step`.
            ConfigurationError: the parser returned no `ParsedTurn`, or a budget names no tool of this episode.
        """
        if not isinstance(action, str):
            raise ActionTypeError(f"An action must be a string (one model turn), got {type(action).__name__}.")
        history = self._history
        if history is None or history.ended:
            raise EpisodeError("No episode is running: call reset() before the first step and after an episode ended.")
        is_cut = isinstance(action, ModelAction) and action.is_cut
        action = encodable(str(action))
        over_budget = len(history.text) + len(action) > self.max_history_chars
        parsed = self.parse(action)
        if is_cut and parsed.errors:
            first = replace(parsed.errors[0], message=f"{parsed.errors[0].message} {_CUT}")
            parsed = replace(parsed, errors=(first, *parsed.errors[1:]))
        parsed = drop_calls_over_limit(parsed, over_budget=over_budget)
        calls, rejected = self._check_calls(parsed.calls, history, is_message=parsed.is_message)
        self._pending = PendingStep(action, parsed, calls, rejected, over_budget)
        return calls

    def parse(self, action: str) -> ParsedTurn:
        """Parse a model turn: with the parser, and by the rules for turns without a call.

        Returns:
            What the parser understood. A turn in which it found nothing is a mistake, a plain turn is an answer if
            `plain_turn` says so, and an answer is a message to the tool that plays the user, if there is one.

        Raises:
            ConfigurationError: the parser returned no `ParsedTurn`.
        """
        parsed = self.parser.parse(action)
        if not isinstance(parsed, ParsedTurn) or not (parsed.answer is None or isinstance(parsed.answer, str)):
            raise ConfigurationError(
                f"The parser returned {parsed!r:.120}; parse() must return a ParsedTurn whose answer is a string or "
                "None."
            )
        if not parsed.calls and parsed.answer is None and not parsed.errors:
            parsed = replace(parsed, errors=(NO_ACTION,))
        if self._answer_extractor and [error.code for error in parsed.errors] in self.plain_errors:
            answer = plain_answer(action if parsed.content is None else parsed.content, self._answer_extractor)
            parsed = parsed if answer is None else replace(parsed, answer=answer, errors=())
        if self.toolbox.user is not None and parsed.answer is not None:
            message = ToolCall(self.toolbox.user, {"text": parsed.answer})
            parsed = replace(parsed, calls=(message,), answer=None, is_message=True)
        return parsed

    def _check_calls(
        self, calls: Sequence[ToolCall], history: History, *, is_message: bool = False
    ) -> tuple[tuple[PendingCall, ...], dict[int, ToolOutcome]]:
        """Split the calls of a turn into those to execute, and the outcomes of the refused ones by position.

        Only a message reaches the tool that plays the user, and suggestions name only tools that the model is offered.
        """
        tools = self.toolbox.by_name
        remaining = history.remaining_calls(self.budgets) if self.budgets else {}
        if not remaining.keys() <= tools.keys():
            unknown = sorted(remaining.keys() - tools.keys())
            raise ConfigurationError(f"budgets names no tool of this episode: {unknown}. {suggest(unknown[0], tools)}")
        valid: list[PendingCall] = []
        rejected: dict[int, ToolOutcome] = {}
        for position, call in enumerate(calls):
            tool = tools.get(call.name)
            if tool is None or (call.name == self.toolbox.user and not is_message):
                name, offered = call.name[:64], [schema["function"]["name"] for schema in self.tool_schemas]
                message = f"There is no tool {name!r}. {suggest(name, offered)}"
                rejected[position] = ToolOutcome(message, ok=False, error="unknown_tool")
            elif problem := tool.check(call.arguments):
                rejected[position] = ToolOutcome(problem, ok=False, error="bad_arguments")
            elif remaining.get(call.name, 1) < 1:
                message = f"You have used all your calls of {call.name!r}. Continue without it."
                rejected[position] = ToolOutcome(message, ok=False, error="tool_error")
            else:
                if call.name in remaining:
                    remaining[call.name] -= 1
                valid.append(PendingCall(tool, call, id(self)))
        return tuple(valid), rejected

    def prepare_step(self, outcomes: Sequence[ToolOutcome]) -> None:
        """Store the outcomes of a begun step for the next `step`, which must take the same action.

        Wrappers know only whole steps. This way the calls of many wrapped environments run as one batch before any of
        them is stepped (see `vector.step_together`).

        Raises:
            EpisodeError: no step was begun.
        """
        if self._pending is None:
            raise EpisodeError("prepare_step() was called without begin_step().")
        self._pending.outcomes = outcomes

    def finish_step(self, outcomes: Sequence[ToolOutcome]) -> StepReturn:
        """Second half of `step`: take the outcomes of the pending calls and return what `step` returns.

        Args:
            outcomes: one per call that `begin_step` returned, in order.

        Raises:
            EpisodeError: no step was begun, or the number of outcomes is not that of its calls.
        """
        pending, history = self._pending, self._history
        if pending is None or history is None:
            raise EpisodeError("finish_step() was called without begin_step().")
        if len(outcomes) != len(pending.calls):
            raise EpisodeError(
                f"finish_step() expected {len(pending.calls)} outcomes, one per pending call, got {len(outcomes)}."
            )
        self._pending = None
        transition, messages, text, end_reason = self._next_state(pending, history, outcomes)
        step_reward = self.rewards.evaluate(transition)
        infrastructure_error = history.infrastructure_error
        for call, outcome in zip(transition.parsed.calls, transition.outcomes, strict=True):
            if outcome.is_infrastructure_failure:
                infrastructure_error = f"{call.name}: {outcome.error}: {outcome.content}"
        if step_reward.failure is not None:
            infrastructure_error = f"reward: {step_reward.failure}"
        # Replaced only here, so that a hook or a reward that raises leaves the episode as it was.
        self._history = History(
            history.task,
            (*history.messages, *messages),
            text,
            (*history.transitions, transition),
            ended=end_reason is not None,
            infrastructure_error=infrastructure_error,
            prompt_length=history.prompt_length,
        )
        if end_reason is not None:
            self.toolbox.finish()
        observation, info = self._observe(new=len(messages), step_reward=step_reward, end_reason=end_reason)
        return observation, step_reward.reward, transition.terminated, transition.truncated, info

    def preview_transition(self, outcomes: Sequence[ToolOutcome]) -> Transition:
        """Return the transition that `finish_step` will reward, and change nothing.

        Args:
            outcomes: one per call that `begin_step` returned, in order.

        Raises:
            EpisodeError: no step was begun.
        """
        if self._pending is None or self._history is None:
            raise EpisodeError("preview_transition() was called without begin_step().")
        return self._next_state(self._pending, self._history, outcomes)[0]

    def _next_state(
        self, pending: PendingStep, history: History, outcomes: Sequence[ToolOutcome]
    ) -> tuple[Transition, list[Message], str, str | None]:
        """Compute what a step leads to: its transition, its messages, the whole text, and the reason of an end."""
        parsed, earlier, rejected = pending.parsed, history.transitions, pending.rejected
        if rejected:
            executed = iter(outcomes)
            outcomes = [rejected[i] if i in rejected else next(executed) for i in range(len(parsed.calls))]
        outcomes = tuple(outcomes)
        messages = self._turn_messages(pending, outcomes)
        text = "".join([history.text, *map(render_message, messages)])
        overflow = pending.over_budget or len(text) > self.max_history_chars
        if overflow:
            text = text[: self.max_history_chars - len(_TRUNCATION_NOTE)] + _TRUNCATION_NOTE
        transition = Transition(history.task, len(earlier), parsed, outcomes, False, False, earlier)
        end_reason = self._end_reason(transition, overflow)
        if end_reason is not None:
            terminated = end_reason in ("answer", "goal")
            transition = Transition(history.task, len(earlier), parsed, outcomes, terminated, not terminated, earlier)
        return transition, messages, text, end_reason

    def _turn_messages(self, pending: PendingStep, outcomes: Sequence[ToolOutcome]) -> list[Message]:
        """Write what a step adds to the history: the model's turn, its outcomes in call order, its mistakes."""
        parser, parsed = self.parser, pending.parsed
        turn = parser.to_message(pending.action, replace(parsed, calls=()) if parsed.is_message else parsed)
        messages = [turn]
        for position, (call, outcome) in enumerate(zip(parsed.calls, outcomes, strict=True)):
            if parsed.is_message:
                messages.append(self.formatter.reply(call, outcome))
                continue
            call_id = (call.id or f"call_{position}") if turn.tool_calls else None
            message = self.formatter.outcome(call, outcome, call_id)
            content = parser.show_outcome(message.content)
            messages.append(message if content is message.content else replace(message, content=content))
        if parsed.errors:
            messages.append(self.formatter.mistakes(parsed.errors, lambda: self._reminder(pending.action, parsed)))
        return messages

    def _reminder(self, action: str, parsed: ParsedTurn) -> str:
        """Show the format again, unless a turn had a call and the answer, both well-formed.

        It followed both forms, and a reminder of both is what small models repeat as their next turn. So before the
        first call of an episode the reminder shows the call alone, unless the turn tries to answer.
        """
        if parsed.calls and all(error.code == "call_and_answer" for error in parsed.errors):
            return ""
        earlier = self._history.transitions if self._history is not None else ()
        has_called = bool(parsed.calls) or any(step.parsed.calls for step in earlier)
        opening = self.parser.format_answer("\0").partition("\0")[0].strip()
        return self.parser.reminder(self.tool_schemas, answer=has_called or opening in action)

    def _end_reason(self, transition: Transition, overflow: bool) -> str | None:
        """Name what ends the episode in this step, None if nothing does: the task's rules come before budgets."""
        if self.is_terminated(transition):
            return "answer" if transition.parsed.answer is not None else "goal"
        if overflow:
            return "max_history"
        return "max_turns" if transition.turn + 1 >= self.max_turns else None

    def _observe(self, *, new: int, step_reward: StepReward, end_reason: str | None) -> tuple[str, dict[str, Any]]:
        """Build observation and info of the current state; print its `new` last messages in "human" mode."""
        history = self._history
        assert history is not None
        last = history.transitions[-1] if history.transitions else None
        parsed = last.parsed if last is not None else _NO_TURN
        new_messages = history.messages[len(history.messages) - new :]
        if self.render_mode == "human":
            sys.stdout.write(render_ansi(new_messages))
            sys.stdout.flush()
        return history.text, {
            "messages": history.messages,
            "new_messages": new_messages,
            "task_id": history.task.id,
            "dataset": self.describe_dataset(),
            "turn": len(history.transitions),
            "answer": parsed.answer,
            "reward_terms": step_reward.terms,
            "outcome_reward": step_reward.outcome,
            "tool_calls": parsed.calls,
            "tool_outcomes": last.outcomes if last is not None else (),
            "parse_errors": parsed.errors,
            "end_reason": end_reason,
            "infrastructure_error": history.infrastructure_error,
        }

    # --- ending an episode from outside, and continuing one ----------------------------------------------------------

    def truncate(self) -> float:
        """End the running episode because a budget outside the environment ran out (a trainer's token limit).

        Returns:
            The reward of that end: what an empty turn that is truncated earns. It raises what `step` raises.

        Raises:
            InfrastructureError: the backend of a reward term failed; the episode has ended, and should be dropped.
        """
        step_reward = self.truncate_with_terms()
        if step_reward.failure is not None:
            raise InfrastructureError(step_reward.failure)
        return step_reward.reward

    def truncate_with_terms(self) -> StepReward:
        """Do what `truncate` does; return the reward with terms, outcome part and failure, as `info` has them."""
        history = self._history
        if history is None or history.ended:
            raise EpisodeError("There is no running episode to truncate.")
        earlier = history.transitions
        transition = Transition(history.task, len(earlier), _NO_TURN, (), truncated=True, earlier=earlier)
        self._pending = None
        self._history = history._replace(transitions=(*earlier, transition), ended=True)
        step_reward = self.rewards.evaluate(transition)  # before the tools end: it may look at what they hold
        self.toolbox.finish()
        if step_reward.failure is not None:
            self._history = self._history._replace(infrastructure_error=f"reward: {step_reward.failure}")
        return step_reward

    def follow_up(self, new_turns: Sequence[Message]) -> tuple[str, dict[str, Any]]:
        """Continue an episode, ended or not, with turns that no step produced, such as a follow-up question.

        Task, history and tools stay as they are; turns are counted from 0 again. Call `keep_resources` before the
        episode ends if its tools must not lose what they opened.

        Args:
            new_turns: user turns, and earlier answers (role "assistant"), all as plain text. It is sanitized like any
                foreign text; an answer is written in the format of the environment's parser.

        Returns:
            What `reset` returns.

        Raises:
            EpisodeError: no episode was started.
            ConfigurationError: the history would exceed its budget; nothing was added.
        """
        history = self._history
        if history is None:
            raise EpisodeError("There is no episode to continue; call reset() first.")
        if strange := [message.role for message in new_turns if message.role not in ("user", "assistant")]:
            raise ConfigurationError(f"Only users and assistants take turns in a conversation, got {strange[0]!r}.")
        added = self._conversation_messages(new_turns)
        text = history.text + render_text(added)
        if len(text) > self.max_history_chars:
            raise ConfigurationError(
                f"The conversation would have {len(text)} characters, more than max_history_chars="
                f"{self.max_history_chars}: start a new one."
            )
        self._pending = None
        messages = (*history.messages, *added)
        self._history = History(history.task, messages, text, prompt_length=history.prompt_length)
        return self._observe(new=len(added), step_reward=StepReward(0.0, {}, 0.0), end_reason=None)

    def _conversation_messages(self, turns: Sequence[Message]) -> list[Message]:
        """Write turns of a conversation that no step produced: sanitized, answers and calls in the parser's format."""
        messages = []
        for turn in turns:
            content = self.formatter.sanitize(turn.content)
            if turn.role == "user":
                messages.append(self.formatter.prompt(turn.content))
            elif turn.role == "tool":
                messages.append(replace(turn, content=self.parser.show_outcome(content)))
            elif turn.tool_calls and self.parser.tool_style == "native":
                messages.append(replace(turn, content=content))
            else:
                calls = turn.tool_calls
                action = self.parser.format_calls(calls) if calls else self.parser.format_answer(content)
                messages.append(self.parser.to_message(action, self.parser.parse(action)))
        return messages

    def keep_resources(self) -> None:
        """Keep what the tools of the running episode opened beyond its end, until `release_resources` or a reset."""
        self.toolbox.keep_resources = True

    def release_resources(self) -> None:
        """Close what `keep_resources` kept; may be called twice."""
        self.toolbox.end()

    # --- rendering, snapshots, closing -------------------------------------------------------------------------------

    def render(self) -> str | None:
        """Return the history in terminal colours ("ansi"); in "human" mode steps print themselves."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() shows nothing without a render_mode; make the environment with "ansi".')
        if self.render_mode == "ansi":
            return render_ansi(self._history.messages) if self._history is not None else ""
        return None

    def get_state(self) -> EpisodeState:
        """Take a snapshot of the running episode, of its tools (`Tool.get_state`) and of the generator."""
        if self._history is None:
            raise EpisodeError("There is nothing to snapshot before the first episode; call reset() first.")
        self.toolbox.warn_about_lost_state(self.transitions, shared=self.tools)
        return EpisodeState(self._history, self.np_random.bit_generator.state, self.toolbox.get_states())

    def set_state(self, state: EpisodeState) -> None:
        """Continue from a snapshot, which stays valid and may be set again, here or in another environment."""
        if not isinstance(state, EpisodeState):
            raise EpisodeError(f"set_state() takes a snapshot that get_state() made, got {type(state).__name__}.")
        self._history = None  # the rest may raise, and then no episode is running
        self._begin_episode(state.history.task)
        self.toolbox.set_states(state.tools)
        self.np_random.bit_generator.state = state.rng_state
        self._history = state.history

    def close(self) -> None:
        """Close what the episode opened, and the tools; may be called twice."""
        self.toolbox.end()
        for tool in dict.fromkeys((*self.tools, *self.toolbox.tools)):
            tool.close()

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else "not registered"
        return f"<{type(self).__name__} {name}, {len(getattr(self, 'tasks', ()))} tasks>"


def drop_calls_over_limit(parsed: ParsedTurn, *, over_budget: bool) -> ParsedTurn:
    """Drop the calls of a turn that has too many of them, or that exceeds the history budget.

    Args:
        parsed: what the parser understood of the turn.
        over_budget: whether the turn exceeds the history budget: the outcomes of its calls could not be shown.
    """
    if len(parsed.calls) > MAX_CALLS_PER_TURN:
        message = f"{len(parsed.calls)} calls in one turn; the limit is {MAX_CALLS_PER_TURN}. No call was executed."
        return replace(parsed, calls=(), errors=(*parsed.errors, ParseError("too_many_calls", message)))
    return replace(parsed, calls=()) if over_budget and parsed.calls else parsed


def _check_tools(tools: Any) -> None:
    """Raise a `ConfigurationError` unless `tools` is a sequence of tools; functions are the most frequent mistake."""
    for item in tools if isinstance(tools, list | tuple) else ():
        if callable(item) and not isinstance(item, Tool):
            raise ConfigurationError(
                f"tools must contain Tool objects, got {item!r:.80}: decorate a function with @agent_r1_gym.tool, or "
                "wrap it in agent_r1_gym.as_tool(...); of a subclass of Tool, pass an instance."
            )
    check_items("tools", tools, Tool)


def _check_budgets(budgets: Any, tools: Sequence[str]) -> dict[str, int]:
    """Check budgets against the names of the known tools; without any, tools come with the task."""
    if budgets is None:
        return {}
    if not isinstance(budgets, Mapping):
        raise ConfigurationError(f"budgets must be numbers of calls by tool, got {budgets!r:.80}.")
    for name, number in budgets.items():
        if tools and name not in tools:
            raise ConfigurationError(
                f"budgets names no tool of this environment: {name!r}. {suggest(str(name), tools)}"
            )
        check_integer(f"budget of {name!r}", number, 1)
    return dict(budgets)


def _requested_task(tasks: Sequence[Task], options: Any) -> Task | None:
    """Look up the task that the options of a reset name, None if they name none."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"reset options must be a dictionary, got {type(options).__name__}.")
    for key in options:
        check_choice("reset option", key, ("task", "task_index"))
    if len(options) > 1:
        raise ConfigurationError("reset takes either 'task' or 'task_index', got both.")
    if "task" in options:
        if not isinstance(options["task"], Task):
            raise ConfigurationError(f"options['task'] must be a Task, got {type(options['task']).__name__}.")
        return options["task"]
    if "task_index" not in options:
        return None
    value = options["task_index"]
    try:
        # NumPy's integers count, True does not: in NumPy 2.2 and older, its own True is an index as well.
        index = -1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        index = -1
    if not 0 <= index < len(tasks):
        raise ConfigurationError(f"options['task_index'] must be in 0..{len(tasks) - 1}, got {value!r}.")
    return tasks[index]
