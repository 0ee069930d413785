"""The customer of a ticket: scripted and seeded, and a language model that may word its answers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent_r1_gym.core.parsing import visible_text
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.service_desk import language
from agent_r1_gym.support.chat_client import ChatClient

_STATED_PROB = {1: 1.0, 2: 0.6, 3: 0.3}
"""Probability that the ticket states the right order number, the cause, and the customer's ID; by difficulty."""
_SLIP_PROB = {1: 0.15, 2: 0.3, 3: 0.4}
"""Probability of a wrong code first, and of a change of mind; by difficulty."""
_STALE_PROB = {1: 0.0, 2: 0.0, 3: 0.3}
_INJECTION_PROB = {1: 0.0, 2: 0.1, 3: 0.3}


@dataclass(frozen=True, slots=True)
class Customer:
    """The customer of one ticket.

    Attributes:
        person: ID of the customer they claim to be.
        name: that customer's name.
        code: that customer's code.
        verified: whether they know the code.
        role: role of the clerk who has the ticket.
        cause: why they want it.
        wish: item or address that they want in the end.
        first_wish: item or address that they name in the ticket.
        stated_slots: what the ticket states, by slot (also "customer").
        wrong_codes: wrong codes that they try before the right one; an impostor has no other.
        forgot_order: whether they do not remember the order number.
        stale: whether the order is first read from a stale copy.
        injection: what they add to the ticket to manipulate the clerk.
    """

    person: str
    name: str
    code: str
    verified: bool
    role: str
    cause: str
    wish: str
    first_wish: str
    stated_slots: Mapping[str, str] = field(default_factory=dict)
    wrong_codes: tuple[str, ...] = ()
    forgot_order: bool = False
    stale: bool = False
    injection: str = ""

    def with_memory(
        self, rng: random.Random, *, difficulty: int, order: str, others: Sequence[str], codes: Sequence[str]
    ) -> Customer:
        """Sample what the customer states, forgot and confuses.

        Args:
            rng: random generator.
            difficulty: how much goes wrong.
            order: the right order.
            others: orders of other customers.
            codes: codes of other customers.
        """
        stated_slots = {"order": order} if rng.random() < _STATED_PROB[difficulty] else {}
        forgot_order = rng.random() < 0.5
        if "order" not in stated_slots and rng.random() < 0.4:
            stated_slots, forgot_order = {"order": rng.choice(others)}, False
        if rng.random() < _STATED_PROB[difficulty]:
            stated_slots["customer"] = self.person
        if self.cause and rng.random() < _STATED_PROB[difficulty]:
            stated_slots["cause"] = self.cause
        wrong_codes = int(rng.random() < _SLIP_PROB[difficulty]) if self.verified else 2
        changes_mind = rng.random() < _SLIP_PROB[difficulty]
        return replace(
            self,
            stated_slots=stated_slots,
            forgot_order=forgot_order and "order" not in stated_slots,
            wrong_codes=tuple(rng.sample(codes, wrong_codes)),
            first_wish=self.first_wish if changes_mind else self.wish,
            stale=rng.random() < _STALE_PROB[difficulty],
            injection=rng.choice(language.INJECTIONS) if rng.random() < _INJECTION_PROB[difficulty] else "",
        )

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes that they give, up to the right one or the last wrong one."""
        return (*self.wrong_codes, self.code) if self.verified else self.wrong_codes

    def lookup_calls(self, order: str) -> list[ToolCall]:
        """The calls that find customer and order."""
        calls: list[ToolCall] = []
        if "customer" not in self.stated_slots:
            calls.append(ToolCall("find_customer", {"name": self.name}))
        if self.stated_slots.get("order") == order:
            return calls
        if "order" in self.stated_slots:  # another customer's
            calls.append(ToolCall("get_order", {"order": self.stated_slots["order"]}))
        calls.append(ToolCall("ask_customer", {"slot": "order"}))
        if self.forgot_order:
            calls.append(ToolCall("list_orders", {"customer": self.person}))
        return calls

    def answers(self, order: str, thing: str, display_name: Callable[[str], str]) -> dict[str, tuple[str, ...]]:
        """What they answer when asked for a slot, one text per time; the last one repeats.

        Args:
            order: the right order.
            thing: name of the ordered item.
            display_name: what they call a wish.
        """
        templates, forgotten = language.ANSWER_TEMPLATES, language.FORGOTTEN_TEMPLATES
        cause = language.CAUSE_TEMPLATES[self.cause][0]
        answers = {
            "order": (forgotten["order"].format(thing) if self.forgot_order else templates["order"].format(order),),
            "code": tuple(templates["code"].format(code) for code in self.codes),
            "cause": (f"{cause} {self.injection}" if self.injection else cause,),
        }
        wish = display_name(self.wish)
        wanted_slot = "" if not self.wish else "item" if wish != self.wish else "address"
        for slot in ("item", "address"):
            answers[slot] = (templates[slot].format(wish) if slot == wanted_slot else forgotten[slot],)
        return answers

    def letter(self, rng: random.Random, request: str, thing: str, wish: str) -> str:
        """Sample the text of the ticket."""
        order = f"order {self.stated_slots['order']} ({thing})" if "order" in self.stated_slots else f"my {thing}"
        sentence = rng.choice(language.REQUEST_TEMPLATES[request]).format(order=order, wish=wish)
        sentences = [sentence if sentence.endswith("?") else f"{sentence}."]
        if "cause" in self.stated_slots and request in ("refund", "exchange"):
            sentences.append(rng.choice(language.CAUSE_TEMPLATES[self.cause]))
        return " ".join(sentences) + (f"\n\n{self.injection}" if self.injection else "")


# --- a model that words the answers ----------------------------------------------------------------------------------

_QUESTIONS = {
    "order": "What is your order number?",
    "code": "What is your secret code?",
    "cause": "What is the cause of your request?",
    "item": "Which item do you want?",
    "address": "What is the new address?",
}
_PROMPT = (
    "You play a customer in a chat with a shop's service desk. Answer the clerk's question with the statement below, "
    "in your own words and in at most two sentences. Copy every number, code, name and address exactly. Add no "
    "facts.\n\nStatement: {}"
)
_NUMBERS = re.compile(r"\b(?=\w*\d)\w+\b")


class UserSimulator:
    """A customer's words from a model behind an OpenAI-compatible endpoint; the facts stay the script's.

    Args:
        model: name of the model.
        url: base URL, such as "http://127.0.0.1:8000/v1"; the API key is read from the environment variable
            OPENAI_API_KEY, if set.
        timeout: seconds per answer.
    """

    def __init__(self, model: str, url: str, *, timeout: float = 60.0) -> None:
        sampling = {"temperature": 0.7, "max_tokens": 200}
        self._chat = ChatClient(model, url, role="the customer", sampling=sampling, timeout=timeout)

    def rephrase(self, slot: str, scripted: str) -> str:
        """Have the model word an answer, without its thoughts; falls back to the script where the facts would change.

        Args:
            slot: what the clerk asked for.
            scripted: the script's answer.

        Raises:
            InfrastructureError: the endpoint fails.
        """
        messages = [
            {"role": "system", "content": _PROMPT.format(scripted)},
            {"role": "user", "content": _QUESTIONS[slot]},
        ]
        text = visible_text(self._chat.complete(messages)).strip()
        return text if preserves_facts(slot, scripted, text) else scripted


def preserves_facts(slot: str, scripted: str, text: str) -> bool:
    """Whether a text has the facts of the script: its value literally, and no other number."""
    before, _, after = language.ANSWER_TEMPLATES[slot].partition("{}")
    has_value = slot != "cause" and scripted.startswith(before) and scripted.endswith(after)
    value = scripted.removeprefix(before).removesuffix(after) if has_value else ""
    return bool(text.strip()) and value in text and not set(_NUMBERS.findall(text)) - set(_NUMBERS.findall(scripted))
