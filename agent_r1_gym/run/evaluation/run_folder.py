"""RunFolder: the files of an evaluation run, read and written in one place.

`run.json`: one object.
    `format`: 3.
    `settings`: everything that affects the results; a resumed run must have the same. `env_id`, `env_options`,
        `policy` (as given on the command line: "oracle", "local:PATH", "naive-rag:openai:NAME" ...), `model` (options
        of the model and its decoding, {} for scripted policies), `samples`, `seed`, `questions` (their number),
        `dataset` (description), `question_hash` (sha256 over ids, questions and gold answers, in order), and
        `corpus_fingerprint` (hash of the passages, None if the data set has none).
    `invocations`: one object for each start or resume of the run: `date`, `command`, `commit`, `versions`, `python`,
        `host`, metadata of the caller (`reward_weights`, `max_turns`, `base_url`), and `seconds` if it finished. None
        of it affects whether a run can be resumed.
`episodes.jsonl`: one finished episode per line, written as it ends; when the run is complete, sorted by `task_index`
    and `sample`. Nothing in it depends on time or on the machine, so that two files of one run are equal byte by byte.
    Keys: those of `run.record.Trajectory` except `seconds` and `tokens`. Infrastructure failures are not in it.
`infra_failures.jsonl`: the episodes whose backend failed in every attempt (see `InfraFailure`). Written at the end of a
    start, absent if there are none; resuming plays them again. After a start that stopped early, it also lists episodes
    that have finished since: `RunFolder.failures` drops these.
`timings.jsonl`: one line per episode: `task_index`, `sample`, `seconds` (wall clock, including waits). The last line of
    an episode counts; lines may be missing after a crash.
`run.lock`: held by the process that writes.
`shard-K-of-N`: a folder of the same kind, if the run was played in shards (see `Shard`); its settings also have
    `shard`, "K/N".
`metrics.json`: see `metrics.summarize`; written when the run is complete. If a resumed run finishes an episode that was
    lost before, it is removed until the end.

All JSON is UTF-8. A line that a crash left incomplete is dropped when the run is resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeGuard

from agent_r1_gym.core.types import Task
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.run.evaluation.statistics import PROPORTIONS
from agent_r1_gym.run.record import WRITTEN_BY_0_2, Trajectory
from agent_r1_gym.run.session import Job
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.json_data import JsonLinesWriter, drop_torn_line, json_line, read_json_lines
from agent_r1_gym.support.packages import run_provenance
from agent_r1_gym.support.terminal import print_note

FORMAT = 3
"""2 was written by agent-r1-gym 0.2, whose keys have other names."""
Row = dict[str, Any]
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("env_id", "policy", "dataset"), str),
    **dict.fromkeys(("samples", "questions", "seed"), int),
    "question_hash": (str, NoneType),
}
"""Settings that readers of a run rely on, and their types."""
_OPTIONAL = ("env_options", "model")
"""Settings that are objects where they are there."""
_LARGEST = 2**63
"""Integers below it are what a run counts; Python cannot format one of thousands of digits."""
_SHARD_FOLDER = re.compile(r"shard-(\d+)-of-(\d+)")
_RUN_FILE, _METRICS_FILE = "run.json", "metrics.json"
_PACKAGES = ("agent-r1-gym", "gymnasium", "numpy", "bm25s", "urllib3", "torch", "transformers", "peft")


@dataclass(frozen=True, slots=True)
class InfraFailure:
    """An episode whose backend failed in every attempt.

    Attributes:
        task_index: position of its task.
        sample: its number among those of the task.
        task_id: id of its task.
        error: last error message of the backend.
        attempts: number of times it was played.
    """

    task_index: int
    sample: int
    task_id: str
    error: str
    attempts: int

    @classmethod
    def of(cls, record: Trajectory, attempts: int) -> InfraFailure:
        """Convert the record of a failed episode."""
        return cls(record.task_index, record.sample, record.task_id, str(record.infrastructure_error), attempts)


class RunFolder:
    """Reads and writes the files of one run.

    Args:
        path: the folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.episodes_path = path / "episodes.jsonl"
        self.infra_failures_path = path / "infra_failures.jsonl"
        self.timings_path = path / "timings.jsonl"
        self.metrics_path = path / _METRICS_FILE
        self.run_path = path / _RUN_FILE
        self.lock_path = path / "run"  # `files.locked` adds ".lock"
        self._episodes = JsonLinesWriter(self.episodes_path)
        self._timings = JsonLinesWriter(self.timings_path, buffered=True)
        self._opened: float | None = None

    def open(self, settings: Mapping[str, Any], start_metadata: Mapping[str, Any] | None = None) -> None:
        """Start the run, or resume it if the folder holds one with the same settings.

        Args:
            settings: everything that affects the results.
            start_metadata: further entries of this start in `invocations`.

        Raises:
            ConfigurationError: the folder holds something else, or a run with other settings; the message names them.
        """
        settings = json.loads(json.dumps(settings))
        invocations: list[Row] = []
        if self.exists:
            run = self.load()
            differing = list(settings_differences(run["settings"], settings))
            if differing:
                raise ConfigurationError(
                    f"{self.path} holds a run with other settings ({'; '.join(differing)}). Resume it with the "
                    "same, or choose another --out."
                )
            invocations = run["invocations"]
            self._note_other_server(invocations, (start_metadata or {}).get("base_url"))
        elif self.path.is_dir() and any(entry.name != "run.lock" for entry in self.path.iterdir()):
            raise ConfigurationError(f"{self.path} exists and is neither empty nor a run; choose another --out.")
        start = {**run_provenance(_PACKAGES), **(start_metadata or {})}
        self._write_json(self.run_path, {"format": FORMAT, "settings": settings, "invocations": [*invocations, start]})
        self._opened = time.monotonic()
        for path in (self.episodes_path, self.timings_path):
            drop_torn_line(path)

    def _note_other_server(self, invocations: Sequence[Row], url: str | None) -> None:
        """Warn when a run resumes with another server: the settings only know the name of its model."""
        before = [start["base_url"] for start in invocations if "base_url" in start]
        if before and url not in (None, before[-1]):
            print_note(
                f"WARNING: {self.path} resumes with the server {url}, after {before[-1]}: the results are those of one "
                "agent only if both serve the same weights."
            )

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run, complete or not."""
        return self.run_path.is_file()

    @property
    def complete(self) -> bool:
        """Whether all episodes were played; some may be infrastructure failures."""
        return self.metrics_path.is_file()

    def load(self) -> Row:
        """Read `run.json`.

        Raises:
            DatasetError: there is none, or of another format.
        """
        if not self.exists:
            raise DatasetError(f"{self.path} holds no run.json; {shard_status(self.path) or _what_else(self.path)}")
        run = _read_object(self.run_path)
        if run.get("format") == 2:
            raise DatasetError(f"{self.run_path} {WRITTEN_BY_0_2}")
        kinds = {"settings": dict, "invocations": list}
        known = run.get("format") == FORMAT and all(isinstance(run.get(name), kind) for name, kind in kinds.items())
        if not known or not all(isinstance(start, dict) for start in run["invocations"]):
            raise DatasetError(f"{self.run_path} is not a run of format {FORMAT}; evaluate again with this version.")
        return run

    def settings(self) -> Row:
        """Read the settings of the run.

        Raises:
            DatasetError: there is no run, or a setting is missing.
        """
        settings: Row = self.load()["settings"]
        for name, kind in _SETTINGS.items():
            value = settings.get(name, ...)
            if not isinstance(value, kind) or (isinstance(value, int) and abs(value) >= _LARGEST):
                raise DatasetError(f"{self.run_path}: its settings have no {name} as `agent-r1 eval` writes it.")
        for name in _OPTIONAL:
            if not isinstance(settings.get(name, {}), dict):
                raise DatasetError(f"{self.run_path}: {name} of its settings is not a JSON object.")
        return settings

    def episodes(self) -> list[Trajectory]:
        """Read the finished episodes, sorted by task and sample; an incomplete last line is skipped.

        Raises:
            DatasetError: a line is not an episode of a run.
        """
        records = [_episode(row, location) for location, row in read_json_lines(self.episodes_path)]
        last = {(record.task_index, record.sample): record for record in records}
        return [last[key] for key in sorted(last)]

    def failures(self) -> list[InfraFailure]:
        """Read the episodes whose backend failed in every attempt, without those that have finished since.

        Raises:
            DatasetError: a line is not such a failure.
        """
        if not self.infra_failures_path.exists():
            return []
        done = {(record.task_index, record.sample) for record in self.episodes()}
        failures = []
        for location, row in read_json_lines(self.infra_failures_path):
            try:
                failure = InfraFailure(**row)
                if (failure.task_index, failure.sample) not in done:
                    failures.append(failure)
            except TypeError as error:
                raise DatasetError(f"{location}: expected a failed episode; {error}.") from error
        return failures

    def seconds(self) -> dict[tuple[int, int], float]:
        """Read the wall-clock seconds of the timed episodes, by task index and sample."""
        timed: dict[tuple[int, int], float] = {}
        for location, row in read_json_lines(self.timings_path):
            index, sample, seconds = (row.get(name) for name in ("task_index", "sample", "seconds"))
            if not (isinstance(index, int) and isinstance(sample, int) and _is_seconds(seconds)):
                raise DatasetError(
                    f"{location}: expected an episode's task_index, sample and seconds, got {row!r:.80}; remove the "
                    "file, it is not needed."
                )
            timed[index, sample] = float(seconds)
        return timed

    def metrics(self) -> Row:
        """Read `metrics.json`.

        Raises:
            DatasetError: the run is not complete.
        """
        if not self.complete:
            raise DatasetError(f"{self.path} has no metrics.json: the run is not complete; resume it.")
        metrics = _read_object(self.metrics_path)
        overall = metrics.get("overall")
        if not isinstance(overall, dict) or not isinstance(overall.get("metrics"), dict):
            raise DatasetError(
                f"{self.metrics_path} has no metrics over all questions; remove it, and the same `agent-r1 eval` "
                "writes it again."
            )
        return metrics

    def add(self, record: Trajectory) -> None:
        """Append one finished episode, whose timing is buffered; metrics of the episodes before are removed.

        Raises:
            OSError: it could not be written completely; the file is unchanged.
        """
        self.metrics_path.unlink(missing_ok=True)
        if record.seconds is not None:
            timing = {"task_index": record.task_index, "sample": record.sample, "seconds": round(record.seconds, 6)}
            self._timings.add(timing)
        self._episodes.add(_row(record))

    def close(self) -> None:
        """Close the files that `add` writes."""
        self._episodes.close()
        self._timings.close()

    def check_shard(self, settings: Mapping[str, Any]) -> None:
        """Check that this shard was played with the settings of the run.

        Raises:
            ConfigurationError: it was played with others; the message names them.
        """
        own = {name: value for name, value in self.load()["settings"].items() if name != "shard"}
        differing = list(settings_differences(own, json.loads(json.dumps(settings))))
        if differing:
            raise ConfigurationError(
                f"{self.path} was played with other settings ({'; '.join(differing)}). All shards need the same; use "
                "these, or another --out."
            )

    def merge(self, others: Sequence[RunFolder], settings: Mapping[str, Any]) -> list[InfraFailure]:
        """Merge the shards into this run, except for `finish`; return their failures.

        Raises:
            ConfigurationError: a shard has other settings.
        """
        for other in others:
            other.check_shard(settings)
        invocations = sorted(
            (start for other in others for start in other.load()["invocations"]), key=lambda start: start["date"]
        )
        self.metrics_path.unlink(missing_ok=True)
        self._write_json(self.run_path, {"format": FORMAT, "settings": settings, "invocations": invocations})
        for name in (self.episodes_path.name, self.timings_path.name):
            with atomic_file(self.path / name) as temporary:
                # Line by line: a shard that is being resumed, or was killed, may end in an incomplete line.
                rows = (row for other in others for _, row in read_json_lines(other.path / name))
                temporary.write_bytes(b"".join(map(json_line, rows)))
        return [failure for other in others for failure in other.failures()]

    def finish(self, failures: Sequence[InfraFailure], metrics: Mapping[str, Any]) -> None:
        """Sort the episodes, and write failures and metrics."""
        self.close()
        with atomic_file(self.episodes_path) as temporary:
            temporary.write_bytes(b"".join(json_line(_row(record)) for record in self.episodes()))
        if failures:
            ordered = sorted(failures, key=lambda failure: (failure.task_index, failure.sample))
            with atomic_file(self.infra_failures_path) as temporary:
                temporary.write_bytes(b"".join(json_line(asdict(failure)) for failure in ordered))
        else:
            self.infra_failures_path.unlink(missing_ok=True)
        self._write_json(self.metrics_path, metrics)
        if self._opened is not None:
            run = self.load()
            run["invocations"][-1]["seconds"] = round(time.monotonic() - self._opened, 3)
            self._write_json(self.run_path, run)

    @staticmethod
    def _write_json(path: Path, value: Mapping[str, Any]) -> None:
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_object(path: Path) -> Row:
    """Read a JSON object from a file.

    Raises:
        DatasetError: the file holds something else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


def _is_seconds(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < _LARGEST


def _what_else(path: Path) -> str:
    """Describe a folder without `run.json` and shards, and what to do with it."""
    if (path / "agent.json").is_file():
        return f"it holds a trained model: evaluate it by `agent-r1 eval {path} --out DIR`, and name DIR."
    return "expected a folder that `agent-r1 eval` wrote."


def _episode(row: Row, location: str) -> Trajectory:
    """Parse one line of `episodes.jsonl`.

    Raises:
        DatasetError: it is not an episode; missing fields must not be filled with defaults.
    """
    absent = [name for name in ("task_index", "sample", "task_id", "turns", "scores") if name not in row]
    if absent:
        raise DatasetError(f"{location}: expected an episode of a run, but it has no {', '.join(absent)}.")
    record = Trajectory.from_dict(row, location=location)
    for name, number in record.metrics().items():
        if number is None:
            continue
        if abs(number) >= _LARGEST and isinstance(number, int):
            raise DatasetError(f"{location}: {name} of an episode has too many digits.")
        if not math.isfinite(number) or (name in PROPORTIONS and not 0 <= number <= 1):
            raise DatasetError(f"{location}: {name} of an episode cannot be {number}.")
    return record


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One of `of` equal parts of a run, which separate processes or machines play into one folder.

    A shard is a run in its own folder, with its own lock, and is resumed like any other. The process that finishes last
    merges all of them.

    Attributes:
        number: 1 to `of`.
        of: number of shards.

    Raises:
        ConfigurationError: there is no such shard.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ConfigurationError(f"--shard {self} must be between 1/{self.of} and {self.of}/{self.of}.")

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def read(cls, text: str) -> Shard:
        """Parse K/N.

        Raises:
            ConfigurationError: it is malformed.
        """
        numbers = re.fullmatch(r"(\d+)/(\d+)", text)
        if numbers is None:
            raise ConfigurationError(f"--shard must be K/N, such as 2/4, got {text!r}.")
        return cls(int(numbers[1]), int(numbers[2]))

    @property
    def folder(self) -> str:
        """Name of its folder in the folder of the run."""
        return f"shard-{self.number}-of-{self.of}"

    @property
    def all(self) -> list[Shard]:
        """All shards of the run."""
        return [Shard(number, self.of) for number in range(1, self.of + 1)]

    def select(self, jobs: Sequence[Job]) -> list[Job]:
        """Select its jobs: all samples of every N-th question."""
        questions = set(question_indices(jobs)[self.number - 1 :: self.of])
        return [job for job in jobs if job.task_index in questions]


def find_shards(path: Path) -> list[Shard]:
    """List the shards of a run that were started.

    Raises:
        DatasetError: they were written by 0.2.
    """
    if any(path.glob(f"part-*-of-*/{_RUN_FILE}")):
        raise DatasetError(f"The run in {path} {WRITTEN_BY_0_2}")
    # A folder without run.json belongs to a process that is just starting.
    names = [_SHARD_FOLDER.fullmatch(file.parent.name) for file in path.glob(f"shard-*/{_RUN_FILE}")]
    return sorted(Shard(int(name[1]), int(name[2])) for name in names if name)


def missing_shards(path: Path, of: int) -> list[Shard]:
    """List the shards that are not complete."""
    return [shard for shard in Shard(1, of).all if not (path / shard.folder / _METRICS_FILE).is_file()]


def shard_status(path: Path) -> str | None:
    """Describe the shards in a folder, and which are missing; None: it holds no shards."""
    started = find_shards(path)
    if not started:
        return None
    missing = missing_shards(path, started[0].of)
    if not missing:
        return f"{path} holds all {started[0].of} shards of a run; start any of them again to merge them."
    names = ", ".join(map(str, missing))
    return f"{path} holds shards of a run, without {names}: play the missing ones by the same command with --shard."


def question_indices(jobs: Sequence[Job]) -> list[int]:
    """List the task index of each question, in order."""
    return list(dict.fromkeys(job.task_index for job in jobs))


def question_hash(tasks: Iterable[Task]) -> str:
    """Hash ids, questions and gold answers in order, to identify a question set whatever its name."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(json.dumps([task.id, task.prompt, list(task.answers)]).encode() + b"\n")
    return digest.hexdigest()


def settings_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield "name: old != new" for each setting that differs, and "object.field: ..." for fields of objects."""
    for name in {**old, **new}:
        before, after = old.get(name, _MISSING), new.get(name, _MISSING)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from settings_differences(before, after, f"{prefix}{name}.")
        elif before != after:
            yield f"{prefix}{name}: {' != '.join(_cut(repr(before), repr(after)))}"


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


_MISSING = _Missing()


def _cut(*texts: str) -> list[str]:
    """Shorten two texts for a message, around the first position where they differ."""
    different = next((i for i, pair in enumerate(itertools.zip_longest(*texts)) if len(set(pair)) > 1), 0)
    start = different - 40 if different > 60 else 0
    heads = ["…" * bool(start) + text[start:] for text in texts]
    return [head if len(head) <= 80 else head[:79] + "…" for head in heads]


def _row(record: Trajectory) -> dict[str, Any]:
    row = record.to_dict()
    del row["seconds"], row["tokens"]
    return row
