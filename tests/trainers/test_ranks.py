"""One, two and four processes: one gradient, and runs that go on by another number of them."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import set_seed
from filelock import FileLock
from peft import LoraConfig
from torch.distributed.tensor import DTensor
from torch.testing import assert_close
from transformers import TrainerCallback

from tests.kit.commands import run_script
from tests.kit.models import make_model, make_tokenizer
from tests.kit.process_groups import in_world, under_fsdp2
from tests.kit.small_runs import COLOURS, by_row, make_args, make_rows, play
from trainers.algorithms import critic
from trainers.algorithms.advantages import ESTIMATORS
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions
from trainers.algorithms.critic import Critic, build_value_model
from trainers.resume.checkpoints import last_complete
from trainers.resume.sharding import sharding_of
from trainers.rollouts.collect import Collect, RolloutRequest, RolloutResult
from trainers.trainer import AgentTrainer

PROCESSES = (1, 2, 4)
BATCH = 16
"""Rollouts in a batch, whoever plays them."""


def own(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """An algorithm that all processes find by its name."""
    return ESTIMATORS["rloo"](inputs, options)


def losing(request: RolloutRequest) -> RolloutResult:
    """Rollouts by row; a backend spoilt all of one row, so that one process of four has none, and one of each other."""
    records = [
        replace(record, infrastructure_error="the backend is dead")
        if row["target"] == LOST or position % 4 == 1
        else record
        for position, (row, record) in enumerate(zip(request.rows, by_row(request).records, strict=True))
    ]
    return RolloutResult(request.rows, records)


def answering(request: RolloutRequest) -> RolloutResult:
    """Rollouts by row, of tasks with an answer."""
    records = [replace(record, gold_answers=("green",)) for record in losing(request).records]
    return RolloutResult(request.rows, records)


def mostly_silent(request: RolloutRequest) -> RolloutResult:
    """Rollouts by row, without rewards but for one task, so that some processes have no rollout with an advantage."""
    records = [
        record if row["target"] == LOST else replace(record, turns=[replace(turn, reward=0.0) for turn in record.turns])
        for row, record in zip(request.rows, by_row(request).records, strict=True)
    ]
    return RolloutResult(request.rows, records)


LOST = make_rows(["red"])[0]["target"]
MIXTURE = {"envs": ["FictionQA name=a", "FictionQA name=b"]}
GRADIENTS: dict[str, tuple[Collect, dict[str, Any]]] = {
    "grpo": (by_row, {"algorithm": "grpo", "beta": 0.1, "update_layout": "rows"}),
    "split groups": (by_row, {"algorithm": "tests.trainers.test_ranks:own", "num_generations": 8, "loss_type": "dapo"}),
    "ppo": (by_row, {"algorithm": "ppo", "beta": 0.1, "num_generations": 1}),
    "reinforce++": (by_row, {"algorithm": "reinforce++", "num_generations": 1}),
    "gigpo": (by_row, {"algorithm": "gigpo"}),
    "mixture": (by_row, {"algorithm": "grpo", "update_layout": "packed", **MIXTURE}),
    "dr_grpo, lost": (losing, {"algorithm": "dr_grpo"}),
    "dapo, lost": (losing, {"algorithm": "grpo", "loss_type": "dapo"}),
    "ppo, lost": (losing, {"algorithm": "ppo", "loss_type": "grpo"}),
    "whole vocabulary": (
        answering,
        {"algorithm": "opsd", "teacher_privileged": "answer", "distillation_placement": "loss"},
    ),
    "without advantages": (mostly_silent, {"algorithm": "grpo", "skip_zero_advantages": True}),
    "mixture, lost": (losing, {"algorithm": "reinforce++", **MIXTURE}),
}
"""What is trained, by name: rollouts and settings."""

RESUMED = {
    **{"algorithm": "ppo", "num_generations": 4, "num_iterations": 2, "learning_rate": 1e-2, "max_steps": 10},
    **{"lr_scheduler_type": "linear", "optim": "adamw_torch", "adam_epsilon": 1e-4, "critic_learning_rate": 1e-3},
    **{"logging_steps": 3},
}
"""A batch of rollouts serves four optimiser steps, of half of them each: there is no order of rows to be drawn from the
second step of a batch on."""
DIVISIONS = {
    1: {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2},
    2: {"per_device_train_batch_size": 4, "steps_per_generation": 2},
    4: {"per_device_train_batch_size": 2, "steps_per_generation": 2},
}
CHAIN = (
    (2, "whole", None),
    (4, "2 to 4", "whole/checkpoint-5"),
    (2, "4 to 2", "2 to 4/checkpoint-6"),
    (1, "2 to 1", "whole/checkpoint-5"),
    (4, "1 to 4", "2 to 1/checkpoint-6"),
)
"""Runs one after another: by how many processes, into which folder, and where they go on."""
SAVED, COMPARED = (5, 6, 8), 8
"""After which steps runs are saved, and compared: the last step on rollouts of before the resume."""
FORMS = ("FULL_STATE_DICT", "SHARDED_STATE_DICT")


class Notes(TrainerCallback):
    """What each optimiser step of a run goes by: gradients, learning rate; and which rows are rolled out."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.critic: list[list[torch.Tensor]] = []
        self.rows: list[list[Any]] = []
        self.end: dict[str, Any] = {}

    def collecting(self, collect: Collect) -> Collect:
        def wrapper(request: RolloutRequest) -> RolloutResult:
            self.rows.append([row["place"] for row in request.rows])
            return collect(request)

        return wrapper

    def on_step_end(self, args: Any, state: Any, control: Any, **where: Any) -> None:
        control.should_save |= state.global_step in SAVED and args.save_strategy == "no"
        if state.global_step == COMPARED:
            self.end = stand(where["model"], where["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        parameters = model.named_parameters()
        self.gradients.append({name.removeprefix("module."): value.grad.clone() for name, value in parameters})


def stand(model: Any, optimizer: Any) -> dict[str, Any]:
    """Returns weights and the optimiser's means of gradients, gathered from their shards."""
    means = [optimizer.state[weight]["exp_avg"] for group in optimizer.param_groups for weight in group["params"]]
    return {"weights": list(map(whole, model.parameters())), "means": list(map(whole, means))}


def whole(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def make(folder: Path, collect: Collect, **settings: Any) -> tuple[AgentTrainer, Notes]:
    """A trainer of rows that know their places, and belong to a mixture where `settings` name one."""
    notes = Notes()
    rows = make_rows(COLOURS * 8)
    rows = rows.add_column("place", list(range(len(rows))))
    if "envs" in settings:
        rows = rows.add_column("env", ["a" if target == LOST else "b" for target in rows["target"]])
    args = make_args(folder, **settings)
    trainer = AgentTrainer(
        make_model(),
        args,
        collect=notes.collecting(collect),
        train_dataset=rows,
        processing_class=make_tokenizer(),
        callbacks=[notes],
    )
    if (values := trainer.critic) is not None:
        values.optimizer.register_step_pre_hook(
            lambda *_: notes.critic.append([parameter.grad.clone() for parameter in values.parameters])
        )
    return trainer, notes


def gradients(folder: Path, processes: int) -> None:
    """Writes the gradients of two steps of every run in `GRADIENTS`; four processes sum the critic's in many parts."""
    critic.BUCKET_BYTES = 2_000 if processes == 4 else critic.BUCKET_BYTES
    for name, (collect, settings) in GRADIENTS.items():
        steps = {"max_steps": 2, "optim": "sgd", "learning_rate": 0.1, "critic_learning_rate": 1e-4}
        size = {"per_device_train_batch_size": BATCH // processes}
        trainer, notes = make(folder, collect, **(steps | size | settings))
        trainer.train()
        if trainer.accelerator.is_main_process:
            torch.save({"policy": notes.gradients, "critic": notes.critic}, folder / f"{name} {processes}.pt")
    if processes > 1:
        critics_are_alike(trainer)


def critics_are_alike(trainer: AgentTrainer) -> None:
    """Adapters are drawn at random, and the random state of the processes differs, as TRL leaves it."""
    set_seed(1, device_specific=True)
    model = build_value_model(make_model(), peft_config=LoraConfig(r=4, target_modules="all-linear"))
    values = Critic(model, trainer.args, accelerator=trainer.accelerator)
    sums = trainer.accelerator.gather(torch.stack([parameter.abs().sum() for parameter in values.parameters])[None])
    assert torch.equal(sums, sums[:1].expand_as(sums))


def resume(folder: Path, processes: int, name: str, checkpoint: str | None, *, form: str | None) -> None:
    """Trains, or goes on, to step 10, under FSDP2 where a `form` is named; writes what it saw."""
    if form is not None:
        under_fsdp2(form)
    trainer, notes = make(folder / name, by_row, **RESUMED, **DIVISIONS[processes], use_cpu=form is None)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(folder / checkpoint))
    assert (sharding_of(trainer.accelerator) or "").endswith(form or "")
    rank, log = trainer.accelerator.process_index, trainer.state.log_history
    (folder / name / f"rows_{rank}.json").write_text(json.dumps(notes.rows))
    if rank == 0:
        assert trainer.critic is not None
        values = list(trainer.critic.model.state_dict().values())
        torch.save({**notes.end, "critic": values}, folder / name / "end.pt")
        (folder / name / "log.json").write_text(json.dumps(log))


def chain(folder: Path, form: str | None = None, *, length: int = len(CHAIN)) -> None:
    """Trains by one number of processes, and goes on by others."""
    for number, name, checkpoint in CHAIN[:length]:
        statuses = in_world(number, functools.partial(resume, folder, number, name, checkpoint, form=form))
        assert not any(statuses), (form, name, statuses)


def sampled(folder: Path, *, kill: bool) -> None:
    """Trains on rollouts that are drawn at random; one process is killed in the middle of its third batch of them."""

    def collect(request: RolloutRequest) -> RolloutResult:
        if kill and request.batch == 2 and request.process_group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return play(request)

    settings = {"algorithm": "ppo", "learning_rate": 1e-2, "per_device_train_batch_size": BATCH // 4, "max_steps": 4}
    trainer, _ = make(folder, collect, **settings, num_generations=4, save_strategy="steps", save_steps=1)
    trainer.train(resume_from_checkpoint=True)
    values = trainer.critic
    assert values is not None
    kept = trainer.process_group.all_gather(len(values.optimizer.optim.state))
    assert sum(kept) == len(values.parameters)  # each process keeps the optimiser's state of some weights
    assert all(0 < number < len(values.parameters) for number in kept)
    if trainer.accelerator.is_main_process:
        torch.save([*trainer.model.parameters(), *values.parameters], folder / "end.pt")


def undisturbed_and_killed(folder: Path) -> None:
    """Writes the end of a run, and that of one that lost a process and was started again."""
    statuses = in_world(4, functools.partial(sampled, folder / "undisturbed", kill=False))
    assert not any(statuses), statuses
    statuses = in_world(4, functools.partial(sampled, folder / "killed", kill=True))
    assert statuses[2] == signal.SIGKILL, statuses
    assert all(statuses), statuses  # the others do not wait for ever
    assert last_complete(folder / "killed") == folder / "killed" / "checkpoint-2"
    statuses = in_world(4, functools.partial(sampled, folder / "killed", kill=False))
    assert not any(statuses), statuses


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """What all the runs wrote, which the first of several workers makes for all of them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "ranks"
    with FileLock(f"{folder}.lock"):
        if not (folder / "status").exists():
            folder.mkdir()
            (folder / "status").write_text(str(run_script("tests.trainers.test_ranks", str(folder))))
    assert (folder / "status").read_text() == "0"
    return folder


@pytest.mark.parametrize("processes", PROCESSES[1:])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_do_not_depend_on_the_number_of_processes(name: str, processes: int, folder: Path) -> None:
    """Those of the policy, in two steps, and of the critic, in all of its own."""
    alone, together = (torch.load(folder / f"{name} {number}.pt") for number in (1, processes))
    assert_close(together, alone, rtol=0, atol=1e-6)
    assert len(alone["policy"]) == 2
    for step in alone["policy"]:
        assert all(gradient.abs().max() > 1e-4 for weight, gradient in step.items() if "proj" in weight)


RUNS = [("DDP", name) for _, name, _ in CHAIN[1:]] + [(form, name) for form in FORMS for _, name, _ in CHAIN[1:3]]


@pytest.mark.parametrize(("form", "name"), RUNS)
def test_another_number_of_processes_goes_on(form: str, name: str, folder: Path) -> None:
    """Resumed in the middle of a batch of rollouts, half of them trained on, with numbers that were not logged yet."""
    whole, resumed = folder / form / "whole", folder / form / name
    ends = [torch.load(run / "end.pt") for run in (resumed, whole)]
    assert_close(ends[0]["weights"], ends[1]["weights"], rtol=0, atol=1e-6)
    assert_close(ends[0]["means"], ends[1]["means"], rtol=0, atol=1e-6)
    assert_close(ends[0]["critic"], ends[1]["critic"], rtol=0, atol=1e-4)  # has learned of rollouts since
    saved = [torch.load(run / f"checkpoint-{COMPARED}" / "critic.pt") for run in (resumed, whole)]
    assert_close(saved[0], saved[1], rtol=0, atol=0)  # was only handed on, its optimiser's state too
    assert rows_of(resumed)[0] == rows_of(whole)[2]
    logs = [json.loads((run / "log.json").read_text()) for run in (resumed, whole)]
    logged = [[row for row in log if "learning_rate" in row] for log in logs]
    for number in ("step", "epoch", "learning_rate", "reward", "num_tokens"):
        assert [row[number] for row in logged[0]] == pytest.approx([row[number] for row in logged[1]], abs=1e-6)
    losses = [[row["loss"] for row in rows if row["step"] <= COMPARED] for rows in logged]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)  # that of step 9 goes by an order drawn since
    assert len(losses[0]) == 2


def test_process_that_is_killed_in_its_rollouts(folder: Path) -> None:
    """Bit for bit, on the same number of processes, with tokens drawn at random."""
    ends = [torch.load(folder / name / "end.pt") for name in ("killed", "undisturbed")]
    assert_close(*ends, rtol=0, atol=0)


def rows_of(run: Path) -> list[list[int]]:
    """Returns the places of the rows of each batch of rollouts, those of all processes in their order."""
    parts = [json.loads(path.read_text()) for path in sorted(run.glob("rows_*.json"))]
    return [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]


if __name__ == "__main__":
    directory, os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = Path(sys.argv[1]), "1"
    torch.set_num_threads(1)
    for number in PROCESSES:
        statuses = in_world(number, functools.partial(gradients, directory, number))
        assert not any(statuses), (number, statuses)
    undisturbed_and_killed(directory)
    chain(directory / "DDP")
    for form in FORMS:
        chain(directory / form, form, length=3)
