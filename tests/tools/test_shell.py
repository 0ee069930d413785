"""ShellTool: a shell in a container, as a model sees it."""

from __future__ import annotations

import pytest

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.sandbox.container import containers_unavailable
from agent_r1_gym.tools import shell
from agent_r1_gym.tools.shell import ShellTool

needs_containers = pytest.mark.skipif(bool(containers_unavailable()), reason=containers_unavailable())


def run(tool, *commands):
    return [tool.run([ToolCall("bash", {"command": command})])[0] for command in commands]


@needs_containers
class TestShell:
    def test_files_stay_and_variables_do_not(self):
        tool = ShellTool(environment={"NAME": "Ana"})
        outcomes = run(tool, "echo $NAME > f; x=1; cd /tmp", "cat f; echo [$x]; pwd", "true", "ls none; exit 2")
        assert [outcome.content for outcome in outcomes[:3]] == ["(no output)", "Ana\n[]\n/app", "(no output)"]
        assert outcomes[3].content.endswith("(exit status 2)")
        assert [outcome.ok for outcome in outcomes] == [True] * 4
        assert [outcome.data for outcome in outcomes] == [0, 0, 0, 2]
        tool.close()

    def test_a_command_that_is_stopped_is_the_mistake_of_the_model(self):
        tool = ShellTool(timeout=0.2)
        (outcome,) = run(tool, "echo begin; sleep 60")
        assert (outcome.error, outcome.content) == ("tool_error", "begin\nStopped after 0.2 s.")
        tool.close()

    def test_a_dead_container_is_not(self):
        tool = ShellTool()
        run(tool, "true")
        tool.container._process.kill()
        tool.container._process.wait()
        assert run(tool, "true")[0].error == "unavailable"
        tool.close()

    def test_it_fulfils_the_contract(self):
        env = ToolEnv(tasks=[Task("0", "List the files.", ("x",))], tools=[ShellTool()])
        check_tool_env(env)

    def test_an_episode_that_ran_commands_cannot_be_snapshotted(self):
        tool = ShellTool()
        tool.get_state()
        run(tool, "true")
        with pytest.raises(EpisodeError, match="cannot be copied"):
            tool.get_state()
        tool.close()


def test_a_machine_without_containers_is_named(monkeypatch):
    monkeypatch.setattr(shell, "containers_unavailable", lambda: "containers need Linux, this is beos")
    with pytest.raises(ConfigurationError, match="this is beos"):
        ShellTool()
