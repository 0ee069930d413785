"""The gold actions, played by agents that talk as models do: the scripted user must understand all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.tau2.env import Tau2Env
from agent_r1_gym.envs.tau2.language import content_words
from agent_r1_gym.envs.tau2.tasks import Tau2Task
from tests.kit.data import shared_file


@dataclass(frozen=True)
class Style:
    """How an agent talks: it asks who the user is, proposes a write, refuses a request, and closes."""

    who: str
    propose: str
    refuse: str
    close: str


STYLES = {
    "formal": Style(
        "Thank you for contacting us. Could you please confirm your email address, or your name and zip code?",
        "This is what I would do: {deed}. Does that look good?",
        "I'm sorry, but that isn't possible: the rules do not permit it.",
        "Great, that's taken care of. Can I help with something else?",
    ),
    "chatty": Style(
        "Before we proceed, I need to verify your identity. What's your email, or your full name and zip code?",
        "Alright! I'd {deed}. Type **yes** and I’ll do it.",
        "Oh, I’m sorry, we can’t do that, it’s against our policy.",
        "Anything more? Otherwise, take care!",
    ),
    "brisk": Style(
        "Who am I speaking with? I'll need your user id or zip code.",
        "Would you like me to {deed}?",
        "We don't allow that, and you don't qualify for an exception.",
        "Any other questions?",
    ),
    "careful": Style(
        "To help you with this request I first have to know your name and user id. May I have them?",
        "Details of the request:\n- {deed}\nMay I process this? Please reply with yes to confirm.",
        "That's not something we support, so it is not an option.",
        "You're all set now. Have a wonderful day!",
    ),
    "wordy": Style(
        "Before I can proceed, I’d need to verify who you are. Please share:\n1. Your email, or\n2. Your name and zip",
        "**Summary**\nYour orders:\n- #W0000001 (pending)\n- #W9999999 (delivered)\n\nI’ll {deed}. It costs $54.04. "
        "This can only be done once and cannot be undone.\n\nWould you be comfortable with me doing it?",
        "I’m really sorry, but unfortunately I’m not able to do this, as our policy doesn’t allow it.",
        "Your request has been processed successfully. Is there anything else I can assist you with today?",
    ),
    "listing": Style(
        "First, who do I have the pleasure of speaking with, and what's your zip code or user id?",
        "Here are the details:\n\n1. **What**: {deed}\n2. **Reservations you keep**: K2BX9Q\n\n"
        "Do you confirm that you would like to go ahead with these changes?",
        "I understand, but this doesn't qualify under our rules, so I won't be able to do it.",
        "Glad I could help! If there's anything else you need, feel free to ask.",
    ),
    "courteous": Style(
        "I'd be happy to help! May I please, first, kindly request your user id, or your name and zip code?",
        "If it is agreeable to you, this is what I would do: {deed}. With your permission, I shall do it now. May I?",
        "With my sincerest regrets, I have to tell you that this is against our policy.",
        "All of it has been dealt with. Is there anything that I have overlooked?",
    ),
    "form": Style(
        "**Identity check**\n\n- User ID:\n- Or full name and zip code:\n\nPlease fill in one of them.",
        "**Final step:** {deed}.\n\n- Yes, proceed\n- No, make changes\n\nWhich one is it?",
        "**Not eligible.** The policy doesn't allow it.",
        "**Done.** Is that everything?",
    ),
}
_MAX_PROPOSALS = 5


def deed(call: ToolCall) -> str:
    """What a call does, in words: "cancel pending order (order id #W1, reason ordered by mistake)"."""

    def words(value: Any) -> str:
        if isinstance(value, Mapping):
            return " ".join(words(part) for part in value.values())
        return " and ".join(map(words, value)) if isinstance(value, list) else str(value)

    details = ", ".join(f"{name.replace('_', ' ')} {words(value)}" for name, value in call.arguments.items())
    return f"{call.name.replace('_', ' ')} ({details})"


class Agent:
    """Plays the gold actions, and talks in a style.

    Attributes:
        reward: of the last step.
        spoken: messages with replies.
    """

    def __init__(self, env: Tau2Env, index: int, style: Style) -> None:
        env.reset(options={"task_index": index})
        assert isinstance(env.task, Tau2Task)
        self.env, self.task, self.style = env, env.task, style
        self.reward, self.ended = 0.0, False
        self.spoken: list[tuple[str, str]] = []

    def do(self, turn: Any) -> str:
        """Writes a message or makes a call; returns the reply, "" to a call or when the conversation is over."""
        if self.ended:
            return ""
        _, self.reward, terminated, truncated, _ = self.env.step(self.env.parser.format_turn(turn))
        self.ended = terminated or truncated
        if isinstance(turn, ToolCall):
            return ""
        reply = self.env.transitions[-1].outcomes[0].content
        self.spoken.append((turn, reply))
        return reply

    def identify(self) -> bool:
        """Asks who the user is, again if the reply is about something else; whether it says so."""
        known = content_words(self.task.scenario.known)
        return any(content_words(self.do(self.style.who)) & known for _ in range(2))

    def confirm(self, call: ToolCall) -> bool:
        """Asks who the user is and whether it agrees, until it does; whether it does."""
        proposal = self.style.propose.format(deed=deed(call))
        return self.identify() and any(self.do(proposal).startswith("Yes") for _ in range(_MAX_PROPOSALS))

    def play(self) -> float:
        """Plays an episode; returns its reward, 0 if the user does not say who it is or agree to a gold write."""
        writes = [action.call for action in self.task.gold_writes]
        is_known = self.identify()
        if not writes:
            self.do(self.style.refuse)
        for call in (action.call for action in self.task.actions or ()):
            if call in writes and not self.confirm(call):
                return 0.0
            self.do(call)
            if call.name == "transfer_to_human_agents":
                self.do("You have been transferred to a human agent, who will be with you shortly.")
        told = [f"By the way, it is {text}." for text in self.task.communicate_info]
        while not self.ended:
            self.do(" ".join([*told, self.style.close]))
        return self.reward if is_known else 0.0


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("domain", ["retail", "airline"])
def test_a_natural_agent_solves_the_samples(domain: str, style: str) -> None:
    env = Tau2Env(domain=domain, dataset="sample", split="base")
    assert [Agent(env, index, STYLES[style]).play() for index in range(len(env.tasks))] == [1.0] * len(env.tasks)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("domain", "number"), [("retail", 114), ("airline", 50)])
def test_a_natural_agent_solves_the_official_tasks(domain: str, number: int, style: str) -> None:
    env = Tau2Env(domain=domain, dataset=shared_file("tau2/retail_tasks.json").parent, split="base")
    unsolved = [env.tasks[index].id for index in range(number) if Agent(env, index, STYLES[style]).play() < 1]
    assert unsolved == []
