"""One table of what the trainer does on the GPU that it finds, or in miniature on a CPU.

    python -m benchmarks.gpu                       the toy policy
    python -m benchmarks.gpu --model FOLDER        another causal language model
    python -m benchmarks.gpu --quick               tiny sizes: does everything run?

Rows: decoding against the memory's bandwidth, a training step next to TRL's own trainer on the same model and tokens,
memory as predicted and as used, drift of log-probs between bfloat16 and float32, and for the toy policy a cell that
learns. Nothing is downloaded. Rows are printed as they are measured, then as a table.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from agent_r1_gym.support.terminal import print_line, table
from benchmarks.common import measure
from benchmarks.common.experiment import Start, make_cell
from benchmarks.common.tables import share
from benchmarks.learning.discovery.settings import CHAIN, EXPERIMENT
from benchmarks.speed.trainer_script import USUAL, Lengths, Settings, make_model, write_script
from benchmarks.speed.trainer_systems import Agent, EnvironmentFactory
from trainers.monitoring.memory import GIB, ModelShape, estimate_memory, kv_cache_bytes, setup_of, shape_of
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine
from trainers.toy.quickstart import SHIPPED


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements.

    Attributes:
        rounds: values of which a figure is the median.
        slots: episodes that decode side by side.
        prompt: tokens before the first sampled one.
        tokens: sampled tokens of two runs, whose difference is decoding alone.
        copy_bytes: bytes that are copied to measure bandwidth.
        prompts: questions of a training step.
        copies: rollouts of each.
        lengths: of the episodes of a step.
        drift: sequences, and tokens of each, whose log-probs are compared.
        learning: optimiser steps of the learning cell.
        questions: of its evaluations.
    """

    rounds: int = 3
    slots: int = 64
    prompt: int = 256
    tokens: tuple[int, int] = (32, 160)
    copy_bytes: int = 2**30
    prompts: int = 8
    copies: int = 8
    lengths: Lengths = USUAL
    drift: tuple[int, int] = (8, 512)
    learning: int = 40
    questions: int = 200


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    slots=2,
    prompt=12,
    tokens=(2, 6),
    copy_bytes=2**20,
    prompts=2,
    copies=2,
    lengths=Lengths("short", question=3, thought=2, query=2, passage=4),
    drift=(2, 16),
    learning=1,
    questions=4,
)


class Row(NamedTuple):
    """A row of the table: what was measured, and what it is compared with; `nan` where there is nothing to measure."""

    what: str
    measured: float
    unit: str
    reference: float
    reference_is: str


Load = Callable[[], Any]
"""Loads a fresh copy of the model onto the device, in float32."""


PARTS = ("decoding", "training", "drift", "learning")


def rows(load: Load, sizes: Sizes, device: str, *, parts: Sequence[str] = PARTS) -> Iterator[Row]:
    """Yields the rows, one part after another; "learning" always trains the toy policy."""
    if "decoding" in parts:
        yield from decoding(load, sizes, device)
    if "training" in parts:
        yield from training(load, sizes, device)
    if "drift" in parts:
        yield drift(load, sizes, device)
    if "learning" in parts:
        yield from learning(sizes)


def decoding(load: Load, sizes: Sizes, device: str) -> Iterator[Row]:
    """Sampled tokens per second of all slots, next to the limit of bytes per step over the memory's bandwidth.

    A step reads all weights, and keys and values of the mean context. A copy measures the bandwidth.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = load().to(dtype).eval()
    bandwidth = copy_bandwidth(device, sizes.copy_bytes)
    short, long = sizes.tokens
    options, length = SamplingOptions(max_new_tokens=long), sizes.prompt + long + 1
    limit = float("nan")
    parameters = sum(weight.numel() for weight in model.parameters())
    if shape := ModelShape.of(model.config.get_text_config(), parameters):
        column = kv_cache_bytes(shape, slots=sizes.slots, length=0, number_bytes=dtype.itemsize)
        limit = (parameters * dtype.itemsize + (sizes.prompt + (short + long) / 2) * column) / bandwidth
    yield Row("memory bandwidth, by a copy", bandwidth / 1e9, "GB/s", float("nan"), "")
    for name, eager in (("decoding", False), *((("decoding, without CUDA graphs", True),) if device == "cuda" else ())):
        engine = SlotEngine(model, options, slots=sizes.slots, max_length=length, enforce_eager=eager)
        for tokens in sizes.tokens:  # warms up
            _decode(engine, sizes, tokens, device)
        seconds = []
        for _ in range(sizes.rounds):
            taken = _decode(engine, sizes, long, device) - _decode(engine, sizes, short, device)
            seconds.append(max(taken, 1e-9) / (long - short))  # noise can exceed a few steps of a tiny model
        speed = sizes.slots / statistics.median(seconds)
        yield Row(name, speed, "tokens/s", sizes.slots / limit, "limit of the bandwidth")


def copy_bandwidth(device: str, size: int) -> float:
    """Bytes per second that a copy reads and writes, the best of ten."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(_timed(partial(target.copy_, source), device) for _ in range(10))


class _Turn:
    """A session of one turn."""

    def __init__(self, number: int, prompt: int) -> None:
        self.prompt_ids, self.seed = [1 + number % 50] * prompt, number

    def finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> None:
        """Ends the episode."""


def _decode(engine: SlotEngine, sizes: Sizes, tokens: int, device: str) -> float:
    engine.options = SamplingOptions(max_new_tokens=tokens)
    sessions: list[Any] = [_Turn(number, sizes.prompt) for number in range(sizes.slots)]
    return _timed(lambda: engine.run(sessions), device)


def training(load: Load, sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds of an optimiser step, rollouts included, next to TRL's `environment_factory`; and peak memory.

    Both play the same scripted tokens, so that they do the same work.
    """
    settings = Settings(rounds=sizes.rounds, prompts=sizes.prompts, num_generations=sizes.copies)
    script = write_script(settings, sizes.lengths, turns=settings.turns)
    steps: dict[str, float] = {}
    predicted = used = float("nan")
    for system in (Agent, EnvironmentFactory):
        with tempfile.TemporaryDirectory() as folder:
            trainee = system(script, device=device, folder=folder, model=load())
            costs = [trainee.train() for _ in range(sizes.rounds)]
            steps[system.name] = statistics.median(cost.wall for cost in costs) / settings.steps
            if system is Agent and (shape := shape_of(trainee.trainer)):
                predicted = estimate_memory(shape, setup_of(trainee.trainer, slots=settings.batch)).peak / GIB
            if system is Agent and device == "cuda":
                risen = max(cost.memory for cost in (*costs, trainee.generation))
                used = (torch.cuda.memory_allocated() + risen) / GIB
            del trainee
    yield Row("training step", steps[Agent.name], "s", steps[EnvironmentFactory.name], "TRL's environment_factory")
    yield Row("peak memory of a step", used, "GiB", predicted, "predicted")


def drift(load: Load, sizes: Sizes, device: str) -> Row:
    """Mean difference of the log-probs of random tokens between bfloat16 and float32."""
    model = load().eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.get_text_config().vocab_size, sizes.drift, generator=generator).to(device)
    exact, rounded = (_logprobs(each, ids) for each in (model, copy.deepcopy(model).to(torch.bfloat16)))
    return Row("log-probs, bfloat16 - float32", float((exact - rounded).abs().mean()), "nats", 0.0, "float32")


@torch.no_grad()
def _logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logprobs: torch.Tensor = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    return logprobs.gather(-1, ids[:, 1:, None])


def learning(sizes: Sizes) -> Iterator[Row]:
    """Exact match of the toy policy on questions of two hops after GRPO, next to that before; and the time it took."""
    profile = replace(
        EXPERIMENT.profiles["cpu"],
        starts=(Start(),),
        steps=sizes.learning,
        every=sizes.learning,
        validation_questions=sizes.questions,
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        cell = make_cell(EXPERIMENT, profile, "em", 0, 0, SHIPPED, Path(scratch))
    before, after = (share(point[CHAIN]) for point in cell["curve"])
    yield Row(f"exact match after {sizes.learning} steps", after, "", before, "before")
    yield Row("the same, with evaluations", time.perf_counter() - start, "s", float("nan"), "")


def _timed(work: Callable[[], Any], device: str) -> float:
    """Seconds of some work, on a GPU from idle to idle."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def loader(folder: Path | None, device: str) -> Load:
    """Loads the model in a folder, or makes the toy policy with random weights."""
    if folder is not None:

        def load() -> Any:
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            return model.to(device)

        return load
    # The script's tokenizer: the toy's with some more tokens.
    tokenizer = write_script(Settings(prompts=1, num_generations=1), QUICK.lengths, turns=2).tokenizer
    return lambda: make_model("tiny", tokenizer, device=device)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, and appends it to a file if one is named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="of a causal language model (default: the toy)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated (default: all that it has)")
    parser.add_argument("--out", type=Path, help="file to append a row to, as JSON (default: none)")
    options = parser.parse_args(arguments)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    measure.check_commit(options.out)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    sizes = QUICK if options.quick else FULL
    found = []
    parts = options.part or (PARTS if options.model is None else PARTS[:-1])
    for row in rows(loader(options.model, device), sizes, device, parts=parts):
        print_line("  ".join(filter(None, _cells(row))))
        found.append(row)
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    print_line(f"{options.model or 'the toy policy'} on {name}")
    print_line(table(("", "measured", "unit", "next to", ""), list(map(_cells, found))))
    if options.out is not None:
        words = sys.argv[1:] if arguments is None else arguments
        made = measure.provenance(["python", "-m", "benchmarks.gpu", *words])
        result = {"rows": [row._asdict() for row in found], "sizes": asdict(sizes), **made}
        measure.append_row(options.out, result)


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, _shown(row.measured), row.unit, _shown(row.reference), row.reference_is


def _shown(value: float) -> str:
    return "-" if value != value else f"{value:,.4g}"


if __name__ == "__main__":
    main()
