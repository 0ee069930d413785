"""Four processes by torchrun, of which one has no rollouts and one fails: one message, and a state to go on from."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kit.commands import ENVIRONMENT, training_words
from tests.kit.process_groups import in_processes
from tests.kit.say_env import BATCH, FAILING, save_model
from tests.kit.small_runs import give, make_trainer, one_turn_batch, score
from trainers.algorithms.process_group import EXIT_DELAY_SECONDS, OtherRankError, ProcessGroup, resolve_failure
from trainers.commands.train import command
from trainers.resume import resumable
from trainers.resume.checkpoints import incomplete_reason
from trainers.resume.resumable import ResumeState
from trainers.resume.rollback import RollbackManager


@pytest.mark.slow
def test_all_leave_and_one_of_them_says_why(tmp_path: Path) -> None:
    """The first step is taken without the process whose backend is dead; the second batch breaks another."""
    words = training_words(
        **{"env": "tests.kit.say_env:tests/Uneven-v0", "env_kwargs": "{}", "output_dir": tmp_path / "run"},
        **{"model_name_or_path": save_model(tmp_path / "model"), "max_steps": 4, "save_strategy": "no"},
        **{"per_device_train_batch_size": BATCH, "max_turn_tokens": 2, "use_cpu": True, "alarm_zero_std_steps": 0},
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    run = subprocess.run(
        [*launch, "-m", "trainers.commands.train", *words],
        env=os.environ | ENVIRONMENT | {"BROKE_AT": str(tmp_path / "broke_at")},
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    left, broke = time.monotonic(), float((tmp_path / "broke_at").read_text())
    sys.stdout.write(f"All had left {left - broke:.1f} s after one of them failed.\n")
    assert run.returncode == 1
    assert left < broke + 30
    lines = run.stderr.splitlines()
    own = [line for line in lines if re.match(r"\[rank\d\]: ", line)]  # torch's warnings have no space there
    assert {line.split(":")[0] for line in own} == {f"[rank{FAILING}]"}
    assert sum("Traceback" in line for line in own) == 1
    assert f"[rank{FAILING}]: OSError: the environment broke" in own
    assert f"[rank{FAILING}]: This was in process {FAILING} of 4, counted from 0; the others end with it." in own
    checkpoint = tmp_path / "run" / "checkpoint-1"
    assert own[-1].startswith(f"[rank{FAILING}]: The state of the last step is saved in {checkpoint}; resume with")
    assert incomplete_reason(checkpoint) is None
    cause = lines[next(number for number, line in enumerate(lines) if "Root Cause" in line) :]
    assert any(f"rank      : {FAILING} " in line for line in cause)


class TestAgreed:
    def test_nobody_failed(self) -> None:
        assert resolve_failure(None, [None, None], rank=1) is None

    def test_alone(self) -> None:
        failure = OSError("broke")
        assert resolve_failure(failure, ["OSError: broke"], rank=0) is failure
        assert not hasattr(failure, "__notes__")

    def test_the_first_says_what_the_others_met(self) -> None:
        texts = [None, "OSError: broke", None, "ValueError: nan"]
        failures = [None, OSError("broke"), None, ValueError("nan")]
        first, *others = (resolve_failure(failures[rank], texts, rank=rank) for rank in (1, 0, 2, 3))
        assert first is failures[1]
        assert first.__notes__ == [
            "This was in process 1 of 4, counted from 0; the others end with it.",
            "Process 3 failed too: ValueError: nan",
        ]
        for other, own in zip(others, (None, None, failures[3]), strict=True):
            assert isinstance(other, OtherRankError)
            assert str(other) == "Process 1 failed: OSError: broke"
            assert other.__cause__ is own

    def test_what_all_met_is_said_once(self) -> None:
        failure = OSError("broke")
        assert resolve_failure(failure, ["OSError: broke"] * 3, rank=0) is failure
        assert failure.__notes__ == ["This was in process 0 of 3, counted from 0; the others end with it."]


def test_a_rank_that_has_not_failed_exits_in_silence_after_the_one_that_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def fail(*_options: object) -> None:
        raise OtherRankError("Process 1 failed: OSError: broke")

    monkeypatch.setattr(command, "_train", fail)
    monkeypatch.setattr(time, "sleep", slept.append)
    with pytest.raises(SystemExit, match=r"^1$"):
        command.train(["--output_dir", str(tmp_path)])
    assert slept == [EXIT_DELAY_SECONDS]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("engine", ["cached", "vllm"])
@pytest.mark.parametrize(
    "wait",
    [
        lambda trainer: trainer.process_group.moments(torch.ones(2)),
        lambda trainer: RollbackManager(trainer).plan("collapsed", 3),
    ],
    ids=["statistics", "rollback"],
)
def test_who_waits_in_the_middle_of_a_block_fails_with_it(engine: str, wait: Callable[[Any], Any]) -> None:
    def trainer_of(process_group: ProcessGroup, rank: int) -> Any:
        accelerator = SimpleNamespace(num_processes=2, process_index=rank)
        args = SimpleNamespace(engine=engine, should_save=False)
        return SimpleNamespace(process_group=process_group, accelerator=accelerator, args=args)

    def breaks(process_group: ProcessGroup) -> Exception:
        state = ResumeState(trainer_of(process_group, 0))
        with pytest.raises(ValueError, match="no number") as raised, state.propagate_failure():
            raise ValueError("no number")
        return raised.value

    def waits(process_group: ProcessGroup) -> Exception:
        trainer = trainer_of(process_group, 1)
        with pytest.raises(OtherRankError) as raised, ResumeState(trainer).propagate_failure():
            wait(trainer)
        return raised.value

    own, other = in_processes([breaks, waits])
    assert str(other) == "Process 0 failed: ValueError: no number"
    assert own.__notes__ == ["This was in process 0 of 2, counted from 0; the others end with it."]


def test_a_failure_that_the_others_do_not_hear_of_is_reported_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    written = threading.Event()

    class Errors(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    def exchange(value: Any) -> list[Any]:
        assert written.wait(60)
        return [value, (None, None)]

    errors = Errors()
    monkeypatch.setattr(resumable, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(sys, "stderr", errors)
    trainer = SimpleNamespace(
        process_group=ProcessGroup(exchange, size=2),
        accelerator=SimpleNamespace(num_processes=2, process_index=0),
        args=SimpleNamespace(engine="cached"),
    )
    with pytest.raises(OSError, match="broke"), ResumeState(trainer).propagate_failure():
        raise OSError("broke")
    assert errors.getvalue() == "Process 0 has failed and waits for the others: OSError: broke\n"


@pytest.mark.slow
@pytest.mark.parametrize(("sharding", "guarded"), [(None, 1), ("ZeRO-2", 1), ("FSDP2 FULL_STATE_DICT", 0)])
def test_other_collectives_are_not_in_a_block_that_may_fail_alone(
    sharding: str | None, guarded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the critic's steps, and of passes over sharded weights."""
    settings: dict[str, Any] = {"algorithm": "ppo", "beta": 0.1, "kl_placement": "reward"}
    trainer = make_trainer(tmp_path, give(one_turn_batch()), **settings)
    assert trainer.critic is not None
    trainer.sharding = sharding
    blocks: list[str] = []
    seen: list[tuple[str, int]] = []

    @contextmanager
    def block() -> Iterator[None]:
        blocks.append("")
        yield
        blocks.pop()

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            seen.append((name, len(blocks)))
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(trainer.resume_state, "propagate_failure", block)
    for owner, name in ((trainer, "_logprobs"), (trainer.critic, "fit"), (trainer.critic, "values")):
        monkeypatch.setattr(owner, name, noted(name, getattr(owner, name)))
    score(trainer)
    assert seen == [("_logprobs", guarded), ("values", 1), ("fit", 0)]


@pytest.mark.parametrize("alarm", [None, "collapsed"])
def test_no_rank_leaves_before_the_model_is_written(
    alarm: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def note(what: str) -> Callable[..., Any]:
        return lambda *_arguments, **_options: order.append(what)

    accelerator = SimpleNamespace(is_main_process=False, wait_for_everyone=note("waited"))
    trainer = SimpleNamespace(
        **{"accelerator": accelerator, "backend": None, "alarm": SimpleNamespace(reason=alarm)},
        **{"train": note("trained"), "save_state": note("log"), "add_callback": lambda _callback: None},
        **{"weights_are_finite": lambda: True, "checkpoint_folder": lambda: tmp_path},
    )
    args = SimpleNamespace(resume_from_checkpoint=None, output_dir=str(tmp_path), save_only_model=False)
    monkeypatch.setattr(command, "_build", lambda *_arguments: (trainer, "model"))
    monkeypatch.setattr(command, "save_whole_model", note("model"))
    with nullcontext() if alarm is None else pytest.raises(SystemExit, match="stopped by an alarm: collapsed"):
        command._train(args, SimpleNamespace())  # type: ignore[arg-type]
    assert order == ["trained", "log", "model", "waited"]
