"""`agent-r1 rollout ENV`: plays episodes with a policy, scores them, and writes their traces."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_r1_gym.cli.env_options import add_env_arguments, check_search, env_options, first_tasks, warn_of_lost
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.evaluation.metrics import lost_by_error
from agent_r1_gym.play.episode import rollout
from agent_r1_gym.play.policies import POLICIES, NaivePolicy, Policy, ReplayPolicy, make_policy
from agent_r1_gym.play.record import Trajectory, append_trace
from agent_r1_gym.registry import last_name, make_envs
from agent_r1_gym.report.episodes import write_html
from agent_r1_gym.scoring import AnswerScorer
from agent_r1_gym.support.terminal import say, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    add_env_arguments(parser)
    parser.add_argument("--policy", default="oracle", help=f"who acts: {', '.join(POLICIES)} (default: oracle)")
    parser.add_argument("-n", "--episodes", type=int, help="episodes: the first N tasks (default: all, at most 100)")
    parser.add_argument("--num-envs", type=int, default=16, help="episodes side by side (default: 16)")
    parser.add_argument(
        "--out", type=Path, help="new folder for trace.jsonl and trace.html (default: runs/rollout-...)"
    )


def run(options: argparse.Namespace) -> int:
    """Plays the episodes and returns 1 if some lost their backend; what is finished is traced also after Ctrl-C."""
    policy = make_policy(options.policy)
    if options.num_envs < 1:
        raise ConfigurationError(f"--num-envs must be at least 1, got {options.num_envs}.")
    first = make_envs(options.env, 1, env_options(options))[0]
    indices = task_indices(first, policy, options.episodes)
    if isinstance(policy, NaivePolicy):
        check_search(policy.name, first)
    others = make_envs(options.env, min(options.num_envs, len(indices)) - 1, env_options(options))
    folder = new_folder(options.out or default_folder(options.env, policy.name))
    trajectories = play([first, *others], policy, indices, folder / "trace.jsonl")
    write_html(trajectories, folder / "trace.html")
    say(f"served: {first.describe_dataset()}")
    say(score_table([trajectories], scorer=first.scorer))
    say(f"traces: {folder / 'trace.jsonl'}, to look at: {folder / 'trace.html'}")
    lost = lost_by_error([t.infrastructure_error for t in trajectories if t.infrastructure_error is not None])
    if lost:
        warn_of_lost(lost, folder / "trace.jsonl", "Mend the backend and play again.")
    return int(bool(lost))


def task_indices(env: ToolEnv, policy: Policy, episodes: int | None) -> list[int]:
    """Returns which tasks to play: those of a replayed trace, else the first `episodes`.

    Raises:
        ConfigurationError: fewer than one episode, or more than there are tasks.
    """
    available: Sequence[int] = policy.task_indices if isinstance(policy, ReplayPolicy) else range(len(env.tasks))
    return first_tasks(available, min(len(available), 100) if episodes is None else episodes)


def play(envs: Sequence[ToolEnv], policy: Policy, indices: Sequence[int], trace: Path) -> list[Trajectory]:
    """Plays the tasks under a progress bar, writing each trajectory to `trace` as its episode ends."""
    from tqdm import tqdm

    trajectories: list[Trajectory] = []
    with tqdm(total=len(indices), desc=policy.name, unit="episode") as bar:
        for trajectory in rollout(envs, policy, indices):
            append_trace(trace, [trajectory])
            trajectories.append(trajectory)
            mean = _mean([t.episode_return for t in trajectories if t.infrastructure_error is None])
            bar.set_postfix({"return": mean if isinstance(mean, str) else f"{mean:.3f}"}, refresh=False)
            bar.update()
    return trajectories


def score_table(groups: Sequence[Sequence[Trajectory]], *, scorer: AnswerScorer) -> str:
    """Returns one row of mean scores for each group of trajectories of one policy."""
    header = ("policy", "episodes", "answered right", "EM", "F1", "return", "turns", "calls", "failed calls", "dropped")
    return table(header, [_scores(trajectories, scorer) for trajectories in groups if trajectories])


def _scores(trajectories: Sequence[Trajectory], scorer: AnswerScorer) -> tuple[str | int | float, ...]:
    scored = [t for t in trajectories if t.infrastructure_error is None]
    turns = [turn for t in scored for turn in t.turns]
    errors = [error for turn in turns for error in turn.outcome_errors]
    matches = [_score(t, scorer.em) for t in scored]
    failed = sum(error is not None for error in errors) + sum(bool(turn.parse_errors) for turn in turns)
    return (
        trajectories[0].policy,
        len(scored),
        f"{int(sum(matches))}/{len(scored)}",
        _mean(matches),
        _mean([_score(t, scorer.f1) for t in scored]),
        _mean([t.episode_return for t in scored]),
        _mean([len(t.turns) for t in scored]),
        _mean([sum(len(turn.outcome_errors) for turn in t.turns) for t in scored]),
        failed if scored else "-",
        len(trajectories) - len(scored),
    )


def _mean(values: Sequence[float]) -> float | str:
    return sum(values) / len(values) if values else "-"


def _score(trajectory: Trajectory, metric: Callable[[str, tuple[str, ...]], float]) -> float:
    if trajectory.answer is None or not trajectory.gold_answers:
        return 0.0
    return metric(trajectory.answer, trajectory.gold_answers)


def default_folder(env: str, policy: str) -> Path:
    """Returns a folder name that says what was run and when."""
    return Path("runs") / f"rollout-{last_name(env)}-{policy.split(':')[0]}-{time.strftime('%Y%m%d-%H%M%S')}"


def new_folder(path: Path) -> Path:
    """Creates the folder; refuses one that holds something, so that no run overwrites another.

    Raises:
        ConfigurationError: the folder is not empty, or a file stands there.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigurationError(f"{path} exists and is not an empty folder; choose another --out.")
    path.mkdir(parents=True, exist_ok=True)
    return path
