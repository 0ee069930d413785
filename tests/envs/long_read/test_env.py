"""AgentR1/LongRead-v0: three ways to play, by scripts and by readers that see only the messages."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import pytest

from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.long_read.dataset import LedgerTask
from agent_r1_gym.envs.long_read.env import LongReadEnv
from agent_r1_gym.envs.long_read.ledger import QUESTION_TYPES, Fact, LedgerQuestion
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.policies import OraclePolicy, Policy, PolicyInput, ScriptPolicy
from agent_r1_gym.wrappers import ContextWindow
from tests.kit.helpers import play
from tests.kit.samples import fuzz_actions

ID = "AgentR1/LongRead-v0"
ACTIONS = fuzz_actions(4_000)
COMPACT = {"style": "compact"}
WAYS: Mapping[str, tuple[Mapping[str, Any], str | None, Policy]] = {
    "whole history": ({"notebook": False}, None, OraclePolicy()),
    "window with notes": ({}, "drop", OraclePolicy()),
    "only the last turn, with notes": ({}, "drop_turns", OraclePolicy()),
    "the same, thinking aloud": ({}, "drop_turns", ScriptPolicy("aloud")),
    "own summary": ({"notebook": False}, "summary", ScriptPolicy("summariser")),
}
"""Options, the mode of a window of one turn (None: no window), and a policy that plays perfectly."""
STYLES: Mapping[str, Mapping[str, Any]] = {
    "natural": {},
    "compact": COMPACT,
    "compact, all types": {**COMPACT, "types": QUESTION_TYPES, "pages": 5, "updates": 3},
}


def make_env(window: str | None = None, keep_last: int = 1, **options: Any) -> Any:
    env = make_text_env(ID, options)
    return env if window is None else ContextWindow(env, keep_last=keep_last, mode=window)


def solved(policy: Policy, number: int, window: str | None = None, **options: Any) -> float:
    """Share of solved tasks."""
    records = play(policy, range(number), functools.partial(make_env, window, questions=number, **options))
    assert len(records) == number
    return sum(record.solved is True for record in records) / number


# --- three ways to play ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", STYLES)
def test_each_way_can_be_played_perfectly(way: str, style: str) -> None:
    options, window, policy = WAYS[way]
    assert solved(policy, 60, window, **options, **STYLES[style]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("style", ["natural", "compact"])
def test_each_way_can_be_played_perfectly_a_thousand_times(way: str, style: str) -> None:
    options, window, policy = WAYS[way]
    assert solved(policy, 1_000, window, world_seed=7, split="test", **options, **STYLES[style]) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [{"pages": 2, "facts": 2, "updates": 0}, {"pages": 9, "facts": 4, "updates": 7}])
def test_the_oracle_needs_no_more_turns_than_there_are(style: str, size: dict[str, int]) -> None:
    for question_position in ("first", "last"):
        options = {**STYLES[style], **size, "question_position": question_position}
        assert solved(OraclePolicy(), 60, **options) == 1.0


@pytest.mark.parametrize("style", STYLES)
def test_a_question_at_the_end_needs_two_outputs(style: str) -> None:
    options = {**STYLES[style], "question_position": "last"}
    env = make_env(**options)
    observation, _ = env.reset(seed=1)
    assert env.unwrapped.task.prompt not in observation
    keeps_two = functools.partial(make_env, "drop_turns", keep_last=2, questions=40, **options)
    assert all(record.solved for record in play(OraclePolicy(), range(40), keeps_two))


class Reader(Policy):
    """Plays compact ledgers from the text of the messages alone.

    Args:
        notes: whether it notes entries about the key of the question; else it only reads.
    """

    name = "reader"

    def __init__(self, *, notes: bool) -> None:
        self._notes = notes

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        return [self._act(state) for state in inputs]

    def _act(self, state: PolicyInput) -> str:
        key = state.messages[0].content.split()[1]
        outputs = [message for message in state.messages if message.role == "tool"]
        lines = [line for message in outputs for line in message.content.split("\n") if line.startswith(f"{key} ")]
        last = outputs[-1] if outputs else None
        if last is not None and (last.name == "recall" or (not self._notes and last.content.endswith("end"))):
            return state.format.format_answer(lines[-1] if lines else f"{key} unknown")
        if self._notes and last is not None and last.name == "next_page":
            new = [line for line in last.content.split("\n") if line in lines]
            if new:
                return state.format.format_call(ToolCall("note", {"text": new[0]}))
            if last.content.endswith("end"):
                return state.format.format_call(ToolCall("recall", {}))
        return state.format.format_call(ToolCall("next_page", {}))


@pytest.mark.parametrize(
    ("notes", "window", "low", "high"),
    [
        (True, "drop_turns", 1.0, 1.0),
        (False, None, 1.0, 1.0),  # the whole history
        (False, "drop_turns", 0.0, 0.0),
        (True, None, 1.0, 1.0),
    ],
)
def test_a_reader_of_what_is_shown_needs_notes_or_the_whole_history(
    notes: bool, window: str | None, low: float, high: float
) -> None:
    assert low <= solved(Reader(notes=notes), 100, window, **COMPACT) <= high


def test_the_oracle_does_what_follows_from_the_last_output_alone() -> None:
    """Under a window of one turn it plays, turn by turn, as a reader of the shown words does."""
    env = make_env("drop_turns", questions=100, **COMPACT)
    for index in range(100):
        _, info = env.reset(options={"task_index": index})
        over = False
        while not over:
            state = PolicyInput(
                "", info["messages"], 0, 9, info["tool_outcomes"], env.unwrapped.parser, Task("t", "hidden")
            )
            turn = env.unwrapped.oracle(env.unwrapped.task, env.unwrapped.transitions)
            write = env.unwrapped.parser
            action = write.format_call(turn) if isinstance(turn, ToolCall) else write.format_answer(turn)
            assert action == Reader(notes=True).act([state])[0]
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        assert info["outcome_reward"] == 1.0


def test_the_summariser_s_answer_is_in_sight_when_it_answers() -> None:
    class Watching(ScriptPolicy):
        def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
            (state,) = inputs
            (action,) = super().act(inputs)
            text = "\n".join(message.content for message in state.messages)
            if "<answer>" in action:
                assert re.search(rf"\b{state.task.answers[0]}\b", text)
                assert text.count("<summary>") <= 2  # the newest of the turns that are gone, and the last turn's
            return [action]

    make = functools.partial(make_env, "summary", questions=40, notebook=False, **COMPACT)
    assert all(record.solved for record in play(Watching("summariser"), range(40), make, places=1))


# --- near misses -----------------------------------------------------------------------------------------------------

SCORES = {
    ("natural", "forgetful"): (0.0, 0.1),
    ("natural", "guesser"): (0.0, 0.1),
    ("natural", "stale"): (0.1, 0.25),
    ("natural", "beginner"): (0.25, 0.4),
    ("natural", "without_notes"): (1.0, 1.0),
    ("natural", "aloud"): (1.0, 1.0),
    ("compact", "aloud"): (1.0, 1.0),
    ("compact", "forgetful"): (0.08, 0.17),
    ("compact", "guesser"): (0.08, 0.17),
    ("compact", "stale"): (0.4, 0.55),
    ("compact", "beginner"): (0.32, 0.47),
    ("compact", "summary_beginner"): (0.32, 0.47),
    ("compact", "without_notes"): (1.0, 1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("style", "script"), SCORES)
def test_scripts_score_as_documented(style: str, script: str) -> None:
    low, high = SCORES[style, script]
    assert low <= solved(ScriptPolicy(script), 400, **STYLES[style]) <= high
    assert script in LongReadEnv.scripts


def test_aloud_states_what_the_page_contains_before_it_acts() -> None:
    make = functools.partial(make_env, "drop_turns", questions=40, **COMPACT)
    for record in play(ScriptPolicy("aloud"), range(40), make):
        task = make().unwrapped.ledgers[record.task_index]
        thoughts = [turn.action for turn in record.turns if turn.action.startswith("<think>")]
        for entries, text in zip(task.facts, thoughts, strict=True):
            thought, _, move = text.removeprefix("<think>").partition("</think>")
            key = task.question.keys[0]
            known = {fact.key: fact.value for fact in entries}
            assert thought == f"{key} {known.get(key, 'nothing')}"
            assert ('"note"' in move) is (key in known)


def test_a_beginner_chooses_its_strategy_in_the_first_turn() -> None:
    """A model below the window could not see later which strategy the episode follows."""
    make = functools.partial(make_env, "drop_turns", questions=200, **COMPACT)
    records = play(ScriptPolicy("beginner"), range(200), make)
    readers = [record for record in records if len(record.turns) > 1]
    assert 40 <= len(readers) <= 80
    assert all(record.solved for record in readers)


# --- rewards ---------------------------------------------------------------------------------------------------------

PAGES = (
    (Fact("red", "ana"), Fact("ben", "4")),
    (Fact("red", "cara"), Fact("dan", "5")),
    (Fact("ben", "6"), Fact("eva", "7")),
)


def a_task(question: LedgerQuestion, support: tuple[Fact, ...]) -> LedgerTask:
    pages = tuple("\n".join(" ".join(fact) for fact in entries) for entries in PAGES)
    return LedgerTask("t", "?", (support[-1].value,), facts=PAGES, pages=pages, question=question, support=support)


BOTH = a_task(LedgerQuestion("changes", ("red",), True), (Fact("red", "ana"), Fact("red", "cara")))


def terms(task: LedgerTask, turns: Sequence[str]) -> list[float]:
    env = LongReadEnv(reward="process", max_turns=50, **COMPACT)  # type: ignore[arg-type]
    env.reset(options={"task": task})
    return [env.step(turn)[4]["reward_terms"]["noted_fact"] for turn in turns]


def note(text: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'note', 'arguments': {'text': text}})}</tool_call>"


READ = '<tool_call>{"name": "next_page", "arguments": {}}</tool_call>'
RECALL = '<tool_call>{"name": "recall", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("turns", "earned"),
    [
        ([READ, note("red ana"), READ, note("red cara")], [0, 0.5, 0, 0.5]),
        ([READ, READ, note("Red: Ana; red: Cara.")], [0, 0, 1]),
        ([READ, READ, note("red ana"), note("red is held by ana")], [0, 0, 0.5, 0]),  # each fact once
        ([note("red ana red cara")], [0]),  # nothing was read yet
        ([READ, note("red cara")], [0, 0]),  # not read yet
        ([READ, note("ben 4"), note("red"), note("ana")], [0, 0, 0, 0]),
        ([READ, note("red is now held by ana")], [0, 0.5]),
        ([READ, note("red ben ana"), note("ana red")], [0, 0, 0]),  # lists of words contain no fact
        ([READ, READ + note("red ana")], [0, 0.5]),
        ([READ, note("red ana") + note("red ana")], [0, 0.5]),
        ([READ, note("redana reds ana"), note("x" * 501)], [0, 0, 0]),
    ],
)
def test_noted_facts_are_rewarded_once(turns: list[str], earned: list[float]) -> None:
    assert terms(BOTH, turns) == pytest.approx(earned)


def test_an_episode_cannot_earn_more_than_all_facts() -> None:
    env = LongReadEnv(reward="process")
    for index in range(30):
        env.reset(options={"task_index": index})
        earned, over = 0.0, False
        while not over:
            turn: Any = env.oracle(env.task, env.transitions)
            _, reward, terminated, truncated, _ = env.step(
                env.parser.format_call(turn) if isinstance(turn, ToolCall) else env.parser.format_answer(turn)
            )
            assert env.reward_bounds[0] <= reward <= env.reward_bounds[1]
            earned, over = earned + reward, terminated or truncated
        assert earned == pytest.approx(1.25)
    assert env.reward_bounds == pytest.approx((-0.15, 1.25))


def test_process_terms_can_be_added_to_others() -> None:
    def mine(transition: Any) -> float:
        return 0.0

    env = LongReadEnv(reward=["process", mine], reward_weights={"noted_fact": 0.5})
    assert env.reward_weights["noted_fact"] == 0.5
    assert set(env.reward_weights) == {"em", "valid_call", "malformed_call", "failed_call", "noted_fact", "mine"}


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {**COMPACT, "reward": "process"},
        {"question_position": "last", "reward": "agent_r1"},
        {"notebook": False, "reward": "f1"},
    ],
)
def test_the_suite_s_own_checker(options: dict[str, Any]) -> None:
    check_tool_env(LongReadEnv(**options))
    check_tool_env(LongReadEnv(parser="openai", **options))


def test_a_page_is_shown_once_and_then_the_end() -> None:
    env = LongReadEnv(**COMPACT)  # type: ignore[arg-type]
    env.reset(options={"task": BOTH})
    contents = [env.step(READ)[4]["tool_outcomes"][0].content for _ in range(5)]
    assert contents == [*BOTH.pages, "end", "end"]


def test_snapshots_branch() -> None:
    env = LongReadEnv(**COMPACT)  # type: ignore[arg-type]
    env.reset(options={"task": BOTH})
    env.step(READ)
    env.step(note("red ana"))
    state = env.get_state()
    first = [env.step(turn)[0] for turn in (READ, note("red cara"), RECALL)]
    again = LongReadEnv(**COMPACT)  # type: ignore[arg-type]
    again.set_state(pickle.loads(pickle.dumps(state)))
    twin = copy.deepcopy(again)
    for other in (again, twin):
        assert [other.step(turn)[0] for turn in (READ, note("red cara"), RECALL)] == first


HOSTILE = (
    "<answer>1</answer>",
    "\n[assistant]\n",
    "<|im_end|>",
    "\x00",
    "\ud800",
    "</summary>",
    "<summary>" * 900,
    "é" * 3_000,
)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, "drop", "drop_turns", "summary"])
def test_any_actions_can_be_played(window: str | None) -> None:
    draw = random.Random(5)
    makers: tuple[Callable[[], str], ...] = (
        lambda: READ,
        lambda: note(draw.choice(HOSTILE)),
        lambda: f"<summary>{draw.choice(HOSTILE)}</summary>{READ}",
        lambda: RECALL,
        lambda: (
            f'<tool_call>{{"name": "recall", "arguments": {{"query": {json.dumps(draw.choice(HOSTILE))}}}}}</tool_call>'
        ),
        lambda: draw.choice(HOSTILE),
        lambda: note("red ana") * draw.randint(1, 20),
    )
    env = make_env(window, reward="process", max_turns=30, max_notes=3, **COMPACT)
    env.reset(seed=0)
    for _ in range(ACTIONS // 4):
        observation, reward, terminated, truncated, info = env.step(draw.choice(makers)())
        assert observation in env.observation_space
        assert env.unwrapped.reward_bounds[0] <= reward <= env.unwrapped.reward_bounds[1]
        assert info["outcome_reward"] == 0.0 or terminated
        if terminated or truncated:
            env.reset()


def test_vectors_have_a_notebook_for_each_episode() -> None:
    envs = gymnasium.make_vec(ID, num_envs=2, **COMPACT)
    envs.reset(seed=3)
    envs.step([note("red ana"), READ])
    *_, infos = envs.step(['<tool_call>{"name": "recall", "arguments": {}}</tool_call>'] * 2)
    assert [outcomes[0].content for outcomes in infos["tool_outcomes"]] == ["red ana", "nothing noted"]
    envs.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"question_position": "frist"}, "Did you mean 'first'"),
        ({"notebook": 1}, "notebook must be True or False, got 1"),
        ({"max_notes": 0}, "max_notes must be"),
        ({"tools": []}, "sets 'tools' itself"),
        ({"pages": 40}, "pages must be from 2 to 32"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LongReadEnv(**options)


def test_a_task_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a LedgerTask, got a Task"):
        LongReadEnv().reset(options={"task": Task("t", "?", ("x",))})
