"""Groups without signal: replaced by others, counted, drawn once; the same batch after the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.record import Trajectory
from tests.kit.samples import samples
from tests.kit.say_env import register_say, save_model
from tests.kit.small_runs import make_trajectory
from tests.trainers.vllm.say import say_config
from trainers.rollouts.dynamic_sampling import has_signal, make_row_sampler, resample_groups, task_key

TASKS = [{"task_index": index, "prompt": str(index)} for index in range(40)]


def record(reward: float) -> Trajectory:
    return make_trajectory([4], [([5], reward, [])])


def lost() -> Trajectory:
    return replace(record(0.0), infrastructure_error="gone")


def test_signal() -> None:
    assert has_signal([record(0.0), record(1.0)])
    assert not has_signal([record(1.0), record(1.0)])
    assert not has_signal([record(1.0), lost()])
    assert not has_signal([lost(), lost()])


def test_signal_is_that_of_discounted_returns() -> None:
    """Of two that win, the quicker one is the better one."""
    group = [record(1.0), make_trajectory([4], [([5], 0.0, [6]), ([5], 1.0, [])])]
    assert not has_signal(group)
    assert has_signal(group, gamma=0.9)
    rows = [TASKS[0]] * 2
    assert resample_groups(rows, group, size=2, rounds=1, draw=TASKS.__getitem__, play=played(0), gamma=0.9).played == 0


def played(hopeful: int) -> Any:
    """Tasks from `hopeful` on are solved every second time, those before never."""

    def play(rows: Sequence[Any], attempt: int) -> list[Trajectory]:
        attempts.append((attempt, [row["task_index"] for row in rows]))
        return [record(float(index % 2) if row["task_index"] >= hopeful else 0.0) for index, row in enumerate(rows)]

    attempts: list[Any] = []
    play.attempts = attempts  # type: ignore[attr-defined]
    return play


def test_groups_are_replaced_until_all_have_signal() -> None:
    rows = [TASKS[index] for index in (0, 0, 30, 30, 1, 1)]
    records = [record(0.0), record(0.0), record(0.0), record(1.0), record(1.0), record(1.0)]
    kept = records[2:4]
    numbers = iter([2, 31, 32])
    play = played(30)
    reported = resample_groups(rows, records, size=2, rounds=5, draw=lambda _row: TASKS[next(numbers)], play=play)
    assert play.attempts == [(1, [2, 2, 31, 31]), (2, [32, 32])]
    assert [row["task_index"] for row in rows] == [32, 32, 30, 30, 31, 31]
    assert records[2:4] == kept
    assert all(has_signal(records[start : start + 2]) for start in (0, 2, 4))
    assert reported == (6, 2, 0)


def test_rounds_are_bounded_and_what_is_left_stays() -> None:
    rows, records = [TASKS[0]] * 2, [record(0.0), record(0.0)]
    before = list(records)
    reported = resample_groups(rows, records, size=2, rounds=3, draw=lambda _row: TASKS[1], play=played(30))
    assert reported == (6, 0, 1)
    assert (rows, records) == ([TASKS[0]] * 2, before)


def test_a_batch_with_signal_everywhere_costs_nothing() -> None:
    records = [record(0.0), record(1.0)]
    assert resample_groups([TASKS[0]] * 2, records, size=2, rounds=3, draw=TASKS.__getitem__, play=played(0)) == (
        0,
        0,
        0,
    )


def test_no_round_begins_when_time_is_over() -> None:
    records, play = [record(0.0), record(0.0)], played(30)
    reported = resample_groups(
        [TASKS[0]] * 2, records, size=2, rounds=3, draw=lambda row: row, play=play, out_of_time=lambda: True
    )
    assert reported == (0, 0, 1)
    assert not play.attempts


def test_tasks_are_drawn_once_and_of_the_same_environment() -> None:
    rows = [{**row, "env": "ab"[index % 2]} for index, row in enumerate(TASKS)]
    used_keys = [task_key(row) for row in rows[:10]]
    draw = make_row_sampler(rows, used_keys, seed=1)
    drawn = [draw(rows[number]) for number in range(12)]
    assert [row["env"] for row in drawn] == ["a", "b"] * 6
    assert len({row["task_index"] for row in drawn}) == 12
    assert min(row["task_index"] for row in drawn) >= 10
    again = make_row_sampler(rows, used_keys, seed=1)
    assert [again(rows[number]) for number in range(12)] == drawn
    other = make_row_sampler(rows, used_keys, seed=2)
    assert [other(rows[number]) for number in range(12)] != drawn
    assert make_row_sampler(rows[:1], used_keys[:1], seed=1)(rows[0]) == rows[0]  # there is no other
    rare = [{**row, "env": "rare" if index == 7 else "common"} for index, row in enumerate(TASKS)]
    assert make_row_sampler(rare, [], seed=1)({"env": "rare"}) == rare[7]


def test_a_data_set_is_not_read_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    named = [{**row, "env": "ab"[index % 2]} for index, row in enumerate(TASKS)]
    read, get = list[Any](), Dataset.__getitem__

    def counted(own: Dataset, key: Any) -> Any:
        read.append(key)
        return get(own, key)

    monkeypatch.setattr(Dataset, "__getitem__", counted)
    for rows, wanted in ((named, {"env": "b"}), (TASKS, {})):
        read.clear()
        draw = make_row_sampler(Dataset.from_list(rows), [], seed=1)  # type: ignore[arg-type]  # a sequence of rows
        assert not read
        assert draw(wanted) == make_row_sampler(rows, [], seed=1)(wanted)
        assert sum(isinstance(key, int) for key in read) == 1


def test_processes_draw_other_tasks() -> None:
    own = [make_row_sampler(TASKS, [], seed=rank, part=(rank, 2)) for rank in range(2)]
    drawn = [{draw(TASKS[0])["task_index"] for _ in range(20)} for draw in own]
    assert not drawn[0] & drawn[1]
    assert len(drawn[0] | drawn[1]) == 40


def trained(folder: Path, **changes: Any) -> Any:
    from transformers import AutoTokenizer

    from trainers.commands.train.building import build_trainer

    model = save_model(folder / "model")
    options = {"engine": "cached", "max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4, **changes}
    config = say_config(folder / "run", register_say(), **options)
    trainer = build_trainer(config, model, tokenizer=AutoTokenizer.from_pretrained(model))
    trainer.train()
    return trainer


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_a_run_has_more_signal_and_says_what_it_cost(tmp_path: Path) -> None:
    """A random model says a colour in one turn of seventeen: most groups of four have no signal."""
    shares = []
    for rounds in (0, 8):
        trainer = trained(tmp_path / str(rounds), refill_groups=rounds, learning_rate=0.0)
        steps = [row for row in trainer.state.log_history if "reward" in row]
        shares.append([row["group/frac_zero_std"] for row in steps])
        if rounds:
            assert all(row["rollout/resampled"] > 0 for row in steps if row["group/replaced"])
            assert sum(row["group/replaced"] for row in steps) > 0
        else:
            assert "rollout/resampled" not in steps[0]
    assert sum(shares[1]) < sum(shares[0])
    pairs = zip(trainer.progress.batch.rows, trainer.progress.batch.records, strict=True)
    assert all(row["prompt"] in (record.question, f"say {record.gold_answers[0]}") for row, record in pairs)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_a_deadline_is_that_of_the_batch_whatever_is_refilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deadline per round would let a process wait longer than the others wait for it."""
    ends: list[float | None] = []
    play = Player.play

    def watched(player: Player, *arguments: Any) -> None:
        ends.append(player.deadline)
        play(player, *arguments)

    monkeypatch.setattr(Player, "play", watched)
    options = {"refill_groups": 8, "rollout_deadline": 1000.0, "infrastructure_retries": 0}
    trained(tmp_path, max_steps=1, learning_rate=0.0, **options)
    assert len(ends) > 1  # groups were refilled
    assert len(set(ends)) == 1
    assert ends[0] is not None


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.slow
def test_a_resumed_run_plays_the_same(tmp_path: Path) -> None:
    options = {"refill_groups": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3}
    whole = trained(tmp_path, **options)
    from transformers import AutoTokenizer

    from trainers.commands.train.building import build_trainer

    model = str(tmp_path / "model")
    config = say_config(
        tmp_path / "run",
        register_say(),
        **{"engine": "cached", "max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4, **options},
    )
    resumed = build_trainer(config, model, tokenizer=AutoTokenizer.from_pretrained(model))
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    pairs = itertools.zip_longest(whole.model.parameters(), resumed.model.parameters())
    assert all(bool((one == two).all()) for one, two in pairs)


@samples(
    ("changes", "words"),
    [
        ({"per_device_train_batch_size": 6, "num_generations": 4, "gradient_accumulation_steps": 2}, None),
        ({"per_device_train_batch_size": 6, "num_generations": 3, "generation_batch_size": 12}, None),
        ({"engine": "trl"}, "needs engine=cached or engine=vllm"),
        ({"num_generations": 1, "algorithm": "reinforce++"}, "replaces groups of num_generations=1"),
        ({"algorithm": "ppo"}, "algorithm ppo may learn from them"),
        ({"algorithm": "gigpo"}, "algorithm gigpo may learn from them"),
        ({"turn_returns": True}, "turn_returns"),
    ],
)
def test_groups_have_to_be_whole(tmp_path: Path, changes: dict[str, Any], words: str | None) -> None:
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4}
    options = {"engine": "cached", "refill_groups": 2, **sizes, **changes}
    if words is None:
        assert say_config(tmp_path, register_say(), **options).refill_groups == 2
    else:
        with pytest.raises(ConfigurationError, match=words):
            say_config(tmp_path, register_say(), **options)


def test_dapo_refills(tmp_path: Path) -> None:
    options = {"engine": "cached", "per_device_train_batch_size": 10, "num_generations": 5}
    assert say_config(tmp_path, register_say(), algorithm="dapo", **options).refill_groups == 4
    assert say_config(tmp_path, register_say(), **options).refill_groups == 0
