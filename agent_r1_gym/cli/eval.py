"""`agent-r1 eval ENV --policy ...` or `agent-r1 eval RUN_OR_MODEL`: plays fixed questions and measures; resumes."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.agents import (
    POLICY_HELP,
    add_model_arguments,
    describe_questions,
    model_options,
    split_policy,
)
from agent_r1_gym.run.env_options import (
    add_env_arguments,
    env_configs_from_options,
    env_options,
    trust_from_options,
    warn_infra_failures,
)
from agent_r1_gym.run.evaluation.agent_card import FILE
from agent_r1_gym.run.evaluation.evaluate import PATIENCE
from agent_r1_gym.run.evaluation.metrics import METRICS, Summary, describe_answers, headline_em, weighted_means
from agent_r1_gym.run.evaluation.plan import EvalOptions, default_folder, make_plan, play
from agent_r1_gym.run.evaluation.run_folder import RunFolder, Shard, shard_status
from agent_r1_gym.run.mixture import MIXTURE_FILE, EnvConfig, parse_mixture, short_option
from agent_r1_gym.run.trained_agent import FOLDER_HELP, TrainedAgent, names_model
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.terminal import print_line, print_note, table

_WITH_INTERVAL = ("em", "f1", "sub_em", "support_recall")
"""Metrics that the printed table shows with their 95 % interval; `metrics.json` holds all intervals."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_env_arguments(parser, allow_mixture=True)
    parser.usage = "agent-r1 eval ENV --policy POLICY [options]\n       agent-r1 eval RUN_OR_MODEL [options]"
    parser.epilog = (
        f"RUN_OR_MODEL in place of ENV: {FOLDER_HELP}. The command line overrides them, with a note. A model of the "
        "hub has no card: ENV --policy local:HUB_ID."
    )
    parser.add_argument("--policy", help=f"{POLICY_HELP} (default: local:RUN_OR_MODEL, where that takes ENV's place)")
    parser.add_argument(
        "-n",
        "--questions",
        type=int,
        help="play the first N questions, of each environment (default: all, or 100 seeds)",
    )
    parser.add_argument(
        "--shard",
        metavar="K/N",
        help="play every N-th question from the K-th on; N processes, on any machines, share one --out, and the last "
        "to finish merges the shards",
    )
    parser.add_argument("--samples", type=int, default=1, help="episodes per question, for pass@k (default: 1)")
    add_eval_arguments(parser)


def add_eval_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of playing a run, and those of models; `probe` has them too."""
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling and of the environments (default: 0)")
    parser.add_argument("--out", type=Path, help="folder of the run; an unfinished one is resumed (default: runs/...)")
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes that share the questions (default: 1)"
    )
    parser.add_argument(
        "--max-concurrent", type=int, default=64, help="maximum number of episodes at once, per process (default: 64)"
    )
    parser.add_argument(
        "--retries", type=int, default=1, help="further attempts for an episode whose backend failed (default: 1)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        help="seconds without a finished episode, while every backend fails, after which the run stops (default: "
        f"{PATIENCE:g})",
    )
    add_model_arguments(parser)


def eval_options(options: argparse.Namespace) -> EvalOptions:
    """Return how the command line wants a run played."""
    names = [field.name for field in fields(EvalOptions) if field.name in options]
    return EvalOptions(**{name: getattr(options, name) for name in names})


def run(options: argparse.Namespace) -> int:
    """Evaluate, print the table, and return 1 if episodes had to be excluded."""
    trained = options.env is not None and names_model(options.env)
    env_configs = _trained_env_configs(options) if trained else _named_env_configs(options)
    options.shard = None if options.shard is None else Shard.read(options.shard)
    if options.shard is not None and (options.out is None or len(env_configs) > 1):
        raise ConfigurationError("--shard takes one environment, and needs --out: the folder that all shards share.")
    how = eval_options(options)
    model = model_options(options)
    plans = {
        config.name: make_plan(
            config, options.policy, model, questions=options.questions, options=how, clip=len(env_configs) > 1
        )
        for config in env_configs  # all are checked before one is played
    }
    if len(plans) > 1:
        out: Path = options.out or Path("runs") / f"eval-mixture-{time.strftime('%Y%m%d-%H%M%S')}"
        runs = {name: play(plan, out / name, options=how, name=f"eval {name}") for name, plan in plans.items()}
        for name, plan in plans.items():
            print_line(f"served: {name}: {describe_questions(plan.env)}")
        _summarize_mixture(env_configs, {name: metrics for name, (_, metrics) in runs.items()}, out)
        print_line(f"runs: {out}; open them: agent-r1 report {shlex.quote(str(out))}")
        return max(report_excluded(metrics, folder) for folder, metrics in runs.values())
    (plan,) = plans.values()
    folder, metrics = play(plan, options.out or default_folder(plan.spec, "eval"), options=how, name="eval")
    print_line(f"served: {describe_questions(plan.env)}")
    print_line(metrics_table(metrics))
    if options.shard is not None and folder.path != options.out:
        print_line(f"shard {options.shard}: {shard_status(options.out)}")
    print_line(f"run: {folder.path}; open it: agent-r1 report {shlex.quote(str(folder.path))}")
    return report_excluded(metrics, folder)


def _named_env_configs(options: argparse.Namespace) -> Sequence[EnvConfig]:
    """Return the environments of a command line that names them and a policy."""
    if options.policy is None:
        raise ConfigurationError(
            "Name who acts: --policy, such as --policy oracle, --policy local:runs/grpo or --policy local:HUB_ID."
        )
    agent = TrainedAgent.of_policy(options.policy, trust_from_options(options))
    named = env_configs_from_options(options)
    if agent.card is None:
        return named
    options.max_turn_tokens = agent.max_turn_tokens(options.max_turn_tokens)
    configs = [
        replace(
            agent.env_config(config.env_id, config.options, drop=("split",)), name=config.name, weight=config.weight
        )
        for config in named
    ]
    _note_card_options(agent, named, configs)
    return configs


def _note_card_options(agent: TrainedAgent, named: Sequence[EnvConfig], configs: Sequence[EnvConfig]) -> None:
    """Report the options of the card that complete those of the command line."""
    for own, config in zip(named, configs, strict=True):
        added = {name: value for name, value in config.options.items() if name not in own.options}
        if added:
            shown = " ".join(short_option(*option) for option in added.items())
            print_note(f"{config.env_id} as {agent.model} was trained in it ({FILE}): {shown}")


def _trained_env_configs(options: argparse.Namespace) -> Sequence[EnvConfig]:
    """Return the environments of the agent that stands in ENV's place; set `policy` and `max_turn_tokens`."""
    agent = TrainedAgent.load(options.env, trust_from_options(options))
    if options.config is not None:
        raise ConfigurationError(f"--config names environments, and {options.env} has its own; drop one of the two.")
    if options.policy is None:
        options.policy = agent.policy
    else:
        print_note(f"--policy {options.policy} acts in place of {agent.model}.")
    if split_policy(options.policy)[0] is not None:  # a scripted policy has no tokens to limit
        options.max_turn_tokens = agent.max_turn_tokens(options.max_turn_tokens)
    common, drop = env_options(options), ("split",)  # held-out questions, unless the command line names a split
    if options.envs:
        chosen = []
        for named in parse_mixture(options.envs):
            own = {**common, **named.options, **(named.eval_options or {})}
            trained = agent.env_config(named.env_id, own, drop=drop)
            chosen.append(replace(trained, name=named.name, weight=named.weight))
        return chosen
    if agent.card is None:
        return [agent.env_config(None, common)]  # raises: no card names an environment
    configs = [
        agent.override(replace(trained, options={**trained.options, **(trained.eval_options or {})}), common, drop=drop)
        for trained in agent.card.environments
    ]
    shown = "; ".join(config.to_text(include_eval=False, short=True) for config in configs)
    limit = "" if options.max_turn_tokens is None else f", at most {options.max_turn_tokens} tokens per turn"
    print_note(f"evaluating {agent.model} as it was trained ({FILE}): {shown}{limit}")
    return configs


def _summarize_mixture(env_configs: Sequence[EnvConfig], summaries: Mapping[str, Summary], out: Path) -> None:
    """Write `mixture.json` and print one table of all environments."""
    mean = weighted_means(summaries, {config.name: config.weight for config in env_configs})
    environments = [{**config.to_dict(), "metrics": summaries[config.name]["overall"]} for config in env_configs]
    with atomic_file(out / MIXTURE_FILE) as temporary:
        text = json.dumps({"environments": environments, "weighted_mean": mean}, indent=2, default=str)
        temporary.write_text(text + "\n", encoding="utf-8")
    print_line(mixture_table(summaries, mean))


def metrics_table(metrics: Summary) -> str:
    """Return the summary of a run as text: a row for the whole, and for each value of the tasks' labels."""
    groups = {"all": metrics["overall"]}
    for label, values in metrics["by"].items():
        groups |= {f"{label} {value}": group for value, group in values.items()}
    names = [name for name in (*METRICS, "seconds") if name in metrics["overall"]["metrics"]]
    terms = [name for name in metrics["overall"]["reward_terms"] if name not in names]
    lost, lost_as_wrong = metrics["excluded"], metrics["em_counting_excluded_as_wrong"]
    if lost["episodes"] and lost_as_wrong is not None:
        # A row before the means of the rest, which do not contain the lost episodes.
        names = ["em", *(name for name in names if name != "em")]
        groups = {
            "all, lost = wrong": {**_NO_GROUP, "metrics": {"em": lost_as_wrong}},
            "finished": groups.pop("all"),
        } | groups
    rows = [
        (
            label,
            group["questions"],
            *[_cell(name, group["metrics"].get(name)) for name in names],
            *[_cell(name, group["reward_terms"].get(name)) for name in terms],
        )
        for label, group in groups.items()
    ]
    text = table(("questions", "number", *names, *(f"term {name}" for name in terms)), rows)
    text += f"\nanswers  {summary}" if (summary := describe_answers(metrics)) else ""
    counts = {
        "end_reasons": metrics["overall"]["end_reasons"],
        "mistakes": metrics["overall"]["failures"],
        "lost episodes": lost["by_error"],
    }
    for name, numbers in counts.items():
        text += f"\n{name}  " + (", ".join(f"{kind}: {n}" for kind, n in numbers.items()) or "none")
    as_wrong = metrics.get("best_of_k_counting_excluded_as_wrong")
    for name in ("pass_at_k", "pass_hat_k", "majority_at_k"):
        if as_wrong is not None:
            text += _best_line(f"{name}, lost = wrong", as_wrong[name])
        text += _best_line(name if as_wrong is None else f"{name}, finished", metrics.get(name, {}))
    return text


def _best_line(name: str, by_size: Mapping[str, Mapping[str, float]]) -> str:
    best = [f"{k}: {_shown(value)}" for k, value in by_size.items()]
    return f"\n{name}  {'  '.join(best)}" if best else ""


def mixture_table(summaries: Mapping[str, Summary], mean: Mapping[str, float]) -> str:
    """Return the summaries of several environments as text, and their weighted mean."""
    all_of_it = {env: metrics["overall"] for env, metrics in summaries.items()}
    brought = set().union(*(whole["metrics"] for whole in all_of_it.values()))
    names = [name for name in (*METRICS, "seconds") if name in brought]
    rows = [
        (env, whole["questions"], *(_cell(name, whole["metrics"].get(name)) for name in names))
        for env, whole in all_of_it.items()
    ]
    lost = {env: metrics["excluded"]["episodes"] for env, metrics in summaries.items()}
    if any(lost.values()):
        em = {env: headline_em(metrics) for env, metrics in summaries.items()}
        cells = ["-" if value is None else f"{value:.3f}" for value in em.values()]
        rows = [(*row, cell, lost[row[0]]) for row, cell in zip(rows, cells, strict=True)]
        names = [*names, "em, lost = wrong", "lost"]
    if any(lost.values()) and "em" in mean:
        mean = {**mean, "em, lost = wrong": mean["em"]}
        del mean["em"]
    last = ("weighted mean", "-", *[f"{mean[name]:.3f}" if name in mean else "-" for name in names])
    return table(("environment", "number", *names), [*rows, last])


_NO_GROUP: Summary = {"questions": "-", "metrics": {}, "reward_terms": {}}


def _cell(name: str, interval: Mapping[str, float] | float | None) -> str:
    if interval is None:
        return "-"
    if isinstance(interval, float):  # without an interval
        return f"{interval:.3f}"
    return _shown(interval) if name in _WITH_INTERVAL else f"{interval['mean']:.3f}"


def _shown(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def report_excluded(metrics: Summary, folder: RunFolder) -> int:
    """Warn of episodes that lost their backend; return the exit status."""
    excluded = metrics["excluded"]
    if not excluded["episodes"]:
        return 0
    worst = metrics["em_counting_excluded_as_wrong"]
    if_wrong = "" if worst is None else f"Counted as wrong, EM would be {worst:.3f}. "
    first = folder.failures()[0].error
    warn_infra_failures(
        excluded["by_error"], first, folder.infra_failures_path, f"{if_wrong}The same command plays them again."
    )
    return 1
