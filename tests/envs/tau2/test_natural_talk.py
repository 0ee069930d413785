"""Customers of the bank whom an agent talks to in its own words: invented scripts, the sample, and the real files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.envs.tau2.dialogue import read_script
from agent_r1_gym.envs.tau2.env import Tau2BankingEnv
from agent_r1_gym.envs.tau2.grading import user_calls
from agent_r1_gym.envs.tau2.language import STOP, YES
from agent_r1_gym.envs.tau2.phone_user import follow
from agent_r1_gym.envs.tau2.sample import sample_files
from agent_r1_gym.envs.tau2.tasks import GoldAction, Scenario, Tau2Task, open_world
from agent_r1_gym.envs.tau2.users import MESSAGE_USER, scripted_user
from tests.kit.cpu_time import cpu_below
from tests.kit.data import shared_file

APPLIED = ["apply_for_credit_card"]
CARD = "Business Gold Rewards Card"
BUSINESS = """\
**Your character:** You are Bo Castell, a 40-year-old baker from Larkhaven. You have a Green Rewards Card.

**Your situation:** You are planning to buy an oven for about $9,000. You opened your bakery in May. You mostly want \
the points. You don't need to mention this to the agent.

**Information you know and should provide when asked:**
- Your full name: Bo Castell
- Your phone number: 555-0100
- Your date of birth: 02/03/1985
- Your work address is: 4 Mill Road, Larkhaven: do not provide this information during verification.

## Conversation Flow:

1. **Opening:** "Hi, I would like to close my Green Rewards Card, I found a better one at another bank."

2. **When asked why you want to close it:** "They pay 3% on flour."

2b. **Reveal your requirements organically when asked:**
   - **Monthly fees (CRITERION 1):** "I pay ten dollars a month at most."
   - **Minimum balance (CRITERION 2):** "I can keep two thousand in it."
   - **Cashback (CRITERION 3):** "Some cashback on debit purchases would be nice."

3. **If the agent recommends a card with better rewards than 3%:** Ask about the fee. "Oh, you have that? What is its \
annual fee?"

4. **If the annual fee is waived or low:** Apply using your `apply_for_credit_card` tool with card_type='Business \
Gold Rewards Card'. Say: "No fee at first? Let me apply for that Business Gold Rewards Card."

5. **After applying for the Business Gold Rewards Card:** "One more thing, I want to close my Silver Zoom Card, too."

6. **If the agent offers a statement credit:** "A credit? I take it. If the agent does not offer, then get angry."

7. **When issues were noticed:** "I noticed it today - do not make up a date, just say today."

8. **If the agent asks how much you tried to withdraw on the Green card:** "I tried to get $500."

9. **If the agent asks how much your daughter tried to withdraw:** "She tried to get $100."

10. **If agent mentions an overdraft fee or says you are ineligible for an increase:** "Annoying."

11. **If agent explains how much you have left on the Green card:** "Can you increase that one?"

12. **If the agent agrees:** "Fine."

13. **If the agent refuses for good:** "Fine. Then I will wait."
"""
OUTCOME = """\
**Your character:** You are Cleo Duarte, a 30-year-old teacher from Millbrook. Your annual income is $52,000.

Your date of birth is 05/12/1991, and your address is 3 Quay Street. Do NOT volunteer this unless specifically asked.

## How to Behave

1. **Start naturally:** "Hi! Do I qualify for the rebate of my Bronze Rewards Card? Please tell me."

2. **Ask if needed:** If the agent tells you that you don't qualify, ask why not.

3. **Take action based on the outcome:**
   - If the agent tells you that you DO NOT qualify for the rebate: Say you want to switch to a simpler card. Apply \
for the Silver Rewards Card.
   - If the agent tells you that you DO qualify for the rebate: Say you want to upgrade to a better card. Apply for \
the Diamond Elite Card.
"""


def customer(text: str, card: str) -> Tau2Task:
    """A task with another scenario, whose customer is to apply for a card."""
    template = open_world("banking", "sample").part("base")[0][0]
    script = read_script(text)
    assert script is not None
    arguments = {"card_type": card, "customer_name": "Bo Castell", "annual_income": 52_000}
    return replace(
        template,
        prompt=script.opening,
        scenario=Scenario(script.opening, script.known, instructions=text, replies=script.replies),
        actions=(GoldAction(ToolCall("apply_for_credit_card", arguments), by_user=True),),
    )


def converse(task: Tau2Task, *messages: str) -> tuple[list[str], list[str]]:
    """Says messages one after another; returns the replies, and the names of what the customer did."""
    bank, made, turns = task.world.operations(task.open_database()), [], [Message("user", task.prompt)]

    def act(name: str, arguments: Mapping[str, Any]) -> str:
        made.append(name)
        return bank.call(name, arguments)

    for message in messages:
        turns.append(Message("assistant", message))
        turns.append(Message("user", scripted_user(task, turns, act)))
    return [turn.content for turn in turns[2::2]], made


def business(*messages: str) -> tuple[list[str], list[str]]:
    return converse(customer(BUSINESS, CARD), *messages)


class TestCards:
    @pytest.mark.parametrize(
        "message",
        [
            f"The {CARD} has no sign-up bonus, so I would not recommend it.",
            f"Do you already have a {CARD} with us?",
            f"Have you applied for the {CARD} before?",
            f"You're not eligible for the {CARD}.",
            f"Unfortunately I can't offer you the {CARD}.",
            f"I'd suggest the Gold Rewards Card instead of the {CARD}.",
            f"There are the Gold Rewards Card and the {CARD}.",
        ],
    )
    def test_a_card_that_is_mentioned_or_advised_against_is_none_to_apply_for(self, message: str) -> None:
        assert business(message)[1] == []

    @pytest.mark.parametrize(
        "message",
        [
            f"I recommend the {CARD}.",
            f"The {CARD} has no annual fee. I'd go with that one.",
            f"Would you like to apply for the {CARD}?",
            f"The best fit for you is the {CARD.lower()}.",
            f"I'd recommend the {CARD} over the Gold Rewards Card.",
            f"The Gold Rewards Card is not right for you. Please apply for the {CARD}.",
        ],
    )
    def test_a_recommendation_an_offer_and_an_instruction_are(self, message: str) -> None:
        assert business(message, message)[1] == APPLIED

    def test_the_steps_of_the_script_keep_their_order(self) -> None:
        replies, made = business(
            f"I recommend the {CARD}: its rewards are better, 4%.",
            "The annual fee is waived in the first year.",
            "Great. Is there anything else I can help you with today?",
            "I could give you a statement credit for that one.",
            "What else can I do for you?",
        )
        assert replies[0] == "Oh, you have that? What is its annual fee?"
        assert replies[1].split("\n")[0] == "No fee at first? Let me apply for that Business Gold Rewards Card."
        assert made == APPLIED
        assert replies[2:4] == ["One more thing, I want to close my Silver Zoom Card, too.", "A credit? I take it."]
        assert STOP in replies[4]

    @pytest.mark.parametrize(
        ("message", "card", "reply"),
        [
            ("Good news: you do qualify for the rebate!", "Diamond Elite Card", "I want to upgrade to a better card."),
            (
                "I'm afraid you do not qualify for the rebate.",
                "Silver Rewards Card",
                "I want to switch to a simpler card.",
            ),
        ],
    )
    def test_directions_without_a_quotation_are_followed(self, message: str, card: str, reply: str) -> None:
        replies, made = converse(customer(OUTCOME, card), message, message)
        assert reply in "\n".join(replies)
        assert made == APPLIED
        assert (
            converse(customer(OUTCOME, "EcoCard"), message, message, "Which card would you like?")[0][2]
            == f"The {card}."
        )

    def test_the_other_outcome_is_not_acted_on(self) -> None:
        refusal = "I'm sorry, you do not qualify for the rebate."
        replies, made = converse(customer(OUTCOME, "Diamond Elite Card"), refusal, refusal)
        assert "I want to ask why not." in replies
        assert made == []


class TestAnswers:
    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            ("Why would you like to close it?", "They pay 3% on flour."),
            ("May I ask for the reason?", "They pay 3% on flour."),
            ("What's that for?", "They pay 3% on flour."),
            ("What monthly fee would be fine?", "I pay ten dollars a month at most."),
            ("What's your budget for the monthly fees?", "I pay ten dollars a month at most."),
            ("And what balance could you maintain?", "I can keep two thousand in it."),
            ("Does cashback matter to you?", "Some cashback on debit purchases would be nice."),
            (
                "What monthly fee is fine, and what balance can you keep?",
                "I pay ten dollars a month at most. I can keep two thousand in it.",
            ),
            ("What are you looking for?", "I pay ten dollars a month at most."),
            ("How much did you try to withdraw?", "I tried to get $500."),
            ("How much did she try to withdraw?", "She tried to get $100."),
            ("You are ineligible for an increase, because of an overdraft fee.", "Annoying."),
            ("When did you notice the issue?", "I noticed it today."),
            ("What is the oven for your bakery going to cost?", "I am planning to buy an oven for about $9,000."),
            ("Shall I go ahead?", YES),
        ],
    )
    def test_a_question_finds_its_line(self, question: str, answer: str) -> None:
        assert business(question)[0] == [answer]

    @pytest.mark.parametrize(
        ("question", "answer"),
        [
            ("What is your name?", "My name is Bo Castell."),
            ("Phone number, please.", "My phone number is 555-0100."),
            (
                "Could I have your full name and date of birth?",
                "My name is Bo Castell. My date of birth is 02/03/1985.",
            ),
            (
                "Please verify your identity first.",
                "My name is Bo Castell. My phone number is 555-0100. My date of birth is 02/03/1985.",
            ),
            ("What's your home address?", "I don't know."),
            ("And your work address?", "My work address is 4 Mill Road, Larkhaven."),
        ],
    )
    def test_who_they_are_is_told_as_far_as_it_is_asked(self, question: str, answer: str) -> None:
        assert business(question)[0] == [answer]

    def test_what_is_not_to_be_volunteered_waits_for_its_question(self) -> None:
        replies, _ = converse(
            customer(OUTCOME, "EcoCard"),
            "Can you verify your identity?",
            "Your date of birth?",
            "What do you earn? Income?",
        )
        assert replies == [
            *("My name is Cleo Duarte.", "My date of birth is 05/12/1991.", "My annual income is $52,000.")
        ]

    @pytest.mark.parametrize(
        "question",
        [
            "It takes your name, your date of birth and your phone number. Could you please give me those details?",
            "Please provide the following:\n- Full name\n- Date of birth\n- Phone number",
            "Who am I talking to, when were you born, and what is your phone number?",
        ],
    )
    def test_all_that_was_named_before_is_told(self, question: str) -> None:
        known = {"My name is Bo Castell.", "My phone number is 555-0100.", "My date of birth is 02/03/1985."}
        assert known == {f"{part.strip('.')}." for part in business(question)[0][0].split(". ")}

    @pytest.mark.parametrize(
        "proposal",
        [
            "So you'd like me to close it?",
            "Do you authorise me to close it?",
            "Do you consent to closing the card?",
            "OK to close the card?",
            "Would you like me to change your email to bo@castell.example?",
            "Shall I send the new one to your address?",
            "I can close the card today. Would that suit you?",
            "I'll close it then. Any objections?",
            "Did I get this right: you would like to have the card closed?",
            "I would close the card, which has no balance. May I?",
            "If you say yes, I will close it; if you say no, I leave it as it is. What is your decision?",
            "All set! I've looked at it. Do you confirm that you'd like me to close it? Please reply \"yes\".",
            "The monthly fees, the minimum balance and the cashback end. Would you like me to proceed?",
        ],
    )
    def test_a_proposal_is_agreed_to(self, proposal: str) -> None:
        assert business(proposal)[0] == [YES]

    def test_a_proposal_that_brings_a_line_to_mind_is_agreed_to_as_well(self) -> None:
        refused, asked = business(
            "There was an overdraft fee, so you are ineligible for an increase. Shall I close the card?",
            "I recommend a card with better rewards, 4%. Shall I note that?",
        )[0]
        assert refused == f"Annoying. {YES}"
        assert asked == "Oh, you have that? What is its annual fee?"

    @pytest.mark.parametrize("question", ["Please confirm your date of birth.", "Can you confirm which card it is?"])
    def test_what_is_to_be_confirmed_is_not_agreed_to(self, question: str) -> None:
        assert YES not in business(question)[0]

    def test_secrets_and_directions_are_no_lines(self) -> None:
        script = read_script(BUSINESS)
        assert script is not None
        spoken = "\n".join(line.text for line in script.replies)
        assert "points" not in spoken
        assert "angry" not in spoken
        assert "make up" not in spoken

    def test_a_line_within_a_longer_one_is_not_said_yet(self) -> None:
        said, _ = business("No: the bank refuses for good.", "The bank agrees after all: agreed.", "The agent agrees.")
        assert said[0] == "Fine. Then I will wait."
        assert "Fine." in said[1:]


def disputes(*messages: str) -> list[str]:
    """Says messages to a customer who is to dispute two transactions; returns the transactions that they disputed."""
    calls = [
        ToolCall(
            "call_discoverable_user_tool",
            {
                "discoverable_tool_name": "submit_cash_back_dispute_0589",
                "arguments": json.dumps({"user_id": "u_1", "transaction_id": transaction}),
            },
        )
        for transaction in ("txn_a1", "txn_b2")
    ]
    task = replace(customer(BUSINESS, CARD), actions=tuple(GoldAction(call, by_user=True) for call in calls))
    turns, made = [Message("user", task.prompt)], []

    def act(name: str, arguments: Mapping[str, Any]) -> str:
        made.append(json.loads(arguments["arguments"])["transaction_id"])
        return f'"{made[-1]}"'

    for message in messages:
        turns.append(Message("assistant", message))
        turns.append(Message("user", scripted_user(task, turns, act)))
    return made


class TestHandedOver:
    @pytest.mark.parametrize(
        ("message", "made"),
        [
            ("Please call submit_cash_back_dispute_0589 with user id u_1, transaction id txn_a1.", ["txn_a1"]),
            (
                "Please use submit_cash_back_dispute_0589 with your user ID (u_1) and the transaction ID (txn_b2).",
                ["txn_b2"],
            ),
            (
                "I've enabled a cash back dispute tool for you. Please submit a dispute for transaction txn_a1 using "
                "your user ID u_1.",
                ["txn_a1"],
            ),
            (
                "Please call `submit_cash_back_dispute_0589` twice: for txn_a1, and for txn_b2, with user ID u_1.",
                ["txn_a1", "txn_b2"],
            ),
            ("Please run submit_cash_back_dispute_0589 for:\n- txn_b2\n- txn_a1", ["txn_a1", "txn_b2"]),
            ("Please run submit_cash_back_dispute_0589 for txn_a1. Do not dispute txn_b2.", ["txn_a1"]),
            ("Please don't call submit_cash_back_dispute_0589 for txn_a1 yet.", []),
            ("Have you submitted a cash back dispute for txn_a1? When did you submit it?", []),
            ("I will submit a cash back dispute for txn_a1.", []),
            ("Please call submit_cash_back_dispute_0589 with transaction id txn_c3.", []),
        ],
    )
    def test_an_operation_is_used_on_the_objects_that_are_named(self, message: str, made: list[str]) -> None:
        assert disputes(message, message) == made


@pytest.mark.parametrize(
    "message",
    [
        "I " * 20_000,
        "and " * 10_000,
        " " * 40_000,
        "why? " * 8_000,
        "please " * 8_000,
        f"not {CARD}. " * 2_000,
        "x" * 40_000,
        "restart it after " * 3_000,
        "sms " * 10_000,
        "set 5g " * 5_000 + "off",
        "those " * 8_000,
        "- name:\n" * 6_000,
    ],
    ids=["I", "and", "spaces", "questions", "pleas", "cards", "a word", "after", "sms", "set", "those", "lists"],
)
def test_long_messages_are_read_fast(message: str) -> None:
    with cpu_below(5):
        business(message)
        follow(f"{message}.", ("toggle_data",), lambda name, arguments: name)


# --- a gold player with its own words ---------------------------------------------------------------------------------

Words = Mapping[str, str]
PLAIN: Words = {
    "hello": "Hello! Could you please tell me your name and your user id?",
    "apply_for_credit_card": "I recommend the {card_type}. You can apply for it now.",
    "submit_referral": "For your referral I recommend the {account_type}.",
    "submit_transaction": "Your friend still has to spend ${amount:,} with the {credit_card_type}.",
    "call_discoverable_user_tool": "I have given you {discoverable_tool_name}. Please use it with {arguments}.",
    "close": "Everything is done. Is there anything else that I can help you with?",
    "transfer": "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT.",
}
POLITE: Words = {
    "hello": "Thank you for asking! To verify your identity, may I have your full name and date of birth, please?",
    "apply_for_credit_card": "The {card_type} would be the best fit for you. Would you like to apply for it?",
    "submit_referral": "The {account_type} would give you the best bonus. Would you like to submit the referral?",
    "submit_transaction": "To qualify, your friend needs to spend ${amount:,} on the {credit_card_type} first.",
    "call_discoverable_user_tool": "I've set up {discoverable_tool_name}. Could you run it with these: {arguments}?",
    "close": "That's all taken care of! What else can I do for you today?",
    "transfer": "I'm transferring you to a human agent now, please hold.",
}
BRISK: Words = {
    "hello": "Hi. Name, phone number and email, please.",
    "apply_for_credit_card": "Go with the {card_type}.",
    "submit_referral": "Go ahead and submit a referral for the {account_type}.",
    "submit_transaction": "Requirement: ${amount:,} of spending on the {credit_card_type}. Not met yet.",
    "call_discoverable_user_tool": "Next step is yours: run {discoverable_tool_name}, arguments {arguments}.",
    "close": "Done. Any other questions?",
    "transfer": "You are being transferred to a human agent.",
}
PREMATURE = {
    "apply_for_credit_card": (
        *("Do you already have the {card_type} with us?", "You're not eligible for the {card_type} yet; let me check."),
        "The {card_type} has no sign-up bonus, so I would not recommend it to everyone.",
    ),
    "submit_referral": ("I would not refer anyone to the {account_type} before I have checked the rules.",),
    "call_discoverable_user_tool": ("Please don't use {discoverable_tool_name} yet.",),
}


class Player:
    """Plays the gold actions; before the customer's, it says what must make them do nothing, and then closes early."""

    def __init__(self, env: Tau2BankingEnv, words: Words) -> None:
        self._env, self._words = env, words
        self._pending, self._is_warned = [words["hello"]], False

    def play(self, index: int) -> float:
        """Plays a task; returns the reward."""
        self._env.reset(options={"task_index": index})
        reward, ended = 0.0, False
        while not ended:
            plan = self._plan()
            warnings = _filled(PREMATURE.get(plan[0].call.name, ()), plan[0]) if plan and plan[0].by_user else []
            if warnings and not self._is_warned:
                self._is_warned, self._pending = True, [*self._pending, *warnings]
            turn = self._pending.pop(0) if self._pending else self._turn(plan)
            _, reward, terminated, truncated, _ = self._env.step(self._env.parser.format_turn(turn))
            ended = terminated or truncated
            assert turn not in warnings or not any(map(user_calls, self._env.transitions[-1].outcomes)), turn
        return reward

    def _turn(self, plan: list[GoldAction]) -> Any:
        if not plan:
            gold = self._env.task.actions or ()  # type: ignore[union-attr]
            is_transfer = any(action.call.name == "transfer_to_human_agents" for action in gold)
            return self._words["transfer" if is_transfer else "close"]
        call = plan[0].call
        if not plan[0].by_user:
            return call
        if call.name in APPLIED and len(plan) > 1:
            self._pending = ["Is there anything else I can help you with today?"]
        return _filled([self._words.get(call.name, self._words["close"])], plan[0])[0]

    def _plan(self) -> list[GoldAction]:
        """What is left of the gold actions."""
        task, made = self._env.task, []
        assert isinstance(task, Tau2Task)
        for step in self._env.transitions:
            for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
                made += [other.key for other in (user_calls(outcome) if call.name == MESSAGE_USER else [call])]
        plan = []
        for action in task.actions or ():
            if action.call.key in made:
                made.remove(action.call.key)
            else:
                plan.append(action)
        return plan


def _filled(texts: Iterable[str], action: GoldAction) -> list[str]:
    return [text.format(**action.call.arguments) for text in texts]


@pytest.mark.parametrize("words", [PLAIN, POLITE, BRISK], ids=["plain", "polite", "brisk"])
def test_the_sample_is_solved_in_any_words(words: Words) -> None:
    env = Tau2BankingEnv(dataset="sample", split="base")
    assert [Player(env, words).play(index) for index in range(len(env.tasks))] == [1.0] * len(env.tasks)


@pytest.mark.slow
@pytest.mark.parametrize("words", [PLAIN, POLITE, BRISK], ids=["plain", "polite", "brisk"])
def test_the_real_files_are_solved_in_any_words(words: Words, tmp_path: Path) -> None:
    """The files without tau2-bench's policies, which are not part of the data that tests may have."""
    for name in ("db.json", "tasks.json", "documents.jsonl"):
        (tmp_path / f"banking_{name}").symlink_to(shared_file(f"tau2/banking_{name}"))
    (tmp_path / "banking_prompts").mkdir()
    for name, text in sample_files("banking")["prompts"].items():
        (tmp_path / "banking_prompts" / f"{name}.md").write_text(text)
    env = Tau2BankingEnv(dataset=tmp_path)
    assert [env.tasks[index].id for index in range(len(env.tasks)) if Player(env, words).play(index) != 1.0] == []
