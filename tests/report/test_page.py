"""Pages: nothing foreign runs, everything is kept, long runs stay small, filters know what they filter."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.scoring import exact_match
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task, ToolCall
from agent_r1_gym.report import page
from agent_r1_gym.report.episodes import TokenTrace, episode_item, infra_failure_item, read_token_traces, token_item
from agent_r1_gym.report.page import Html, Section, interval, number, paragraph, sections, table, write_page
from agent_r1_gym.report.viewer import Block, EpisodePane, ViewerItem, pack, viewer
from agent_r1_gym.run.evaluation.run_folder import InfraFailure
from agent_r1_gym.run.policies import OraclePolicy
from agent_r1_gym.run.record import Trajectory, Turn
from tests.kit.helpers import play
from tests.kit.reports import Tags, chunks, episodes, sides, token_row

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\ud800"


def trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "env_id": "", "dataset": "d", "policy": "p", "task_id": "t", "task_index": 0, "gold_answers": ("The Oslo",),
        "answer": "oslo", "messages": (Message("user", "where?"), Message("assistant", "x")),
        "turns": (Turn("x", 1.0, {"em": 1.0}),), "terminated": True, "truncated": False, "end_reason": "answer",
    }  # fmt: skip
    fields |= changes
    if fields["gold_answers"]:
        fields.setdefault("scores", {"em": exact_match(fields["answer"] or "", fields["gold_answers"])})
    return Trajectory(**fields)


def page_of(folder: Path, items: Sequence[ViewerItem], **options: Any) -> str:
    write_page(folder / "page.html", "T", viewer(items, **options))
    return (folder / "page.html").read_text(encoding="utf-8")


def item(text: str, role: str = "tool") -> ViewerItem:
    return ViewerItem("✓", "t", "d", (EpisodePane("", "", (Block(role, role, text),)),))


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, "right"),
        ({"answer": "Rome"}, "wrong"),
        ({"answer": None}, "wrong"),
        ({"gold_answers": ()}, "unscored"),
        ({"infrastructure_error": "search: timeout"}, "infra_failure"),
    ],
)
def test_episodes_are_classified_by_outcome(changes: dict[str, Any], outcome: str) -> None:
    assert episode_item(trajectory(**changes)).facets["outcome"] == (outcome,)


def test_the_page_judges_as_the_environment_does() -> None:
    """Numbers are equal by the scorer of mathematics where they are not by that of HotpotQA, and the other way."""
    task = Task("t", "6 + 6?", ("12",))
    for answer, mark in (("12 apples", "✓"), ("1,2", "✗")):
        policy = OraclePolicy()
        policy.act = lambda states, text=answer: [state.format.format_answer(text) for state in states]  # type: ignore[method-assign,misc]
        (record,) = play(policy, [0], lambda: ToolEnv(tasks=[task], scorer="gsm8k"))
        assert episode_item(record).mark == mark


@pytest.mark.parametrize(
    ("turn", "changes", "failure"),
    [
        ({}, {}, ("none",)),
        ({"call_errors": (None, "timeout")}, {}, ("failed call",)),
        ({"parse_errors": ("bad_json",)}, {"answer": None}, ("malformed turn", "no answer")),
        ({}, {"truncated": True, "terminated": False}, ("truncated",)),
        ({}, {"infrastructure_error": "down"}, ("infrastructure",)),
    ],
)
def test_episodes_have_their_kinds_of_failure(
    turn: dict[str, Any], changes: dict[str, Any], failure: tuple[str, ...]
) -> None:
    turns = (Turn("x", 1.0, {}, **turn),)
    assert episode_item(trajectory(turns=turns, **changes)).facets["failure"] == failure


def test_an_infrastructure_failure_shows_its_error() -> None:
    found = infra_failure_item(InfraFailure(7, 1, "t7", "HTTP 503", 3))
    assert found.title == "t7" and "HTTP 503" in found.detail and found.facets["failure"] == ("infrastructure",)


def test_rewards_outcomes_and_mistakes_stand_at_their_turn() -> None:
    turns = (
        Turn("a", 0.5, {"format": 1.0}, 0.0, (None, "tool_error"), ("bad_json",)),
        Turn("b", 1.0, {"em": 1.0}),
    )
    messages = (Message("user", "q"), Message("assistant", "a"), Message("tool", "r", name="search"),
                Message("assistant", "b"))  # fmt: skip
    first, second = [b for b in episode_item(trajectory(turns=turns, messages=messages)).sides[0].blocks
                     if b.role == "assistant"]  # fmt: skip
    assert first.notes == ("reward +0.500", "format 1", "call 1: ok")
    assert first.errors == ("call 2: tool_error", "bad_json")
    assert (second.label, second.notes, second.errors) == ("assistant, turn 2", ("reward +1.000", "em 1"), ())


def test_nothing_foreign_becomes_markup(tmp_path: Path) -> None:
    record = replace(
        episodes(1)[0], question=EVIL, answer=EVIL, policy=EVIL, labels={"type": EVIL}, gold_answers=(EVIL,),
        messages=(Message("user", EVIL), Message("tool", EVIL, EVIL)), turns=(),
    )  # fmt: skip
    parts = [paragraph(EVIL), table(EVIL, (EVIL, EVIL), [[EVIL, EVIL]]), *viewer([episode_item(record, run=EVIL)])]
    write_page(tmp_path / "page.html", EVIL, parts)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Tags(page)
    assert found.running == 1 and "img" not in found.tags
    assert "script-src 'sha256-" in page and "http" not in page.replace("http-equiv", "")
    shown = sides(page)[0][0][2]
    assert shown[0][2] == EVIL.replace("\ud800", "?")


def test_every_text_comes_back_whole(tmp_path: Path) -> None:
    rows = episodes(150, corpus=30)
    found = sides(page_of(tmp_path, [episode_item(row) for row in rows]))
    assert [[block[2] for block in item[0][2]] for item in found] == [
        [message.content for message in row.messages] for row in rows
    ]


def test_filters_count_and_mark_their_episodes(tmp_path: Path) -> None:
    rows = episodes(80, corpus=10)
    page = page_of(tmp_path, [episode_item(row) for row in rows], selected={"outcome": "wrong"})
    facets = {facet["name"]: facet for facet in chunks(page)["index"]["facets"]}
    outcome = facets["outcome"]
    wrong = [number for number, row in enumerate(rows) if row.scores["em"] == 0]
    at = outcome["options"].index("wrong")
    assert outcome["selected"] == at and outcome["counts"][at] == len(wrong)
    assert [number for number, bits in enumerate(outcome["bits"]) if bits >> at & 1] == wrong
    cut = facets["failure"]
    at = cut["options"].index("truncated")
    assert cut["counts"][at] == sum(row.truncated for row in rows) > 0


@pytest.mark.slow
def test_ten_thousand_episodes_fit_into_twenty_megabytes(tmp_path: Path) -> None:
    page = page_of(tmp_path, [episode_item(row) for row in episodes(10_000, corpus=2_000)])
    assert len(page.encode()) < 20e6
    assert len(chunks(page)["index"]["titles"]) == 10_000


def test_a_text_is_kept_once() -> None:
    passage = "".join(chr(200 + 7 * number % 800) for number in range(5_000))
    once, often = (len(pack([item(passage)] * number).chunks.text) for number in (1, 60))
    assert often < once + 500


def test_tool_texts_that_do_not_fit_are_shortened_with_a_note() -> None:
    noise = json.dumps(list(range(3000)))
    items = [item(noise + str(number)) for number in range(20)] + [item(noise, role="user")]
    whole = pack(items, limit=1_000_000)
    assert whole.max_tool_chars is None
    parts = viewer(items, limit=len(whole.chunks.text) // 2)
    assert "truncated to 2000 characters" in parts[0].text
    texts = [found[0][2][0][2] for found in sides("".join(part.text for part in parts))]
    assert texts[0].startswith(noise[:2000] + " …") and texts[-1] == noise


def test_an_empty_viewer_has_a_note() -> None:
    assert viewer([]) == [Html("<p>No episodes.</p>")]


def trace(folder: Path, **tokens: Any) -> TokenTrace:
    row = token_row()
    row["record"]["tokens"] |= tokens
    (folder / "traces.jsonl").write_text(json.dumps(row) + "\n")
    return read_token_traces(folder / "traces.jsonl")[0]


def test_tokens_keep_mask_logprobs_and_advantages(tmp_path: Path) -> None:
    blocks = token_item(trace(tmp_path, context_starts=(2,))).sides[0].blocks
    assert [block.label for block in blocks] == ["prompt", "assistant, turn 1", "rewritten context",
                                                 "assistant, turn 2"]  # fmt: skip
    first, tool = blocks[1].tokens, blocks[2].tokens
    assert first is not None and tool is not None
    assert (first.pieces, first.mask, first.logprobs, first.advantages) == (
        ["<search>", " Oslo"], [1, 1], [-0.1, -1.25], [0.5, 0.5])  # fmt: skip
    assert tool.mask == [0, 0] and tool.advantages == [None, None]


def test_numbers_carry_their_intervals() -> None:
    assert interval(0.5, 0.25, 0.75).text == "0.500<small>[0.250, 0.750]</small>"
    assert interval(123.4, 100, 150).text == "123.4<small>[100.0, 150.0]</small>"
    assert interval(2.0, 2.0, 2.0).text == "2.000"  # a constant has none


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1.000"), (0.0167, "0.017"), (0.25, "0.250"), (12.34, "12.3"), (2910.4, "2,910"), (2.2e-7, "2.2e-7"),
     (2e-7, "2e-7"), (0, "0.000"), (-0.5, "-0.500")],
)  # fmt: skip
def test_numbers_are_written_alike_everywhere(value: float, text: str) -> None:
    assert number(value) == text == page.escape(value)


def test_rewards_of_nothing_are_not_shown() -> None:
    turns = (Turn("a", 0.0, {"format": 0.0}), Turn("b", 1.0, {"em": 1.0}))
    messages = (Message("assistant", "a"), Message("assistant", "b"))
    blocks = episode_item(trajectory(turns=turns, messages=messages)).sides[0].blocks
    assert [block.notes for block in blocks] == [(), ("reward +1.000", "em 1")]


def test_structured_calls_are_shown_as_calls_in_a_text() -> None:
    message = Message("assistant", "Well.", tool_calls=(ToolCall("stock", {"item": "nail"}),))
    (block,) = episode_item(trajectory(messages=(message,))).sides[0].blocks
    assert block.text == 'Well.\n<tool_call>{"name": "stock", "arguments": {"item": "nail"}}</tool_call>'


def test_items_know_their_order_their_task_and_whether_they_are_wrong(tmp_path: Path) -> None:
    right, wrong, other = trajectory(), trajectory(answer="Rome", turns=()), trajectory(task_id="u", task_index=1)
    items = [episode_item(right, run="a"), episode_item(wrong, run="b"), episode_item(other, run="a")]
    index = chunks(page_of(tmp_path, items))["index"]
    assert index["orders"]["return"] == [1.0, 0.0, 1.0] and index["orders"]["turns"] == [1, 0, 1]
    assert "length" not in index["orders"]  # equal for all: it orders nothing
    assert (index["wrong"], index["tasks"]) == ("010", [0, 0, 1])


def test_only_keys_that_do_something_are_named(tmp_path: Path) -> None:
    some, more = "<kbd>w</kbd>: next wrong", "<kbd>n</kbd>/<kbd>p</kbd>: next, previous token"
    plain = page_of(tmp_path, [episode_item(trajectory())])
    assert some not in plain and more not in plain
    tokens = page_of(tmp_path, [token_item(trace(tmp_path)), episode_item(trajectory(answer="Rome"))])
    assert some in tokens and more in tokens


def test_sections_without_anything_to_show_are_not_in_the_contents() -> None:
    text = "".join(part.text for part in sections(Section("A b", [paragraph("x")]), Section("C", [])))
    assert '<a href="#a-b">A b</a>' in text and "C</a>" not in text and 'id="a-b"' in text


VIEWER = Path(page.__file__).with_name("viewer.js")
DRIVER = """
const seconds = (text) => { const start = process.cpuUsage(); actionsIn(text); return process.cpuUsage(start).user; };
const best = (text) => Math.min(...Array.from({ length: 9 }, () => seconds(text)));
const bomb = "<answer>".repeat(240000);
best(bomb);
const quadratic = /<(tool_call|search|answer|think)>[^]*?<\\/\\1>/g;
const spans = (text) => [...text.matchAll(quadratic)].map((match) => [match.index, match.index + match[0].length]);
const agree = CASES.map((text) => [actionsIn(text), spans(text)]);
console.log(JSON.stringify({ agree, one: best(bomb), four: best(bomb.repeat(4)) }));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.slow
def test_actions_are_found_in_one_pass():
    """An expression with a back reference took 17 s for one turn of 480 kB of unclosed tags."""
    source = re.search(r"^  function actionsIn.*?^  }$", VIEWER.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert source
    generator = random.Random(0)
    parts = [
        "<answer>",
        "</answer>",
        "<search>",
        "</search>",
        "<tool_call>",
        "</tool_call>",
        "x",
        "\n",
        "<think>",
        "</think>",
    ]
    cases = ["".join(generator.choices(parts, k=12)) for _ in range(300)]
    script = f"{source[0]}\nconst CASES = {json.dumps(cases)};\n{DRIVER}"
    node = ["node", "--single-threaded-gc", "-e", script]
    done = subprocess.run(node, capture_output=True, text=True, timeout=60, check=True)
    result = json.loads(done.stdout)
    assert all(spans == expected for spans, expected in result["agree"])
    assert result["four"] < 10 * result["one"]  # linear: 4, quadratic: 16
