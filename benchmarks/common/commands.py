"""Cells of a pretrained model: an arm is the commands that a user types, `sft`, `train` and `eval`.

Every command resumes where it was stopped, and arms of a seed that begin with the same commands share their folders, so
that a cold start is trained once. An arm without training is evaluated once for all seeds: evaluations are greedy.
Folders are kept below the experiment's cache until someone removes them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import MODEL_FILES
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.support.files import atomic_file, locked
from agent_r1_gym.support.terminal import print_line
from benchmarks.common.experiment import START_FACTS, Profile, Run, Start
from benchmarks.common.policy import episode_row, marks
from benchmarks.common.results import EPISODES, WEIGHTS_AFTER
from trainers.rollouts.gguf import convert_gguf

MODEL = "AGENT_R1_MODEL"
"""Environment variable that names the folder or GGUF file of the pretrained model."""
COSTS = "costs"
"""Key of a cell: by command its wall-clock and CPU seconds and the most memory that it had, in GiB."""
CONTROLS = "controls"
"""Key of a cell: marks of the sets that no contrast takes."""
DATA = "data"
"""Key of a cell: hash of its data; older cells have none."""
_ROOT = Path(__file__).parents[2]
_LOCK_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model that is not made here: the one that `AGENT_R1_MODEL` names.

    Attributes:
        name: name of the expected model; cells of other weights are refused by their hash.
    """

    name: str

    def __repr__(self) -> str:
        """Names what is in the model's files too: each model has a cached folder of its own."""
        named = os.environ.get(MODEL)
        content = f", {content_hash(Path(named))}" if named and Path(named).exists() else ""
        return f"Pretrained({self.name!r}{content})"

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Copies the model.

        Raises:
            ConfigurationError: no model is named, or there is none at this place.
        """
        named = os.environ.get(MODEL)
        if not named or not Path(named).exists():
            missing = f" There is no file or folder {named}." if named else ""
            raise ConfigurationError(f"Set {MODEL} to the folder or the GGUF file of {self.name}.{missing}")
        shutil.copytree(convert_gguf(named), folder, dirs_exist_ok=True)
        return {"source": Path(named).name}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProfile(Profile):
    """One scale of an experiment whose arms are commands.

    Attributes:
        words: what stands for `{NAME}` in the commands.
    """

    words: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commands:
    """Learns by commands; each starts from the model that the command before it wrote.

    `{model}` stands for that model, `{data}` for the folder of the data, `{seed}` and `{steps}` for those of the cell,
    and the profile's `words` define further placeholders. `--out` is added.

    Attributes:
        steps: words of each command, without `agent-r1`.
        test: words of the evaluations, in addition to the options of each test set.
        data: script of this repository that writes the data into a new folder, and its options; "": none is needed.
        controls: by title, words of the evaluation of a further test set, which no contrast takes.
    """

    steps: Sequence[Sequence[str]]
    test: Sequence[str]
    data: str
    controls: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __call__(self, run: Run) -> tuple[Any, dict[str, Any]]:
        """Carries the commands out, and the evaluations; returns the final model, and facts for the cell."""
        profile = run.profile
        assert isinstance(profile, CommandProfile)
        data = self._data(run.cache) if self.data else None
        seed = {"seed": run.seed} if self.steps else {}
        words = {"steps": profile.steps, **seed, **profile.words, "data": data or ""}
        hashed = {DATA: content_hash(data)} if data else {}
        folder, key = run.folder, f"{content_hash(run.folder)} {hashed}"
        costs: dict[str, dict[str, float]] = {}
        weights: dict[str, str] = {}
        for number, step in enumerate(self.steps, start=1):
            folder, key = self._carry_out(run, step, {**words, "model": folder}, key)
            costs[f"{number} {step[0]}"], weights[f"{number} {step[0]}"] = _cost(folder), weights_hash(folder)
        model, facts = folder, _log(folder)
        rows, exact, tested = [], {}, list[Trajectory]()
        tests = {
            title: [word for name, value in options.items() for word in (f"--{name}", str(value))]
            for title, options in profile.tests.items()
        }
        for title, chosen in (*tests.items(), *self.controls.items()):
            test = (*self.test, *chosen, "--questions", "{questions}")
            known = {**words, "model": model, "questions": profile.test_questions}
            folder, _ = self._carry_out(run, test, known, key)
            costs[f"eval {title}"] = _cost(folder)
            episodes = sorted(RunFolder(folder).episodes(), key=lambda episode: episode.task_index)
            exact[title] = marks(episodes)
            rows += [episode_row(title, episode) for episode in episodes]
            tested += episodes if title in tests else []
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, trust_remote_code=False)
        loaded.requires_grad_(False)
        facts |= {name: measure(tested) for name, measure in profile.test_measures.items()}
        facts |= {WEIGHTS_AFTER: weights} if weights else {}
        controls = {CONTROLS: {title: exact.pop(title) for title in self.controls}} if self.controls else {}
        return loaded, {**facts, **hashed, "exact": exact, **controls, EPISODES: rows, COSTS: costs}

    def _data(self, cache: Path) -> Path:
        script, *words = shlex.split(self.data)
        words += _local_data()
        made_by = (_ROOT / script).read_bytes() + repr(words).encode()  # another script or source, other data
        folder = cache / f"data-{blake2b(made_by, digest_size=4).hexdigest()}"
        with locked(folder, timeout=_LOCK_SECONDS):
            if not folder.exists():
                partial = folder.with_name(f"{folder.name}.partial")
                shutil.rmtree(partial, ignore_errors=True)
                done = subprocess.run([sys.executable, str(_ROOT / script), str(partial), *words], check=False)
                if done.returncode:
                    raise ConfigurationError(
                        f"{script} ended with status {done.returncode} (its message is above). Without a network, put "
                        "the files into a folder `data` and set AGENT_R1_SHARED to the folder that holds it."
                    )
                partial.rename(folder)
        return folder

    def _carry_out(self, run: Run, step: Sequence[str], words: Mapping[str, Any], key: str) -> tuple[Path, str]:
        """Carries out a command unless its folder is complete; returns the folder and the key of all until then.

        The first key stands for what is in the files of model and data, so that their places do not count. An `sft`
        that was stopped after it had begun to save its model starts anew: it refuses a folder with a model.
        """
        values = [value for name, value in sorted(words.items()) if name not in _PATHS]
        key = blake2b(f"{key} {step} {values}".encode()).hexdigest()
        seed = f"{words['seed']}-" if "seed" in words else ""
        folder = run.cache / f"{step[0]}-{seed}{key[:8]}"
        argv = [word.format_map(words) for word in step]
        with locked(folder, timeout=_LOCK_SECONDS):
            if not (folder / _DONE).exists():
                if step[0] == "sft" and any((folder / name).exists() for name in MODEL_FILES):
                    shutil.rmtree(folder)
                print_line(f"agent-r1 {' '.join(argv)} --out {folder}")
                resumes = ["--resume-from-checkpoint", "True"] if step[0] in ("sft", "train") else []
                _execute([*argv, *resumes, "--out", str(folder)], folder)
        return folder, key


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The commands that the arms of an experiment on a pretrained model have in common.

    The words of the profile (`recipe_profiles`): a step has `rows` x `micro_batches` rollouts, 8 per task; `recompute`
    says whether the backward pass recomputes activations; `save` and `every` are the steps between two checkpoints and
    two validations, `validated` the tasks of a validation; `tasks` are those of rejection sampling.

    Attributes:
        env: id of the environment.
        options: its options, as words.
        turn_tokens: maximum number of tokens of a turn.
        max_prompt_length: maximum number of tokens of a prompt.
        max_completion_length: maximum number of tokens of an episode after its prompt.
        learning_rate: of reinforcement learning.
        temperature: of its rollouts, and of rejection sampling.
        data: see `Commands`.
    """

    env: str
    options: Sequence[str]
    turn_tokens: int = 64
    max_prompt_length: int = 1024
    max_completion_length: int = 512
    learning_rate: float = 2e-5
    temperature: float = 1.4
    data: str = ""

    def sft(self, episodes: str, *more: str) -> tuple[str, ...]:
        """A cold start on demonstrations of the oracle; `episodes` is their number, or a placeholder."""
        epochs = ("--num-train-epochs", "2", "--seed", "{seed}", "--episodes", episodes)
        return ("sft", self.env, "--model", "{model}", *self.options, *epochs, *more)

    def rejection(self, *more: str, samples: int = 8) -> tuple[str, ...]:
        """Supervised learning from the successes among own rollouts, so many per task."""
        return (
            *("sft", self.env, "--model", "{model}", *self.options, "--from", "self", "--samples", str(samples)),
            *("--episodes", "{tasks}", "--sampling-temperature", str(self.temperature)),
            *("--max-turn-tokens", str(self.turn_tokens), "--num-train-epochs", "1", "--seed", "{seed}"),
            *more,
        )

    def train(self, *more: str) -> tuple[str, ...]:
        """Reinforcement learning; `more` names the model."""
        return (
            *("train", self.env, *self.options, "--num-generations", "8", "--per-device-train-batch-size", "{rows}"),
            *("--gradient-accumulation-steps", "{micro_batches}", "--temperature", str(self.temperature)),
            *("--max-turn-tokens", str(self.turn_tokens), "--beta", "0"),
            *("--max-prompt-length", str(self.max_prompt_length)),
            *("--max-completion-length", str(self.max_completion_length)),
            *("--gradient-checkpointing", "{recompute}", "--max-steps", "{steps}"),
            *("--learning-rate", f"{self.learning_rate:g}", "--lr-scheduler-type", "constant", "--logging-steps", "1"),
            *("--save-steps", "{save}", "--save-total-limit", "1", "--seed", "{seed}"),
            *("--eval-strategy", "steps", "--eval-steps", "{every}", "--eval-episodes", "{validated}"),
            *("--per-device-eval-batch-size", "{validated}"),
            *("--eval-temperature", "0", "--eval-env-kwargs", '{{"split": "validation"}}'),
            *more,
        )

    def after_sft(self, *more: str) -> tuple[str, ...]:
        """Reinforcement learning from the model of the command before it."""
        return self.train("--warm-start", "{model}", *more)

    def trained(self, *steps: Sequence[str], controls: Mapping[str, str] | None = None) -> Commands:
        """What an arm with these steps does; `controls` are ids of environments by title, to test it in too."""
        # Another environment takes none of the run's options, so that its prompt would have another tool style.
        words = {title: ("--env", name, *self.options, "--split", "test") for title, name in (controls or {}).items()}
        return Commands(steps, ("eval", "{model}", *self._evaluation()), self.data, words)

    def untrained(self, *more: str, prompt: str = "base") -> Commands:
        """What an arm without training does; `prompt` is the prompt method, "base" or "naive-rag"."""
        model = ("--policy", f"{prompt}:local:{{model}}")
        return Commands((), ("eval", self.env, *model, *self.options, *more, *self._evaluation()), self.data)

    def _evaluation(self) -> tuple[str, ...]:
        return "--max-turn-tokens", str(self.turn_tokens), "--max-concurrent", "64"


SKIPPING = ("--skip-zero-advantages", "True")
"""For arms that had no cells before this option: the others keep the words that their cells ran with."""
_ON_A_GPU = {"rows": 64, "micro_batches": 2, "recompute": True, "save": 40}
_ON_A_CPU = {"rows": 16, "micro_batches": 8, "recompute": False, "save": 10}


def recipe_profiles(
    env: str, *, test: str, questions: int, validated: int, tasks: int, **demonstrations: int
) -> dict[str, CommandProfile]:
    """Scales of a recipe: "gpu", "cpu", and "smoke" to see that everything runs.

    The first two differ in how an update is divided, which changes rounding alone, and in the number of seeds.

    Args:
        env: registered id of the environment.
        test: title of its test set, the split "test".
        questions: number of test questions.
        validated: tasks of a validation.
        tasks: tasks of rejection sampling.
        **demonstrations: further words: numbers of demonstrations.
    """
    words = {"tasks": tasks, "every": 10, "validated": validated, **demonstrations}
    gpu = CommandProfile(
        starts=(Start(Pretrained("SmolLM2-135M-Instruct")),),
        seeds=tuple(range(8)),
        env=env,
        training={},
        steps=40,
        tests={test: {"split": "test"}},
        test_questions=questions,
        words={**words, **_ON_A_GPU},
    )
    few = {"tasks": 2, "every": 1, "validated": 8, "micro_batches": 1, "save": 1}
    return {
        "gpu": gpu,
        "cpu": replace(gpu, seeds=(0, 1, 2), words={**words, **_ON_A_CPU}),
        "smoke": replace(
            gpu,
            seeds=(0,),
            steps=1,
            test_questions=4,
            words={**dict.fromkeys(demonstrations, 8), **_ON_A_CPU, **few},
        ),
    }


_DONE = "cost.json"
_PATHS = ("model", "data")


def content_hash(path: Path) -> str:
    """Hashes a file, or names and contents of all files of a folder but for `START_FACTS`."""
    hashed = blake2b(digest_size=16)
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.name != START_FACTS:
            hashed.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(2**20):
                    hashed.update(block)
    return f"blake2b:{hashed.hexdigest()}"


def weights_hash(folder: Path) -> str:
    """Hashes the files of a folder's weights, shortly."""
    hashed = blake2b(digest_size=6)
    for file in sorted(folder.glob("*.safetensors")):
        hashed.update(content_hash(file).encode())
    return hashed.hexdigest()


def _local_data() -> list[str]:
    """Where the public files are, if they need not be downloaded."""
    shared = os.environ.get("AGENT_R1_SHARED")
    return [] if shared is None else ["--from", str(Path(shared) / "data")]


_MEASURE = """
import json, resource, subprocess, sys, time
began = time.monotonic()
status = subprocess.call([sys.executable, "-m", "agent_r1_gym", *sys.argv[2:]])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
cost = {
    "wall": round(time.monotonic() - began, 1),
    "cpu": round(used.ru_utime + used.ru_stime, 1),
    "gib": round(used.ru_maxrss / 2**20, 2),
}
open(sys.argv[1], "w").write(json.dumps(cost))
sys.exit(status % 256)
"""
"""Executes a command from a small process: a new one begins with the peak memory of its parent, on Linux."""


def _execute(argv: Sequence[str], folder: Path) -> None:
    """Executes a command of `agent-r1`, and notes what it cost; a resumed one has the cost of its last part alone."""
    with tempfile.TemporaryDirectory() as scratch:
        cost = Path(scratch) / _DONE
        done = subprocess.run([sys.executable, "-c", _MEASURE, str(cost), *argv], check=False)
        if done.returncode:
            raise ConfigurationError(
                f"agent-r1 {argv[0]} ended with status {done.returncode} (its message is above). Run the cell again to "
                "continue from there."
            )
        with atomic_file(folder / _DONE) as temporary:
            temporary.write_text(cost.read_text(encoding="utf-8"), encoding="utf-8")


def _cost(folder: Path) -> dict[str, float]:
    cost: dict[str, float] = json.loads((folder / _DONE).read_text(encoding="utf-8"))
    return cost


def _log(folder: Path) -> dict[str, Any]:
    """What a cell keeps of the log of its last command: a curve of validation, and metrics of each step."""
    path = folder / "trainer_state.json"
    if not path.exists():
        return {}
    history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    validation = [[row["step"], round(row["eval_reward"], 4)] for row in history if "eval_reward" in row]
    logged = {name: [round(row[key], 4) for row in history if key in row] for name, key in _METRICS.items()}
    return {"validation": validation, "training": {name: values for name, values in logged.items() if values}}


_METRICS = {"reward": "reward", "entropy": "entropy", "zero_std": "group/frac_zero_std", "calls": "rollout/calls"}
