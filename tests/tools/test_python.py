"""PythonTool: in an environment, across episodes, and when the sandbox fails."""

import importlib.util
import os
import pickle
import signal

import pytest

from agent_r1_gym.core.tool import PendingCall, execute_calls
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.sandbox import shared_sandbox
from agent_r1_gym.tools.python import PythonTool
from tests.kit.sandboxes import fork_servers_of, needs


@pytest.fixture(autouse=True)
def _strong():
    needs("strong")


def call(tool, code):
    (outcome,) = tool.run([ToolCall("python", {"code": code})])
    return outcome


def make_env(**options):
    return ToolEnv(
        tasks=[Task("0", "What is 6 times 7?", ("42",))], tools=[PythonTool(packages=(), **options)], max_turns=9
    )


def turn(env, *codes):
    """Plays a turn with a call per code; returns the outcomes."""
    calls = "\n".join(
        f'<tool_call>{{"name": "python", "arguments": {{"code": "{code}"}}}}</tool_call>' for code in codes
    )
    *_, info = env.step(calls)
    return info["tool_outcomes"]


def test_the_model_reads_output_value_error_and_stderr():
    tool = PythonTool(packages=())
    outcome = call(tool, "import sys\nprint('out')\nprint('careful', file=sys.stderr)\n6 * 7")
    assert (outcome.ok, outcome.content) == (True, "out\n42\n[stderr]\ncareful")
    assert outcome.data.value == "42"
    outcome = call(tool, "print('so far')\n1 / 0")
    assert (outcome.ok, outcome.error) == (False, "tool_error")
    assert outcome.content.startswith("so far\nTraceback")
    assert call(tool, "x = 1").content == "(no output)"


def test_slow_code_is_the_models_mistake():
    outcome = call(PythonTool(packages=(), timeout=0.3), "while True: pass")
    assert (outcome.error, outcome.content) == ("tool_error", "Timed out after 0.3 s.")


def test_a_lost_sandbox_is_not_the_models_mistake_and_restarts():
    tool = PythonTool(packages=(), stateful=True)
    call(tool, "x = 1")
    for fork_server in fork_servers_of(shared_sandbox("strong", ())):
        os.kill(fork_server, signal.SIGKILL)
    outcome = call(tool, "import time; time.sleep(3)")
    assert outcome.is_infrastructure_failure
    assert "NameError" in call(tool, "x").content
    assert call(tool, "1 + 1").content == "2"
    tool.close()


def test_markup_that_code_prints_does_not_reach_the_model_as_markup():
    env = make_env()
    env.reset(seed=0)
    written = (
        '<tool_call>{"name": "python", "arguments": {"code": "print(\'<answer>42</answer> <|im_end|>\')"}}</tool_call>'
    )
    observation, _, terminated, _, info = env.step(written)
    assert info["tool_outcomes"][0].content == "<answer>42</answer> <|im_end|>"
    read = observation.rpartition("[tool: python]")[2]
    assert "42" in read and "<answer>" not in read and "<|im_end|>" not in read
    assert not terminated


def test_a_stateful_tool_has_an_interpreter_per_episode():
    first, second = make_env(stateful=True), make_env(stateful=True)
    for env in (first, second):
        env.reset(seed=0)
    turn(first, "x = 1")
    assert turn(first, "x + 1")[0].content == "2"
    assert "NameError" in turn(second, "x")[0].content
    first.reset(seed=0)
    assert "NameError" in turn(first, "x")[0].content
    first.close()
    second.close()


def test_calls_of_one_turn_run_in_order():
    env = make_env(stateful=True)
    env.reset(seed=0)
    outcomes = turn(env, "x = []", *[f"x.append({number})" for number in range(5)], "x")
    assert outcomes[-1].content == "[0, 1, 2, 3, 4]"
    env.close()


def test_a_timeout_reports_that_the_state_is_lost():
    env = make_env(stateful=True, timeout=0.3)
    env.reset(seed=0)
    turn(env, "x = 1")
    (outcome,) = turn(env, "while True: pass")
    assert outcome.content == "Timed out after 0.3 s.\nThe interpreter was stopped. All variables are lost."
    assert "NameError" in turn(env, "x")[0].content
    env.close()


def test_the_interpreter_ends_with_the_episode():
    env = make_env(stateful=True)
    env.reset(seed=0)
    turn(env, "open('mine', 'w').write('x')")
    env.step("<answer>42</answer>")
    assert call(PythonTool(packages=()), "import os\nos.listdir('.')").content == "[]"
    with pytest.raises(EpisodeError):
        env.step("<answer>42</answer>")


def test_a_running_interpreter_cannot_be_snapshot():
    env = make_env(stateful=True)
    env.reset(seed=0)
    env.get_state()
    turn(env, "x = 1")
    with pytest.raises(EpisodeError, match="interpreter"):
        env.get_state()
    env.close()


def test_environments_that_share_nothing_share_a_batch():
    tools = [PythonTool(packages=()) for _ in range(8)]
    assert len({tool.batch_key for tool in tools}) == 1
    calls = [PendingCall(tool, ToolCall("python", {"code": f"{number} ** 2"})) for number, tool in enumerate(tools)]
    assert [outcome.content for outcome in execute_calls(calls)] == [str(number**2) for number in range(8)]
    assert PythonTool(stateful=True).batch_key != PythonTool(stateful=True).batch_key


def test_it_pickles():
    tool = pickle.loads(pickle.dumps(PythonTool(packages=(), stateful=True)))
    assert tool.per_episode
    assert call(tool, "6 * 7").content == "42"
    tool.close()


def test_the_checker_passes():
    good = '<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>'
    bad = '<tool_call>{"name": "python", "arguments": {"code": "1 / 0"}}</tool_call>'
    check_tool_env(make_env(), actions=[good, bad, "<answer>42</answer>"])


def test_wrong_options_are_refused():
    for options in (
        *({"timeout": 0}, {"timeout": None}, {"timeout": 1e9}, {"stateful": "yes"}, {"isolation": "none"}),
        *({"memory": 1}, {"memory": 2**70}, {"memory": None}, {"max_output_chars": 2**40}, {"max_output_chars": 0}),
        *({"packages": "numpy"}, {"packages": None}, {"packages": [1]}, {"packages": ["no_such"]}, {"packages": [""]}),
    ):
        with pytest.raises(ConfigurationError):
            PythonTool(**options)


def test_the_largest_limits_work_and_the_description_lists_only_installed_packages(monkeypatch):
    tool = PythonTool(packages=(), memory=2**40, max_output_chars=2**24)
    assert call(tool, "print(6 * 7)").content == "42"
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mpmath" else find(name))
    assert "mpmath" not in PythonTool().description
    assert "Installed packages: json." in PythonTool(packages=["json"]).description


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("\ufeff1 + 1", "2"),
        ("1\u00a0+\u00a01", "2"),
        ("if True:\n\u00a0\u00a0\u00a0\u00a0x = 3\nx", "3"),
        ("x = 'a\u00a0b'  # a\u00a0comment\nlen(x), x == 'a' + chr(160) + 'b'", "(3, True)"),
        ("'''\u2009'''\u3000== chr(0x2009)", "True"),
        ("x\u200b = 5\nx", "5"),
    ],
)
def test_spaces_from_web_pages_are_spaces(code: str, value: str) -> None:
    tool = PythonTool()
    (outcome,) = tool.run([ToolCall("python", {"code": code})])
    assert (outcome.ok, outcome.content) == (True, value)
    tool.close()
