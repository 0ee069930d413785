"""The users that an agent talks to: scripted from their scenario, or a language model that plays it.

A user is a function from a task and the conversation so far to the next thing that the user says. It keeps no state of
its own, so a conversation can be continued from any point.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_r1_gym.core.parsing import visible_text
from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import Message, Role, ToolCall, ToolOutcome, Transition
from agent_r1_gym.envs.tau2.banking_user import DEMAND, act_on
from agent_r1_gym.envs.tau2.database import Database
from agent_r1_gym.envs.tau2.grading import is_communicated, is_open
from agent_r1_gym.envs.tau2.judge import StatementJudge
from agent_r1_gym.envs.tau2.language import (
    AGREED,
    ASKED,
    CLOSING,
    CONFIRM,
    DONE,
    END_TOKENS,
    HELD,
    NO,
    NOTHING_ELSE,
    OUT_OF_SCOPE,
    OVER,
    REFUSED,
    STOP,
    THE_END,
    TRANSFER,
    UNDER,
    UNKNOWN,
    WAITING,
    YES,
    Line,
    asking_sentences,
    content_words,
    heard,
    lines,
    plain_text,
    sentences,
)
from agent_r1_gym.envs.tau2.operations import DATABASE, Operations, specification
from agent_r1_gym.envs.tau2.phone_user import follow, remaining_problem
from agent_r1_gym.envs.tau2.proposals import (
    amounts_in,
    gold_kinds,
    kinds_in,
    names_other_reason,
    objection_to,
    spending_limit,
    unwanted_extra,
)
from agent_r1_gym.envs.tau2.tasks import Scenario, Tau2Task
from agent_r1_gym.errors import EpisodeError, InfrastructureError, ToolError
from agent_r1_gym.support.chat_client import ChatClient
from agent_r1_gym.support.json_data import parse_json

Act = Callable[[str, Mapping[str, Any]], str]
"""Carries out an operation of the user (`Operations.user_tools`), and returns its result."""
User = Callable[[Tau2Task, Sequence[Message], Act], str]
"""Says the next turn of a conversation, whose turns have the role "user" (its own) or "assistant"; what the user did
before is a turn of its own with one of `tool_calls`, and one with the role "tool" and the result."""

# --- scripted users --------------------------------------------------------------------------------------------------

MESSAGE_USER = "message_user"
"""Name of the tool that plays the user."""
_WORKS = "Yes, it works now."
_STILL_OPEN = "I still need your help."
_MAX_REPEATS = 3
_TRANSFERRED = re.compile(
    r"\b(?:(?:are|were|is|am|been|being|now)|(?:you|we|i)'(?:re|ve|m)) (?:now )?(?:being )?transferr(?:ed|ing)\b|"
    r"\b(?:have|has|just) transferred\b|^transferring you\b",
    re.IGNORECASE,
)
_MONEY = re.compile(r"\b(?:money|funds?|balance|amount|points|miles|payment|savings|deposit)\b|\$", re.IGNORECASE)
_HUMAN = re.compile(r"\b(?:agent|human|representative|specialist|supervisor|colleague|person)\b", re.IGNORECASE)
_NOT_YET = re.compile(
    r"\?|\b(?:could|can|would|if|want|like|may|might|whether|unable|cannot|can't|not|before)\b", re.IGNORECASE
)
_IDENTITY = re.compile(
    r"\b(?:e-?mail|zip|post ?code|user ?id|customer id|(?:your|(?:full|first|last|the)) name|name (?:and|or)|verify|"
    r"identity|identify|authenticate|who (?:am i|i am|do i|are you|you are|is (?:this|calling))|your details|account|"
    r"date of birth|phone number)\b",
    re.IGNORECASE,
)
_NEW_ADDRESS = re.compile(r"\bnew (?:\w+ ){0,3}(?:address|passenger)\b", re.IGNORECASE)
_OPEN_QUESTION = re.compile(
    r"\b(?:how|what) (?:can|may|could|would|do|should|else) (?:i|we|you)\b.{0,20}"
    r"\b(?:help|assist|do|proceed|want|like)\b|"
    r"\bwh(?:ich|at)(?:'s| is)? (?:(?:the|your|full|new|default|shipping) )*"
    r"(?:of (?:them|these|those)|one|order|item|product|reservation|trip|booking|flight|address|problem|issue|"
    r"request)(?:s|es)?\b",
    re.IGNORECASE,
)
_ABOUT_SOMETHING = re.compile(r"\b(?:which|what|how (?:many|much)|why|where|when|who)\b", re.IGNORECASE)
_BEFORE = re.compile(r"\bbefore (?:i|we)\b|\bother (?:item|change)s?\b", re.IGNORECASE)
_WHY = re.compile(r"\breason\b|\bwhy\b(?!.{0,40}\b(?:return|exchang|chang))", re.IGNORECASE)
_CORRECTS = frozenset({"differ", "wrong", "incorr"})
"""Words of conditions that a right proposal does not meet."""
_IF_NEEDED = re.compile(r"\bif (?:necessary|needed)\b|\bconsider the issue resolved\b", re.IGNORECASE)
"""What a user says only where it is asked about."""
_STATUS_QUESTION = re.compile(r"\b(?:work(?:s|ing)?|resolved|fixed|solved)\b[^.]{0,80}\?", re.IGNORECASE)


def scripted_user(task: Tau2Task, turns: Sequence[Message], act: Act, *, is_open: bool | None = None) -> str:
    """Say what the scenario says, and nothing else.

    The user states the reason first (`Tau2Task.prompt`). Then it answers questions with the sentences of the scenario
    that are about them, confirms what is not known to be wrong, and ends the conversation when it has said everything
    and the agent has nothing to ask. What it wants in the end is read from the gold actions: that is how it recognises
    a proposal that it must decline, and that it is not done yet. It has no feelings, and does not follow directions for
    acting. Where it has a telephone, it does what the agent asks it to do with it, and reports what it sees; a customer
    of the bank acts when the agent has named the card, account or operation (`banking_user`).

    Args:
        task: the task.
        turns: the conversation.
        act: carries out the user's operations.
        is_open: whether something that the user wants is not done yet (`grading.is_open`), None if that is not known.
    """
    now = _Moment.of(task, turns, is_open)
    if _is_transferred(now.message):
        reply = TRANSFER
    elif CLOSING in now.words and now.is_open is False and _is_informed(now):
        reply = THE_END
    else:
        reply = "\n".join(_deeds(now, turns[-1].content, act)) or _say(now, act)
    if STOP in reply and REFUSED not in now.words and now.is_open:
        reply = f"{_STILL_OPEN} {task.prompt}"
    latest = [turn.content for turn in turns if turn.role == "user" and turn.content][-_MAX_REPEATS:]
    is_stuck = reply not in (YES, DEMAND) and latest == [reply] * _MAX_REPEATS
    return OUT_OF_SCOPE if is_stuck else reply


@dataclass(frozen=True, slots=True)
class _Script:
    """What a scenario lets its user say.

    Attributes:
        identity: who they are.
        plain: sentences without a condition.
        wishes: those of them that come out before the end, even without a question.
        conditional: sentences with a condition.
        limit: what they are willing to pay; None: they do not say.
    """

    identity: str
    plain: tuple[Line, ...]
    wishes: tuple[Line, ...]
    conditional: tuple[Line, ...]
    limit: float | None


@dataclass(frozen=True, slots=True)
class _Moment:
    """What a user reacts to.

    Attributes:
        task: the task.
        script: what its scenario lets the user say.
        message: what the agent wrote, as plain text.
        words: its content words, with what it does (`heard`).
        said: everything that the user has said.
        messages: everything that the agent has written.
        is_open: whether something that the user wants is not done yet, None if that is not known.
    """

    task: Tau2Task
    script: _Script
    message: str
    words: frozenset[str]
    said: str
    messages: tuple[str, ...]
    is_open: bool | None

    @classmethod
    def of(cls, task: Tau2Task, turns: Sequence[Message], is_open: bool | None) -> _Moment:
        said = "\n".join(turn.content for turn in turns if turn.role == "user")
        messages = tuple(plain_text(turn.content) for turn in turns if turn.role == "assistant")
        return cls(task, _script(task.scenario), messages[-1], heard(messages[-1]), said, messages, is_open)

    def unsaid(self) -> list[Line]:
        """The lines with a condition that were not said, do not wait for another one, and still have a use."""
        lines = (line for line in self.script.conditional if line.text not in self.said and line.after in self.said)
        return [line for line in lines if self.is_open is not False or not _is_moot(line)]

    def triggered(self) -> list[Line]:
        """Those of them whose condition the message meets, the best match first; corrections wait for a mistake."""
        met = [line for line in self.unsaid() if _is_met(line, self.message, self.script.limit)]
        if CONFIRM not in self.words or objection_to(self.task, self.message, self.said, self.script.plain, ()) is None:
            met = [line for line in met if not _CORRECTS.intersection(line.trigger or ())]
        return sorted(met, key=lambda line: -len((line.trigger or frozenset()) & self.words))


@functools.lru_cache(maxsize=1024)
def _script(scenario: Scenario) -> _Script:
    if scenario.replies is not None:
        return _Script("", (), (), (), limit=None)  # `banking_user` says what stands in a script
    known = [line for part in (scenario.known, scenario.unknown) for line in lines(part)]
    wishes = [*lines(scenario.reason), *lines(scenario.instructions)]
    return _Script(
        " ".join(line.text for line in known if line.trigger is None),
        tuple(line for line in (*wishes, *known) if line.trigger is None),
        tuple(line for line in wishes if line.trigger is None and not _IF_NEEDED.search(line.text)),
        tuple(line for line in (*wishes, *known) if line.trigger is not None),
        spending_limit(scenario),
    )


def _is_transferred(message: str) -> bool:
    """Whether a message says that a human takes over now; neither an offer to do so nor a transfer of money does."""
    return any(
        _TRANSFERRED.search(part) and not _NOT_YET.search(part) and (_HUMAN.search(part) or not _MONEY.search(part))
        for part in sentences(message)
    )


def _is_informed(now: _Moment) -> bool:
    """Whether the user knows what it wants to know; of statements about the conversation, only a judge can say so."""
    task = now.task
    asks = task.nl_assertions and "NL_ASSERTION" in task.reward_basis
    return not asks and all(is_communicated(text, now.messages) for text in task.communicate_info)


def _deeds(now: _Moment, message: str, act: Act) -> list[str]:
    """What the user does with its telephone or at its bank, if the message, as it was written, asks for it."""
    results = follow(message, now.task.world.operations.user_tools, act)
    return results or act_on(now.task, message, now.said, act)


def _say(now: _Moment, act: Act) -> str:
    script, triggered = now.script, now.triggered()
    asks_who = script.identity != "" and _asks_who(now.message)
    asked = content_words(" ".join(asking for asking, _ in asking_sentences(now.message))) | {ASKED}
    is_special = any({ASKED} < (line.trigger or frozenset()) & asked for line in triggered)
    if asks_who and script.identity not in now.said and not is_special:
        return script.identity
    if declined := unwanted_extra(now.task, now.message, script.plain):
        return declined
    if CONFIRM in now.words:
        return _answer_to_proposal(now, triggered)
    if triggered:
        return triggered[0].text
    if asks_who:
        return script.identity
    reason, phone = now.task.scenario.reason, now.task.world.operations.user_tools
    if "run_speed_test" in phone and _STATUS_QUESTION.search(now.message):
        return remaining_problem(reason, phone, act) or _WORKS
    reply = _gold_reason(now) or _answer(now)
    problem = remaining_problem(reason, phone, act) if STOP in reply else None
    return problem or reply


def _asks_who(message: str) -> bool:
    return any(
        _IDENTITY.search(asking) and not is_proposal and not _NEW_ADDRESS.search(asking)
        for asking, is_proposal in asking_sentences(message)
    )


def _answer(now: _Moment) -> str:
    """What the scenario says about a question, else the next wish that was not said yet, else the end."""
    script, is_question, is_about = now.script, ASKED in now.words, False
    if is_question:
        question = " ".join(sentence for sentence, _ in asking_sentences(now.message))
        is_about = _ABOUT_SOMETHING.search(question) is not None
        asked = content_words(question)
        if matching := _about(script, asked, now.said) or _about(script, now.words, now.said):
            new = [line for line in matching if line.text not in now.said]
            return " ".join(line.text for line in (new or matching)[:2])
    is_end = CLOSING in now.words or (DONE in now.words and not is_question)
    wishes = [line for line in script.wishes if line.text not in now.said]
    if is_end or (is_question and not is_about):
        wishes += [line for line in now.unsaid() if is_end and _is_due(now, line)]
        if wishes:
            return wishes[0].text
    if is_end:
        return NOTHING_ELSE if _BEFORE.search(now.message) else THE_END
    if is_question:
        return now.task.prompt if _OPEN_QUESTION.search(now.message) else UNKNOWN
    return WAITING


def _about(script: _Script, words: frozenset[str], said: str) -> list[Line]:
    """The lines that share two words with a question, else those that share one that no other line has."""
    known = [*script.plain, *(line for line in script.conditional if line.text in said)]
    shared = sorted(((line, line.words & words) for line in known), key=lambda pair: -len(pair[1]))
    uses = Counter(word for _, common in shared for word in common)
    matching = [line for line, common in shared if len(common) > 1]
    return matching or [line for line, common in shared if any(uses[word] == 1 for word in common)]


# --- conditions ------------------------------------------------------------------------------------------------------


def _is_moot(line: Line) -> bool:
    """Whether a line is of no use once all that the user wants is done: a fallback, or another wish."""
    trigger = line.trigger or frozenset()
    return not trigger & {ASKED, CONFIRM} and (DONE not in trigger or bool(kinds_in(line.text)))


def _is_met(line: Line, message: str, limit: float | None) -> bool:
    """Whether a message meets a condition: it does what the condition says, or shares two words with it."""
    words, trigger = heard(message), line.trigger or frozenset()
    acts = {word for word in trigger if word.startswith("<")}
    common, needed = len((trigger - acts) & words), min(2, len(trigger - acts))
    if acts & {OVER, UNDER}:
        limit = next((float(word) for word in trigger if word.isdigit()), limit)
        return limit is not None and any((amount > limit) == (OVER in acts) for amount in amounts_in(message))
    if ASKED in acts:
        return ASKED in words and common >= needed
    if CONFIRM in acts:
        return CONFIRM in words and (common >= needed or needed < 2)
    if acts & {DONE, AGREED}:
        return bool(acts & words) and common >= min(1, needed)
    return bool(acts & words) or 0 < needed <= common


def _is_due(now: _Moment, line: Line) -> bool:
    """Whether an unsaid line must come out before the end.

    Something was to be done first, its condition was met earlier (each refusal brings out one line), or the reference
    solution does what it asks for and nothing that was said does.
    """
    trigger = line.trigger or frozenset()
    if HELD in trigger or names_other_reason(now.task, line.text):
        return False
    if DONE in trigger or kinds_in(line.text) & gold_kinds(now.task) - kinds_in(now.said):
        return True
    if {CONFIRM, ASKED, AGREED} & trigger:
        return False
    met = [message for message in now.messages if _is_met(line, message, now.script.limit)]
    open_refusals = sum(CONFIRM not in heard(message) for message in met)  # what a proposal refuses, it replaces
    if REFUSED in trigger:
        fallbacks = [other for other in now.script.conditional if REFUSED in (other.trigger or ())]
        open_refusals -= sum(other.text in now.said for other in fallbacks)
    return open_refusals > 0


# --- proposals and reasons -------------------------------------------------------------------------------------------


def _answer_to_proposal(now: _Moment, triggered: Sequence[Line]) -> str:
    """A change of mind that waits for a proposal, else a fallback or wish where the proposal is wrong, else yes."""
    changes = [line.text for line in triggered if CONFIRM in (line.trigger or ())]
    if changes:
        return changes[0]
    objection = objection_to(now.task, now.message, now.said, now.script.plain, now.script.conditional)
    if objection is None:
        return YES
    return f"{NO} {triggered[0].text if triggered else objection}"


def _gold_reason(now: _Moment) -> str | None:
    """The gold action's reason, where the agent asks for one or offers it: scenarios leave it to the user."""
    if ASKED not in now.words:
        return None
    message = now.message.lower()
    reasons = [str(action.call.arguments.get("reason", "")) for action in now.task.gold_writes]
    fitting = (reason for reason in reasons if reason and (reason in message or _WHY.search(message)))
    return next((f"{reason.capitalize()}." for reason in fitting), None)


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
        earlier: its steps so far, for a judge.
    """

    def __init__(self) -> None:
        self.task: Tau2Task | None = None
        self.earlier: Sequence[Transition] = ()

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
    the changed rows of the database ("changes") and what the judge decided ("statements").

    Args:
        user: who replies.
        start: opens the conversation.
        judge: decides on the statements of tasks that are graded by them; None: no one does.
    """

    per_episode = True
    takes_messages = True

    def __init__(self, user: User, start: EpisodeStart, judge: StatementJudge | None = None) -> None:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        description = "Write a message to the user and read the reply."
        super().__init__(MESSAGE_USER, description, {**parameters, "additionalProperties": False}, timeout=None)
        self._user, self._start, self._judge = user, start, judge

    @property
    def is_instant(self) -> bool:
        """Whether it returns at once: only the scripted user without a judge does."""
        return self._user is scripted_user and self._judge is None

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Pass a message on to the user, and return the reply.

        Raises:
            InfrastructureError: the model of the user or of the judge fails.
        """
        conversation = self.resources.get(_CONVERSATION, self._start.open_conversation)
        task = self._start.task
        assert task is not None
        message = Message("assistant", arguments["text"])
        database = self.resources.get(DATABASE, self._start.open_database)
        operations = task.world.operations(database)
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

        seen = (*conversation.turns, message)
        if self._user is scripted_user:
            reply = scripted_user(task, seen, act, is_open=is_open(task, database.changes))
        else:
            reply = self._user(task, seen, act)
        conversation.turns.append(message)
        for call in calls:
            made = ToolCall(call["name"], call["arguments"], f"call_{len(conversation.turns)}")
            conversation.turns.append(Message("user", "", tool_calls=(made,)))
            conversation.turns.append(Message("tool", call["result"], tool_call_id=made.id))
        conversation.turns.append(Message("user", reply))
        data: dict[str, Any] = {"user_calls": calls} if calls else {}
        if any(token in reply for token in END_TOKENS):
            data["changes"] = database.changes
            if self._judge is not None and "NL_ASSERTION" in task.reward_basis:
                data["statements"] = self._judge(task, self._start.earlier, message.content, reply)
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
