"""Who decides a turn: scripted policies, and the ways to prompt a model (with tools, naive RAG, direct answer).

A `Policy` acts without a model. A `PromptMethod` defines what a model is shown before a turn and which action its text
becomes; it knows neither where the model runs nor how it is decoded, so an endpoint and a local model play the same
episodes.

An environment without a system turn (`system_prompt=""`, the compact style of FictionQA) is for a model that was
trained without instructions: the baselines then add none either, and naive RAG shows its retrieval as a tool turn.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.core.parsing import Parser, visible_text
from agent_r1_gym.core.text import encodable, sanitize
from agent_r1_gym.core.types import Message, ScriptedTurn, Task, Thought, ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.trajectory_files import Conversation, is_conversation_file, read_conversations
from agent_r1_gym.support.json_data import read_json_lines
from agent_r1_gym.support.packages import import_object

POLICIES = ("oracle", "naive", "random", "script:NAME", "replay:RUN", "MODULE:NAME")
_MODELS = ("local:PATH_OR_HUB_ID", "openai:MODEL", "base:local:PATH", "naive-rag:local:PATH", "direct:local:PATH")
"""Policies with a model, for messages about unknown ones."""


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """What a policy sees before a turn.

    Attributes:
        observation: the history as text; in an environment other than `ToolEnv`, the last observation.
        messages: the history as messages.
        turn: 0-based index of the next turn.
        turns_left: turns until truncation, including the next one; a large number if there is no limit.
        outcomes: outcomes of the calls of the last turn.
        parser: parser of the environment; None if it is no `ToolEnv`.
        task: the task with its gold answers; for oracles only.
        tools: the tools of the episode as OpenAI-style function schemas.
        scripts: by name, functions that return the next turn of a script: `oracle`, and those of `ToolEnv.scripts`.
        actions: the actions that the environment offers (`info["actions"]`); empty if it lists none.
        sample: number of the episode among those of its task.
    """

    observation: str
    messages: tuple[Message, ...]
    turn: int
    turns_left: int
    outcomes: tuple[ToolOutcome, ...]
    parser: Parser | None
    task: Task
    tools: Sequence[Mapping[str, Any]] = ()
    scripts: Mapping[str, Callable[[], ScriptedTurn | None]] = field(default_factory=dict)
    actions: Sequence[str] = ()
    sample: int = 0

    @property
    def format(self) -> Parser:
        """The parser, required by policies that call tools.

        Raises:
            ConfigurationError: the environment has none.
        """
        if self.parser is None:
            raise ConfigurationError(
                "This policy calls tools and answers in a format, but the environment is not a ToolEnv; use a model, "
                "replay:RUN, or a policy of your own as MODULE:NAME."
            )
        return self.parser


class Policy(abc.ABC):
    """Base class: maps the states of several episodes to their next turns.

    Attributes:
        name: for tables and records.
    """

    name: str

    @abc.abstractmethod
    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return one action per input, in order."""


class OraclePolicy(Policy):
    """Plays the environment's `oracle`, turn by turn, and nothing else.

    The upper bound of an environment, and a check that its data, tools, budgets and scoring fit together.
    """

    name = "oracle"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return the oracle's next turn.

        Raises:
            ConfigurationError: the environment has no oracle for the task.
        """
        return [self._act(state) for state in inputs]

    @staticmethod
    def _act(state: PolicyInput) -> str:
        turn = state.scripts["oracle"]() if "oracle" in state.scripts else None
        if turn is None and state.format is not None:
            raise ConfigurationError(
                f"Task {state.task.id!r} has no gold answers, so there is no oracle for it. Override `oracle(task, "
                "history)` of its environment to return a ToolCall or the final answer."
            )
        return written(turn, state)


class ScriptPolicy(Policy):
    """Plays a script of the environment (`ToolEnv.scripts`).

    Args:
        script: its name.
    """

    def __init__(self, script: str) -> None:
        self.name = f"script:{script}"
        self._script = script

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return the script's next turn.

        Raises:
            ConfigurationError: the environment has no such script, or the script returned neither a call nor an answer.
        """
        return [self._act(state) for state in inputs]

    def _act(self, state: PolicyInput) -> str:
        if self._script not in state.scripts:
            known = suggest(self._script, state.scripts) if state.scripts else "It has none."
            raise ConfigurationError(f"This environment has no script {self._script!r}. {known}")
        return written(state.scripts[self._script](), state)


def written(turn: ScriptedTurn | None, state: PolicyInput) -> str:
    """Render the turn of a script in the format of the environment; for a game, text is passed through.

    Raises:
        ConfigurationError: it is neither a call nor text.
    """
    if not isinstance(turn, ToolCall | tuple | Thought | str):
        raise ConfigurationError(
            f"A script returns a ToolCall, a tuple of them, or the final answer as text; got {turn!r:.80}."
        )
    return turn if state.parser is None and isinstance(turn, str) else state.format.format_turn(turn)


class NaivePolicy(Policy):
    """Searches for the question verbatim, then answers with the title of the best passage.

    The lower bound of an environment: a task that it solves needs no agent.
    """

    name = "naive"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return the one search, then the answer."""
        return [self._act(state) for state in inputs]

    @staticmethod
    def _act(state: PolicyInput) -> str:
        if state.turn == 0 and state.turns_left > 1:
            return state.format.format_call(ToolCall("search", {"query": state.task.prompt}))
        hits: Any = state.outcomes[0].data if state.outcomes else None
        return state.format.format_answer(hits[0].passage.title if hits else "unknown")


class RandomPolicy(Policy):
    """Takes a random action of those that the environment lists: the lower bound of a game.

    The choice depends on task and turn only, so a run is reproducible.
    """

    name = "random"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return one of the listed actions.

        Raises:
            ConfigurationError: the environment lists none.
        """
        return [self._act(state) for state in inputs]

    @staticmethod
    def _act(state: PolicyInput) -> str:
        if not state.actions:
            raise ConfigurationError(
                "The policy `random` takes one of info['actions'], but this environment names none; use a model, "
                "replay:RUN, or a policy of your own as MODULE:NAME."
            )
        return random.Random(f"{state.task.id}/{state.turn}").choice(state.actions)


class ReplayPolicy(Policy):
    """Replays recorded actions: of a run, for each task and sample, or of a file of conversations, for each question.

    Args:
        path: the folder of a run, its file of episodes, or a file that `run.trajectory_files` reads.

    Raises:
        DatasetError: the file is missing or malformed.

    Attributes:
        conversations: those of the file; [] if it is a run.
        task_indices: the tasks that are replayed, as positions in their data set; None for a file of conversations,
            whose tasks the environment knows (`conversations.find_tasks`).
    """

    def __init__(self, path: Path) -> None:
        self.name = f"replay:{path.name}"
        self._path = path / "episodes.jsonl" if path.is_dir() else path
        if not self._path.is_file():
            raise ConfigurationError(
                f"There is no run at {path}; expected the folder of one, its episodes.jsonl, or a file of "
                "conversations."
            )
        self._records: dict[tuple[str, int], Trajectory] = {}
        self._by_question: dict[tuple[str, str], list[Conversation]] = {}
        self._playing: dict[tuple[str, str, int], tuple[str, ...]] = {}
        self.conversations: list[Conversation] = []
        self.task_indices: list[int] | None = None
        if is_conversation_file(self._path):
            self.conversations = read_conversations(self._path)
            for conversation in self.conversations:
                key = (conversation.task_id, encodable(conversation.question))
                self._by_question.setdefault(key, []).append(conversation)
        else:
            records = [Trajectory.from_dict(row, location=location) for location, row in read_json_lines(self._path)]
            self._records = {(record.task_id, record.sample): record for record in records}
            self.task_indices = [record.task_index for record in records]

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return the recorded action of each turn.

        Raises:
            ConfigurationError: the file does not hold the task or this sample, the question differs, or the episode is
                longer than the recorded one.
        """
        return [self._act(state) for state in inputs]

    def _act(self, state: PolicyInput) -> str:
        task = state.task
        turns = self._written(state) if self.task_indices is None else self._recorded(state)
        if state.turn >= len(turns):
            raise ConfigurationError(
                f"{self._path}: task {task.id!r} has {len(turns)} recorded turns, but the episode continues; "
                "replay with the options of the recording."
            )
        return turns[state.turn]

    def _recorded(self, state: PolicyInput) -> Sequence[str]:
        task, record = state.task, self._records.get((state.task.id, state.sample))
        if record is None:
            raise self._no_sample(state)
        if record.question != encodable(task.prompt):
            raise ConfigurationError(
                f"{self._path}: the question of task {task.id!r} was {record.question!r:.80} and is "
                f"{task.prompt!r:.80} now; replay the same data."
            )
        return [turn.action for turn in record.turns]

    def _written(self, state: PolicyInput) -> Sequence[str]:
        """The turns of a conversation in the format of the environment."""
        key = (state.task.id, state.task.prompt, state.sample)
        if state.turn == 0:  # later a context window may hide turns, and add to the question
            self._playing[key] = self._find(state).turn_texts(state.format, answers=bool(state.task.answers))
        return self._playing[key]

    def _find(self, state: PolicyInput) -> Conversation:
        """Find the conversation about the task, by the user message before the first turn."""
        question = next((encodable(each.content) for each in reversed(state.messages) if each.role == "user"), "")
        ids = (state.task.id, "")  # as `conversations.find_tasks` does
        conversations = next(
            (self._by_question[id_, question] for id_ in ids if (id_, question) in self._by_question), []
        )
        if state.sample >= len(conversations):
            raise self._no_sample(state)
        return conversations[state.sample]

    def _no_sample(self, state: PolicyInput) -> ConfigurationError:
        return ConfigurationError(
            f"{self._path} holds no sample {state.sample} of task {state.task.id!r}; replay the same data with at most "
            "as many samples."
        )


def make_policy(spec: str) -> Policy:
    """Make the policy that `spec` names (see `POLICIES`); MODULE:NAME is a custom `Policy` class or object.

    Raises:
        ConfigurationError: no policy has that name.
        DatasetError: the recorded run is malformed.
    """
    kind, _, name = spec.partition(":")
    if kind == "replay" and name:
        return ReplayPolicy(Path(name))
    if kind == "script" and name:
        return ScriptPolicy(name)
    scripted: dict[str, type[Policy]] = {"oracle": OraclePolicy, "naive": NaivePolicy, "random": RandomPolicy}
    if spec in scripted:
        return scripted[spec]()
    if ":" not in spec:
        raise ConfigurationError(f"Unknown policy {spec!r}. {suggest(spec, (*POLICIES, *_MODELS))}")
    try:
        named = import_object(spec)
    except ConfigurationError as error:
        raise ConfigurationError(f"Unknown policy: {error} {suggest(spec, (*POLICIES, *_MODELS))}") from error
    policy = named() if isinstance(named, type) else named
    if not isinstance(policy, Policy):
        raise ConfigurationError(f"{spec!r} is a {type(policy).__name__}, not an agent_r1_gym.run.policies.Policy.")
    return policy


Prompt = tuple[Message, ...]
_FORMAT = "Write only the answer, as briefly as possible: <answer>your answer</answer>"
_OPEN, _CLOSE = "<answer>", "</answer>"


class PromptMethod(abc.ABC):
    """Base class: how a model is prompted to solve a task.

    Attributes:
        name: name in settings and tables.
        single_turn: the model has one turn, which ends the episode.
    """

    name: ClassVar[str]
    single_turn: ClassVar[bool] = True

    @abc.abstractmethod
    def next_prompt(self, state: PolicyInput) -> Prompt | str:
        """Return the prompt for the model, or the action of a turn that needs no model."""

    def action(self, state: PolicyInput, text: str) -> str:
        """Convert the text of the model into an action: by default the answer in its tags, else the whole text."""
        return _as_answer(state, text)


class ToolUse(PromptMethod):
    """The model sees the whole history and calls tools; its turns are the actions."""

    name = "tools"
    single_turn = False

    def next_prompt(self, state: PolicyInput) -> Prompt:
        """Return the history."""
        return state.messages

    def action(self, state: PolicyInput, text: str) -> str:
        """Return `text`."""
        return text


class BaseToolCall(ToolUse):
    """`ToolUse` with an untrained model, under the paper's name (Base Tool Call)."""

    name = "base"


class DirectAnswer(PromptMethod):
    """The model sees only the question and answers from memory."""

    name = "direct"

    def next_prompt(self, state: PolicyInput) -> Prompt:
        """Return the question and the answer format."""
        if not _has_instructions(state):
            return (_question(state),)
        return (Message("system", f"Answer the question. {_FORMAT}"), _question(state))


class NaiveRAG(PromptMethod):
    """One retrieval with the question as the query; the model then answers from the passages, without tools.

    The query is the question without the question mark. A baseline of the paper (Agent-R1, arXiv 2511.14460,
    section 4). Needs an environment whose `search` takes a `query`.
    """

    name = "naive-rag"

    def next_prompt(self, state: PolicyInput) -> Prompt | str:
        """Return the one search, then the passages and the question."""
        if state.turn == 0 and state.turns_left > 1:
            return state.format.format_call(ToolCall("search", {"query": state.task.prompt.removesuffix("?").rstrip()}))
        if not _has_instructions(state):
            return state.messages
        question = _question(state)
        retrieved = state.messages[state.messages.index(question) :]
        passages = "\n".join(message.content for message in retrieved if message.role == "tool")
        instructions = f"Answer the question with the help of the passages. {_FORMAT}"
        user_turn = Message("user", f"Passages:\n{passages}\n\nQuestion: {question.content}")
        return (Message("system", instructions), user_turn)


PROMPT_METHODS: dict[str, type[PromptMethod]] = {
    method.name: method for method in (ToolUse, BaseToolCall, DirectAnswer, NaiveRAG)
}


def make_prompt_method(name: str) -> PromptMethod:
    """Make the prompt method of that name.

    Raises:
        ConfigurationError: no method has that name.
    """
    if name not in PROMPT_METHODS:
        raise ConfigurationError(f"Unknown method {name!r}. {suggest(name, PROMPT_METHODS)}")
    return PROMPT_METHODS[name]()


def _has_instructions(state: PolicyInput) -> bool:
    return state.messages[0].role == "system"


def _question(state: PolicyInput) -> Message:
    """Find the task's own user turn: shots come before it, and no feedback follows it."""
    return next(message for message in reversed(state.messages) if message.role == "user")


def _as_answer(state: PolicyInput, text: str) -> str:
    """Convert `text` into an answer turn: the text in the first pair of tags, else all visible text."""
    visible = visible_text(text)
    _, tag, rest = visible.partition(_OPEN)
    answer = rest.partition(_CLOSE)[0] if tag else visible
    return state.format.format_answer(sanitize(answer.strip()))
