"""Scripted players: the oracle, four near misses, and a beginner who is right sometimes.

A near miss plays on what it sees and what its own idea of the policy says: scripts are examples for people and teachers
for models, so they may look at the policy's predicate, but not at the verdict, except for the oracle and the beginner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

from agent_r1_gym.datasets.service_desk.policy import Section, Verdict
from agent_r1_gym.datasets.service_desk.tickets import Ticket, closing_call
from agent_r1_gym.datasets.service_desk.world import world_of
from agent_r1_gym.types import Script, Task, ToolCall, Transition
