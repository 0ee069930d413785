"""The folder of an evaluation run: the one place that knows its files.

`run.json`: one object.
    `format`: 1.
    `settings`: everything that decides the numbers; a resumed run must have the same. `env_id`, `env_options`,
        `policy` (as given on the command line: "oracle", "local:PATH", "naive-rag:openai:NAME" ...), `model` (options
        of the model and its decoding, {} for scripted policies), `samples`, `seed`, `questions` (how many), and what
        was asked: `dataset` (description), `question_hash` (sha256 over ids, questions and golds, in order), `corpus`
        (fingerprint of the passages, None if the data set has none).
    `starts`: one object for each time that the run was started or resumed: `date`, `command`, `versions`, `python`,
        `host` (none of it decides what is compared).
`episodes.jsonl`: one finished episode a line, written as it ends; when the run is complete, sorted by `task_index` and
    `sample`. Nothing in it depends on time or on the machine, so that two files of one run are equal byte by byte.
    Keys: those of `Trajectory` (without `dataset`) and `sample`, `type` and `hops` (of the question; None if it has
    none), `question`, `scores`: `em`, `f1`, `sub_em`, `support_recall`, `return`, `turns`, `calls`,
    `prompt_tokens`, `completion_tokens` (numbers, or None where the metric does not apply) and `failures` (number by
    error kind of calls and by code of parse errors).
    Episodes that lost a backend are not in it.
`failures.jsonl`: the episodes that stay without a backend after all tries: `task_index`, `sample`, `task_id`, `error`,
    `tries`. Written anew by every start; resuming plays them again. Absent if there are none.
`timings.jsonl`: one line an episode: `task_index`, `sample`, `seconds` (wall clock, with waiting). The last line of an
    episode counts; lines may be missing after a crash.
`run.lock`: held by the process that writes.
`metrics.json`: see `metrics.summarize`; written when the run is complete.

All JSON is UTF-8. A line that a crash tore is dropped when the run is resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.play.jobs import Job
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.types import Task

FORMAT = 1
Row = dict[str, Any]
_PACKAGES = ("agent-r1-gym", "gymnasium", "numpy", "bm25s", "urllib3", "torch", "transformers", "peft")


class RunFolder:
    """Reads and writes one run.

    Args:
        path: of the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.episodes_path = path / "episodes.jsonl"
        self.failures_path = path / "failures.jsonl"
        self.timings_path = path / "timings.jsonl"
        self.metrics_path = path / "metrics.json"
        self._run_path = path / "run.json"
        self.lock_path = path / "run"  # `storage.locked` adds ".lock"
        self._files: dict[Path, IO[bytes]] = {}

    def open(self, settings: Mapping[str, Any]) -> None:
        """Starts the run, or resumes it if the folder holds one with the same settings.

        Raises:
            ConfigurationError: the folder holds something else, or a run with other settings; the message names them.
        """
        settings = json.loads(json.dumps(settings))
        starts: list[Row] = []
        if self._run_path.exists():
            found = self.load()
            differing = list(_differences(found["settings"], settings))
            if differing:
                raise ConfigurationError(
                    f"{self.path} holds a run with other settings ({'; '.join(differing)}). Resume it with the "
                    "same, or choose another --out."
                )
            starts = found["starts"]
        elif self.path.is_dir() and any(found.name != "run.lock" for found in self.path.iterdir()):
            raise ConfigurationError(f"{self.path} exists and is neither empty nor a run; choose another --out.")
        self._write_json(self._run_path, {"format": FORMAT, "settings": settings, "starts": [*starts, _start()]})
        for path in (self.episodes_path, self.timings_path):
            _drop_torn_line(path)

    def load(self) -> Row:
        """Returns `run.json`.

        Raises:
            DatasetError: there is none, or of another format.
        """
        if not self._run_path.is_file():
            raise DatasetError(f"{self.path} holds no run.json; expected a folder that `agent-r1 eval` wrote.")
        try:
            run: Row = json.loads(self._run_path.read_text(encoding="utf-8"))
            known = run["format"] == FORMAT and isinstance(run["settings"], dict) and isinstance(run["starts"], list)
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            raise DatasetError(f"{self._run_path} is no run of format {FORMAT}; evaluate again with this version.")
        return run

    def episodes(self) -> list[Row]:
        """Returns the finished episodes, sorted by task and sample; a torn last line is left out."""
        return _read_rows(self.episodes_path)

    def failures(self) -> list[Row]:
        """Returns the episodes that stayed without a backend."""
        return _read_rows(self.failures_path)

    def seconds(self) -> dict[Job, float]:
        """Returns the wall-clock seconds of the episodes that were timed."""
        return {_job(row): row["seconds"] for row in _read_rows(self.timings_path)}

    def metrics(self) -> Row:
        """Returns `metrics.json`.

        Raises:
            DatasetError: the run is not complete.
        """
        if not self.metrics_path.is_file():
            raise DatasetError(f"{self.path} has no metrics.json: the run is not complete; resume it.")
        metrics: Row = json.loads(self.metrics_path.read_text(encoding="utf-8"))
        return metrics

    def add(self, row: Mapping[str, Any], *, seconds: float) -> None:
        """Appends one finished episode: in one write, so that a crash tears at most the last line.

        Its timing may stay in memory for a while.
        """
        timing = {"task_index": row["task_index"], "sample": row["sample"], "seconds": round(seconds, 6)}
        self._file(self.timings_path, buffering=-1).write(_line(timing).encode())
        self._file(self.episodes_path, buffering=0).write(_line(row).encode())

    def close(self) -> None:
        """Closes the files that `add` writes."""
        while self._files:
            self._files.popitem()[1].close()

    def finish(self, failures: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> None:
        """Sorts the episodes, and writes failures and metrics."""
        self.close()
        with atomic_file(self.episodes_path) as temporary:
            temporary.write_text("".join(map(_line, self.episodes())), encoding="utf-8")
        if failures:
            with atomic_file(self.failures_path) as temporary:
                temporary.write_text("".join(map(_line, sorted(failures, key=_job))), encoding="utf-8")
        else:
            self.failures_path.unlink(missing_ok=True)
        self._write_json(self.metrics_path, metrics)

    def _file(self, path: Path, *, buffering: int) -> IO[bytes]:
        if path not in self._files:
            self._files[path] = path.open("ab", buffering=buffering)
        return self._files[path]

    @staticmethod
    def _write_json(path: Path, value: Mapping[str, Any]) -> None:
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def question_hash(tasks: Iterable[Task]) -> str:
    """Returns the sha256 over ids, questions and golds of `tasks`, in order: what was asked, whatever it is called."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, list(task.answers)]).encode() + b"\n")
    return digest.hexdigest()


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields "name: old != new" for each field that differs; of an object its fields, as "object.field"."""
    for name in {**old, **new}:
        before, after = old.get(name, _MISSING), new.get(name, _MISSING)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}: {' != '.join(_cut(repr(before), repr(after)))}"


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


_MISSING = _Missing()


def _cut(*texts: str) -> list[str]:
    """Returns two texts that differ, cut to what a message has room for: around the first place where they differ."""
    different = next((i for i, pair in enumerate(itertools.zip_longest(*texts)) if len(set(pair)) > 1), 0)
    start = different - 40 if different > 60 else 0
    heads = ["…" * bool(start) + text[start:] for text in texts]
    return [head if len(head) <= 80 else head[:79] + "…" for head in heads]


def _start() -> Row:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "versions": versions,
        "python": platform.python_version(),
        "host": platform.platform(),
    }


def _job(row: Mapping[str, Any]) -> Job:
    return Job(row["task_index"], row["sample"])


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n"


def _drop_torn_line(path: Path) -> None:
    """Cuts the file after its last whole line."""
    if not path.exists():
        return
    whole = path.read_bytes().rpartition(b"\n")
    if whole[2]:
        with path.open("r+b") as file:
            file.truncate(len(whole[0]) + len(whole[1]))


def _read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file, the last of each job, sorted; what follows the last line end is torn."""
    if not path.exists():
        return []
    rows: dict[Job, Row] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
            rows[_job(row)] = row
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{path}, line {number}: expected an object with task_index and sample, got {line[:80]!r}."
            ) from error
    return [rows[job] for job in sorted(rows)]
