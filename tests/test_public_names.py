"""What README, docs and examples import from the root package, and nothing else that only looks public."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import agent_r1_gym
from agent_r1_gym.support.docstrings import arguments

ROOT = Path(__file__).parents[1]
NAMES = """
AgentR1Error ChooseAction ConfigurationError ContextWindow EpisodeState Hit InfrastructureError Judge LanguageWrapper
Message MessageObservation ParseError ParsedTurn Parser Passage QADataset Question Retriever RewardTerm SearchTool
Task TextGame TokenObservation Tool ToolCall ToolEnv ToolError ToolOutcome ToolVectorEnv Transition __version__
as_tool check_tool_env envs info_from_dict info_to_dict load_dataset load_tasks make_retriever make_rewards mcp_tools
openapi_tools register to_chat tool
"""


def test_the_public_names_are_these() -> None:
    assert sorted(agent_r1_gym.__all__) == sorted(NAMES.split())
    assert [name for name in agent_r1_gym.__all__ if not hasattr(agent_r1_gym, name)] == []


def test_what_few_programs_need_is_imported_when_it_is_named() -> None:
    code = """if True:
        import sys, agent_r1_gym
        rooms = {"agent_r1_gym.env_checker", "agent_r1_gym.wrappers"}
        assert not rooms & set(sys.modules)
        assert agent_r1_gym.wrappers.ContextWindow is agent_r1_gym.ContextWindow
        from agent_r1_gym import check_tool_env
        assert check_tool_env is agent_r1_gym.env_checker.check_tool_env
        assert not hasattr(agent_r1_gym, "nothing")
    """
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_version_is_three_numbers_that_builds_read_without_importing() -> None:
    (written,) = re.findall(
        r'^__version__ = "(\d+\.\d+\.\d+(?:\.dev\d+)?)"$', (ROOT / "agent_r1_gym/__init__.py").read_text(), re.M
    )
    assert agent_r1_gym.__version__ == written
    assert importlib.metadata.version("agent-r1-gym")  # what the command line shows


def test_documented_arguments_are_those_of_the_signature() -> None:
    """An example with its own `Args:` at the margin would replace the real ones in every documentation tool."""
    documented = {}
    for name in NAMES.split():
        public: object = getattr(agent_r1_gym, name)
        if text := arguments(inspect.cleandoc(public.__doc__ or "")):
            documented[name] = re.findall(r"^- `\**(.+?)`: ", text, re.M)
            assert documented[name] == list(inspect.signature(public).parameters), name  # type: ignore[arg-type]
    assert {"Tool", "ToolEnv", "SearchTool", "register", "make_rewards"} <= set(documented)
