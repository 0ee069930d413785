"""Speed of the trainer next to TRL's own multi-turn path, `environment_factory`.

    python -m benchmarks.speed.trainer_speed                   every claim; appends to its results
    python -m benchmarks.speed.trainer_speed --claim token     one claim
    python -m benchmarks.speed.trainer_speed --device cuda     a 0.5B model in bfloat16, and peak memory
    python -m benchmarks.speed.trainer_speed --model FOLDER    a pretrained model in the precision that the trainer
                                                               chooses; also decoding next to transformers, shared
                                                               prompts, and both precisions
    python -m benchmarks.speed.trainer_speed --quick           tiny sizes, to see that everything runs; writes nothing

README.md in this folder describes what each claim measures and what differs between the systems.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from benchmarks.common import measure
from benchmarks.common.measure import Check, Figure, Report
from benchmarks.speed import pretrained
from benchmarks.speed.trainer_script import (
    CUDA,
    FULL,
    MODELS,
    PRETRAINED,
    QUICK,
    TARGETS,
    Lengths,
    Script,
    Settings,
    write_script,
)
from benchmarks.speed.trainer_systems import CLOCKS, Agent, Trainee, compare
from trainers.config.hardware import cpu_prefers_bf16


def rollouts(settings: Settings, device: str) -> Report:
    """Rollouts per second, at several turns and at one."""
    cases = ((settings.turns, "rollouts_several_turns"), (1, "rollouts_one_turn"))
    figures, checks = [], []
    for lengths in settings.lengths:
        for turns, target in cases:
            label = f"{lengths.name}, {_turns(turns)}"
            script = write_script(settings, lengths, turns=turns)
            found, ratio = compare(script, label, device, Trainee.roll_out, per=settings.batch, unit="rollouts/s")
            figures += found
            checks.append(Check(f"rollouts/s, {label}: ours / TRL", TARGETS[target], ratio))
    return Report("rollouts", tuple(figures), tuple(checks), {})


def slow_tool(settings: Settings, device: str) -> Report:
    """Rollouts per second, where each search takes a while."""
    label = f"{settings.slow.name}, {_turns(settings.turns)}"
    script = write_script(settings, settings.slow, turns=settings.turns)
    found, ratio = compare(script, label, device, Trainee.roll_out, per=settings.batch, unit="rollouts/s")
    check = Check(f"rollouts/s, {label}: ours / TRL", TARGETS["rollouts_slow_tool"], ratio)
    return Report("slow_tool", tuple(found), (check,), {})


def step(settings: Settings, device: str) -> Report:
    """A whole optimiser step: rollouts, rewards, advantages, update, log."""
    figures, checks = [], []
    for lengths in settings.lengths:
        turns = _turns(settings.turns) if lengths.turns is None else "{} to {} turns".format(*lengths.turns)
        label = f"{lengths.name}, {turns}"
        script = write_script(settings, lengths, turns=settings.turns)
        found, ratio = compare(script, label, device, Trainee.train, per=settings.steps, unit="steps/s")
        figures += found
        target = "step_realistic" if lengths.pass_size else "step_several_turns"
        checks.append(Check(f"steps/s, {label}: ours / TRL", TARGETS[target], ratio))
        if lengths.pass_size:
            update = next(figure for figure in found if figure.name == f"ours / TRL, {label}, update")
            checks.append(Check(f"updates/s, {label}: ours / TRL", TARGETS["update_realistic"], update.median))
    return Report("step", tuple(figures), tuple(checks), {})


def token(settings: Settings, device: str) -> Report:
    """What a generated token costs in several turns, in units of one in a single turn; our engine alone.

    Every row has a question of its own, so that no prefill is shared. All episodes generate the same number of tokens
    (lengths that differ are skipped).
    The single turn is measured twice: with as many more tokens in its prompt as the tool responses have, so that both
    end in contexts of one length, and without them.
    """
    settings = replace(settings, prompts=settings.batch, num_generations=1)
    figures, checks = [], []
    for lengths in (lengths for lengths in settings.lengths if not lengths.spread):
        scripts = token_scripts(settings, lengths)
        with TemporaryDirectory() as folder:
            systems = {name: Agent(script, device=device, folder=folder) for name, script in scripts.items()}
            rollouts = {name: system.roll_out for name, system in systems.items()}
            costs = measure.take_turns(rollouts, rounds=settings.rounds)
        tokens = settings.batch * next(iter(scripts.values())).generated
        for clock, behind in CLOCKS.items():
            times = [
                Figure(
                    f"{lengths.name}, {name}{behind}",
                    "us/token",
                    tuple(1e6 * getattr(cost, clock) / tokens for cost in taken),
                )
                for name, taken in costs.items()
            ]
            ratios = [measure.ratio(f"{times[0].name} / {other.name}", times[0], other) for other in times[1:]]
            figures += [*times, *ratios]
            if clock == "wall":
                statement = f"time per token, {lengths.name}: {_turns(settings.turns)} / 1 turn, equal context"
                checks.append(Check(statement, TARGETS["token_several_turns"], ratios[0].median, at_most=True))
    return Report("token", tuple(figures), tuple(checks), {})


def token_scripts(settings: Settings, lengths: Lengths) -> dict[str, Script]:
    """Returns episodes with equally many generated tokens: in several turns; in one, equal context; in one."""
    several, one = (write_script(settings, lengths, turns=turns) for turns in (settings.turns, 1))
    assert isinstance(lengths.question, int)
    longer = replace(lengths, thought=lengths.thought + round(several.generated - one.generated))
    context = replace(longer, question=lengths.question + round(several.responses))
    return {
        _turns(settings.turns): several,
        "1 turn, equal context": write_script(settings, context, turns=1),
        "1 turn, no responses": write_script(settings, longer, turns=1),
    }


CLAIMS: Mapping[str, Callable[[Settings, str], Report]] = MappingProxyType(
    {"rollouts": rollouts, "slow_tool": slow_tool, "token": token, "step": step}
)


def _turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number} turns"


def main(arguments: list[str] | None = None) -> None:
    """Runs the claims that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.trainer_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    measure.add_claim_options(parser, dict.fromkeys((*CLAIMS, *pretrained.CLAIMS)))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the models live")
    parser.add_argument(
        "--model", help=f"another model than the device's own: {', '.join(MODELS)}, or the folder of a pretrained one"
    )
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float32"),
        help="of a pretrained model (default: bfloat16 on a GPU, and on CPUs that multiply faster in it)",
    )
    options = parser.parse_args(arguments)
    is_folder = options.model is not None and Path(options.model).is_dir()
    known = tuple(pretrained.CLAIMS if is_folder else CLAIMS)
    if unknown := set(options.claim or ()) - set(known):
        parser.error(f"--claim {min(unknown)}: {'with' if is_folder else 'without'} --model FOLDER there is {known}")
    if is_folder:
        _run_pretrained(options, arguments)
        return
    if options.precision is not None:
        parser.error("--precision needs --model FOLDER")
    if options.model not in (None, *MODELS):
        parser.error(f"--model {options.model}: no such folder, and none of {', '.join(MODELS)}")
    settings = QUICK if options.quick else CUDA if options.device == "cuda" else FULL
    settings = replace(settings, model=options.model or settings.model)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # both paths are experimental in TRL
    claims = {name: partial(claim, settings, options.device) for name, claim in CLAIMS.items()}
    measure.run_claims(options, claims, name="trainer_speed", settings=settings, words=arguments)


def _run_pretrained(options: argparse.Namespace, arguments: list[str] | None) -> None:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    in_bf16 = options.device == "cuda" or cpu_prefers_bf16()
    chosen = options.precision or ("bfloat16" if in_bf16 else "float32")
    settings = replace(PRETRAINED, model=options.model, precision=chosen)
    if options.quick:
        settings = replace(settings, rounds=1, num_generations=2, turns=2)
    claims = {name: partial(claim, settings, options.device) for name, claim in pretrained.CLAIMS.items()}
    measure.run_claims(options, claims, name="trainer_speed", settings=settings, words=arguments)


if __name__ == "__main__":
    main()
