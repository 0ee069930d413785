"""Rows of a data set, for libraries that open an episode per row: written here, and read here by their adapters."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, suggest
from agent_r1_gym.integrations.episode import ChatEpisode, check_calls_are_text, initial_messages
from agent_r1_gym.registry import TextEnv, full_id, make_text_env
from agent_r1_gym.run.player import HELD_OUT_SEED, TRAIN_SEEDS, Player, held_out_env, task_rows
from agent_r1_gym.run.session import ANY_TASK, Job
from agent_r1_gym.support.checks import check_integer
from agent_r1_gym.support.files import atomic_file

ADAPTER_NAME = "agent_r1_gym"
"""What rows call the adapter: SkyRL's `env_class`, verl's `agent_name`."""
_ROW_KEYS = ("env_id", "options", "task_index", "seed")
_MAX_POOLS = 64
"""Number of environments with different options for which idle ones are kept."""


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """Which episode a row stands for.

    Attributes:
        env_id: see `registry.full_id`.
        options: of the environment, as JSON: so every row of a file has the same columns.
        task_index: position of the task; None where there is no list of tasks.
        seed: the environment is reset with it.
    """

    env_id: str
    options: str
    task_index: int | None
    seed: int | None

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> EpisodeRow:
        """Parse a row of a data set.

        Args:
            row: with `env_id`, `options` (JSON or a dictionary, may be absent), and `task_index` or `seed`.

        Raises:
            ConfigurationError: the row does not name an episode, or `options` are invalid.
        """
        env_id, given, index, seed = (row.get(key) for key in _ROW_KEYS)
        try:
            options = json.loads(given) if isinstance(given, str) else dict(given or {})
            index, seed = (None if value is None else operator.index(value) for value in (index, seed))
            written = json.dumps(options, sort_keys=True)
            good = isinstance(env_id, str) and isinstance(options, dict) and (index, seed) != (None, None)
        except (TypeError, ValueError):
            good, written = False, ""
        if not good or any(isinstance(row.get(key), bool) or (row.get(key) or 0) < 0 for key in _ROW_KEYS[2:]):
            raise ConfigurationError(
                "A row needs env_id (text), options (JSON of an object, or none) and task_index or seed (integers from "
                f"0 on), as `write_rows` writes them; got { ({key: row.get(key) for key in _ROW_KEYS}) }."
            )
        return cls(str(env_id), written, index, seed)

    @property
    def pool_key(self) -> tuple[str, str]:
        """What rows of one kind of environment share."""
        return self.env_id, self.options

    def make(self, markup: Sequence[str] = ()) -> TextEnv:
        """Returns a new environment.

        Raises:
            ConfigurationError: see `registry.make_text_env`; or the row names a task where there is no list of them.
        """
        env = make_text_env(self.env_id, json.loads(self.options), markup=markup)
        self._check(env)
        return env

    def _check(self, env: TextEnv) -> None:
        if self.task_index is not None and not isinstance(env.unwrapped, ToolEnv):
            raise ConfigurationError(
                f"The row names task_index {self.task_index}, but {self.env_id} has no list of tasks: give it a seed."
            )

    @contextmanager
    def env(self, markup: Sequence[str] = ()) -> Iterator[TextEnv]:
        """The block has an environment for itself; after it, a row of the same kind may have it.

        Where the block raises, it is closed: a tool of it may still be running.

        Raises:
            ConfigurationError: see `make`.
        """
        pool = _pool(*self.pool_key, tuple(markup))
        env = pool.acquire()
        try:
            self._check(env)
            yield env
        except BaseException:
            env.close()
            raise
        pool.release(env)

    @property
    def job(self) -> Job:
        """The episode, for a session."""
        return Job(ANY_TASK if self.task_index is None else self.task_index, seed=self.seed)

    def start(self, env: TextEnv) -> ChatEpisode:
        """Returns the running episode."""
        return ChatEpisode(env, task_index=self.task_index, seed=self.seed)


@functools.lru_cache(maxsize=_MAX_POOLS)
def _pool(env_id: str, options: str, markup: tuple[str, ...]) -> Player:
    return Player(functools.partial(make_text_env, env_id, json.loads(options), markup=markup))


def write_rows(
    env: str,
    path: str | Path,
    *,
    library: str,
    options: Mapping[str, Any] | None = None,
    held_out: bool = False,
    num_rows: int | None = None,
) -> int:
    """Writes the tasks of an environment as a data set of another library.

    Args:
        env: see `registry.full_id`.
        path: a `.parquet` file (needs pyarrow) or a `.jsonl` file.
        library: "skyrl_gym" or "verl".
        options: of the environment.
        held_out: the held-out split, or seeds that training does not use; as `agent-r1 eval` plays.
        num_rows: number of rows; None: all tasks, or 1,000 seeds.

    Returns:
        The number of rows.

    Raises:
        ConfigurationError: no such environment, library or form of file, nothing is held out, or the library cannot
            play the parser's format.
        MissingDependencyError: pyarrow is not installed.
    """
    if library not in _ROWS:
        raise ConfigurationError(f"Unknown library {library!r}. {suggest(library, _ROWS)}")
    made, rows = episode_rows(env, options, held_out=held_out, num_rows=num_rows)
    try:
        _write([_ROWS[library](made, row) for row in rows], Path(path))
    finally:
        made.close()
    return len(rows)


def episode_rows(
    env: str, options: Mapping[str, Any] | None = None, *, held_out: bool = False, num_rows: int | None = None
) -> tuple[TextEnv, list[dict[str, Any]]]:
    """Returns an environment and, for each task or seed, what `EpisodeRow.read` reads; arguments as `write_rows`.

    Raises:
        ConfigurationError: see `write_rows`.
    """
    if num_rows is not None:
        check_integer("num_rows", num_rows, 1)
    given = dict(options or {})
    if isinstance(given.get("dataset"), str) and Path(given["dataset"]).exists():
        given["dataset"] = str(Path(given["dataset"]).resolve())  # the reader of the rows may run in another folder
    made, chosen, fallback_reason = held_out_env(env, given) if held_out else (make_text_env(env, given), given, "")
    has_tasks = isinstance(made.unwrapped, ToolEnv)
    if held_out and (fallback_reason or (has_tasks and "split" not in chosen)):
        raise ConfigurationError(f"{env} cannot serve what is held out: {fallback_reason or 'it has no such split'}.")
    which = {"env_id": full_id(env), "options": _as_json(chosen)}
    seeds = {} if has_tasks else {"seeds": num_rows or TRAIN_SEEDS, "first_seed": HELD_OUT_SEED if held_out else 0}
    rows = task_rows(made, **seeds)[:num_rows]
    return made, [{**which, **{name: row[name] for name in _ROW_KEYS if name in row}} for row in rows]


def _as_json(options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(options, sort_keys=True)
    except TypeError as error:
        raise ConfigurationError(
            f"Rows hold the environment's options as JSON, and these are none ({error}): {dict(options)!r:.200}. A "
            "function of a module is written as MODULE:NAME, a path as text."
        ) from error


def _skyrl_row(env: TextEnv, row: Mapping[str, Any]) -> dict[str, Any]:
    check_calls_are_text(env, "SkyRL")
    return {"prompt": initial_messages(env, row), "env_class": ADAPTER_NAME, "data_source": row["env_id"], **row}


def _verl_row(env: TextEnv, row: Mapping[str, Any]) -> dict[str, Any]:
    prompt = initial_messages(env, row)
    answers = env.unwrapped.task.answers if isinstance(env.unwrapped, ToolEnv) else ()
    return {
        "data_source": row["env_id"],
        "agent_name": ADAPTER_NAME,
        "prompt": prompt,
        "reward_model": {"style": "rule", "ground_truth": answers[0] if answers else ""},  # verl only logs it
        "extra_info": {"index": row.get("task_index", row["seed"]), **row},
    }


_ROWS = {"skyrl_gym": _skyrl_row, "verl": _verl_row}


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    if path.suffix not in (".parquet", ".jsonl"):
        raise ConfigurationError(f"Rows go into a .parquet or a .jsonl file, not {path.name!r}.")
    if path.suffix == ".jsonl":
        with atomic_file(path) as file:
            file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        return
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(f"{path.name} needs pyarrow: pip install pyarrow; or write .jsonl.") from error
    with atomic_file(path) as file:
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
