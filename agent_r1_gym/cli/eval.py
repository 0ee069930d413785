"""`agent-r1 eval ENV --policy ...`: plays a fixed set of questions, and measures; an interrupted run resumes."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_r1_gym.cli.env_options import add_env_arguments, check_search, env_options, first_tasks, warn_of_lost
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.evaluation.evaluate import evaluate
from agent_r1_gym.evaluation.metrics import METRICS
from agent_r1_gym.evaluation.run_folder import Row, RunFolder, question_hash
from agent_r1_gym.play.endpoint import ChatEndpoint, EndpointOptions
from agent_r1_gym.play.jobs import Job, Player
from agent_r1_gym.play.methods import METHODS, Method, make_method
from agent_r1_gym.play.players import EndpointPlayer, ScriptedPlayer
from agent_r1_gym.play.policies import POLICIES, ReplayPolicy, make_policy
from agent_r1_gym.registry import full_id, last_name, make_envs
from agent_r1_gym.support import plugins
from agent_r1_gym.support.terminal import note, say, table

_DECODING = {"temperature", "top_p", "max_new_tokens"}
_ENDPOINT = _DECODING | {"base_url", "tool_role", "timeout", "attempts", "request"}
_LOCAL = _DECODING | {"max_length", "device", "dtype"}
_DECIDES = _DECODING | {"model", "tool_role", "request", "max_length", "dtype", "weights"}
"""Options of the model that decide the numbers; a run may be resumed with others of the rest."""
_WITH_INTERVAL = ("em", "f1", "sub_em", "support_recall")
"""Metrics whose 95 % interval the printed table shows; `metrics.json` holds all."""
_HELP = (
    f"who acts: {', '.join(POLICIES)}, local:PATH_OR_HUB_ID (a transformers model or a LoRA adapter) or openai:MODEL "
    "(any OpenAI-compatible server, with --base-url; structured tool calls: --option parser=openai). A method may "
    "stand in front of a model: base: (an untrained model with tools, so named), naive-rag: (one retrieval, then the "
    "answer) or direct: (no tools), as in naive-rag:local:PATH"
)


@dataclass(frozen=True, kw_only=True)
class Who:
    """Everything that makes a player: plain data, for other processes too."""

    env: str
    env_options: Mapping[str, Any]
    policy: str
    model: Mapping[str, Any] = field(default_factory=dict)
    in_flight: int = 64
    seed: int = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    add_env_arguments(parser)
    parser.add_argument("--policy", required=True, help=_HELP)
    parser.add_argument("-n", "--questions", type=int, help="the first N questions (default: all)")
    parser.add_argument("--samples", type=int, default=1, help="episodes a question, for pass@k (default: 1)")
    parser.add_argument("--seed", type=int, default=0, help="of samples and environments (default: 0)")
    parser.add_argument("--out", type=Path, help="folder of the run; an unfinished one is resumed (default: runs/...)")
    parser.add_argument("--processes", type=int, default=1, help="that share the questions (default: 1)")
    parser.add_argument("--in-flight", type=int, default=64, help="episodes at once, a process (default: 64)")
    parser.add_argument(
        "--retries", type=int, default=1, help="further tries of an episode that lost its backend (default: 1)"
    )
    model = parser.add_argument_group("models")
    model.add_argument("--temperature", type=float, help="0 is greedy (default: 0)")
    model.add_argument("--top-p", type=float, help="(default: 1)")
    model.add_argument("--max-new-tokens", type=int, help="most tokens of a turn (default: 512)")
    local = parser.add_argument_group("local models")
    local.add_argument("--max-length", type=int, help="most tokens of an episode (default: the model's, at most 8192)")
    local.add_argument("--device", help="such as cuda or cpu (default: a GPU if there is one, one a process)")
    local.add_argument("--dtype", help="such as float32 or bfloat16 (default: the checkpoint's; float32 on a CPU)")
    endpoint = parser.add_argument_group("endpoints (the key is read from AGENT_R1_API_KEY or OPENAI_API_KEY)")
    endpoint.add_argument("--base-url", help="address with the version, such as http://127.0.0.1:8000/v1")
    endpoint.add_argument("--timeout", type=float, help="seconds for one attempt of a request (default: 120)")
    endpoint.add_argument("--attempts", type=int, help="attempts of a request (default: 5)")
    endpoint.add_argument("--tool-role", help="role of tool turns in plain text: tool or user (default: tool)")
    endpoint.add_argument(
        "--request", type=_json_object, metavar="JSON", help="further fields of the request; null drops one"
    )


def run(options: argparse.Namespace) -> int:
    """Evaluates, prints the table and returns 1 if episodes had to be left out."""
    _check_numbers(options)
    who = Who(
        env=full_id(options.env),
        env_options=env_options(options),
        policy=options.policy,
        model=_model_options(options),
        in_flight=options.in_flight,
        seed=options.seed,
    )
    env = make_envs(who.env, 1, dict(who.env_options))[0]
    indices = _indices(env, who, options.questions)
    _check_policy(who, env)
    _note_surprises(who, env, options.samples)
    folder = RunFolder(options.out or _default_folder(who))
    metrics = evaluate(
        folder,
        env,
        functools.partial(make_player, who),
        settings=_settings(who, env, indices, options.samples),
        jobs=[Job(index, sample) for index in indices for sample in range(options.samples)],
        samples=options.samples,
        processes=options.processes,
        retries=options.retries,
    )
    say(f"served: {env.describe_dataset()}")
    say(metrics_table(metrics))
    say(f"run: {folder.path}")
    return _report_excluded(metrics, folder)


def make_player(who: Who, rank: int) -> Player:
    """Returns the player of process number `rank`.

    Raises:
        ConfigurationError: no such policy, or an option that does not fit.
        MissingDependencyError: a local model without the train extra.
    """
    make_env = functools.partial(_make_env, who)
    method, kind, _ = split_policy(who.policy)
    if method is None:
        return ScriptedPlayer(make_env, make_policy(who.policy), side_by_side=who.in_flight, seed=who.seed)
    if kind == "openai":
        endpoint = ChatEndpoint(EndpointOptions(**who.model), in_flight=who.in_flight)
        return EndpointPlayer(make_env, method, endpoint, in_flight=who.in_flight, seed=who.seed, name=who.policy)
    player: Player = _trainers().local_player(
        make_env, method, options=who.model, side_by_side=who.in_flight, seed=who.seed, name=who.policy, rank=rank
    )
    return player


def split_policy(policy: str) -> tuple[Method | None, str, str]:
    """Returns method, kind of model ("local" or "openai") and its name; no method for a scripted policy.

    Raises:
        ConfigurationError: a method without a model.
    """
    first, _, rest = policy.partition(":")
    method, model = (first, rest) if first in METHODS else ("tools", policy)
    kind, _, name = model.partition(":")
    if kind in ("local", "openai") and name:
        return make_method(method), kind, name
    if first in METHODS or kind in ("local", "openai"):
        raise ConfigurationError(f"--policy {policy!r} names no model; expected [METHOD:]local:PATH or openai:MODEL.")
    return None, "", ""


def metrics_table(metrics: Row) -> str:
    """Returns the summary of a run as text: a row for the whole, each type and each number of hops."""
    groups = {"all": metrics["overall"], **metrics["by_type"]}
    groups |= {f"{hops} hops": group for hops, group in metrics["by_hops"].items()}
    found = [name for name in (*METRICS, "seconds") if name in metrics["overall"]["metrics"]]
    rows = [
        (label, group["questions"], *[_cell(name, group["metrics"].get(name)) for name in found])
        for label, group in groups.items()
    ]
    text = table(("questions", "number", *found), rows)
    for name in ("ends", "failures"):
        text += f"\n{name}  " + (", ".join(f"{kind}: {n}" for kind, n in metrics["overall"][name].items()) or "none")
    for name in ("pass_at_k", "majority_at_k"):
        best = [f"{k}: {_shown(value)}" for k, value in metrics.get(name, {}).items()]
        text += f"\n{name}  {'  '.join(best)}" if best else ""
    return text


def _cell(name: str, interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return "-"
    return _shown(interval) if name in _WITH_INTERVAL else f"{interval['mean']:.3g}"


def _shown(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def _report_excluded(metrics: Row, folder: RunFolder) -> int:
    excluded = metrics["excluded"]
    if not excluded["episodes"]:
        return 0
    worst = metrics["em_counting_excluded_as_wrong"]
    counted = "" if worst is None else f"Counted as wrong, EM would be {worst:.3f}. "
    warn_of_lost(excluded["by_error"], folder.failures_path, f"{counted}The same command plays them again.")
    return 1


def _check_numbers(options: argparse.Namespace) -> None:
    least = {"samples": 1, "processes": 1, "in_flight": 1, "retries": 0}
    for name, limit in least.items():
        if getattr(options, name) < limit:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} must be at least {limit}, got {getattr(options, name)}."
            )


def _model_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the model; refuses those that its kind would ignore."""
    _, kind, name = split_policy(options.policy)
    known = {"openai": _ENDPOINT, "local": _LOCAL}.get(kind, set())
    named = {option: getattr(options, option) for option in _ENDPOINT | _LOCAL}
    given = {option: value for option, value in named.items() if value is not None}
    for ignored in sorted(given.keys() - known):
        raise ConfigurationError(f"--{ignored.replace('_', '-')} has no effect on --policy {options.policy}; drop it.")
    if not kind:
        return {}
    if kind == "openai" and "base_url" not in given:
        raise ConfigurationError("--policy openai:... needs --base-url, such as http://127.0.0.1:8000/v1.")
    if kind == "openai":
        return asdict(EndpointOptions(model=name, **given))
    return {**asdict(_trainers().LocalOptions(model=name, **given)), "weights": weights_fingerprint(Path(name))}


def weights_fingerprint(path: Path) -> str | None:
    """Returns a hash that tells other weights at the same path apart; None for a hub id.

    Taken over name, size, and the first and last MiB of each weight file: enough for a retrained model.
    """
    if not path.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*.bin")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(2**20))
            weights.seek(max(size - 2**20, 0))
            digest.update(weights.read())
    return digest.hexdigest()[:16]


def _check_policy(who: Who, env: ToolEnv) -> None:
    """Refuses what could not play, before the first episode."""
    method, _, _ = split_policy(who.policy)
    name = make_policy(who.policy).name if method is None else method.name
    if name in ("naive", "naive-rag"):
        check_search(name, env)


def _note_surprises(who: Who, env: ToolEnv, samples: int) -> None:
    """Says what the numbers of this run would not: that they are of training questions, or of equal samples."""
    if getattr(getattr(env, "dataset", None), "split", None) == "train":
        note(f"these are training questions (split 'train'); {_held_out(who, env)} measures held-out ones.")
    greedy = who.model.get("temperature") == 0 and "temperature" not in who.model.get("request", {})
    if samples > 1 and greedy:
        note(f"WARNING: --samples {samples}, but temperature 0 gives the same answer every time; pass --temperature 1.")


def _held_out(who: Who, env: ToolEnv) -> str:
    given = who.env_options.get("dataset")
    if isinstance(given, str) and Path(given).is_file():
        return "a file of another split"  # --split would only rename this one
    first, *others = getattr(env, "held_out_splits", ()) or [""]
    more = f" (or {', '.join(others)})" if others else ""
    return f"`--split {first}`{more}" if first else "another split, if the environment has one,"


def _indices(env: ToolEnv, who: Who, questions: int | None) -> list[int]:
    policy = make_policy(who.policy) if who.policy.startswith("replay:") else None
    available = sorted(set(policy.task_indices)) if isinstance(policy, ReplayPolicy) else list(range(len(env.tasks)))
    return first_tasks(available, len(available) if questions is None else questions)


def _settings(who: Who, env: ToolEnv, indices: list[int], samples: int) -> Row:
    return {
        "env_id": who.env,
        "env_options": dict(who.env_options),
        "policy": who.policy,
        "model": {name: value for name, value in who.model.items() if name in _DECIDES},
        "samples": samples,
        "seed": who.seed,
        "questions": len(indices),
        "dataset": env.describe_dataset(),
        "question_hash": question_hash(env.tasks[index] for index in indices),
        "corpus": getattr(getattr(env, "dataset", None), "fingerprint", None),
    }


def _make_env(who: Who, **more: Any) -> ToolEnv:
    return make_envs(who.env, 1, {**more, **who.env_options})[0]


def _trainers() -> Any:
    """Returns the module that plays local models."""
    hint = 'Local models need more packages: pip install "agent-r1-gym[train]".'
    return plugins.load("agent_r1_gym.engines", "local", needs=("torch", "transformers"), hint=hint)


def _default_folder(who: Who) -> Path:
    name = "-".join(part for part in who.policy.replace("/", "-").split(":") if part)
    return Path("runs") / f"eval-{last_name(who.env)}-{name[-60:].strip('-.')}-{time.strftime('%Y%m%d-%H%M%S')}"


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
