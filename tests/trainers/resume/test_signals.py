"""SIGTERM, SIGHUP and Ctrl-C: what a run leaves behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

from tests.kit.commands import training_words
from tests.kit.small_runs import make_args
from trainers.commands import train
from trainers.resume import checkpoints, signals
from trainers.resume.signals import StopOnSignal

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

ALONE = SimpleNamespace(num_processes=1)


def words(model: Path, output: Path, *, steps: int = 300) -> list[str]:
    return training_words(
        **{"model_name_or_path": model, "output_dir": output, "max_steps": steps, "max_turn_tokens": 4},
        **{"max_completion_length": 12, "beta": 0, "save_strategy": "no", "logging_steps": 1, "learning_rate": 1e-3},
        use_cpu=True,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_sigterm_saves_and_the_same_command_goes_on(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent_r1_gym", "train", *words(model_folder, tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert any("grad_norm" in line for line in process.stdout)  # a step was trained
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 143
    folder = checkpoints.last_complete(tmp_path / "run")
    assert folder is not None
    assert f"Stopped with the state saved in {folder}; add --resume-from-checkpoint True to continue." in said
    assert "SIGTERM: saving after this step" in said
    assert not (tmp_path / "run" / "model.safetensors").exists()

    steps = int(folder.name.split("-")[1]) + 2
    train.main(words(model_folder, tmp_path / "whole", steps=steps))
    train.main([*words(model_folder, tmp_path / "run", steps=steps), "--resume_from_checkpoint", "True"])
    assert_close(weights(tmp_path / "run"), weights(tmp_path / "whole"), rtol=0, atol=0)


def ended_by(stop: StopOnSignal, folder: Path, **before: bool) -> tuple[bool, bool]:
    control = TrainerControl(**before)
    stop.on_step_end(make_args(folder), TrainerState(), control)
    return control.should_training_stop, control.should_save


def test_ctrl_c_stops_after_the_step_and_an_echo_of_it_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    killed: list[tuple[int, int]] = []
    clock = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: clock[0])
    handlers = [signal.getsignal(number) for number in signals.SIGNALS]
    with StopOnSignal(ALONE) as stop:
        assert ended_by(stop, tmp_path) == (False, False)
        signal.raise_signal(signal.SIGINT)
        clock[0] += signals.ECHO_SECONDS - 0.1
        signal.raise_signal(signal.SIGTERM)  # a launcher passes it on
        assert ended_by(stop, tmp_path) == (True, True)
        assert stop.stopped == signal.SIGINT
        monkeypatch.setattr(signals.os, "kill", lambda *arguments: killed.append(arguments))
        clock[0] += 0.2
        signal.raise_signal(signal.SIGTERM)
        assert killed == [(os.getpid(), signal.SIGTERM)]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [signal.getsignal(number) for number in signals.SIGNALS] == handlers
    assert capfd.readouterr().err.count("SIGINT: saving after this step; once more exits at once.") == 1


def test_a_closed_terminal_saves_too_unless_nohup_ignores_it(tmp_path: Path) -> None:
    with StopOnSignal(ALONE) as stop:
        signal.raise_signal(signal.SIGHUP)
        assert ended_by(stop, tmp_path) == (True, True)
        assert stop.stopped == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopOnSignal(ALONE) as stop:
            signal.raise_signal(signal.SIGHUP)
            assert ended_by(stop, tmp_path) == (False, False)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_output_to_a_closed_terminal_does_not_end_the_run() -> None:
    """A child whose terminal goes away still finishes what it prints in the step, and exits cleanly."""
    child, terminal = pty.fork()
    if not child:
        status = 1
        try:
            with StopOnSignal(ALONE) as stop:
                os.write(1, b"ready\n")
                for _ in range(3000):
                    if stop._received:
                        break
                    time.sleep(0.01)
                os.write(1, b"a line of the step\n")
                status = 7
        finally:
            os._exit(status)
    assert b"ready" in os.read(terminal, 100)
    os.close(terminal)  # the kernel sends SIGHUP
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_no_process_leaves_while_another_one_still_saves(tmp_path: Path) -> None:
    waited: list[bool] = []
    accelerator = SimpleNamespace(is_main_process=False, wait_for_everyone=lambda: waited.append(True))
    stop = StopOnSignal(accelerator)
    stop.exit_if_stopped(tmp_path)
    assert not waited
    stop.stopped = signal.SIGTERM
    with pytest.raises(SystemExit, match=r"^143$"):
        stop.exit_if_stopped(tmp_path)
    assert waited == [True]


def test_signal_in_the_last_step_lets_the_training_end(tmp_path: Path) -> None:
    with StopOnSignal(ALONE) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert ended_by(stop, tmp_path, should_training_stop=True) == (True, False)
        assert stop.stopped is None


def test_signal_in_an_evaluation_stops_without_another_step(tmp_path: Path) -> None:
    with StopOnSignal(ALONE) as stop:
        signal.raise_signal(signal.SIGTERM)
        control = TrainerControl()
        best = make_args(tmp_path)
        best.save_strategy = SaveStrategy.BEST
        stop.on_evaluate(best, TrainerState(), control)
        assert not control.should_training_stop  # the Trainer would take back the wish to save
        stop.on_evaluate(make_args(tmp_path), TrainerState(), control)
        assert control.should_training_stop
        assert control.should_save
