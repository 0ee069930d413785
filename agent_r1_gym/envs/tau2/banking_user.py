"""What a scripted customer of the bank does by itself: it acts when the agent has said what the scenario waits for.

Models that play a user read "apply for the card that the agent recommends" and do so. A script knows from the gold
actions what it will do in the end, and does it once a message names the card, the account or the operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.tau2.banking_customer import CARD_TYPES
from agent_r1_gym.support.json_data import parse_json

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import Tau2Task

Act = Callable[[str, Mapping[str, Any]], str]
DEMAND = "Please transfer me to a human agent."
"""What a customer says with each request for a human agent."""


def act_on(task: Tau2Task, message: str, spoken: str, act: Act, *, is_closing: bool) -> list[str]:
    """Do what a message makes possible; the replies, [] if it is nothing.

    Args:
        task: the task; its gold actions are what the customer will do.
        message: what the agent wrote.
        spoken: everything that the customer has said.
        act: carries out the customer's operations.
        is_closing: whether the agent asks for further wishes.
    """
    if "apply_for_credit_card" not in task.world.operations.user_tools:
        return []
    calls = [action.call for action in task.actions or () if action.by_user]
    replies = [reply for call in calls if (reply := _act(call, message, spoken, act))]
    return replies or list(_demand(task, spoken, act, is_closing=is_closing))


def _act(call: ToolCall, message: str, spoken: str, act: Act) -> str:
    """The reply to a message that asks for a gold action of the customer, "" if it does not."""
    arguments = call.arguments
    if call.name == "apply_for_credit_card":
        card = str(arguments.get("card_type"))
        done = f"I have applied for the {card}."
        if done in spoken or _named_cards(message) != {card}:
            return ""
        return f"{done} {act(call.name, arguments)}"
    if call.name == "submit_referral":
        account = str(arguments.get("account_type"))
        if f"- Account Type: {account}\n" in spoken or account.removesuffix(" Account") not in message:
            return ""
        return act(call.name, arguments) if re.search("refer", message, re.IGNORECASE) else ""
    if call.name == "submit_transaction":
        amount, card = f"{arguments.get('amount'):g}", str(arguments.get("credit_card_type"))
        is_named = card in message and amount in message.replace(",", "")
        return act(call.name, arguments) if is_named and "Transaction submitted" not in spoken else ""
    if call.name == "call_discoverable_user_tool":
        return _use_given(call, message, spoken, act)
    return ""


def _use_given(call: ToolCall, message: str, spoken: str, act: Act) -> str:
    """Use an operation that the agent has handed over and names, on an object that it names."""
    name = str(call.arguments.get("discoverable_tool_name"))
    if name not in message:
        return ""
    try:
        arguments = parse_json(str(call.arguments.get("arguments", "{}")))
    except ValueError:
        return ""
    values = [str(value) for value in arguments.values()] if isinstance(arguments, dict) else []
    objects = [value for value in values if value.startswith(("txn_", "cc_", "btxn_"))]
    if not all(value in message for value in objects) or (f"Executed: {name}" in spoken and not objects):
        return ""
    if objects and any(f'"{value}"' in spoken for value in objects):
        return ""
    return act(call.name, call.arguments)


def _named_cards(message: str) -> set[str]:
    """The types of cards that a message names; "Business Gold Rewards Card" does not name the Gold one."""
    named, rest = set(), message
    for card in sorted(CARD_TYPES, key=len, reverse=True):
        if card in rest:
            named.add(card)
            rest = rest.replace(card, "")
    return named


def _demand(task: Tau2Task, spoken: str, act: Act, *, is_closing: bool) -> Iterator[str]:
    """Request a human agent, as often as the scenario wants it: at the start of the conversation, and at its end."""
    name = "request_human_agent_transfer"
    gold = [action.call.name for action in task.actions or ()]
    at_start = next((number for number, other in enumerate(gold) if other != name), len(gold))
    if spoken.count(DEMAND) < (gold.count(name) if is_closing else at_start):
        act(name, {})
        yield DEMAND
