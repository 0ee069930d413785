"""Reward terms: pure functions of the transition, and the presets that combine them.

A term never sees a token and never changes anything. Every term is bounded per step; outcome terms are non-zero only in
the step that ends the episode. No preset rewards every call: what calls earn is bounded over an episode. Calls whose
backend failed neither earn nor cost anything.

References:
    Agent-R1 (arXiv 2511.14460): outcome formula `agent_r1`, penalties -0.1 (call that does not parse) and -0.05
    (unknown tool, bad arguments).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from agent_r1_gym.core.judge import JUDGE_SUFFIX, load_judge
from agent_r1_gym.core.scoring import SCORERS, AnswerScorer
from agent_r1_gym.core.types import MAX_CALLS_PER_TURN, Passage, Task, ToolOutcome, Transition
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, suggest
from agent_r1_gym.support.checks import check_choice, check_number, check_parameters
from agent_r1_gym.support.packages import import_object

TermFunction = Callable[[Transition], float]
_NOT_OF_CALLS = frozenset({"no_action", "other_format", "empty_answer", "several_answers"})
"""Mistakes that a turn makes without a call."""
_TAGS_WITHOUT_CALLS = frozenset({"answer", "think"})


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One named summand of the reward.

    Attributes:
        name: key in `info["reward_terms"]`.
        function: transition to raw value; pure. A function of a module, not a lambda, lets the environment pickle. If
            it waits for a backend (`Judge`), it has a method `prepare(transitions)`, which a vector step calls with the
            transitions of all environments before the function itself; and it raises an `InfrastructureError` if the
            backend fails.
        weight: factor in the sum.
        low: smallest raw value in one step.
        high: largest raw value in one step.
        needs_answers: the function scores against gold answers, so that every task must have one.
        kind: "outcome" rewards the result of the episode, "process" the way to it. Learners may treat the two
            differently: `info["outcome_reward"]` is the outcome terms' share of the reward.
    """

    name: str
    function: TermFunction
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    needs_answers: bool = False
    kind: Literal["outcome", "process"] = "outcome"

    def __post_init__(self) -> None:
        check_choice(f"kind of reward term {self.name!r}", self.kind, ("outcome", "process"))
        check_parameters(f"Reward term {self.name!r}", self.function, "transition")

    @property
    def waits_for_backend(self) -> bool:
        """Whether it is computed by a backend, such as a judge."""
        return hasattr(self.function, "prepare")

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of the weighted value in one step."""
        ends = sorted((self.weight * self.low, self.weight * self.high))
        return ends[0], ends[1]


Reward = str | RewardTerm | TermFunction
"""A preset, MODULE:NAME or FILE.toml, a term, or a function of the transition."""


class StepReward(NamedTuple):
    """The reward of one step.

    Attributes:
        reward: weighted sum of the terms.
        terms: raw value by name; a term whose backend failed is missing.
        outcome: the part of `reward` that comes from outcome terms.
        failure: the failure of a term's backend, "NAME: message": the reward is incomplete, and the episode must be
            dropped; None if there is none.
    """

    reward: float
    terms: dict[str, float]
    outcome: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class RewardSet:
    """The reward of an environment: the weighted sum of its terms, which have different names."""

    terms: tuple[RewardTerm, ...]

    def evaluate(self, transition: Transition) -> StepReward:
        """Compute the reward of `transition`; the failure of a term's backend is reported, not raised.

        Raises:
            ConfigurationError: the value of a term is not a finite number.
        """
        reward, outcome, terms, failure = 0.0, 0.0, {}, None
        for term in self.terms:
            try:
                value: Any = term.function(transition)
            except InfrastructureError as error:
                failure = f"{term.name}: {error}"
                continue
            if type(value) is not float:
                value = _to_float(term.name, value)
            terms[term.name] = value
            reward += term.weight * value
            if term.kind == "outcome":
                outcome += term.weight * value
        if not math.isfinite(reward):
            name = next(
                (term.name for term in self.terms if not math.isfinite(term.weight * terms.get(term.name, 0.0))), ""
            )
            raise ConfigurationError(
                f"The reward is not finite: term {name!r} in {terms}. Check it for divisions by zero, log(0) and NaN."
            )
        return StepReward(float(reward), terms, float(outcome), failure)

    def check_tasks(self, tasks: Iterable[Task]) -> None:
        """Raise a `ConfigurationError` if a term needs gold answers and one of the tasks has none."""
        needs = next((term.name for term in self.terms if term.needs_answers), None)
        for task in tasks if needs is not None else ():
            if not task.answers:
                raise ConfigurationError(
                    f"Task {task.id!r} has no gold answer, but the reward {needs!r} needs one: add an answer, drop the "
                    "task, or choose a reward that needs none."
                )

    @property
    def waits_for_backend(self) -> bool:
        """Whether a term is computed by a backend, such as a judge."""
        return any(term.waits_for_backend for term in self.terms)

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of the reward of one step."""
        return sum(term.range[0] for term in self.terms), sum(term.range[1] for term in self.terms)

    @property
    def weights(self) -> dict[str, float]:
        """Weight by term name."""
        return {term.name: term.weight for term in self.terms}


def prepare_rewards(steps: Iterable[tuple[RewardSet, Transition]]) -> None:
    """Have each function with a backend see the transitions of all environments that share it, as one batch.

    Args:
        steps: rewards and transitions that will be evaluated next.
    """
    batches: dict[int, tuple[Any, list[Transition]]] = {}
    for rewards, transition in steps:
        for term in rewards.terms:
            if term.waits_for_backend:
                batches.setdefault(id(term.function), (term.function, []))[1].append(transition)
    for function, transitions in batches.values():
        function.prepare(transitions)


def _to_float(name: str, value: Any) -> float:
    try:
        return float(value + 0)  # NumPy's and torch's numbers pass, a string that looks like a number does not
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"Reward term {name!r} must return a number, got {value!r:.80}.") from error


# --- outcome ---------------------------------------------------------------------------------------------------------


def exact_match(transition: Transition, scorer: AnswerScorer = SCORERS["plain"]) -> float:
    """1 in the step that ends the episode if the answer equals a gold answer after normalisation, else 0."""
    answer = _final_answer(transition)
    return float(scorer.em(answer, transition.task.answers)) if answer is not None else 0.0


def f1(transition: Transition, scorer: AnswerScorer = SCORERS["plain"]) -> float:
    """Largest token F1 between answer and gold answers in the step that ends the episode, else 0; in [0, 1]."""
    answer = _final_answer(transition)
    return float(scorer.f1(answer, transition.task.answers)) if answer is not None else 0.0


def _final_answer(transition: Transition) -> str | None:
    # An environment may continue after an answer, which then is not final.
    return transition.parsed.answer if transition.terminated or transition.truncated else None


def agent_r1(transition: Transition, scorer: AnswerScorer = SCORERS["plain"]) -> float:
    """The paper's outcome reward, given once, in the step that ends the episode (also by truncation).

    r_format = (answer tag well-formed + all tool calls well-formed) / 2, both 0 or 1;
    R = EM if r_format = 1 else r_format - 1. Values: 1, 0, -0.5, -1.
    """
    if not (transition.terminated or transition.truncated):
        return 0.0
    answer = transition.parsed.answer
    calls_well_formed = all(not _malformed(step) for step in _steps(transition))
    r_format = ((answer is not None) + calls_well_formed) / 2
    if r_format < 1 or answer is None:
        return r_format - 1
    return float(scorer.em(answer, transition.task.answers))


# --- process ---------------------------------------------------------------------------------------------------------


def valid_call(transition: Transition) -> float:
    """1 in the first step of the episode with a call that succeeded, else 0."""
    if any(any(outcome.ok for outcome in step.outcomes) for step in transition.earlier):
        return 0.0
    return float(any(outcome.ok for outcome in transition.outcomes))


def malformed_call(transition: Transition) -> float:
    """1 if the turn has a parse error, else 0."""
    return float(bool(transition.parsed.errors))


def failed_call(transition: Transition) -> float:
    """1 if a call has an unknown tool or bad arguments, or fails in the tool, else 0. Backend failures do not count."""
    return float(any(not out.ok and not out.is_infrastructure_failure for out in transition.outcomes))


def new_support(transition: Transition) -> float:
    """Share of the task's gold passages that this step retrieved for the first time in the episode, in [0, 1].

    Summed over an episode it is at most 1. A passage counts by its title, as in the data sets' supporting facts, unless
    it is a known namesake of the gold one (MuSiQue splits articles); 0 for tasks without gold passages.
    """
    gold = frozenset(getattr(transition.task, "supporting_titles", ()))
    if not gold or not transition.outcomes:
        return 0.0
    namesakes = _namesakes(transition.task, gold)
    new = gold.intersection(_retrieved_titles(transition, namesakes))
    for step in transition.earlier if new else ():
        new = new.difference(_retrieved_titles(step, namesakes))
    return len(new) / len(gold)


def _namesakes(task: Task, gold: frozenset[str]) -> frozenset[str]:
    """Find the ids of the task's own paragraphs that carry a gold title but are not gold."""
    ids = task.metadata.get("supporting_passages")
    if not ids:
        return frozenset()
    return frozenset(p.id for p in getattr(task, "context", ()) if p.title in gold and p.id not in ids)


def tool_costs(costs: Mapping[str, float]) -> RewardTerm:
    """Make a process term that charges for each call, whatever its outcome, unless its backend failed.

    Args:
        costs: price per call, by tool.

    Raises:
        ConfigurationError: `costs` does not map names to numbers of at least 0.
    """
    if not isinstance(costs, Mapping) or not all(isinstance(name, str) for name in costs):
        raise ConfigurationError(f'costs must be prices by tool, such as {{"search": 0.02}}, got {costs!r:.200}.')
    for name, price in costs.items():
        check_number(f"The cost of a call of {name!r}", price, least=0)
    highest = max(costs.values(), default=0.0) * MAX_CALLS_PER_TURN
    function = functools.partial(_cost, dict(costs))
    return RewardTerm("tool_costs", function, weight=-1.0, high=float(highest), kind="process")


def _cost(costs: Mapping[str, float], transition: Transition) -> float:
    calls = zip(transition.parsed.calls, transition.outcomes, strict=True)
    return sum(costs.get(call.name, 0.0) for call, outcome in calls if not outcome.is_infrastructure_failure)


def repeated_query(transition: Transition) -> float:
    """1 if a call of this turn repeats a call of the episode or of the same turn that found something, else 0.

    Calls that failed or found nothing (`ToolOutcome.found_nothing`) may be repeated freely: asking again may be right.
    """
    if not transition.parsed.calls:
        return 0.0
    before = [call_key for step in transition.earlier for call_key in _call_keys(step)]
    for key, outcome in _call_keys(transition):
        # Looks only at outcomes of equal calls: records do not store `data`, and so most episodes can be rescored.
        answered = any(call_key == key and earlier.ok and not earlier.found_nothing for call_key, earlier in before)
        if answered and not outcome.is_infrastructure_failure:
            return 1.0
        before.append((key, outcome))
    return 0.0


def _call_keys(step: Transition) -> Iterator[tuple[str, ToolOutcome]]:
    """Yield each call of a step, ignoring case and spaces, with its outcome."""
    for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
        yield " ".join(call.key.lower().split()), outcome


def _retrieved_titles(step: Transition, namesakes: frozenset[str]) -> Iterator[str]:
    """Yield the titles of the passages in the structured outcomes of a step (`SearchTool` puts hits there)."""
    for outcome in step.outcomes:
        for hit in outcome.data if isinstance(outcome.data, tuple) else ():
            passage = getattr(hit, "passage", None)
            if isinstance(passage, Passage) and passage.id not in namesakes:
                yield passage.title


def _steps(transition: Transition) -> tuple[Transition, ...]:
    return (*transition.earlier, transition)


def _malformed(step: Transition) -> bool:
    """Check whether a call of the step was not well-formed: not parsed, unknown tool or bad arguments."""
    errors = [error for error in step.parsed.errors if error.tag not in _TAGS_WITHOUT_CALLS]
    if any(error.code not in _NOT_OF_CALLS for error in errors):
        return True
    return any(outcome.error in ("unknown_tool", "bad_arguments") for outcome in step.outcomes)


# --- presets ---------------------------------------------------------------------------------------------------------


def _outcome(name: str, function: Callable[..., float], scorer: AnswerScorer, low: float = 0.0) -> RewardTerm:
    # A partial, because a closure would not pickle with the environment.
    return RewardTerm(name, functools.partial(function, scorer=scorer), low=low, needs_answers=True)


PROCESS_TERMS = (
    RewardTerm("valid_call", valid_call, 0.05, kind="process"),
    RewardTerm("malformed_call", malformed_call, -0.1, kind="process"),
    RewardTerm("failed_call", failed_call, -0.05, kind="process"),
    RewardTerm("new_support", new_support, 0.2, kind="process"),
    RewardTerm("repeated_query", repeated_query, -0.05, kind="process"),
)
"""Those of the preset "process"."""
REWARD_PRESETS: dict[str, Callable[[AnswerScorer], tuple[RewardTerm, ...]]] = {
    "em": lambda scorer: (_outcome("em", exact_match, scorer),),
    "f1": lambda scorer: (_outcome("f1", f1, scorer),),
    "agent_r1": lambda scorer: (_outcome("agent_r1", agent_r1, scorer, low=-1.0),),
    "process": lambda scorer: (_outcome("em", exact_match, scorer), *PROCESS_TERMS),
}
"""Terms by the name that `make_rewards` accepts."""


def make_rewards(
    reward: Reward | RewardSet | Sequence[Reward],
    weights: Mapping[str, float] | None = None,
    *,
    scorer: str | AnswerScorer = "plain",
) -> RewardSet:
    """Make the reward of an environment.

    Args:
        reward: a preset ("em", "f1", "agent_r1", "process"), a custom term, a function of the transition (an outcome
            term of its name, in [0, 1]), MODULE:NAME of one of them, or FILE.toml of a `Judge`; or several of these,
            added up.
        weights: overrides the weight of single terms, by name.
        scorer: normalisation and metric of the outcome terms, a key of `scoring.SCORERS`.

    Raises:
        ConfigurationError: unknown preset, scorer or term; a weight that is not a finite number; two terms of one name.
    """
    terms = _terms(reward, scorer)
    names = [term.name for term in terms]
    if len(set(names)) < len(names):
        raise ConfigurationError(f"Two reward terms have the same name: {names}.")
    overrides = {} if weights is None else weights
    if not isinstance(overrides, Mapping):
        raise ConfigurationError(f"reward_weights must be a dictionary of numbers by term, got {overrides!r:.80}.")
    for name in overrides:
        if name not in names:
            raise ConfigurationError(f"reward_weights names an unknown term {name!r}. {suggest(str(name), names)}")
    weighted = []
    for term in terms:
        weight = check_number(f"The weight of {term.name!r}", overrides.get(term.name, term.weight))
        weighted.append(replace(term, weight=weight))
    return RewardSet(tuple(weighted))


def replace_presets(reward: Any, presets: Mapping[str, Sequence[str | RewardTerm]]) -> Any:
    """Replace the usual names of presets by an environment's own terms, in `reward` or in a list of several.

    Args:
        reward: see `make_rewards`.
        presets: terms by name, for instance of "em" and "process".
    """
    if isinstance(reward, str):
        return presets.get(reward, reward)
    return [replace_presets(part, presets) for part in reward] if isinstance(reward, list | tuple) else reward


def _terms(reward: Any, scorer: str | AnswerScorer) -> tuple[RewardTerm, ...]:
    if isinstance(reward, RewardSet):
        return reward.terms
    if isinstance(reward, RewardTerm):
        return (reward,)
    if isinstance(reward, str):
        if reward in REWARD_PRESETS:
            return REWARD_PRESETS[reward](find_scorer(scorer))
        if reward.endswith(JUDGE_SUFFIX):
            return _terms(load_judge(reward), scorer)
        if ":" in reward:
            return _terms(import_object(reward), scorer)
        raise ConfigurationError(f"Unknown reward preset {reward!r}. {suggest(reward, REWARD_PRESETS)}")
    if isinstance(reward, Sequence):
        return tuple(term for part in reward for term in _terms(part, scorer))
    name = getattr(reward, "__name__", "")
    if callable(reward) and name.isidentifier():
        return (RewardTerm(name, reward),)
    raise ConfigurationError(
        "A reward is a preset, a RewardTerm, a named function of the transition, MODULE:NAME of one of them, FILE.toml "
        f"of a judge, or several of these; got {reward!r:.80}."
    )


def find_scorer(scorer: str | AnswerScorer) -> AnswerScorer:
    """Find a scorer by name; an `AnswerScorer` is returned as it is.

    Raises:
        ConfigurationError: no scorer has that name.
    """
    if isinstance(scorer, str):
        if scorer not in SCORERS:
            raise ConfigurationError(f"Unknown scorer {scorer!r}. {suggest(scorer, SCORERS)}")
        return SCORERS[scorer]
    if not isinstance(scorer, AnswerScorer):
        raise ConfigurationError(f"scorer must be a name or an AnswerScorer, got {scorer!r:.80}.")
    return scorer
