"""Tools of MCP servers: real processes that the tests start, in plain Python, as strangers write them."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym import Task, ToolEnv, ToolVectorEnv, check_tool_env
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.errors import ConfigurationError, EpisodeError, InfrastructureError, MissingDependencyError
from agent_r1_gym.tools.mcp import McpTool, mcp_tools
from agent_r1_gym.tools.mcp_export import ServedTools, serve_stdio
from tests.kit import mcp_server
from tests.kit.processes import in_processes

pytest.importorskip("mcp", reason="the package mcp is not installed")

SERVER = Path(__file__).parents[1] / "kit" / "mcp_server.py"
COMMAND = [sys.executable, "-S", str(SERVER)]
TASKS = (Task("0", "Add.", ("3",)),)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def outcome(env: ToolEnv, name: str, **arguments: Any) -> Any:
    (result,) = env.step(call(name, **arguments))[4]["tool_outcomes"]
    return result


def children() -> set[str]:
    """Returns the processes that run the server for this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if stat[1] == str(os.getpid()) and str(SERVER) in (entry / "cmdline").read_text():
                    found.add(entry.name)
            except OSError:
                continue
    return found


@pytest.fixture(scope="module")
def tools() -> list[McpTool]:
    with pytest.warns(UserWarning, match=r"'fs.token/read' is 'fs_token_read'"):
        return mcp_tools(COMMAND, env={"TOKEN": "secret-token"}, timeout=20)


@pytest.fixture
def env(tools: list[McpTool]) -> Iterator[ToolEnv]:
    env = ToolEnv(tasks=TASKS, tools=tools, max_turns=30)
    env.reset(seed=0)
    yield env
    env.close()
    assert not children()


# --- calls -----------------------------------------------------------------------------------------------------------


def test_a_call_reaches_the_server_and_returns_text(env: ToolEnv) -> None:
    assert outcome(env, "add", a=1, b=2).content == "3"
    assert outcome(env, "dist", point={"x": 3}).content == "3"
    assert outcome(env, "add", a="x", b=2).error == "bad_arguments"  # before it reaches the server


def test_an_integer_that_a_model_writes_as_a_float_is_sent_as_one(env: ToolEnv) -> None:
    assert outcome(env, "add", a=2.0, b=3.0).content == "5"


def test_structured_content_is_text_for_the_model_and_data_for_rewards(env: ToolEnv) -> None:
    result = outcome(env, "structured")
    assert json.loads(result.content) == result.data == {"degrees": 7}


def test_the_model_reads_errors_of_the_tool(env: ToolEnv) -> None:
    failed, refused, seen = outcome(env, "fail"), outcome(env, "refuse"), outcome(env, "picture")
    assert (failed.error, failed.content) == ("tool_error", "no luck")
    assert (refused.error, refused.content) == ("tool_error", "that is not an argument")
    assert seen.error == "tool_error" and "image/png" in seen.content


def test_a_protocol_error_marks_the_episode(env: ToolEnv) -> None:
    info = env.step(call("crash"))[4]
    assert info["tool_outcomes"][0].error == "unavailable"
    assert "internal error" in info["infrastructure_error"]


def test_garbage_between_responses_is_skipped_and_a_huge_response_is_truncated(env: ToolEnv) -> None:
    assert outcome(env, "garbage").content == "ok"
    text = outcome(env, "huge", size=2_000_000).content
    assert text.endswith("[cut, 2000000 characters in all]") and len(text) < 9_000


def test_descriptions_of_a_server_are_neutralised(env: ToolEnv) -> None:
    observation, _ = env.reset()
    assert "Does add. ‹answer>42" in observation and "<answer>42" not in observation


# --- sessions --------------------------------------------------------------------------------------------------------


def test_each_episode_has_a_session_that_is_opened_by_its_first_call(env: ToolEnv) -> None:
    assert not children()
    assert [outcome(env, "count").content for _ in range(2)] == ["1", "2"]
    assert outcome(env, "add", a=1, b=1).content == "2"
    assert len(children()) == 1  # of all tools together
    env.reset()
    assert outcome(env, "count").content == "1"


def test_a_session_ends_with_its_episode(env: ToolEnv) -> None:
    outcome(env, "count")
    (before,) = children()
    env.step("<answer>3</answer>")
    deadline = time.monotonic() + 20
    while before in children():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_shared_session_outlives_episodes_and_the_death_of_its_server() -> None:
    tools = mcp_tools(COMMAND, shared=True)
    env = ToolEnv(tasks=TASKS, tools=tools, max_turns=9)
    env.reset(seed=0)
    outcome(env, "count")
    env.reset()
    assert outcome(env, "count").content == "2"
    assert outcome(env, "die").error == "unavailable"
    assert outcome(env, "count").content == "1"  # a new server
    env.get_state()
    env.close()
    assert not children()


def test_a_server_that_dies_in_a_call_is_gone_for_its_episode_only(env: ToolEnv) -> None:
    info = env.step(call("die"))[4]
    assert info["tool_outcomes"][0].error == "unavailable" and "broken off" in info["infrastructure_error"]
    assert outcome(env, "add", a=1, b=2).error == "unavailable"
    env.reset()
    assert outcome(env, "add", a=1, b=2).content == "3"


@pytest.mark.filterwarnings("ignore:Names of MCP server")
@pytest.mark.slow
def test_a_server_that_hangs_runs_into_the_time_limit() -> None:
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(COMMAND, timeout=0.3))
    env.reset(seed=0)
    info = env.step(call("sleep", seconds=30))[4]
    assert info["tool_outcomes"][0].error == "timeout" and "0.3 s" in info["infrastructure_error"]
    env.close()  # kills it
    assert not children()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_server_that_ignores_its_closed_input_is_killed() -> None:
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(COMMAND, env={"STUBBORN": "1"}))
    env.reset(seed=0)
    assert outcome(env, "count").content == "1"
    env.close()
    assert not children()


def test_an_episode_that_called_the_server_cannot_be_saved(env: ToolEnv) -> None:
    state = env.get_state()
    outcome(env, "count")
    with pytest.raises(EpisodeError, match="the server's memory cannot be copied"):
        env.get_state()
    env.set_state(state)
    assert outcome(env, "count").content == "1"


@pytest.mark.filterwarnings("ignore:Names of MCP server")
@pytest.mark.slow
def test_the_checker_accepts_an_environment_with_such_tools() -> None:
    tools = mcp_tools(COMMAND)
    env = ToolEnv(tasks=TASKS, tools=[tool for tool in tools if tool.name in ("add", "count")])
    check_tool_env(env)
    env.close()
    assert not children()


@pytest.mark.slow
def test_many_environments_share_the_tools_and_not_the_sessions(tools: list[McpTool]) -> None:
    vector = ToolVectorEnv([ToolEnv(tasks=TASKS, tools=tools) for _ in range(8)])
    vector.reset(seed=0)
    for expected in ("1", "2"):
        infos = vector.step([call("count")] * 8)[4]
        assert [outcomes[0].content for outcomes in infos["tool_outcomes"]] == [expected] * 8
    assert len(children()) == 8
    vector.close()
    assert not children()


def test_closing_an_environment_does_not_affect_the_others(tools: list[McpTool]) -> None:
    first, second = (ToolEnv(tasks=TASKS, tools=tools, max_turns=9) for _ in range(2))
    for env in (first, second):
        env.reset(seed=0)
        assert outcome(env, "count").content == "1"
    first.close()
    assert outcome(second, "count").content == "2"
    second.close()
    assert not children()


def test_a_tool_can_be_called_outside_of_an_environment(tools: list[McpTool]) -> None:
    tool = next(tool for tool in tools if tool.name == "count")
    for _ in range(2):
        assert tool.run([ToolCall("count", {})])[0].content == "1"
        tool.close()
        assert not children()


def test_copies_and_pickles_open_their_own_sessions(env: ToolEnv) -> None:
    for double in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert outcome(double, "count").content == "1"
        double.close()
    outcome(env, "count")
    double = copy.deepcopy(env)
    assert outcome(double, "count").error == "unavailable"  # it would not know the calls so far
    double.reset()
    assert outcome(double, "count").content == "1"
    assert outcome(env, "count").content == "2"
    double.close()


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_other_processes_open_their_own_sessions(env: ToolEnv, method: str) -> None:
    assert in_processes(method, counted_twice, [(env,), (env,)]) == [["1", "2"]] * 2


def counted_twice(env: ToolEnv) -> list[str]:
    env.reset(seed=0)
    counts = [outcome(env, "count").content for _ in range(2)]
    env.close()
    return counts


@pytest.mark.slow
def test_an_environment_that_is_not_closed_leaves_no_server() -> None:
    code = """if True:
        import gc, sys, time
        from agent_r1_gym import Task, ToolEnv
        from agent_r1_gym.tools.mcp import mcp_tools
        from tests.tools.test_mcp import COMMAND, call, children
        import warnings; warnings.simplefilter("ignore")
        env = ToolEnv(tasks=[Task("0", "", ("x",))], tools=mcp_tools(COMMAND))
        env.reset(seed=0)
        env.step(call("count"))
        assert len(children()) == 1
        if {collected}:
            del env
            gc.collect()
            deadline = time.monotonic() + 20
            while children():
                assert time.monotonic() < deadline
        else:
            print(*children())
    """
    environment = {**os.environ, "PYTHONPATH": str(SERVER.parents[2])}
    for collected in (True, False):
        words = [sys.executable, "-c", code.replace("{collected}", str(collected))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr
    assert not Path("/proc", done.stdout.strip(), "cmdline").exists()


def leaks_after(episodes: int, tools: list[McpTool]) -> tuple[int, int]:
    """Returns how many descriptors and threads `episodes` episodes add."""
    import threading

    env = ToolEnv(tasks=TASKS, tools=tools)

    def play() -> None:
        env.reset(seed=0)
        assert outcome(env, "count").content == "1"
        env.step("<answer>3</answer>")

    def used() -> tuple[int, int]:
        env.close()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    play()
    before = used()
    for _ in range(episodes):
        play()
    after = used()
    assert not children()
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.slow
def test_episodes_leak_nothing(tools: list[McpTool]) -> None:
    assert leaks_after(8, tools) == (0, 0)


@pytest.mark.slow
def test_many_episodes_leak_nothing(tools: list[McpTool]) -> None:
    assert leaks_after(100, tools) == (0, 0)


# --- the list of tools -----------------------------------------------------------------------------------------------


def test_a_changed_list_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = tmp_path / "tools"
    listed.write_text("add count")
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(COMMAND, env={"TOOLS": str(listed)}), max_turns=9)
    env.reset(seed=0)
    assert outcome(env, "add", a=1, b=2).content == "3"
    listed.write_text("count fail")
    for _ in range(2):
        observation, _ = env.reset()
        assert outcome(env, "count").content == "1"
        assert outcome(env, "add", a=1, b=2).error == "unavailable"
    assert '"name": "fail"' not in observation
    assert [record.getMessage().count("added ['fail'], removed ['add']") for record in caplog.records] == [1]
    env.close()


def test_a_tool_whose_schema_is_in_another_document_is_skipped(tmp_path: Path) -> None:
    listed = tmp_path / "tools"
    listed.write_text("add remote")
    with pytest.warns(UserWarning, match=r"skipped: Tool 'remote'.*refers to another document, 'http://127"):
        assert [tool.name for tool in mcp_tools(COMMAND, env={"TOOLS": str(listed)})] == ["add"]
    listed.write_text("remote")
    with pytest.raises(ConfigurationError, match="no tool that can be used"):
        mcp_tools(COMMAND, env={"TOOLS": str(listed)})


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_prefix_keeps_two_servers_apart() -> None:
    both = [*mcp_tools(COMMAND, prefix="one_"), *mcp_tools(COMMAND, prefix="two_")]
    env = ToolEnv(tasks=TASKS, tools=both, max_turns=9)
    env.reset(seed=0)
    counts = [outcome(env, name).content for name in ("one_count", "two_count", "one_count")]
    assert counts == ["1", "1", "2"] and len(children()) == 2
    env.close()
    assert not children()


# --- HTTP ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def http_server() -> Iterator[Any]:
    """Starts servers over HTTP; yields a function that returns their addresses."""
    started: list[subprocess.Popen[str]] = []

    def start(**variables: str) -> tuple[str, subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*COMMAND, "--http"], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        started.append(process)
        return f"http://127.0.0.1:{int(process.stdout.readline())}", process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_server_over_http_has_a_session_per_episode(http_server: Any) -> None:
    url, _ = http_server()
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(url=f"{url}/mcp"), max_turns=9)
    for _ in range(3):
        env.reset(seed=0)
        assert [outcome(env, "count").content for _ in range(2)] == ["1", "2"]
        env.step("<answer>3</answer>")
    env.close()
    with urllib.request.urlopen(f"{url}/sessions") as answer:
        assert json.load(answer) == {"open": 0}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_missing_login_is_reported_and_credentials_are_never_shown(http_server: Any) -> None:
    url, _ = http_server(LOGIN="secret-token", TOKEN="secret-token")
    with pytest.raises(InfrastructureError, match=r"did not start.*HTTP 401, it requires a login: pass headers="):
        mcp_tools(url=url)
    for headers in ({"Authorization": "Bearer secret-token"}, lambda: {"Authorization": "Bearer secret-token"}):
        tools = mcp_tools(url=url, headers=headers)
        env = ToolEnv(tasks=TASKS, tools=tools)
        env.reset(seed=0)
        assert "secret-token" not in outcome(env, "fs_token_read").content
        assert "secret-token" not in repr([tools, tools[0].server, env])
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("html", "Unexpected content type"),
        ("json", "Failed to parse JSON"),
        ("cut", "ended without a response"),
        ("hang", "not ready within 1 s"),
    ],
)
def test_a_server_that_does_not_speak_mcp_is_a_one_line_error(http_server: Any, fault: str, problem: str) -> None:
    url, _ = http_server(FAULT=fault)
    with pytest.raises(InfrastructureError, match=f"did not start.*{problem}") as caught:
        mcp_tools(url=f"{url}/mcp?key=secret-token", connect_timeout=1 if fault == "hang" else 30)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_a_failing_headers_function_shows_no_credentials() -> None:
    def headers() -> dict[str, str]:
        raise ValueError("secret-token is old")

    with pytest.raises(InfrastructureError, match=r"headers= of .* failed: ValueError\.$"):
        mcp_tools(url="http://127.0.0.1:9/mcp", headers=headers)


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_server_over_http_that_dies_marks_the_episode(http_server: Any) -> None:
    url, process = http_server()
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(url=url, timeout=5), max_turns=9)
    env.reset(seed=0)
    assert outcome(env, "add", a=1, b=2).content == "3"
    assert outcome(env, "die").error == "unavailable"
    process.wait()
    assert outcome(env, "add", a=1, b=2).error == "unavailable"
    env.reset()
    assert outcome(env, "add", a=1, b=2).error == "unavailable"
    env.close()


@pytest.mark.filterwarnings("ignore:Names of MCP server")
@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_server_over_http_that_restarts_gets_a_new_session(shared: bool, explained: bool) -> None:
    class Restarting(mcp_server.Handler):
        """Answers 404 to sessions that it does not know, as the protocol demands."""

        sessions: dict[str, mcp_server.Session] = {}  # noqa: RUF012

        def do_POST(self) -> None:  # noqa: N802
            if self.headers.get("mcp-session-id", "") in ("", *self.sessions):
                super().do_POST()
                return
            self.rfile.read(int(self.headers["content-length"]))
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}
            self.send(404, error if explained else None)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Restarting)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    tools = mcp_tools(url=f"http://127.0.0.1:{server.server_port}/mcp", shared=shared, timeout=5)
    env = ToolEnv(tasks=TASKS, tools=tools, max_turns=9)
    env.reset(seed=0)
    assert outcome(env, "count").content == "1"
    Restarting.sessions.clear()
    lost = outcome(env, "count")
    assert lost.error == "unavailable" and "has broken off: Session" in lost.content
    env.reset()
    assert outcome(env, "count").content == "1"
    env.close()
    server.shutdown()
    server.server_close()


def test_headers_that_cannot_be_sent_are_refused_and_never_shown() -> None:
    headers = {"Authorization": "Bearer secret-token\n"}
    with pytest.raises(ConfigurationError, match="'Authorization' has a line break at its end") as refusal:
        mcp_tools(url="http://127.0.0.1:9/mcp", headers=headers)
    with pytest.raises(InfrastructureError, match="'Authorization' has a line break at its end") as failure:
        mcp_tools(url="http://127.0.0.1:9/mcp", headers=lambda: headers)
    assert "secret-token" not in str(refusal.value) + str(failure.value)
    with pytest.raises(InfrastructureError, match="the value of 'Authorization' is not a string"):
        mcp_tools(url="http://127.0.0.1:9/mcp", headers=lambda: {"Authorization": None})  # type: ignore[arg-type, dict-item]


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "either command="),
        ({"command": ["x"], "url": "http://x"}, "either command="),
        ({"command": "python server.py"}, "list of words"),
        ({"command": ["x"], "headers": {"a": "b"}}, "takes env="),
        ({"command": ["x"], "env": {"a": 1}}, "env must map names to strings"),
        ({"url": "ftp://x"}, "must look like"),
        ({"url": "http://127.0.0.1:9/", "env": {}}, "takes headers="),
        ({"command": ["x"], "connect_timeout": 0}, "connect_timeout must be"),
        ({"command": ["x"], "timeout": None}, "timeout must be"),
    ],
)
def test_invalid_options_are_one_line_errors(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        mcp_tools(**options)


@pytest.mark.slow
def test_a_server_that_does_not_start_is_an_error_with_a_reason() -> None:
    with pytest.raises(InfrastructureError, match=r"'no-such-program' did not start.*No such file"):
        mcp_tools(["no-such-program"])
    with pytest.raises(InfrastructureError, match=r"did not start.*ZeroDivisionError"):
        mcp_tools([sys.executable, "-c", "1/0"])
    with pytest.raises(InfrastructureError, match=r"did not start.*starting up"):
        mcp_tools(COMMAND, env={"SILENT": "1"}, connect_timeout=1)
    with pytest.raises(InfrastructureError, match="did not start"):
        mcp_tools(url="http://127.0.0.1:9/mcp")
    assert not children()


def test_a_missing_package_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingDependencyError, match=r"need the package mcp: pip install .*\[mcp\]"):
        mcp_tools(["x"])


def test_another_version_of_the_package_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1_gym.support.packages.installed_version", lambda _name: "1.30.0")
    with pytest.raises(MissingDependencyError, match=r"need mcp 2\.x, and 1\.30\.0 is installed.*pip install") as error:
        mcp_tools(["x"])
    assert "\n" not in str(error.value)
    with pytest.raises(MissingDependencyError, match=r"served by MCP need mcp 2\.x"):
        serve_stdio(ServedTools(lambda: ToolEnv(tasks=[Task("0", "Go.", ("x",))], tools=[]), 0))


# --- what servers really send ----------------------------------------------------------------------------------------


def made_of(tmp_path: Path, *names: str, **variables: str) -> ToolEnv:
    """An environment with these tools of the server, which has these variables."""
    listed = tmp_path / "tools"
    listed.write_text(" ".join(names))
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(COMMAND, env={"TOOLS": str(listed), **variables}), max_turns=30)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty", "(no content)"),
        ("blank", "(no content)"),
        ("summary", '2 rows found.\n{"rows": [4, 5]}'),
        ("twofold", '{"rows": [4]}'),
        ("wrapped", "7.50"),
        ("items", "4\n5"),
        ("promised", "as text"),
        ("file", "a,b\n1,2\n"),
    ],
)
def test_results_reach_the_model_whole_and_once(tmp_path: Path, name: str, content: str) -> None:
    env = made_of(tmp_path, name)
    result = outcome(env, name)
    assert result.ok and result.content == content
    env.close()


@pytest.mark.parametrize("refusal", [-32022, -32601, -32600])
def test_a_server_without_initialize_is_discovered(tmp_path: Path, refusal: int) -> None:
    env = made_of(tmp_path, "add", "count", "ask", MODERN=str(refusal))
    assert outcome(env, "add", a=1, b=2).content == "3"
    asked = outcome(env, "ask")
    assert asked.error == "tool_error" and "further input" in asked.content
    assert outcome(env, "count").content == "3"  # the same server, in the same session
    env.close()


def test_a_server_that_refuses_initialize_for_another_reason_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"did not start.*no initialize here"):
        made_of(tmp_path, "add", MODERN="-32603")


def test_a_result_of_another_kind_is_named(tmp_path: Path) -> None:
    env = made_of(tmp_path, "program")
    result = outcome(env, "program")
    assert result.error == "tool_error" and "application/wasm" in result.content
    env.close()


@pytest.mark.parametrize(("name", "problem"), [("unlike", "content"), ("generic", "the record is locked")])
def test_one_wrong_result_does_not_break_the_session(tmp_path: Path, name: str, problem: str) -> None:
    env = made_of(tmp_path, name, "count")
    assert outcome(env, "count").content == "1"
    failed = outcome(env, name)
    assert failed.error == "unavailable" and problem in failed.content
    assert outcome(env, "count").content == "3"  # the same server, which has counted the call that failed
    env.close()


@pytest.mark.filterwarnings("error")
def test_a_tool_that_is_listed_twice_is_one_tool(tmp_path: Path) -> None:
    env = made_of(tmp_path, "add", "count", "add")
    assert sorted(schema["function"]["name"] for schema in env.tool_schemas) == ["add", "count"]
    assert outcome(env, "add", a=1, b=2).content == "3"
    env.close()


def test_two_tools_of_one_name_are_reported(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="lists 'vary' twice, with different definitions; the first is used"):
        env = made_of(tmp_path, "vary", "vary")
    (schema,) = env.tool_schemas
    assert schema["function"]["parameters"]["description"] == "of the page None"
    env.close()


def test_schemas_that_strict_clients_refuse_are_completed(tmp_path: Path) -> None:
    env = made_of(tmp_path, "loose")
    (schema,) = env.tool_schemas
    assert schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"xs": {"type": "array", "items": {}}},
    }
    assert outcome(env, "loose").ok
    env.close()


def test_a_listing_that_breaks_the_protocol_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"tools\.0\.inputSchema: Field required"):
        made_of(tmp_path, "nameless")
