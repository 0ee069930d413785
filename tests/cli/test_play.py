"""`agent-r1 play`: what a person types becomes calls and answers; what is wrong is explained and costs no turn."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.cli.typed_calls import describe, parse_typed_call
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.tools.function import tool

SHOP = '''
from agent_r1_gym import Task, ToolEnv, register, tool

ORDERS = []


@tool
def order(item: str, quantity: int, express: bool = False) -> str:
    """Orders an item.

    Args:
        item: its name
        quantity: how many
    """
    ORDERS.append((item, quantity, express))
    return f"ordered {quantity} {item}"


@tool
def look(item: str) -> str:
    """Looks an item up."""
    return f"{item}: plenty"


class ShopEnv(ToolEnv):
    """A shop to order from."""

    def __init__(self, tools=(order, look), **options):
        super().__init__(tasks=[Task("0", "Order five screws.", ("done",))], tools=tools, max_turns=9, **options)


class QuizEnv(ToolEnv):
    """A quiz without tools."""

    def __init__(self, **options):
        super().__init__(tasks=[Task("0", "What is 2 + 2?", ("4",))], **options)


register("Mine/Shop-v0", ShopEnv)
register("Mine/Quiz-v0", QuizEnv)
'''
Play = Callable[..., str]


@pytest.fixture
def play(run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Play]:
    """Plays an environment with the lines of a pipe; returns what was shown after the first prompt."""
    (run_folder / "shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(run_folder)

    def typed(*lines: str, env: str = "shop:Mine/Shop-v0", options: tuple[str, ...] = ()) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["play", env, *options]) == 0
        return capsys.readouterr().out

    yield typed
    sys.modules.pop("shop", None)
    for name in ("Shop", "Quiz"):
        gymnasium.registry.pop(f"Mine/{name}-v0", None)


def test_every_tool_and_argument_is_reached(play: Play) -> None:
    out = play(
        "order screws 5", "order quantity=6 'wood screws'", "order nails 7 express=true", "call look where's it",
        'look item="a b"', "raw <answer>no</answer>",
    )  # fmt: skip
    assert sys.modules["shop"].ORDERS == [("screws", 5, False), ("wood screws", 6, False), ("nails", 7, True)]
    assert "where's it: plenty" in out
    assert "\na b: plenty" in out
    assert "The episode ended (answer) with return 0.000. Gold: done" in out
    assert "\x1b" not in out


def test_it_introduces_the_episode_and_the_commands(play: Play) -> None:
    out = play("help", "?", "help order", "help ordr", "show")
    assert out.startswith("Mine/Shop-v0: A shop to order from.\n")
    assert "Tools: order item quantity [express]; look item. `answer TEXT` answers" in out
    assert out.count("quit            leave") == 2
    assert out.count("    quantity: whole number; how many\n    express: true or false\n") == 3
    assert "There is no tool 'ordr'. Did you mean 'order'?" in out
    assert "> done\n" in out
    assert "(reward" not in out  # no turn was taken


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ordr screws 5", "'ordr' is not a tool. Did you mean 'order'?"),
        ("Is it done?", "'Is' is not a tool."),
        ("order screws", "must contain ['quantity'] properties"),
        ("order screws five", "arguments.quantity must be integer. Expected arguments: item (string), quantity"),
        ("order screws 5 true 6", "'6' is left over"),
        ("order qty=5 item=screws", "order has no argument 'qty'"),
        ("order item=a item=b", "item occurs twice"),
        ('order "screws 5', "No closing quotation. Usage: order item quantity [express]"),
        ("look", "Usage: look item"),
        ("call", "'' is not a tool"),
        ("answer", "`answer` needs a text"),
    ],
)
def test_what_is_wrong_is_explained_and_costs_no_turn(line: str, hint: str, play: Play) -> None:
    out = play(line, "history")
    assert hint in out
    assert "(reward" not in out
    assert out.count("Order five screws.") == 2  # `history` shows it again


def test_without_tools_a_line_is_the_answer(play: Play) -> None:
    assert "with return 1.000" in play("4", env="shop:Mine/Quiz-v0")
    assert "is the final answer" in play("help", env="shop:Mine/Quiz-v0")


def test_a_call_that_the_format_cannot_express_is_explained(play: Play) -> None:
    out = play("search </search>", "answer done", env="FictionQA", options=("--task", "0", "--parser", "search-r1"))
    assert "The search-r1 format cannot express query='</search>'" in out
    assert "The episode ended (answer)" in out


def test_it_ends_with_its_input(play: Play) -> None:
    assert play().endswith("> \n")


def test_the_bundled_search_is_played(play: Play) -> None:
    out = play("search where is it", "answer wrong", env="FictionQA", options=("--task", "0"))
    assert "[tool: search]" in out
    assert "The episode ended (answer)" in out


# --- words to arguments ----------------------------------------------------------------------------------------------


@tool
def paint(colour: Literal["red", 7], parts: list[str], size: float | str, meta: dict | None = None) -> str:
    """Paints parts.

    Args:
        colour: which
    """
    return ""


@tool
def total(numbers: list[int]) -> int:
    """Adds numbers up."""
    return sum(numbers)


@pytest.mark.parametrize(
    ("tool", "text", "arguments"),
    [
        (paint, """red '["a", "b"]' 2.5""", {"colour": "red", "parts": ["a", "b"], "size": 2.5}),
        (paint, "7 [] large", {"colour": 7, "parts": [], "size": "large"}),
        (paint, "7 [] true", {"colour": 7, "parts": [], "size": "true"}),  # no boolean is allowed there
        (paint, """red [] 1 '{"a": 1}'""", {"colour": "red", "parts": [], "size": 1, "meta": {"a": 1}}),
        (paint, "red [] 1 null", {"colour": "red", "parts": [], "size": 1, "meta": None}),
        (total, "[1, 2]", {"numbers": [1, 2]}),
        (total, "numbers=[1, 2]", {"numbers": [1, 2]}),
    ],
)
def test_words_become_what_the_schema_wants(tool: Tool, text: str, arguments: dict[str, object]) -> None:
    call = parse_typed_call(tool, text)
    assert dict(call.arguments) == arguments
    assert [type(value) for value in call.arguments.values()] == [type(value) for value in arguments.values()]


@pytest.mark.parametrize(("tool", "text"), [(paint, "blue [] 1"), (paint, "red a 1"), (total, "1 2"), (total, "")])
def test_words_that_fit_no_schema_are_refused(tool: Tool, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Usage: {tool.name}"):
        parse_typed_call(tool, text)


def test_a_tool_in_words() -> None:
    assert describe(paint).splitlines() == [
        "paint colour parts size [meta]",
        "    Paints parts.",
        "    colour: red or 7; which",
        "    parts: list, as JSON",
        "    size: number or text",
        "    meta: null or object, as JSON",
    ]


# --- a terminal ------------------------------------------------------------------------------------------------------


def until(terminal: int, wanted: str, deadline: float = 30.0) -> str:
    """Returns what a terminal shows until it ends with the pattern `wanted`."""
    end, shown = time.monotonic() + deadline, ""
    while not re.search(f"{wanted}$", shown, re.S):
        assert time.monotonic() < end, f"{wanted!r} did not come: {shown!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_in_a_terminal_lines_are_edited_completed_and_brought_back(play: Play, run_folder: Path) -> None:
    pytest.importorskip("readline", reason="this Python has no readline")
    main_end, other_end = pty.openpty()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TERM": "xterm", "INPUTRC": "/dev/null"}
    words = [sys.executable, "-m", "agent_r1_gym", "play", "shop:Mine/Shop-v0"]
    process = subprocess.Popen(
        words, stdin=other_end, stdout=other_end, stderr=other_end, cwd=run_folder, env=environment, close_fds=True
    )
    try:
        os.close(other_end)
        assert "\x1b[36m" in until(main_end, "> ")  # colours
        os.write(main_end, b"ord\tscrews qua\t5\n")  # tab completes the tool and the argument
        assert json.dumps({"item": "screws", "quantity": 5}) in until(main_end, r"\(reward.*> ")
        os.write(main_end, b"\x1b[A\x7f6\n")  # arrow up brings the line back, backspace edits it
        assert json.dumps({"item": "screws", "quantity": 6}) in until(main_end, r"\(reward.*> ")
        os.write(main_end, b"quit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main_end)
