"""A ticket: what is asked, what the customer says, what goes wrong on the way, and the gold that follows from it all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agent_r1_gym.datasets.service_desk.company import Change
from agent_r1_gym.datasets.service_desk.policy import IDENTITY, NO_REASON, Section, Verdict
from agent_r1_gym.types import Task, ToolCall

SLOTS = ("order", "code", "cause", "item", "address")
"""What a customer can be asked for."""


class WorldKey(NamedTuple):
    """What a world follows from: style, seed, split, difficulty, and its number among those of the split."""

    style: str
    seed: int
    split: str
    difficulty: int
    number: int

    def __str__(self) -> str:
        return "/".join(map(str, self))


@dataclass(frozen=True, slots=True)
class Scene:
    """What the tools of an episode know: the world and the customer, nothing of gold.

    Attributes:
        key: of the world.
        ticket: id of the ticket.
        customer: id of its customer.
        answers: what the customer says when asked for a slot, the first time, the second time ...; then the last again.
        faults: HTTP status that a call fails with upstream, by its number in the episode from 1.
        stale: order that is first shown as it was a day ago, "" for none.
        clock: seed of latencies.
    """

    key: WorldKey
    ticket: str
    customer: str
    answers: Mapping[str, tuple[str, ...]]
    faults: Mapping[int, int]
    stale: str
    clock: int


@dataclass(frozen=True, slots=True)
class Gold:
    """What an episode must come to; planned from the policy's predicate.

    Attributes:
        verdict: decision, reason and amount, as the closing call must tell them.
        changes: exactly what must differ in the database, apart from checks and notes on the own ticket.
        writes: the calls that bring these changes about.
        identity: whether the customer's code must be verified before anything is changed.
    """

    verdict: Verdict
    changes: tuple[Change, ...]
    writes: tuple[ToolCall, ...]
    identity: bool


@dataclass(frozen=True, slots=True)
class Ticket(Task):
    """A ticket as a task.

    Attributes:
        scene: what the tools may know.
        gold: what the episode must come to.
        plan: the calls of a perfect clerk, those that fail by a fault not counted; the last one closes the ticket.
    """

    scene: Scene = field(kw_only=True)
    gold: Gold = field(kw_only=True)
    plan: tuple[ToolCall, ...] = field(kw_only=True, default=())


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a ticket, as the database has it; the planner works on nothing else.

    Attributes:
        section: the policy's rules for it.
        customer, order, item: ids; `item` is the one that was bought.
        wish: the item (id) or address that the customer wants in the end, "" if none.
        stock: how many of the wanted item there are.
        verified: whether the customer can say the code, at the latest when asked twice.
        verdict: what the policy says.
        manager: id of the clerk to escalate to, "" where nobody is named.
    """

    section: Section
    customer: str
    order: str
    item: str
    wish: str
    stock: int
    verified: bool
    verdict: Verdict
    manager: str


def verdict_of(section: Section, case: Mapping[str, Any], *, verified: bool) -> Verdict:
    """Returns what the policy says of a case whose customer can say the code, or cannot."""
    if section.identity and not verified:
        return Verdict("refused", IDENTITY, 0)
    return section.decide(case)


def gold_of(facts: Facts, ticket: str) -> Gold:
    """Returns the gold of a ticket: the changes and the calls that its verdict asks for."""
    order, amount = facts.order, facts.verdict.amount
    changes: tuple[Change, ...] = ()
    write: tuple[str, dict[str, Any]] | None = None
    if facts.verdict.decision == "escalated" and facts.manager:
        write = ("assign_ticket", {"ticket": ticket, "staff": facts.manager})
        changes = (("tickets", ticket, "assigned", facts.manager),)
    elif facts.verdict.decision == "granted":
        request = facts.section.request
        if request == "refund":
            write = ("refund_order", {"order": order, "amount": amount})
            changes = (("orders", order, "state", "returned"), ("orders", order, "refunded", amount))
        elif request == "exchange":
            write = ("exchange_order", {"order": order, "item": facts.wish})
            changes = (("items", facts.wish, "stock", facts.stock - 1), ("orders", order, "item", facts.wish))
        elif request == "cancel":
            write = ("cancel_order", {"order": order})
            changes = (("orders", order, "state", "cancelled"),)
        elif request == "address":
            write = ("change_address", {"order": order, "address": facts.wish})
            changes = (("orders", order, "address", facts.wish),)
        else:
            write = ("issue_voucher", {"customer": facts.customer, "amount": amount})
            changes = (("vouchers", "+", "", (facts.customer, amount)),)
    writes = (ToolCall(*write),) if write is not None else ()
    return Gold(facts.verdict, changes, writes, facts.section.identity)


def closing_call(verdict: Verdict) -> ToolCall:
    """Returns the call that closes a ticket with a verdict; slots that say nothing are left out."""
    arguments: dict[str, Any] = {"decision": verdict.decision}
    if verdict.reason != NO_REASON:
        arguments["reason"] = verdict.reason
    if verdict.amount:
        arguments["amount"] = verdict.amount
    return ToolCall("close_ticket", arguments)


_FROM_CUSTOMER = frozenset({"tier", "refunds", "vouchers", "debt"})
_FROM_ORDER = frozenset({"days", "price", "sale", "state", "delay"})


def reads_for(facts: Facts, told: Sequence[str]) -> list[ToolCall]:
    """Returns the calls that bring what the section asks for.

    Args:
        facts: of the ticket.
        told: slots that the ticket's text already tells.
    """
    needed = facts.section.facts
    calls = []
    if "cause" in needed and "cause" not in told:
        calls.append(ToolCall("ask_customer", {"slot": "cause"}))
    if _FROM_ORDER & set(needed) or "category" in needed:
        calls.append(ToolCall("get_order", {"order": facts.order}))
    if _FROM_CUSTOMER & set(needed):
        calls.append(ToolCall("get_customer", {"customer": facts.customer}))
    if "category" in needed:
        calls.append(ToolCall("get_item", {"item": facts.item}))
    return calls
