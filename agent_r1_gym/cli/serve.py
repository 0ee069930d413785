"""`agent-r1 serve agent|gateway|env|mcp|retriever`: an agent, a model, an environment, tools or search, over HTTP."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from agent_r1_gym.cli.agent_arguments import (
    add_agent_arguments,
    add_model_argument,
    agent_from_options,
    agent_spec_from_options,
    open_engine_worker,
)
from agent_r1_gym.core.parsing import PARSER_HELP, make_parser
from agent_r1_gym.envs.qa.multihop_qa import MultiHopQAEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.gateway.env import MAX_TURNS
from agent_r1_gym.gateway.external import ExternalEpisodes
from agent_r1_gym.gateway.server import running_gateway
from agent_r1_gym.integrations import openenv
from agent_r1_gym.registry import full_id, make_text_env, make_tool_env
from agent_r1_gym.retrieval import server as retrieval
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.make import corpus_retriever, make_retriever
from agent_r1_gym.run.agents import AgentSpec, add_model_arguments, make_runner, model_options, split_policy
from agent_r1_gym.run.env_options import add_env_arguments, env_options
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.serving.server import ServedAgent, ServerLimits, serve
from agent_r1_gym.run.session import ANY_TASK, Job
from agent_r1_gym.run.trust import add_trust_options
from agent_r1_gym.support.checks import check_integer, check_seconds
from agent_r1_gym.support.http_server import is_local
from agent_r1_gym.support.json_data import JsonLinesWriter
from agent_r1_gym.support.terminal import print_line, print_note
from agent_r1_gym.tools.mcp_export import ServedTools, serve_http, serve_stdio

LimitsT = TypeVar("LimitsT")
KEY = "AGENT_R1_SERVE_KEY"
"""Environment variable with the key that clients of an agent must send."""
_SAMPLING = {"temperature": 0.0, "top_p": 1.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands: Any = parser.add_subparsers(metavar="WHAT", required=True, parser_class=type(parser))
    for name, text, add, run in (
        ("agent", "an agent as an OpenAI-compatible model; its tools run on the server", _add_agent, _serve_agent),
        (
            "env",
            "an environment to other libraries, by OpenEnv's protocol",
            _add_env,
            _serve_env,
        ),
        ("mcp", "an environment's tools to other agents, by MCP; never its reset, answers or rewards", _add_mcp, _mcp),
        (
            "gateway",
            "a model to agents with a loop of their own, and records their episodes with tokens and log-probs",
            _add_gateway,
            _serve_gateway,
        ),
        ("retriever", "search, in the formats of Search-R1 and Agent-R1", _add_retriever, _serve_retriever),
    ):
        command = commands.add_parser(name, help=text, description=f"Serves {text}.")
        add(command)
        command.set_defaults(run=run)


def _add_address(parser: Any) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (default: 8000)")


def _add_limits(parser: Any, limits: type, helps: Mapping[str, str]) -> None:
    """Add an option for each field of a dataclass of limits that has a help text."""
    for name, text in helps.items():
        default = getattr(limits, name)
        help_text = f"{text} (default: {default:.15g})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=help_text)


def _limits_from_options(options: argparse.Namespace, limits: type[LimitsT]) -> LimitsT:
    names = [field.name for field in fields(limits) if field.name in options]  # type: ignore[arg-type]
    return limits(**{name: getattr(options, name) for name in names})


# --- agent -----------------------------------------------------------------------------------------------------------


def _add_agent(parser: argparse.ArgumentParser) -> None:
    add_agent_arguments(parser)
    server = parser.add_argument_group(f"server (the key that clients must send is read from {KEY})")
    _add_address(server)
    server.add_argument("--name", help="name of the model in requests (default: the last part of RUN_OR_MODEL)")
    server.add_argument(
        "--cors-origin",
        dest="cors_origins",
        action="append",
        default=[],
        metavar="ORIGIN",
        help='origin whose web pages may use this agent from a browser, such as http://localhost:3000, or "*" for all; '
        "may be repeated (default: none)",
    )
    _add_limits(
        server,
        ServerLimits,
        {
            "max_concurrent": "maximum number of answers at once; further requests get 429",
            "max_body_bytes": "maximum size of a request",
            "answer_timeout": "seconds for one answer",
            "shutdown_grace": "seconds to finish answers when the server stops",
        },
    )


def _serve_agent(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    limits = _limits_from_options(options, ServerLimits)
    key = os.environ.get(KEY) or None
    spec = agent_spec_from_options(options, max_concurrent=limits.max_concurrent)
    name = options.name or Path(options.model or spec.model.get("model") or spec.policy).resolve().name
    if key is None and not is_local(options.host):
        print_note(f"WARNING: anyone who reaches {options.host} can use this agent and its tools; set {KEY}.")
    if key is None and "*" in options.cors_origins:
        print_note(f"WARNING: any web page that you open can use this agent and its tools; set {KEY}.")
    engine_worker = open_engine_worker(spec)
    with contextlib.closing(engine_worker):
        sampling = {field: float(spec.model.get(field, default)) for field, default in _SAMPLING.items()}
        agent = ServedAgent(engine_worker=engine_worker, name=name, task=options.task, sampling=sampling)
        where = f"serving {name} in {engine_worker.env_name}"

        def announce(url: str) -> None:
            print_line(f"{where}: {url}/v1 (chat/completions, models), {url}/health; Ctrl-C ends")

        serve(
            agent,
            options.host,
            port=options.port,
            limits=limits,
            key=key,
            cors_origins=options.cors_origins,
            on_ready=announce,
        )
    return 0


# --- gateway ---------------------------------------------------------------------------------------------------------


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    add_trust_options(parser)
    parser.add_argument("--parser", help=f"format of calls; {PARSER_HELP} (default: that of agent.json, else native)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file for the episodes, one JSON object a line (default: runs/...)"
    )
    parser.add_argument(
        "--max-turns", type=int, default=MAX_TURNS, help=f"turns of an episode at most (default: {MAX_TURNS})"
    )
    server = parser.add_argument_group("server (this machine only)")
    server.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for a free one (default: 8000)")
    server.add_argument(
        "--max-concurrent", type=int, default=32, help="maximum number of episodes at once; others wait (default: 32)"
    )
    server.add_argument(
        "--idle-timeout",
        type=float,
        default=300.0,
        help="seconds without a request or a result after which an episode is lost (default: 300)",
    )
    add_model_arguments(parser)


def _serve_gateway(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM; each key of a program is an episode, which its result ends."""
    agent = agent_from_options(options)
    method, _, _ = split_policy(options.policy)
    if method is None or method.name != "tools":
        raise ConfigurationError(
            f"--policy {options.policy}: programs ask a model; name one as local:... or openai:..."
        )
    check_seconds("--idle-timeout", options.idle_timeout)
    check_integer("--max-turns", options.max_turns, 1)
    out = options.out or Path("runs") / f"gateway-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    if out.exists():
        raise ConfigurationError(f"--out {out} exists; name another file.")
    url = running_gateway(options.port).base_url  # first, for it keeps its port
    parser = options.parser or (agent.card and agent.card.parser) or "native"
    episodes = ExternalEpisodes(
        parser=make_parser(parser), idle_seconds=options.idle_timeout, max_turns=options.max_turns
    )
    spec = AgentSpec(
        env="gateway",
        env_options={},
        policy=options.policy,
        model=model_options(options),
        max_concurrent=options.max_concurrent,
    )
    runner = make_runner(spec, 0, episodes.make_env)
    out.parent.mkdir(parents=True, exist_ok=True)
    records, counts = JsonLinesWriter(out), Counter[str]()

    def save(record: Trajectory) -> None:
        if record.turns:  # the last places were never taken
            records.add(replace(record, task_index=record.sample, sample=0).to_dict())
            counts["lost" if record.infrastructure_error else "finished"] += 1

    print_line(
        f"serving {options.policy} to programs at {url}, with a key of your own for each episode; episodes: {out}"
    )
    print_line(f'end an episode: POST {url}/result with its key and {{"reward": NUMBER}}; Ctrl-C ends')
    numbers = itertools.takewhile(lambda _: not episodes.closed, itertools.count())
    with contextlib.ExitStack() as stack:
        for resource in (runner.engine, runner.player, records):
            stack.callback(resource.close)
        stack.enter_context(_calling_on_signals(episodes.close))
        runner.player.play((Job(ANY_TASK, number, seed=number) for number in numbers), runner.engine, save)
    print_line(f"episodes: {counts['finished']} finished, {counts['lost']} lost; {out}")
    return 0


@contextlib.contextmanager
def _calling_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop`, in a thread, on Ctrl-C and SIGTERM: an exception in the engine would leave episodes behind."""

    def handle(*_signal: Any) -> None:
        threading.Thread(target=stop, daemon=True).start()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- environment -----------------------------------------------------------------------------------------------------


def _add_env(parser: argparse.ArgumentParser) -> None:
    add_env_arguments(parser)
    server = parser.add_argument_group("server")
    _add_address(server)
    _add_limits(
        server,
        openenv.OpenEnvServerLimits,
        {
            "max_sessions": "maximum number of clients at once, each with its own environment",
            "idle_timeout": "seconds without a message after which a session is closed",
            "max_message_bytes": "maximum size of a message; a larger one closes its session",
        },
    )
    server.add_argument(
        "--full-history",
        action="store_true",
        help="send the whole history with each observation, as messages and as text (default: what is new)",
    )


def _serve_env(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    env_id = full_id(options.env)
    if not is_local(options.host):
        print_note(
            f"WARNING: anyone who reaches {options.host} can play and call the environment's tools; there is no key."
        )
    openenv.serve(
        functools.partial(make_text_env, env_id, env_options(options)),
        options.host,
        port=options.port,
        limits=_limits_from_options(options, openenv.OpenEnvServerLimits),
        on_ready=lambda url: print_line(
            f"serving {env_id} by OpenEnv's protocol: {url} (sessions at /ws); Ctrl-C ends"
        ),
        full_history=options.full_history,
    )
    return 0


# --- tools -----------------------------------------------------------------------------------------------------------


def _add_mcp(parser: argparse.ArgumentParser) -> None:
    add_env_arguments(parser)
    parser.add_argument("--task", type=int, default=0, help="index of the task whose world is served (default: 0)")
    parser.add_argument(
        "--http", type=int, metavar="PORT", help="serve on this port of 127.0.0.1, 0 for a free one (default: stdio)"
    )


def _mcp(options: argparse.Namespace) -> int:
    """Serve until the client leaves (stdio), or until Ctrl-C or SIGTERM (HTTP)."""
    tools = ServedTools(functools.partial(make_tool_env, options.env, env_options(options)), options.task)
    try:
        if not tools.tools:
            raise ConfigurationError(f"{options.env} has no tools to serve.")
        if options.http is None:
            serve_stdio(tools)
        else:
            names = ", ".join(tools.tools)
            serve_http(tools, options.http, lambda url: print_note(f"serving {names} at {url}; Ctrl-C ends"))
    finally:
        tools.close()
    return 0


# --- search ----------------------------------------------------------------------------------------------------------


def _add_retriever(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--corpus", type=Path, help="serve the passages of this file (JSON, JSONL or JSONL.gz)")
    what.add_argument("--env", help="serve the corpus of this environment, such as FictionQA or MODULE:ID")
    parser.add_argument("--dataset", help="data set of --env (default: the environment's)")
    parser.add_argument(
        "--retriever", default="bm25", help="retriever: bm25, lucene[:INDEX], dense:DIR or rrf:A,B (default: bm25)"
    )
    _add_address(parser)


def _serve_retriever(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    retriever, number = _open_retriever(options)
    passages = "" if number is None else f"{number} passage{'' if number == 1 else 's'} "
    print_line(f"searching {passages}with {options.retriever}")

    def announce(url: str) -> None:
        print_line(
            f"serving POST {url}/retrieve (Search-R1), POST and GET {url}/search (Agent-R1), GET {url}/health; "
            "Ctrl-C ends"
        )

    retrieval.serve(retriever, options.host, port=options.port, name=options.retriever, on_ready=announce)
    return 0


def _open_retriever(options: argparse.Namespace) -> tuple[Retriever, int | None]:
    """Return the retriever, and the number of its passages where it is known."""
    if options.dataset is not None and options.env is None:
        raise ConfigurationError("--dataset needs --env, the environment of the data set.")
    if options.corpus is not None:
        return corpus_retriever(options.corpus, options.retriever)
    if options.env is not None:
        env = make_tool_env(options.env, {} if options.dataset is None else {"dataset": options.dataset})
        if not isinstance(env, MultiHopQAEnv):
            raise ConfigurationError(f"{options.env} has no corpus to serve.")
        passages, fingerprint = env.dataset.passages, env.dataset.fingerprint
        number = sum(1 for _ in passages())
        return make_retriever(options.retriever, passages=passages, fingerprint=fingerprint), number
    if options.retriever.startswith("lucene:"):
        return make_retriever(options.retriever, passages=lambda: (), fingerprint=""), None
    raise ConfigurationError("Name what to serve: --corpus FILE, --env ENV, or --retriever lucene:INDEX.")
