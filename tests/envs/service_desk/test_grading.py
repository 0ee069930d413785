"""AgentR1/ServiceDesk-v0 is graded by the state: what may change, what must, and in what order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.service_desk.env import ServiceDeskEnv
from agent_r1_gym.envs.service_desk.policy import Verdict
from agent_r1_gym.envs.service_desk.world import Ticket, closing_call, world_of
from tests.kit.environments import changed_plan, infos_of, other_order, play_ticket, tickets


def test_reads_checks_and_notes_never_count() -> None:
    env = ServiceDeskEnv()
    for index, ticket in list(tickets(env))[:20]:
        own = ticket.scenario.ticket
        more = [
            *(ToolCall("get_ticket", {}), ToolCall("list_staff", {}), ToolCall("list_checks", {})),
            *(ToolCall("get_customer", {"customer": ticket.scenario.customer}), ToolCall("find_items", {"name": "k"})),
            *(
                ToolCall("list_orders", {"customer": ticket.scenario.customer}),
                ToolCall("get_order", {"order": "nope"}),
            ),
            *(ToolCall("ask_customer", {"slot": "cause"}), ToolCall("add_note", {"ticket": own, "text": "looked"})),
        ]
        assert play_ticket(env, index, [*more, *ticket.plan])[0] == 1.0


EXTRA = {
    "a voucher": lambda ticket: ToolCall("issue_voucher", {"customer": ticket.scenario.customer, "amount": 5}),
    "another tier": lambda ticket: ToolCall(
        "set_tier", {"customer": ticket.scenario.customer, "tier": "silver" if tier(ticket) != "silver" else "gold"}
    ),
    "a delivery of goods": lambda ticket: ToolCall("restock_item", {"item": first(ticket, "items"), "count": 1}),
    "another customer's order": lambda ticket: ToolCall("refund_order", {"order": other_order(ticket), "amount": 10}),
    "another address": lambda ticket: ToolCall("change_address", {"order": other_order(ticket), "address": "here"}),
    "an assignment": lambda ticket: ToolCall("assign_ticket", {"ticket": ticket.scenario.ticket, "staff": "S1"}),
    "a note on another ticket": lambda ticket: ToolCall(
        "add_note", {"ticket": "T1" if ticket.scenario.ticket != "T1" else "T2", "text": "hello"}
    ),
}


def tier(ticket: Ticket) -> str:
    return str(world_of(ticket.scenario.key).template.rows["customers"][ticket.scenario.customer][3])


def first(ticket: Ticket, table: str) -> str:
    return str(next(iter(world_of(ticket.scenario.key).template.rows[table])))


@pytest.mark.parametrize("extra", EXTRA)
def test_an_extra_write_fails(extra: str) -> None:
    env = ServiceDeskEnv(reward="process")
    samples = [entry for kind in ("granted", "refused") for entry in list(tickets(env, decision=kind))[:6]]
    for index, ticket in samples:
        calls = [*ticket.plan[:-1], EXTRA[extra](ticket), ticket.plan[-1]]
        outcome, info = play_ticket(env, index, calls)
        assert info["end_reason"] == "goal"
        assert outcome == 0.0
        penalties = [info["reward_terms"]["forbidden_write"] for info in infos_of(env, index, calls)]
        assert sum(penalties) == (extra != "a note on another ticket")


@pytest.mark.parametrize("request_kind", ["refund", "exchange", "cancel", "address", "voucher"])
def test_a_missing_write_fails_and_so_does_a_second_one(request_kind: str) -> None:
    env = ServiceDeskEnv(reward="process")
    for index, ticket in list(tickets(env, decision="granted", request=request_kind))[:8]:
        write = ticket.gold.writes[0]
        assert play_ticket(env, index, ticket.plan)[0] == 1.0
        assert play_ticket(env, index, [call for call in ticket.plan if call != write])[0] == 0.0
        twice = [copy for call in ticket.plan for copy in ([call, call] if call == write else [call])]
        # The desk refuses a second refund or cancellation, and the same address again is not a change.
        harmless = request_kind in ("refund", "cancel", "address")
        assert play_ticket(env, index, twice)[0] == float(harmless)
        refused = request_kind in ("refund", "cancel")
        terms = [info["reward_terms"]["forbidden_write"] for info in infos_of(env, index, twice)]
        assert sum(terms) == (not refused)


@pytest.mark.parametrize(("request_kind", "write"), [("refund", "refund_order"), ("voucher", "issue_voucher")])
def test_a_wrong_amount_fails_paid_or_reported(request_kind: str, write: str) -> None:
    env = ServiceDeskEnv()
    for index, ticket in list(tickets(env, decision="granted", request=request_kind))[:8]:
        amount = ticket.gold.verdict.amount
        for wrong in (amount + 1, amount - 0.01):
            assert play_ticket(env, index, changed_plan(ticket, {"amount": wrong}, write))[0] == 0.0
            assert play_ticket(env, index, changed_plan(ticket, {"amount": wrong}, "close_ticket"))[0] == 0.0
        same = [
            ToolCall(c.name, {**c.arguments, "amount": float(amount)}) if "amount" in c.arguments else c
            for c in ticket.plan
        ]
        assert play_ticket(env, index, same)[0] == 1.0  # 25.0 is 25


@pytest.mark.parametrize(
    ("request_kind", "write"),
    [
        *(("refund", "refund_order"), ("exchange", "exchange_order"), ("cancel", "cancel_order")),
        ("address", "change_address"),
    ],
)
def test_another_customer_s_order_fails(request_kind: str, write: str) -> None:
    env = ServiceDeskEnv()
    for index, ticket in list(tickets(env, decision="granted", request=request_kind))[:8]:
        assert play_ticket(env, index, changed_plan(ticket, {"order": other_order(ticket)}, write))[0] == 0.0


def test_another_customer_s_voucher_another_item_and_another_address_fail() -> None:
    env = ServiceDeskEnv()
    wrong = {
        "voucher": lambda ticket: (
            "issue_voucher",
            {"customer": others(ticket, "customers", ticket.scenario.customer)},
        ),
        "exchange": lambda t: ("exchange_order", {"item": others(t, "items", t.gold.writes[0].arguments["item"])}),
        "address": lambda ticket: ("change_address", {"address": "1 Mill Street, Nowhere"}),
    }
    for request, change in wrong.items():
        for index, ticket in list(tickets(env, decision="granted", request=request))[:8]:
            name, arguments = change(ticket)
            assert play_ticket(env, index, changed_plan(ticket, arguments, name))[0] == 0.0


def others(ticket: Ticket, table: str, own: str) -> str:
    return next(key for key in world_of(ticket.scenario.key).template.rows[table] if key != own)


@pytest.mark.parametrize("decision", ["granted", "refused", "escalated"])
def test_every_other_decision_and_reason_fails(decision: str) -> None:
    env = ServiceDeskEnv()
    index, ticket = next(tickets(env, decision=decision))
    close = next(tool for tool in env.tools if tool.name == "close_ticket")
    properties: Any = close.parameters["properties"]
    right = []
    for reported in properties["decision"]["enum"]:
        for reason in properties["reason"]["enum"]:
            call = closing_call(Verdict(reported, reason, ticket.gold.verdict.amount))
            if play_ticket(env, index, [*ticket.plan[:-1], call])[0]:
                right.append((reported, reason))
    assert right == [tuple(ticket.gold.verdict[:2])]


def test_a_change_before_the_identity_is_verified_fails() -> None:
    env = ServiceDeskEnv(reward="process")
    count = 0
    for index, ticket in list(tickets(env, decision="granted"))[:40]:
        if not ticket.gold.identity:
            continue
        count += 1
        write = ticket.gold.writes[0]
        rest = [call for call in ticket.plan if call != write]
        never = [call for call in ticket.plan if call.name != "verify_identity"]
        for calls in (never, [write, *rest]):
            outcome, _ = play_ticket(env, index, calls)
            assert outcome == 0.0
            terms = Counter()  # type: ignore[var-annotated]
            for info in infos_of(env, index, calls):
                terms.update(info["reward_terms"])
            assert terms["forbidden_write"] == 1 and terms["correct_write"] == 0
    assert count > 5


def test_another_customer_s_code_verifies_no_one() -> None:
    env = ServiceDeskEnv()
    for index, ticket in list(tickets(env, decision="granted"))[:30]:
        if ticket.gold.identity:
            rows = world_of(ticket.scenario.key).template.rows["customers"].values()
            row = next(row for row in rows if row[0] != ticket.scenario.customer)
            calls = [call for call in ticket.plan if call.name != "verify_identity"]
            stolen = ToolCall("verify_identity", {"customer": row[0], "code": row[2]})
            assert play_ticket(env, index, [stolen, *calls])[0] == 0.0


def test_a_clerk_who_grants_to_an_impostor_fails() -> None:
    env = ServiceDeskEnv()
    impostors = [entry for entry in tickets(env) if entry[1].gold.verdict.reason == "identity"]
    assert len(impostors) > 20
    for _, ticket in impostors:
        assert ticket.gold.writes == () and ticket.gold.identity


@pytest.mark.parametrize("request_kind", ["refund", "cancel", "voucher"])
def test_process_terms_pay_the_right_steps_once(request_kind: str) -> None:
    env = ServiceDeskEnv(reward="process")
    for index, ticket in list(tickets(env, decision="granted", request=request_kind))[:6]:
        rows = infos_of(env, index, ticket.plan)
        sums = Counter()  # type: ignore[var-annotated]
        for info in rows:
            sums.update(info["reward_terms"])
        assert sums["verified"] == float(ticket.gold.identity)
        assert sums["correct_write"] == 1 and sums["solved"] == 1
        assert sums["forbidden_write"] == sums["malformed_call"] == 0


def test_a_change_before_the_check_in_one_turn_is_forbidden() -> None:
    env = ServiceDeskEnv(reward="process")
    index, ticket = next((index, ticket) for index, ticket in tickets(env, decision="granted") if ticket.gold.identity)
    check = next(call for call in reversed(ticket.plan) if call.name == "verify_identity")
    write = ticket.gold.writes[0]
    terms = {}
    for order in ((write, check), (check, write)):
        env.reset(options={"task_index": index})
        terms[order[0].name] = env.step("".join(map(env.parser.format_call, order)))[4]["reward_terms"]
    late, right = terms[write.name], terms["verify_identity"]
    assert (late["correct_write"], late["forbidden_write"], late["verified"]) == (0.0, 1.0, 1.0)
    assert (right["correct_write"], right["forbidden_write"], right["verified"]) == (1.0, 0.0, 1.0)


def test_an_amount_that_rounds_to_nothing_is_refused() -> None:
    env = ServiceDeskEnv()
    _, ticket = next(tickets(env))
    for amount in (0.001, 0.004, 0.0, 1e-300):
        (info,) = infos_of(
            env, 0, [ToolCall("issue_voucher", {"customer": ticket.scenario.customer, "amount": amount})]
        )
        assert info["tool_outcomes"][0].content.startswith("HTTP 422")


def test_nothing_can_be_changed_after_the_ticket_is_closed_in_the_same_turn() -> None:
    env = ServiceDeskEnv()
    index, ticket = next(tickets(env, decision="refused"))
    env.reset(options={"task_index": index})
    for call in ticket.plan[:-1]:
        env.step(env.parser.format_call(call))
    voucher = ToolCall("issue_voucher", {"customer": ticket.scenario.customer, "amount": 100})
    both = env.parser.format_call(ticket.plan[-1]) + env.parser.format_call(voucher)
    _, reward, terminated, _, info = env.step(both)
    assert (reward, terminated) == (1.0, True)
    assert info["tool_outcomes"][1].content == 'HTTP 409: {"error":"the ticket is closed"}'


def test_codes_cannot_be_tried_out() -> None:
    env = ServiceDeskEnv()
    index, ticket = next(entry for entry in tickets(env) if entry[1].gold.verdict.reason == "identity")
    env.reset(options={"task_index": index})
    tries = [ToolCall("verify_identity", {"customer": ticket.scenario.customer, "code": f"K000{n}"}) for n in range(10)]
    info = env.step("".join(map(env.parser.format_call, tries)))[4]
    assert [outcome.ok for outcome in info["tool_outcomes"]] == [True] * 3 + [False] * 7


def test_an_answer_leaves_the_ticket_open() -> None:
    env = ServiceDeskEnv()
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("<answer>granted</answer>")
    assert (reward, terminated, info["end_reason"]) == (0.0, True, "answer")
    assert env.success(env.task, env.transitions) == 0.0
