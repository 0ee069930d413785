"""`agent-r1 quickstart`: two scripted agents play FictionQA, with scores and traces to look at."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent_r1_gym.commands.base import make_envs, say
from agent_r1_gym.commands.rollout import default_folder, new_folder, play, score_table
from agent_r1_gym.policies import make_policy
from agent_r1_gym.report import write_html

_ENV = "AgentR1/FictionQA-v0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("-n", "--episodes", type=int, default=50, help="episodes a policy (default: 50)")
    parser.add_argument("--out", type=Path, help="new folder for the traces (default: runs/rollout-...)")


def run(options: argparse.Namespace) -> int:
    """Plays the same questions with the oracle and the naive policy."""
    envs = make_envs(_ENV, 16, {"reward": "process"})
    folder = new_folder(options.out or default_folder(_ENV, "quickstart"))
    groups = []
    for name in ("oracle", "naive"):
        trajectories = play(envs, make_policy(name), range(options.episodes), folder / f"{name}.jsonl")
        write_html(trajectories, folder / f"{name}.html")
        groups.append(trajectories)
    say(f"served: {envs[0].describe_dataset()}")
    say(score_table(groups, scorer=envs[0].scorer))
    say(f"episodes to look at: {folder / 'oracle.html'} and {folder / 'naive.html'}")
    return 0
