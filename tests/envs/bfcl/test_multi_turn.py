"""Conversations over simulated APIs: a package of this test stands in for `bfcl-eval`.

`benchmarks/agreement/bfcl_multi_turn.py` compares verdicts with the official code on the official rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.bfcl.env import BFCLEnv, verdict
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError

API = """
class Kitchen:
    def _load_scenario(self, scenario, long_context=False):
        self.items = dict(scenario.get("items", {}))
        self._log = []
        self.long_context = long_context

    def put(self, item, count=1):
        self.items[item] = self.items.get(item, 0) + count
        return {"items": self.items[item]}

    def take(self, item):
        if item not in self.items:
            return {"error": f"no {item}"}
        del self.items[item]
        return {"taken": item}

    def look(self):
        return sorted(self.items)

    def heat(self, exponent):
        return 10 ** exponent
"""
CONFIG = """
CLASS_FILE_PATH_MAPPING = {"Kitchen": "bfcl_eval.kitchen"}
MULTI_TURN_FUNC_DOC_FILE_MAPPING = {"Kitchen": "kitchen.json"}
"""


def function(name: str, *required: str, **properties: str) -> dict[str, Any]:
    described = {key: {"type": kind, "description": key} for key, kind in properties.items()}
    parameters = {"type": "dict", "properties": described, "required": list(required)}
    return {"name": name, "description": f"To {name}.", "parameters": parameters}


DOCUMENTATION = [
    function("put", "item", item="string", count="integer"),
    {**function("take", "item", item="string"), "response": {"type": "dict", "properties": {"taken": {}}}},
    function("look"),
    function("heat", "exponent", exponent="integer"),
]


def row(category: str, number: int, requests: list[str], **others: Any) -> dict[str, Any]:
    question = [[{"role": "user", "content": request}] if request else [] for request in requests]
    config = {"Kitchen": {"items": {"tea": 2}}}
    return {
        "id": f"{category}_{number}",
        "question": question,
        "initial_config": config,
        "involved_classes": ["Kitchen"],
        **others,
    }


BASE = row("multi_turn_base", 0, ["Put 3 eggs and a pan there, then look.", "Take the tea."])
BASE_GOLD = [["put('egg', count=3)", "put(item='pan')", "look()"], ["take(item='tea')"]]
MISSING = row("multi_turn_miss_func", 0, ["Take the tea.", ""], missed_function={"1": ["take"]})
MISSING_GOLD: list[list[str]] = [[], ["take('tea')"]]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data of a package that stands in for `bfcl-eval`."""
    package = tmp_path / "bfcl_eval"
    folder = package / "data"
    for part in (package / "constants", folder / "possible_answer", folder / "multi_turn_func_doc"):
        part.mkdir(parents=True)
    for part in (package, package / "constants"):
        (part / "__init__.py").write_text("")
    (package / "kitchen.py").write_text(API)
    (package / "constants" / "executable_backend_config.py").write_text(CONFIG)
    (folder / "multi_turn_func_doc" / "kitchen.json").write_text("\n".join(map(json.dumps, DOCUMENTATION)))
    write(folder, "multi_turn_base", BASE, BASE_GOLD)
    write(folder, "multi_turn_miss_func", MISSING, MISSING_GOLD)
    forget_package()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    forget_package()


def forget_package() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        del sys.modules[name]


def write(folder: Path, category: str, data: dict[str, Any], gold: Any) -> None:
    (folder / f"BFCL_v4_{category}.json").write_text(json.dumps(data))
    answer = {"id": data["id"], "ground_truth": gold}
    (folder / "possible_answer" / f"BFCL_v4_{category}.json").write_text(json.dumps(answer))


def make(category: str = "multi_turn_base", **options: Any) -> BFCLEnv:
    return BFCLEnv(category=category, split="all", **options)


PUT = ToolCall("put", {"item": "egg", "count": 3}), ToolCall("put", {"item": "pan"}), ToolCall("look", {})
TAKE = ToolCall("take", {"item": "tea"})


def play(env: BFCLEnv, *turns: Any) -> tuple[float, str | None]:
    """Play turns: calls, or a message; the sum of rewards and the verdict."""
    env.reset(options={"task_index": 0})
    total = 0.0
    for turn in turns:
        total += env.step(env.parser.format_turn(turn) if not isinstance(turn, str) else turn)[1]
    return total, verdict(env.transitions[-1])


def test_the_oracle_fulfils_all_requests(data: Path) -> None:
    for category, turns in (("multi_turn_base", 4), ("multi_turn_miss_func", 3)):
        env = make(category)
        env.reset(options={"task_index": 0})
        ended = False
        while not ended:
            turn = env.oracle(env.task, env.transitions)
            _, reward, ended, _, info = env.step(env.parser.format_turn(turn))
        assert (reward, info["end_reason"], len(env.transitions)) == (1.0, "goal", turns)
        assert env.success(env.task, env.transitions) == 1.0


def test_calls_of_one_turn_run_in_their_order_on_one_state(data: Path) -> None:
    env = make()
    env.reset(options={"task_index": 0})
    calls = (PUT[0], ToolCall("take", {"item": "egg"}), PUT[0], ToolCall("look", {}))
    info = env.step(env.parser.format_turn(calls))[4]
    contents = [outcome.content for outcome in info["tool_outcomes"]]
    assert contents == ['{"items": 3}', '{"taken": "egg"}', '{"items": 3}', "['egg', 'tea']"]
    info = env.step("Done.")[4]
    assert [(message.role, message.content) for message in info["new_messages"]] == [
        ("assistant", "Done."),
        ("user", "Take the tea."),
    ]


def test_state_and_responses_after_each_request_decide(data: Path) -> None:
    env = make()
    for turns, expected in (
        ((PUT, "Done.", TAKE, "Done."), None),
        ((PUT[0], PUT[1:], "Done.", TAKE, "Done."), None),
        (((PUT[1], PUT[0], PUT[2]), "Done.", (ToolCall("look", {}), TAKE), "Done."), None),
        ((PUT[:2], "Done.", TAKE, "Done."), "multi_turn:execution_response_mismatch"),
        ((PUT, "Done.", "Done."), "multi_turn:empty_turn_model_response"),
        (("Done.", PUT, TAKE, "Done."), "multi_turn:empty_turn_model_response"),
        ((PUT, TAKE, "Done.", ToolCall("look", {}), "Done."), "multi_turn:instance_state_mismatch"),
        ((PUT, PUT[0], "Done.", TAKE, "Done."), "multi_turn:instance_state_mismatch"),
        ((PUT, "Done.", TAKE), "multi_turn:force_terminated"),
    ):
        reward, error = play(env, *turns)
        assert (reward, error) == (float(expected is None), expected), turns


def test_mistakes_are_responses_and_the_conversation_goes_on(data: Path) -> None:
    env = make()
    heat = [ToolCall("heat", {"exponent": exponent}) for exponent in (10**9, 9_999)]
    bad = (ToolCall("put", {"pot": 1}), ToolCall("take", {"item": "gold"}), *heat)
    assert play(env, (*bad, *PUT), "Done.", TAKE, "Done.") == (1.0, None)
    contents = [outcome.content for outcome in env.transitions[0].outcomes]
    assert "unexpected keyword argument 'pot'" in contents[0]
    assert contents[1] == '{"error": "no gold"}'
    assert "at most 10000" in contents[2]
    assert contents[3].startswith("Error during execution: Exceeds the limit")
    assert play(env, (ToolCall("no_such", {}), *PUT), "Done.", TAKE, "Done.") == (1.0, None)


def test_a_turn_without_a_call_that_can_be_read_ends_the_request(data: Path) -> None:
    """As officially: the user makes the next request, and nothing is said about the mistake."""
    malformed = "<tool_call>\n{oops}\n</tool_call>"
    for turn in (malformed, f"Now: {malformed * 2}", "", "<think>Hm", "<tool_call>"):
        env = make(reward="process")
        assert play(env, PUT, turn, TAKE, turn) == (1.0, None), turn
        assert env.transitions[1].parsed.calls[0].name == "user"
        env.reset(options={"task_index": 0})
        assert [message.role for message in env.step(turn)[4]["new_messages"]] == ["assistant", "user"]
    env = make(reward="process")
    mixed = f"{env.parser.format_calls(PUT)}\n{malformed}"
    assert play(env, mixed, "Done.", TAKE, "Done.") == (pytest.approx(0.9), None)


def test_a_request_may_take_twenty_turns_of_calls(data: Path) -> None:
    env = make()
    look = ToolCall("look", {})
    assert play(env, *[look] * 19, PUT, "Done.", *[look] * 19, TAKE, "Done.") == (1.0, None)
    assert play(env, *[ToolCall("no_such", {})] * 20, PUT) == (0.0, "multi_turn:force_terminated")
    assert env.transitions[-1].terminated
    assert play(env, PUT, "Done.", TAKE, *[look] * 20) == (0.0, "multi_turn:force_terminated")


def test_the_user_is_not_a_function(data: Path) -> None:
    env, call = make(), ToolCall("user", {"text": "Done."})
    assert play(env, PUT, (call,) * 4, "Done.", TAKE, "Done.") == (1.0, None)
    assert {outcome.error for outcome in env.transitions[1].outcomes} == {"unknown_tool"}
    assert play(env, PUT, call, TAKE, call) == (0.0, "multi_turn:force_terminated")


def test_a_function_that_is_held_back_is_listed_by_a_later_request(data: Path) -> None:
    env = make("multi_turn_miss_func")
    text, _ = env.reset(options={"task_index": 0})
    assert '"name": "put"' in text and '"name": "take"' not in text
    message = env.step("I have no function for that.")[4]["new_messages"][-1]
    assert message.role == "user"
    assert '"name": "take"' in message.content and "updated some more functions" in message.content
    described = next(tool.description for tool in env.episode_tools if tool.name == "take")
    assert described.endswith('schema: {"type": "dict", "properties": {"taken": {}}}')
    assert json.dumps(described) in message.content  # as the system turn describes the others
    assert play(env, "I have none.", TAKE, "Done.") == (1.0, None)
    # As officially, it can be called before; the state then is right too.
    assert play(env, TAKE, "Done.", "Done.") == (0.0, "multi_turn:empty_turn_model_response")


def test_a_snapshot_contains_apis_and_request(data: Path) -> None:
    env = make()
    env.reset(options={"task_index": 0})
    for turn in (env.parser.format_turn(PUT), "Done."):
        env.step(turn)
    state = env.get_state()
    for _ in range(2):
        env.set_state(state)
        env.step(env.parser.format_call(TAKE))
        _, reward, terminated, _, _ = env.step("Done.")
        assert (reward, terminated) == (1.0, True)
    ended = env.get_state()
    env.reset()
    env.set_state(env.get_state())  # before the first call
    env.step(env.parser.format_call(TAKE))
    env.set_state(ended)
    assert env.transitions[-1].terminated


def test_it_keeps_the_contract(data: Path) -> None:
    check_tool_env(make(reward="process"))
    check_tool_env(make("multi_turn_miss_func", parser="openai"))


def test_both_categories_of_a_scenario_are_in_one_split(data: Path) -> None:
    env = make(["multi_turn_base", "multi_turn_miss_func"])
    assert [len(env.tasks.part(split)) for split in env.tasks.splits] == [2]


def test_what_cannot_be_played_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="mixes single-turn and multi-turn"):
        make(["multiple", "multi_turn_base"])
    with pytest.raises(DatasetError, match="sample has no rows of multi_turn_base"):
        make(dataset="sample")
    with pytest.raises(DatasetError, match="no rows of multi_turn_miss_param"):
        make("multi_turn_miss_param")
    for change, gold, message in (
        ({"involved_classes": ["Garden"]}, BASE_GOLD, "APIs with documentation"),
        ({"question": []}, BASE_GOLD, "a list of requests"),
        ({}, BASE_GOLD[:1], "gold calls for each of 2 requests"),
        ({}, [["put(1 + x)"], []], "cannot be read"),
        ({}, [["unknown()"], []], "cannot be read"),
        ({"missed_function": {"1": ["absent"]}}, BASE_GOLD, "cannot be read"),
    ):
        write(data, "multi_turn_base", {**BASE, **change}, gold)
        with pytest.raises(DatasetError, match=message):
            make()
    copy = data.parents[1] / "copy"
    data.rename(copy)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path != str(data.parents[1])])
    forget_package()
    with pytest.raises(MissingDependencyError, match="pip install bfcl-eval"):
        make(dataset=copy)
