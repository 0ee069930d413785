"""Steps per second through another library's loop, next to the bare environment: whichever libraries are installed.

`python -m benchmarks.speed.adapters` plays the oracle's turns of 50 questions, over and over, and prints medians. The
time of verl's agent loop includes contexts, masks, log-probs and the tokens of tool responses, by a tokenizer of bytes
and with a server that answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.errors import MissingDependencyError
from agent_r1_gym.integrations.episode import ChatEpisode
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import make_policy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job
from benchmarks.common.measure import Figure, Report, add_round_options, append_report, interleave

ENV = "AgentR1/FictionQA-v0"
OPTIONS = {"questions": 50, "reward": "process"}

Play = Callable[[int, Sequence[str]], float]
"""Plays an episode: task, turns; returns what it paid."""


def bare() -> Play:
    """Plays with `env.step` alone."""
    env = make_text_env(ENV, OPTIONS)

    def play(index: int, actions: Sequence[str]) -> float:
        env.reset(options={"task_index": index})
        return sum(float(env.step(action)[1]) for action in actions)

    return play


def episode() -> Play:
    """Plays with a `ChatEpisode`, on which adapters stand."""
    env = make_text_env(ENV, OPTIONS)

    def play(index: int, actions: Sequence[str]) -> float:
        running = ChatEpisode(env, task_index=index)
        for action in actions:
            running.step_chat(action)
        return sum(turn.reward for turn in running.turns)

    return play


def skyrl_gym() -> Play:
    """Plays with `skyrl_gym.make` per episode, as SkyRL's generator does."""
    from agent_r1_gym.integrations import skyrl_gym as adapter

    adapter.register()
    import skyrl_gym

    def play(index: int, actions: Sequence[str]) -> float:
        row = {"env_id": ENV, "options": OPTIONS, "task_index": index, "max_turns": 20}
        env = skyrl_gym.make("agent_r1_gym", env_config={}, extras=row)
        env.init([])
        paid = sum(float(env.step(action)["reward"]) for action in actions)
        env.get_metrics()
        env.close()
        return paid

    return play


def gem() -> Play:
    """Plays with GEM's environment."""
    from agent_r1_gym.integrations.gem import register

    name = register(ENV)
    import gem

    env = gem.make(name, **OPTIONS)

    def play(index: int, actions: Sequence[str]) -> float:
        env.reset(options={"task_index": index})
        return sum(float(env.step(action)[1]) for action in actions)

    return play


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer(template: str = TEMPLATE) -> Any:
    """Returns a tokenizer of bytes with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>", "<|pad|>")])
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|pad|>")
    tokenizer.chat_template = template
    return tokenizer


class Server:
    """Stands in for verl's server manager: answers with the turns that it was given."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Returns the next turn."""
        ids = self.turns.pop(0)
        return SimpleNamespace(
            token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", num_preempted=None, extra_fields={}
        )


def verl() -> Play:
    """Plays with the agent loop, made anew for each episode as verl's worker does."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from agent_r1_gym.integrations.verl import AgentR1Loop

    rollout = {"prompt_length": 4_000, "response_length": 20_000}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    tokenizer, server = byte_tokenizer(), Server()
    parts = {"trainer_config": DictConfigWrap(config), "data_config": DictConfigWrap(config.data)}
    rest = {"processor": None, "dataset_cls": None, "hf_model_type": "qwen3"}
    events = asyncio.new_event_loop()
    asyncio.set_event_loop(events)

    def play(index: int, actions: Sequence[str]) -> float:
        server.turns = [[*tokenizer.encode(action), tokenizer.eos_token_id] for action in actions]
        loop = AgentR1Loop(server_manager=server, tokenizer=tokenizer, **parts, **rest)
        row = {"env_id": ENV, "options": json.dumps(OPTIONS), "task_index": index}
        return float(events.run_until_complete(loop.run({}, extra_info=row)).reward_score)

    return play


SYSTEMS: dict[str, Callable[[], Play]] = {
    "bare": bare,
    "Episode": episode,
    "SkyRL-Gym": skyrl_gym,
    "GEM": gem,
    "verl": verl,
}


def measure(makers: Mapping[str, Callable[[], Play]], *, rounds: int, passes: int) -> Report:
    """Returns steps per second of each system that is installed.

    Args:
        makers: name to what makes a way of playing; "bare" is what the others are compared with.
        rounds: number of values per system.
        passes: how often each value plays all questions.
    """
    records = _oracle()
    steps = passes * sum(len(record.turns) for record in records)
    systems: dict[str, Play] = {}
    absent: dict[str, str] = {}
    for name, make in makers.items():
        try:
            systems[name] = make()
        except (ImportError, MissingDependencyError) as error:
            absent[name] = str(error)

    def speed(play: Play) -> float:
        start = time.perf_counter()
        for _ in range(passes):
            for record in records:
                paid = play(record.task_index, [turn.action for turn in record.turns])
                if abs(paid - record.episode_return) > 1e-9:
                    raise RuntimeError(f"Task {record.task_id} paid {paid}, not {record.episode_return}.")
        return steps / (time.perf_counter() - start)

    measures = {name: (lambda play=play: speed(play)) for name, play in systems.items()}
    figures = interleave(measures, rounds=rounds, unit="steps/s")
    return Report("adapters", (*figures.values(), *_slower(figures)), (), absent)


def _slower(figures: dict[str, Figure]) -> Iterator[Figure]:
    """Yields what each system adds to a step, round by round."""
    for name, figure in figures.items():
        if name != "bare":
            pairs = zip(figures["bare"].values, figure.values, strict=True)
            yield Figure(f"{name}: added per step", "us", tuple(1e6 / theirs - 1e6 / ours for ours, theirs in pairs))


def _oracle() -> list[Trajectory]:
    records: list[Trajectory] = []
    policy = make_policy("oracle")
    with contextlib.closing(Player(lambda: make_text_env(ENV, OPTIONS))) as player:
        player.play([Job(index) for index in range(50)], ScriptedEngine(policy), records.append)
    return sorted(records, key=lambda record: record.task_index)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.adapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_round_options(parser)
    parser.add_argument(
        "--passes", type=int, default=4, help="passes over 50 questions per value (default: %(default)s)"
    )
    options = parser.parse_args()
    sizes = {"rounds": options.rounds, "passes": options.passes}
    append_report(functools.partial(measure, SYSTEMS, **sizes), options, name="adapters")


if __name__ == "__main__":
    main()
