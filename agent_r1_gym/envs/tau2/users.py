"""The users that an agent talks to: scripted from their scenario, or a language model that plays it.

A user is a function from a task and the conversation so far to the next thing that the user says. It keeps no state of
its own, so a conversation can be continued from any point.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_r1_gym.core.parsing import visible_text
from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import Message, Role, ToolCall, ToolOutcome
from agent_r1_gym.envs.tau2.banking_user import DEMAND, act_on
from agent_r1_gym.envs.tau2.database import Database
from agent_r1_gym.envs.tau2.language import CONFIRM, Line, content_words, lines
from agent_r1_gym.envs.tau2.operations import DATABASE, Operations, specification
from agent_r1_gym.envs.tau2.phone_user import follow, remaining_problem
from agent_r1_gym.envs.tau2.tasks import Scenario, Tau2Task
from agent_r1_gym.errors import EpisodeError, InfrastructureError, ToolError
from agent_r1_gym.support.chat_client import ChatClient
from agent_r1_gym.support.json_data import parse_json

Act = Callable[[str, Mapping[str, Any]], str]
"""Carries out an operation of the user (`Operations.user_tools`), and returns its result."""
User = Callable[[Tau2Task, Sequence[Message], Act], str]
"""Says the next turn of a conversation, whose turns have the role "user" (its own) or "assistant"; what the user did
before is a turn of its own with one of `tool_calls`, and one with the role "tool" and the result."""

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""What a user says last: the request is dealt with, a human takes over, or the scenario does not say how to go on."""
END_TOKENS = (STOP, TRANSFER, OUT_OF_SCOPE)

# --- scripted users --------------------------------------------------------------------------------------------------

MESSAGE_USER = "message_user"
"""Name of the tool that plays the user."""
YES = "Yes, please go ahead."
_NO = "No, that is not what I want."
_UNKNOWN = "I don't know."
_WAITING = "OK."
_MAX_REPEATS = 3
_TRANSFERRED = re.compile(r"transferr?(?:ed|ing) (?:you )?to (?:a |our )?human", re.IGNORECASE)
_IDENTITY = re.compile(
    r"\b(?:e-?mail|zip|user ?id|customer id|your (?:full |first |last )?name|verify|identity|identify|authenticate|"
    r"who am i|account|date of birth|phone number)\b",
    re.IGNORECASE,
)
_VERIFICATION = re.compile(
    r"verif|identity|date of birth|phone number|e-?mail|address|full name|user id|your name", re.IGNORECASE
)
_ELSE = re.compile(r"\b(?:any|some)thing (?:else|more)\b", re.IGNORECASE)
_FINISHED = re.compile(
    r"\b(?:anything else|all set|done|completed?|cancell?ed|processed|success\w*|has been|have been|goodbye|"
    r"(?:great|nice|good) day|you'?re welcome|cannot help|unable to help)\b",
    re.IGNORECASE,
)
_ORDER, _ITEM = re.compile(r"#?\bW\d{7}\b"), re.compile(r"(?<![\w#])\d{10}\b")
_RESERVATION, _FLIGHT = re.compile(r"\b(?=\w*[A-Z])[A-Z0-9]{6}\b"), re.compile(r"\b[A-Z]{3}\d{3}\b")
_METHOD = re.compile(r"\b(?:credit_card|gift_card|certificate|paypal)_\d+\b")


def scripted_user(task: Tau2Task, turns: Sequence[Message], act: Act) -> str:
    """Say what the scenario says, and nothing else.

    The user states the reason first (`Tau2Task.prompt`). Then it answers questions with the sentences of the scenario
    that are about them, confirms what is not known to be wrong, and ends the conversation when it has said everything
    and the agent has nothing to ask. What it wants in the end is read from the gold actions: that is how it recognises
    a proposal that it must decline. It has no feelings, and does not follow directions for acting. Where it has a
    telephone, it does what the agent asks it to do with it, and reports what it sees; a customer of the bank acts when
    the agent has named the card, account or operation (`banking_user`).
    """
    reply = _next_reply(task, turns, act)
    repeats = sum(turn.content == reply for turn in turns if turn.role == "user")
    return OUT_OF_SCOPE if reply not in (YES, DEMAND) and repeats >= _MAX_REPEATS else reply


def _next_reply(task: Tau2Task, turns: Sequence[Message], act: Act) -> str:
    message = turns[-1].content
    said = "\n".join(turn.content for turn in turns if turn.role == "user")
    script, words = _script(task.scenario), content_words(message)
    if _TRANSFERRED.search(message):
        return TRANSFER
    if results := follow(message, task.world.operations.user_tools, act):
        return "\n".join(results)
    if results := act_on(task, message, said, act, is_closing=_ELSE.search(message) is not None):
        return "\n".join(results)
    if script.is_written and script.identity not in said and _VERIFICATION.search(message):
        return script.identity  # before "could you confirm your address?" is taken for a proposal
    triggered = [line for line in script.conditional if line.text not in said and _is_met(line, words)]
    if CONFIRM in words:
        triggered = [line for line in triggered if line.trigger and CONFIRM in line.trigger]
    if triggered:
        return triggered[0].text
    if CONFIRM in words:
        return f"{_NO} {task.prompt}" if _is_unwanted(task, message) else YES
    reply = _offered_reason(task, message) or _answer(script, message, words, said)
    problem = remaining_problem(task.scenario.reason, task.world.operations.user_tools, act) if STOP in reply else None
    return problem or reply


def _answer(script: _Script, message: str, words: frozenset[str], said: str) -> str:
    """What the scenario says about a question, else the next thing that was not said yet, else the end."""
    # Every message of a bank is about accounts: in a script, the question of its heading comes first.
    if _IDENTITY.search(message) and script.identity and not script.is_written:
        return script.identity
    unsaid = [line for line in script.plain if line.text not in said]
    is_question = "?" in message or "please" in message.lower()
    if is_question and not _ELSE.search(message):
        matching = [line for line in script.plain if len(line.words & words) > 1]
        if matching:
            new = [line for line in matching if line in unsaid]
            return " ".join(line.text for line in (new or matching)[: 1 if script.is_written else 2])
        if script.is_written and script.identity and _VERIFICATION.search(message):
            return script.identity
    if unsaid:
        return unsaid[0].text
    if _FINISHED.search(message):
        return f"No, that is all. Thank you. {STOP}"
    return _UNKNOWN if is_question else _WAITING


@dataclass(frozen=True, slots=True)
class _Script:
    """What a scenario lets its user say.

    Attributes:
        identity: who they are.
        plain: sentences without a condition.
        conditional: sentences with one.
        is_written: whether the scenario is a script, with sentences to say word by word.
    """

    identity: str
    plain: tuple[Line, ...]
    conditional: tuple[Line, ...]
    is_written: bool = False


@functools.lru_cache(maxsize=1024)
def _script(scenario: Scenario) -> _Script:
    known = [line for part in (scenario.known, scenario.unknown) for line in lines(part)]
    is_written, every = scenario.replies is not None, scenario.replies
    if every is None:
        every = (*lines(scenario.reason), *known, *lines(scenario.instructions))
    return _Script(
        scenario.known if is_written else " ".join(line.text for line in known if line.trigger is None),
        tuple(line for line in every if line.trigger is None),
        tuple(line for line in every if line.trigger is not None),
        is_written,
    )


def _is_met(line: Line, words: frozenset[str]) -> bool:
    """Whether a message meets a condition: it refuses or asks as the condition says, or shares two words with it."""
    trigger = line.trigger or frozenset()
    common = trigger & words
    return len(common) >= min(2, len(trigger)) or any(word.startswith("<") for word in common)


def _offered_reason(task: Tau2Task, message: str) -> str | None:
    """The gold action's reason, where the agent offers it to choose from: scenarios leave it to the user."""
    reasons = [str(action.call.arguments.get("reason", "")) for action in task.gold_writes]
    return next((f"{reason.capitalize()}." for reason in reasons if reason and reason in message.lower()), None)


def _is_unwanted(task: Tau2Task, message: str) -> bool:
    """Whether a proposal is known to be wrong: it is about objects that neither scenario nor gold actions name.

    Without gold writes the user wants what the policy forbids, and confirms whatever is offered.
    """
    writes = [action.call for action in task.gold_writes]
    scenario = f"{task.prompt} {task.scenario}"
    for pattern in (_ORDER, _RESERVATION):
        mentioned = {found.lstrip("#") for found in pattern.findall(message)} - set(_FLIGHT.findall(message))
        gold = {found.lstrip("#") for call in writes for found in pattern.findall(str(call.arguments))}
        if mentioned and gold and not mentioned & gold and not any(found in scenario for found in mentioned):
            return True
        if mentioned & gold:
            writes = [call for call in writes if any(found in str(call.arguments) for found in mentioned)]
    for pattern in (_ITEM, _FLIGHT, _METHOD):
        mentioned = set(pattern.findall(message))
        gold = {found for call in writes for found in pattern.findall(str(call.arguments))}
        if mentioned and gold and not mentioned & gold:
            return True
    new_items = {item for call in writes for item in call.arguments.get("new_item_ids", ())}
    mentioned = set(_ITEM.findall(message))
    known = {item for call in writes for item in _ITEM.findall(str(call.arguments))}
    return bool(new_items and mentioned - known and not mentioned & new_items)


# --- a language model as the user ------------------------------------------------------------------------------------

_GREETING = "Hello, how can I help you today?"
_MAX_ROUNDS = 10
"""Rounds of calls before a turn of a model that plays a user."""
_DIRECTIONS = """\
You play a customer who contacts customer service. Write the customer's next message in the chat, one at a time.
- Follow the scenario below strictly. What it does not say, you do not know: never invent facts.
- Do not tell everything at once; give details when you are asked for them.
- Never repeat the scenario word for word: use your own words, but copy names, numbers, ids and addresses exactly.
"""
_DIRECTIONS_FOR_FUNCTIONS = """\
- You have functions for what you can do yourself. In each turn either call one, or write a message: the agent does \
not see text next to a call.
- Call a function only if the agent asks you for it, or if you need it to answer the agent's question. If you do not \
know what to do, ask.
- If the agent asks for several actions at once, say that you can do only one at a time, and ask for the first one.
- Tell the agent only what the scenario says or what a function returned; never make up the result of a function. If a \
call fails because you made a mistake in it, correct it and try again.
"""
_DIRECTIONS_FOR_THE_END = f"""\
- When your request is dealt with, write {STOP}. When the agent has clearly said that you are being transferred to \
another agent, write {TRANSFER}. When the scenario does not say enough to go on, write {OUT_OF_SCOPE}. Each of them \
ends the conversation.
- To agree to something does not complete it: never end the conversation in the message in which you confirm, but wait \
until the agent says that it is done.

Scenario
"""


class ModelUser:
    """A user that a model plays, behind an OpenAI-compatible endpoint.

    Args:
        model: name of the model.
        url: base URL of the endpoint.
    """

    def __init__(self, model: str, url: str) -> None:
        self._chat = ChatClient(model, url, role="the user", sampling={"temperature": 0.0, "max_tokens": 2048})

    def __call__(self, task: Tau2Task, turns: Sequence[Message], act: Act) -> str:
        """Say the next turn (see `User`), without the model's thoughts; it may carry out operations before it speaks.

        Raises:
            InfrastructureError: the endpoint fails, says nothing, or does not stop calling functions.
        """
        scenario = task.scenario
        parts = (
            ("Persona", scenario.persona),
            ("Reason for the call", scenario.reason),
            ("What you know", scenario.known),
            ("What you do not know", scenario.unknown),
            ("Instructions", scenario.instructions),
        )
        described = "\n\n".join(f"{title}:\n{text}" for title, text in parts if text)
        names = task.world.operations.user_tools if task.user_tools is None else task.user_tools
        tools = [_schema(task.world.operations, name) for name in names]
        directions = _DIRECTIONS + (_DIRECTIONS_FOR_FUNCTIONS if tools else "") + _DIRECTIONS_FOR_THE_END
        messages: list[Mapping[str, Any]] = [
            {"role": "system", "content": directions + described},
            {"role": "user", "content": _GREETING},
            *map(_as_the_user_sees_it, turns),
        ]
        for _ in range(_MAX_ROUNDS):
            text, calls = self._chat.turn(messages, tools)
            if not calls:
                break
            messages.append({"role": "assistant", "content": text, "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "tool_call_id": call.get("id"), "content": _carry_out(call, act)})
        else:
            raise InfrastructureError(
                f"The model of the user still called functions after {_MAX_ROUNDS} rounds; expected a message to the "
                "agent. Use a model that follows its instructions better."
            )
        spoken = visible_text(text).strip()
        if not spoken:
            raise InfrastructureError(
                f"The model of the user wrote no message to the agent, but {text!r:.80}; expected text outside of its "
                "reasoning. Use a model that reasons less, or switch its reasoning off."
            )
        return spoken


def _as_the_user_sees_it(turn: Message) -> dict[str, Any]:
    """A turn for the user's model, which is the assistant of its own conversation; the agent is the user there."""
    role: Role = "assistant" if turn.role == "user" else "user" if turn.role == "assistant" else turn.role
    return replace(turn, role=role).to_dict(text_arguments=True)


def _schema(operations: type[Operations], name: str) -> dict[str, Any]:
    description, parameters = specification(operations, name)  # type: ignore[arg-type]  # a class is hashable
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _carry_out(call: Mapping[str, Any], act: Act) -> str:
    """Carry out a call as an endpoint wrote it; the user's mistakes are results, as the agent's are."""
    try:
        function = call["function"]
        arguments = parse_json(function.get("arguments") or "{}")
        if not isinstance(arguments, dict):
            raise ValueError("arguments must be an object")
        return act(str(function["name"]), arguments)
    except (KeyError, TypeError, ValueError) as error:
        return f"Error: the call cannot be read: {error}"


# --- the user as a tool that takes messages --------------------------------------------------------------------------

_CONVERSATION = "conversation"


class Conversation:
    """What was said in an episode, and what the user did in between."""

    def __init__(self, turns: Sequence[Message]) -> None:
        self.turns = list(turns)

    def close(self) -> None:
        """Nothing to free."""


class EpisodeStart:
    """Opens database and conversation of the running episode; shared by an environment's tools.

    Attributes:
        task: the task of the running episode.
    """

    def __init__(self) -> None:
        self.task: Tau2Task | None = None

    def open_database(self) -> Database:
        """The database at the start of the episode."""
        return self._current().open_database()

    def open_conversation(self) -> Conversation:
        """The conversation at the start of the episode."""
        task = self._current()
        spoken = [turn for turn in task.history if turn.role in ("user", "assistant") and turn.content]
        return Conversation([*spoken, Message("user", task.prompt)])

    def _current(self) -> Tau2Task:
        if self.task is None:
            raise EpisodeError("The database opens with an episode; call reset() first.")
        return self.task


class UserTool(Tool):
    """The user of an episode: takes the agent's messages, and replies.

    `data` of an outcome has the calls that the user made ("user_calls"), and, where the reply ends the conversation,
    the changed rows of the database ("changes").

    Args:
        user: who replies.
        start: opens the conversation.
    """

    per_episode = True
    takes_messages = True

    def __init__(self, user: User, start: EpisodeStart) -> None:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        description = "Write a message to the user and read the reply."
        super().__init__(MESSAGE_USER, description, {**parameters, "additionalProperties": False}, timeout=None)
        self._user, self._start = user, start

    @property
    def is_instant(self) -> bool:
        """Whether it returns at once: only the scripted user does."""
        return self._user is scripted_user

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Pass a message on to the user, and return the reply.

        Raises:
            InfrastructureError: the user's model fails.
        """
        conversation = self.resources.get(_CONVERSATION, self._start.open_conversation)
        assert self._start.task is not None
        message = Message("assistant", arguments["text"])
        database = self.resources.get(DATABASE, self._start.open_database)
        operations = self._start.task.world.operations(database)
        calls: list[dict[str, Any]] = []

        def act(name: str, arguments: Mapping[str, Any]) -> str:
            if name not in operations.user_tools:
                return f"Error: there is no {name!r}"
            try:
                result = operations.call(name, arguments)
            except ToolError as error:
                result = f"Error: {error}"
            calls.append({"name": name, "arguments": dict(arguments), "result": result})
            return result

        reply = self._user(self._start.task, (*conversation.turns, message), act)
        conversation.turns.append(message)
        for call in calls:
            made = ToolCall(call["name"], call["arguments"], f"call_{len(conversation.turns)}")
            conversation.turns.append(Message("user", "", tool_calls=(made,)))
            conversation.turns.append(Message("tool", call["result"], tool_call_id=made.id))
        conversation.turns.append(Message("user", reply))
        data: dict[str, Any] = {"user_calls": calls} if calls else {}
        if any(token in reply for token in END_TOKENS):
            data["changes"] = database.changes
        return ToolOutcome(reply, data=data or None)

    def get_state(self) -> Any:
        """Conversation and changed rows, None if nothing was opened."""
        if not len(self.resources):
            return None
        turns = self.resources.get(_CONVERSATION, self._start.open_conversation).turns
        return turns, self.resources.get(DATABASE, self._start.open_database).changes

    def set_state(self, state: Any) -> None:
        """Restore a state."""
        if state is not None:
            turns, changes = state
            self.resources.get(_CONVERSATION, self._start.open_conversation).turns = turns
            self.resources.get(DATABASE, self._start.open_database).changes = changes
