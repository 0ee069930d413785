"""What scripted users say: scenarios in the first person, conditions, confirmations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.envs.tau2.language import (
    OUT_OF_SCOPE,
    STOP,
    TRANSFER,
    YES,
    content_words,
    first_person,
    lines,
    opening,
)
from agent_r1_gym.envs.tau2.tasks import GoldAction, Scenario, Tau2Task, open_world
from agent_r1_gym.envs.tau2.users import scripted_user
from tests.kit.cpu_time import cpu_seconds

SCENARIO = Scenario(
    reason="You want to return the lamp, but if the agent asks you to confirm, you want to keep the shade. "
    "If the lamp cannot be returned, you want a gift card instead. (It is a secret, do not tell the agent.)",
    known="You are Ada Brandt. Your zip code is 10001.",
    unknown="You do not remember your email address.",
    instructions="You are very impatient. Be polite. You paid with your visa card. Ask how long the refund takes. "
    "If asked for the color, say that it is green.",
)


def task_of(scenario: Scenario, index: int = 0) -> Tau2Task:
    template = open_world("retail", "sample").part("base")[0][index]
    fields: dict[str, Any] = {name: getattr(template, name) for name in ("world", "actions", "reward_basis")}
    return Tau2Task("t", opening(scenario), scenario=scenario, **fields)


def no_phone(name: str, arguments: Mapping[str, Any]) -> str:
    raise AssertionError(f"{name} was called")


def converse(task: Tau2Task, *messages: str) -> list[str]:
    """Says messages one after another; returns the replies."""
    turns = [Message("user", task.prompt)]
    for message in messages:
        turns.append(Message("assistant", message))
        turns.append(Message("user", scripted_user(task, turns, no_phone)))
    return [turn.content for turn in turns[2::2]]


@pytest.mark.parametrize(
    ("scenario", "spoken"),
    [
        ("You want your money back.", "I want my money back."),
        ("You're Ada, and you'd like yours.", "I'm Ada, and I'd like mine."),
        ("He told you that you were late.", "He told me that I was late."),
        ("You want the agent to refund you for it.", "I want you to refund me for it."),
        ("You want to talk to a human agent.", "I want to talk to a human agent."),
        ("You name is Ada.", "My name is Ada."),
        ("Nothing to change.", "Nothing to change."),
    ],
)
def test_a_scenario_is_spoken_in_the_first_person(scenario: str, spoken: str) -> None:
    assert first_person(scenario) == spoken


def test_the_opening_is_the_reason_without_conditions_and_secrets() -> None:
    assert opening(SCENARIO) == "I want to return the lamp."
    assert opening(Scenario("If nothing else, you wait.")) == "If nothing else, I wait."


def test_directions_and_moods_are_not_spoken() -> None:
    assert [line.text for line in lines(SCENARIO.instructions) if line.trigger is None] == [
        *("I paid with my visa card.", "I want to ask how long the refund takes.")
    ]


def test_questions_are_answered_from_the_scenario_and_nothing_is_invented() -> None:
    replies = converse(
        task_of(SCENARIO),
        "Please tell me your e-mail address or zip code.",
        "Which visa card was it that you paid with?",
        "What is the color of the lamp?",
        "Shall we talk about the weather on Mars?",
        "And the weather on Venus?",
    )
    assert replies == [
        "I am Ada Brandt. My zip code is 10001. I do not remember my email address.",
        "I paid with my visa card.",
        "It is green.",
        "I want to ask how long the refund takes.",
        "I don't know.",
    ]


def test_conditions_wait_for_their_trigger() -> None:
    replies = converse(task_of(SCENARIO), "Do you confirm that I return the lamp?", "Unfortunately I cannot do that.")
    assert replies == ["I want to keep the shade.", "I want a gift card instead."]
    assert converse(task_of(SCENARIO), "Hm.", "Which visa card?", "Hm.") == ["OK.", "I paid with my visa card.", "OK."]


def test_a_conversation_ends_when_everything_is_said() -> None:
    replies = converse(task_of(Scenario("You want a lamp.")), "One moment.", "Done. Is there anything else?")
    assert replies == ["OK.", f"No, that is all. Thank you. {STOP}"]
    assert converse(task_of(SCENARIO), "You are being transferred to a human agent.") == [TRANSFER]
    assert converse(task_of(Scenario("You want a lamp.")), *["Why?"] * 4)[-1] == OUT_OF_SCOPE


@pytest.mark.parametrize(
    "question",
    [
        "Could you please confirm your email address?",
        "Before we proceed, I need to verify your identity. Could you provide your e-mail, or your name and zip code?",
        "To go ahead, please confirm the name and zip code on your account.",
        "Who am I speaking with? I can confirm nothing before I know your zip code.",
        *("Name and zip, please.", "Your user ID, please.", "Please fill in:\n- Full name:\n- Zip code:"),
        *(
            "**Missing:** your user ID",
            "I still need:\n- [ ] Your full name",
            "I just need to look up your account first.",
        ),
        *(
            "Who do I have the pleasure of speaking with today?",
            "Can I get your details?",
            "Could I take your postcode?",
        ),
        *(
            "Please enter:\n- First name\n- ZIP code",
            "Sorry, but I do need your user ID before I can look at anything.",
        ),
        "May I please, once more, kindly request your name and zip code?",
        "I'll need either your email address, or your full name together with your zip code. Could you share one?",
        "I'd be happy to help! Before I can access your orders, I need to verify who you are.",
    ],
)
def test_a_request_for_information_is_no_proposal(question: str) -> None:
    identity = "I am Ada Brandt. My zip code is 10001. I do not remember my email address."
    assert converse(task_of(SCENARIO), question) == [identity]
    assert converse(task_of(SCENARIO), *[question, "One moment."] * 4)[::2] == [identity] * 4


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Which order should I cancel, and for what reason?", "No longer needed."),
        ("How would you like to proceed?", "I want to cancel my order #W1000001, because I no longer need it."),
        ("May I have the colour of the lantern?", "I don't know."),
        ("Would you like a refund, or shall I send it again?", "I don't know."),
        ("To proceed, could you let me know why you want to cancel it?", "No longer needed."),
        ("Which order is this about?", "I want to cancel my order #W1000001, because I no longer need it."),
        ("To confirm: should the order stay open, or would you like it cancelled and sent again?", "I want to cancel"),
    ],
)
def test_questions_that_have_no_yes_or_no_are_answered(question: str, answer: str) -> None:
    (reply,) = converse(open_world("retail", "sample").part("base")[0][0], question)
    assert reply.startswith(answer)


@pytest.mark.parametrize(
    "proposal",
    [
        *("Does that look good?", "Is this okay with you?", "Can I have your explicit yes?", "May I process this?"),
        *("Type **yes** and I'll do it.", "Do you want to continue?", "Would you like me to cancel it?", "OK?"),
        *("Is that correct?", "Please reply with yes to confirm.", "How does that sound?", "If you agree, say “yes”."),
        *(
            "Let me know if you'd like me to proceed.",
            "Do I have your permission?",
            "Do you want me to cancel it or not?",
        ),
        *("So you'd like me to do that?", "Do you authorise me to do so?", "Do you consent?", "OK to do that?"),
        *("Would that suit you?", "Any objections?", "Everything fine?", "May I?", "What do you say, shall we do it?"),
        *("Did I get this right: cancel it?", "Would you mind confirming it?", "Let me know when you're ready."),
        *("- Yes, proceed\n- No, make changes\n\nWhich one is it?", "If you say no, I won't. What is your decision?"),
        'Please reply "yes", or let me know if you\'d like to change anything.',
    ],
)
def test_a_request_for_a_yes_gets_one(proposal: str) -> None:
    task = open_world("retail", "sample").part("base")[0][0]
    assert converse(task, f"I would cancel order #W1000001, as no longer needed. {proposal}") == [YES]
    assert converse(task_of(SCENARIO), f"I would return the lamp. {proposal}") == ["I want to keep the shade."]


@pytest.mark.parametrize(
    ("known", "offer", "answer"),
    [
        ("You are Ada.", "Would you like to hear about our newsletter?", "No, thank you."),
        ("You are Ada.", "Would you like to add travel insurance for $30 per passenger?", "No, thank you."),
        ("You are Ada. You do not need bags or insurance.", "Do you want travel insurance?", "I do not need bags or"),
        ("You are Ada. You have 3 suitcases.", "How many checked bags do you need?", "I have 3 suitcases."),
        ("You are Ada. You want a window seat.", "How many checked bags do you need?", "I don't know."),
        ("You are Ada.", "Would you like to book this?", YES),
        ("You are Ada.", "Do you want to proceed without insurance?", YES),
    ],
)
def test_an_extra_is_declined_unless_it_is_wanted(known: str, offer: str, answer: str) -> None:
    scenario = Scenario("You want to book a flight.", known=known)
    booking = GoldAction(ToolCall("book_reservation", {"flight_type": "one_way", "insurance": "no"}))
    task = replace(open_world("airline", "sample").part("base")[0][0], actions=(booking,))
    (reply,) = converse(replace(task, prompt=opening(scenario), scenario=scenario), offer)
    assert reply.startswith(answer)


def test_a_proposal_that_misses_a_condition_is_declined() -> None:
    scenario = Scenario("You want to cancel it. If you cannot refund to the gift card, no cancellation at all.")
    proposal = "The refund would go to {}. Would you like me to proceed?"
    task = task_of(scenario, index=7)
    assert converse(task, proposal.format("your gift card"))[0] == YES
    missing = converse(task, proposal.format("your credit card, not to a gift card"))[0]
    assert missing == "No, that is not what I want. No cancellation at all."


def test_a_correction_waits_for_a_mistake() -> None:
    task = task_of(Scenario("You want it. If the agent proposes a different order for the lamp, say it's not the one."))
    assert converse(task, "For the lamp, I'd cancel order #W1000001. OK?") == [YES]
    assert "not the one" in converse(task, "For the lamp, I'd cancel order #W9999999. OK?")[0]


def test_fallbacks_do_not_come_out_once_everything_is_done() -> None:
    scenario = Scenario("You want it. If that is not possible, cancel the order. After that, thank the agent.")
    turns = [Message("user", "I want it."), Message("assistant", "That isn't possible. I cancelled it. Anything else?")]
    task = task_of(scenario)
    assert scripted_user(task, turns, no_phone, is_open=True) == "Cancel the order."
    assert "Cancel" not in scripted_user(task, turns, no_phone, is_open=False)


def test_a_line_that_is_held_back_waits_for_its_condition() -> None:
    held = (
        "If the agent says it cannot be changed (do not mention it if the agent does not mention it), cancel the order."
    )
    task = task_of(Scenario(f"You want to change it. {held}"))
    assert STOP in converse(task, "Done. Anything else?")[0]
    assert converse(task, "It cannot be changed.") == ["Cancel the order."]


@pytest.mark.parametrize(
    "question", ["Does that help?", "Do you have other requests?", "Are you satisfied?", "Did I answer your question?"]
)
def test_whether_that_was_all_is_no_question_about_the_scenario(question: str) -> None:
    assert STOP in converse(task_of(Scenario("You want a lamp.")), question)[0]


@pytest.mark.parametrize(
    "promise",
    ["I'd be happy to help with that!", "Sure! Let me look it up.", "Of course! I'll take care of that for you."],
)
def test_a_promise_is_awaited(promise: str) -> None:
    assert converse(task_of(Scenario("You want a lamp.")), promise) == ["OK."]


def test_what_is_still_open_is_said_again() -> None:
    task = task_of(Scenario("You want a lamp."))
    turns = [Message("user", "I want a lamp."), Message("assistant", "Anything else?")]
    assert scripted_user(task, turns, no_phone, is_open=True) == "I still need your help. I want a lamp."


def test_a_change_of_mind_lasts() -> None:
    task = task_of(
        Scenario("You want to cancel the lamp, but if the agent asks you to confirm, you regret it."), index=2
    )
    replies = converse(task, "I would cancel it. OK?", "So do you want me to cancel it or not?", "Anything else?")
    assert replies[:2] == ["I regret it.", "No, that is not what I want. I regret it."]
    assert STOP in replies[2]


@pytest.mark.parametrize(
    ("scenario", "proposal", "answer"),
    [
        (
            "You do not want to cancel the lamp, just change it.",
            "I cannot change it. Shall I cancel it instead?",
            "lamp",
        ),
        ("You want to change the lamp.", "Would you like me to cancel the order?", "I want to change the lamp."),
        ("You will pay, and are willing to pay up to $65.", "That comes to **$1,200**. Do you confirm?", "up to $65."),
        ("You don't want to cancel if you don't get a refund.", "I'd cancel it, without a refund. OK?", "refund."),
        ("You don't want to cancel if you don't get a refund.", "I'd cancel it, with a full refund. OK?", YES),
        ("You are willing to pay up to $65 for a change.", "I'd change it. The total is $60. OK?", YES),
        (
            "You want to cancel it. You pay up to $65. If it costs more than $65, change the lamp.",
            "To cancel costs $70. Unfortunately I must charge that. OK?",
            YES,
        ),
    ],
)
def test_what_the_scenario_forbids_or_does_not_speak_of_is_declined(scenario: str, proposal: str, answer: str) -> None:
    task = open_world("retail", "sample").part("base")[0][7]
    assert not task.gold_writes
    fields = {name: getattr(task, name) for name in ("world", "actions", "reward_basis")}
    task = Tau2Task("t", opening(Scenario(scenario)), scenario=Scenario(scenario), **fields)
    (reply,) = converse(task, proposal)
    assert answer in reply
    assert (reply == YES) == (answer == YES)


@pytest.mark.parametrize(
    ("proposal", "accepted"),
    [
        ("I'd cancel #W1000001 and #W1000004. Is that okay?", False),
        ("I'd cancel these orders:\n- #W1000001\n- #W1000004\nIs that okay?", False),
        ("I'd cancel #W1000001. Your other order, #W1000004, stays as it is. Is that okay?", True),
        ("You have these orders:\n- #W1000001\n- #W1000004\nShall I cancel the first?", True),
        ("I'd cancel #W1000001, as ordered by mistake. Is that okay?", False),
    ],
)
def test_a_proposal_that_goes_too_far_is_declined(proposal: str, accepted: bool) -> None:
    (reply,) = converse(open_world("retail", "sample").part("base")[0][0], proposal)
    assert (reply == YES) == accepted


@pytest.mark.parametrize(
    "refusal",
    [
        *(
            "I’m sorry, we can’t do that.",
            "That isn't possible.",
            "We don't allow that.",
            "You don't qualify for that.",
        ),
        *("That's not something we support.", "The policy doesn't permit it.", "This is against our policy."),
        *("Sadly, this is not an option.", "No refund is possible here.", "I'm not authorized to do that."),
    ],
)
def test_a_refusal_brings_out_the_wishes_that_wait_for_it(refusal: str) -> None:
    scenario = Scenario("You want a refund. If not, you want a gift card. If not, you wonder if you can return it.")
    replies = converse(task_of(scenario), *[f"{refusal} Anything else I can help with?"] * 3)
    assert replies[:2] == ["I want a gift card.", "I wonder if I can return it."]
    assert STOP in replies[2]


def test_a_refusal_within_a_proposal_is_resolved_by_it() -> None:
    scenario = Scenario("You want a return. If that is not possible, you want a gift card.")
    replies = converse(task_of(scenario), "I can't return one lamp. I can return both. OK?", "Done. Anything else?")
    assert replies[0] == YES
    assert STOP in replies[1]


@pytest.mark.parametrize(
    ("scenario", "message", "reply"),
    [
        ("You want it. If so, do it.", "I cannot help otherwise.", "OK."),
        ("You wonder if you can switch the lamp. If so, do it.", "Yes, you can switch it.", "Do it."),
        (
            "You want it. If there is no way to do that, return the lamp.",
            "That's against our policy.",
            "Return the lamp.",
        ),
        ("You want it. If there are any issues, cancel it all.", "We don't support that.", "Cancel it all."),
        ("You fly. If the agent asks, you want the return flight on the 19th.", "It can't be changed.", "OK."),
        (
            "You fly. If the agent asks, you want the return flight on the 19th.",
            "When would you like to fly back?",
            "I want the return flight on the 19th.",
        ),
        (
            "You pay up to $65. If the costs are greater than that, then try to upgrade Noah alone.",
            "It costs more than we thought.",
            "OK.",
        ),
        (
            "You are willing to pay up to $65. If the costs are greater than that, then try to upgrade Noah alone.",
            "That costs $80.",
            "I want to upgrade Noah alone.",
        ),
        (
            "Ask for it. If there is no red, big, round lamp, you'd go for blue.",
            "There is none, it's not available.",
            "I'd",
        ),
        ("You want it. If it is less than 200 bucks you want to exchange it.", "It is $150.", "I want to exchange it."),
    ],
)
def test_conditions_are_understood(scenario: str, message: str, reply: str) -> None:
    (said,) = converse(task_of(Scenario(scenario)), message)
    assert said.startswith(reply)


def test_a_question_within_a_wish_is_no_condition() -> None:
    wish = "You want to know the price, and if the agent can help you refund it."
    spoken = lines(f"{wish} If not, you ask what it is, and if you can cancel it.")
    assert [(line.text, line.trigger is None) for line in spoken] == [
        ("I want to know the price, and if you can help me refund it.", True),
        ("I ask what it is, and if I can cancel it.", False),
    ]


def test_only_a_transfer_that_takes_place_ends_the_conversation() -> None:
    task = task_of(Scenario("You want a lamp."))
    offer = "I could have you transferred to a human agent, do you want that?"
    assert TRANSFER not in converse(task, offer)[0]
    assert TRANSFER not in converse(task, "If that fails, you will be transferred to a human agent.")[0]
    for message in ("I've transferred the money.", "Your funds have been transferred to the new account."):
        assert TRANSFER not in converse(task, message)[0]
    for message in ("I'm transferring you to a specialist now.", "You have been transferred to a human agent."):
        assert converse(task, message) == [TRANSFER]


@pytest.mark.parametrize(
    "closing",
    [
        *(
            "Can I help with something else?",
            "Anything more?",
            "Great, take care!",
            "Goodbye!",
            "Is that all for today?",
        ),
        *("Any other questions?", "Have a lovely evening.", "If you need anything else, just let me know!"),
    ],
)
def test_a_closing_ends_the_conversation_when_nothing_is_left_to_say(closing: str) -> None:
    assert STOP in converse(task_of(Scenario("You want a lamp.")), closing)[0]
    wish = Scenario("You want a lamp.", known="You are Ada.", instructions="You also want a shade.")
    replies = converse(task_of(wish), closing, closing)
    assert replies[0] == "I also want a shade."
    assert STOP in replies[1]


def test_a_message_that_asks_nothing_brings_nothing_out() -> None:
    wish = Scenario("You want a lamp.", known="You are Ada.", instructions="You also want a shade.")
    messages = ("One moment, please.", "I have found your order.", "I have cancelled it. Let me do the next one now.")
    assert converse(task_of(wish), *messages) == ["OK."] * 3
    assert converse(task_of(Scenario("You want it.")), "Anything else before I send it off?") == ["No, that is all."]


@pytest.mark.parametrize(
    ("scenario", "spoken"),
    [
        ("You are trying to make the agent pay a thing that is not allowed.", []),
        (
            "For that you make up a story about having a flight that was late, and this caused you to miss lunch.",
            ["I had a flight that was late, and this caused me to miss lunch."],
        ),
        ("You want it waived (mention your health at the start).", ["I want it waived."]),
        ("If they insist, the agent refuses to change it, accept it and end the call.", []),
        ("First, try to book a flight.", ["I want to book a flight."]),
        ("You are mysterious and don't want to reveal the reason until the agent asks.", []),
        ("You can pay by card (only provide this information when the agent asks for it).", ["I can pay by card."]),
        ("Do not take No for an answer, even if the agent says it is not possible.", []),
        ("If the agent continues to refuse, end the call.", []),
        ("You want to be sure the agent uses your card.", ["I want to be sure you use my card."]),
        (
            "A service agent gave you the number of another agent.",
            ["A service agent gave me the number of another agent."],
        ),
        ("You are happy with original payment for refund.", ["I am happy with original payment for refund."]),
        ("You want to:\n- add a bag\n- change the seat", ["I want to: add a bag, change the seat."]),
        ("The correct id is 52 (do not share this with the agent).", []),
        (
            "Use your address (you do not want to mention it, but it is in your profile the agent can look up).",
            ["Use my address (it is in my profile you can look up)."],
        ),
        ("Say you made a mistake and provide 52.", ["I made a mistake, it is 52."]),
        (
            "You want to rethink for a while, and then change your mind to keep it.",
            ["I have changed my mind and want to keep it."],
        ),
        ("You DID try to contact the shop.", ["I DID try to contact the shop."]),
        ("You are French by birth and your English is not perfect.", []),
        ("You are an interesting guy called Bo Castell.", ["I am Bo Castell."]),
    ],
)
def test_stage_directions_and_secrets_are_not_spoken(scenario: str, spoken: list[str]) -> None:
    assert [line.text for line in lines(scenario)] == spoken


@pytest.mark.parametrize(
    ("proposal", "accepted"),
    [
        ("I will cancel order #W1000001. Do you confirm?", True),
        ("I will cancel order #W1000004. Do you confirm?", False),
        ("Do you want me to proceed?", True),
    ],
)
def test_a_proposal_about_another_order_is_declined(proposal: str, accepted: bool) -> None:
    task = open_world("retail", "sample").part("base")[0][0]
    (reply,) = converse(task, proposal)
    assert (reply == YES) == accepted
    assert accepted or reply == f"No, that is not what I want. {task.prompt}"


@pytest.mark.parametrize(
    ("proposal", "accepted"),
    [
        ("Exchange 5000000000 for 5000000002, on credit_card_7003. Do you confirm?", True),
        ("Exchange 5000000000 for 5000000001, on credit_card_7003. Do you confirm?", False),
        ("Exchange 5000000000 for 5000000002, on gift_card_7003. Do you confirm?", False),
    ],
)
def test_a_proposal_with_another_item_or_payment_is_declined(proposal: str, accepted: bool) -> None:
    (reply,) = converse(open_world("retail", "sample").part("base")[0][2], proposal)
    assert (reply == YES) == accepted


def test_a_reason_is_chosen_where_the_agent_offers_it() -> None:
    task = open_world("retail", "sample").part("base")[0][0]
    assert converse(task, "Is it no longer needed, or was it ordered by mistake?") == ["No longer needed."]
    assert converse(task_of(SCENARIO, index=2), "Is it no longer needed?") != ["No longer needed."]


def test_what_the_policy_forbids_is_still_wanted() -> None:
    task = open_world("retail", "sample").part("base")[0][7]
    assert not task.gold_writes
    assert converse(task, f"Shall I cancel {task.prompt.split('order ')[1][:9]}?") == [YES]


def test_words_of_a_question_find_refusals_and_confirmations() -> None:
    assert content_words("Unfortunately that is not possible") >= {"<refused>", "possib"}
    assert "<confirm>" in content_words("Shall I go ahead?")
    assert content_words("the and of it") == frozenset()


HOSTILE = ("may i please, ", "i need ", "i will ", "your name ", "should the ", "did i get ", "would you like ", "not ")


@pytest.mark.parametrize(
    "text",
    [
        "confirm ",
        "need to verify ",
        "work ",
        "what and ",
        "your ",
        "total ",
        "no ",
        ":\n",
        "- W1\n",
        "is this ",
        *HOSTILE,
    ],
)
def test_long_messages_are_read_in_linear_time(text: str) -> None:
    short, long = (
        cpu_seconds(lambda number=number: converse(task_of(SCENARIO), f"{text * number}?")) for number in (2_000, 8_000)
    )
    assert long < 8 * short + 0.1
