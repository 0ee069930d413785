"""AgentSpec: the agent that a command line names (scripted policy, local model, or endpoint) and what plays it."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.run.endpoint import ChatEndpoint, EndpointOptions
from agent_r1_gym.run.engines import EndpointEngine, ScriptedEngine
from agent_r1_gym.run.evaluation.evaluate import Runner
from agent_r1_gym.run.evaluation.run_folder import question_hash
from agent_r1_gym.run.model_folder import check_model_files, expand_home, find_gguf, find_model, holds_model
from agent_r1_gym.run.player import HELD_OUT_SEED, Player
from agent_r1_gym.run.policies import POLICIES, PROMPT_METHODS, PromptMethod, make_policy, make_prompt_method
from agent_r1_gym.run.session import env_display_name
from agent_r1_gym.run.token_session import check_chat
from agent_r1_gym.support.packages import local_engines

MAX_LENGTH = 8_192
"""Default maximum number of tokens of an episode of a local model, if its positions allow."""
_DECODING = {"temperature", "top_p", "max_turn_tokens"}
_ENDPOINT = _DECODING | {"base_url", "tool_role", "timeout", "max_retries", "extra_body"}
_LOCAL = _DECODING | {"max_length", "device", "dtype", "chat_template", "chat_template_kwargs"}
RESULT_OPTIONS = _DECODING | {
    *(
        "model",
        "tool_role",
        "extra_body",
        "max_length",
        "dtype",
        "weights_fingerprint",
        "chat_template",
        "chat_template_kwargs",
    )
}
"""Model options that affect the results: a resumed run must keep them, and may change the others."""
_SECRET = re.compile("api.?key|authorization|password|secret|bearer", re.IGNORECASE)
POLICY_HELP = (
    f"policy: {', '.join(POLICIES)}, local:PATH_OR_HUB_ID (a transformers model, a GGUF file or a LoRA adapter) or "
    "openai:MODEL (any OpenAI-compatible server, with --base-url; structured tool calls: --option parser=openai). A "
    "model may have a prompt method as prefix: base: (an untrained model with tools), naive-rag: (one retrieval, then "
    "the answer) or direct: (no tools), as in naive-rag:local:PATH"
)


@dataclass(frozen=True, kw_only=True)
class AgentSpec:
    """Everything needed to make a player and its engine, as picklable data."""

    env: str
    env_options: Mapping[str, Any]
    policy: str
    model: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent: int = 64


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for models, local ones and those behind endpoints."""
    model = parser.add_argument_group("models")
    model.add_argument("--temperature", type=float, help="sampling temperature; 0 is greedy (default: 0)")
    model.add_argument("--top-p", type=float, help="nucleus sampling: probability mass to sample from (default: 1)")
    model.add_argument(
        "--max-turn-tokens",
        type=int,
        help="maximum number of tokens per turn (default: 512 of an endpoint; 1024 of a local model, on a CPU 256)",
    )
    local = parser.add_argument_group("local models")
    local.add_argument("--max-length", type=int, help="maximum number of tokens per episode (default: at most 8192)")
    local.add_argument("--device", help="device, such as cuda or cpu (default: a GPU per process if there is one)")
    local.add_argument(
        "--dtype", help="type of the weights, such as float32 or bfloat16 (default: the checkpoint's; float32 on a CPU)"
    )
    local.add_argument("--chat-template", help="file with a chat template to use instead of the model's")
    local.add_argument("--chat-template-kwargs", type=_json_object, metavar="JSON", help="options of the chat template")
    endpoint = parser.add_argument_group("endpoints (the key is read from AGENT_R1_API_KEY or OPENAI_API_KEY)")
    endpoint.add_argument("--base-url", help="address with the version, such as http://127.0.0.1:8000/v1")
    endpoint.add_argument("--timeout", type=float, help="seconds for one attempt of a request (default: 120)")
    endpoint.add_argument("--max-retries", type=int, help="further attempts after a failed request (default: 4)")
    endpoint.add_argument("--tool-role", help="role of tool turns in plain text: tool or user (default: tool)")
    endpoint.add_argument(
        "--extra-body", type=_json_object, metavar="JSON", help="additional fields of the request; null drops a field"
    )


def make_runner(spec: AgentSpec, rank: int, make_env: Callable[[Sequence[str]], TextEnv] | None = None) -> Runner:
    """Make the player and the engine of process number `rank`.

    Args:
        spec: the agent and its environment.
        rank: number of the process.
        make_env: makes environments from the special tokens of the model; None: those of `spec`.

    Raises:
        ConfigurationError: there is no such policy, or an option does not fit it.
        MissingDependencyError: a local model needs the train extra.
    """
    method, kind, _ = split_policy(spec.policy)
    if method is None:
        policy = make_policy(spec.policy)
        engine = ScriptedEngine(policy, max_concurrent=spec.max_concurrent)
        return Runner(Player(EnvFactory(spec.env, spec.env_options), policy=policy.name), engine)
    if kind == "openai":
        endpoint = ChatEndpoint(EndpointOptions(**spec.model), max_concurrent=spec.max_concurrent)
        named = EnvFactory(spec.env, spec.env_options) if make_env is None else partial(make_env, ())
        player = Player(named, method=method, policy=spec.policy)
        return Runner(player, EndpointEngine(endpoint, max_concurrent=spec.max_concurrent))
    options = local_engines().LocalOptions(
        **{name: spec.model[name] for name in spec.model if name != "weights_fingerprint"}
    )
    chat = local_engines().load_chat(options)
    markup = tuple(chat.markup)
    maker = EnvFactory(spec.env, spec.env_options, markup=markup) if make_env is None else partial(make_env, markup)
    player = Player(maker, method=method, chat=chat, policy=spec.policy)
    env = player.acquire()
    player.release(env)
    try:
        check_chat(chat, env)  # takes seconds, loading the model minutes
        model = local_engines().open_model(options, slots=spec.max_concurrent, rank=rank, chat=chat)
    except BaseException:
        player.close()
        raise
    player.limits = model.limits
    return Runner(player, model.engine)


@dataclass(frozen=True)
class EnvFactory:
    """Picklable factory of environments."""

    name: str
    options: Mapping[str, Any]
    markup: tuple[str, ...] = ()

    def __call__(self) -> TextEnv:
        """Make a new environment, with the wrappers of its registration."""
        return make_text_env(self.name, self.options, markup=self.markup)


def split_policy(policy: str) -> tuple[PromptMethod | None, str, str]:
    """Split a policy into prompt method, kind of model ("local" or "openai") and its name; no method if it is scripted.

    Raises:
        ConfigurationError: a method without a model.
    """
    first, _, rest = policy.partition(":")
    method, model = (first, rest) if first in PROMPT_METHODS else ("tools", policy)
    kind, _, name = model.partition(":")
    if kind in ("local", "openai") and name:
        return make_prompt_method(method), kind, expand_home(name) if kind == "local" else name
    if first in PROMPT_METHODS or kind in ("local", "openai"):
        raise ConfigurationError(f"--policy {policy!r} names no model; expected [METHOD:]local:PATH or openai:MODEL.")
    path = Path(policy)
    if (path.is_dir() and holds_model(path)) or (path.is_file() and find_gguf(path) is not None):
        raise ConfigurationError(f"--policy {policy!r} is the path of a model: write --policy local:{policy}.")
    return None, "", ""


def check_policy(policy: str, env: TextEnv) -> None:
    """Reject a policy that cannot play in `env`, before the first episode."""
    method, _, _ = split_policy(policy)
    name = make_policy(policy).name if method is None else method.name
    if name in ("naive", "naive-rag"):
        check_search(name, env)
    elif name == "direct" or (name == "oracle" and not callable(getattr(env.unwrapped, "oracle", None))):
        check_tools(name, env)


def check_search(who: str, env: TextEnv) -> None:
    """Reject an environment without a tool named "search", which `who` needs.

    Raises:
        ConfigurationError: it is no `ToolEnv`, or its first task has no such tool.
    """
    bare = check_tools(who, env)
    names = [tool.name for tool in bare.make_tools(bare.tasks[0])]
    if "search" not in names:
        raise ConfigurationError(
            f"{who} needs an environment with a tool named 'search'; {type(bare).__name__} has {names}."
        )


def check_tools(who: str, env: TextEnv) -> ToolEnv:
    """Return the `ToolEnv` in `env`, which `who` needs.

    Raises:
        ConfigurationError: there is none.
    """
    if not isinstance(env.unwrapped, ToolEnv):
        raise ConfigurationError(
            f"{who} needs an environment with tasks and tools; {env_display_name(env)} is a "
            f"{type(env.unwrapped).__name__}, not a ToolEnv. Use a model (local:..., openai:...), replay:RUN, or a "
            "custom policy as MODULE:NAME."
        )
    return env.unwrapped


def model_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the model options that the command line sets; reject those that its kind would ignore."""
    _, kind, model = split_policy(options.policy)
    supported = {"openai": _ENDPOINT, "local": _LOCAL}.get(kind, set())
    named = {option: getattr(options, option) for option in _ENDPOINT | _LOCAL}
    chosen = {option: value for option, value in named.items() if value is not None}
    for ignored in sorted(chosen.keys() - supported):
        raise ConfigurationError(f"--{ignored.replace('_', '-')} has no effect on --policy {options.policy}; drop it.")
    if not kind:
        return {}
    if kind == "openai" and "base_url" not in chosen:
        raise ConfigurationError("--policy openai:... needs --base-url, such as http://127.0.0.1:8000/v1.")
    for name in filter(_SECRET.search, chosen.get("extra_body", ())):
        raise ConfigurationError(
            f"--extra-body with {name!r}: run.json and the report would show it. Put a key into the environment "
            "variable AGENT_R1_API_KEY."
        )
    if kind == "openai":
        return asdict(EndpointOptions(model=model, **chosen))
    # Before torch is imported, and long before anything is loaded.
    find_model(model, named=f"--policy {options.policy}")
    check_model_files(model, named=f"--policy {options.policy}", needs_template="chat_template" not in chosen)
    return {
        **asdict(local_engines().LocalOptions(model=model, **chosen)),
        "weights_fingerprint": weights_fingerprint(Path(model)),
    }


def run_settings(spec: AgentSpec, env: TextEnv, indices: Sequence[int], *, samples: int, seed: int) -> dict[str, Any]:
    """Return the settings that determine the results of a run (see `evaluation.run_folder`).

    Args:
        spec: the agent and its environment.
        env: an instance of that environment.
        indices: positions of the tasks.
        samples: episodes per task.
        seed: of the run.
    """
    bare = env.unwrapped
    return {
        "env_id": spec.env,
        "env_options": dict(spec.env_options),
        "policy": spec.policy,
        "model": {name: value for name, value in spec.model.items() if name in RESULT_OPTIONS},
        "samples": samples,
        "seed": seed,
        "questions": len(indices),
        "dataset": describe_questions(env),
        "question_hash": question_hash(bare.tasks[i] for i in indices) if isinstance(bare, ToolEnv) else None,
        "corpus_fingerprint": getattr(getattr(bare, "dataset", None), "fingerprint", None),
    }


def describe_questions(env: TextEnv) -> str:
    """Describe the questions: the tasks, or the seeds of an environment without tasks."""
    bare = env.unwrapped
    return (
        bare.describe_dataset() if isinstance(bare, ToolEnv) else f"{env_display_name(env)}, seeds from {HELD_OUT_SEED}"
    )


def weights_fingerprint(path: Path) -> str | None:
    """Hash the weights of a folder or GGUF file, to notice a retrained model; None for a hub id.

    The hash covers name, size, and the first and last MiB of each weight file.
    """
    if not path.exists():
        return None
    digest = hashlib.sha256()
    # The chat format is included: with another one, the same weights see other prompts.
    for file in sorted(
        [
            *path.glob("*.safetensors"),
            *path.glob("pytorch_model*.bin"),
            *path.glob("adapter_model.bin"),
            *path.glob("*.gguf"),
            *([path] if path.is_file() else ()),
            *path.glob("chat_format.*"),
        ]
    ):
        if not file.is_file():  # a pipe or a device, which has no end
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(2**20))
            weights.seek(max(size - 2**20, 0))
            digest.update(weights.read(2**20))
    return digest.hexdigest()[:16]


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text!r}")
    return value
