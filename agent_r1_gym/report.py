"""Traces as self-contained HTML pages."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from agent_r1_gym.rendering import render_message
from agent_r1_gym.scoring import exact_match
from agent_r1_gym.storage import atomic_file
from agent_r1_gym.trajectory import Trajectory
from agent_r1_gym.types import Message

_MAX_EPISODES = 100

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 0 auto; padding: 1rem; }}
details {{ border: 1px solid #8886; border-radius: .5rem; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; }}
.turn {{ border-left: .3rem solid #888; margin: .6rem 0; padding: .2rem .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }}
.turn b {{ display: block; font-size: .8rem; text-transform: uppercase; letter-spacing: .05em; opacity: .7; }}
.assistant {{ border-color: #d90; }} .tool {{ border-color: #2a6; }} .user {{ border-color: #28c; }}
.reward {{ font-variant-numeric: tabular-nums; opacity: .8; font-size: .9rem; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def html_message(message: Message) -> str:
    """Returns one turn as an HTML block, everything in it escaped."""
    label = html.escape(f"{message.role}: {message.name}" if message.name else message.role)
    content = html.escape(render_message(message).split("\n", 1)[1].strip())
    return f'<div class="turn {message.role}"><b>{label}</b>{content}</div>'


def html_page(title: str, body: str) -> str:
    """Returns a self-contained HTML page (no script, no network) around `body`, which must already be HTML."""
    return _PAGE.format(title=html.escape(title), body=body)


def html_trace(trajectory: Trajectory) -> str:
    """Returns one episode as a foldable HTML block: its score, then every turn."""
    answer, gold = trajectory.answer, trajectory.gold_answers
    right = answer is not None and bool(gold) and exact_match(answer, gold) == 1.0
    head = f"{'✓' if right else '✗'} {trajectory.task_id}: answered {answer!r}, gold {' | '.join(gold)}"
    rewards = " ".join(f"{turn.reward:+.3f}" for turn in trajectory.turns)
    summary = f"{trajectory.policy}; ended by {trajectory.end_reason}; rewards {rewards}"
    turns = "\n".join(map(html_message, trajectory.messages))
    return (
        f'<details><summary>{html.escape(head)}</summary><p class="reward">{html.escape(summary)}</p>{turns}</details>'
    )


def write_html(trajectories: Sequence[Trajectory], path: Path) -> None:
    """Writes a page with the first 100 episodes to read."""
    shown = trajectories[:_MAX_EPISODES]
    body = "\n".join(html_trace(trajectory) for trajectory in shown)
    with atomic_file(path) as temporary:
        temporary.write_text(html_page(f"{len(shown)} of {len(trajectories)} episodes", body), encoding="utf-8")
