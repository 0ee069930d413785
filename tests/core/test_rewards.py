from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.rewards import REWARD_PRESETS, RewardTerm, make_rewards
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import (
    PARSE_ERROR_CODES,
    ErrorKind,
    ParsedTurn,
    ParseError,
    Passage,
    Task,
    ToolCall,
    ToolOutcome,
    Transition,
)
from agent_r1_gym.data.base import Question, SupportingFact
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval.base import Hit
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.tools.search import SearchTool

QUESTION = Question(
    "q",
    "Who?",
    ("Ada Lovelace", "Lovelace"),
    supporting_facts=(SupportingFact("A", 0), SupportingFact("B", 1)),
)


@dataclass(frozen=True)
class Turn:
    """What one model turn did: (query, outcome) pairs, mistakes, or an answer."""

    calls: Sequence[tuple[str, ToolOutcome]] = ()
    errors: Sequence[str] = ()
    answer: str | None = None


def found(*titles: str) -> ToolOutcome:
    return ToolOutcome("text", data=tuple(Hit(Passage(title, title, "text"), 1.0) for title in titles))


def failed(kind: ErrorKind) -> ToolOutcome:
    return ToolOutcome("why", ok=False, error=kind)


def episode(*turns: Turn, truncated: bool = False, task: Task = QUESTION) -> list[Transition]:
    """Returns the transitions of an episode that ends with the first answer, or by truncation in the last turn."""
    steps: list[Transition] = []
    for position, turn in enumerate(turns):
        parsed = ParsedTurn(
            tuple(ToolCall("search", {"query": query}) for query, _ in turn.calls),
            turn.answer,
            tuple(ParseError(code, "why") for code in turn.errors),
        )
        outcomes = tuple(outcome for _, outcome in turn.calls)
        ended = turn.answer is not None
        cut = truncated and position == len(turns) - 1 and not ended
        steps.append(Transition(task, position, parsed, outcomes, ended, cut, tuple(steps)))
    return steps


def term_values(preset: str, name: str, steps: Sequence[Transition]) -> list[float]:
    rewards = make_rewards(preset)
    return [rewards.evaluate(step)[1][name] for step in steps]


# --- outcome ---------------------------------------------------------------------------------------------------------

GOOD_CALL = Turn([("a", found("X"))])


def test_em_and_f1_of_an_answer() -> None:
    for answer, em, f1 in [
        ("Ada Lovelace", 1.0, 1.0),
        ("the ada lovelace!", 1.0, 1.0),
        ("Lovelace", 1.0, 1.0),
        ("Countess Ada Lovelace", 0.0, 0.8),
        ("Charles Babbage", 0.0, 0.0),
        ("Ada", 0.0, 2 / 3),
        ("not Lovelace", 0.0, 2 / 3),
    ]:
        steps = episode(GOOD_CALL, Turn(answer=answer))
        assert term_values("em", "em", steps) == [0.0, em]
        assert term_values("f1", "f1", steps) == [0.0, pytest.approx(f1)]


def test_no_answer_earns_nothing() -> None:
    steps = episode(GOOD_CALL, Turn(errors=["no_action"]), truncated=True)
    assert term_values("em", "em", steps) == [0.0, 0.0]
    assert term_values("f1", "f1", steps) == [0.0, 0.0]


def test_agent_r1_is_the_papers_formula_and_given_once() -> None:
    for turns, expected in [
        # everything well-formed: EM
        ([GOOD_CALL, Turn(answer="Lovelace")], 1.0),
        ([GOOD_CALL, Turn(answer="Babbage")], 0.0),
        ([Turn(answer="Lovelace")], 1.0),
        # an answer, but a call that was not well-formed: 1/2 - 1, however right the answer
        ([Turn(errors=["bad_json"]), Turn(answer="Lovelace")], -0.5),
        ([Turn([("a", failed("unknown_tool"))]), Turn(answer="Lovelace")], -0.5),
        ([Turn([("a", failed("bad_arguments"))]), Turn(answer="Lovelace")], -0.5),
        ([Turn(errors=["call_and_answer"]), Turn(answer="Lovelace")], -0.5),
        # well-formed calls, no answer: 1/2 - 1
        ([GOOD_CALL], -0.5),
        ([Turn(errors=["no_action"])], -0.5),
        ([Turn(errors=["empty_answer"])], -0.5),
        # neither: 0 - 1
        ([Turn(errors=["bad_json"])], -1.0),
        ([GOOD_CALL, Turn(errors=["unclosed_tag"])], -1.0),
        # a mistake of the answer alone does not taint the calls
        ([Turn(errors=["no_action"]), Turn(answer="Lovelace")], 1.0),
        # a tool that fails, or is down, is not a fault of the format
        ([Turn([("a", failed("tool_error"))]), Turn(answer="Lovelace")], 1.0),
        ([Turn([("a", failed("timeout"))]), Turn(answer="Lovelace")], 1.0),
        ([Turn([("a", failed("unavailable"))])], -0.5),
    ]:
        values = term_values("agent_r1", "agent_r1", episode(*turns, truncated=True))
        assert values == [0.0] * (len(turns) - 1) + [expected]


def test_agent_r1_takes_no_unpaired_tag_of_an_answer_or_of_reasoning_for_a_call() -> None:
    for parser, turn, expected in [
        ("hermes", "<answer>rain", 1.0),
        ("hermes", "rain</answer>", 1.0),
        ("hermes", "<answer>sun <answer>rain</answer>", 1.0),
        ("hermes", "[THINK]It rains. <answer>rain</answer>", 1.0),
        ("openai", '{"content": "<answer>rain"}', 1.0),
        ("native", '{"content": "", "errors": [{"code": "unclosed_tag", "message": "", "tag": "think"}]}', 1.0),
        ("hermes", '<tool_call>{"name": "look"}', -0.5),
        ("hermes", '{"name": "look"}</tool_call>', -0.5),
        ("search-r1", "<search>weather", -0.5),
    ]:
        env = ToolEnv(tasks=[Task("t", "What is the weather?", ("rain",))], parser=parser, reward="agent_r1")
        env.reset(seed=0)
        assert env.step(turn)[4]["parse_errors"], turn
        assert env.step(env.parser.format_answer("rain"))[1] == expected, turn


def test_agent_r1_keeps_the_outcome_when_the_episode_ends_in_tool_text() -> None:
    values = term_values(
        "agent_r1",
        "agent_r1",
        episode(GOOD_CALL, Turn([("b", found("Y"))]), truncated=True),
    )
    assert values == [0.0, -0.5]


def test_outcomes_are_given_only_when_the_episode_ends() -> None:
    """An environment may go on after an answer: it then pays for the last one only."""
    for preset in REWARD_PRESETS:
        (step,) = episode(Turn(answer="Lovelace"))
        goes_on = replace(step, terminated=False)
        assert make_rewards(preset).evaluate(goes_on)[0] == 0.0
        assert make_rewards(preset).evaluate(step)[0] == 1.0


# --- process ---------------------------------------------------------------------------------------------------------


def test_valid_call_is_paid_once_an_episode() -> None:
    many = Turn([("a", found("A")), ("b", found("B")), ("c", failed("tool_error"))])
    steps = episode(
        Turn(errors=["no_action"]),
        Turn([("x", failed("tool_error"))]),
        many,
        GOOD_CALL,
        GOOD_CALL,
    )
    assert term_values("process", "valid_call", steps) == [0, 0, 1, 0, 0]


def test_malformed_call_counts_turns_not_mistakes() -> None:
    for code in PARSE_ERROR_CODES:
        steps = episode(Turn(errors=[code] * 5), Turn([("a", found("A"))], errors=[code]), GOOD_CALL)
        assert term_values("process", "malformed_call", steps) == [1, 1, 0]


def test_failed_call_counts_turns_and_spares_infrastructure() -> None:
    kinds: list[ErrorKind] = [
        "unknown_tool",
        "bad_arguments",
        "tool_error",
        "timeout",
        "unavailable",
    ]
    steps = episode(*[Turn([("a", failed(kind))] * 3) for kind in kinds])
    assert term_values("process", "failed_call", steps) == [1, 1, 1, 0, 0]


def test_new_support_pays_each_gold_passage_once() -> None:
    steps = episode(
        Turn([("1", found("X", "Y"))]),
        Turn([("2", found("A", "A")), ("3", found("X", "A"))]),
        Turn([("4", found("A"))]),
        Turn([("5", found("B", "A"))]),
        Turn([("6", found("A", "B"))]),
    )
    assert term_values("process", "new_support", steps) == [0, 0.5, 0, 0.5, 0]


def test_new_support_is_zero_without_gold_passages_or_hits() -> None:
    plain = Task("t", "p", ("Lovelace",))
    assert term_values("process", "new_support", episode(Turn([("1", found("A"))]), task=plain)) == [0]
    odd = [ToolOutcome("x", data=data) for data in (None, "A", ["A"], ("A",), {"title": "A"}, 5)]
    assert term_values("process", "new_support", episode(Turn([("1", outcome) for outcome in odd]))) == [0]


def test_repeated_query_ignores_case_and_spaces_and_counts_turns() -> None:
    steps = episode(
        Turn([("Who wrote it", found("X"))]),
        Turn([("who  WROTE it", found("X")), ("Who wrote it", found("X"))]),
        Turn([("who wrote that", found("X"))]),
    )
    assert term_values("process", "repeated_query", steps) == [0, 1, 0]


def test_repeated_query_sees_the_same_turn() -> None:
    assert term_values(
        "process",
        "repeated_query",
        episode(Turn([("a", found("X")), ("a", found("X"))])),
    ) == [1]


def test_asking_again_after_a_failure_is_no_repetition() -> None:
    steps = episode(
        Turn([("a", failed("unavailable"))]),
        Turn([("a", failed("tool_error"))]),
        Turn([("a", found("X"))]),
    )
    assert term_values("process", "repeated_query", steps) == [0, 0, 0]


def test_asking_again_after_nothing_was_found_is_no_repetition() -> None:
    steps = episode(
        Turn([("a", found()), ("a", found())]),
        Turn([("a", ToolOutcome("none", data=[]))]),
        Turn([("a", found("X")), ("b", found())]),
        Turn([("a", found())]),
        Turn([("b", found("X"))]),
    )
    assert term_values("process", "repeated_query", steps) == [0, 0, 0, 1, 0]


class Odd:
    """Data of a custom tool that has neither length nor truth value."""

    def __len__(self) -> int:
        raise TypeError("unknown")

    __bool__ = __len__  # type: ignore[assignment]


def test_whatever_else_a_tool_returns_is_an_answer() -> None:
    data: Any
    for data in [None, {}, {"rows": []}, "", 0, False, np.zeros(0), Odd(), (None,), [[]]]:
        steps = episode(Turn([("a", ToolOutcome("text", data=data))]), Turn([("a", ToolOutcome("text", data=data))]))
        assert term_values("process", "repeated_query", steps) == [0, 1]


def test_search_says_by_its_data_that_nothing_was_found() -> None:
    search = SearchTool(BM25Retriever([Passage("1", "Ada", "wrote notes")]))
    nothing, something = search.run([ToolCall("search", {"query": query}) for query in ("zebra", "notes")])
    assert (nothing.found_nothing, something.found_nothing) == (True, False)
    assert not failed("tool_error").found_nothing


def test_a_repetition_that_a_backend_fails_costs_nothing() -> None:
    steps = episode(Turn([("a", found("X"))]), Turn([("a", failed("timeout"))]))
    assert term_values("process", "repeated_query", steps) == [0, 0]


def test_infrastructure_failures_neither_earn_nor_cost() -> None:
    for kind in ["timeout", "unavailable"]:
        for preset in REWARD_PRESETS:
            rewards = make_rewards(preset)
            broken = Turn([("a", failed(kind))] * 4)
            with_failures = episode(broken, GOOD_CALL, broken, Turn(answer="Lovelace"))
            without = episode(GOOD_CALL, Turn(answer="Lovelace"))
            assert sum(rewards.evaluate(step)[0] for step in with_failures) == sum(
                rewards.evaluate(step)[0] for step in without
            )
            assert rewards.evaluate(with_failures[0])[0] == rewards.evaluate(with_failures[2])[0] == 0.0


def test_the_process_preset_by_hand() -> None:
    steps = episode(
        Turn([("a", found("A"))]),  # valid_call .05 + new_support .2 / 2
        Turn([("a", found("A")), ("b", failed("bad_arguments"))], errors=["bad_json"]),  # -.05 - .05 - .1
        Turn(answer="Lovelace"),
    )
    rewards = make_rewards("process")
    assert [rewards.evaluate(step)[0] for step in steps] == pytest.approx([0.15, -0.2, 1.0])
    assert rewards.range == pytest.approx((-0.2, 1.25))


# --- no preset can be farmed -----------------------------------------------------------------------------------------

outcomes = st.one_of(
    st.lists(st.sampled_from("ABXY"), max_size=4).map(lambda titles: found(*titles)),
    st.sampled_from(["unknown_tool", "bad_arguments", "tool_error", "timeout", "unavailable"]).map(failed),
)
working_turns = st.builds(
    Turn,
    calls=st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), outcomes), max_size=5),
    errors=st.lists(st.sampled_from(PARSE_ERROR_CODES), max_size=3),
)
last_turns = working_turns | st.sampled_from(["Lovelace", "Ada Lovelace", "no", "Ada"]).map(
    lambda text: Turn(answer=text)
)
EPISODE_BOUNDS = {"em": 1.0, "f1": 1.0, "agent_r1": 1.0, "process": 1.25}


@pytest.mark.parametrize("preset", REWARD_PRESETS)
@given(turns=st.lists(working_turns, max_size=8), last=last_turns)
@pytest.mark.slow
def test_no_episode_earns_more_than_its_bound(preset: str, turns: list[Turn], last: Turn) -> None:
    rewards = make_rewards(preset)
    steps = episode(*turns, last, truncated=True)
    values = [rewards.evaluate(step)[0] for step in steps]
    low, high = rewards.range
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in values)
    assert sum(values) <= EPISODE_BOUNDS[preset] + 1e-9
    for term in rewards.terms:
        assert all(term.low <= term.function(step) <= term.high for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("preset", REWARD_PRESETS)
@given(turns=st.lists(working_turns, max_size=4), last=last_turns, extra=working_turns)
def test_repeating_calls_never_pays(preset: str, turns: list[Turn], last: Turn, extra: Turn) -> None:
    """Making any turn a second time, at once, earns nothing on top."""
    rewards = make_rewards(preset)

    def value(*chosen: Turn) -> float:
        return sum(rewards.evaluate(step)[0] for step in episode(*chosen, last, truncated=True))

    assert value(*turns, extra, extra) <= value(*turns, extra) + 1e-9


@pytest.mark.slow
@given(turns=st.lists(working_turns, max_size=8))
def test_new_support_sums_to_one_at_most(turns: list[Turn]) -> None:
    assert sum(term_values("process", "new_support", episode(*turns))) <= 1.0 + 1e-9


@pytest.mark.slow
@given(turns=st.lists(working_turns, max_size=5), last=last_turns)
def test_terms_are_pure(turns: list[Turn], last: Turn) -> None:
    rewards = make_rewards("process")
    steps = episode(*turns, last)
    assert [rewards.evaluate(step) for step in steps] == [rewards.evaluate(step) for step in steps]


def no_parameter() -> float:
    return 1.0


def two_parameters(transition: Transition, answers: tuple[str, ...]) -> float:
    return 1.0


async def coroutine(transition: Transition) -> float:
    return 1.0


def optional(transition: Transition, scale: float = 2.0) -> float:
    return scale


@pytest.mark.parametrize("function", [no_parameter, two_parameters, coroutine])
def test_a_term_that_cannot_be_called_is_refused_at_construction(function: Any) -> None:
    complaint = f"Reward term '{function.__name__}' must be a function of .transition."
    with pytest.raises(ConfigurationError, match=complaint):
        make_rewards(function)
    with pytest.raises(ConfigurationError, match=complaint):
        RewardTerm(function.__name__, function)


@pytest.mark.parametrize("function", [optional, functools.partial(two_parameters, answers=("a",)), bool])
def test_a_term_may_have_further_parameters_with_defaults(function: Any) -> None:
    assert RewardTerm("mine", function).name == "mine"
