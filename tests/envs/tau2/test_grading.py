"""The graders: pure functions, with literals by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.envs.tau2.database import Database, differences
from agent_r1_gym.envs.tau2.grading import Verdict, grade, has_actions, is_communicated, is_open
from agent_r1_gym.envs.tau2.tasks import EnvAssertion, GoldAction, Tau2Task, World, _make_world, open_world

CANCEL = ToolCall("cancel_pending_order", {"order_id": "#W1000001", "reason": "no longer needed"})
OTHER = ToolCall("cancel_pending_order", {"order_id": "#W1000003", "reason": "no longer needed"})


def task(**changes: Any) -> Tau2Task:
    """The first task of the sample, which cancels an order, with changes; its gold is computed anew."""
    world = open_world("retail", "sample")
    return replace(world.part("base")[0][0], **{"id": repr(sorted(changes)), **changes})


def after(*calls: ToolCall, of: Tau2Task) -> dict[str, Any]:
    """The changed rows after calls."""
    database = of.open_database()
    for call in calls:
        of.world.operations(database).call(call.name, dict(call.arguments))
    return database.changes


class TestDatabase:
    @pytest.mark.parametrize(
        ("calls", "failures"),
        [
            ((CANCEL,), ()),
            ((), ("missing_write",)),
            ((OTHER,), ("missing_write", "extra_write")),
            ((CANCEL, OTHER), ("extra_write",)),
            (
                (replace(CANCEL, arguments={**dict(CANCEL.arguments), "reason": "ordered by mistake"}),),
                ("wrong_write",),
            ),
        ],
    )
    def test_kinds_of_wrong_writes(self, calls: tuple[ToolCall, ...], failures: tuple[str, ...]) -> None:
        verdict = grade(task(), after(*calls, of=task()), calls, [])
        assert (verdict.reward, verdict.failures) == (float(not failures), failures)
        assert verdict.checks["DB"] == (not failures)

    def test_the_way_does_not_count(self) -> None:
        address = {"address1": "1 Rd", "address2": "", "city": "X", "state": "NY", "country": "USA", "zip": "1"}
        there = ToolCall("modify_pending_order_address", {"order_id": "#W1000003", **address})
        row = open_world("retail", "sample").tables["orders"]["#W1000003"]
        back = ToolCall("modify_pending_order_address", {"order_id": "#W1000003", **row["address"]})
        assert grade(task(), after(there, CANCEL, back, of=task()), (), []).reward == 1.0

    def test_rows_are_compared_as_json(self) -> None:
        base = {"t": {"a": {"n": 1, "m": [1, 2]}}}
        for row, equal in (
            ({"m": [1, 2], "n": 1}, True),
            ({"n": 1.0, "m": [1, 2]}, False),
            ({"n": 1, "m": [2, 1]}, False),
            ({"n": True, "m": [1, 2]}, False),
        ):
            assert (not differences(base, {"t": {"a": row}}, {})) == equal

    def test_a_task_without_gold_actions_and_assertions_passes_with_any_database(self) -> None:
        free = task(actions=None)
        assert grade(free, after(CANCEL, of=free), (), []).reward == 1.0

    def test_a_gold_action_that_fails_changes_nothing(self) -> None:
        lookup = GoldAction(ToolCall("get_user_details", {"user_id": "nobody"}))
        failing = task(actions=(lookup,))
        assert grade(failing, {}, (), []) == Verdict(1.0, grade(failing, {}, (), []).checks)


class TestActions:
    ACTION = GoldAction(CANCEL)

    @pytest.mark.parametrize(
        ("compared", "call", "equal"),
        [
            (None, CANCEL, True),
            (None, OTHER, False),
            (None, ToolCall("cancel_pending_order", {"order_id": "#W1000001"}), True),  # the call names what counts
            (("reason",), OTHER, True),
            (("order_id",), OTHER, False),
            ((), ToolCall("cancel_pending_order", {}), True),
            ((), ToolCall("get_user_details", {}), False),
        ],
    )
    def test_arguments_that_count(self, compared: Any, call: ToolCall, equal: bool) -> None:
        assert has_actions([OTHER, call][1:], [GoldAction(CANCEL, compared=compared)]) == equal

    def test_order_and_number_do_not_count(self) -> None:
        assert has_actions([OTHER, CANCEL, CANCEL], [self.ACTION, GoldAction(OTHER)])
        assert not has_actions([], [self.ACTION])
        assert has_actions([], [])

    def test_calls_of_the_conversation_before_count(self) -> None:
        continued = task(reward_basis=("ACTION",), earlier_calls=(CANCEL,))
        actions = continued.actions or ()
        assert grade(replace(continued, actions=actions[-1:]), {}, (), []).reward == 1.0


@pytest.mark.parametrize(
    ("text", "message", "expected"),
    [("1628", "It costs $1,628.", True), ("1,628", "1,628", False), ("Camera", "the CAMERA", True), ("10", "", False)],
)
def test_what_counts_as_communicated(text: str, message: str, expected: bool) -> None:
    assert is_communicated(text, ["Hello", message]) == expected


class TestProduct:
    def test_only_the_checks_of_the_basis_count(self) -> None:
        ungraded = task(communicate_info=("42",), reward_basis=("DB",))
        changes = after(CANCEL, of=ungraded)
        assert grade(ungraded, changes, (), []).reward == 1.0
        graded = replace(ungraded, reward_basis=("DB", "COMMUNICATE"))
        assert grade(graded, changes, (), []).failures == ("not_communicated",)
        assert grade(graded, changes, (), ["It is 42."]).reward == 1.0
        assert grade(graded, {}, (), ["It is 4."]).failures == ("missing_write", "not_communicated")

    def test_what_the_agent_said_in_the_conversation_before_counts(self) -> None:
        said = (Message("user", "Is it 42?"), Message("assistant", "It is 1,628."))
        continued = task(communicate_info=("1628",), reward_basis=("COMMUNICATE",), history=said)
        assert grade(continued, {}, (), []).reward == 1.0
        assert grade(replace(continued, communicate_info=("42",)), {}, (), []).reward == 0.0

    def test_a_conversation_that_the_user_did_not_end_earns_nothing(self) -> None:
        assert grade(task(), None, (CANCEL,), []) == Verdict(0.0, {}, ("unfinished",))
        assert grade(task(is_graded=False), None, (), []).reward == 0.0
        assert grade(task(is_graded=False), {}, (), []).reward == 1.0

    def test_statements_count_where_a_judge_decides(self) -> None:
        stated = task(nl_assertions=("It was said.",), reward_basis=("DB", "NL_ASSERTION"))
        changes = after(CANCEL, of=stated)
        assert "NL_ASSERTION" not in grade(stated, changes, (), []).checks
        assert grade(stated, changes, (), [], statements=[True]).reward == 1.0
        verdict = grade(stated, changes, (), [], statements=[True, False])
        assert (verdict.reward, verdict.failures) == (0.0, ("false_statement",))

    def test_a_task_is_open_until_each_value_that_has_to_change_did(self) -> None:
        asked = task()
        assert is_open(asked, {}) is True
        assert is_open(asked, after(CANCEL, of=asked)) is False
        (table, rows) = next(iter(after(CANCEL, of=asked).items()))
        (key,) = rows
        row = Database(asked.world.tables).find(table, key)
        assert row is not None
        half = {**row, "status": rows[key]["status"]}  # of several values that the order gets
        assert half != rows[key]
        assert is_open(asked, {table: {key: half}}) is True
        assert is_open(task(reward_basis=("ACTION",)), {}) is None


class TestAssertions:
    @staticmethod
    def world() -> World:
        row = {"id": "0", "user_scenario": {"instructions": "You want a task."}, "evaluation_criteria": {}}
        users = {"user_1": {"user_id": "user_1", "name": "First", "tasks": []}}
        data = {"db": {"tasks": {}, "users": users}, "user_db": {"notifications": {}}}
        kind: Any = None
        return _make_world("mock", data, policies={"policy": ""}, tasks=[row], splits={}, source="here", reopen=kind)

    @pytest.mark.parametrize(
        ("name", "arguments", "expected", "holds"),
        [
            ("assert_number_of_tasks", {"user_id": "user_1", "expected_number": 1}, True, True),
            ("assert_number_of_tasks", {"user_id": "user_1", "expected_number": 0}, True, False),
            ("assert_number_of_tasks", {"user_id": "user_1", "expected_number": 0}, False, True),
            ("assert_task_status", {"task_id": "task_1", "expected_status": "pending"}, True, True),
            ("assert_task_status", {"task_id": "task_9", "expected_status": "pending"}, True, False),
        ],
    )
    def test_conditions_on_the_final_database(
        self, name: str, arguments: dict[str, Any], expected: bool, holds: bool
    ) -> None:
        world = self.world()
        (template,) = world.part(None)[0]
        made = replace(
            template,
            env_assertions=(EnvAssertion(name, arguments, expected),),
            reward_basis=("ENV_ASSERTION",),
        )
        database = Database(world.tables)
        world.operations(database).call("create_task", {"user_id": "user_1", "title": "New"})
        verdict = grade(made, database.changes, (), [])
        assert (verdict.reward, verdict.failures) == (float(holds), () if holds else ("failed_assertion",))
