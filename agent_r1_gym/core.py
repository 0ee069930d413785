"""ToolEnv: the extended MDP of Agent-R1 as a `gymnasium.Env` (arXiv 2511.14460).

It orchestrates: parses the model's text, has the tools executed, decides the state transition, computes outcome and
process rewards, packages the new state. It knows no token ids and no chat template.
"""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from agent_r1_gym.errors import ActionTypeError, ConfigurationError, EpisodeError, suggest
from agent_r1_gym.parsing import Parser, make_parser
from agent_r1_gym.rewards import RewardSet, RewardTerm, find_scorer, make_rewards
from agent_r1_gym.scoring import AnswerScorer
from agent_r1_gym.spaces import UnicodeText
from agent_r1_gym.support.checks import check_choice, check_integer, check_items, check_known
from agent_r1_gym.text import Wording, encodable, render_ansi, render_message, system_turn
from agent_r1_gym.tool import PendingCall, Tool, execute_calls
from agent_r1_gym.types import EpisodeState, Message, ParsedTurn, ParseError, PendingStep, Task, ToolOutcome, Transition

StepReturn = tuple[str, float, bool, bool, dict[str, Any]]
_CUT_NOTE = "\n[the history budget is spent]"
_MAX_CALLS_PER_TURN = 16


class ToolEnv(gymnasium.Env[str, str]):
    """A multi-turn, tool-using task.

    Subclasses give tasks and tools, and override hooks where their rules differ: `sample_task`, `make_tools`,
    `task_prompt`, `is_terminated`. They do not override `reset` and `step`, which hold the contract.

    Observation: the whole history as text. Action: one model turn, free text. `info` (same keys after `reset` and
    `step`): `messages` (the history as `types.Message`s), `new_messages` (what this step added), `task_id`, `dataset`,
    `turn` (model turns so far), `answer`, `reward_terms` (raw values by name; `reward` is their sum under
    `reward_weights`), `tool_calls` and `tool_outcomes` (one outcome per call), `parse_errors`, `end_reason` ("answer",
    "goal", "max_turns", "max_history" or None), `infrastructure_error` (None, or what backend failed in this episode).

    Args:
        tasks: what to solve; an episode samples one.
        tools: the tools of every episode.
        parser: format of the model's turns: "hermes", "search-r1", "openai" or a `Parser`.
        reward: preset name or `RewardTerm`s, see `rewards.make_rewards`.
        reward_weights: overrides of single weights by term name.
        scorer: key of `scoring.SCORERS`.
        max_turns: model turns per episode; the episode is truncated after the last.
        max_history_chars: length budget of the observation, in characters; the episode is truncated beyond it.
        system_prompt: text of the system turn; None: `instructions` plus the parser's format; "": no system turn.
        feedback: "full" explains mistakes in sentences, "short" gives only their codes (for tiny vocabularies).
        markup: further strings to break in foreign text, for instance a tokenizer's special tokens.
        render_mode: None, "ansi" (`render` returns coloured text) or "human" (each step is printed).

    Raises:
        ConfigurationError: an argument has a wrong value.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # noqa: RUF012
    instructions: ClassVar[str] = "Solve the task with the functions below."
    """First paragraph of the default system prompt."""

    set_options: ClassVar[tuple[str, ...]] = ()
    """Options of its base classes' constructors that a class sets itself, so that nobody else can."""

    def __new__(cls, *_args: Any, **options: Any) -> ToolEnv:
        """Refuses options that no constructor of the class knows, with near names."""
        check_known(cls, options)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        tasks: Sequence[Task] = (),
        tools: Sequence[Tool] = (),
        parser: str | Parser = "hermes",
        reward: str | RewardSet | tuple[RewardTerm, ...] = "em",
        reward_weights: Mapping[str, float] | None = None,
        scorer: str | AnswerScorer = "hotpotqa",
        max_turns: int = 5,
        max_history_chars: int = 65_536,
        system_prompt: str | None = None,
        feedback: str = "full",
        markup: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        check_integer("max_turns", max_turns, 1)
        check_integer("max_history_chars", max_history_chars, 256)
        check_choice("feedback", feedback, ("full", "short"))
        if render_mode is not None:
            check_choice("render_mode", render_mode, self.metadata["render_modes"])
        _check_tasks(tasks)
        check_items("tools", tools, Tool)
        check_items("markup", markup, str)
        if "" in markup:
            raise ConfigurationError("markup holds an empty string; every string in it must have a character to break.")
        if system_prompt is not None and not isinstance(system_prompt, str):
            raise ConfigurationError(f"system_prompt must be a text or None, got {system_prompt!r:.80}.")
        self.tasks = tasks
        self.tools = tuple(tools)
        self.parser = make_parser(parser)
        self.scorer = find_scorer(scorer)
        self.rewards = make_rewards(reward, reward_weights, scorer=self.scorer)
        self.max_turns = max_turns
        self.max_history_chars = max_history_chars
        self.render_mode = render_mode
        self.observation_space = UnicodeText(max_history_chars)
        self.action_space = UnicodeText(max_history_chars)
        self._system_prompt = system_prompt
        self.markup = tuple(markup)
        self._wording = Wording(short=feedback == "short", markup=self.markup)
        self._ended = True
        self._task: Task | None = None
        self._pending: PendingStep | None = None
        self._transitions: list[Transition] = []
        self._messages: list[Message] = []
        self._text = ""
        self._infrastructure_error: str | None = None
        self._index_tools(self.tools)

    # --- hooks for subclasses ----------------------------------------------------------------------------------------

    def sample_task(self) -> Task:
        """Returns the task of a new episode, drawn with `self.np_random`."""
        return self.tasks[int(self.np_random.random() * len(self.tasks))]  # integers() takes three times as long

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Returns the tools of an episode on `task`; override it where tools belong to a task."""
        return self.tools

    def task_prompt(self, task: Task) -> str:
        """Returns the text of the first user turn."""
        return task.prompt

    def is_terminated(self, transition: Transition) -> bool:
        """Returns whether the task ended by its own rules; the default: an answer was given."""
        return transition.parsed.answer is not None

    def describe_dataset(self) -> str:
        """Returns what `info["dataset"]` says is served."""
        return f"{len(self.tasks)} tasks given to the constructor"

    # --- the contract ------------------------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task of the current episode, gold answers included.

        Raises:
            EpisodeError: no episode was started.
        """
        if self._task is None:
            raise EpisodeError("There is no task before the first episode; call reset() first.")
        return self._task

    @property
    def reward_weights(self) -> dict[str, float]:
        """Weight by name of reward term."""
        return self.rewards.weights

    @property
    def reward_bounds(self) -> tuple[float, float]:
        """Smallest and largest reward of one step."""
        return self.rewards.range

    @property
    def episode_tools(self) -> tuple[Tool, ...]:
        """The tools of the current episode."""
        return tuple(self._by_name.values())

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools of the current episode as OpenAI-style function schemas."""
        return [tool.schema for tool in self._by_name.values()]

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The transitions of the current episode so far."""
        return tuple(self._transitions)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode.

        Args:
            seed: reseeds the environment's generator.
            options: `{"task_index": i}` picks a task of the data set, `{"task": Task(...)}` brings one; else one is
                sampled.

        Returns:
            The observation (system and user turn as text) and `info`.

        Raises:
            ConfigurationError: unknown option, index out of range, or a task longer than the history budget.
        """
        super().reset(seed=seed)
        task = self.sample_task() if options is None else self._choose_task(options)
        if not task.answers and any(term.needs_answers for term in self.rewards):
            raise ConfigurationError(
                f"Task {task.id!r} has no gold answer, but the reward needs one; use other RewardTerms."
            )
        self._ended = True  # what follows may raise
        self._start(task)
        if len(self._text) > self.max_history_chars:
            raise ConfigurationError(
                f"The prompt of task {task.id!r} has {len(self._text)} characters, more than max_history_chars="
                f"{self.max_history_chars}; raise it or shorten system_prompt."
            )
        self._ended = False
        info = self._info(0, ParsedTurn(), (), {}, None)
        if self.render_mode == "human":
            self._print(0)
        return self._text, info

    def step(self, action: str) -> StepReturn:
        """Takes one model turn: parses it, executes its calls together, rewards it, and returns the new state.

        Args:
            action: any text.

        Returns:
            observation, reward, terminated, truncated, info; never terminated and truncated at once.

        Raises:
            ActionTypeError: `action` is not a string.
            EpisodeError: no episode is running.
        """
        pending = self.begin_step(action)
        return self.finish_step(execute_calls(pending) if pending else [])

    def begin_step(self, action: str) -> tuple[PendingCall, ...]:
        """First half of `step`: parses the turn and returns its valid calls, in order, for somebody to execute.

        Changes nothing that `finish_step` does not commit: a begun step may be begun again.

        Raises:
            ActionTypeError, EpisodeError: see `step`.
        """
        if not isinstance(action, str):
            raise ActionTypeError(f"An action must be a string (one model turn), got {type(action).__name__}.")
        if self._ended:
            raise EpisodeError("No episode is running: call reset() before the first step and after an episode ended.")
        action = encodable(action)
        parsed = self.parser.parse(action)
        overlong = len(self._text) + len(action) > self.max_history_chars
        if len(parsed.calls) > _MAX_CALLS_PER_TURN:
            message = f"At most {_MAX_CALLS_PER_TURN} calls a turn, got {len(parsed.calls)}; nothing was executed."
            parsed = ParsedTurn(errors=(*parsed.errors, ParseError("too_many_calls", message)))
        elif overlong and parsed.calls:
            # What they bring back could not be shown any more.
            parsed = ParsedTurn(errors=parsed.errors)
        calls: list[PendingCall] = []
        refused: list[tuple[int, ToolOutcome]] = []
        for position, call in enumerate(parsed.calls):
            tool = self._by_name.get(call.name)
            if tool is None:
                content = f"There is no tool {call.name[:64]!r}. {suggest(call.name[:64], self._by_name)}"
                refused.append((position, ToolOutcome(content, ok=False, error="unknown_tool")))
            elif problem := tool.check(call.arguments):
                refused.append((position, ToolOutcome(problem, ok=False, error="bad_arguments")))
            else:
                calls.append(PendingCall(tool, call))
        self._pending = PendingStep(action, parsed, len(calls), refused, overlong)
        return tuple(calls)

    def finish_step(self, outcomes: Sequence[ToolOutcome]) -> StepReturn:
        """Second half of `step`: takes the outcomes of the pending calls and returns what `step` returns.

        Args:
            outcomes: one per call that `begin_step` returned, in order.

        Raises:
            EpisodeError: no step was begun, or the number of outcomes is not that of its calls.
        """
        pending = self._pending
        if pending is None:
            raise EpisodeError("finish_step() was called without begin_step().")
        if len(outcomes) != pending.executed:
            raise EpisodeError(
                f"finish_step() expected {pending.executed} outcomes, one per pending call, got {len(outcomes)}."
            )
        self._pending = None
        merged = tuple(outcomes)
        for position, refusal in pending.refused:
            merged = (*merged[:position], refusal, *merged[position:])
        first_new = len(self._messages)
        self._append(pending, merged)
        transition, end_reason = self._transition(pending, merged)
        reward, terms = self.rewards(transition)
        self._transitions.append(transition)
        self._ended = transition.terminated or transition.truncated
        info = self._info(first_new, pending.parsed, merged, terms, end_reason)
        if self.render_mode == "human":
            self._print(first_new)
        return self._text, float(reward), transition.terminated, transition.truncated, info

    def truncate(self) -> float:
        """Ends the running episode because a budget outside the environment ran out (a trainer's tokens, say).

        Returns:
            The reward of that end: what an empty turn that is truncated earns.

        Raises:
            EpisodeError: no episode is running.
        """
        return self.truncate_with_terms()[0]

    def truncate_with_terms(self) -> tuple[float, dict[str, float]]:
        """Does what `truncate` does; returns the reward and its terms by name, as `info["reward_terms"]` has them."""
        if self._ended:
            raise EpisodeError("There is no running episode to truncate.")
        transition = Transition(
            self.task, len(self._transitions), ParsedTurn(), (), False, True, tuple(self._transitions)
        )
        self._pending = None
        self._transitions.append(transition)
        self._ended = True
        return self.rewards(transition)

    def render(self) -> str | None:
        """Returns the history in terminal colours ("ansi"); in "human" mode steps print themselves."""
        if self.render_mode == "ansi":
            return render_ansi(self._messages) if self._task is not None else ""
        return None

    def get_state(self) -> EpisodeState:
        """Returns a snapshot of the running episode and of the generator, to branch or resume from."""
        if self._task is None:
            raise EpisodeError("There is nothing to snapshot before the first episode; call reset() first.")
        return EpisodeState(
            self._task,
            tuple(self._messages),
            self._text,
            tuple(self._transitions),
            self._ended,
            self._infrastructure_error,
            self.np_random.bit_generator.state,
            tuple(copy.deepcopy(tool.get_state()) for tool in self._by_name.values()),
        )

    def set_state(self, state: EpisodeState) -> None:
        """Continues from a snapshot, which stays valid and may be set again, here or in another environment."""
        if not isinstance(state, EpisodeState) or state.task is None:
            raise EpisodeError(f"set_state() takes a snapshot that get_state() made, got {type(state).__name__}.")
        self._ended = True  # what follows may raise
        self._start(state.task)
        if len(state.tools) != len(self._by_name):
            raise EpisodeError(
                f"The snapshot is of {len(state.tools)} tools, this environment has {len(self._by_name)}."
            )
        self._messages = list(state.messages)
        self._text = state.text
        self._transitions = list(state.transitions)
        self._ended = state.ended
        self._infrastructure_error = state.infrastructure_error
        self.np_random.bit_generator.state = state.generator
        for tool, tool_state in zip(self._by_name.values(), state.tools, strict=True):
            tool.set_state(copy.deepcopy(tool_state))

    def close(self) -> None:
        """Closes the tools; may be called twice."""
        for tool in dict.fromkeys((*self.tools, *self._indexed_tools)):
            tool.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _choose_task(self, options: Mapping[str, Any]) -> Task:
        if not isinstance(options, Mapping):
            raise ConfigurationError(f"reset options must be a dictionary, got {type(options).__name__}.")
        for key in options:
            check_choice("reset option", key, ("task", "task_index"))
        if len(options) > 1:
            raise ConfigurationError("reset takes either 'task' or 'task_index', got both.")
        if "task" in options:
            if not isinstance(options["task"], Task):
                raise ConfigurationError(f"options['task'] must be a Task, got {type(options['task']).__name__}.")
            task: Task = options["task"]
            return task
        if "task_index" not in options:
            return self.sample_task()
        asked = options["task_index"]
        try:
            index = -1 if isinstance(asked, bool) else operator.index(asked)
        except TypeError:
            index = -1
        if not 0 <= index < len(self.tasks):
            raise ConfigurationError(f"options['task_index'] must be in 0..{len(self.tasks) - 1}, got {asked!r}.")
        return self.tasks[index]

    def _start(self, task: Task) -> None:
        self._task = task
        self._pending = None
        self._transitions = []
        self._infrastructure_error = None
        tools = tuple(self.make_tools(task))
        if tools != self._indexed_tools:
            self._index_tools(tools)
        user = self._wording.prompt(self.task_prompt(task))
        self._messages = [*self._system, user]
        self._text = self._system_rendered + render_message(user)

    def _index_tools(self, tools: tuple[Tool, ...]) -> None:
        """Looks the episode's tools up and writes the system turn, once for all episodes with the same tools."""
        if len({tool.name for tool in tools}) < len(tools):
            raise ConfigurationError(f"Two tools have one name: {[tool.name for tool in tools]}.")
        self._indexed_tools = tools
        self._by_name = {tool.name: tool for tool in tools}
        text = self._system_prompt
        if text is None:
            text = f"{self.instructions}\n\n{self.parser.instructions(self.tool_schemas)}"
        self._system, self._system_rendered = system_turn(text)

    def _append(self, pending: PendingStep, outcomes: Sequence[ToolOutcome]) -> None:
        """Adds the model's turn, the outcomes in order of the calls, and the mistakes to the history."""
        turn = self.parser.to_message(pending.action, pending.parsed)
        new = [turn]
        for position, call in enumerate(pending.parsed.calls):
            outcome = outcomes[position]
            identifier = (call.id or f"call_{position}") if turn.tool_calls else None
            new.append(self._wording.outcome(call, outcome, identifier))
            if outcome.is_infrastructure_failure:
                self._infrastructure_error = f"{call.name}: {outcome.error}: {outcome.content}"
        if pending.parsed.errors:
            new.append(self._wording.mistakes(pending.parsed.errors))
        self._messages += new
        self._text = "".join([self._text, *map(render_message, new)])

    def _transition(self, pending: PendingStep, outcomes: tuple[ToolOutcome, ...]) -> tuple[Transition, str | None]:
        """Decides the end of the episode and returns the transition with the reason of the end, if it ended."""
        turn = len(self._transitions)
        overflow = pending.overlong or len(self._text) > self.max_history_chars
        if overflow:
            self._text = self._text[: self.max_history_chars - len(_CUT_NOTE)] + _CUT_NOTE
        earlier = tuple(self._transitions)
        transition = Transition(self.task, turn, pending.parsed, outcomes, False, False, earlier)
        if self.is_terminated(transition):
            reason = "answer" if pending.parsed.answer is not None else "goal"
            return Transition(self.task, turn, pending.parsed, outcomes, True, False, earlier), reason
        if turn + 1 >= self.max_turns or overflow:
            reason = "max_history" if overflow else "max_turns"
            return Transition(self.task, turn, pending.parsed, outcomes, False, True, earlier), reason
        return transition, None

    def _info(
        self,
        first_new: int,
        parsed: ParsedTurn,
        outcomes: tuple[ToolOutcome, ...],
        terms: dict[str, float],
        end_reason: str | None,
    ) -> dict[str, Any]:
        messages = tuple(self._messages)
        task = self.task
        return {
            "messages": messages,
            "new_messages": messages[first_new:],
            "task_id": task.id,
            "dataset": self.describe_dataset(),
            "turn": len(self._transitions),
            "answer": parsed.answer,
            "reward_terms": terms,
            "tool_calls": parsed.calls,
            "tool_outcomes": outcomes,
            "parse_errors": parsed.errors,
            "end_reason": end_reason,
            "infrastructure_error": self._infrastructure_error,
        }

    def _print(self, first_new: int) -> None:
        sys.stdout.write(render_ansi(self._messages[first_new:]))
        sys.stdout.flush()


def _check_tasks(tasks: Any) -> None:
    if isinstance(tasks, str | Mapping) or not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
        raise ConfigurationError(f"tasks must be a sequence of Task, got {type(tasks).__name__}.")
    if len(tasks) == 0:
        raise ConfigurationError("tasks is empty; an environment needs at least one task to sample.")
    if not isinstance(tasks[0], Task):
        raise ConfigurationError(f"tasks must be a sequence of Task, got one of {type(tasks[0]).__name__}.")
