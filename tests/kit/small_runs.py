"""Trainers of a tiny model around a one-turn toy that can be learned, or around fixed rollouts, worked out by hand."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

from agent_r1_gym.run.record import Tokens, Trajectory
from agent_r1_gym.run.record import Turn as TurnRecord
from tests.kit.models import make_model, make_tokenizer
from trainers.algorithms.batch import tokens_of
from trainers.config.agent import AgentConfig
from trainers.config.presets import ALGORITHMS
from trainers.rollouts.collect import Collect, RolloutRequest, RolloutResult
from trainers.trainer import AgentTrainer

Turn = tuple[Sequence[int], float, Sequence[int]]
"""What the model sampled, its reward, and what the environment said then."""


class StopAfterTwo(TrainerCallback):
    """Stops a run after its second step, the first of which was the best."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        state.best_model_checkpoint = f"{args.output_dir}/checkpoint-1"
        control.should_training_stop = state.global_step >= 2


def make_trajectory(
    prompt: Sequence[int],
    turns: Sequence[Turn],
    *,
    truncated: bool = False,
    error: str | None = None,
    rewritten: Sequence[int] = (),
    outcomes: Sequence[float] = (),
    **terms: float,
) -> Trajectory:
    """Lays turns one after another; every sampled token gets the log-probability -1.

    After the turns in `rewritten`, what the environment says is a context that takes the place of all before. The
    first turns' shares of the outcome are `outcomes`; the last turn has the reward `terms`.
    """
    ids: list[int] = []
    logprobs: list[float | None] = []
    spans = []
    records = []
    for number, (sampled, reward, said) in enumerate(turns):
        spans.append((len(ids), len(ids) + len(sampled)))
        outcome = outcomes[number] if number < len(outcomes) else 0.0
        last = number == len(turns) - 1
        records.append(TurnRecord("", reward, terms if last else {}, outcome))
        ids += [*sampled, *said]
        logprobs += [-1.0] * len(sampled) + [None] * len(said)
    tokens = Tokens(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(ids),
        loss_mask=tuple(int(logprob is not None) for logprob in logprobs),
        logprobs=tuple(logprobs),
        spans=tuple(spans),
        context_starts=tuple(spans[number][1] for number in rewritten),
    )
    return Trajectory(
        turns=tuple(records),
        terminated=not truncated,
        truncated=truncated,
        infrastructure_error=error,
        tokens=tokens,
    )


def multi_turn_batch() -> list[Trajectory]:
    """Two groups of four rollouts with one to three turns; some end in what the environment said."""
    return [
        make_trajectory([2, 5, 11, 8], [([12, 8, 3], 0.1, [2, 7, 13]), ([14, 8, 3], 1.0, [])]),
        make_trajectory([2, 5, 11, 8], [([14, 9, 3], 0.0, [])]),
        make_trajectory([2, 5, 11, 8], [([12, 3], -0.1, [2, 7]), ([12, 9, 3], 0.2, [2, 7, 13, 13])]),
        make_trajectory([2, 5, 11, 8], [([14, 8, 10], 0.5, [])], truncated=True),
        make_trajectory([2, 5, 8], [([12, 3], 0.0, [7]), ([12, 10, 3], 0.0, [7, 13]), ([14, 3], 1.0, [])]),
        make_trajectory([2, 5, 8], [([12, 12, 12], 0.3, [13])]),
        make_trajectory([2, 5, 8], [([14, 15, 3], 0.0, [])]),
        make_trajectory([2, 5, 8], [([16], 0.7, [7, 7, 7]), ([14, 16, 3], 0.0, [])]),
    ]


def several_contexts() -> list[Trajectory]:
    """One group: contexts that were rewritten once, twice and never."""
    return [
        make_trajectory([2, 5, 11], [([12, 8, 3], 0.0, [2, 7, 13]), ([14, 3], 1.0, [])], rewritten=[0]),
        make_trajectory(
            [2, 5, 11],
            [([12, 3], 0.2, [2, 7, 12]), ([9, 8, 3], 0.0, [2, 13]), ([14, 15, 3], 0.0, [7])],
            rewritten=[0, 1],
        ),
        make_trajectory([2, 5, 11], [([12, 8, 3], 0.0, [2, 7, 13]), ([14, 3], 0.5, [])]),
        make_trajectory([2, 5, 11], [([9, 3], 0.1, [])]),
    ]


def long_and_short_batch() -> list[Trajectory]:
    """Two groups of four rollouts of 1 to 57 tokens, of which tools said up to 33."""
    found = [2, 7, 13, 5, 11] * 5
    return [
        make_trajectory([2, 5, 11, 8], [([12, 8, 3], 0.1, found), ([14, 8, 10, 3], 1.0, [])]),
        make_trajectory([2, 5, 11, 8], [([3], 0.0, [])]),
        make_trajectory([2, 5, 11, 8], [([12, 3] * 6, -0.1, [2, 7] * 4), ([12, 9, 3] * 4, 0.2, found)]),
        make_trajectory([2, 5, 11, 8], [([14, 8, 10], 0.5, [7])], truncated=True),
        make_trajectory([2, 5, 8], [([12, 3], 0.0, [7]), ([12, 10, 3], 0.0, [7, 13] * 9), ([14, 3], 1.0, [])]),
        make_trajectory([2, 5, 8], [([12, 12, 12], 0.3, found)]),
        make_trajectory([2, 5, 8], [([14, 15, 3], 0.0, [])]),
        make_trajectory([2, 5, 8], [([16] * 9, 0.7, [7, 7, 7]), ([14, 16, 3] * 3, 0.0, [])]),
    ]


def one_turn_batch() -> list[Trajectory]:
    """Two groups of four rollouts of one turn, with nothing said by the environment."""
    replies = [[8, 3], [9, 10, 3], [8, 8, 8], [3], [14, 15], [14, 16, 3], [15, 3], [9]]
    rewards = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 0.25]
    prompts = [[2, 5, 11, 8]] * 4 + [[2, 5, 8]] * 4
    return [
        make_trajectory(prompt, [(reply, reward, [])])
        for prompt, reply, reward in zip(prompts, replies, rewards, strict=True)
    ]


def give(trajectories: Sequence[Trajectory]) -> Collect:
    """A `collect` that returns these, whatever the rows."""
    return lambda request: RolloutResult(request.rows, list(trajectories))


def by_row(request: RolloutRequest) -> RolloutResult:
    """A `collect` whose trajectories depend on the row and on which of its copies it is, not on the process."""
    trajectories = []
    for position, row in enumerate(request.rows):  # four copies of a row stand together
        generator = torch.Generator().manual_seed(zlib.crc32(f"{row['target']} {position % 4}".encode()))
        turns = []
        for _ in range(int(torch.randint(1, 4, (), generator=generator))):
            sizes = torch.randint(1, 5, (2,), generator=generator).tolist()
            sampled, said = (torch.randint(4, 17, (size,), generator=generator).tolist() for size in sizes)
            turns.append((sampled, torch.rand((), generator=generator).item(), said))
        rewritten = range(len(turns) - 1)[position % 4 :]  # none, or all but the first contexts
        trajectories.append(make_trajectory([2, 5, row["target"]], turns, rewritten=rewritten))
    return RolloutResult(request.rows, trajectories)


def distributions_of_turns(model: Any, record: Trajectory, *, prefix: Sequence[int] = ()) -> list[torch.Tensor]:
    """Log-probs of the vocabulary, with gradient, at each turn's tokens: a plain pass over each context."""
    tokens, found = tokens_of(record), []
    for start, end in pairwise([0, *tokens.context_starts, len(tokens.completion_ids)]):
        before = [*prefix, *([] if start else tokens.prompt_ids)]
        ids = torch.tensor([[*before, *tokens.completion_ids[start:end]]])
        table = model(input_ids=ids).logits[0].log_softmax(-1)
        for first, last in tokens.spans:
            if start <= first < end:
                found.append(table[torch.arange(first, last) - start + len(before) - 1])
    return found


def logps_of_turns(model: Any, record: Trajectory, *, prefix: Sequence[int] = ()) -> list[torch.Tensor]:
    """Log-probs with gradient of each turn's tokens, with `prefix` in front of each context."""
    tokens = tokens_of(record)
    sampled = (torch.tensor(tokens.completion_ids[first:last]) for first, last in tokens.spans)
    tables = distributions_of_turns(model, record, prefix=prefix)
    return [table.gather(1, ids[:, None])[:, 0] for table, ids in zip(tables, sampled, strict=True)]


def gradients(trainer: Any, output: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """Returns loss and gradients of TRL's loss on a batch."""
    trainer.current_gradient_accumulation_steps = 1  # set by `train`
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, output)
    loss.backward()
    parameters = trainer.model.named_parameters()
    return loss.item(), {name: p.grad.clone() for name, p in parameters if p.grad is not None}


COLOURS = ("red", "green", "blue")


def make_rows(prompts: Sequence[str] = COLOURS * 4) -> Dataset:
    """One row per word: the prompt asks for it, `target` is its token."""
    targets = make_tokenizer().convert_tokens_to_ids(list(prompts))
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"say {word}"}], "target": target}
            for word, target in zip(prompts, targets, strict=True)
        ]
    )


def make_args(folder: Path, **settings: Any) -> AgentConfig:
    """Arguments for a CPU, with no reference model, no report, and a constant learning rate."""
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "beta": 0.0,
        "max_steps": 1,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "alarm_drift_above": math.inf,  # log-probs of fixed rollouts are made up
    }
    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False, "disable_tqdm": True}
    return AgentConfig(output_dir=str(folder), **(defaults | fixed | settings))


def teacher_settings(algorithm: str, folder: Path) -> dict[str, Any]:
    """A teacher for the algorithms that need one, on disk, which also reads the answer where their preset says so."""
    preset = ALGORITHMS[algorithm].settings
    if not preset["distillation_weight"]:
        return {}
    make_model(seed=1).save_pretrained(folder / "teacher")
    make_tokenizer().save_pretrained(folder / "teacher")
    privileged = {"teacher_privileged": "answer"} if preset["teacher_privileged"] else {}
    return {"teacher_model_name_or_path": str(folder / "teacher"), **privileged}


def make_trainer(
    folder: Path, collect: Collect, *, model: Any = None, lora: bool = False, backend: Any = None, **settings: Any
) -> AgentTrainer:
    """A trainer of the tiny model, or of `model`, on `make_rows`; its rollouts are sampled by `backend`, if any."""
    return AgentTrainer(
        model or make_model(),
        make_args(folder, **settings),
        collect=collect,
        train_dataset=make_rows(),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=8, target_modules="all-linear") if lora else None,
        start_backend=None if backend is None else lambda _model, _sharding: backend,
    )


def score(trainer: Any, count: int = 8) -> dict[str, Any]:
    """What TRL makes of `count` rows rolled out, advantages included."""
    trainer.model.train()
    rows = [{"prompt": [{"role": "user", "content": "say red"}]} for _ in range(count)]
    output: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return output


def run(folder: Path, trajectories: Sequence[Trajectory], **settings: Any) -> tuple[AgentTrainer, dict[str, Any]]:
    """A trainer of fixed rollouts, in groups of four at most, and its scored batch."""
    size = len(trajectories)
    defaults = {"per_device_train_batch_size": size, "num_generations": min(4, size)}
    trainer = make_trainer(folder, give(trajectories), **(defaults | settings))
    return trainer, score(trainer, size)


def learns(folder: Path, collect: Collect, *, algorithm: str, **settings: Any) -> None:
    """Trains from chance to nearly every reward."""
    rates = {"learning_rate": 3e-3, "critic_learning_rate": 3e-3, "entropy_coef": 0.05}
    sizes = {"per_device_train_batch_size": 48, "num_generations": 16}
    trainer = make_trainer(folder, collect, algorithm=algorithm, **rates, **sizes, **settings)
    trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    assert rewards[0] < 0.7
    assert rewards[-1] >= 0.95


def play(request: RolloutRequest) -> RolloutResult:
    """Samples one token for each row: reward 1 if it is the target."""
    rows = request.rows
    ids = make_tokenizer().apply_chat_template(
        [row["prompt"] for row in rows], add_generation_prompt=True, return_dict=False
    )
    with torch.no_grad():
        logits = request.model(input_ids=torch.tensor(ids)).logits[:, -1]
    logps = logits.log_softmax(-1)
    tokens = torch.multinomial(logps.exp(), 1)[:, 0].tolist()
    records = []
    for prompt, token, logp, row in zip(ids, tokens, logps, rows, strict=True):
        reward = float(token == row["target"])
        record = make_trajectory(prompt, [([token], reward, [])], outcomes=[reward])
        assert record.tokens is not None
        answers = (make_tokenizer().decode([row["target"]]),)
        known = replace(record.tokens, logprobs=(logp[token].item(),))
        records.append(replace(record, tokens=known, gold_answers=answers))
    return RolloutResult(rows, records)
