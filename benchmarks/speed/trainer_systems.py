"""The two trainers that play a script: this project's, and TRL's with its own tool loop; and what their work costs."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

from agent_r1_gym.core.parsing import make_parser
from agent_r1_gym.core.scoring import SCORERS
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.token_session import TokenLimits
from benchmarks.common import measure
from benchmarks.common.measure import Figure
from benchmarks.speed.env_systems import OURS, WrongEpisodeError
from benchmarks.speed.trainer_script import GOLD, Script, SearchEnvironment, force, make_model
from trainers.commands.train.environments import task_dataset
from trainers.commands.train.rollouts import RolloutRunner
from trainers.config.agent import AgentConfig
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.collect import Collector
from trainers.trainer import AgentTrainer


class Cost(NamedTuple):
    """What some work took: seconds of wall and CPU time, and the rise of the device's memory in bytes."""

    wall: float
    cpu: float
    memory: float


class Meter:
    """Measures between `start` and `stop`; on a GPU, it waits until the device is idle at both."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"

    def start(self) -> None:
        """Begins."""
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._allocated = torch.cuda.memory_allocated()
        else:
            self._allocated = _reset_peak()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self) -> Cost:
        """Returns what was spent since `start`."""
        if self._cuda:
            torch.cuda.synchronize()
            memory = float(torch.cuda.max_memory_allocated() - self._allocated)
        else:
            memory = float(max(_process_bytes("VmHWM") - self._allocated, 0))
        return Cost(time.perf_counter() - self._wall, time.process_time() - self._cpu, memory)


def _reset_peak() -> int:
    """Makes Linux count the peak of this process anew; returns the bytes that it has now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _process_bytes("VmRSS")


def _process_bytes(name: str) -> int:
    """Returns an entry of /proc/self/status; 0 on other systems."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


class Trainee(abc.ABC):
    """A trainer whose model plays a script.

    Args:
        script: what is played.
        device: "cpu" or "cuda".
        folder: for TRL's output.
        model: on the device, with at least the script's vocabulary; None: the one that the script's settings name.
    """

    name: ClassVar[str]

    def __init__(self, script: Script, *, device: str, folder: str, model: Any = None) -> None:
        self.script = script
        self.meter = Meter(device)
        settings = script.settings
        model = model or make_model(settings.model, script.tokenizer, device=device)
        force(model, script)
        self.trainer = self._make_trainer(model, self._arguments(device, folder))
        self.trainer.remove_callback(PrinterCallback)
        self.stopwatch = Stopwatch(Meter(device))  # its own: `_timed_generate` restarts the other within a step
        self.trainer.add_callback(self.stopwatch)
        self._generate = self.trainer._generate
        self.trainer._generate = self._timed_generate
        self.rows = [row for row in self.trainer.train_dataset for _ in range(settings.num_generations)]
        self.generation = Cost(0.0, 0.0, 0.0)
        self.updates: list[Cost] = []

    @abc.abstractmethod
    def _make_trainer(self, model: Any, arguments: dict[str, Any]) -> Any: ...

    def roll_out(self) -> Cost:
        """Returns the cost of one batch of rollouts: all that happens in TRL's `_generate`, in both systems.

        Raises:
            WrongEpisodeError: an episode was not the script's, token for token, or was not paid.
        """
        self.trainer.model.train()
        output = self.trainer._generate_and_score_completions([dict(row) for row in self.rows])
        mask = output["completion_mask"]
        played = zip(
            _unpadded(output["prompt_ids"], output["prompt_mask"]),
            _unpadded(output["completion_ids"], mask),
            _unpadded(output["tool_mask"], mask),
            strict=True,
        )
        copies = self.script.settings.num_generations
        if list(played) != [episode for episode in self.script.episodes for _ in range(copies)]:
            raise WrongEpisodeError(f"{self.name}: an episode is not the script's.")
        reward = self.trainer._metrics["train"]["reward"][-1]
        if reward != 1.0:
            raise WrongEpisodeError(f"{self.name}: right answers were paid {reward}, expected 1.")
        return self.generation

    def train(self) -> Cost:
        """Returns the cost of `settings.steps` optimiser steps, after one that warms up; notes it without rollouts."""
        self.trainer.train()
        whole, steps, rollouts = self.stopwatch.cost, self.script.settings.steps, self.generation
        wall, cpu = whole.wall - steps * rollouts.wall, whole.cpu - steps * rollouts.cpu
        self.updates.append(Cost(wall, cpu, whole.memory))
        return whole

    def _timed_generate(self, prompts: Any) -> Any:
        self.meter.start()
        output = self._generate(prompts)
        self.generation = self.meter.stop()
        return output

    def _arguments(self, device: str, folder: str) -> dict[str, Any]:
        settings = self.script.settings
        size = min(self.script.pass_size or settings.batch, settings.batch)
        return {
            "output_dir": str(Path(folder) / type(self).__name__),
            "max_steps": settings.steps + 1,
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": settings.batch // size,
            "num_generations": settings.num_generations,
            "max_completion_length": self.script.longest_completion + 1,
            "learning_rate": 1e-6,
            "beta": 0.0,
            "loss_type": "dapo",
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": device == "cpu",
            "bf16": (settings.precision or ("bfloat16" if device == "cuda" else "float32")) == "bfloat16",
            "gradient_checkpointing": False,
        }


def _unpadded(rows: torch.Tensor, mask: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row[there].tolist()) for row, there in zip(rows, mask.bool(), strict=True)]


class Agent(Trainee):
    """This project's trainer with its own engine, put together as `trainers.commands.train` does it."""

    name = OURS

    def _make_trainer(self, model: Any, arguments: dict[str, Any]) -> GRPOTrainer:
        script = self.script
        chat = ChatFormat(script.tokenizer)
        limits = TokenLimits(
            max_prompt_tokens=script.longest_prompt, max_completion_tokens=arguments["max_completion_length"]
        )
        collector = Collector(Player(script.make_env, chat=chat, limits=limits))
        single: dict[str, Any] = {"algorithm": "reinforce++"} if script.settings.num_generations == 1 else {}
        args = AgentConfig(
            **arguments,
            **single,
            max_prompt_length=script.longest_prompt,
            max_turn_tokens=arguments["max_completion_length"],
            alarm_drift_above=math.inf,  # the script chooses the tokens, whatever the model would say
        )
        return AgentTrainer(
            model,
            args,
            collect=RolloutRunner(args, collector, collector, chat=chat),
            train_dataset=task_dataset(script.make_env()),
            processing_class=script.tokenizer,
        )


class EnvironmentFactory(Trainee):
    """TRL's trainer with its own tool loop."""

    name = "TRL environment_factory"

    def _make_trainer(self, model: Any, arguments: dict[str, Any]) -> GRPOTrainer:
        rows = [{"prompt": [{"role": "user", "content": question}]} for question in self.script.questions]
        return GRPOTrainer(
            model,
            reward_funcs=[exact_match],  # type: ignore[list-item]  # a list of floats is one of floats and None
            args=GRPOConfig(**arguments),
            train_dataset=Dataset.from_list(rows),
            processing_class=self.script.tokenizer,
            environment_factory=functools.partial(SearchEnvironment, self.script.search_tool()),
        )


_PARSER = make_parser("hermes")


def exact_match(completions: list[list[dict[str, Any]]], **_columns: Any) -> list[float]:
    """Returns 1 for each right answer: the reward that this suite's environment gives."""
    answers = [_PARSER.parse(completion[-1]["content"]).answer for completion in completions]
    return [SCORERS["hotpotqa"].em(answer or "", (GOLD,)) for answer in answers]


class Stopwatch(TrainerCallback):
    """Measures from the end of the first step to the end of the last: data, rollouts, update and log of each."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.cost = Cost(0.0, 0.0, 0.0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Starts after the first step, stops after the last."""
        if state.global_step == 1:
            self._meter.start()
        elif state.global_step == state.max_steps:
            self.cost = self._meter.stop()


CLOCKS = {"wall": "", "cpu": ", CPU time"}
"""Fields of `Cost` that are times, and how they are shown behind the name of a figure."""


def compare(
    script: Script, label: str, device: str, work: Callable[[Trainee], Cost], *, per: int, unit: str
) -> tuple[list[Figure], float]:
    """Returns figures of both systems, and the median ratio of their speeds in wall time."""
    with TemporaryDirectory() as folder:
        systems = [system(script, device=device, folder=folder) for system in (Agent, EnvironmentFactory)]
        for system in systems:
            system.roll_out()  # refuses episodes that are not the script's, before anything is timed
        measures = {system.name: partial(work, system) for system in systems}
        costs = measure.take_turns(measures, rounds=script.settings.rounds)
    figures: list[Figure] = []
    updates = {system.name: system.updates[-script.settings.rounds :] for system in systems}
    for behind, spent in (("", costs), (", update", updates)):
        for clock, of_clock in CLOCKS.items():
            speeds = [
                Figure(f"{name}, {label}{behind}{of_clock}", unit, tuple(per / getattr(cost, clock) for cost in taken))
                for name, taken in spent.items()
                if taken
            ]
            if speeds:
                figures += [*speeds, measure.ratio(f"ours / TRL, {label}{behind}{of_clock}", *speeds)]
    if device == "cuda" or script.settings.precision:
        figures += [
            Figure(f"{name}, {label}, peak memory", "GB", tuple(cost.memory / 1e9 for cost in taken))
            for name, taken in costs.items()
        ]
    return figures, figures[2].median
