"""verifiers (v1): our environments as a taskset, for `vf-eval` and other users of tasksets.

verifiers wants the importable name of a module that has these classes in its `__all__`, and takes no dotted name. So
put two lines into a module (for example `agent_r1_tasks.py`):

    from agent_r1_gym.integrations.verifiers import AgentR1Env, AgentR1Harness, AgentR1Taskset
    __all__ = ["AgentR1Env", "AgentR1Harness", "AgentR1Taskset"]

and call `PYTHONPATH=. vf-eval agent_r1_tasks --env.taskset.env-id AgentR1/HotpotQA-v0 --no-push`.
"""

from __future__ import annotations

import functools
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.integrations.base import lazy_classes, library
from agent_r1_gym.integrations.dataset_rows import EpisodeRow, episode_rows
from agent_r1_gym.integrations.episode import ChatEpisode, ChatMessages, check_calls_are_text


def _classes() -> Sequence[type]:
    vf: Any = library("verifiers.v1", package="verifiers", tested_version="0.4")
    from pydantic import Field

    class TasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
        env_id: str = ""
        """Environment: AgentR1/HotpotQA-v0, or MODULE:ID of one of your own."""
        options: dict[str, Any] = Field(default_factory=dict)
        """Its options, as JSON."""
        held_out: bool = False
        """Serve the held-out split, as `agent-r1 eval` does."""

    class EnvConfig(vf.EnvConfig):  # type: ignore[misc]
        player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
        """Who plays; nothing runs in a sandbox, so the runtime is this machine."""

    class Data(vf.TaskData):  # type: ignore[misc]
        row: dict[str, Any]
        """Which episode (see `EpisodeRow.read`)."""

    class Task(vf.Task[Data, vf.State, vf.TaskConfig]):  # type: ignore[misc]
        pass

    class AgentR1Taskset(vf.Taskset[Task, TasksetConfig]):  # type: ignore[misc]
        def load(self) -> Iterator[Task]:
            for fields in _tasks(self.config):
                yield Task(Data(**fields), self.config.task)

    class AgentR1Harness(_Harness, vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        pass

    class AgentR1Env(_Env, vf.Env[EnvConfig]):  # type: ignore[misc]
        pass

    return AgentR1Env, AgentR1Harness, AgentR1Taskset


__getattr__ = lazy_classes(__name__, ("AgentR1Env", "AgentR1Harness", "AgentR1Taskset"), _classes)


def _tasks(config: Any) -> Iterator[dict[str, Any]]:
    """Yields the fields of each task, which begins with the messages of its episode."""
    if not config.env_id:
        raise ConfigurationError("No environment given: pass --env.taskset.env-id AgentR1/HotpotQA-v0, or another id.")
    env, rows = episode_rows(config.env_id, config.options, held_out=config.held_out)
    check_calls_are_text(env, "verifiers")
    for row in rows:
        episode = EpisodeRow.read(row).start(env)
        system, prompt = _split_system_prompt(episode.chat())
        yield {"id": episode.task.id, "system_prompt": system, "prompt": prompt, "row": row}


def _split_system_prompt(chat: ChatMessages) -> tuple[str | None, str | ChatMessages]:
    system = [message["content"] for message in chat if message["role"] == "system"]
    rest = [message for message in chat if message["role"] != "system"]
    return "\n\n".join(system) or None, rest[0]["content"] if len(rest) == 1 else rest


class _Harness:
    """A model's turn: one request, in this process, so that neither uv nor a package index is needed."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> Any:
        """Asks for the model's turn; verifiers keeps what comes back, and why nothing does."""
        import openai
        from verifiers.v1.dialects.chat import message_to_wire
        from verifiers.v1.runtimes import ProgramResult

        system, prompt = self.resolve_prompt(data)  # type: ignore[attr-defined]
        chat: Any = [{"role": "system", "content": system}] if system else []
        chat += [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt)
        http = openai.DefaultAsyncHttpxClient(verify=_certificates())
        settings: Any = {
            "base_url": endpoint,
            "api_key": secret,
            "timeout": None,
            "max_retries": 4,
            "http_client": http,
        }
        async with openai.AsyncOpenAI(**settings) as client:
            try:
                await client.chat.completions.create(model=ctx.model, messages=chat)
            except openai.APIError as error:  # verifiers knows a better one: of its limits, or of the provider
                return ProgramResult(exit_code=1, stdout="", stderr=str(error))
        return ProgramResult(exit_code=0, stdout="", stderr="")


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()  # loading them takes longer than a turn


class _Env:
    """Our loop in theirs: the environment is the run's user."""

    async def run(self, task: Any, agents: Any) -> None:
        """Plays the episode of a task; every reward term goes on the trace with its weight.

        Raises:
            InfrastructureError: a backend failed: the episode fails (`--env.retries` plays it again), without a reward.
        """
        row = EpisodeRow.read(task.data.row)
        with row.env() as env:
            episode = row.start(env)
            async with agents.player.interaction(task) as interaction:
                segment = await interaction.turn()
                while not segment.terminated:
                    new = await episode.step_chat_async(segment.last_reply)
                    episode.raise_if_invalid()
                    if episode.ended:
                        break
                    reply_messages = [{"role": "user", "content": message["content"]} for message in new]
                    segment = await interaction.turn(reply_messages)
            if not interaction.trace.has_error:
                _record(episode, interaction.trace)


def _record(episode: ChatEpisode, trace: Any) -> None:
    if not episode.ended:
        episode.truncate(trace.stop_condition or "max_tokens")  # a limit of verifiers
    for name, (value, weight) in episode.weighted_terms.items():
        trace.record_reward(name, value, weight)
    trace.record_metrics({**episode.record().scores, "turns": len(episode.turns)})
    turns = [{"reward": turn.reward, "reward_terms": dict(turn.reward_terms)} for turn in episode.turns]
    trace.info.update(episode.end_info, turns=turns)
