"""Trajectories as OpenAI messages, ShareGPT and ATIF: written, read back, replayed, and refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.parsing import make_parser
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.policies import OraclePolicy, PolicyInput
from agent_r1_gym.run.trajectory_files import FORMATS, Conversation, read_conversations, write_rows
from tests.kit.commands import call

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def searches(*queries: str, start: int = 0) -> tuple[ToolCall, ...]:
    return tuple(ToolCall("search", {"query": query}, f"call_{start + n}") for n, query in enumerate(queries))


def result(content: str, number: int) -> Message:
    return Message("tool", content, "search", f"call_{number}")


WHOLE = Conversation(
    id="q1/0",
    messages=(
        Message("system", "Search, then answer."),
        Message("user", "An example?"),
        Message("assistant", "", tool_calls=searches("an example")),
        result("(1) Found.", 0),
        Message("assistant", "<answer>yes</answer>"),
        Message("user", "Who wrote Äbc?"),
        Message("assistant", "<think>Two at once.</think>", tool_calls=searches("a", "b", start=1)),
        result('["a", "list"]', 1),
        result("nothing", 2),
        Message("assistant", "Hm."),
        Message("user", "Error (no_action): write a call."),
        Message("assistant", "<think>\nNow.\n</think><answer>Ann</answer>"),
    ),
    tools=(SEARCH,),
    turns=3,
    actions=("one", "Hm.", "three"),
    rewards=(0.0, -0.1, 1.0),
    metadata={"env_id": "AgentR1/HotpotQA-v0", "scores": {"em": 1.0}, "task_index": 3},
)


def write(path: Path, conversations: list[Conversation], name: str) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in write_rows(conversations, name)), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    bare = replace(WHOLE, id="q2/0", actions=(), rewards=(), metadata={}, tools=())
    (whole, other) = read_conversations(write(tmp_path / "file.jsonl", [WHOLE, bare], name))
    if name == "sharegpt":  # it has no place for turns outside the loss
        expected = [replace(each, turns=5, actions=(), rewards=()) for each in (WHOLE, bare)]
        assert [whole, other] == expected
        return
    assert (whole, other) == (WHOLE, bare)
    assert whole.question == "Who wrote Äbc?"
    assert whole.own_turns == range(2, 5)


def test_examples_of_the_formats_themselves_are_read(tmp_path: Path) -> None:
    """Written after the documentation of each, with what ours would not write."""
    openai = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Rome?"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Look it up.",
                "tool_calls": [
                    {"id": "x", "type": "function", "function": {"name": "w", "arguments": '{"city": "Rome"}'}},
                    {"id": "y", "type": "function", "function": {"name": "now", "arguments": ""}},
                ],
            },
            {"role": "tool", "tool_call_id": "y", "content": "noon"},
            {"role": "tool", "tool_call_id": "x", "content": "sun"},
            {"role": "assistant", "content": "Sun."},
        ],
        "parallel_tool_calls": False,
    }
    llama_factory = {
        "conversations": [
            {"from": "human", "value": "Weather in Rome?"},
            {"from": "function_call", "value": '{"name": "w", "arguments": {"city": "Rome"}}'},
            {"from": "observation", "value": "sun"},
            {"from": "gpt", "value": "Sun."},
        ],
        "system": "Be brief.",
        "tools": json.dumps([{"name": "w", "parameters": {}}]),
    }
    harbor = {
        "schema_version": "ATIF-v1.4",
        "session_id": "s1",
        "agent": {"name": "a", "version": "1", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Weather in Rome?"},
            {
                "step_id": 2,
                "source": "agent",
                "message": "",
                "reasoning_content": "Look it up.",
                "tool_calls": [{"tool_call_id": "x", "function_name": "w", "arguments": {"city": "Rome"}}],
                "observation": {"results": [{"source_call_id": "x", "content": "sun"}]},
                "metrics": {"prompt_tokens": 5, "logprobs": [-0.1]},
            },
            {"step_id": 3, "source": "agent", "message": "Sun."},
        ],
    }
    for name, row in (("messages", openai), ("sharegpt", llama_factory), ("atif", harbor)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([row]))
        (read,) = read_conversations(path)
        assert read.question == "Weather in Rome?"
        assert read.messages[-1] == Message("assistant", "Sun.")
        (turn,) = (message for message in read.messages if message.tool_calls)
        assert (turn.tool_calls[0].name, turn.tool_calls[0].arguments) == ("w", {"city": "Rome"})
        assert turn.content == ("" if name == "sharegpt" else "<think>Look it up.</think>")
        outcomes = {message.tool_call_id: (message.name, message.content) for message in read.messages if message.name}
        assert outcomes["call_0"] == ("w", "sun")
        assert read.turns == 2


def test_what_an_atif_observation_says_of_no_call_is_a_user_turn(tmp_path: Path) -> None:
    calls = [{"tool_call_id": "x", "function_name": "w", "arguments": {}}]
    results = [{"content": "disk full"}, {"source_call_id": "x", "content": "sun"}]
    steps = [
        {"source": "system", "message": "Be brief.", "observation": {"results": [{"content": "started"}]}},
        {"source": "user", "message": "Weather?"},
        {"source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results}},
        {"source": "agent", "message": "", "tool_calls": calls, "observation": {"results": results[:1]}},
        {"source": "agent", "message": "Sun."},
    ]
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"schema_version": "ATIF-v1.7", "steps": steps}))
    (read,) = read_conversations(file)
    assert [(message.role, message.content) for message in read.messages] == [
        *(("system", "Be brief."), ("user", "started"), ("user", "Weather?")),
        *(("assistant", ""), ("tool", "sun"), ("user", "disk full")),
        *(("assistant", ""), ("tool", "disk full"), ("assistant", "Sun.")),  # without an id it may be the call's
    ]


def test_turns_are_written_in_the_format_of_an_environment() -> None:
    messages = (
        Message("user", "Who?"),
        Message("assistant", "<think>Look.</think>", tool_calls=searches("a")),
        result("b", 0),
        Message("assistant", "<think>I see.</think>It was Ann."),
    )
    foreign = Conversation(id="1", messages=messages, turns=2)
    hermes, search_r1, openai = (make_parser(name) for name in ("hermes", "search-r1", "openai"))
    first, last = foreign.turn_texts(hermes, answers=True)
    assert first == '<think>Look.</think><tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    assert last == "<think>I see.</think><answer>It was Ann.</answer>"
    assert foreign.turn_texts(hermes, answers=False)[1] == "<think>I see.</think>It was Ann."
    assert foreign.turn_texts(search_r1, answers=True)[0] == "<think>Look.</think><search>a</search>"
    assert openai.parse(foreign.turn_texts(openai, answers=True)[0]).calls == searches("a")
    # As the model wrote it, where that means the same there, and only there.
    spelled = replace(foreign, actions=("so <search> a </search>", "<answer>Ann</answer>"))
    assert spelled.turn_texts(search_r1, answers=True) == ("so <search> a </search>", "<answer>Ann</answer>")
    assert spelled.turn_texts(hermes, answers=True)[0] == first


OPENAI: list[dict[str, Any]] = [
    {"role": "user", "content": "Who?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "search", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "x", "content": "b"},
    {"role": "assistant", "content": "Ann."},
]


def openai(position: int, **changes: Any) -> dict[str, Any]:
    rows = [dict(row) for row in OPENAI]
    rows[position] |= changes
    return {"messages": rows}


def with_call(**function: Any) -> dict[str, Any]:
    return openai(1, tool_calls=[{"id": "x", "function": {"name": "search", "arguments": "{}"} | function}])


def atif(**changes: Any) -> dict[str, Any]:
    return {"schema_version": "ATIF-v1.7", "steps": [{"source": "agent", "message": "Ann."} | changes]}


def test_what_may_be_missing_may_be_null(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    names = ("reasoning_content", "tool_calls", "metrics", "extra")
    step = atif(**dict.fromkeys(names), observation={"results": None})
    path.write_text(json.dumps({**step, "agent": None, "extra": None, "trajectory_id": "1"}) + "\n")
    assert read_conversations(path) == [Conversation(id="1", messages=(Message("assistant", "Ann."),), turns=1)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty; expected trajectories"),
        (
            [{"question": "Who?"}],
            "line 1: expected OpenAI `messages`, ShareGPT `conversations`, or ATIF .* keys question",
        ),
        ([openai(0), {"conversations": [{"from": "gpt", "value": "a"}]}], "line 2: expected the format 'messages'"),
        ([openai(0) | {"id": "a"}, openai(0) | {"id": "a"}], "line 2: the id 'a' is that of an earlier row"),
        ([{"messages": []}], "expected 'messages' to be a list with at least one entry"),
        ([openai(0, role="critic")], "message 1: expected the role system, developer, user, assistant or tool"),
        ([openai(0, content=[{"type": "image_url"}])], "message 1: expected text.* images and audio are not supported"),
        ([{"messages": [OPENAI[0], OPENAI[1], OPENAI[3]]}], "message 3: expected the result of the call 'search'"),
        ([openai(2, tool_call_id="z")], "message 3: a tool result answers the call 'z', which is not open"),
        ([{"messages": [OPENAI[0], OPENAI[2], OPENAI[3]]}], "message 2: a tool result answers the call 'x'"),
        ([with_call(arguments='{"query": ')], "message 2: expected JSON"),
        ([with_call(arguments="[1]")], "message 2: expected a call with a name and an object of arguments"),
        ([with_call(name="")], "message 2: expected a call with a name"),
        ([{"messages": [OPENAI[0]]}], "expected at least one turn of the model to learn from, got 0"),
        ([openai(0) | {"tools": "nonsense"}], "tools: expected JSON"),
        ([openai(0) | {"tools": [3]}], "expected tools to be a list of function schemas"),
        ([openai(3, weight=0)], "only the first assistant messages may have weight 0"),
        ([{"conversations": [{"from": "bing", "value": "a"}]}], "conversation 1: expected `from` to be one of system"),
        ([{"schema_version": "2", "steps": []}], "expected schema_version ATIF-v1.x, got '2'"),
        ([openai(0) | {"rewards": 0.5}], "line 1: expected 'rewards' to be a list, got 0.5"),
        ([openai(0) | {"actions": "Ann."}], "line 1: expected 'actions' to be a list, got 'Ann.'"),
        ([{"conversations": [{"from": "gpt", "value": "a"}], "actions": 3}], "expected 'actions' to be a list, got 3"),
        ([{"schema_version": "ATIF-v1.7"}], "line 1: expected 'steps' to be a list with at least one entry, got None"),
        ([atif(source="tool")], "step 1: expected an object with `source` system, user or agent"),
        ([atif(source=["agent"])], "step 1: expected an object with `source` system, user or agent"),
        ([atif(reasoning_content=3)], "step 1, reasoning_content: expected text, got 3"),
        ([atif(tool_calls="x")], "step 1: expected 'tool_calls' to be a list, got 'x'"),
        ([atif(tool_calls=["x"])], "step 1: expected 'tool_calls' to be a list of objects, got 'x' in it"),
        ([atif(observation=[1])], r"step 1: expected 'observation' to be an object, got \[1\]"),
        ([atif(observation={"results": 1})], "step 1: expected 'results' to be a list, got 1"),
        ([atif(observation={"results": [1]})], "step 1: expected 'results' to be a list of objects, got 1 in it"),
        ([atif(observation={"results": [{"source_call_id": "z"}]})], "message 2: a tool result answers the call 'z'"),
        ([atif(extra="x")], "step 1: expected 'extra' to be an object, got 'x'"),
        ([atif(metrics=1)], "step 1: expected 'metrics' to be an object, got 1"),
        ([atif(metrics={"extra": 1})], "step 1: expected 'extra' to be an object, got 1"),
        ([atif() | {"agent": "gpt"}], "line 1: expected 'agent' to be an object, got 'gpt'"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(rows: list[Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DatasetError, match=message):
        read_conversations(path)


def test_a_truncated_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "file.jsonl", [WHOLE, replace(WHOLE, id="q2")], "messages")
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DatasetError, match=r"file.jsonl"):
        read_conversations(path)
    with pytest.raises(DatasetError, match="There is no file"):
        read_conversations(tmp_path / "none.jsonl")


ENVS = {
    "hermes": ("HotpotQA", "dataset=sample"),
    "search-r1": ("HotpotQA", "dataset=sample", "parser=search-r1", "shots=1"),
    "openai": ("HotpotQA", "dataset=sample", "parser=openai"),
    "retool": ("ReTool", "questions=5"),
    "equal questions": ("Text2SQL", "questions=40"),
    "window": ("HotpotQA", "dataset=sample", "context_window=1"),
}


@pytest.mark.parametrize("name", ENVS)
def test_an_exported_run_is_replayed_to_the_letter(
    name: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env, *options = ENVS[name]
    words = [word for option in options for word in ("--option", option)]
    assert call(capsys, "eval", env, *words, "--policy", "oracle", "-n", "3", "--out", "played")[0] == 0
    turns = [[turn.action for turn in record.turns] for record in RunFolder(Path("played")).episodes()]
    for format_, calls in (("messages", "structured"), ("atif", "structured"), ("messages", "text")):
        file = f"{format_}-{calls}.jsonl"
        status, out, _ = call(capsys, "data", "export", "played", "--format", format_, "--calls", calls, "--out", file)
        assert status == 0, out
        read = read_conversations(Path(file))
        texts = [text for conversation in read for text in conversation.actions]
        assert texts == [text for each in turns for text in each]
        assert {bool(message.tool_calls) for each in read for message in each.messages} >= (
            {True} if calls == "structured" else {False}
        )
        if name == "window":
            assert len(read) > len(turns)  # a context each
            continue
        replay = f"again-{format_}-{calls}"
        status, _, errors = call(capsys, "eval", env, *words, "--policy", f"replay:{file}", "--out", replay)
        assert status == 0, errors
        assert [[turn.action for turn in record.turns] for record in RunFolder(Path(replay)).episodes()] == turns
        assert RunFolder(Path(replay)).metrics()["overall"]["metrics"]["em"]["mean"] == 1.0


class Summarising(OraclePolicy):
    """The oracle, with a summary in each turn."""

    name = "summarising"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        turns = zip(inputs, super().act(inputs), strict=True)
        return [f"<summary>{state.turn} turns</summary>{turn}" for state, turn in turns]


@pytest.mark.parametrize(("mode", "shots"), [("drop_turns", 1), ("summary", 0)])
def test_conversations_are_replayed_where_older_turns_are_hidden(
    mode: str, shots: int, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("HotpotQA", "--option", "dataset=sample", "--option", f"shots={shots}", "-n", "3")
    policy = "tests.run.test_trajectory_files:Summarising"
    assert call(capsys, "eval", *words, "--policy", policy, "--out", "played")[0] == 0
    assert call(capsys, "data", "export", "played", "--out", "file.jsonl")[0] == 0
    window = ("--option", "context_window=1", "--option", f"context_mode={mode}")
    status, _, errors = call(capsys, "eval", *words, *window, "--policy", "replay:file.jsonl", "--out", "again")
    assert status == 0, errors
    played, again = (RunFolder(Path(name)).episodes() for name in ("played", "again"))
    turns = [[turn.action for turn in record.turns] for record in again]
    assert turns == [[turn.action for turn in record.turns] for record in played]
    assert any(len(record.contexts) > 1 for record in again)  # a window that hid something


def test_structured_calls_come_without_a_format_in_text(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("HotpotQA", "--option", "dataset=sample", "--policy", "oracle", "-n", "1", "--out", "played")
    assert call(capsys, "eval", *words)[0] == 0
    for calls in ("structured", "text"):
        assert call(capsys, "data", "export", "played", "--calls", calls, "--out", f"{calls}.jsonl")[0] == 0
        (row,) = map(json.loads, Path(f"{calls}.jsonl").read_text().splitlines())
        assert ("<tool_call>" in json.dumps(row["messages"])) == (calls == "text")
        assert row["tools"][0]["function"]["name"] == "search"
        assert (row["reward"], row["rewards"][-1]) == (1.0, 1.0)
        assert row["metadata"]["scores"]["em"] == 1.0
    status, _, errors = call(capsys, "data", "export", "played", "--out", "text.jsonl")
    assert status == 2 and "text.jsonl exists" in errors
    status, _, errors = call(capsys, "data", "export", "played", "--min-return", "2", "--out", "none.jsonl")
    assert status == 2 and "holds no episode with a return of 2" in errors


def test_conversations_about_other_tasks_are_refused(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("other.jsonl"), [WHOLE], "messages")
    words = ("HotpotQA", "--option", "dataset=sample", "--policy", "replay:other.jsonl")
    status, _, errors = call(capsys, "eval", *words)
    assert status == 2 and "none of its conversations is about one of the 200 tasks" in errors
    status, _, errors = call(capsys, "eval", "FrozenLakeText", "--policy", "replay:other.jsonl")
    assert status == 2 and "this environment has no tasks to match" in errors


def test_a_folder_of_datasets(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets = pytest.importorskip("datasets", reason="the data extra is not installed")
    words = ("HotpotQA", "--option", "dataset=sample", "--policy", "oracle", "-n", "2", "--out", "played")
    assert call(capsys, "eval", *words)[0] == 0
    assert call(capsys, "data", "export", "played", "--out", "table")[0] == 0
    table = datasets.load_from_disk("table")
    assert len(table) == 2
    assert json.loads(table[0]["tools"])[0]["function"]["name"] == "search"
    assert table[0]["messages"][2]["tool_calls"][0]["function"]["name"] == "search"


CALL = '<tool_call>{"name": "search", "arguments": {"query": "x"}}</tool_call>'


class Eager(OraclePolicy):
    """Calls more often than a turn may, then once with a malformed call, then answers."""

    name = "eager"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        turns = (CALL * 17, CALL + "<tool_call>{bad</tool_call>", "<answer>x</answer>")
        return [turns[state.turn] for state in inputs]


def test_calls_without_a_result_stay_in_the_text(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("FictionQA", "-n", "1", "--policy", "tests.run.test_trajectory_files:Eager", "--out", "played")
    assert call(capsys, "eval", *words)[0] == 0
    status, _, errors = call(capsys, "data", "export", "played", "--out", "file.jsonl")
    assert status == 0, errors
    (conversation,) = read_conversations(Path("file.jsonl"))
    turns = [(len(each.tool_calls), each.content) for each in conversation.messages if each.role == "assistant"]
    assert turns == [(0, CALL * 17), (1, "<tool_call>{bad</tool_call>"), (0, "<answer>x</answer>")]


@pytest.mark.parametrize("thought", ["", f"<think>{CALL}</think>"])
@pytest.mark.parametrize("bad", ["<tool_call>{bad</tool_call>", "<tool_call>[]</tool_call>"])
def test_a_malformed_call_is_not_split_off(bad: str, thought: str) -> None:
    parser = make_parser("hermes")
    expected = (ToolCall("search", {"query": "x"}),)
    assert parser.split_calls(f"{thought}{CALL}{bad}") == (f"{thought}{bad}", expected)
    assert parser.split_calls(f"{thought}{bad}{CALL}") == (f"{thought}{bad}", expected)


def test_an_episode_without_turns_is_left_out_and_the_folder_may_be_the_current_one(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(capsys, "eval", "FictionQA", "-n", "1", "--policy", "oracle", "--out", "played")[0] == 0
    folder = RunFolder(run_folder / "played")
    (record,) = folder.episodes()
    folder.add(replace(record, sample=1, turns=(), messages=record.messages[:2]))
    folder.close()
    monkeypatch.chdir("played")
    status, _, errors = call(capsys, "data", "export", ".")
    assert status == 0 and "1 conversation without a turn of the model left out" in errors
    assert [each.id for each in read_conversations(run_folder / "played.messages.jsonl")] == [f"{record.task_id}/0"]
