"""From a scenario that is one long text, as the bank's are, to what a scripted user says.

Such a text introduces a character, lists what it knows about itself, and often is a script: headings such as "If agent
asks about fees:", each with a sentence in quotation marks. The sentences are said word by word; directions without a
quotation ("ask why not"), and what the text tells of the situation, are turned into the first person (`language`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import starmap

from agent_r1_gym.envs.tau2.language import Line, first_person, lines

_NAME = re.compile(
    r"(?:\bYou are |\bcharacter(?: is|:)(?: You are)? )([A-Z][\w'’-]+(?: [A-Z][\w'’-]+)+)"
    r"|\bnamed ([A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)"
)
_KINDS = {
    "name": r"(?:full |legal )?name",
    "user ID": r"user[ _]?id",
    "phone number": r"phone(?: number)?",
    "email": r"e-?mail(?: address)?",
    "date of birth": r"dob|date of birth",
    "work address": r"work address",
    "address": r"(?:home )?address",
    "annual income": r"annual income",
    "account ID": r"(?:[\w-]+ ){0,4}account id",
    "Rho-Bank+ subscription": r"rho-bank\+ subscription",
}
_FACT = re.compile(
    rf"^[\W\d]*(?:your |my )?(?P<kind>{'|'.join(_KINDS.values())})(?: is|\s*:)+\s*(?P<value>\S.*)$", re.IGNORECASE
)
_SUBSCRIBED = re.compile(
    r"\byou (?:do not |don['’]t )?(?:have|receive) an? rho-bank\+ subscription[^.]*", re.IGNORECASE
)
_EARNS = re.compile(r"\bearns? (?:about )?(\$[\d,]+)")
_FACT_END = re.compile(
    r"\s*\|\s*|[.;]\s+|,?\s+and\s+(?=(?:your|my)\b)|,\s+(?=(?:your|my)\b)|\s*\((?=do not)", re.IGNORECASE
)
_RESERVED = re.compile(r"not (?:volunteer|provide this|reveal)|specifically asked", re.IGNORECASE)
_OPENING = re.compile(r"\bopening\b|\bstart naturally\b", re.IGNORECASE)
_QUOTED = re.compile(r"(?<![\w.!?,…])[\"“]([^\"“”]+[.!?…])\s*(?:[\"”]|$)")
_UNOPENED = re.compile(r"^([^\"“]*: )([^\"“]+[.!?…][\"”]\s*)$")
_DIRECTION_IN_QUOTE = re.compile(
    r"\s+(?:-\s+do not\b|if (?:the )?agent\b|if there are no\b|otherwise,|follow the conversation\b).*$",
    re.IGNORECASE | re.DOTALL,
)
_ITEM = re.compile(r"^(\s*)(?:\d+[a-z]?\.|[-*])\s+")
_NOT_SAID = re.compile(
    r"(?:\b(?:says|asks|called|not say|things like|questions like|offer)|e\.g\.,?)\W*$", re.IGNORECASE
)
_PLACEHOLDER = re.compile(r"\$[XYZ]\b")
_CONDITION = re.compile(r"\b(?:if|when|once|after|asked|unless|depending|each time)\b", re.IGNORECASE)
_EVERY_REFUSAL = re.compile(r"\beach (?:time\b.*\brefus|refusal)", re.IGNORECASE)
_SECTION = re.compile(
    r"^\W*(?:conversation flow|how to behave|phase \d|what not to do|important behaviors)", re.IGNORECASE
)
_SECRET = re.compile(
    r"[^.!?\n]+[.!?] (?:you )?(?:do not|don['’]t) (?:need to )?(?:mention|bring|reveal|tell)"
    r"(?![^.\n]*\basked\b)[^.\n]*[.\n]",
    re.IGNORECASE,
)
_IF_ASKED = re.compile(
    r",? (?:but )?(?:do not|don['’]t) (?:mention|bring)[^.\n]*(?=[.\n])"
    r"|(?<=[.!?]) (?:only mention|do not (?:mention|bring))[^.\n]*\basked\b[^.\n]*\.",
    re.IGNORECASE,
)
_WANTED = re.compile(
    r"^I(?:['’]m| am| have|['’]d| would)?\b.*\b(?:looking for|like to|need to|calling|want)\b", re.IGNORECASE
)
_OWN = re.compile(r"^(?:(?:But|And|Now|About [^,]*),? )?(?:I\b|My .*\b(?:is|are|was|were|has|have)\b)(?!.*\bto\.$)")
_THIRD_PERSON = re.compile(r"\b(available to) (?:her|him)\b")
"""A slip of scenarios that introduce their character as someone else."""
_OBJECT = re.compile(r"\b(charged|charging|on|with|sent|gave|told) I\b(?=[.,]| (?:the|a|an|\w+ly)\b)")
_SAYS_FIRST = re.compile(r"^\W*Start by saying (?:that )?", re.IGNORECASE)
_ABOUT_ACTING = re.compile(
    r"playing the role|\bcharacter\b|guidelines|\bmention this\b|\btools?\b|on the line|upfront|volunteer|respond as|"
    r"^\W*\d*\W*$|\"|\bdeflect\b|\bend the conversation\b|\bon my own\b|\bpretend\b|\bnext step\b|\bact as\b|"
    r"^(?:only|otherwise|immediately|start by|naturally|answer)\b|\bdemand\b|\bpersistent\b|\breal\b|\bnot make up\b|"
    r"\bcertain of\b|\bmethodical\b|meticulous|detail-oriented|-year-old|\bverification\b|"
    r"(?:when|specifically) asked\b|no need to respond|^(?:use phrases|something like|try the|cycle back|each time)|"
    r"\bDID I\b|every (?:single )?message|\bgive up\b|\bif they still\b|^My name \(",
    re.IGNORECASE,
)
_SPOKEN_DIRECTION = re.compile(
    r"(?<!not )(?<!never )(?<!only )\b(?:(?P<plea>ask (?:them|the agent|it) to)|(?P<question>ask)|accept it -|"
    r"(?:say|mention|clarify|make it clear|tell (?:them|the agent)|explain))(?: that)? "
    r"(?P<words>(?(plea)|(?(question)(?:why|how|what|whether|for|to|specifically)|(?:you|your|it|the)\b))[^:;\"]*?)"
    r"(?=, and you should|\.(?:\s|$)|;|$)",
    re.IGNORECASE,
)
_IS_STAGE = re.compile(
    r"^\W*(?:after|once|closing\b.*\bafter)\b(?!.*(?:transferr|refus|respon|asks\b))|"
    r"^(?!.*\b(?:why|balance)\b).*\b(?:move (?:on )?to|pivot|bring up)\b",
    re.IGNORECASE,
)
_IS_ACCEPTING = re.compile(
    r"^\W*(?:then )?(?:accept|open whatever|sign up for)\b.*(?:recommend|suggest)", re.IGNORECASE
)
_IS_NEED = re.compile(r"\breveal\b|\brequirements\b|about (?:your )?(?:\w+ )?needs\b|criterion", re.IGNORECASE)
_IS_ASKED = re.compile(r"\basked\b|\basks\b|brought up|\?$|when (?:the )?issues? (?:was|were)", re.IGNORECASE)
_IS_VOLUNTEERED = re.compile(r"proactively|after (?:the )?agent(?:'s first)? respon", re.IGNORECASE)
_IS_OWN_ACT = re.compile(r"\b(?:appl(?:ying|ication)|submitt(?:ed|ing)|depositing)\b(?!.*\bclos)", re.IGNORECASE)
_ACTS = re.compile(
    r"apply_for_credit_card|(?<!not )\bapply for (?:the|that|it|a)\b|submit_referral|\bsubmit (?:that referral|these)",
    re.IGNORECASE,
)

_IS_REFUSING = re.compile(
    r"\b(?:can(?:not|['’]t| not)|could(?: not|n['’]t)|unable|impossible|"
    r"not (?:be )?(?:possible|able|allowed|available|permitted|find)|unfortunately|denie[sd]|deny|"
    r"refuse[sd]?|declined?|won['’]t|(?:in|not )eligible|expired|no (?:record|such)|"
    r"(?:do|does|did)(?: not|n['’]t) (?:allow|agree|have|find|see|match))\b",
    re.IGNORECASE,
)
_RECOMMENDED = "recomm"
_IS_ABOUT_PURPOSE = re.compile(
    r"\bwhat (?:(?:it|this|that) is )?for\b|\bwhat(?: is|['’]s) (?:it|this|that) for\b|\bpurpose\b", re.IGNORECASE
)
_IS_RECOMMENDING = re.compile(
    r"\b(?:best|ideal|perfect) (?:fit|option|choice|match|card|account|one|for you)\b", re.IGNORECASE
)
_NEGATION = frozenset({"not", "no", "never", "cannot", "without", "unable"})
_ALIASES = {
    "suggest": _RECOMMENDED,
    "problem": "issu",
    "advis": _RECOMMENDED,
    "reason": "whi",
    "bought": "purcha",
    "paid": "pay",
}
_PLURAL, _ENDING = re.compile(r"(?<=[xzh])es$|(?<![su])s$"), re.compile(r"(?:ings?|ers?|ed|e)$")
_TOKEN = re.compile(r"\$?\d[\d,.]*\d|\d+|[a-z][a-z0-9_+]*(?:-[a-z]+)*(?:['’][a-z]+)?|[.!?;:]", re.IGNORECASE)


def _stem(word: str) -> str:
    if not word.isalpha():
        return word
    single = _PLURAL.sub("", word) if len(word) > 3 else word
    stem = re.sub(r"(?:ying|ied|ie|y)$", "i", single)
    if stem == single and len(single) > 3:
        stem = re.sub(r"([bdgmnpt])\1$", r"\1", _ENDING.sub("", single))
    return _ALIASES.get(stem, stem[:6])


_COMMON = """
a about accept act after agent all also an and any anything are as ask at be been before but by can character come
confirm could criterion customer detail did do does else end ever every express first for from get give given go
going has have help herring how i if important in inform is it its just know let like list look make made many may
me mention more much my need next no not now of offer on once one or organically our out please provide rather red
refuse respond reveal rho say see should show simply so some someone something tell than thank that the their them
then there they this to told try up us use using very want was we were what when whether which while who will with
would yes you your requirement bank rho-bank didn don doesn react explain politely immediately answer prefer
preference call find decline move etc really actually specific additional only other way today still again tries
"""
_USUAL = frozenset(map(_stem, _COMMON.split()))


class Kind(Enum):
    """When a line is said: the user raises wishes and stages by itself, in the order of the script."""

    WISH = "at any time"
    STAGE = "after something was done"
    NEED = "when asked for it, or for whatever the user needs"
    ASKED = "when asked for it"
    REACTION = "to what the agent says"
    FACT = "when asked for it in its own words"


@dataclass(frozen=True, slots=True)
class Reply(Line):
    """A line of a script.

    Attributes:
        kind: when it is said.
        order: its place in the script.
        is_refused: whether it answers a refusal.
        own: words of the trigger that it does not share with the heading above its own.
        follows_act: whether it comes after something that the user does.
        acts: the direction with which the user applies for a card, or refers someone; "": it does neither.
    """

    kind: Kind = Kind.WISH
    order: int = 0
    is_refused: bool = False
    own: frozenset[str] = frozenset()
    follows_act: bool = False
    acts: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """What a user knows about themselves.

    Attributes:
        kind: a key of what it is about, such as "email".
        text: the sentence.
        is_reserved: whether it is given only to who asks for it by name.
    """

    kind: str
    text: str
    is_reserved: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """What a long scenario lets its user say.

    Attributes:
        opening: the first message.
        facts: what the user knows about themselves.
        replies: everything else, in its order.
    """

    opening: str
    facts: tuple[Fact, ...]
    replies: tuple[Reply, ...]

    @property
    def known(self) -> str:
        """The facts, one a line."""
        return "\n".join(fact.text for fact in self.facts)


@functools.lru_cache(maxsize=1024)
def read_script(text: str) -> Script | None:
    """Read a scenario; None if it is a short text, which is a reason and nothing else."""
    if "\n\n" not in text:
        return None
    plain = re.sub(r"\*\*|^#+ |\"(?=STOP\")|(?<=STOP)\"", "", text, flags=re.MULTILINE)
    plain = _THIRD_PERSON.sub(r"\1 you", _SECRET.sub("", plain))
    known: dict[str, Fact] = {}
    for fact in _facts(plain):
        known.setdefault(fact.kind, fact)
    facts = tuple(known.values())
    quotes = list(_quotes(plain))
    opening = next((words for outer, heading, words in quotes if _OPENING.search(outer + heading)), None)
    if opening is None and quotes and len(quotes[0][2]) > 60:
        opening = quotes[0][2]  # the first long sentence to say
    if opening is not None:
        said = [_reply(*quote) for quote in quotes if quote[2] != opening]
        rest = [*_directions(plain), *_background(plain, facts)]
    else:
        said = [line for line in starmap(_reply, quotes) if line.kind is not Kind.WISH]
        rest = list(_sentences(re.sub(r"\"[^\"]*\"", "", plain), facts))
        wishes = [line.text for line in rest if line.kind is Kind.WISH and _WANTED.search(line.text)]
        opening = _start(plain) or " ".join(wishes[:2]) or "Hello, I need help."
    every = [*said, *(line for line in rest if not line.text or line.text not in opening)]
    every.sort(key=lambda line: line.kind is Kind.FACT)
    return Script(opening, facts, tuple(replace(line, order=order) for order, line in enumerate(every)))


def topics(text: str) -> frozenset[str]:
    """Stems of the words that carry meaning; those behind a negation start with "not:"."""
    found, negated = set(), 0
    for token in _TOKEN.findall(text.lower().replace("’", "'")):
        word = token.partition("'")[0]
        if token in ".!?;:" or token == "but":
            negated = 0
        elif token in _NEGATION or token.endswith("n't"):
            negated = 2
        else:
            stem = _stem(word)
            if stem not in _USUAL and len(stem) > 1:
                found.add(f"not:{stem}" if negated > 0 else stem)
            negated -= 1
    if re.search(r"\bhow (?:much|many)\b", text, re.IGNORECASE):
        found.add("amount")
    if _IS_ABOUT_PURPOSE.search(text):
        found.add("whi")
    if _IS_RECOMMENDING.search(text):
        found.add(_RECOMMENDED)
    return frozenset(found)


def is_refusal(text: str) -> bool:
    """Whether a text says that something is not possible."""
    return _IS_REFUSING.search(text) is not None


def _facts(text: str) -> Iterator[Fact]:
    """Yield what a text says of the user's name, address, income and the like."""
    if match := _NAME.search(text):
        yield Fact("name", f"My name is {match.group(1) or match.group(2)}.")
    if match := _EARNS.search(text):
        yield Fact("annual income", f"I earn {match.group(1)} annually.")
    for row in text.split("\n"):
        is_reserved = _RESERVED.search(row) is not None
        if '"' not in row and (match := _SUBSCRIBED.search(row)):
            yield Fact("Rho-Bank+ subscription", f"{first_person(match.group()).rstrip('.')}.")
        for part in _FACT_END.split(row.split(": do not")[0].strip(" -*")):
            if match := _FACT.match(part):
                named = match.group("kind")
                kind = next(kind for kind, label in _KINDS.items() if re.fullmatch(label, named, re.IGNORECASE))
                label = named if kind == "account ID" else kind
                yield Fact(kind, f"My {label} is {match.group('value').rstrip('. ')}.", is_reserved)
    if match := re.search(r"(?<!s )\buser[ _]id\W{1,3}([a-z0-9]{3,})\b", text):
        yield Fact("user ID", f"My user ID is {match.group(1)}.", is_reserved=True)


def _start(text: str) -> str:
    """What follows "Start by saying", "" if nothing does."""
    row = next((row for row in text.split("\n") if _SAYS_FIRST.search(row)), "")
    return first_person(_SAYS_FIRST.sub("", row))


def _quotes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the heading above an inner item ("" if there is none), its own heading, and what to say under it."""
    outer = ""
    for row in _whole_rows(text):
        item = _ITEM.match(row)
        is_inner = item is not None and bool(item.group(1))
        content = row[item.end() :] if item else row
        if item and not is_inner:
            outer = re.split('["“]', content)[0]
        start, before, quoted, is_skipped = 0, "", "", False
        for match in _QUOTED.finditer(content):
            between = content[start : match.start()]
            start = match.end()
            is_skipped = _NOT_SAID.search(between) is not None or (is_skipped and len(between.split()) < 2)
            if is_skipped:
                quoted += f"{between} {match.group(1)} "  # what the agent says, or an example
            elif not _PLACEHOLDER.search(match.group(1)):
                before, quoted = (quoted + between).strip(" -:,.()") or before, ""
                words = _DIRECTION_IN_QUOTE.sub("", " ".join(match.group(1).split()))
                is_below = is_inner or (item is None and not before)
                yield outer if is_below else "", before, words if words[-1:] in ".!?…" else f"{words}."


def _whole_rows(text: str) -> Iterator[str]:
    """Yield rows; those that a quotation runs through are one."""
    open_row = ""
    for row in text.split("\n"):
        open_row = f"{open_row} {row}" if open_row else _UNOPENED.sub(r'\1"\2', row)
        if open_row.count('"') % 2 == 0 or not row.strip():
            yield open_row
            open_row = ""
    if open_row:
        yield open_row


def _condition(heading: str) -> str:
    """The part of a heading that says when: up to the last part with a condition, without directions behind it."""
    parts = re.split(r":(?=\s|$)", heading)
    last = max((number for number, part in enumerate(parts) if _CONDITION.search(part)), default=len(parts))
    return ". ".join(parts[: last + 1])


def _reply(outer: str, heading: str, text: str) -> Reply:
    whole = f"{outer} {heading}"
    above = topics(_condition(outer))
    own = topics(_condition(heading)) - above
    if _IS_VOLUNTEERED.search(whole):
        kind = Kind.WISH
    elif _IS_STAGE.search(heading or outer):
        kind = Kind.STAGE
    elif not _CONDITION.search(heading) and (_IS_NEED.search(outer) or _IS_STAGE.search(outer)):
        kind = Kind.NEED
    elif _IS_ASKED.search(_condition(heading if _CONDITION.search(heading) else f"{outer} {heading}")):
        kind = Kind.ASKED
    elif _CONDITION.search(whole) or _IS_ACCEPTING.search(heading):
        kind = Kind.REACTION
    else:
        kind = Kind.WISH
    if kind is Kind.NEED or _EVERY_REFUSAL.search(whole):
        above, own = frozenset(), frozenset() if _EVERY_REFUSAL.search(whole) else own
    if kind is Kind.REACTION and above and not _CONDITION.search(heading):
        own = frozenset()  # a label such as "First pushback"
    if _IS_ACCEPTING.search(heading):
        above, own = frozenset(), frozenset({_RECOMMENDED})
    return Reply(
        text,
        topics(text) | own,
        None if kind is Kind.WISH else above | own,
        kind=kind,
        own=own,
        is_refused=kind is Kind.REACTION and is_refusal(_condition(outer) + _condition(heading)),
        follows_act=kind is Kind.STAGE and _IS_OWN_ACT.search(_condition(heading)) is not None,
        acts=f"{heading} {text}" if kind is Kind.REACTION and _ACTS.search(f"{heading} {text}") else "",
    )


def _directions(text: str) -> Iterator[Reply]:
    """Yield what items without a quotation direct the user to say or to apply for, in the first person."""
    outer, is_script = "", False
    for row in _whole_rows(text):
        is_script = is_script or _SECTION.search(row) is not None
        item = _ITEM.match(row)
        if item is None or not is_script:
            continue
        content = row[item.end() :]
        outer = outer if item.group(1) else content
        directions = list(_SPOKEN_DIRECTION.finditer(content))
        own = _last_condition(content[: directions[0].start()] if directions else content)
        condition = own or (_last_condition(outer) if item.group(1) else "")
        spoken = " ".join(filter(_is_whole, map(_spoken, directions)))
        acts = content if own and _ACTS.search(content) else ""
        if _QUOTED.search(content) or (own and _ABOUT_ACTING.search(own)) or not (spoken or acts):
            continue
        head = own.split(", ")[0] if own and not item.group(1) else condition
        yield replace(_reply("", f"{head}:", spoken), acts=acts)


def _last_condition(text: str) -> str:
    return next((part for part in reversed(re.split(r":\s|\.\s", text)) if _CONDITION.search(part)), "")


def _spoken(match: re.Match[str]) -> str:
    words = match.group("words").strip()
    words = f"Please {words}" if match.group("plea") else f"I want to ask {words}" if match.group("question") else words
    return _as_said(f"{words[:1].upper()}{words[1:]}.")


def _is_whole(sentence: str) -> bool:
    return len(sentence.split()) > 3


def _as_said(text: str) -> str:
    """In the first person, also where `first_person` takes an object for the subject."""
    return _OBJECT.sub(r"\1 me", first_person(text))


def _background(text: str, facts: tuple[Fact, ...]) -> Iterator[Reply]:
    """Yield what a text says of the situation before it comes to the script: to answer questions with."""
    for row in text.split("\n"):
        if _SECTION.search(row):
            return
        item = _ITEM.match(row)
        content = re.sub(r"^Your (?:\w+ )?(?:situation|goal|character)[^:]*: ", "", row[item.end() :] if item else row)
        if item and " - " in content:
            found = [_as_said(content)]  # an item is one thing to tell
        else:
            found = [_OBJECT.sub(r"\1 me", line.text) for line in lines(content) if line.trigger is None]
        for sentence in found:
            is_known = any(fact.text[:-1] in sentence for fact in facts) or _FACT.match(sentence)
            is_own = _OWN.search(sentence) or (item and " - " in content and re.search(r"\b(?:I|my)\b", sentence))
            if is_own and not (is_known or _ABOUT_ACTING.search(sentence)):
                yield Reply(sentence, topics(sentence), frozenset(), kind=Kind.FACT)


def _sentences(text: str, facts: tuple[Fact, ...]) -> Iterator[Reply]:
    """Yield the sentences of a text without a script."""
    known = " ".join(fact.text for fact in facts)
    asked = {line.text for match in _IF_ASKED.finditer(text) for line in lines(_before(text, match.start()))}
    for line in lines(re.sub(r"^\s*- ", "", _IF_ASKED.sub("", text), flags=re.MULTILINE)):
        if line.text[:-1] in known or _ABOUT_ACTING.search(line.text) or _FACT.match(line.text):
            continue
        kind = Kind.REACTION if line.trigger is not None else Kind.FACT if line.text in asked else Kind.WISH
        trigger = frozenset(stem for word in line.trigger or () for stem in topics(word))
        yield Reply(line.text, topics(line.text), None if kind is Kind.WISH else trigger, kind=kind)


def _before(text: str, position: int) -> str:
    """The sentence that ends at a position."""
    return re.split(r"[.!?\n]", text[:position].rstrip(".!?"))[-1].strip() + "."
