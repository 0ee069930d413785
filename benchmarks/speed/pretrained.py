"""What `trainer_speed --model FOLDER` measures: a pretrained model instead of random weights, in minutes on a CPU.

The episodes are the script's, token for token, so both trainers do the same work, whatever the model would say; what is
real are its width, depth and vocabulary, which decide where the time goes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.common import measure
from benchmarks.common.measure import Check, Figure, Report
from benchmarks.speed.trainer_script import Script, Settings, make_model, write_script
from benchmarks.speed.trainer_systems import Agent, Trainee, compare
from trainers.commands.doctor import FixedTurn
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine

_DECODING = (8, 32)
"""Numbers of episodes that decode side by side."""
_PROMPT, _TOKENS = 256, 16
"""Tokens of a prompt and of a turn where decoding is measured."""
_SHARED = 8
"""Episodes with one prompt."""


def step(settings: Settings, device: str) -> Report:
    """Rollouts, update and memory of an optimiser step, next to TRL's trainer with the same model and precision."""
    figures, checks = [], []
    (lengths,) = settings.lengths
    script = write_script(settings, lengths, turns=settings.turns)
    label = f"{lengths.name}, {settings.turns} turns, {settings.precision}"
    for name, work, per, unit, target in (
        ("rollouts", Trainee.roll_out, settings.batch, "rollouts/s", 2.0),
        ("steps", Trainee.train, settings.steps, "steps/s", 1.5),
    ):
        found, ratio = compare(script, label, device, work, per=per, unit=unit)
        figures += found
        checks.append(Check(f"{name}/s, {label}: ours / TRL", target, ratio))
    return Report("step", tuple(figures), tuple(checks), {})


def precision(settings: Settings, device: str) -> Report:
    """Seconds per optimiser step of this trainer, in float32 and in bfloat16."""
    (lengths,) = settings.lengths
    with TemporaryDirectory() as folder:
        systems = {
            kind: Agent(_script(settings, kind), device=device, folder=f"{folder}/{kind}")
            for kind in ("float32", "bfloat16")
        }
        costs = measure.take_turns(
            {kind: partial(Trainee.train, system) for kind, system in systems.items()}, rounds=settings.rounds
        )
    figures = [
        Figure(f"step, {lengths.name}, {kind}", "s", tuple(cost.wall / settings.steps for cost in taken))
        for kind, taken in costs.items()
    ]
    return Report("precision", (*figures, measure.ratio("float32 / bfloat16", *figures)), (), {})


def _script(settings: Settings, kind: str) -> Script:
    chosen = replace(settings, precision=kind)
    return write_script(chosen, chosen.lengths[0], turns=chosen.turns)


def decoding(settings: Settings, device: str) -> Report:
    """Sampled tokens per second of the engine, without the pass over the prompts.

    Next to it `transformers.generate`, and vLLM's `LLM.generate` where vLLM is installed.
    """
    model = _plain_model(settings, device)
    vllm = _vllm(settings) if find_spec("vllm") else None
    figures: list[Figure] = []
    for episodes in _DECODING:
        prompts = _prompts(model, episodes)

        def seconds(play: Callable[[int], None]) -> float:
            began = time.perf_counter()
            play(1)
            first = time.perf_counter()
            play(1 + _TOKENS)
            return (time.perf_counter() - first) - (first - began)

        ways = {
            "engine": partial(seconds, partial(_play, model, prompts)),
            "transformers.generate": partial(seconds, partial(_generate, model, prompts)),
        }
        if vllm is not None:
            ways["vLLM"] = partial(seconds, partial(vllm, prompts))
        costs = measure.take_turns(ways, rounds=settings.rounds)
        engine, *others = (
            Figure(f"{name}, {episodes} episodes", "tokens/s", tuple(episodes * _TOKENS / max(c, 1e-9) for c in taken))
            for name, taken in costs.items()
        )
        ratios = [measure.ratio(f"engine / {other.name}", engine, other) for other in others]
        figures += [engine, *others, *ratios]
    return Report("decoding", tuple(figures), (), {})


def prefixes(settings: Settings, device: str) -> Report:
    """Seconds until all episodes have two tokens: prompts that differ, and one prompt of a group.

    Not one token: an episode that is over at once has nothing left to copy for the others.
    """
    model = _plain_model(settings, device)
    different = _prompts(model, _SHARED)

    def seconds(prompts: Sequence[list[int]]) -> float:
        began = time.perf_counter()
        _play(model, prompts, 2)
        return time.perf_counter() - began

    kinds = {"different prompts": different, "one prompt": [different[0]] * _SHARED}
    costs = measure.take_turns(
        {name: partial(seconds, prompts) for name, prompts in kinds.items()}, rounds=settings.rounds
    )
    figures = [Figure(f"{name}, {_SHARED} x {_PROMPT} tokens", "s", taken) for name, taken in costs.items()]
    return Report("prefixes", (*figures, measure.ratio("different / one", *figures)), (), {})


CLAIMS: Mapping[str, Callable[[Settings, str], Report]] = {
    "step": step,
    "decoding": decoding,
    "prefixes": prefixes,
    "precision": precision,
}


def _plain_model(settings: Settings, device: str) -> Any:
    """Returns the model in the precision that it decodes in."""
    script = write_script(settings, settings.lengths[0], turns=1)
    model: Any = make_model(settings.model, script.tokenizer, device=device)
    return model.to(getattr(torch, settings.precision)).eval()


def _prompts(model: Any, count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    ids: list[list[int]] = torch.randint(model.config.vocab_size, (count, _PROMPT), generator=generator).tolist()
    return ids


def _play(model: Any, prompts: Sequence[list[int]], tokens: int) -> None:
    options = SamplingOptions(max_new_tokens=tokens)
    engine = SlotEngine(model, options, slots=len(prompts), max_length=_PROMPT + tokens + 1)
    sessions: Any = (FixedTurn(prompt, seed) for seed, prompt in enumerate(prompts))
    engine.run(sessions)


@torch.no_grad()
def _generate(model: Any, prompts: Sequence[list[int]], tokens: int) -> None:
    ids = torch.tensor(prompts, device=model.device)
    model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, top_k=0, pad_token_id=0)


def _vllm(settings: Settings) -> Callable[[Sequence[list[int]], int], None]:
    """Returns what lets vLLM continue prompts; without its prefix cache, or the second time would cost no prefill."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=settings.model,
        dtype=settings.precision,
        max_model_len=_PROMPT + _TOKENS + 1,
        max_num_seqs=max(_DECODING),
        max_num_batched_tokens=max(_DECODING) * _PROMPT,  # all prompts in one pass
        enable_prefix_caching=False,
        generation_config="vllm",
    )

    def play(prompts: Sequence[list[int]], tokens: int) -> None:
        parameters = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
        llm.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)

    return play
