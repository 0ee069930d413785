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
from agent_r1_gym.envs.tau2.language import THE_END, UNKNOWN, WAITING, YES, asking_sentences, is_closing
from agent_r1_gym.support.json_data import parse_json

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import Tau2Task

Act = Callable[[str, Mapping[str, Any]], str]
DEMAND = "Please transfer me to a human agent."
"""What a customer says with each request for a human agent."""
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
_CONSENT = re.compile(
    r"\b(?:consent|authori[sz]e|objections?|(?:your|the) decision|you agree|like me to|want me to|ok to|okay to)\b|"
    r"\b(?:that|this|it) suits? (?:you|your)|\b(?:get|got|have|understood?) (?:this|that|it|everything|you) right\b|"
    r"\bmay I\?",
    re.IGNORECASE,
)
"""What asks for a yes, besides what `language` knows."""
_OFFER = re.compile(
    r"\b(?:do|would) you (?:want|like|prefer|need)\b"
    r"(?! (?:me|us|that|this|to (?:proceed|continue|go ahead|confirm|move forward))\b)"
    r"|\b(?:confirm|verify) (?:your|which|what|when|where|how|his|her|their|the (?!above|detail|request|change|order))",
    re.IGNORECASE,
)
"""What looks like a request for a yes, and asks what the customer wants or knows."""
_WITHHOLDS = re.compile(
    r"^\W*(?:no|nope|wait|actually|hold on|hmm|but|never)\b|\?|\b(?:do not|don['’]t|not|rather) (?:want|need|think)\b",
    re.IGNORECASE,
)
_AGREES = re.compile(
    r"\b(?:yes|yeah|sure|go ahead|please do|of course|let['’]s do|(?:sounds|looks) (?:good|great|perfect))\b",
    re.IGNORECASE,
)
_PRAISED = re.compile(
    r"^(?:The )?(?!(?:That|This|It|Which|Everything|All|Yes)\b)((?:[A-Z][\w-]* ){1,4})(?:sounds|looks|seems)\b"
)
_ANNOUNCES = re.compile(r"\b(?:let me|I['’]ll|I will) (?:do|submit|apply|go with|take)\b", re.IGNORECASE)
_NEGATED = re.compile(
    r"\b(?:not|never)\b(?! (?:hesitate|forget|mind))|n['’]t\b(?! (?:hesitate|forget|mind))", re.IGNORECASE
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
_TELLS = re.compile(r"\b(?:please|you|your|now|go ahead|next)\b", re.IGNORECASE)
_HUMAN = re.compile(r"\bhuman (?:agent|colleague|representative)s?\b", re.IGNORECASE)
_IDENTITY = re.compile(
    r"\bverif(?:y|ication)\b(?!.{0,20}\b(?:charge|transaction|amount))|\bidentity\b|\bidentify (?:you|yourself)\b|"
    r"\bwho (?:am I|you are|is this)\b|\b(?:locate|find|pull up|look up|access) your (?:account|profile|record|file)|"
    r"\bsecurity (?:questions?|check)",
    re.IGNORECASE,
)
_REFERS_BACK = re.compile(
    r"\b(?:tell|giv\w{1,3}|provid\w{1,3}|shar\w{1,3}|know|stat\w{1,3})\b.{0,60}\b(?:th[eo]se|them|both|the above|"
    r"all of (?:it|this|that))\b",
    re.IGNORECASE,
)
_LIST_ITEM = re.compile(r"\s{0,9}(?:[-*•]|\d{1,2}[.)])")
_ASKED_FACTS = {
    "name": r"\bwho am I (?:talking|speaking)\b|\b(?:full|first|last|legal|your) name\b|\bname[,;]|"
    r"\bname (?:and|on (?:the|your) (?:account|file))\b",
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


def act_on(task: Tau2Task, message: str, spoken: str, act: Act) -> list[str]:
    """Say and do what a message of the agent makes a customer say and do; the replies, [] without a script.

    Args:
        task: the task; its gold actions are what the customer will do.
        message: what the agent wrote.
        spoken: everything that the customer has said.
        act: carries out the customer's operations.
    """
    if "apply_for_credit_card" not in task.world.operations.user_tools:
        return []
    calls = [action.call for action in task.actions or () if action.by_user]
    script = read_script(task.scenario.instructions)
    is_last = is_closing(message) and all(is_closing(sentence) for sentence, _ in asking_sentences(message)[-1:])
    is_end = is_last or _HUMAN.search(message) is not None
    demands = list(_demand(task, spoken, act, is_end=is_end)) if script is not None else []
    if done := demands or _use_given(calls, message, spoken, act):
        return done
    if script is None:
        return [reply for call in calls if (reply := _act(call, message, spoken, act))]
    return _Customer(script, calls, spoken, act).reply(message, is_last=is_last)


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

    def reply(self, message: str, *, is_last: bool) -> list[str]:
        """What they say next."""
        sentences = _SENTENCE.split(message)
        facts = _asked_facts(self._facts, [part for part in sentences if not _is_proposal(part)])
        if facts is not None:
            line = self._reaction(" ".join(part for part in sentences if not (_kinds(part) or _is_proposal(part))))
            said = " ".join(fact.text for fact in facts)
            return [text for text in (said, line.text if line else "") if text] or [UNKNOWN]
        is_proposal = _is_proposal(message)
        line = self._reaction(message, is_proposal=is_proposal)
        if done := self._deeds(message, line):
            return done
        if is_proposal:
            return [_with_consent(line)]
        if line is not None and line.kind in _QUESTIONED:
            parts = (self._reaction(part) for part in _QUESTION.split(message, _MAX_QUESTIONS))
            others = [other for other in parts if other is not None and other.kind in _QUESTIONED]
            return [" ".join(dict.fromkeys(answer.text for answer in sorted((line, *others), key=_order)))]
        if line is not None and line.text:
            return [line.text]
        is_question = "?" in message or "please" in message.lower()
        is_open = is_question and _IS_OPEN.search(message) is not None
        is_offer = any(is_yes_or_no for _, is_yes_or_no in asking_sentences(message)[-1:])
        if is_offer and not (is_open or is_last):
            return [YES]
        if is_open and _WHICH_CARD.search(message) and (card := self._chosen()):
            return [f"The {card}."]
        line = self._answer(message) if is_question and not is_last else None
        if line := line or self._next(is_last=is_last, is_open=is_open, is_refused=is_refusal(message)):
            return [line.text]
        return [THE_END if is_last else UNKNOWN if is_question else WAITING]

    def _deeds(self, message: str, line: Reply | None) -> list[str]:
        """The replies with which they do what a message asks for, after the reactions before it in the script."""
        acting = [other for other in self._replies if other.acts]
        said = line if line is not None and line.acts else acting[0] if len(acting) == 1 else None
        is_early = line is not None and line.kind is Kind.REACTION and any(line.order < other.order for other in acting)
        is_early = is_early and line is not None and _ANNOUNCES.search(line.text) is None
        for call in self._calls:
            is_advised = call.name in ("apply_for_credit_card", "submit_referral")
            if is_advised and is_early and said is not line:
                continue
            if done := _act(call, message, self._spoken, self._act, is_due=self._is_due(call, line, acting)):
                said = said if line is None or _ANNOUNCES.search(line.text) is None else line
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

    def _reaction(self, message: str, *, is_proposal: bool = False) -> Reply | None:
        """The line whose condition a message meets best, None if it meets none.

        Args:
            message: what the agent wrote.
            is_proposal: whether it waits for a yes: answers to questions, and what comes afterwards, are none to it.
        """
        words, refuses = topics(message), is_refusal(message)
        stated = topics(" ".join(part for part in _SENTENCE.split(message) if not _ASKED_BACK.search(part)))
        is_done = not is_proposal and _IS_DONE.search(message) is not None
        is_question = not is_proposal and ("?" in message or "tell me" in message.lower())
        is_open = {Kind.STAGE: is_done, Kind.REACTION: True, Kind.ASKED: is_question, Kind.NEED: is_question}
        lines = [
            line
            for line in self._unsaid
            if is_open.get(line.kind)
            and (refuses or not line.is_refused)
            and (self._has_acted or not line.follows_act)
            and _is_about(line.text, message)
        ]
        scores = {line: self._score(line, stated if line.kind is Kind.REACTION else words) for line in lines}
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
        common, shared = trigger & words, len((line.words - trigger - vague) & words)
        if any(_opposite(word) in words for word in trigger - common):
            return 0
        score = sum(1 / max(self._counts[word], 1) for word in common) + shared / 10
        clear, needed = common - _VAGUE, len(trigger - _VAGUE)
        is_unique = needed < 3 and any(self._counts[word] == 1 for word in clear)
        is_met = bool(common and (not own or own & common)) and (len(clear) >= min(2, needed) or is_unique)
        is_now = self._stages(line.order) == self._stage
        is_met = is_met or (is_asked and bool(score >= 0.5 if common else shared > 1 and is_now))
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

    def _next(self, *, is_last: bool, is_open: bool, is_refused: bool) -> Reply | None:
        """The next line that they bring up themselves; none behind a condition unless the agent closes or refuses."""
        waits = False
        for line in self._unsaid:
            if line.kind is Kind.STAGE and (self._has_acted if line.follows_act else is_last):
                return line
            if line.kind is Kind.NEED and is_open and not is_last and self._stages(line.order) == self._stage:
                return line
            if line.kind is Kind.WISH and not waits:
                return line
            waits = waits or (line.kind in (Kind.STAGE, Kind.REACTION) and not (is_last or is_refused))
        return None


def _is_proposal(message: str) -> bool:
    """Whether the last thing that a message asks for is a yes to what the agent is going to do."""
    sentence, is_yes_or_no = next(iter(asking_sentences(message)[-1:]), ("", False))
    is_proposal = is_yes_or_no or _CONSENT.search(sentence) is not None
    return is_proposal and not (is_closing(sentence) or _OFFER.search(sentence) or _IDENTITY.search(sentence))


def _with_consent(line: Reply | None) -> str:
    """What they say to a proposal: the line that it brings to mind, and yes unless the line decides or asks back."""
    if line is None or not line.text:
        return YES
    return line.text if _WITHHOLDS.search(line.text) or _AGREES.search(line.text) else f"{line.text} {YES}"


def _is_about(text: str, message: str) -> bool:
    """Whether a line that praises a card or an account by its name answers a message with that name."""
    praised = _PRAISED.match(text)
    return praised is None or praised.group(1).strip().lower() in message.lower()


def _unmarked(word: str) -> str:
    return word.removeprefix("not:")


def _opposite(word: str) -> str:
    return word.removeprefix("not:") if word.startswith("not:") else f"not:{word}"


def _named_facts(sentence: str) -> set[str]:
    return {kind for kind, asked in _ASKED_FACTS.items() if re.search(asked, sentence, re.IGNORECASE)}


def _is_request(sentence: str) -> bool:
    is_announced = _OWN_ACTION.search(sentence) is not None and "?" not in sentence
    return _REQUEST.search(sentence) is not None and not is_announced


def _kinds(sentence: str) -> set[str]:
    """The facts that a sentence asks for; "*" stands for who they are."""
    if not _is_request(sentence):
        return set()
    found = _named_facts(sentence)
    return found or ({"*"} if _IDENTITY.search(sentence) else set())


def _asked_facts(facts: Iterable[Fact], sentences: Iterable[str]) -> list[Fact] | None:
    """What they are asked about themselves, None if they are not; who is to prove their identity gives the basics.

    "Those details" are all that was named before, and a list belongs to the request above it.
    """
    kinds: set[str] = set()
    before: set[str] = set()
    is_list = False
    for sentence in sentences:
        asked, named = _kinds(sentence), _named_facts(sentence)
        is_list = is_list and _LIST_ITEM.match(sentence) is not None
        kinds |= asked | (named if is_list else set())
        kinds |= before if _is_request(sentence) and _REFERS_BACK.search(sentence) else set()
        is_list = is_list or (_is_request(sentence) and sentence.rstrip("* ").endswith(":"))
        before |= named
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
    return ""


def _is_done(call: ToolCall, spoken: str) -> bool:
    """Whether the customer has said that they did something."""
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


def _use_given(calls: Iterable[ToolCall], message: str, spoken: str, act: Act) -> list[str]:
    """Use the operations that the agent has handed over, on the objects that its message names; the results."""
    given = (call for call in calls if call.name == "call_discoverable_user_tool" and not _is_done(call, spoken))
    return [act(call.name, call.arguments) for call in given if _is_handed_over(call, message)]


def _is_handed_over(call: ToolCall, message: str) -> bool:
    """Whether a message tells to use an operation, by its name or in its words, on the objects of a call."""
    name, objects = _given(call)
    sentences = [part for part in _SENTENCE.split(message) if not _NEGATED.search(part)]
    verb, *words = re.findall(r"[a-z]+", name)
    is_named = any(name in part for part in sentences)
    if not is_named and all(re.search(rf"\b{word}", message, re.IGNORECASE) for word in words):
        orders = (part for part in sentences if not (_ASKED_BACK.search(part) or _OWN_ACTION.search(part)))
        is_named = any(re.search(rf"\b{verb}\b", part, re.IGNORECASE) and _TELLS.search(part) for part in orders)
    named, own = _named(message, CARD_TYPES), _named(str(call.arguments.get("arguments")), CARD_TYPES)
    is_about = named & own or not (named and own)
    return bool(is_named and is_about) and all(any(value in part for part in sentences) for value in objects)


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


def _demand(task: Tau2Task, spoken: str, act: Act, *, is_end: bool) -> Iterator[str]:
    """Request a human agent, as often as the scenario wants it: at the start of the conversation, and at its end.

    The end has come when the agent closes the conversation, or speaks of human agents itself.
    """
    name = "request_human_agent_transfer"
    gold = [action.call.name for action in task.actions or ()]
    at_start = next((number for number, other in enumerate(gold) if other != name), len(gold))
    number = spoken.count(DEMAND)
    if number < (gold.count(name) if is_end or number > at_start else at_start):
        act(name, {})
        yield DEMAND
