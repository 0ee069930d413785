"""What scripted users say: scenarios in the first person, conditions, confirmations."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from agent_r1_gym.core.types import Message
from agent_r1_gym.envs.tau2.language import content_words, first_person, lines, opening
from agent_r1_gym.envs.tau2.tasks import Scenario, Tau2Task, open_world
from agent_r1_gym.envs.tau2.users import OUT_OF_SCOPE, STOP, TRANSFER, YES, scripted_user

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
    ],
)
def test_questions_that_have_no_yes_or_no_are_answered(question: str, answer: str) -> None:
    assert converse(open_world("retail", "sample").part("base")[0][0], question) == [answer]


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
    ],
)
def test_whoever_asks_for_a_yes_gets_it(proposal: str) -> None:
    task = open_world("retail", "sample").part("base")[0][0]
    assert converse(task, f"I would cancel order #W1000001, as no longer needed. {proposal}") == [YES]
    assert converse(task_of(SCENARIO), f"I would return the lamp. {proposal}") == ["I want to keep the shade."]


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


@pytest.mark.parametrize(
    "text", ["confirm ", "need to verify ", "work ", "what and ", "your ", "total ", "no ", ":\n", "- W1\n", "is this "]
)
def test_long_messages_are_read_in_linear_time(text: str) -> None:
    def seconds(number: int) -> float:
        start = time.process_time()
        converse(task_of(SCENARIO), f"{text * number}?")
        return time.process_time() - start

    assert seconds(8_000) < 8 * seconds(2_000) + 0.1
