"""Multi-turn, tool-using LLM tasks as Gymnasium environments, after Agent-R1 (arXiv 2511.14460).

`import agent_r1_gym` registers every environment, so that `gymnasium.make("AgentR1/HotpotQA-v0")` works.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agent_r1_gym import envs  # registers the environments
from agent_r1_gym.core.history import EpisodeState
from agent_r1_gym.core.judge import Judge
from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.rewards import RewardTerm, make_rewards
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import (
    Message,
    ParsedTurn,
    ParseError,
    Passage,
    Task,
    ToolCall,
    ToolOutcome,
    Transition,
    info_from_dict,
    info_to_dict,
    to_chat,
)
from agent_r1_gym.core.vector import ToolVectorEnv
from agent_r1_gym.data.base import QADataset, Question
from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, InfrastructureError, ToolError
from agent_r1_gym.registry import register
from agent_r1_gym.retrieval.base import Hit, Retriever
from agent_r1_gym.retrieval.make import make_retriever
from agent_r1_gym.tools.function import tool
from agent_r1_gym.tools.search import SearchTool

if TYPE_CHECKING:
    from agent_r1_gym.data.tasks import load_tasks
    from agent_r1_gym.env_checker import check_tool_env
    from agent_r1_gym.tools.as_tool import as_tool
    from agent_r1_gym.tools.mcp import mcp_tools
    from agent_r1_gym.tools.openapi import openapi_tools
    from agent_r1_gym.wrappers import (
        ChooseAction,
        ContextWindow,
        LanguageWrapper,
        MessageObservation,
        TextGame,
        TokenObservation,
    )

__version__ = "0.4.0.dev0"

__all__ = [
    "AgentR1Error",
    "ChooseAction",
    "ConfigurationError",
    "ContextWindow",
    "EpisodeState",
    "Hit",
    "InfrastructureError",
    "Judge",
    "LanguageWrapper",
    "Message",
    "MessageObservation",
    "ParseError",
    "ParsedTurn",
    "Parser",
    "Passage",
    "QADataset",
    "Question",
    "Retriever",
    "RewardTerm",
    "SearchTool",
    "Task",
    "TextGame",
    "TokenObservation",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "ToolOutcome",
    "ToolVectorEnv",
    "Transition",
    "__version__",
    "as_tool",
    "check_tool_env",
    "envs",
    "info_from_dict",
    "info_to_dict",
    "load_dataset",
    "load_tasks",
    "make_retriever",
    "make_rewards",
    "mcp_tools",
    "openapi_tools",
    "register",
    "to_chat",
    "tool",
]

_IMPORTED_WHEN_NAMED = {
    "ChooseAction": "wrappers",
    "ContextWindow": "wrappers",
    "LanguageWrapper": "wrappers",
    "MessageObservation": "wrappers",
    "TextGame": "wrappers",
    "TokenObservation": "wrappers",
    "as_tool": "tools.as_tool",
    "check_tool_env": "env_checker",
    "env_checker": "env_checker",
    "load_tasks": "data.tasks",
    "mcp_tools": "tools.mcp",
    "openapi_tools": "tools.openapi",
    "wrappers": "wrappers",
}
"""Modules of names that few programs need, imported on first use: together they take a sixth of the import time."""


def _load_tasks(dataset: Any, split: str | None, fields: Mapping[str, str] | None) -> Sequence[Task]:
    return import_module(f"{__name__}.data.tasks").open_tasks(dataset, split, fields)  # type: ignore[no-any-return]


ToolEnv.load_tasks = staticmethod(_load_tasks)


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _IMPORTED_WHEN_NAMED[name]
    module = import_module(f"{__name__}.{home}")
    return module if name == home else getattr(module, name)
