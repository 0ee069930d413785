"""Rollbacks: back to the last good checkpoint, once for each collapse, on record, and the same when it is killed."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Trajectory
from tests.kit.commands import run_script
from tests.kit.killed_runs import in_child, timeless
from tests.kit.samples import samples
from tests.kit.small_runs import make_args, make_trainer, play
from trainers.resume import checkpoints
from trainers.resume.rollback import FILE, Rollback, rollback_metrics
from trainers.rollouts.collect import RolloutRequest, RolloutResult
from trainers.trainer import AgentTrainer

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

SETTINGS: dict[str, Any] = {
    **{"algorithm": "ppo", "num_generations": 2, "learning_rate": 1e-2, "critic_learning_rate": 1e-2},
    **{"max_steps": 12, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2},
    **{"on_alarm": "rollback", "alarm_calls_below": 0.5, "alarm_patience": 3},
}


class Collapsing:
    """Rollouts without a call from generation batch `at` on, the first `times` times that a run comes there."""

    def __init__(self, at: int, *, times: int) -> None:
        self.at, self.times = at, times
        self.answers: list[tuple[int, int, list[int]]] = []

    def __call__(self, request: RolloutRequest) -> RolloutResult:
        records = play(request).records
        back, batch = sum(request.seed_suffix), request.batch
        self.answers.append((back, batch, [record.tokens.completion_ids[0] for record in records if record.tokens]))
        bad = batch >= self.at and back < self.times
        return RolloutResult(request.rows, records if bad else [with_calls(record) for record in records])


def with_calls(record: Trajectory) -> Trajectory:
    return replace(record, turns=tuple(replace(turn, call_errors=(None,)) for turn in record.turns))


def rewards(trainer: AgentTrainer) -> list[dict[str, Any]]:
    return [row for row in trainer.state.log_history if "reward" in row]


def end(trainer: AgentTrainer) -> dict[str, Any]:
    assert trainer.critic is not None
    critic = trainer.critic
    own: Any = getattr(critic.optimizer, "optim", critic.optimizer)  # this process's part of it
    return {
        **{"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()},
        **{"critic": critic.model.state_dict(), "critic_optimizer": own.state_dict()},
    }


@pytest.mark.slow
def test_goes_back_with_other_rollouts_and_a_fifth_of_the_learning_rate(tmp_path: Path) -> None:
    """Batches 5 to 7, of steps 6 to 8, call nothing: the last good step is 5, the last checkpoint until it 4."""
    collect = Collapsing(5, times=1)
    trainer = make_trainer(tmp_path, collect, **SETTINGS)
    trainer.train()
    assert trainer.alarm.reason is None
    assert trainer.state.global_step == 12
    (entry,) = json.loads((tmp_path / FILE).read_text())
    assert entry == {
        "reason": "rollout/calls is 0, beyond alarm_calls_below=0.5",
        **{"at": 8, "to": 4, "rollouts": 4 * 8, "factor": 0.2},
    }
    facts = [row for row in trainer.state.log_history if "rollback/count" in row]
    assert [(row["step"], row["rollback/count"], row["rollback/steps"], row["rollback/rollouts"]) for row in facts] == [
        (5, 1, 4, 32)
    ]
    assert [row["step"] for row in rewards(trainer)] == list(range(1, 13))
    assert [row["learning_rate"] for row in rewards(trainer)] == [1e-2] * 4 + [2e-3] * 8
    assert sorted(folder.name for folder in tmp_path.glob("checkpoint-*")) == sorted(
        f"checkpoint-{step}" for step in range(0, 13, 2)
    )
    played = {(back, batch): answers for back, batch, answers in collect.answers}
    assert [batch for _, batch, _ in collect.answers] == [*range(8), *range(4, 12)]
    assert any(played[0, batch] != played[1, batch] for batch in range(4, 8))


@pytest.mark.slow
def test_a_resume_after_it_is_the_same_as_no_stop(tmp_path: Path) -> None:
    """From the checkpoint that it went back to, and from one after; the first was saved before it."""
    whole = make_trainer(tmp_path / "whole", Collapsing(5, times=1), **SETTINGS)
    whole.train()
    for step in (4, 8):
        folder = tmp_path / f"from {step}"
        folder.mkdir()
        shutil.copy(tmp_path / "whole" / FILE, folder)
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", folder / f"checkpoint-{step}")
        resumed = make_trainer(folder, Collapsing(5, times=1), **SETTINGS)
        resumed.train(resume_from_checkpoint=True)
        assert_close(end(resumed), end(whole), rtol=0, atol=0)
        assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
        assert (folder / FILE).read_text() == (tmp_path / "whole" / FILE).read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it forks, with idle threads beside it
def test_a_kill_in_the_middle_of_it_changes_nothing(tmp_path: Path) -> None:
    """Just before the first checkpoint is removed, before and after the record is written."""
    whole = make_trainer(tmp_path / "whole", Collapsing(5, times=1), **SETTINGS)
    whole.train()
    for moment in ("remove", "before", "after"):
        folder = tmp_path / moment
        assert os.WTERMSIG(in_child(functools.partial(killed, folder, moment))) == signal.SIGKILL
        assert (folder / FILE).is_file() == (moment == "after")
        resumed = make_trainer(folder, Collapsing(5, times=1), **SETTINGS)
        resumed.train(resume_from_checkpoint=True)
        assert_close(end(resumed), end(whole), rtol=0, atol=0)
        assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
        assert (folder / FILE).read_text() == (tmp_path / "whole" / FILE).read_text()


def killed(folder: Path, moment: str) -> None:
    trainer = make_trainer(folder, Collapsing(5, times=1), **SETTINGS)
    write = trainer.rollbacks._write

    def kill(*arguments: Any) -> None:
        if moment == "after":
            write(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "remove":
        checkpoints.later_than = kill  # type: ignore[assignment]
    trainer.rollbacks._write = kill  # type: ignore[method-assign,assignment]
    trainer.train()


@pytest.mark.slow
def test_a_resume_from_before_a_collapse_comes_to_it_again(tmp_path: Path) -> None:
    whole = make_trainer(tmp_path / "whole", Collapsing(5, times=1), **SETTINGS)
    whole.train()
    resumed = make_trainer(tmp_path / "whole", Collapsing(5, times=1), **SETTINGS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_close(end(resumed), end(whole), rtol=0, atol=0)
    assert [rollback.to for rollback in resumed.rollbacks.history] == [4]


@pytest.mark.slow
def test_stops_when_all_are_used_and_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.resume.rollback.MAX_ROLLBACKS", 2)
    trainer = make_trainer(tmp_path, Collapsing(5, times=9), **SETTINGS, lr_scheduler_type="linear")
    trainer.train()
    assert trainer.state.global_step == 8
    again = "from step 8 to 4 (rollout/calls is 0, beyond alarm_calls_below=0.5)"
    assert trainer.alarm.reason == (
        f"rollout/calls is 0, beyond alarm_calls_below=0.5; all 2 rollbacks were used: {again}; {again}"
    )
    assert (tmp_path / "checkpoint-8").is_dir()  # as an alarm that stops leaves it
    assert rewards(trainer)[4]["learning_rate"] == pytest.approx(1e-2 * 8 / 12 / 25)
    assert rewards(trainer)[4]["rollback/steps"] == 8


@pytest.mark.parametrize(
    ("at", "on_alarm", "reason"),
    [
        (0, "rollback", "; there is no checkpoint to roll back to: none of step 0 or before"),
        (5, "stop", ""),
    ],
)
@pytest.mark.slow
def test_stops_where_it_cannot_or_must_not_go_back(tmp_path: Path, at: int, on_alarm: str, reason: str) -> None:
    collapsing = Collapsing(at, times=9)

    def collect(request: RolloutRequest) -> RolloutResult:
        shutil.rmtree(tmp_path / "checkpoint-0", ignore_errors=True)  # as a low save_total_limit does
        return collapsing(request)

    trainer = make_trainer(tmp_path, collect, **SETTINGS | {"on_alarm": on_alarm})
    trainer.train()
    assert trainer.state.global_step == at + 3
    assert (tmp_path / f"checkpoint-{at + 3}").is_dir()
    assert not (tmp_path / FILE).exists()
    said = f"rollout/calls is 0, beyond alarm_calls_below=0.5{reason}"
    assert str(trainer.alarm.reason).startswith(said)


@pytest.mark.slow
def test_an_alarm_before_the_first_save_goes_back_to_the_start(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "whole", Collapsing(0, times=1), **SETTINGS | {"save_steps": 4})
    start = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    seen: list[dict[str, torch.Tensor]] = []

    class Watching(Collapsing):
        def __call__(self, request: RolloutRequest) -> RolloutResult:
            if request.batch == 0:
                seen.append({name: weight.clone() for name, weight in request.model.state_dict().items()})
            return super().__call__(request)

    trainer.collect = Watching(0, times=1)
    trainer.train()
    assert trainer.alarm.reason is None
    assert [(rollback.at, rollback.to, rollback.rollouts) for rollback in trainer.rollbacks.history] == [(3, 0, 24)]
    assert [row["learning_rate"] for row in rewards(trainer)] == [2e-3] * 12
    assert_close(seen, [start, start], rtol=0, atol=0)


@pytest.mark.slow
def test_a_resume_from_the_start_is_a_start(tmp_path: Path) -> None:
    """As where a run is killed before its first save; a run that never goes back needs no start."""
    whole = make_trainer(tmp_path, Collapsing(99, times=0), **SETTINGS)
    whole.train()
    resumed = make_trainer(tmp_path, Collapsing(99, times=0), **SETTINGS)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-0"))
    assert_close(end(resumed), end(whole), rtol=0, atol=0)
    assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
    make_trainer(tmp_path / "stop", Collapsing(99, times=0), **SETTINGS | {"on_alarm": "stop"}).train()
    assert not (tmp_path / "stop" / "checkpoint-0").exists()


class Mirror:
    """A backend that notes the weights that it is given, and for which batch."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.given: list[tuple[int, int, torch.Tensor]] = []

    def sync(self, model: Any) -> None:
        weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        self.given.append((len(self.trainer.rollbacks.history), self.trainer.batches, weights))


@pytest.mark.slow
def test_a_backend_with_weights_of_its_own_gets_the_restored_ones(tmp_path: Path) -> None:
    mirror = Mirror()
    mirror.trainer = trainer = make_trainer(tmp_path, Collapsing(5, times=1), **SETTINGS, backend=mirror)
    trainer.train()
    given = {(back, batch): weights for back, batch, weights in mirror.given}
    assert [(back, batch) for back, batch, _ in mirror.given] == [
        *((0, batch) for batch in range(8)),
        *((1, batch) for batch in range(4, 12)),
    ]
    assert_close(given[1, 4], given[0, 4], rtol=0, atol=0)
    assert not torch.equal(given[1, 4], given[0, 7])


@pytest.mark.slow
def test_a_backend_that_is_down_stops_the_run(tmp_path: Path) -> None:
    """An earlier policy would find it as dead."""

    def lost(request: RolloutRequest) -> RolloutResult:
        records = [with_calls(record) for record in play(request).records]
        if request.batch > 3:
            records = [replace(record, infrastructure_error="gone") for record in records]
        return RolloutResult(request.rows, records)

    trainer = make_trainer(tmp_path, lost, **SETTINGS)
    trainer.train()
    assert trainer.state.global_step == 7
    assert str(trainer.alarm.reason).startswith("rollout/infra_failures is 1")
    assert not trainer.rollbacks.history


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_goes_back_too(tmp_path: Path) -> None:
    def spoilt(request: RolloutRequest) -> RolloutResult:
        if request.batch == 5 and not request.seed_suffix:
            with torch.no_grad():
                next(request.model.parameters())[0] = torch.nan
                return make_play(request)
        return play(request)

    def make_play(request: RolloutRequest) -> RolloutResult:
        clean = {name: weight.nan_to_num() for name, weight in request.model.state_dict().items()}
        spoilt = {name: weight.clone() for name, weight in request.model.state_dict().items()}
        request.model.load_state_dict(clean)
        result = play(request)
        request.model.load_state_dict(spoilt)
        return result

    trainer = make_trainer(
        tmp_path, spoilt, **SETTINGS | {"algorithm": "grpo", "alarm_calls_below": None}, logging_nan_inf_filter=False
    )
    trainer.train()
    assert trainer.state.global_step == 12
    (rollback,) = trainer.rollbacks.history
    assert (rollback.at, rollback.to) == (6, 4)
    assert all(bool(weight.isfinite().all()) for weight in trainer.model.parameters())


@pytest.mark.slow
def test_a_new_run_forgets_the_rollbacks_of_another(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps([{"reason": "", "at": 4, "to": 2, "rollouts": 1, "factor": 0.5}]))
    trainer = make_trainer(tmp_path, Collapsing(9, times=1), **SETTINGS | {"max_steps": 3})
    trainer.train()
    assert json.loads((tmp_path / FILE).read_text()) == []
    assert rewards(trainer)[0]["learning_rate"] == 1e-2


def test_numbers_are_totals() -> None:
    history = [Rollback("a", 20, 12, 64, 0.5), Rollback("b", 16, 10, 40, 0.5)]
    assert rollback_metrics(history) == {"count": 2, "steps": 14, "rollouts": 104}
    assert str(history[0]) == "from step 20 to 12 (a)"


@pytest.mark.slow
def test_two_processes_go_back_together(tmp_path: Path) -> None:
    assert run_script("tests.trainers.resume.test_rollback", str(tmp_path), processes=2) == 0
    ends = [torch.load(tmp_path / f"end_{rank}.pt") for rank in (0, 1)]
    for own in ends:
        own.pop("critic_optimizer")  # each process has its part
    assert_close(ends[0], ends[1], rtol=0, atol=0)
    assert [entry["to"] for entry in json.loads((tmp_path / "run" / FILE).read_text())] == [4]


@samples(
    ("changes", "words"),
    [
        ({"save_strategy": "no"}, "needs save_strategy=steps or epoch, save_only_model=False"),
        ({"save_only_model": True}, "save_only_model=True"),
        (
            {"save_steps": 12},
            r"save_steps=12 and max_steps=12 there is no checkpoint but the start.*Lower save_steps",
        ),
        ({"save_total_limit": 2}, r"4 steps after the last good weights.*Set save_total_limit to 3 or more"),
        ({"save_total_limit": 4, "num_iterations": 2}, r"7 steps after .*save_total_limit to 5 or more"),
        ({"save_total_limit": 5, "logging_steps": 0.25}, r"10 steps after .*save_total_limit to 6 or more"),
        ({"on_alarm": "rolback"}, r"on_alarm: got 'rolback'.*rollback"),
    ],
)
def test_settings_without_a_way_back_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){words}"):
        make_args(tmp_path, **SETTINGS | changes)


@pytest.mark.slow
def test_the_smallest_limit_that_is_taken_keeps_a_good_checkpoint(tmp_path: Path) -> None:
    """The weights that were saved after step 4 gave the first bad numbers, where those are step 5's."""
    for at, to in ((4, 2), (5, 4)):
        trainer = make_trainer(tmp_path / str(at), Collapsing(at, times=1), **SETTINGS, save_total_limit=3)
        trainer.train()
        assert [rollback.to for rollback in trainer.rollbacks.history] == [to]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    trainer = make_trainer(folder / "run", Collapsing(5, times=1), **SETTINGS)
    trainer.train()
    rank = trainer.accelerator.process_index
    facts = (len(trainer.rollbacks.history), trainer.state.global_step, trainer.accelerator.num_processes)
    if facts != (1, 12, 2):
        raise SystemExit(f"process {rank}: rollbacks, steps, processes are {facts}")
    torch.save(end(trainer), folder / f"end_{rank}.pt")
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
