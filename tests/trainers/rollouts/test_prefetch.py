"""A batch that is played in advance: begun at once, taken once, saved whole or as what is to be played again."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.trainers.rollouts.test_collect import CALL, played
from trainers.rollouts.collect import RolloutResult
from trainers.rollouts.prefetch import RolloutPrefetcher, repartition_prefetched

ROWS: list[dict[str, Any]] = [{"seed": 1, "prompt": [{"role": "user", "content": "who"}]}]


@pytest.fixture
def prefetcher() -> Iterator[RolloutPrefetcher]:
    made = RolloutPrefetcher(lambda: None)
    yield made
    made.close()


def batch() -> RolloutResult:
    return RolloutResult(ROWS, [played(CALL, "<answer>yes</answer>")], {"rollout/resampled": 0.5}, 3)


def saved(state: Any) -> Any:
    """The state as a checkpoint holds it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_it_begins_at_once_and_is_taken_once(prefetcher: RolloutPrefetcher) -> None:
    begun, go = threading.Event(), threading.Event()

    def play() -> RolloutResult:
        begun.set()
        assert go.wait(30)
        return batch()

    assert prefetcher.pop_batch() is None
    prefetcher.start(ROWS, play)
    assert begun.wait(30)  # while nobody waits for it
    go.set()
    prefetcher.wait()
    rows, found = prefetcher.pop_batch() or ([], None)
    assert rows == ROWS
    assert found is not None
    assert found.step == 3
    assert prefetcher.pop_batch() is None


def test_one_thread_plays_all(prefetcher: RolloutPrefetcher) -> None:
    threads = []

    def play() -> RolloutResult:
        threads.append(threading.get_ident())
        return batch()

    prefetcher.run_now(play)
    prefetcher.start(ROWS, play)
    prefetcher.pop_batch()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_a_checkpoint_holds_what_was_played(prefetcher: RolloutPrefetcher) -> None:
    prefetcher.start(ROWS, batch)
    other = RolloutPrefetcher(lambda: None)
    other.load(saved(prefetcher.state()))
    rows, found = other.pop_batch() or ([], None)
    assert rows == ROWS
    assert found is not None
    assert found.records == batch().records
    assert (found.step, found.metrics, found.rows) == (3, {"rollout/resampled": 0.5}, ROWS)


def test_of_what_failed_the_rows_are_kept(prefetcher: RolloutPrefetcher) -> None:
    def fails() -> RolloutResult:
        raise OSError("gone")

    prefetcher.start(ROWS, fails)
    state = saved(prefetcher.state())
    with pytest.raises(OSError, match="gone"):
        prefetcher.pop_batch()
    prefetcher.load(state)
    assert prefetcher.pop_batch() == (ROWS, None)


def test_nothing_begun_is_nothing_saved(prefetcher: RolloutPrefetcher) -> None:
    assert prefetcher.state() is None
    prefetcher.load(None)
    assert prefetcher.pop_batch() is None


def test_what_is_left_is_cancelled() -> None:
    go, cancelled = threading.Event(), []

    def cancel() -> None:
        cancelled.append(True)
        go.set()

    def play() -> RolloutResult:
        assert go.wait(30)
        return batch()

    prefetcher = RolloutPrefetcher(cancel)
    prefetcher.start(ROWS, play)
    prefetcher.close()
    assert cancelled
    assert prefetcher.pop_batch() is None
    prefetcher.start(ROWS, batch)  # another run
    assert prefetcher.pop_batch() is not None
    prefetcher.close()
    assert cancelled == [True]


def test_a_run_that_failed_waits_for_nothing() -> None:
    begun, go, cancelled = threading.Event(), threading.Event(), []

    def play() -> RolloutResult:
        begun.set()
        assert go.wait(30)
        return batch()

    prefetcher = RolloutPrefetcher(lambda: cancelled.append(True))
    prefetcher.start(ROWS, play)
    assert begun.wait(30)
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "rollouts")
    prefetcher.abandon()
    assert cancelled
    assert thread.is_alive()
    assert thread.daemon  # nor does the program
    assert prefetcher.pop_batch() is None
    prefetcher.start(ROWS, batch)  # another run, in a thread of its own
    assert prefetcher.pop_batch() is not None
    prefetcher.close()
    go.set()
    thread.join(30)
    assert not thread.is_alive()


def test_other_numbers_of_processes_cut_it_anew() -> None:
    def state(first: int) -> dict[str, Any]:
        rows = [{"seed": first}, {"seed": first + 1}]
        records = [{"task": row["seed"]} for row in rows]
        return {
            "rows": rows,
            "records": records,
            "played_rows": rows,
            "step": 4,
            "summed_metrics": {"rollout/resampled": 0.25},
        }

    parts = [repartition_prefetched([state(0), state(2)], processes=4, rank=rank) or {} for rank in range(4)]
    assert [part["rows"] for part in parts] == [[{"seed": seed}] for seed in range(4)]
    assert [part["records"] for part in parts] == [[{"task": seed}] for seed in range(4)]
    assert [part["summed_metrics"]["rollout/resampled"] for part in parts] == [0.5, 0.0, 0.0, 0.0]  # they are added up
    whole = repartition_prefetched([state(0), state(2)], processes=1, rank=0) or {}
    assert [row["seed"] for row in whole["played_rows"]] == [0, 1, 2, 3]


def test_what_one_process_has_lost_all_play_again() -> None:
    kept = {"rows": [{"seed": 0}], "records": [{}], "played_rows": [{"seed": 0}], "step": 1, "summed_metrics": {}}
    lost = {"rows": [{"seed": 1}], "records": None}
    assert repartition_prefetched([kept, lost], processes=1, rank=0) == {
        "rows": [{"seed": 0}, {"seed": 1}],
        "records": None,
    }
    assert repartition_prefetched([kept, None], processes=1, rank=0) is None
