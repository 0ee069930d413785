"""Games with named actions through the commands: their oracle, the random policy, and who knows none of it."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest

from agent_r1_gym import TextGame
from agent_r1_gym.cli.main import main
from agent_r1_gym.run.evaluation.run_folder import RunFolder

LAKE = "AgentR1/FrozenLakeText-v0"


def test_the_oracle_of_a_game_plays_it(run_folder: Path) -> None:
    assert main(["eval", LAKE, "--policy", "oracle", "--option", "random_maps=true", "-n", "8", "--out", "run"]) == 0
    records = RunFolder(run_folder / "run").episodes()
    assert [record.episode_return for record in records] == [1.0] * 8
    assert len({record.question for record in records}) > 4


def test_the_random_policy_takes_named_actions_and_can_be_repeated(run_folder: Path) -> None:
    for out in ("one", "two"):
        assert main(["eval", LAKE, "--policy", "random", "-n", "20", "--out", out]) == 0
    one, two = (RunFolder(run_folder / out).episodes() for out in ("one", "two"))
    actions = [[turn.action for turn in record.turns] for record in one]
    assert {action for episode in actions for action in episode} == {"left", "down", "right", "up"}
    assert len({tuple(episode) for episode in actions}) > 10
    assert actions == [[turn.action for turn in record.turns] for record in two]


def test_the_turns_that_are_left_are_known(run_folder: Path) -> None:
    assert main(["eval", LAKE, "--policy", "oracle", "--option", "max_turns=2", "-n", "1", "--out", "run"]) == 0
    (record,) = RunFolder(run_folder / "run").episodes()
    assert (record.truncated, record.end_reason, len(record.turns)) == (True, "max_turns", 2)


@pytest.mark.parametrize(
    ("policy", "message"), [("random", "this environment names none"), ("oracle", "the environment is not a ToolEnv")]
)
def test_a_game_without_named_actions_is_reported(
    policy: str, message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("My/Coin-v0", lambda: TextGame(lambda seed: "?", lambda action: ("!", 0, True, {})))
    try:
        assert main(["eval", "My/Coin-v0", "--policy", policy, "-n", "1", "--out", "run"]) == 2
    finally:
        gymnasium.registry.pop("My/Coin-v0", None)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (["AgentR1/CliffWalkingText-v0"], f"env_id: '{LAKE}' != 'AgentR1/CliffWalkingText-v0'"),
        ([LAKE, "--option", "map_name=8x8"], "env_options.map_name: (not set) != '8x8'"),
        ([LAKE, "-n", "7"], "questions: 8 != 7"),
        ([LAKE, "--seed", "1"], "seed: 0 != 1"),
    ],
)
def test_games_of_another_kind_map_number_or_seed_are_not_paired(
    other: list[str], difference: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", LAKE, "--policy", "random", "-n", "8", "--out", "one"]) == 0
    assert main(["eval", *other[:1], "--policy", "random", "-n", "8", *other[1:], "--out", "two"]) == 0
    assert main(["compare", "one", "two", "--out", "page.html"]) == 2
    err = capsys.readouterr().err
    assert "one and two have different questions (" in err and difference in err
    assert main(["compare", "one", "one", "--out", "page.html"]) == 0
