"""A warehouse: look stock up, order, answer. Two tools over a database of the episode's own, tasks from a file.

agent-r1 play warehouse:Example/Warehouse-v0          # in this folder
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym import RewardTerm, Task, Tool, ToolCall, ToolEnv, ToolError, Transition, register, tool

TASKS = Path(__file__).parent / "tasks.jsonl"


def ordered(step: Transition) -> list[tuple[str, int]]:
    """Returns item and quantity of each order of a turn; calls that were refused ordered nothing."""
    calls = zip(step.parsed.calls, step.outcomes, strict=True)
    orders = [call.arguments for call, outcome in calls if call.name == "order" and outcome.ok]
    return [(order["item"], order["quantity"]) for order in orders]


def over_ordered(transition: Transition) -> float:
    """1 if a turn orders what the task does not ask for, or more of it, else 0."""
    task, now = transition.task.metadata, ordered(transition)
    wanted = task["quantity"] if task["stock"][task["item"]] < task["below"] else 0
    orders = [order for step in transition.earlier for order in ordered(step)] + now
    too_much = sum(quantity for item, quantity in orders if item == task["item"]) > wanted
    return float(bool(now) and (too_much or any(item != task["item"] for item, _ in now)))


class WarehouseEnv(ToolEnv):
    """Questions about a stock that orders change.

    Tools: `stock(item)`, `order(item, quantity)`. Reward: 1 for the right answer, -0.2 per turn that orders too much.
    """

    instructions = "You run a warehouse. Look up before you answer, and order only what the user asks for."

    def __init__(self, **options: Any) -> None:
        reward = ["em", RewardTerm("over_ordered", over_ordered, -0.2, kind="process")]
        super().__init__(**{"dataset": TASKS, "reward": reward, **options})

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Returns tools over a database that begins anew with each episode."""
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, number INTEGER)")
        database.executemany("INSERT INTO stock VALUES (?, ?)", task.metadata["stock"].items())

        def number_of(item: str) -> str:
            row = database.execute("SELECT number FROM stock WHERE item = ?", (item,)).fetchone()
            if row is None:
                raise ToolError(f"There is no item {item!r}.")  # the model reads this
            return f"{item}: {row[0]}"

        # timeout=None: in the thread that steps the environment, one call after another, as a connection needs it
        @tool(timeout=None)
        def stock(item: str) -> str:
            """Returns how many of an item are in stock.

            Args:
                item: name of the item
            """
            return number_of(item)

        @tool(timeout=None)
        def order(item: str, quantity: int) -> str:
            """Orders more of an item, and returns how many are in stock then.

            Args:
                item: name of the item
                quantity: how many
            """
            if quantity < 1:
                raise ToolError(f"Order at least 1, not {quantity}.")
            database.execute("UPDATE stock SET number = number + ? WHERE item = ?", (quantity, item))
            return number_of(item)

        return [stock, order]

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
        """Returns what a perfect clerk does: look up, order if that is due, answer."""
        wanted = task.metadata
        due = wanted["quantity"] and wanted["stock"][wanted["item"]] < wanted["below"]
        steps = [ToolCall("stock", {"item": wanted["item"]})]
        if due:
            steps.append(ToolCall("order", {"item": wanted["item"], "quantity": wanted["quantity"]}))
        return steps[len(history)] if len(history) < len(steps) else task.answers[0]


register("Example/Warehouse-v0", "warehouse:WarehouseEnv")
