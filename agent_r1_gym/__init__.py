"""Multi-turn, tool-using LLM tasks as Gymnasium environments, after Agent-R1 (arXiv 2511.14460).

`import agent_r1_gym` registers every environment, so that `gymnasium.make("AgentR1/HotpotQA-v0")` works.
"""

from agent_r1_gym import envs  # registers the environments
from agent_r1_gym._version import __version__
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.registry import register
from agent_r1_gym.rewards import RewardTerm
from agent_r1_gym.tool import Tool
from agent_r1_gym.tools.function import tool
from agent_r1_gym.types import EpisodeState, Message, Passage, Task, ToolCall, ToolOutcome, Transition
from agent_r1_gym.vector import ToolVectorEnv

__all__ = [
    "EpisodeState",
    "Message",
    "Passage",
    "RewardTerm",
    "Task",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolOutcome",
    "ToolVectorEnv",
    "Transition",
    "__version__",
    "envs",
    "register",
    "tool",
]
