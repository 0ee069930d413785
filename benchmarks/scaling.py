"""What does training at another scale take? Memory, tokens, hours and cost, from measured step times.

    python -m benchmarks.scaling measure                       times steps here; appends to results/scaling.jsonl
    python -m benchmarks.scaling check                         how wrong the model is, on steps it was not fitted to
    python -m benchmarks.scaling predict --preset paper
    python -m benchmarks.scaling predict --model 7B --gpu h200 --gpus 4 --turns 5 --context 8192 --questions 51200
    python -m benchmarks.scaling predict --gpu h100 --all      every model x GPUs x turns x context

`scaling_model.py` counts the work, `scaling_settings.py` holds what is assumed. README.md says how far to trust it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import random
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from agent_r1_gym.commands.base import say, table
from agent_r1_gym.errors import ConfigurationError
from benchmarks import measure
from benchmarks import scaling_settings as given
from benchmarks.scaling_model import (
    Job,
    Machine,
    Work,
    errors,
    fit,
    job_from,
    rollout_work,
    seconds,
    step_work,
    update_work,
)
from benchmarks.trainer_settings import Lengths, Settings
from trainers.memory import GIB, QWEN25, ModelShape, Setup, estimate

RESULTS = Path(__file__).parent / "results"
CALIBRATION = RESULTS / "scaling.jsonl"
Observed = tuple[Sequence[Work], float]


def scripted_job(model: Any, script: Any) -> Job:
    """Returns the job that a scripted step of `trainer_speed` is: one micro-batch, float32, nobody waits."""
    settings = script.settings
    return Job(
        shape=shape_of(model.config),
        setup=_setup(slots=settings.batch, length=len(script.prompt_ids) + len(script.completion_ids)),
        questions=settings.prompts,
        rollouts=settings.num_generations,
        turns=script.turns,
        prompt=len(script.prompt_ids),
        spoken=script.generated / script.turns,
        response=script.responses / max(1, script.turns - 1),
    )


def shape_of(config: Any) -> ModelShape:
    """Returns the shape of a Qwen3 model."""
    return ModelShape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        feed_forward=config.intermediate_size,
        vocabulary=config.vocab_size,
        qkv_bias=False,
        qk_norm=True,
    )


def _setup(*, slots: int, length: int, **options: Any) -> Setup:
    """Returns how the tiny policies are trained on a CPU."""
    fixed = {"compute_bytes": 4, "reference": False, "checkpointing": False}
    return Setup(**{**fixed, "slots": slots, "micro_batch": slots, "length": length, **options})


def measure_cases(cases: Sequence[tuple[str, Lengths, int, int]], *, rounds: int) -> list[dict[str, Any]]:
    """Times whole training steps, the cases taking turns, on one thread.

    Returns:
        for each case its name, its job, and medians in seconds of rollout and whole step, in CPU and wall time.
    """
    import torch

    from benchmarks.scripted import write_script
    from benchmarks.trainer_systems import Agent

    torch.set_num_threads(1)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    taken: dict[str, list[dict[str, float]]] = {}
    with TemporaryDirectory() as folder:
        agents = {}
        for size, lengths, turns, prompts in cases:
            settings = Settings(model=size, turns=turns, prompts=prompts)
            script = write_script(settings, lengths, turns=turns)
            agents[f"{size}, {lengths.name}, {turns} turns, {settings.batch} episodes"] = Agent(
                script, device="cpu", folder=folder
            )

        def step(name: str) -> float:
            whole, rollout = agents[name].train(), agents[name].generation
            found = {"step_cpu": whole.cpu, "step_wall": whole.wall}
            taken.setdefault(name, []).append(found | {"rollout_cpu": rollout.cpu, "rollout_wall": rollout.wall})
            say(f"  {name}: {whole.cpu:.2f} s CPU time, {whole.wall:.2f} s wall time")
            return whole.cpu

        measure.interleave({name: lambda name=name: step(name) for name in agents}, rounds=rounds, unit="s")
        jobs = {name: asdict(scripted_job(agent.trainer.model, agent.script)) for name, agent in agents.items()}
    medians = {
        name: {clock: statistics.median(row[clock] for row in rows[-rounds:]) for clock in rows[0]}
        for name, rows in taken.items()
    }
    return [{"name": name, "size": name.split(",")[0], "job": jobs[name], **medians[name]} for name in agents]


def calibration(path: Path) -> list[dict[str, Any]]:
    """Returns the cases of the last measurement.

    Raises:
        ConfigurationError: nothing was measured.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path} does not exist: run `python -m benchmarks.scaling measure` first.")
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["cases"]
    return cases


def observed(cases: Sequence[dict[str, Any]]) -> list[Observed]:
    """Returns rollout and update of each case, with CPU seconds."""
    found: list[Observed] = []
    for case in cases:
        job, rollout = job_from(case["job"]), case["rollout_cpu"]
        found += [(rollout_work(job), rollout), (update_work(job), case["step_cpu"] - rollout)]
    return found


def held_out(cases: Sequence[dict[str, Any]], by: str) -> list[tuple[str, float, float]]:
    """Returns (name, predicted, measured) of each case's whole step, fitted to cases that differ from it in `by`."""
    machines = {value: fit(observed([c for c in cases if c[by] != value])) for value in {c[by] for c in cases}}
    return [(c["name"], seconds(step_work(job_from(c["job"])), machines[c[by]]), c["step_cpu"]) for c in cases]


def speed_rows(machine: Machine, path: Path) -> Iterator[tuple[str, float, float]]:
    """Yields (name, predicted, measured) of what `trainer_speed` measured on a CPU: rollouts and steps."""
    from benchmarks.scripted import make_model, write_script
    from benchmarks.systems import OURS

    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for row in map(json.loads, lines):
        if row["claim"] not in ("rollouts", "step") or row["settings"]["model"] != "tiny":
            continue
        settings = Settings(**row["settings"])
        work = rollout_work if row["claim"] == "rollouts" else step_work
        speeds = {figure["name"]: figure["median"] for figure in row["figures"]}
        for lengths, turns in itertools.product(row["settings"]["lengths"], (1, settings.turns)):
            title = f"{lengths['name']}, {turns} turn{'s' * (turns > 1)}"
            if speed := speeds.get(f"{OURS}, {title}, CPU time"):
                script = write_script(settings, Lengths(**lengths), turns=turns)
                job = scripted_job(make_model("tiny", script.tokenizer, device="cpu"), script)
                units = settings.batch if row["claim"] == "rollouts" else settings.steps
                yield f"{row['claim']}: {title}", seconds(work(job), machine), units / speed


def cells(machine: Machine, folder: Path, profile_name: str) -> Iterator[tuple[str, float, float]]:
    """Yields (name, predicted, measured) of the trainings of `multihop_qa`, wall seconds in all."""
    from benchmarks.multihop_settings import METHODS, PROFILES
    from trainers.config import ALGORITHMS
    from trainers.quickstart import configuration

    profile = PROFILES[profile_name]
    job = None
    for path in sorted((folder / profile_name).glob("*.json")):
        method, cell = METHODS[path.stem.rsplit("-", 1)[0]], json.loads(path.read_text(encoding="utf-8"))
        if method.kind != "rl":
            continue
        job = job or demonstrated_job(profile.training)
        algorithm = method.options["algorithm"]
        args = configuration(folder, algorithm=algorithm, steps=len(cell["curve"]), seed=0)
        rollouts = args.num_generations
        critic = ALGORITHMS[algorithm].estimator == "ppo"
        setup = replace(job.setup, critic=critic, micro_batch=args.per_device_train_batch_size)
        one = replace(job, setup=setup, questions=(args.generation_batch_size or 0) // rollouts, rollouts=rollouts)
        yield f"cell: {path.stem}", len(cell["curve"]) * seconds(step_work(one), machine), cell["training_seconds"]


def demonstrated_job(options: dict[str, Any], *, episodes: int = 128) -> Job:
    """Returns a step on FictionQA; lengths are those of full demonstrations, since cells do not record theirs."""
    from agent_r1_gym.commands.base import make_envs
    from benchmarks.scripted import make_model
    from trainers.demonstrations import demonstrate
    from trainers.held_out import ENV
    from trainers.supervised import NOT_TRAINED, training_row
    from trainers.tiny import build_tokenizer

    [env] = make_envs(ENV, 1, dict(options))
    rng, tokenizer = random.Random(0), build_tokenizer()
    shown = [
        demonstrate(env, index, habit="full_chain", rng=rng)  # type: ignore[arg-type]
        for index in rng.sample(range(len(env.tasks)), min(episodes, len(env.tasks)))
    ]
    marks = [[label != NOT_TRAINED for label in training_row(tokenizer, messages)["labels"]] for messages in shown]
    turns = statistics.fmean(sum(message.role == "assistant" for message in messages) for messages in shown)
    sampled, prompt = statistics.fmean(map(sum, marks)), statistics.fmean(mark.index(True) for mark in marks)
    total = statistics.fmean(map(len, marks))
    return Job(
        shape=shape_of(make_model("0.4M", tokenizer, device="cpu").config),
        setup=_setup(slots=episodes, length=max(map(len, marks))),
        questions=episodes,
        rollouts=1,
        turns=turns,
        prompt=prompt,
        spoken=sampled / turns,
        response=(total - prompt - sampled) / max(1e-9, turns - 1),
        spread=max(map(sum, marks)) / sampled,
    )


def check(cases: Sequence[dict[str, Any]], results: Path, profile: str) -> str:
    """Returns predicted and measured seconds of everything that the fit did not see, and the errors."""
    machine = fit(observed(cases))
    sets = {
        "each case, fitted to the others (CPU time)": held_out(cases, "name"),
        "each size, fitted to the other sizes (CPU time)": held_out(cases, "size"),
        "trainer_speed (CPU time, another day)": list(speed_rows(machine, results / "trainer_speed.jsonl")),
        "multihop_qa (wall time under varying load)": list(cells(machine, results / "multihop_qa", profile)),
    }
    units = {name: value for name, value in asdict(machine).items() if value and name != "overlap"}
    lines = ["fitted, seconds a unit: " + ", ".join(f"{name} {value:.3g}" for name, value in units.items())]
    for title, rows in sets.items():
        if not rows:
            lines.append(f"\n{title}: nothing measured yet")
            continue
        median, worst = errors([(predicted, taken) for _, predicted, taken in rows])
        lines.append(f"\n{title}: error median {median:.0%}, worst {worst:.0%}, {len(rows)} values")
        shown = [(name, f"{p:.2f}", f"{taken:.2f}", f"{p / taken - 1:+.0%}") for name, p, taken in rows]
        lines.append(table(("", "predicted s", "measured s", "error"), shown))
    return "\n".join(lines)


def planned_jobs(options: argparse.Namespace) -> dict[str, Job]:
    """Returns the step at assumed lengths, cut to the context, and at the budgets, that is with all tokens used up.

    Half of the context is the prompt's, half the completion's, as in the paper.
    """
    half, turns, gaps = options.context / 2, options.turns, options.turns - 1
    if half < turns:
        raise ConfigurationError(f"--context {options.context} leaves no token for each of {turns} turns: raise it.")
    prompt, spoken, response = options.prompt_tokens, options.spoken_tokens, options.response_tokens
    share = min(1.0, half / (turns * spoken + gaps * response))
    most = min(given.TURN_BUDGET, half / turns)
    lengths = {
        "assumed": {"prompt": min(half, prompt), "spoken": share * spoken, "response": share * response},
        "budget": {"prompt": half, "spoken": most, "response": (half - turns * most) / gaps if gaps else 0.0},
    }
    whole = options.lora_rank is not None
    setup = Setup(
        lora_rank=options.lora_rank,
        weight_bytes=2 if whole else 4,
        slots=min(given.MOST_SLOTS, math.ceil(options.batch * options.rollouts / options.gpus)),
        length=options.context,
        micro_batch=options.micro_batch,
        reference=not options.no_reference,
        critic=options.critic,
        shards=1 if whole else options.gpus,
    )
    job = functools.partial(Job, QWEN25[options.model], setup, options.batch, options.rollouts, turns)
    rest = {"processes": options.gpus, "mini_batches": options.mini_batches}
    return {name: job(**found, **rest) for name, found in lengths.items()}


def plan(options: argparse.Namespace, host: Machine) -> list[tuple[str, ...]]:
    """Returns the rows of the table for one model, number of GPUs, turns and context: one for each kind of lengths."""
    gpu, steps, rows = given.GPUS[options.gpu], math.ceil(options.questions / options.batch), []
    episodes = steps * options.batch * options.rollouts
    for lengths, job in planned_jobs(options).items():
        peak, room = estimate(job.shape, job.setup).peak / GIB, gpu.memory * given.USABLE_MEMORY
        ends = []
        for end in (given.LOW, given.HIGH):
            uneven = replace(job, spread=end.spread) if lengths == "assumed" else job
            ends.append(seconds(step_work(uneven), end.machine(gpu, host=host)))
        hours = [steps * second / 3600 for second in ends]
        rows.append(
            (
                *(options.model, str(options.gpus), str(options.turns), str(options.context), lengths),
                f"{peak:.0f} of {room:.0f}{'' if peak <= room else ': TOO MUCH'}",
                *(f"{episodes * tokens / 1e6:,.0f}" for tokens in (job.sampled, job.prompt + job.completion)),
                *map(_between, (ends, hours, [hour * options.gpus * _price(options) for hour in hours])),
            )
        )
    return rows


HEADER = ("model", "GPUs", "turns", "context", "lengths", "GiB a GPU", "M tokens sampled", "M tokens in all")
HEADER += ("s a step", "hours", "US dollars")


def _price(options: argparse.Namespace) -> float:
    return float(given.GPUS[options.gpu].price if options.price is None else options.price)


def _between(values: Sequence[float]) -> str:
    return " to ".join(f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in values)


def predict(options: argparse.Namespace, host: Machine) -> str:
    """Returns the table, and what in it is measured and what assumed."""
    grid = {"model": tuple(QWEN25), **given.GRID} if options.all else {}
    changes = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    rows = [row for change in changes for row in plan(argparse.Namespace(**vars(options) | change), host)]
    low, high = given.LOW, given.HIGH
    notes = (
        "Counted: tokens, weights, optimiser, KV cache, operations. Measured on a CPU: host seconds a turn and a step.",
        f"ASSUMED, no {options.gpu} was measured: {low.flops:.0%} to {high.flops:.0%} of its peak operations, "
        f"{low.bandwidth:.0%} to {high.bandwidth:.0%} of its bandwidths, {low.launch:g} to {high.launch:g} s a layer "
        f"and pass, {low.wait:g} to {high.wait:g} s a tool call that nothing hides, {_price(options):g} US dollars an "
        "hour.",
        f"Lengths: 'assumed' {options.prompt_tokens} tokens of prompt, {options.spoken_tokens} sampled a turn, "
        f"{options.response_tokens} a tool response, cut to the context, the longest episode {low.spread:g} to "
        f"{high.spread:g} times the mean; 'budget': every token of the context used up.",
    )
    return table(HEADER, rows) + "\n\n" + "\n".join(notes)


def _parser(defaults: Mapping[str, Any] = MappingProxyType({})) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibration", type=Path, default=CALIBRATION, help="file of measured steps")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("measure").add_argument("--rounds", type=_positive, default=5)
    checking = actions.add_parser("check")
    checking.add_argument("--results", type=Path, default=RESULTS, help="folder of measured steps and cells")
    checking.add_argument("--profile", choices=["cpu"], default="cpu", help="of the cells (default: %(default)s)")
    scale = actions.add_parser("predict")
    scale.add_argument("--preset", choices=list(given.PRESETS))
    scale.add_argument("--all", action="store_true", help="every model x GPUs x turns x context")
    scale.add_argument("--model", choices=list(QWEN25), default="3B", help="Qwen2.5 of this size")
    scale.add_argument("--gpu", choices=list(given.GPUS), default="h100")
    for name, default in (("gpus", 8), ("turns", 5), ("context", 8192), ("questions", 51_200), ("batch", 128)):
        scale.add_argument(f"--{name}", type=_positive, default=default, help="default: %(default)s")
    for name, default in (("rollouts", 5), ("micro-batch", 1), ("mini-batches", 1)):
        scale.add_argument(f"--{name}", type=_positive, default=default, help="default: %(default)s")
    for name, tokens in given.ASSUMED.items():
        scale.add_argument(f"--{name}-tokens", type=_positive, default=tokens, help="default: %(default)s")
    scale.add_argument("--lora-rank", type=_positive, help="train an adapter, the model whole on each GPU")
    scale.add_argument("--critic", action="store_true", help="PPO")
    scale.add_argument("--no-reference", action="store_true", help="no KL: beta is 0")
    scale.add_argument("--price", type=_amount, help="US dollars for a GPU and hour (default: an assumption)")
    scale.set_defaults(**defaults)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected an amount above 0, got {text!r}")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, checks or predicts."""
    words, parser = list(sys.argv[1:] if arguments is None else arguments), _parser()
    options = parser.parse_args(words)
    try:
        _run(options, words)
    except ConfigurationError as error:
        parser.error(str(error))
    return 0


def _run(options: argparse.Namespace, words: Sequence[str]) -> None:
    if options.action == "measure":
        cases = measure_cases(given.CASES, rounds=options.rounds)
        found = measure.provenance(("python", "-m", "benchmarks.scaling", *words))
        measure.append_row(options.calibration, {"rounds": options.rounds, "cases": cases, **found})
        return
    cases = calibration(options.calibration)
    if options.action == "check":
        say(check(cases, options.results, options.profile))
    else:
        options = _parser(given.PRESETS.get(options.preset, {})).parse_args(words)
        say(predict(options, fit(observed(cases))))


if __name__ == "__main__":
    sys.exit(main())
