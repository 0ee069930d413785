"""The registered environments by kind, and what tests of single environments share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.maths.env import MathsEnv
from agent_r1_gym.envs.service_desk.env import ServiceDeskEnv
from agent_r1_gym.envs.service_desk.world import Ticket, world_of
from agent_r1_gym.envs.tau2.env import Tau2Env
from agent_r1_gym.sandbox.container import containers_unavailable
from agent_r1_gym.sandbox.interface import unavailable_reason
from agent_r1_gym.wrappers.game import TextGame


def creator(env_id: str) -> Any:
    """Returns the class of an environment."""
    return load_env_creator(gymnasium.spec(env_id).entry_point)


IDS = sorted(spec.id for spec in gymnasium.registry.values() if spec.namespace == "AgentR1")
TOOL_ENVS = [env_id for env_id in IDS if issubclass(creator(env_id), ToolEnv)]
if containers_unavailable():
    TOOL_ENVS.remove("AgentR1/Harbor-v0")
STATE_ENVS = [
    env_id
    for env_id in TOOL_ENVS
    if creator(env_id).success is not ToolEnv.success or "em" in creator(env_id).reward_presets
]
"""Solved by what was done, not by an answer."""
QA_ENVS = [
    env for env in TOOL_ENVS if env not in STATE_ENVS and "dataset" not in getattr(creator(env), "fixed_options", ())
]
"""Questions of a data set; the others make their own tasks and tools."""
MATHS_ENVS = [env_id for env_id in TOOL_ENVS if issubclass(creator(env_id), MathsEnv)]
OFFLINE: dict[str, dict[str, Any]] = {
    **{env_id: {"dataset": "sample"} if env_id in QA_ENVS else {} for env_id in TOOL_ENVS},
    **{env_id: {"dataset": "sample"} for env_id in TOOL_ENVS if issubclass(creator(env_id), Tau2Env)},
    "AgentR1/FictionQA-v0": {},
    "AgentR1/BFCL-v0": {"dataset": "sample"},
    "AgentR1/DBBench-v0": {"dataset": "sample"},
    "AgentR1/ReTool-v0": {"isolation": "weak"} if unavailable_reason("strong") else {},
}
"""Options that make an environment on any machine, without data that were prepared on it."""
GAMES = [env_id for env_id in IDS if issubclass(creator(env_id), TextGame)]


def digest(parts: Iterable[object]) -> str:
    """Returns a short hash of the representations of `parts`."""
    total = blake2b(digest_size=8)
    for part in parts:
        total.update(repr(part).encode())
        total.update(b"\n")
    return total.hexdigest()


HARD = {"difficulty": 3, "reward": "process"}
SETTINGS: tuple[dict[str, Any], ...] = ({"difficulty": 1}, {}, HARD)
every_setting = pytest.mark.parametrize("options", SETTINGS, ids=["easy", "default", "hard"])


def play_ticket(
    env: ServiceDeskEnv, index: int, calls: Sequence[ToolCall] | None = None
) -> tuple[float, dict[str, Any]]:
    """Plays calls, one per turn, or the oracle; returns the outcome reward and the last info."""
    env.reset(options={"task_index": index})
    outcome = 0.0
    for number in range(env.max_turns):
        call = env.oracle(env.task, env.transitions) if calls is None else calls[min(number, len(calls) - 1)]
        assert call is not None
        _, _, terminated, truncated, info = env.step(env.parser.format_turn(call))
        outcome += info["outcome_reward"]
        if terminated or truncated:
            break
    return outcome, info


def tickets(env: ServiceDeskEnv, **wanted: str) -> Iterator[tuple[int, Ticket]]:
    """Yields tickets with these metadata whose calls never fail upstream."""
    for index, ticket in enumerate(env.tasks):
        assert isinstance(ticket, Ticket)
        if not ticket.scenario.faults and all(ticket.metadata[name] == value for name, value in wanted.items()):
            yield index, ticket


def other_order(ticket: Ticket) -> str:
    """Returns an order of another customer, in a state in which everything can be done with it."""
    rows = world_of(ticket.scenario.key).template.rows["orders"].values()
    return next(row[0] for row in rows if row[1] != ticket.scenario.customer and row[3] == "delivered")


def changed_plan(ticket: Ticket, change: dict[str, Any], name: str | None = None) -> list[ToolCall]:
    """Returns the plan with other arguments in the calls of that name."""
    return [
        ToolCall(call.name, {**dict(call.arguments), **change}) if call.name == name else call for call in ticket.plan
    ]


def infos_of(env: ServiceDeskEnv, index: int, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    env.reset(options={"task_index": index})
    return [env.step(env.parser.format_call(call))[4] for call in calls]


def play_script(env: ToolEnv, index: int, script: str = "oracle") -> tuple[float, dict[str, Any]]:
    """Plays a task with the oracle or another script; returns the last reward and info."""
    env.reset(seed=0, options={"task_index": index})
    ended = False
    while not ended:
        task, history = env.task, env.transitions
        turn = env.oracle(task, history) if script == "oracle" else env.scripts[script](env, task, history)
        assert turn is not None
        _, reward, terminated, truncated, info = env.step(env.parser.format_turn(turn))
        ended = terminated or truncated
    return reward, info


CHINOOK: tuple[tuple[str, str], ...] = (
    ("How many tracks are there?", "SELECT COUNT(*) FROM Track"),
    ("How many customers live in Brazil?", "SELECT COUNT(*) FROM Customer WHERE Country = 'Brazil'"),
    ("Which countries do customers come from? Each once.", "SELECT DISTINCT Country FROM Customer"),
    ("Names of the genres, sorted by name.", "SELECT Name FROM Genre ORDER BY Name"),
    ("What is the longest track, in milliseconds?", "SELECT MAX(Milliseconds) FROM Track"),
    ("Titles of the albums of AC/DC.",
     "SELECT a.Title FROM Album a JOIN Artist r ON r.ArtistId = a.ArtistId WHERE r.Name = 'AC/DC'"),
    ("How many invoices go to each billing country?",
     "SELECT BillingCountry, COUNT(*) FROM Invoice GROUP BY BillingCountry"),
    ("The total of all invoices of customers from the USA.",
     "SELECT SUM(i.Total) FROM Invoice i JOIN Customer c ON c.CustomerId = i.CustomerId WHERE c.Country = 'USA'"),
    ("Last names of the employees whose title is Sales Support Agent, sorted.",
     "SELECT LastName FROM Employee WHERE Title = 'Sales Support Agent' ORDER BY LastName"),
    ("Names of the tracks that cost more than 1.20 and last more than 40 minutes.",
     "SELECT Name FROM Track WHERE UnitPrice > 1.2 AND Milliseconds > 2400000"),
    ("Which composers wrote tracks of the genre Jazz? Each once.",
     "SELECT DISTINCT t.Composer FROM Track t JOIN Genre g ON g.GenreId = t.GenreId "
     "WHERE g.Name = 'Jazz' AND t.Composer IS NOT NULL"),
    ("The average length of a track per genre.",
     "SELECT g.Name, AVG(t.Milliseconds) FROM Track t JOIN Genre g ON g.GenreId = t.GenreId GROUP BY g.Name"),
    ("How many albums does each artist have who has more than 5?",
     "SELECT r.Name, COUNT(*) FROM Artist r JOIN Album a ON a.ArtistId = r.ArtistId GROUP BY r.ArtistId "
     "HAVING COUNT(*) > 5"),
    ("The ids of the ten longest tracks, the longest first.",
     "SELECT TrackId FROM Track ORDER BY Milliseconds DESC, TrackId LIMIT 10"),
    ("Emails of the customers who are looked after by Jane Peacock.",
     "SELECT c.Email FROM Customer c JOIN Employee e ON e.EmployeeId = c.SupportRepId "
     "WHERE e.FirstName = 'Jane' AND e.LastName = 'Peacock'"),
    ("Artists without an album.", "SELECT Name FROM Artist WHERE ArtistId NOT IN (SELECT ArtistId FROM Album)"),
    ("How many tracks does each media type have?",
     "SELECT m.Name, COUNT(*) FROM MediaType m JOIN Track t ON t.MediaTypeId = m.MediaTypeId GROUP BY m.Name"),
    ("Cities with more than one customer.", "SELECT City FROM Customer GROUP BY City HAVING COUNT(*) > 1"),
    ("Number of different tracks that were ever sold.", "SELECT COUNT(DISTINCT TrackId) FROM InvoiceLine"),
    ("The invoice ids with a total above 15, the largest total first.",
     "SELECT InvoiceId FROM Invoice WHERE Total > 15 ORDER BY Total DESC, InvoiceId"),
    ("Names of the playlists with more than 200 tracks.",
     "SELECT p.Name FROM Playlist p JOIN PlaylistTrack t ON t.PlaylistId = p.PlaylistId "
     "GROUP BY p.PlaylistId HAVING COUNT(*) > 200"),
    ("How many customers does each employee look after?",
     "SELECT e.LastName, COUNT(*) FROM Employee e JOIN Customer c ON c.SupportRepId = e.EmployeeId "
     "GROUP BY e.EmployeeId"),
    ("The smallest and the largest invoice.", "SELECT MIN(Total), MAX(Total) FROM Invoice"),
    ("Different artists with a track of the genre Blues, sorted by name.",
     "SELECT DISTINCT r.Name FROM Artist r JOIN Album a ON a.ArtistId = r.ArtistId "
     "JOIN Track t ON t.AlbumId = a.AlbumId JOIN Genre g ON g.GenreId = t.GenreId WHERE g.Name = 'Blues' "
     "ORDER BY r.Name"),
    ("Employees with the last name of whom they report to.",
     "SELECT e.LastName, m.LastName FROM Employee e JOIN Employee m ON m.EmployeeId = e.ReportsTo"),
    ("How many megabytes do the tracks of the genre Rock take?",
     "SELECT SUM(t.Bytes) / 1000000 FROM Track t JOIN Genre g ON g.GenreId = t.GenreId WHERE g.Name = 'Rock'"),
    ("Customers from Germany, last name and city, sorted by last name.",
     "SELECT LastName, City FROM Customer WHERE Country = 'Germany' ORDER BY LastName"),
    ("Album ids with at least 25 tracks.", "SELECT AlbumId FROM Track GROUP BY AlbumId HAVING COUNT(*) >= 25"),
    ("Tracks by the composer Angus Young that cost 0.99.",
     "SELECT Name FROM Track WHERE Composer LIKE '%Angus Young%' AND UnitPrice = 0.99"),
    ("Different billing cities of invoices above 10.", "SELECT DISTINCT BillingCity FROM Invoice WHERE Total > 10"),
)  # fmt: skip
