"""Sessions of token ids: what they execute, in which thread and order."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.run.session import Job
from agent_r1_gym.run.token_session import TokenLimits, TokenSession
from tests.kit.helpers import TASKS, started

LIMITS = TokenLimits(max_prompt_tokens=10, max_completion_tokens=10_000)


class Characters:
    """A chat format whose token ids are code points; what an environment adds is one token."""

    markup: Sequence[str] = ()
    stop_ids = (0,)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        return [0]

    def between_turns_ids(
        self, messages: Sequence[Message], *, stopped: bool, turn: Message | None = None
    ) -> list[int]:
        return [0]

    def ended(self, ids: Sequence[int], turn: Message | None = None) -> bool:
        return True

    def rewrites(self, messages: Sequence[Message], *, new: int) -> bool:
        return False

    def action(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Characters:
        return self

    def write_call(self, call: ToolCall) -> str:
        return call.name

    def check_plain(self) -> None:
        pass


class Journal(Tool):
    """Adds its name to a journal that several tools share, and returns the journal."""

    def __init__(self, name: str, journal: list[str], **limits: Any) -> None:
        super().__init__(name, "Writes.", {"type": "object", "properties": {}}, **limits)
        self._journal, self.threads = journal, list[str]()

    def execute(self, arguments: Mapping[str, Any]) -> str:
        self._journal.append(self.name)
        self.threads.append(threading.current_thread().name)
        return " ".join(self._journal)

    def get_state(self) -> list[str]:
        return list(self._journal)

    def set_state(self, state: list[str]) -> None:
        self._journal[:] = state


class Lookup(Journal):
    """Changes nothing."""

    def execute(self, arguments: Mapping[str, Any]) -> str:
        return "found"


def make_env() -> ToolEnv:
    journal = list[str]()
    quick, slow = Journal("quick", journal, timeout=None), Journal("slow", journal, timeout=5.0)
    return ToolEnv(tasks=TASKS, tools=[quick, slow, Lookup("look", journal, timeout=5.0, deterministic=True)])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_calls_of_a_turn_are_executed_as_by_a_step(length: int) -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="executor") as executor:
        for names in itertools.product(("quick", "slow", "look"), repeat=length):
            env, stepped = make_env(), started(make_env())
            session = TokenSession(env, Job(0), chat=Characters(), limits=LIMITS, executor=executor)
            turn = env.parser.format_calls([ToolCall(name, {}) for name in names])
            reply = session.finish_turn(list(map(ord, turn)), [0.0] * len(turn), True)
            if isinstance(reply, Future):
                reply.result()
            contents = [outcome.content for outcome in env.transitions[0].outcomes]
            assert contents == [outcome.content for outcome in stepped.step(turn)[4]["tool_outcomes"]], names
            (quick, *_) = env.tools
            assert isinstance(quick, Journal)
            assert set(quick.threads) <= {threading.current_thread().name}  # it may be bound to this thread
            is_split = "slow quick" not in " ".join(name for name in names if name != "look")
            assert isinstance(reply, Future) == (is_split and set(names) != {"quick"}), names
