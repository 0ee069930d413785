"""Rescoring: the run's own reward gives the same returns exactly, and nothing is scored from what was not kept."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.core.judge import Judge
from agent_r1_gym.core.parsing import ReToolParser
from agent_r1_gym.core.rewards import RewardTerm, repeated_query
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ParsedTurn, Task, ToolCall, ToolOutcome, Transition
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import register
from agent_r1_gym.run.evaluation.rescore import NotRecordedError, RecordedOutcome, rescore_episode, transitions
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.policies import OraclePolicy, PolicyInput
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job, Session, step_sessions
from tests.core.test_user_turns import Parrot
from tests.kit.chat_endpoint import completion, endpoint
from tests.kit.helpers import TASKS, EchoTool, play
from tests.run.evaluation.test_agreement import judge_file

EXAMPLE = Path(__file__).parents[3] / "examples" / "warehouse"


class Messy(OraclePolicy):
    """The oracle, but for half of its turns: torn calls, unknown tools, words, doubled and too many calls."""

    name = "messy"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        return [self._messy(state) for state in inputs]

    def _messy(self, state: PolicyInput) -> str:
        generator = random.Random(f"{state.task.id} {state.turn}")
        tool = generator.choice(state.tools)["function"]
        kinds = {name: kind["type"] for name, kind in tool["parameters"]["properties"].items()}
        item = state.task.metadata.get("item", "x")
        arguments = {name: item if kind == "string" else generator.randint(1, 99) for name, kind in kinds.items()}
        call = f"<tool_call>{json.dumps({'name': tool['name'], 'arguments': arguments})}</tool_call>"
        good, kind = self._act(state), generator.randrange(12)
        turns = ["<tool_call>{torn</tool_call>", "Well.", call, call * 2, call * 17, call.replace(tool["name"], "fly"),
                 call.replace(next(iter(arguments)), "wrong"), "<answer>7</answer>", "<answer></answer>"]  # fmt: skip
        return turns[kind] if kind < len(turns) else good


def uses_data(transition: Transition) -> float:
    """1 if a tool brought back something structured."""
    return float(any(outcome.data is not None for outcome in transition.outcomes))


def words(transition: Transition) -> float:
    """Number of words in the tool output, and whether all calls succeeded."""
    return float(sum(len(outcome.content.split()) for outcome in transition.outcomes if outcome.ok))


USES_DATA = RewardTerm("uses_data", uses_data, high=1.0)
WORDS = RewardTerm("words", words, 0.01, high=1e6, kind="process")
HERE = "tests.run.evaluation.test_rescore"


def evaluated(folder: Path, env: str, *words: str, policy: str = f"{HERE}:Messy") -> Path:
    assert main(["eval", env, "--policy", policy, "--out", str(folder), *words]) == 0
    return folder


@pytest.fixture
def warehouse(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return "warehouse:Example/Warehouse-v0"


def episodes(folder: Path) -> list[Trajectory]:
    return RunFolder(folder).episodes()


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--reward", "process"]])
def test_the_reward_of_the_run_gives_the_same_episodes_exactly(tmp_path: Path, words: list[str]) -> None:
    run = evaluated(tmp_path / "run", "FictionQA", "--reward", "process", "-n", "60", "--samples", "2")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert main(["rescore", str(run), *words, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/episodes.jsonl").read_bytes() == before["episodes.jsonl"]
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before  # the original is only read
    ours, theirs = (RunFolder(tmp_path / name).metrics() for name in ("out", "run"))
    assert ours == theirs
    failures = {code for record in episodes(run) for code in record.failures}
    assert failures >= {"bad_json", "no_action", "too_many_calls", "unknown_tool", "bad_arguments", "empty_answer"}


@pytest.mark.slow
def test_the_warehouse_keeps_its_returns_and_takes_another_reward(
    tmp_path: Path, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = evaluated(tmp_path / "run", warehouse)
    assert main(["rescore", str(run), "--out", str(tmp_path / "own")]) == 0
    assert (tmp_path / "own/episodes.jsonl").read_bytes() == (run / "episodes.jsonl").read_bytes()
    assert any(record.reward_terms["over_ordered"] for record in episodes(run))
    capsys.readouterr()
    other = ["--reward", "f1", "--reward", "warehouse:over_ordered"]
    assert main(["rescore", str(run), *other, "--out", str(tmp_path / "other")]) == 0
    assert "as played" in capsys.readouterr().out
    for old, new in zip(episodes(run), episodes(tmp_path / "other"), strict=True):
        orders = old.reward_terms["over_ordered"]
        assert new.reward_terms == {"f1": old.scores["f1"], "over_ordered": orders}
        assert new.episode_return == pytest.approx(old.scores["f1"] + orders)
        assert (new.messages, new.scores, new.end_reason) == (old.messages, old.scores, old.end_reason)
    page = tmp_path / "page.html"
    settings = RunFolder(tmp_path / "other").settings()
    assert settings["rescored_from"]["run"] == str(run) and settings["env_options"]["reward"] == other[1::2]
    assert main(["report", str(run), str(tmp_path / "other"), "--out", str(page)]) == 0
    assert "rescored with another reward" in page.read_text(encoding="utf-8")
    assert main(["compare", str(run), str(tmp_path / "other"), "--out", str(page)]) == 0


def test_a_term_that_reads_what_was_not_kept_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = evaluated(tmp_path / "run", "FictionQA", "-n", "10", policy="oracle")
    for reward, name in (("process", "new_support"), (f"{HERE}:USES_DATA", "uses_data")):
        capsys.readouterr()
        assert main(["rescore", str(run), "--reward", reward, "--out", str(tmp_path / "out")]) == 2
        output = capsys.readouterr().err
        assert (
            f"The reward term {name!r} reads a field of a tool outcome that is not recorded" in output
            and output.count("\n") == 1
        )
        assert not (tmp_path / "out").exists()
    assert main(["rescore", str(run), "--reward", f"{HERE}:WORDS", "--out", str(tmp_path / "out")]) == 0
    assert all(record.episode_return > 0.05 for record in episodes(tmp_path / "out"))


class DataTool(EchoTool):
    """Brings back something structured."""

    def execute(self, arguments: Any) -> Any:
        return ToolOutcome("text", data=("hit",))


def test_recorded_values_are_taken_only_of_the_same_term() -> None:
    env = ToolEnv(tasks=TASKS, tools=[DataTool()], reward=["em", USES_DATA])
    session = Session(env, Job(0))
    for turn in (CALL, "<answer>Paris</answer>"):
        step_sessions([session], [turn])
    record = session.record()
    assert [turn.reward for turn in record.turns] == [1.0, 1.0]
    assert rescore_episode(record, env, env.rewards).turns == record.turns
    halved = ToolEnv(tasks=TASKS, tools=[DataTool()], reward=replace(USES_DATA, weight=0.5))
    assert [turn.reward for turn in rescore_episode(record, halved, env.rewards).turns] == [0.5, 0.0]
    namesake = ToolEnv(tasks=TASKS, tools=[DataTool()], reward=replace(USES_DATA, function=lambda _: 1.0))
    with pytest.raises(ConfigurationError, match="'uses_data' reads a field of a tool outcome that is not recorded"):
        rescore_episode(record, env, namesake.rewards)


CALL = '<tool_call>{"name": "echo", "arguments": {"text": "x"}}</tool_call>'


@pytest.mark.parametrize("reward", ["agent_r1", "process", ["em", WORDS]])
@pytest.mark.parametrize("turns", [[CALL], [CALL, "Well."], [CALL, CALL + CALL]])
def test_an_end_from_outside_is_rewarded_as_it_was(reward: Any, turns: list[str]) -> None:
    env = ToolEnv(tasks=TASKS, tools=[EchoTool()], reward=reward)
    session = Session(env, Job(0))
    for turn in turns:
        step_sessions([session], [turn])
    session.truncate("max_tokens")
    record = session.record()
    assert rescore_episode(record, env, env.rewards).turns == record.turns
    *_, last = transitions(record, env.tasks[0], env)
    assert last.truncated and last.turn == len(turns) and len(last.earlier) == len(turns)


def played_with(reward: Any, turn: str, **options: Any) -> tuple[Trajectory, ToolEnv]:
    """An episode of one turn and an answer, and its environment."""
    env = ToolEnv(tasks=TASKS, tools=[EchoTool()], reward=reward, **options)
    session = Session(env, Job(0))
    for action in (turn, "<answer>Paris</answer>"):
        step_sessions([session], [action])
    return session.record(), env


@pytest.mark.parametrize(
    ("text", "turn", "options"),
    [
        ("There is no tool", CALL.replace("echo", "fly"), {}),
        ("echo x", "<code>x</code>", {"parser": ReToolParser("echo", "text")}),
    ],
)
def test_a_term_reads_the_text_of_the_tool(text: str, turn: str, options: dict[str, Any]) -> None:
    def starts(transition: Transition) -> float:
        return float(any(outcome.content.startswith(text) for outcome in transition.outcomes))

    record, env = played_with(["em", starts], turn, **options)
    assert [played.reward for played in record.turns] == [1.0, 1.0]
    assert rescore_episode(record, env, ToolEnv(tasks=TASKS).rewards).turns == record.turns


def test_short_feedback_keeps_no_text_of_a_failed_call() -> None:
    def length(transition: Transition) -> float:
        return float(sum(len(outcome.content) for outcome in transition.outcomes))

    record, env = played_with(length, CALL.replace("echo", "fly"), feedback="short")
    assert rescore_episode(record, env, env.rewards).turns == record.turns
    with pytest.raises(ConfigurationError, match="with feedback='short' also the content of a failed call"):
        rescore_episode(record, env, ToolEnv(tasks=TASKS).rewards)


def accepts(_: dict[str, Any]) -> tuple[int, str]:
    """A judge that says yes."""
    return completion(json.dumps({"reason": "", "verdict": "yes"}))


def test_a_judge_gives_what_it_gave_where_short_feedback_keeps_too_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(accepts) as url:
        own, other = (judge_file(tmp_path / f"{name}.toml", url) for name in ("own", "other"))
        short = ["--option", "feedback=short", "-n", "8"]
        run = evaluated(tmp_path / "run", "FictionQA", "--reward", own, *short)
        assert any("unknown_tool" in record.failures for record in episodes(run))
        assert main(["rescore", str(run), "--out", str(tmp_path / "same")]) == 0
        assert (tmp_path / "same/episodes.jsonl").read_bytes() == (run / "episodes.jsonl").read_bytes()
        assert {record.episode_return for record in episodes(run)} == {1.0}
        capsys.readouterr()
        assert main(["rescore", str(run), "--reward", other, "--out", str(tmp_path / "out")]) == 2
    assert "The reward term 'other' reads a field of a tool outcome that is not recorded" in capsys.readouterr().err


def test_a_judged_end_from_outside_keeps_its_value_without_the_texts() -> None:
    with endpoint(accepts) as url:
        reward = Judge("Right?", model="m", endpoint=url)
        env = ToolEnv(tasks=TASKS, tools=[EchoTool()], reward=reward, feedback="short")
        session = Session(env, Job(0))
        step_sessions([session], [CALL.replace("echo", "fly")])
        session.truncate("max_tokens")
        record = session.record()
        assert record.episode_return == 1.0
        assert rescore_episode(record, env, env.rewards).turns == record.turns
        with pytest.raises(ConfigurationError, match="'judge' reads a field of a tool outcome that is not recorded"):
            rescore_episode(record, env, ToolEnv(tasks=TASKS).rewards)


class Talk(ToolEnv):
    """Its user comes with the task."""

    def __init__(self) -> None:
        super().__init__(tasks=TASKS, plain_turn="answer", max_turns=2)

    def make_tools(self, task: Task) -> list[Tool]:
        return [EchoTool(), Parrot()]


def test_a_user_that_comes_with_the_task_is_talked_to_again() -> None:
    policy = OraclePolicy()
    policy.act = lambda inputs: ["Hello!" for _ in inputs]  # type: ignore[method-assign]
    (record,) = play(policy, [0], Talk)
    assert [turn.call_errors for turn in record.turns] == [(None,), (None,)]
    env = Talk()
    assert rescore_episode(record, env, env.rewards).turns == record.turns


class OddEnv(ToolEnv):
    """Its texts hold what no file can: lone surrogates."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tasks=[Task("a\ud800", "What \udfff?", ("x",)), Task("b", "Why?", ("y",))], **options)


def test_texts_that_no_file_holds_are_the_same_tasks(tmp_path: Path) -> None:
    register("Odd/Surrogates-v0", OddEnv)
    try:
        folder = evaluated(tmp_path / "run", "Odd/Surrogates-v0", policy="oracle")
        assert main(["rescore", str(folder), "--reward", "f1", "--out", str(tmp_path / "again")]) == 0
    finally:
        del gymnasium.registry["Odd/Surrogates-v0"]
    assert [record.episode_return for record in RunFolder(tmp_path / "again").episodes()] == [1.0, 1.0]


def test_a_history_that_is_full_had_no_calls(tmp_path: Path) -> None:
    env = ToolEnv(tasks=TASKS, tools=[EchoTool()], reward=["agent_r1", WORDS], max_history_chars=1_500)
    policy = OraclePolicy()
    policy.act = lambda inputs: [CALL + "x" * 2_000 for _ in inputs]  # type: ignore[method-assign]
    (record,) = play(policy, [0], lambda: env)
    assert record.end_reason == "max_history" and record.turns[0].call_errors == ()
    assert rescore_episode(record, env, env.rewards).turns == record.turns


class TestRefused:
    def test_a_run_whose_episodes_are_gone(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = evaluated(tmp_path / "run", "FictionQA", "-n", "2", policy="oracle")
        (folder / "episodes.jsonl").unlink()
        assert main(["rescore", str(folder), "--out", str(tmp_path / "out")]) == 2
        assert "episodes.jsonl holds no episode to score" in capsys.readouterr().err

    def test_other_data(self, tmp_path: Path, warehouse: str, capsys: pytest.CaptureFixture[str]) -> None:
        tasks = tmp_path / "tasks.jsonl"
        shutil.copy(EXAMPLE / "tasks.jsonl", tasks)
        run = evaluated(tmp_path / "run", warehouse, "--dataset", str(tasks), "--split", "validation", policy="oracle")
        tasks.write_text(tasks.read_text().replace("How many", "What number"))
        assert main(["rescore", str(run), "--out", str(tmp_path / "out")]) == 2
        assert "is no longer at that position" in capsys.readouterr().err

    def test_another_parser(self) -> None:
        (record,) = play(OraclePolicy(), [0], lambda: ToolEnv(tasks=TASKS))
        env = ToolEnv(tasks=TASKS)
        (turn,) = record.turns
        for action in (CALL, "Well.", "<answer>Rome</answer>"):  # other calls, other mistakes, another answer
            other = replace(record, turns=(replace(turn, action=action),))
            with pytest.raises(ConfigurationError, match="Turn 1 of task 't0' parses differently now"):
                rescore_episode(other, env, env.rewards)

    def test_an_environment_that_is_no_tool_env(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        gymnasium.register("Test/Words-v0", lambda: Words())
        try:
            words = "tests.run.evaluation.test_rescore:Word"
            run = evaluated(tmp_path / "run", "Test/Words-v0", "-n", "2", policy=words)
            assert main(["rescore", str(run), "--reward", "em", "--out", str(tmp_path / "out")]) == 2
        finally:
            gymnasium.registry.pop("Test/Words-v0")
        assert "no ToolEnv" in capsys.readouterr().err

    def test_what_is_not_complete_no_run_or_in_the_way(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = evaluated(tmp_path / "run", "FictionQA", "-n", "3", policy="oracle")
        assert main(["rescore", str(run), "--reward", "emm", "--out", str(tmp_path / "out")]) == 2
        assert "Unknown reward preset 'emm'" in capsys.readouterr().err
        assert main(["rescore", str(run), "--out", str(run)]) == 2
        assert "not an empty folder" in capsys.readouterr().err
        assert main(["rescore", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
        assert "holds no run.json" in capsys.readouterr().err
        (run / "metrics.json").unlink()
        assert main(["rescore", str(run), "--out", str(tmp_path / "out")]) == 2
        assert "is not complete" in capsys.readouterr().err

    def test_a_wrapper_that_changes_rewards(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def make(**options: Any) -> Any:
            return gymnasium.wrappers.TransformReward(ToolEnv(tasks=TASKS, **options), lambda reward: 2 * reward)

        gymnasium.register("Test/Doubled-v0", make)
        try:
            run = evaluated(tmp_path / "run", "Test/Doubled-v0", policy="oracle")
            assert main(["rescore", str(run), "--reward", "f1", "--out", str(tmp_path / "out")]) == 2
        finally:
            gymnasium.registry.pop("Test/Doubled-v0")
        assert "TransformReward" in capsys.readouterr().err


def test_a_recorded_outcome_has_only_recorded_fields() -> None:
    fine, failed = RecordedOutcome("text", None), RecordedOutcome("no", "timeout")
    assert isinstance(fine, ToolOutcome) and (fine.content, fine.ok, fine.error) == ("text", True, None)
    assert not failed.ok and failed.is_infrastructure_failure
    for name in ("data", "latency", "retry_after", "found_nothing"):
        with pytest.raises(NotRecordedError):
            getattr(fine, name)


def test_only_a_repeated_call_needs_what_is_not_kept() -> None:
    def step(query: str, *earlier: Transition) -> Transition:
        parsed = ParsedTurn((ToolCall("echo", {"text": query}),))
        return Transition(TASKS[0], len(earlier), parsed, (RecordedOutcome("text", None),), earlier=earlier)

    first = step("a")
    assert repeated_query(step("b", first)) == 0
    with pytest.raises(NotRecordedError):
        repeated_query(step("a", first))


class Words(gymnasium.Env[str, str]):
    """Ends with the first word."""

    observation_space = action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Give a word.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", 1.0, True, False, {}


class Word(OraclePolicy):
    """Answers with one word."""

    name = "word"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        return ["word" for _ in inputs]
