"""`agent-r1 chat`: a person in a terminal, or a pipe, talks to an agent; which agent that is, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_r1_gym.cli.chat import turn_lines
from agent_r1_gym.cli.main import main
from agent_r1_gym.core.types import ParseError, ToolCall, ToolOutcome
from agent_r1_gym.run.conversation import TurnEvent
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from tests.kit.commands import call

MODULE = '''
import time
from agent_r1_gym import Task, ToolEnv, register, tool
from agent_r1_gym.run.policies import Policy

class Clerk(Policy):
    """Counts, then answers with the last question and the count."""
    name = "clerk"

    def act(self, inputs):
        return [self.one(state) for state in inputs]

    def one(self, state):
        asked = [m.content for m in state.messages if m.role == "user"][-1]
        if "loop" in asked:
            return '<tool_call>{"name": "count", "arguments": {}}</tool_call>'
        if "wait" in asked and not state.outcomes:
            return '<tool_call>{"name": "nap", "arguments": {}}</tool_call>'
        if not state.outcomes:
            return '<tool_call>{"name": "count", "arguments": {}}</tool_call>'
        return f"<answer>{asked} {state.outcomes[0].content}</answer>"

class Shop(ToolEnv):
    def __init__(self, **options):
        tasks = [Task(f"t{i}", f"Count {i}.", ("1",), {"start": 10 * i}) for i in range(3)]
        super().__init__(**{"tasks": tasks, "max_turns": 3, **options})

    def make_tools(self, task):
        box = [task.metadata["start"]]

        @tool(timeout=None)
        def count() -> str:
            """Counts."""
            box[0] += 1
            return f"count\\n{box[0]}\\x1b[31m"

        @tool(timeout=None)
        def nap() -> str:
            """Naps."""
            print("napping", flush=True)
            time.sleep(2)
            return "rested"

        return [count, nap]

register("Chat/Shop-v0", "shop_for_chat:Shop")
'''
WORDS = ("chat", "--policy", "shop_for_chat:Clerk", "--env", "shop_for_chat:Chat/Shop-v0")


@pytest.fixture
def shop(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (run_folder / "shop_for_chat.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(run_folder / "state"))
    yield run_folder
    for name in [name for name in sys.modules if name.startswith("shop_for_chat")]:
        del sys.modules[name]


def chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, *words: str
) -> tuple[int, list[str], str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    status, out, err = call(capsys, *WORDS, *words)
    return status, out.splitlines(), err


def test_a_piped_conversation(shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ("how many?", "", "//and now?", "/reset", "anew?", "/task t2", "there?", "/task t9", "/nonsense", "loop")
    typed = "\n".join([*lines, "/trace", "/help", "/quit", "never"])
    status, out, _ = chat(capsys, monkeypatch, typed)
    assert status == 0
    assert out[1:4] == ["(tools run in task 0, t0: Count 0.)", "  count() -> count 1[31m", "how many? count"]
    text = "\n".join(out)
    for words in (
        *(
            "/and now? count\n2[31m",
            "anew? count\n1[31m",
            "(tools run in task 2, t2: Count 2.)",
            "there? count\n21[31m",
        ),
        *("has no task 't9'", "There is no command /nonsense", "(no answer within 3 turns)"),
        *("[user]\nthere?\n\n[assistant]", "[tool: count]\ncount\n22", "/trace    show the whole"),
    ):
        assert words in text, words
    assert "\x1b" not in text and "never" not in text
    assert not (shop / "state").exists(), "a pipe leaves no history"


def test_the_world_may_be_chosen_and_the_environment_has_options(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = chat(capsys, monkeypatch, "x\nloop\n", "--task", "1", "--max-turns", "2")
    assert "x count" in out and "11[31m" in out and "(no answer within 2 turns)" in out


@pytest.mark.slow
def test_in_a_terminal_ctrl_c_stops_the_agent_and_not_the_program(shop: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "agent_r1_gym", *WORDS]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        try:
            terminal = Reader(ours)
            terminal.until("> ")
            os.write(ours, b"please wait\n")
            terminal.until("napping")
            process.send_signal(signal.SIGINT)
            terminal.until("(stopped)", "> ")
            os.write(ours, b"how many?\n")
            terminal.until("how many? count", "> ")
            os.write(ours, b"\x04")
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    assert (shop / "state" / "agent-r1-gym" / "chat_history").read_text().splitlines() == ["please wait", "how many?"]


class Reader:
    """Reads a terminal up to a text."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._rest = descriptor, ""

    def until(self, *texts: str) -> None:
        """Reads up to each of the texts in turn."""
        for text in texts:
            while text not in self._rest:
                assert select.select([self._descriptor], [], [], 30)[0], f"{text!r} does not come after {self._rest!r}"
                self._rest += os.read(self._descriptor, 4096).decode(errors="replace")
            self._rest = self._rest.partition(text)[2]


def test_calls_are_folded_to_a_line_each() -> None:
    call_, shown = ToolCall("stock", {"item": "screws", "deep": {"é": [1]}}), 'stock(item="screws", deep={"é": [1]})'
    long = ToolOutcome("a\n b\x07" + "c" * 999)
    failed = ToolOutcome("no such", ok=False, error="tool_error")
    event = TurnEvent("", (call_, call_), (long, failed), (ParseError("bad_json", "Not\nJSON."),) * 3, True)
    first, second, third, fourth = turn_lines(event)
    assert first.startswith(f"  {shown} -> a bccc") and first.endswith("... (/trace shows all)")
    assert second == f"  {shown} -> tool_error: no such"
    assert third == "  (malformed: bad_json, and 2 more: Not JSON.)" and "cut" in fourth
    assert len(first) < 200


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Name the agent"),
        (["model", "--policy", "oracle"], "Name the agent"),
        (["--policy", "oracle"], "has no agent.json"),
        (["--policy", "openai:m", "--env", "FictionQA"], "needs --base-url"),
        (["--policy", "naive-rag:openai:m", "--env", "FictionQA"], "lets the model speak once"),
        (["--policy", "oracle", "--env", "FictionQA", "--reward", "em"], "--reward has no effect"),
        (["--policy", "oracle", "--env", "FictionQA", "--device", "cpu"], "--device has no effect"),
        (["--policy", "oracle", "--env", "FictionQA", "--task", "nine"], "has no task 'nine'"),
        (["--policy", "replay:x", "--env", "Nonsense"], "Unknown environment"),
        (["EMPTY"], "holds no model"),
        (["UNFINISHED"], "its latest checkpoint is .*checkpoint-20"),
        (["DAMAGED"], "is not an agent card"),
    ],
)
def test_what_cannot_chat_is_rejected_in_one_line(
    words: list[str], message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("EMPTY", "UNFINISHED/checkpoint-10", "UNFINISHED/checkpoint-20", "DAMAGED"):
        (run_folder / name).mkdir(parents=True)
    (run_folder / "DAMAGED" / "config.json").touch()
    (run_folder / "DAMAGED" / "agent.json").write_text("{")
    status, _, err = call(capsys, "chat", *words)
    assert status == 2 and len(err.splitlines()) == 1
    assert re.search(message, err)


def test_the_command_line_overrides_the_card(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_r1_gym.cli.agent_arguments import agent_spec_from_options
    from agent_r1_gym.cli.main import build_parser

    (shop / "run").mkdir()
    (shop / "run" / "config.json").write_text(json.dumps({}))
    env, token_limits = "shop_for_chat:Chat/Shop-v0", {"max_turn_tokens": 33}
    AgentCard(env_id=env, env_options={"max_turns": 2, "feedback": "short"}, token_limits=token_limits).save(
        shop / "run"
    )
    pytest.importorskip("torch", reason="the train extra is not installed")
    monkeypatch.setattr("agent_r1_gym.run.agents.check_model_files", lambda *_, **__: None)  # it has a card alone
    parse = build_parser("chat").parse_args
    spec = agent_spec_from_options(
        parse(["chat", "run", "--max-turns", "4", "--import", "shop_for_chat"]), max_concurrent=1
    )
    assert (spec.env, spec.env_options) == (env, {"max_turns": 4, "feedback": "short"})
    assert (spec.policy, spec.model["max_turn_tokens"]) == ("local:run", 33)
    spec = agent_spec_from_options(
        parse(["chat", "run", "--env", "FictionQA", "--max-turn-tokens", "9"]), max_concurrent=1
    )
    assert (spec.env, spec.env_options, spec.model["max_turn_tokens"]) == ("AgentR1/FictionQA-v0", {}, 9)


def test_a_served_agent_has_the_name_of_its_run(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the train extra is not installed")
    model = shop / "mine" / "model"  # as quickstart writes it
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({}))
    AgentCard(env_id="shop_for_chat:Chat/Shop-v0", env_options={}).save(model)
    monkeypatch.setattr("agent_r1_gym.run.agents.check_model_files", lambda *_, **__: None)  # it has a card alone
    worker = SimpleNamespace(env_name="Shop", close=lambda: None)
    monkeypatch.setattr("agent_r1_gym.cli.serve.open_engine_worker", lambda spec: worker)
    names: list[str] = []
    monkeypatch.setattr("agent_r1_gym.cli.serve.serve", lambda agent, *_, **__: names.append(agent.name))
    assert main(["serve", "agent", "mine", "--import", "shop_for_chat"]) == 0
    assert names == ["mine"]
