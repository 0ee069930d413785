"""`agent-r1 probe RUN_OR_MODEL`: the same questions with one thing changed at a time; does the agent read?"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1_gym.cli.agent_arguments import add_model_argument, agent_from_options
from agent_r1_gym.cli.eval import add_eval_arguments, eval_options, report_excluded
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.envs.fiction_qa.questions import CHAIN_HOPS
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.report.page import number
from agent_r1_gym.report.probe import condition_title, write_probe
from agent_r1_gym.run.agents import model_options
from agent_r1_gym.run.env_options import ENV_HELP, add_env_options, env_options
from agent_r1_gym.run.evaluation.plan import EvalOptions, EvalPlan, make_plan, play
from agent_r1_gym.run.evaluation.probe import (
    COUNTERFACTUAL,
    FILE,
    FORMAT,
    NORMAL,
    ProbeCondition,
    ProbeResult,
    analyse_probe,
    conditions,
)
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.terminal import print_line, table

FAILED = 3
"""Exit status where the agent does not read."""
_ENV = "AgentR1/FictionQA-v0"
_TYPES = {hops: name for name, hops in CHAIN_HOPS.items()}
_PROBE_OPTIONS = ("dataset", "setting", "questions", "mix", "perturbation")
"""Environment options that the probe sets, or that it does not support."""
_TRAINING_OPTIONS = ("questions", "mix", "split")
"""Options of the training that do not apply to the probe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.epilog = f"Exit status: 0 it reads, {FAILED} it does not, 1 episodes lost their backend (no verdict)."
    add_model_argument(parser)
    parser.add_argument("--env", metavar="ENV", help=f"{ENV_HELP}; FictionQA, or one made of it (default: FictionQA)")
    parser.add_argument(
        "--hops", type=int, nargs="+", choices=list(_TYPES), default=[1, 2, 3], help="numbers of hops (default: 1 2 3)"
    )
    parser.add_argument("-n", "--questions", type=int, default=100, help="questions per number of hops (default: 100)")
    add_env_options(parser)
    add_eval_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Play every condition, print table and verdict, write `probe.json` and the page."""
    env_config = _env_config(options)
    how = eval_options(options)
    plans = _plans(options, how, env_config)
    out: Path = options.out or Path("runs") / f"probe-{time.strftime('%Y%m%d-%H%M%S')}"
    runs = {
        condition.name: play(plan, out / condition.name, options=how, name=f"probe {condition.name}")
        for condition, plan in plans
    }
    records = {name: folder.episodes() for name, (folder, _) in runs.items()}
    infra_failures = sum(metrics["excluded"]["episodes"] for _, metrics in runs.values())
    of_name: dict[str, Any] = {condition.name: plan.env.unwrapped for condition, plan in plans}
    result = analyse_probe(records, of_name[COUNTERFACTUAL].tasks, infra_failures=infra_failures)
    settings = _settings(options, plans[0][1])
    with atomic_file(out / FILE) as temporary:
        message = json.dumps({"format": FORMAT, **settings, **result.to_dict()}, indent=2, default=str)
        temporary.write_text(message + "\n", encoding="utf-8")
    dataset = of_name[NORMAL].describe_dataset()
    facts = [f"{settings['policy']}, {settings['questions']} questions per number of hops, of {dataset}."]
    page = out / "report.html"
    size = write_probe(page, result, [condition for condition, _ in plans], records, facts=facts)
    print_line(_format_result(result))
    print_line(f"{out / FILE}; {page}: {size / 1e6:.1f} MB; each condition is a run of `agent-r1 eval`")
    if infra_failures:
        return max(report_excluded(metrics, folder) for folder, metrics in runs.values())
    return 0 if result.verdict.reads else FAILED


def _settings(options: argparse.Namespace, plan: EvalPlan) -> dict[str, Any]:
    """Return the agent and the questions in the form of `probe.json`."""
    hops = sorted(set(options.hops))
    return {
        "policy": plan.spec.policy,
        "env_id": plan.spec.env,
        "env_options": dict(plan.spec.env_options),
        "hops": hops,
        "questions": len(plan.indices) // len(hops),
        "seed": options.seed,
    }


def _env_config(options: argparse.Namespace) -> EnvConfig:
    """Return the environment of the probe, and set `options.policy` and `options.max_turn_tokens`.

    Raises:
        ConfigurationError: no agent is named, or two are; a folder without a model; an option that the probe sets.
    """
    agent = agent_from_options(options)
    chosen = env_options(options)
    refused = next((name for name in _PROBE_OPTIONS if name in chosen), None)
    if refused is not None:
        raise ConfigurationError(
            f"{refused}={chosen[refused]!r}: the probe asks chains of --hops relations, -n of each, in generated "
            "worlds that are searched whole; drop it."
        )
    return agent.env_config(options.env, chosen, drop=_TRAINING_OPTIONS, default=_ENV)


def _plans(
    options: argparse.Namespace, how: EvalOptions, env_config: EnvConfig
) -> list[tuple[ProbeCondition, EvalPlan]]:
    """Plan every condition; all are checked before the first one is played."""
    env = make_text_env(env_config.env_id, env_config.options).unwrapped
    if not isinstance(env, FictionQAEnv):
        raise ConfigurationError(
            f"{env_config.env_id} is a {type(env).__name__}: the probe changes the generated worlds of FictionQA, and "
            "no other environment's. Drop --env, or name one that is made of FictionQA."
        )
    mix = {_TYPES[hops]: 1.0 for hops in sorted(set(options.hops))}
    per_hop = options.questions
    questions = per_hop * len(mix)
    probed = replace(env_config, options={**env_config.options, "mix": mix, "questions": questions})
    try:
        plan = make_plan(probed, options.policy, model_options(options), questions=questions, options=how)
    except ConfigurationError as error:
        raise ConfigurationError(f"-n {per_hop} questions of each of {', '.join(mix)}: {error}") from error
    search: Any = env.tools[0]
    return [
        (condition, _with_condition(plan, condition))
        for condition in conditions(str(env.tasks[0].metadata["style"]), search.top_k)
    ]


def _with_condition(plan: EvalPlan, condition: ProbeCondition) -> EvalPlan:
    """Return the same plan under a condition."""
    chosen = {**plan.spec.env_options, **condition.options}
    return EvalPlan(replace(plan.spec, env_options=chosen), make_text_env(plan.spec.env, chosen), plan.indices)


def _format_result(result: ProbeResult) -> str:
    """Format table, verdict and rules."""
    groups = list(result.rows[0].em)
    columns = [name if name == "all" else f"{name}-hop" for name in groups]
    header = ("condition", *columns, "minus normal", "p-value", "calls")
    rows = []
    for row in result.rows:
        em = [_shown(*row.em[name]) if name in row.em else "-" for name in groups]
        against = _shown(*row.difference[:3]) if row.difference else "-"
        p = "-" if row.p_value is None else f"{row.p_value:.2g}"
        rows.append((condition_title(row), *em, against, p, number(row.calls)))
    rules = [f"  {rule.message}" for rule in result.verdict.rules]
    return "\n".join([table(header, rows), "", result.verdict.message, "Rules (all must hold):", *rules])


def _shown(mean: float, low: float, high: float) -> str:
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"
