"""Checkpoints are whole or do not count: kills at any moment, full disks, other runs' checkpoints."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, TrainerCallback

import trainers
from agent_r1_gym.errors import CheckpointError, ConfigurationError
from tests.kit.commands import run_script
from tests.kit.killed_runs import timeless
from tests.kit.models import make_model
from tests.kit.small_runs import StopAfterTwo, make_args, make_trainer, play
from trainers.resume import checkpoints
from trainers.resume.resumable import _read_state
from trainers.resume.signals import StopOnSignal
from trainers.rollouts.collect import RolloutRequest, RolloutResult
from trainers.trainer import AgentTrainer

SETTINGS = {"learning_rate": 1e-2, "max_steps": 5, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1}
RANK = int(os.environ.get("RANK", "0"))


def build(folder: Path, **settings: Any) -> AgentTrainer:
    return make_trainer(folder, play, **(SETTINGS | settings), algorithm="ppo", num_generations=2)


def end(trainer: AgentTrainer, folder: Path) -> None:
    assert trainer.critic is not None
    weights = {**trainer.model.state_dict(), **trainer.critic.model.state_dict(prefix="critic.")}
    torch.save(weights, folder / f"end_{RANK}.pt")


def at_third_rollout(trainer: AgentTrainer, act: Any) -> None:
    """Process 1 acts in the rollouts of its third step."""

    def collect(request: RolloutRequest) -> RolloutResult:
        if RANK == 1 and request.batch == 2:
            act()
        return play(request)

    trainer.collect = collect


def fail() -> None:
    raise OSError("the environment broke")


def stopped_by_signal(folder: Path) -> None:
    trainer = build(folder)
    at_third_rollout(trainer, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with StopOnSignal(trainer.accelerator) as stop:
        trainer.add_callback(stop)
        trainer.train()
    assert (stop.stopped, trainer.state.global_step) == (signal.SIGTERM, 3)


def failed(folder: Path) -> None:
    trainer = build(folder, save_strategy="no")
    at_third_rollout(trainer, fail)
    with pytest.raises((OSError, RuntimeError), match="the environment broke") as caught:
        trainer.train()
    assert f"saved in {folder / 'checkpoint-2'}" in caught.value.__notes__[-1]


def in_folders_of_their_own(folder: Path) -> None:
    """The processes name one folder, but each has another file system there."""
    checkpoints.SHARED_SECONDS = 0.0
    with checkpoints.lock_run(str(folder)):
        pass
    words = "processes 1, counted from 0, do not see what process 0 wrote there"
    with pytest.raises(ConfigurationError, match=words), checkpoints.lock_run(str(folder / str(RANK))):
        raise AssertionError("the run was begun")


def killed_while_saving(folder: Path) -> None:
    trainer = build(folder)
    save = trainer._save_rng_state

    def kill(output_dir: str) -> None:
        if RANK == 1 and trainer.state.global_step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        save(output_dir)

    trainer._save_rng_state = kill
    trainer.train()


pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


KILLS = (4, 66, 22, 12, 30)
"""While the first record is written, an old checkpoint is deleted, and tensors are written."""


@pytest.mark.slow
def test_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    assert run_script("tests.kit.killed_runs", str(tmp_path), *map(str, KILLS)) == 0
    for algorithm in ("grpo", "ppo"):
        assert json.loads((tmp_path / f"{algorithm}.json").read_text()) == [signal.SIGKILL] * len(KILLS) + [0]
        whole, killed = (tmp_path / f"{algorithm}-{name}" for name in ("whole", "killed"))
        assert_close(torch.load(killed / "end.pt"), torch.load(whole / "end.pt"), rtol=0, atol=0)
        assert json.loads((killed / "log.json").read_text()) == json.loads((whole / "log.json").read_text())


@pytest.mark.slow
def test_two_processes_stop_together_and_resume(tmp_path: Path) -> None:
    """One of the two gets a signal, fails in its rollouts, and is killed while it saves."""
    assert run_script("tests.trainers.resume.test_checkpoints", str(tmp_path), processes=2) != 0
    for name in ("stopped_by_signal", "failed"):
        for rank in (0, 1):
            ends = [torch.load(tmp_path / folder / f"end_{rank}.pt") for folder in ("whole", name)]
            assert_close(ends[1], ends[0], rtol=0, atol=0)
    assert checkpoints.last_complete(tmp_path / "killed") == tmp_path / "killed" / "checkpoint-2"
    assert (tmp_path / "failed" / "checkpoint-2" / "critic.pt").is_file()
    # In these the processes hand over their shares, and show each other that they share a folder.
    assert not [*tmp_path.rglob("critic_optimizer_*"), *tmp_path.rglob(".shared-*")]


def flip_bit(path: Path) -> None:
    """Change one bit in the middle of a file, whose size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SECOND_RUN = """
import sys
from agent_r1_gym.errors import ConfigurationError
from trainers.resume.checkpoints import lock_run
try:
    with lock_run(sys.argv[1]):
        print("started")
except ConfigurationError as error:
    print(error)
"""


class TestFaults:
    @pytest.fixture(scope="class")
    def saved(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The folder of a run with checkpoints 1 and 2."""
        folder = tmp_path_factory.mktemp("saved")
        make_trainer(folder, play, max_steps=2, save_strategy="steps", save_steps=1).train()
        return folder

    def copy(self, saved: Path, folder: Path) -> Path:
        return Path(shutil.copytree(saved, folder / "run"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda folder: (folder / "optimizer.pt").unlink(), r"optimizer\.pt is missing"),
            (lambda folder: os.truncate(folder / "model.safetensors", 99), r"model\.safetensors has 99 bytes instead"),
            (lambda folder: (folder / "checkpoint.json").unlink(), r"has no checkpoint\.json"),
            (
                lambda folder: (folder / "checkpoint.json").write_text('{"complete": false}'),
                "stopped while it was being written",
            ),
            (lambda folder: flip_bit(folder / "optimizer.pt"), r"optimizer\.pt has changed since it was saved"),
            (lambda folder: flip_bit(folder / "trainer_state.json"), r"trainer_state\.json has changed"),
            (lambda folder: (folder / "checkpoint.json").write_bytes(b'{"complete": \xff}'), "json is damaged"),
            (shutil.rmtree, "there is no such folder"),
        ],
    )
    def test_checkpoint_that_is_not_whole(
        self, damage: Callable[[Path], None], words: str, saved: Path, tmp_path: Path
    ) -> None:
        run = self.copy(saved, tmp_path)
        damage(run / "checkpoint-2")
        hint = re.escape(f"The last complete one there is {run / 'checkpoint-1'}.")
        with pytest.raises(ConfigurationError, match=f"{words}.*{hint}"):
            checkpoints.resolve_checkpoint(str(run / "checkpoint-2"), directory=str(run))
        assert checkpoints.resolve_checkpoint(True, directory=str(run)) == str(run / "checkpoint-1")
        assert checkpoints.resolve_checkpoint("True", directory=str(run)) == str(run / "checkpoint-1")

    def test_a_checkpoint_is_read_once_to_be_checked(self, saved: Path, tmp_path: Path) -> None:
        run = self.copy(saved, tmp_path)
        folder = checkpoints.resolve_checkpoint(True, directory=str(run))
        flip_bit(run / "checkpoint-2" / "optimizer.pt")
        assert checkpoints.resolve_checkpoint(folder, directory=str(run)) == folder == str(run / "checkpoint-2")

    def test_checkpoints_of_0_3_have_no_checksums(self, saved: Path, tmp_path: Path) -> None:
        run = self.copy(saved, tmp_path)
        path = run / "checkpoint-2" / "checkpoint.json"
        record = json.loads(path.read_text())
        del record["crc32"]
        path.write_text(json.dumps(record))
        assert checkpoints.resolve_checkpoint(True, directory=str(run)) == str(run / "checkpoint-2")

    @pytest.mark.slow
    def test_one_process_at_a_time_trains_in_a_folder(self, tmp_path: Path) -> None:
        with checkpoints.lock_run(str(tmp_path)):
            command = [sys.executable, "-c", SECOND_RUN, str(tmp_path)]
            second = subprocess.run(command, capture_output=True, text=True, check=False)
        assert re.fullmatch(r"Another process is training in output_dir='.*'; wait .* --out\.\n", second.stdout)
        with checkpoints.lock_run(str(tmp_path)):
            pass

    def test_folder_of_the_run_is_no_checkpoint(self, saved: Path) -> None:
        with pytest.raises(ConfigurationError, match=r"no checkpoint\.json.*last complete one .*checkpoint-2\."):
            checkpoints.resolve_checkpoint(str(saved), directory=str(saved))

    def test_resume_without_a_checkpoint_starts_at_the_beginning(self, tmp_path: Path) -> None:
        assert checkpoints.resolve_checkpoint(True, directory=str(tmp_path)) is None
        assert checkpoints.resolve_checkpoint("false", directory=str(tmp_path)) is None

    @pytest.mark.parametrize("asked", [None, False, "false"])
    def test_another_run_in_the_folder_of_a_run(self, asked: Any, saved: Path, tmp_path: Path) -> None:
        words = "the last of them checkpoint-2.* --resume-from-checkpoint True, or choose another --out"
        with pytest.raises(ConfigurationError, match=words):
            checkpoints.check_no_checkpoints(asked, directory=str(saved))
        for going_on in (True, "True", str(saved / "checkpoint-1")):
            checkpoints.check_no_checkpoints(going_on, directory=str(saved))
        (tmp_path / "checkpoint-notes").mkdir()
        checkpoints.check_no_checkpoints(asked, directory=str(tmp_path))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"algorithm": "rloo"}, "was saved with algorithm='grpo'; this run has algorithm='rloo'"),
            ({"num_generations": 2, "seed": 7}, "seed=42, num_generations=4; this run has seed=7, num_generations=2"),
            ({"learning_rate": 0.5}, "learning_rate=2e-05; this run has learning_rate=0.5"),
            ({"lora": True, "learning_rate": 2e-5}, "holds another model: .* weights differ in name or shape"),
        ],
    )
    def test_checkpoint_of_another_run(self, settings: dict[str, Any], words: str, saved: Path, tmp_path: Path) -> None:
        def never(request: Any) -> Any:
            raise AssertionError("a step was begun")

        trainer = make_trainer(tmp_path, never, max_steps=3, **settings)
        with pytest.raises(ConfigurationError, match=words):
            trainer.train(resume_from_checkpoint=str(saved / "checkpoint-2"))

    @pytest.mark.slow
    def test_checkpoint_of_another_base_model_or_another_scale_of_its_adapter(self, tmp_path: Path) -> None:
        """Names and shapes of the weights are the same."""
        for seed, name in enumerate(("one", "two")):
            make_model(seed=seed).save_pretrained(tmp_path / name)
        shutil.copytree(tmp_path / "one", tmp_path / "moved")

        def made(name: str, **lora: Any) -> AgentTrainer:
            base = AutoModelForCausalLM.from_pretrained(tmp_path / name)
            model = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear", **lora))
            return make_trainer(tmp_path / "run", play, model=model, save_strategy="steps", save_steps=1)

        made("one").train()
        folder = tmp_path / "run" / "checkpoint-1"
        checkpoints.check_same_run(folder, made("moved").identity)
        others = [made("two").identity, made("one", lora_alpha=64).identity, made("one", use_rslora=True).identity]
        for other in others:
            with pytest.raises(ConfigurationError, match="another base model, or with adapters of another scale"):
                checkpoints.check_same_run(folder, other)
        record = json.loads((folder / "checkpoint.json").read_text())
        del record["identity"]["model"]  # as 0.3 saved it
        (folder / "checkpoint.json").write_text(json.dumps(record))
        checkpoints.check_same_run(folder, others[0])

    def test_a_model_of_the_hub_is_known_by_name_and_revision(self, tmp_path: Path) -> None:
        model = make_model()
        model.config._name_or_path = "owner/model"
        first, same, later = (
            make_trainer(tmp_path, play, model=model, model_init_kwargs=options).identity["model"]
            for options in (None, {"revision": "main"}, {"revision": "v2"})
        )
        assert first == same != later

    @pytest.mark.slow
    def test_weights_that_are_not_finite_are_not_saved(self, tmp_path: Path) -> None:
        """Not when a save is due, and not after the rollouts that fail of them; the log has not shown them yet."""

        class Spoil(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
                if state.global_step == 2:
                    with torch.no_grad():
                        next(model.parameters()).fill_(torch.nan)

        trainer = make_trainer(tmp_path, play, max_steps=4, save_strategy="steps", save_steps=1, logging_steps=9)
        trainer.add_callback(Spoil())
        with pytest.raises(RuntimeError, match="probability") as caught:
            trainer.train()
        assert "is not saved: its weights are no longer finite" in caught.value.__notes__[-1]
        assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]

    @pytest.mark.slow
    def test_a_reference_that_moves_is_not_resumed(self, tmp_path: Path) -> None:
        settings = {"max_steps": 3, "sync_ref_model": True, "beta": 0.1, "save_strategy": "steps", "save_steps": 2}
        trainer = make_trainer(tmp_path, play, **settings)
        trainer.train()
        with pytest.raises(ConfigurationError, match="sync_ref_model updates the reference model"):
            make_trainer(tmp_path, play, **settings).train(resume_from_checkpoint=True)

    def test_checkpoint_of_a_sharded_run(self, saved: Path, tmp_path: Path) -> None:
        run = self.copy(saved, tmp_path)
        record = run / "checkpoint-2" / "checkpoint.json"
        record.write_text(record.read_text().replace('"sharding": null', '"sharding": "FSDP2 FULL_STATE_DICT"'))
        words = "was saved with sharding='FSDP2 FULL_STATE_DICT'; this run has sharding=None"
        with pytest.raises(ConfigurationError, match=words):
            make_trainer(run, play, max_steps=3).train(resume_from_checkpoint=True)

    @pytest.mark.slow
    def test_full_disk_leaves_the_checkpoint_before(self, tmp_path: Path) -> None:
        """A limit on the size of files stands in for the disk: writing beyond it fails, in Python, torch and Rust."""
        trainer = make_trainer(tmp_path, play, max_steps=3, save_strategy="steps", save_steps=1, save_total_limit=1)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)

        class Fill(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 2:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))

        trainer.add_callback(Fill())
        try:
            with pytest.raises(CheckpointError, match=r"checkpoint-2 could not be written .* GB free: ") as caught:
                trainer.train()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert f"The last complete checkpoint is {tmp_path / 'checkpoint-1'}. Free space" in str(caught.value)
        assert not (tmp_path / "checkpoint-2").exists()
        make_trainer(tmp_path, play, max_steps=3).train(resume_from_checkpoint=True)

    @pytest.mark.parametrize("where", ["rollout", "log"])
    @pytest.mark.slow
    def test_failure_leaves_a_saved_state(self, where: str, tmp_path: Path) -> None:
        settings = {"max_steps": 4, "learning_rate": 1e-2, "logging_steps": {"rollout": 3, "log": 1}[where]}

        def plays(request: Any) -> Any:
            torch.rand(7)  # has drawn some random numbers when it breaks
            if request.model is broken.model and request.batch == 2:
                raise OSError("the environment broke")
            return play(request)

        class Broken(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
                if state.global_step == 2:
                    raise OSError("the service broke")

        broken = make_trainer(tmp_path / "run", plays, **settings)
        if where == "log":
            broken.add_callback(Broken())
        with pytest.raises(OSError, match=r"the (environment|service) broke") as caught:
            broken.train()
        assert caught.value.__notes__[-1] == (
            f"The state of the last step is saved in {tmp_path / 'run' / 'checkpoint-2'}; resume with "
            "resume_from_checkpoint."
        )
        whole = make_trainer(tmp_path / "whole", plays, **settings)  # seeds the random numbers
        whole.train()
        resumed = make_trainer(tmp_path / "run", plays, **settings)
        resumed.train(resume_from_checkpoint=True)
        assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
        assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)


@pytest.mark.parametrize("problem", [None, "it is damaged"])
def test_the_main_process_decides_for_all(problem: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> str:
        raise AssertionError("read by another process")

    monkeypatch.setattr(checkpoints, "PartialState", lambda: SimpleNamespace(is_main_process=False))
    monkeypatch.setattr(checkpoints, "broadcast_object_list", lambda _own: ["checkpoint-1", problem])
    if problem is None:
        assert checkpoints.main_process_decides(never) == "checkpoint-1"
    else:
        with pytest.raises(ConfigurationError, match=problem):
            checkpoints.main_process_decides(never)


@pytest.mark.slow
def test_a_resumed_run_logs_and_saves_as_its_own_options_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_trainer(tmp_path, play, max_steps=2, logging_steps=2, save_strategy="steps", save_steps=2).train()
    resumed = make_trainer(tmp_path, play, max_steps=4, logging_steps=1, save_strategy="steps", save_steps=1, gamma=0.5)
    resumed.train(resume_from_checkpoint=True)
    assert [logs["step"] for logs in resumed.state.log_history if "grad_norm" in logs] == [2, 3, 4]
    assert (tmp_path / "checkpoint-3").is_dir()
    assert "Resumed with logging_steps=1, save_steps=1 of this run" in caplog.text
    assert "saved with other options; the run continues with these: gamma 1.0 -> 0.5, max_steps 2 -> 4." in caplog.text


def test_a_resumed_run_is_told_of_every_option_of_the_objective(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **{"loss_mask": False, "turn_returns": True, "normalise_process_rewards": True, "kl_placement": "reward"},
        **{"mask_truncated_completions": True, "group_reward": "judges:compare", "step_weight": 0.5, "delta": 2.0},
        **{"gae_level": "turn", "critic_clip": None, "entropy_coef": 0.1},
        **{"top_entropy_quantile": 0.5, "max_grad_norm": 0.5, "off_policy_mask_threshold": 1.0},
    }
    record = {"complete": True, "settings": json.loads(make_args(tmp_path).to_json_string())}
    (tmp_path / "checkpoint.json").write_text(json.dumps(record))
    in_the_loss = {"beta": 0.1, "use_bias_correction_kl": True}  # not together with kl_placement=reward
    for each in (in_the_loss, changes):
        message = str(checkpoints.changed_options_message(tmp_path, make_args(tmp_path, **each)))
        assert [name for name in each if f" {name} " not in message] == []
    assert "advantage_mask True -> False" in message  # which follows loss_mask


@pytest.mark.slow
def test_a_run_that_was_stopped_keeps_the_checkpoint_that_it_is_resumed_from(tmp_path: Path) -> None:
    """Where one checkpoint is kept, transformers deletes all but the best at the end of a run."""

    trainer = make_trainer(tmp_path, play, max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=1)
    trainer.add_callback(StopAfterTwo())
    trainer.train()
    assert checkpoints.last_complete(tmp_path) == tmp_path / "checkpoint-2"


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    trainer = build(directory / "whole", save_strategy="no")
    trainer.train()
    end(trainer, directory / "whole")
    in_folders_of_their_own(directory / "own")
    for stop in (stopped_by_signal, failed):
        folder = directory / stop.__name__
        stop(folder)
        trainer = build(folder)
        trainer.train(resume_from_checkpoint=True)
        end(trainer, folder)
    killed_while_saving(directory / "killed")


@pytest.mark.parametrize(
    "changes", [{"files": [1]}, {"crc32": {"/dev/zero": 1}}, {"files": {"../other": 1}}, {"files": {"a\x1b[2J": 1}}]
)
def test_a_record_leads_to_no_file_outside(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    record = {"complete": True, "format": 2, "files": {}, "crc32": {}} | changes
    (folder / "checkpoint.json").write_text(json.dumps(record))
    reason = checkpoints.incomplete_reason(folder)
    assert reason is not None and "\x1b" not in reason


class Bomb:
    """Pickled, it creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_a_pickle_in_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    torch.save({"rollouts": Bomb(tmp_path / "proof")}, tmp_path / "rollouts_0.pt")
    with pytest.raises(pickle.UnpicklingError):
        _read_state(tmp_path, 0)
    assert not (tmp_path / "proof").exists()


def test_no_file_is_unpickled_with_code() -> None:
    loads = 0
    for path in Path(trainers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                loads += 1
                assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords), path
    assert loads >= 3
