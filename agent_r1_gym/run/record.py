"""The record of a finished episode: text, rewards, scores, and tokens where there are any; to a dictionary and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any, Self

from agent_r1_gym.core.rewards import StepReward
from agent_r1_gym.core.scoring import SCORERS
from agent_r1_gym.core.types import Message, ToolCall, to_chat
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.json_data import parse_json

_FIELD_TYPES: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("env_id", "dataset", "policy", "task_id", "question", "end_reason"), str),
    (("answer", "infrastructure_error"), str | None),
    (("task_index", "sample"), int),
    (("support_recall", "seconds"), int | float | None),
    (("labels", "scores"), Mapping),
)
"""Types of a trajectory's fields that readers rely on, where `from_dict` only copies them."""
WRITTEN_BY_0_2 = (
    "was written by agent-r1-gym 0.2, whose keys have other names: run the same command again with this version into a "
    "new folder, or read it with 0.2."
)
"""How to proceed with a file of 0.2; follows the name of the file."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn of a trajectory.

    Attributes:
        action: text of the turn.
        reward: reward of the step.
        reward_terms: raw terms by name.
        outcome_reward: the part of `reward` from outcome terms; the rest are process rewards.
        call_errors: for each call of the turn, in order, the error kind of its outcome; None if it succeeded.
        parse_errors: codes of the parse errors of the turn.
        prompt_tokens: number of prompt tokens; None: not counted, or the turn of a scripted policy.
        completion_tokens: number of completion tokens; None likewise.
    """

    action: str
    reward: float
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    outcome_reward: float = 0.0
    call_errors: tuple[str | None, ...] = ()
    parse_errors: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None

    def with_end_reward(self, end: StepReward) -> Turn:
        """Add the reward of an end from outside to the last turn of an episode."""
        sums = {name: self.reward_terms.get(name, 0.0) + value for name, value in end.terms.items()}
        return replace(
            self,
            reward=self.reward + end.reward,
            reward_terms={**self.reward_terms, **sums},
            outcome_reward=self.outcome_reward + end.outcome,
        )


@dataclass(frozen=True, slots=True)
class Context:
    """The messages of one context: from one rewrite of the history to the next.

    Attributes:
        messages: the messages up to the last turn sampled in it, or to the end of the episode.
        turns: number of model turns sampled in it: the last ones. Earlier turns are part of its prompt.
        rewrite_reason: why the next context does not continue it, where the environment says so.
    """

    messages: tuple[Message, ...]
    turns: int
    rewrite_reason: str = ""

    @property
    def num_prompt_messages(self) -> int:
        """Number of messages before the first turn that was sampled in it."""
        positions = _assistant_positions(self.messages)
        return positions[len(positions) - self.turns] if self.turns else len(self.messages)


@dataclass(frozen=True, slots=True)
class Tokens:
    """An episode as tokens. Every token got its id, mask and log-prob when it was sampled or added.

    If the context was rewritten between turns, the episode is a concatenation of contexts: later turns do not see the
    tokens of earlier ones.

    Attributes:
        prompt_ids: tokens before the first model turn.
        completion_ids: all later tokens: sampled ones, and those of the environment and the chat template.
        loss_mask: 1 for tokens that the model sampled, 0 for all others; as long as `completion_ids`.
        logprobs: log-probability of each sampled token under the sampling distribution's policy, NaN where the backend
            reports none; None for tokens that were not sampled.
        spans: for each model turn, in order, the index in `completion_ids` of its first sampled token, and the index
            after its last one.
        context_starts: indices in `completion_ids` at which another context begins: its tokens up to the next turn are
            the whole rewritten context. Empty if the context only grew.

    Raises:
        ValueError: lengths, masks, spans or contexts are inconsistent.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    spans: tuple[tuple[int, int], ...]
    context_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_alignment()
        self._check_contexts()

    def _check_alignment(self) -> None:
        length = len(self.completion_ids)
        if len(self.loss_mask) != length or len(self.logprobs) != length:
            raise ValueError(
                f"completion_ids, loss_mask and logprobs must be equally long, got {length}, {len(self.loss_mask)} and "
                f"{len(self.logprobs)}."
            )
        sampled = [False] * length
        end_before = 0
        for start, end in self.spans:
            if not end_before <= start < end <= length:
                raise ValueError(f"Turn spans must be non-empty, in order and inside 0..{length}, got {self.spans}.")
            sampled[start:end] = [True] * (end - start)
            end_before = end
        for position, (mask, logprob) in enumerate(zip(self.loss_mask, self.logprobs, strict=True)):
            if not bool(mask) == sampled[position] == (logprob is not None):
                raise ValueError(
                    f"Token {position}: loss_mask {mask}, log-prob {logprob} and the turn spans {self.spans} disagree "
                    "on whether the model sampled it."
                )

    def _check_contexts(self) -> None:
        """A context begins after a turn and holds at least one token before the next turn."""
        gaps = [(end, start) for (_, end), (start, _) in pairwise([(0, 0), *self.spans])][1:]
        gap_of = [next((gap for gap in gaps if gap[0] <= start < gap[1]), None) for start in self.context_starts]
        one_each = None not in gap_of and len(set(gap_of)) == len(gap_of)
        if not one_each or list(self.context_starts) != sorted(self.context_starts):
            raise ValueError(
                "context_starts must be sorted, each between two turns with at least one token before the second, got "
                f"{self.context_starts} for the turns {self.spans}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished episode.

    Attributes:
        env_id: registered id, "" if the environment has none.
        dataset: description of the data set.
        policy: name of the policy.
        task_id: id of the task.
        task_index: position of the task in its data set; of an environment without tasks, its number in the run.
        sample: 0-based number of the episode among those of its task.
        seed: seed of the reset.
        question: prompt of the task.
        labels: labels for breakdowns ("type", "hops").
        gold_answers: accepted answers.
        answer: the final answer, None if there is none.
        messages: the whole history; if it was rewritten, its last context.
        earlier_contexts: the contexts before each rewrite, each up to its last turn.
        turns: the model's turns.
        terminated: the task ended by its own rules.
        truncated: a budget ran out.
        end_reason: see `ToolEnv`; "goal" or "time_limit" if the environment gives no reason; or
            "max_tokens" (the token budget of the episode is used up), "max_context" (a model behind an endpoint refuses
            the history, which is longer than its context), "max_time" (the rollouts' time was over),
            "no_answer" (a single-turn method gave none), "interrupted".
        infrastructure_error: the backend failure, if any; such an episode is neither scored nor trained on.
        support_recall: fraction of the task's gold passages that the searches returned; None if it has none.
        scorer: key of `scoring.SCORERS`, by which the answer was scored; "" for a custom scorer or none.
        scores: of the answer, by the environment's own scorer: `em`, `f1`, and `sub_em`, the lenient substring match;
            empty if the task has no gold answers. If actions solve the task (`ToolEnv.success`), only `em`: how well.
        seconds: wall-clock time from reset to end, including waits; None: not measured.
        tokens: tokens for training; None if no model in this process sampled them.
    """

    env_id: str = ""
    dataset: str = ""
    policy: str = ""
    task_id: str = ""
    task_index: int = 0
    sample: int = 0
    seed: int | None = None
    question: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    gold_answers: tuple[str, ...] = ()
    answer: str | None = None
    messages: tuple[Message, ...] = ()
    earlier_contexts: tuple[Context, ...] = ()
    turns: tuple[Turn, ...] = ()
    terminated: bool = False
    truncated: bool = False
    end_reason: str = "interrupted"
    infrastructure_error: str | None = None
    support_recall: float | None = None
    scorer: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = field(default=None, compare=False)
    tokens: Tokens | None = None

    @property
    def contexts(self) -> tuple[Context, ...]:
        """Every context with a model turn; a single one if the history only grew."""
        if not self.earlier_contexts:
            return (Context(self.messages, len(self.turns)),)  # turns of shots and of the prompt are not its own
        last = Context(self.messages, len(self.turns) - sum(context.turns for context in self.earlier_contexts))
        return (*self.earlier_contexts, *([last] if last.turns else []))

    @property
    def transcript(self) -> tuple[Message, ...]:
        """The messages of the whole episode: every turn and its reply, also if the history was rewritten."""
        if not self.earlier_contexts:
            return self.messages
        messages: tuple[Message, ...] = ()
        earlier_turns = sum(context.turns for context in self.earlier_contexts)
        for context in (*self.earlier_contexts, Context(self.messages, len(self.turns) - earlier_turns)):
            known = [
                position
                for position in _assistant_positions(context.messages)
                if position < context.num_prompt_messages
            ]
            messages += context.messages[known[-1] + 1 if known and messages else 0 :]
        return messages

    @property
    def episode_return(self) -> float:
        """Sum of the rewards, undiscounted."""
        return sum(turn.reward for turn in self.turns)

    @property
    def outcome_reward(self) -> float:
        """Sum of the outcome rewards."""
        return sum(turn.outcome_reward for turn in self.turns)

    @property
    def answer_key(self) -> str | None:
        """The answer in the spelling that it shares with those that the scorer holds equal; None without an answer."""
        return None if self.answer is None else self.key(self.answer)

    def key(self, answer: str) -> str:
        """Return the text that answers share which the scorer holds equal; by "plain" if it is a custom one."""
        return SCORERS.get(self.scorer, SCORERS["plain"]).key(answer)

    @property
    def solved(self) -> bool | None:
        """Whether the environment's scorer accepts the answer; None if it has no gold answer."""
        return self.scores["em"] == 1 if "em" in self.scores else None

    @property
    def reward_terms(self) -> dict[str, float]:
        """Sum over the turns of each raw reward term."""
        sums: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.reward_terms.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    @property
    def failures(self) -> dict[str, int]:
        """Number of failures by kind: error kinds of calls, codes of parse errors."""
        errors = [error for turn in self.turns for error in turn.call_errors if error is not None]
        return dict(sorted(Counter([*errors, *(code for turn in self.turns for code in turn.parse_errors)]).items()))

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics of the episode that an evaluation averages; None if one does not apply."""
        return {
            **{name: self.scores.get(name) for name in ("em", "f1", "sub_em")},
            "support_recall": self.support_recall,
            "return": self.episode_return,
            **self.counts(),
            "prompt_tokens": _total(turn.prompt_tokens for turn in self.turns),
            "completion_tokens": _total(turn.completion_tokens for turn in self.turns),
        }

    def counts(self) -> dict[str, float]:
        """Count the turns and calls, and those that failed."""
        errors = [error for turn in self.turns for error in turn.call_errors]
        return {
            "turns": len(self.turns),
            "calls": len(errors),
            "failed_calls": sum(error is not None for error in errors),
            "malformed_turns": sum(bool(turn.parse_errors) for turn in self.turns),
        }

    def to_dict(self) -> dict[str, Any]:
        """Convert the trajectory to JSON-serialisable data."""
        row = {name: getattr(self, name) for name in self.__slots__}  # asdict would deep-copy every text
        row["turns"] = [{name: getattr(turn, name) for name in turn.__slots__} for turn in self.turns]
        row["messages"] = to_chat(self.messages, text_arguments=True)
        del row["earlier_contexts"]
        if self.earlier_contexts:  # omitted where empty, as in most episodes
            row["earlier_contexts"] = [
                {
                    "messages": to_chat(context.messages, text_arguments=True),
                    "turns": context.turns,
                    **({"rewrite_reason": context.rewrite_reason} if context.rewrite_reason else {}),
                }
                for context in self.earlier_contexts
            ]
        if self.tokens is not None:
            row["tokens"] = {name: getattr(self.tokens, name) for name in self.tokens.__slots__}
        return row

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, location: str = "a trajectory") -> Self:
        """Rebuild a trajectory from the data of `to_dict`, also after a round trip through JSON.

        Args:
            data: the fields; missing ones get their defaults.
            location: origin of the data, for error messages.

        Raises:
            DatasetError: a field is unknown or of the wrong type, or the data are of 0.2.
        """
        unknown = data.keys() - {entry.name for entry in fields(cls)}
        try:
            if any("outcome_errors" in turn for turn in data.get("turns", ())):
                raise DatasetError(f"{location} {WRITTEN_BY_0_2}")
            if unknown:
                raise ValueError(f"unknown fields {sorted(unknown)}")
            row = dict(data)
            row["messages"] = tuple(_message(message) for message in row.get("messages", ()))
            row["earlier_contexts"] = tuple(map(_context, row.get("earlier_contexts", ())))
            row["turns"] = tuple(_turn(turn) for turn in row.get("turns", ()))
            row["gold_answers"] = tuple(row.get("gold_answers", ()))
            tokens = row.get("tokens")
            row["tokens"] = None if tokens is None else Tokens(**{name: _tuple(tokens[name]) for name in tokens})
            record = cls(**row)
            if sum(context.turns for context in record.earlier_contexts) > len(record.turns):
                raise ValueError(f"its earlier contexts hold more than its {len(record.turns)} turns")
            for names, kind in _FIELD_TYPES:
                for name in names:
                    if not isinstance(getattr(record, name), kind):
                        raise ValueError(f"{name} is {row[name]!r:.80}")
            if not all(isinstance(score, int | float) for score in record.scores.values()):
                raise ValueError(f"scores must be numbers, got {dict(record.scores)}")
            return record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DatasetError(f"{location}: expected a trajectory; {type(error).__name__}: {error}.") from error


def _total(counts: Iterable[int | None]) -> int | None:
    numbers = [count for count in counts if count is not None]
    return sum(numbers) if numbers else None


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def _turn(data: Mapping[str, Any]) -> Turn:
    turn = Turn(**{name: _tuple(value) for name, value in data.items()})
    if not isinstance(turn.action, str) or not isinstance(turn.reward, int | float):
        raise TypeError("the action of a turn must be text and its reward a number")
    if not all(isinstance(value, int | float) for value in turn.reward_terms.values()):
        raise TypeError(f"reward terms must be numbers, got {dict(turn.reward_terms)}")
    return turn


def _context(data: Mapping[str, Any]) -> Context:
    context = Context(tuple(map(_message, data["messages"])), data["turns"], str(data.get("rewrite_reason", "")))
    if not 1 <= context.turns <= len(_assistant_positions(context.messages)):
        raise ValueError(f"a context of {len(context.messages)} messages cannot hold {context.turns} turns")
    return context


def _assistant_positions(messages: Sequence[Message]) -> list[int]:
    """Return the positions of the model's turns."""
    return [position for position, message in enumerate(messages) if message.role == "assistant"]


def _message(data: Mapping[str, Any]) -> Message:
    calls = tuple(
        ToolCall(call["function"]["name"], parse_json(call["function"]["arguments"]), call["id"])
        for call in data.get("tool_calls", ())
    )
    return Message(data["role"], data["content"], data.get("name"), data.get("tool_call_id"), calls)
