"""Context windows from the command line: the same two options, meaning and refusals in every command that plays."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env, make_tool_env
from agent_r1_gym.report.episodes import episode_side
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.wrappers import ContextWindow
from tests.cli.test_any_environment import GAME

LEDGERS = ["LongRead", "--option", "style=compact", "-n", "12"]
WINDOW = ["--context-window", "1", "--context-mode", "drop_turns"]


@pytest.fixture
def game(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a third-party game."""
    (run_folder / "my_game.py").write_text(GAME)
    monkeypatch.syspath_prepend(run_folder)
    yield "my_game:My/Guess-v0"
    sys.modules.pop("my_game", None)
    for name in ("Guess", "Short", "Plus"):
        gymnasium.registry.pop(f"My/{name}-v0", None)


def played(folder: str, *words: str) -> list[Trajectory]:
    assert main(["eval", *LEDGERS, *words, "--out", folder]) == 0
    return RunFolder(Path(folder)).episodes()


def right(records: list[Trajectory]) -> float:
    return sum(record.solved is True for record in records) / len(records)


@pytest.mark.slow
@pytest.mark.usefixtures("run_folder")
def test_who_takes_notes_needs_one_turn_and_who_does_not_fails() -> None:
    assert right(played("notes", *WINDOW, "--policy", "oracle")) == 1.0
    assert right(played("none", *WINDOW, "--policy", "script:without_notes")) == 0.0
    assert right(played("whole", "--policy", "script:without_notes")) == 1.0
    summary = ["--context_window", "1", "--context_mode=summary", "--option", "notebook=false"]
    assert right(played("summary", *summary, "--policy", "script:summariser")) == 1.0
    assert right(played("mute", *summary, "--policy", "script:without_notes")) == 0.0


@pytest.mark.usefixtures("run_folder")
@pytest.mark.slow
def test_a_record_holds_every_context_and_the_whole_episode() -> None:
    for record in played("run", *WINDOW, "--policy", "oracle"):
        whole = played("free", "--policy", "oracle")[record.task_index]
        assert whole.contexts[0].messages == whole.messages == whole.transcript
        assert [context.turns for context in record.contexts] == [2, *[1] * (len(record.turns) - 2)]
        for context in record.contexts:
            turns = [message for message in context.messages if message.role == "assistant"]
            assert len(turns) == 2
        assert record.transcript == whole.messages  # no word of the episode is lost
        assert Trajectory.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.usefixtures("run_folder")
def test_a_report_shows_the_turns_that_left_the_window() -> None:
    for record in played("run", *WINDOW, "--policy", "oracle"):
        side = episode_side(record)
        assert f"{len(record.contexts)} contexts" in side.facts
        assert [block.text for block in side.blocks] == [message.content for message in record.transcript]
        assert [block.label for block in side.blocks if block.role == "assistant"] == [
            f"assistant, turn {number}" for number in range(1, len(record.turns) + 1)
        ]


@pytest.mark.slow
@pytest.mark.usefixtures("run_folder")
def test_two_windows_are_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    one = played("run", *WINDOW, "--policy", "oracle")
    two = played("other", "--context-window", "2", "--context-mode", "drop_turns", "--policy", "oracle")
    assert RunFolder(Path("run")).settings()["env_options"]["context_window"] == 1
    assert {len(record.contexts) for record in one} != {len(record.contexts) for record in two}
    assert played("run", *WINDOW, "--policy", "oracle") == one
    capsys.readouterr()
    for other in ([], ["--context-window", "2", "--context-mode", "drop_turns"], ["--context-window", "1"]):
        assert main(["eval", *LEDGERS, *other, "--policy", "oracle", "--out", "run"]) == 2
        assert "env_options" in capsys.readouterr().err


@pytest.mark.usefixtures("run_folder")
def test_each_environment_of_a_mixture_has_its_own_window() -> None:
    envs = ["--env", "LongRead style=compact context_window=1 context_mode=drop_turns", "--env", "LongRead name=whole"]
    assert main(["eval", *envs, "--policy", "script:without_notes", "-n", "4", "--out", "mix"]) == 0
    assert [right(RunFolder(Path("mix") / name).episodes()) for name in ("LongRead", "whole")] == [0.0, 1.0]


REFUSED = {
    "no ToolEnv": (
        ["GAME", "--context-window", "2"],
        "context_window=2: 'GAME' is not a ToolEnv, so there is no tool output",
    ),
    "too small": (["LongRead", "--context-window", "0"], "context_window must be an integer of at least 1, got 0"),
    "unknown mode": (["LongRead", *WINDOW[:3], "drop_turn"], "Did you mean 'drop_turns'"),
    "a mode alone": (["LongRead", *WINDOW[2:]], "context_mode='drop_turns' has no effect without context_window"),
    "an option": (["LongRead", "--option", "context_window=1.5"], "context_window must be an integer"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("command", ["eval", "play", "sft", "train"])
def test_all_commands_refuse_in_the_same_words(
    command: str, case: str, game: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words, problem = REFUSED[case]
    more = {"eval": ["--policy", "oracle"], "sft": ["--output_dir", "out"], "train": ["--output_dir", "out"]}
    if command in ("sft", "train"):
        pytest.importorskip("trl", reason="the train extra is not installed")
        from tests.kit.models import make_model, make_tokenizer

        make_tokenizer().save_pretrained("model")
        make_model().save_pretrained("model")
        more[command] += ["--model", "model"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("quit\n"))
    assert main([command, *(word.replace("GAME", game) for word in words), *more.get(command, [])]) == 2
    assert problem.replace("GAME", game) in capsys.readouterr().err


def test_a_person_sees_what_an_agent_would(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("next_page\nnext_page\nnext_page\nhistory\nquit\n"))
    assert main(["play", "LongRead", "--option", "style=compact", "--seed", "3", *WINDOW]) == 0
    out = capsys.readouterr().out
    assert out.count("(the context was rewritten)") == 2
    env = make_text_env("LongRead", {"style": "compact"})
    env.reset(seed=3)
    pages = env.unwrapped.task.pages  # type: ignore[attr-defined]
    history = out.rpartition("(reward")[2]
    assert pages[2] in history and pages[0] not in history


def test_tools_alone_have_no_window() -> None:
    assert isinstance(make_text_env("LongRead", {"context_window": 2}), ContextWindow)
    assert not isinstance(make_text_env("LongRead", {"context_window": None}), ContextWindow)
    with pytest.raises(
        ConfigurationError, match="only reads the tools and tasks of LongRead, so context_window has no effect"
    ):
        make_tool_env("LongRead", {"context_window": 2})
