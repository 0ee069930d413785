"""Episodes as entries of the viewer: finished trajectories, lost ones, and token traces of a training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.report.packing import Block, Item, Side, Tokens
from agent_r1_gym.report.page import write_page
from agent_r1_gym.report.viewer import viewer
from agent_r1_gym.scoring import exact_match

Row = Mapping[str, Any]
_MARKS = {"right": "✓", "wrong": "✗", "unscored": "·", "lost": "!"}
_SCORES = ("em", "f1", "sub_em", "support_recall", "return")
_TITLE = 300


def write_html(trajectories: Sequence[Trajectory], path: Path) -> None:
    """Writes a page with a viewer of the trajectories."""
    items = [trajectory_item(trajectory) for trajectory in trajectories]
    write_page(path, f"{len(items)} episodes", viewer(items))


def trajectory_item(trajectory: Trajectory, **facets: str) -> Item:
    """Returns a trajectory as an entry, its answer judged by exact match."""
    row = trajectory.to_dict()
    answer, gold = trajectory.answer, trajectory.gold_answers
    em = None if not gold else 0.0 if answer is None else exact_match(answer, gold)
    question = next((message.content for message in trajectory.messages if message.role == "user"), "")
    return episode_item({**row, "question": question, "scores": {"em": em}}, **facets)


def episode_item(row: Row, **facets: str) -> Item:
    """Returns an episode as an entry.

    Args:
        row: keys of `Trajectory`, `question` and `scores`; may have `sample`, `type` and `hops`.
        **facets: further values to filter by.
    """
    outcome = outcome_of(row)
    found: dict[str, tuple[str, ...]] = {name: (value,) for name, value in facets.items()}
    found |= {"outcome": (outcome,), "trouble": troubles(row)}
    found |= {name: (str(row[name]),) for name in ("type", "hops") if row.get(name) is not None}
    return Item(_MARKS[outcome], question_of(row), answered(row), (episode_side(row),), found)


def question_of(row: Row) -> str:
    """Returns the question of an episode on one line."""
    return " ".join(str(row["question"]).split())[:_TITLE] or str(row["task_id"])


def outcome_of(row: Row) -> str:
    """Returns "right", "wrong", "unscored", or "lost" where a backend failed."""
    if row.get("infrastructure_error"):
        return "lost"
    em = row["scores"]["em"]
    return "unscored" if em is None else "right" if em == 1 else "wrong"


def troubles(row: Row) -> tuple[str, ...]:
    """Returns what went wrong on the way, ("none",) if nothing did."""
    found = {
        "truncated": row["truncated"],
        "failed call": any(error for turn in row["turns"] for error in turn["outcome_errors"]),
        "malformed turn": any(turn["parse_errors"] for turn in row["turns"]),
        "no answer": row["answer"] is None,
        "infrastructure": row.get("infrastructure_error"),
    }
    return tuple(name for name, met in found.items() if met) or ("none",)


def answered(row: Row) -> str:
    """Returns the answer and the gold answers on one line."""
    said = "no answer" if row["answer"] is None else f"answered {row['answer']!r}"
    gold = " | ".join(map(str, row["gold_answers"]))
    return f"{said}, gold {gold}" if gold else said


def episode_side(row: Row, *, title: str = "") -> Side:
    """Returns an episode as messages with the rewards and outcomes of their turns."""
    scores = (f"{name} {row['scores'][name]:.3g}" for name in _SCORES if row["scores"].get(name) is not None)
    facts = [f"{row['task_id']}", row["policy"], f"ended by {row['end_reason']}", *scores]
    if row.get("sample"):
        facts.insert(1, f"sample {row['sample']}")
    if row.get("infrastructure_error"):
        facts.append(f"infrastructure: {row['infrastructure_error']}")
    messages, turns = row["messages"], row["turns"]
    spoken = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    turn_of = dict(zip(spoken[max(0, len(spoken) - len(turns)) :], range(len(turns)), strict=False))
    blocks = tuple(_message(message, turn_of.get(at), turns) for at, message in enumerate(messages))
    return Side(title, " · ".join(filter(None, facts)), blocks)


def _message(message: Row, number: int | None, turns: Sequence[Row]) -> Block:
    text = message["content"] or ""
    for call in message.get("tool_calls", ()):
        text += f"\n→ {call['function']['name']} {call['function']['arguments']}"
    label = f"{message['role']}: {message['name']}" if message.get("name") else message["role"]
    if number is None:
        return Block(message["role"], label, text.lstrip("\n"))
    turn = turns[number]
    errors = list(enumerate(turn["outcome_errors"], 1))
    notes = (
        f"reward {turn['reward']:+.3f}",
        *(f"{name} {value:.3g}" for name, value in turn["reward_terms"].items()),
        *(f"call {at}: ok" for at, error in errors if error is None),
    )
    faults = (*(f"call {at}: {error}" for at, error in errors if error), *turn["parse_errors"])
    return Block(message["role"], f"{label}, turn {number + 1}", text.lstrip("\n"), notes, faults)


def lost_item(row: Row, **facets: str) -> Item:
    """Returns an episode that lost its backend as an entry: it was not kept, its error was.

    Args:
        row: `task_id`, `sample`, `error` and `tries`.
        **facets: further values to filter by.
    """
    found = {name: (value,) for name, value in facets.items()} | {
        "outcome": ("lost",),
        "trouble": ("infrastructure",),
    }
    facts = f"sample {row['sample']} · {row['tries']} tries"
    block = Block("tool", "backend", str(row["error"]))
    return Item(_MARKS["lost"], str(row["task_id"]), str(row["error"]), (Side("", facts, (block,)),), found)


# --- token traces ----------------------------------------------------------------------------------------------------


def read_token_traces(path: Path) -> list[Row]:
    """Returns the rows of a file that `trainers.running.traces` wrote.

    Raises:
        DatasetError: a line is no such row.
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            length = len(row["pieces"])
            if any(len(row[name]) != length for name in ("loss_mask", "logprobs", "advantages")):
                raise ValueError("pieces, loss_mask, logprobs and advantages are not equally long")
        except (ValueError, KeyError, TypeError) as error:
            raise DatasetError(f"{path}, line {number}: expected a token trace; {error}; got {line[:80]!r}.") from error
        rows.append(row)
    return rows


def token_item(row: Row, **facets: str) -> Item:
    """Returns a rollout of a training as an entry, token by token."""
    em = row["metrics"].get("reward/em")
    lost = bool(row["infrastructure_error"])
    outcome = "lost" if lost else "unscored" if em is None else "right" if em >= 1 else "wrong"
    met = {
        "truncated": row["truncated"],
        "failed call": row["metrics"].get("failed_calls"),
        "malformed turn": row["metrics"].get("malformed_turns"),
        "infrastructure": lost,
    }
    found: dict[str, tuple[str, ...]] = {name: (value,) for name, value in facets.items()}
    found |= {"outcome": (outcome,), "trouble": tuple(name for name, yes in met.items() if yes) or ("none",)}
    found |= {"step": (f"step {row['step']}",)}
    rewards = " ".join(f"{turn['reward']:+.3f}" for turn in row["turns"])
    detail = f"step {row['step']}, rollout {row['rollout']}, rewards {rewards}"
    facts = [f"{name} {value:.3g}" for name, value in row["metrics"].items()]
    if lost:
        facts.append(f"infrastructure: {row['infrastructure_error']}")
    prompt = Block("user", "prompt", row["prompt"])
    side = Side("", " · ".join(facts), (prompt, *_token_blocks(row)))
    return Item(_MARKS[outcome], " ".join(row["title"].split())[:_TITLE], detail, (side,), found)


def _token_blocks(row: Row) -> list[Block]:
    """Returns the model's turns and what stands between them."""
    blocks, end = [], 0
    for number, turn in enumerate(row["turns"], 1):
        if turn["start"] > end:
            label = "rewritten context" if end in row["row_starts"] else "environment"
            blocks.append(Block("tool", label, "", tokens=_tokens(row, end, turn["start"])))
        end = turn["end"]
        note = (f"reward {turn['reward']:+.3f}",)
        tokens = _tokens(row, turn["start"], end)
        blocks.append(Block("assistant", f"assistant, turn {number}", "", note, tokens=tokens))
    if end < len(row["pieces"]):
        blocks.append(Block("tool", "environment", "", tokens=_tokens(row, end, len(row["pieces"]))))
    return blocks


def _tokens(row: Row, start: int, end: int) -> Tokens:
    parts = (row[name][start:end] for name in ("pieces", "loss_mask", "logprobs", "advantages"))
    return Tokens(*parts)
