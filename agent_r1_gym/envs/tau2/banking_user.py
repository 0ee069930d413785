"""What a scripted customer of the bank says and does: what its script has for a message of the agent (`dialogue`).

Models that play a user read "apply for the card that the agent recommends" and do so. A script knows from the gold
actions what it will do in the end, and does it once a message recommends the card or the account, or hands over the
operation; a card that is only mentioned, or advised against, is none to apply for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.tau2.banking_customer import CARD_TYPES
from agent_r1_gym.envs.tau2.dialogue import Fact, Kind, Reply, Script, is_refusal, read_script, topics
from agent_r1_gym.support.json_data import parse_json

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import Tau2Task

Act = Callable[[str, Mapping[str, Any]], str]
DEMAND = "Please transfer me to a human agent."
"""What a customer says with each request for a human agent."""
_YES, _UNKNOWN, _WAITING, _END = (
    "Yes, please go ahead.",
    "I don't know.",
    "OK.",
    "No, that is all. Thank you. ###STOP###",
)
"""What customers say without a script, as other users do (`users`)."""
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_ADVICE = re.compile(
    r"\b(?:recommend\w*|suggest\w*|advis\w+|appl(?:y|ication)|go (?:with|for)|choose|pick|best|ideal|perfect|suits?|"
    r"fits?|right (?:card|one|choice)|great (?:fit|choice|option|match)|interested|how about|what about|"
    r"offer(?:s|ing)?|submit|refer (?:him|her|them|your)|eligible|qualify|option for you|sign up|take)\b",
    re.IGNORECASE,
)
_ADVISED_AGAINST = re.compile(
    r"(?:\b(?:not|never|cannot|without|unable)\b|n['’]t\b)(?:\W+\w+){0,3}?\W+(?:recommend\w*|suggest\w*|advis\w+|apply|"
    r"eligible|qualif\w+|suits?|fits?|best|right|good|ideal|meets?|match\w*|offer\w*|an option|available|approved|"
    r"submit\w*|refer\w*|choose|pick|go (?:with|for))|\bineligible\b|\b(?:avoid|instead of|rather than|against)\b",
    re.IGNORECASE,
)
_ASKED_BACK = re.compile(
    r"\b(?:do|did|have|are|were) you (?!(?:want|interested|happy|ready|willing)\b|(?:\w+ )?(?:like|wish|care) to\b)"
    r"|\bhave (?:you|I)\b.{0,200}\?",
    re.IGNORECASE,
)
_CLOSING = re.compile(
    r"\b(?:any|some)thing (?:else|more|further|other)\b|\bwhat else\b|\bany (?:other|further|more) (?:question|request|"
    r"issue|concern)s?|\b(?:all set|take care|goodbye|good ?bye|you['’]?re welcome|glad I could|pleasure)\b|"
    r"\b(?:great|nice|good|wonderful|lovely) (?:day|evening|weekend)\b|\b(?:else|more) I can (?:do|help)|"
    r"cover everything",
    re.IGNORECASE,
)
_PROPOSAL = re.compile(
    r"\b(?:confirm|proceed|go ahead|shall (?:I|we)|should (?:I|we)|may I|can I|yes/no|are you sure|do you agree|"
    r"(?:do you want|would you like|want) (?:me|us)|is (?:that|this) (?:correct|right|ok|okay|all right|alright|fine)|"
    r"(?:okay|ok|fine|all right|alright|happy) (?:with you|for me|if I|to)|sounds? (?:good|right)|does that work)\b",
    re.IGNORECASE,
)
_IS_OPEN = re.compile(r"\b(?:what|which|when|why|how|who|where|tell me|describe)\b", re.IGNORECASE)
_IS_DONE = re.compile(
    r"\b(?:ha(?:s|ve) (?:now |just |already |been )*\w+|(?:is|are) (?:now |all )*(?:\w+ed|open|set|done|complete)|done|"
    r"complete|success\w*|I['’]ve|went through|credited|approved)\b",
    re.IGNORECASE,
)
_REQUEST = re.compile(
    r"\?|\b(?:please|need|provide|tell me|give me|confirm|verify|share|require|could you|can you|let me have)\b",
    re.IGNORECASE,
)
_OWN_ACTION = re.compile(r"\b(?:I|we)(?:['’]ll| will| have|['’]ve| am going| can)\b|\bshall (?:I|we)\b", re.IGNORECASE)
_IDENTITY = re.compile(
    r"\bverif(?:y|ication)\b(?!.{0,20}\b(?:charge|transaction|amount))|\bidentity\b|\bidentify (?:you|yourself)\b|"
    r"\bwho (?:am I|you are|is this)\b|\b(?:locate|find|pull up|look up|access) your (?:account|profile|record|file)|"
    r"\bsecurity (?:questions?|check)",
    re.IGNORECASE,
)
_ASKED_FACTS = {
    "name": r"\b(?:full|first|last|legal|your) name\b|\bname[,;]|\bname (?:and|on (?:the|your) (?:account|file))\b",
    "user ID": r"\b(?:user|customer|member) ?id\b",
    "phone number": r"\bphone\b|\bmobile number\b",
    "email": r"\be-?mail\b",
    "date of birth": r"\bdate of birth\b|\bdob\b|\bbirth ?da(?:te|y)\b|\bwhen were you born\b",
    "work address": r"\b(?:work|office) address\b",
    "address": r"(?<!mail )(?<!work )(?<!office )(?<!shipping )(?<!delivery )(?<!her )(?<!his )"
    r"(?<!their )\baddress(?!ed)\b",
    "annual income": r"\bincome\b|\bearn (?:a|per|each) year\b|\bsalary\b",
    "account ID": r"\baccount id\b",
    "Rho-Bank+ subscription": r"\brho-?bank ?\+|\bsubscription\b",
}
_VAGUE = frozenset(topics("account card rewards"))
"""Words that say little at a bank."""
_QUESTIONED = (Kind.ASKED, Kind.NEED)
_QUESTION = re.compile(r"\?\s+|,? and (?=(?:what|how|which|when|why|do|does|did|is|are|would|could|can|will)\b)")
_MAX_QUESTIONS = 8
"""Questions of a message that are answered one by one."""
_WHICH_CARD = re.compile(r"\bwhich (?:\w+ )?(?:card|one)\b", re.IGNORECASE)
_BASICS = ("name", "user ID", "phone number", "email", "date of birth", "address")


def act_on(task: Tau2Task, message: str, spoken: str, act: Act, *, is_closing: bool) -> list[str]:
    """Say and do what a message of the agent makes a customer say and do; the replies, [] without a script.

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
    script = read_script(task.scenario.instructions)
    if script is None:
        return [reply for call in calls if (reply := _act(call, message, spoken, act))]
    is_closing = is_closing or _CLOSING.search(message) is not None
    demands = list(_demand(task, spoken, act, is_closing=is_closing))
    return demands or _Customer(script, calls, spoken, act).reply(message, is_closing=is_closing)


def _order(line: Reply) -> int:
    return line.order


class _Customer:
    """A customer in the middle of a conversation.

    Args:
        script: what they may say.
        calls: what they will do.
        spoken: everything that they have said.
        act: carries out their operations.
    """

    def __init__(self, script: Script, calls: list[ToolCall], spoken: str, act: Act) -> None:
        self._replies, self._facts, self._calls = script.replies, script.facts, calls
        self._act, self._spoken = act, spoken
        said = set(spoken.split("\n"))
        self._unsaid = [line for line in script.replies if line.text not in said]
        self._counts = Counter(dict.fromkeys(_VAGUE, 4))
        self._counts.update(word for line in script.replies for word in line.trigger or ())
        before = [line.order for line in script.replies if line.kind is Kind.STAGE and line not in self._unsaid]
        self._stage = self._stages(max(before, default=-1) + 1)
        self._has_acted = bool(calls) and all(_is_done(call, spoken) for call in calls)

    def reply(self, message: str, *, is_closing: bool) -> list[str]:
        """What they say next."""
        sentences = _SENTENCE.split(message)
        facts = _asked_facts(self._facts, sentences)
        if facts is not None:
            line = self._reaction(" ".join(part for part in sentences if not _kinds(part)))
            said = " ".join(fact.text for fact in facts)
            return [text for text in (said, line.text if line else "") if text] or [_UNKNOWN]
        line = self._reaction(message)
        if done := self._deeds(message, line):
            return done
        if line is not None and line.kind in _QUESTIONED:
            parts = (self._reaction(part) for part in _QUESTION.split(message, _MAX_QUESTIONS))
            others = [other for other in parts if other is not None and other.kind in _QUESTIONED]
            return [" ".join(dict.fromkeys(answer.text for answer in sorted((line, *others), key=_order)))]
        if line is not None and line.text:
            return [line.text]
        is_question = "?" in message or "please" in message.lower()
        is_open = is_question and _IS_OPEN.search(message) is not None
        is_proposal = _PROPOSAL.search(message) is not None
        if is_proposal and not (is_open or is_closing):
            return [_YES]
        if is_open and _WHICH_CARD.search(message) and (card := self._chosen()):
            return [f"The {card}."]
        line = self._answer(message) if is_question and not is_closing else None
        if line := line or self._next(is_closing=is_closing, is_open=is_open, is_refused=is_refusal(message)):
            return [line.text]
        return [_END if is_closing else _YES if is_proposal and not is_open else _UNKNOWN if is_question else _WAITING]

    def _deeds(self, message: str, line: Reply | None) -> list[str]:
        """The replies with which they do what a message asks for, after the reactions before it in the script."""
        acting = [other for other in self._replies if other.acts]
        said = line if line is not None and line.acts else acting[0] if len(acting) == 1 else None
        is_early = line is not None and line.kind is Kind.REACTION and any(line.order < other.order for other in acting)
        for call in self._calls:
            is_advised = call.name in ("apply_for_credit_card", "submit_referral")
            if is_advised and is_early and said is not line:
                continue
            if done := _act(call, message, self._spoken, self._act, is_due=self._is_due(call, line, acting)):
                is_new = said is not None and said in self._unsaid and said.text != ""
                return [said.text, done] if is_advised and said is not None and is_new else [done]
        return []

    def _is_due(self, call: ToolCall, line: Reply | None, acting: Sequence[Reply]) -> bool:
        """Whether a line is the one with which they apply for a card.

        That is so if the line is one of several outcomes and names the card, or if the reaction before it was said.
        """
        if line is None or not line.acts:
            return False
        before = [other for other in self._replies[: line.order] if other.kind is Kind.REACTION]
        is_next = bool(before) and before[-1] not in self._unsaid
        named = _named(line.acts, CARD_TYPES)
        return named == {call.arguments.get("card_type")} if len(acting) > 1 else is_next

    def _reaction(self, message: str) -> Reply | None:
        """The line whose condition a message meets best, None if it meets none."""
        words, refuses = topics(message), is_refusal(message)
        told = topics(" ".join(part for part in _SENTENCE.split(message) if not _ASKED_BACK.search(part)))
        is_done, is_question = _IS_DONE.search(message) is not None, "?" in message or "tell me" in message.lower()
        is_open = {Kind.STAGE: is_done, Kind.REACTION: True, Kind.ASKED: is_question, Kind.NEED: is_question}
        lines = [
            line
            for line in self._unsaid
            if is_open.get(line.kind) and (refuses or not line.is_refused) and (self._has_acted or not line.follows_act)
        ]
        scores = {line: self._score(line, told if line.kind is Kind.REACTION else words) for line in lines}
        best = max(lines, key=lambda line: (scores[line], -line.order), default=None)
        return best if best is not None and scores[best] > 0 else None

    def _score(self, line: Reply, words: frozenset[str]) -> float:
        """How well a line fits, 0 if it does not: rare words of its heading count most, those of its text a little."""
        trigger, own, is_asked = line.trigger or frozenset(), line.own, line.kind in _QUESTIONED
        if line.is_refused or is_asked:  # a refusal is checked apart, and a question negates nothing
            trigger, own, words = (frozenset(map(_unmarked, part)) for part in (trigger, own, words))
        if not trigger:
            return 0.1 if line.is_refused else 0
        vague = frozenset() if line.kind is Kind.NEED else _VAGUE
        common, told = trigger & words, len((line.words - trigger - vague) & words)
        if any(_opposite(word) in words for word in trigger - common):
            return 0
        score = sum(1 / max(self._counts[word], 1) for word in common) + told / 10
        clear, needed = common - _VAGUE, len(trigger - _VAGUE)
        is_unique = needed < 3 and any(self._counts[word] == 1 for word in clear)
        is_met = bool(common and (not own or own & common)) and (len(clear) >= min(2, needed) or is_unique)
        is_now = self._stages(line.order) == self._stage
        is_met = is_met or (is_asked and bool(score >= 0.5 if common else told > 1 and is_now))
        return round(score * (1 if is_now else 0.5), 3) if is_met else 0

    def _stages(self, order: int) -> int:
        """The number of stages before a place in the script."""
        return sum(line.kind is Kind.STAGE for line in self._replies[:order])

    def _answer(self, message: str) -> Reply | None:
        """The wish, or what is known of the situation, that a question is about; None if there is none."""
        words = topics(message)
        lines = [line for line in self._replies if line.kind in (Kind.WISH, Kind.FACT, *_QUESTIONED)]
        counts = Counter(word for line in lines for word in line.words)
        weights = {line: sum(1 / counts[word] for word in line.words & words) for line in lines}
        best = max(lines, key=lambda line: (weights[line], line.kind is not Kind.FACT, -line.order), default=None)
        if best is None or not (len(best.words & words) > 1 or (len(words) < 4 and weights[best] >= 0.3)):
            return None
        return best

    def _chosen(self) -> str:
        """The card of the outcome that the conversation has come to, "" if there is none."""
        named = [_named(line.acts, CARD_TYPES) for line in self._replies if line.acts and line not in self._unsaid]
        return next((name for names in reversed(named) for name in names if len(names) == 1), "")

    def _next(self, *, is_closing: bool, is_open: bool, is_refused: bool) -> Reply | None:
        """The next line that they bring up themselves; none behind a condition unless the agent closes or refuses."""
        waits = False
        for line in self._unsaid:
            if line.kind is Kind.STAGE and (self._has_acted if line.follows_act else is_closing):
                return line
            if line.kind is Kind.NEED and is_open and not is_closing and self._stages(line.order) == self._stage:
                return line
            if line.kind is Kind.WISH and not waits:
                return line
            waits = waits or (line.kind in (Kind.STAGE, Kind.REACTION) and not (is_closing or is_refused))
        return None


def _unmarked(word: str) -> str:
    return word.removeprefix("not:")


def _opposite(word: str) -> str:
    return word.removeprefix("not:") if word.startswith("not:") else f"not:{word}"


def _kinds(sentence: str) -> set[str]:
    """The facts that a sentence asks for; "*" stands for who they are."""
    if not _REQUEST.search(sentence) or (_OWN_ACTION.search(sentence) and "?" not in sentence):
        return set()
    found = {kind for kind, asked in _ASKED_FACTS.items() if re.search(asked, sentence, re.IGNORECASE)}
    return found or ({"*"} if _IDENTITY.search(sentence) else set())


def _asked_facts(facts: Iterable[Fact], sentences: Iterable[str]) -> list[Fact] | None:
    """What they are asked about themselves, None if they are not; who is to prove their identity tells the basics."""
    kinds = {kind for sentence in sentences for kind in _kinds(sentence)}
    if not kinds:
        return None
    named = kinds - {"*"}
    return [fact for fact in facts if (fact.kind in named if named else fact.kind in _BASICS and not fact.is_reserved)]


# --- the customer's operations ---------------------------------------------------------------------------------------


def _act(call: ToolCall, message: str, spoken: str, act: Act, *, is_due: bool = False) -> str:
    """The reply to a message that asks for a gold action of the customer, "" if it does not.

    Args:
        call: the gold action.
        message: what the agent wrote.
        spoken: everything that the customer has said.
        act: carries out operations.
        is_due: whether the script has come to the application for a card.
    """
    arguments = call.arguments
    if _is_done(call, spoken):
        return ""
    if call.name == "apply_for_credit_card":
        card = str(arguments.get("card_type"))
        if not (_is_advised(message, card, CARD_TYPES) or (is_due and _named(message, CARD_TYPES) <= {card})):
            return ""
        return f"I have applied for the {card}. {act(call.name, arguments)}"
    if call.name == "submit_referral":
        account = str(arguments.get("account_type")).removesuffix(" Account")
        is_about = re.search("refer", message, re.IGNORECASE) is not None
        return act(call.name, arguments) if is_about and _is_advised(message, account, (account,)) else ""
    if call.name == "submit_transaction":
        amount, card = f"{arguments.get('amount'):g}", str(arguments.get("credit_card_type"))
        is_named = card.lower() in message.lower() and amount in message.replace(",", "")
        return act(call.name, arguments) if is_named else ""
    if call.name == "call_discoverable_user_tool":
        return _use_given(call, message, spoken, act)
    return ""


def _is_done(call: ToolCall, spoken: str) -> bool:
    """Whether the customer has told that they did something."""
    arguments = call.arguments
    if call.name == "apply_for_credit_card":
        return "Credit card application submitted" in spoken
    if call.name == "submit_referral":
        return f"- Account Type: {arguments.get('account_type')}\n" in spoken
    if call.name == "submit_transaction":
        return "Transaction submitted" in spoken
    name, objects = _given(call)
    if objects:
        return any(f'"{value}"' in spoken for value in objects)
    return call.name != "call_discoverable_user_tool" or f"Executed: {name}" in spoken


def _given(call: ToolCall) -> tuple[str, list[str]]:
    """The name of an operation that the agent hands over, and the objects that it is about."""
    try:
        arguments = parse_json(str(call.arguments.get("arguments", "{}")))
    except ValueError:
        arguments = None
    values = [str(value) for value in arguments.values()] if isinstance(arguments, dict) else []
    name = str(call.arguments.get("discoverable_tool_name"))
    return name, [value for value in values if value.startswith(("txn_", "cc_", "btxn_"))]


def _use_given(call: ToolCall, message: str, spoken: str, act: Act) -> str:
    """Use an operation that the agent has handed over and names, on an object that it names."""
    name, objects = _given(call)
    sentences = [part for part in _SENTENCE.split(message) if name in part]
    if not sentences or not all(value in message for value in objects):
        return ""
    is_forbidden = all(re.search(r"\b(?:not|never)\b|n['’]t\b", part, re.IGNORECASE) for part in sentences)
    return "" if is_forbidden else act(call.name, call.arguments)


def _named(text: str, names: Iterable[str]) -> set[str]:
    """The names in a text; "Business Gold Rewards Card" does not name the Gold one."""
    named, rest = set(), text.lower()
    for name in sorted(names, key=len, reverse=True):
        if name.lower() in rest:
            named.add(name)
            rest = rest.replace(name.lower(), "")
    return named


def _is_advised(message: str, wanted: str, names: Iterable[str]) -> bool:
    """Whether a message recommends or offers one of several names, and does not advise against it.

    A sentence without a name is about the one before.
    """
    names = tuple(names)
    subject: set[str] = set()
    is_advised = False
    advice = re.compile(
        rf"\b(?:recommend|suggest|go with|apply for|choose|pick)\W+(?:\w+\W+){{0,3}}?{re.escape(wanted)}\b",
        re.IGNORECASE,
    )
    for sentence in _SENTENCE.split(message):
        named = _named(sentence, names)
        subject = named or subject
        if wanted not in subject:
            continue
        if _ADVISED_AGAINST.search(sentence):
            if subject == {wanted}:
                return False
            continue
        if _ASKED_BACK.search(sentence):
            continue
        is_advised |= advice.search(sentence) is not None or (
            subject == {wanted} and _ADVICE.search(_without(sentence, named)) is not None
        )
    return is_advised


def _without(text: str, names: Iterable[str]) -> str:
    for name in names:
        text = re.sub(re.escape(name), "", text, flags=re.IGNORECASE)
    return text


def _demand(task: Tau2Task, spoken: str, act: Act, *, is_closing: bool) -> Iterator[str]:
    """Request a human agent, as often as the scenario wants it: at the start of the conversation, and at its end."""
    name = "request_human_agent_transfer"
    gold = [action.call.name for action in task.actions or ()]
    at_start = next((number for number, other in enumerate(gold) if other != name), len(gold))
    if spoken.count(DEMAND) < (gold.count(name) if is_closing else at_start):
        act(name, {})
        yield DEMAND
