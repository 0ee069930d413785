"""What a scripted user makes of a proposal: it knows which objects, deeds, reasons and prices are wrong.

What it wants in the end is read from the gold actions; what it refuses, from its scenario.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_r1_gym.envs.tau2.language import CONFIRM, REFUSED, Line, asking_sentences, content_words, sentences

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import Scenario, Tau2Task

_ORDER, _ITEM = re.compile(r"#?\bW\d{7}\b"), re.compile(r"(?<![\w#])(?<!product )\d{10}\b")
_RESERVATION, _FLIGHT = re.compile(r"\b(?=\w*[A-Z])[A-Z0-9]{6}\b"), re.compile(r"\b[A-Z]{3}\d{3}\b")
_METHOD = re.compile(r"\b(?:credit_card|gift_card|certificate|paypal)_\d+\b")
_AMOUNT = re.compile(r"\$ ?(\d[\d,]*(?:\.\d+)?)")
_TOTAL = re.compile(rf"\b(?:total|comes? to)\b[^$]{{0,40}}{_AMOUNT.pattern}", re.IGNORECASE)
_LIMIT = re.compile(
    r"(?:willing to pay\b[^.$]*|extra cost is less than |only if it costs less than |exceeds your )\$(\d+)",
    re.IGNORECASE,
)
_UNTOUCHED = re.compile(
    r"\b(?:keep\w*|stays?|remains?|leav\w+|un(?:touched|changed|affected)|not|won't|except|instead|from|current\w*|old|"
    r"already|other)\b",
    re.IGNORECASE,
)
_KINDS = {
    "cancel": re.compile(r"\bcancel", re.IGNORECASE),
    "return": re.compile(r"\breturn", re.IGNORECASE),
    "change": re.compile(
        r"\b(?<!the )(?<!this )(?:exchang|swap|modif(?!ication)|chang(?!es\b)|updat|switch|upgrad|downgrad|remov|"
        r"replac|push|mov(?:e|ing)\b|add(?:ing|ed)?\b(?! up| [\d.]+ ?GB\b))(?!\w* (?:any|some)thing\b)",
        re.IGNORECASE,
    ),
    "book": re.compile(
        r"\b(?:re)?book(?:ing)? (?:an?|the|this|these|that|new|you|it|for|only|reservation|three)\b", re.IGNORECASE
    ),
    "transfer": re.compile(r"\btransfer|\bhuman (?:agent|representative)|\bsupervisor", re.IGNORECASE),
}
"""What can be done for a user, by the words for it."""
_FORBIDS = re.compile(
    r"\b(?:(?:do not|don't|never|not) want (?:you |the agent )?to|(?:will|do) never|"
    r"no circumstances (?:do you want to|you want to|will you)) (?:(?:be|get|first) )?(\w+)(?: or (\w+))?[^.;]*",
    re.IGNORECASE,
)
_NO_REFUND = re.compile(r"\b(?:no|without|non|not|\w+n't)\b[^.]{0,30}refund", re.IGNORECASE)
_OFFERED = re.compile(
    r"(?:^|[,;:-] |\b(?:and|so|know|also) )(?:do|would|will) you (?:also |still )?"
    r"(?:want|like|need|care|wish)\b([^?]*)",
    re.IGNORECASE,
)
_GO_AHEAD = re.compile(
    r"\b(?:this|that|these|those|it|them|me|us|so|everything|proceed|continue|go|confirm|finali[sz]e|submit|complete)\b",
    re.IGNORECASE,
)
_KNOWN_ALREADY = re.compile(r"\b(?:the|your|refund\w*)\b", re.IGNORECASE)
_NEGATED = re.compile(r"\b(?:no|not|never|without)\b|n't\b", re.IGNORECASE)
_NO_THANKS = "No, thank you."
_REASONS = {"no longer needed": r"no longer need", "ordered by mistake": r"by mistake"}


def objection_to(
    task: Tau2Task, message: str, said: str, plain: Sequence[Line], conditional: Sequence[Line]
) -> str | None:
    """What speaks against a proposal, None if it is not known to be wrong.

    It is wrong if it is about objects that neither scenario nor gold actions name, gives another reason, does what the
    scenario forbids or does not speak of, misses a condition ("if not, no cancellation"), or costs more than the user
    will pay. Without gold writes the user wants what the policy forbids, and confirms what it has asked for.

    Args:
        task: the task.
        message: the proposal.
        said: everything that the user has said.
        plain: what it may say without a condition.
        conditional: what it may say with one; a change of mind that it has said replaces its wishes before.
    """
    for line in conditional:
        forbids = re.match(r"no\b", line.text, re.IGNORECASE) and REFUSED in (line.trigger or ())
        if forbids and negates(message, line.trigger or frozenset()):
            return line.text
    regrets = [line.text for line in conditional if CONFIRM in (line.trigger or ()) and line.text in said]
    wish = regrets[-1] if regrets else task.prompt
    if _names_others(task, message) or names_other_reason(task, message):
        return wish
    scenario, proposed = task.scenario, _proposed_kinds(task, message)
    questions = " ".join(question for question, is_proposal in asking_sentences(message) if is_proposal)
    if forbidding := _forbidding(task, message, (kinds_in(questions) or proposed) - gold_kinds(task), plain):
        return forbidding
    if _is_too_expensive(task, message):
        return next((line.text for line in plain if _LIMIT.search(line.text)), wish)
    asked_for = regrets or [scenario.reason, scenario.instructions, scenario.known]
    return wish if proposed and not proposed & (gold_kinds(task) | kinds_in(" ".join(asked_for))) else None


def unwanted_extra(task: Tau2Task, message: str, plain: Sequence[Line]) -> str | None:
    """What speaks against an offer of something more, None if the message makes none or the user may want it.

    Insurance, for instance, is declined where the gold booking has none: with the line about it, else politely. So is
    what neither scenario nor gold actions speak of, such as a newsletter.
    """
    asking = asking_sentences(message)
    offer = _OFFERED.search(asking[-1][0]) if asking else None
    if offer is None or _GO_AHEAD.search(offer.group(1)) or kinds_in(offer.group(1)) - {"change"}:
        return None
    declined, chosen = set[str](), set[str]()
    for name, value in (pair for action in task.gold_writes for pair in action.call.arguments.items()):
        is_declined = value in ("no", 0)
        (declined if is_declined else chosen).update(content_words(f"{name} {value}".replace("_", " ")))
    offered = content_words(offer.group(1))
    if named := offered & (declined - chosen):
        return next((line.text for line in plain if line.words & named and _NEGATED.search(line.text)), _NO_THANKS)
    is_new = offered and not offered & (chosen | content_words(f"{task.prompt} {task.scenario}"))
    is_vague = kinds_in(offer.group(1)) or _KNOWN_ALREADY.search(offer.group(1))
    return _NO_THANKS if is_new and not is_vague else None


def _forbidding(task: Tau2Task, message: str, proposed: frozenset[str], plain: Sequence[Line]) -> str | None:
    """The line that forbids what a message proposes: "You do not want to cancel the flight"."""
    is_refunded = re.search("refund", message, re.IGNORECASE) and not _NO_REFUND.search(message)
    for match in _FORBIDS.finditer(f"{task.scenario.reason} {task.scenario.instructions}"):
        kinds = kinds_in(" ".join(filter(None, match.groups()))) & proposed
        if kinds and not (is_refunded and "refund" in match.group()):
            spoken = (line.text for line in plain if _FORBIDS.search(line.text) and kinds_in(line.text) & kinds)
            return next(spoken, task.prompt)
    return None


def _is_too_expensive(task: Tau2Task, message: str) -> bool:
    """Whether all amounts that a message names, or its totals, exceed what the user will pay; gold flights never do."""
    limit, flights = spending_limit(task.scenario), set(_FLIGHT.findall(message))
    is_gold = flights and flights <= set(_FLIGHT.findall(str(task.gold_writes)))
    amounts = _numbers(_TOTAL, message) or amounts_in(message)
    return limit is not None and not is_gold and bool(amounts) and min(amounts) > limit


def spending_limit(scenario: Scenario) -> float | None:
    """What a user is willing to pay, None if its scenario does not say."""
    match = _LIMIT.search(f"{scenario.reason} {scenario.instructions}")
    return None if match is None else float(match.group(1))


def kinds_in(text: str) -> frozenset[str]:
    """What a text speaks of doing for a user: "cancel", "return", "change", "book", "transfer"."""
    return frozenset(kind for kind, pattern in _KINDS.items() if pattern.search(text))


def gold_kinds(task: Tau2Task) -> frozenset[str]:
    """What the reference solution does for the user."""
    return kinds_in(" ".join(action.call.name.replace("_", " ") for action in task.actions or ()))


def _proposed_kinds(task: Tau2Task, message: str) -> frozenset[str]:
    """What a message may propose to do, of what the agent can do: all that it says, apart from refusals."""
    found = kinds_in("\n".join(part for part in sentences(message) if REFUSED not in content_words(part)))
    return found & (kinds_in(" ".join(task.world.operations.writes).replace("_", " ")) | {"transfer"})


def amounts_in(message: str) -> list[float]:
    """The amounts of money that a message names."""
    return _numbers(_AMOUNT, message)


def _numbers(pattern: re.Pattern[str], message: str) -> list[float]:
    return [float(found.replace(",", "")) for found in pattern.findall(message)]


def names_other_reason(task: Tau2Task, message: str) -> bool:
    """Whether a text gives a reason for a cancellation, and none that a gold action gives."""
    gold = {action.call.arguments.get("reason") for action in task.gold_writes} & set(_REASONS)
    named = {reason for reason, pattern in _REASONS.items() if re.search(pattern, message, re.IGNORECASE)}
    return bool(gold and named and not gold & named)


def _names_others(task: Tau2Task, message: str) -> bool:
    """Whether a proposal is about objects that neither scenario nor gold actions name."""
    writes = [action.call for action in task.gold_writes]
    scenario, touched = f"{task.prompt} {task.scenario}", _touched(message)
    reservations = {str(call.arguments.get("reservation_id")) for call in writes}
    for pattern in (_ORDER, _RESERVATION):
        mentioned = _ids(pattern, message, reservations)
        gold = {found for call in writes for found in _ids(pattern, str(call.arguments), reservations)}
        foreign = {found for found in mentioned - gold if found not in scenario}
        is_about_one = all(_ids(pattern, str(call.arguments), reservations) for call in writes)
        if gold and (any(found in touched for found in foreign) or (is_about_one and foreign and foreign == mentioned)):
            return True
        if mentioned & gold:
            writes = [call for call in writes if any(found in str(call.arguments) for found in mentioned)]
    for pattern in (_ITEM, _FLIGHT, _METHOD):
        mentioned = set(pattern.findall(message)) - reservations
        gold = {found for call in writes for found in pattern.findall(str(call.arguments))}
        if mentioned and gold and not mentioned & gold:
            return True
    new_items = {item for call in writes for item in call.arguments.get("new_item_ids", ())}
    known = {item for call in writes for item in _ITEM.findall(str(call.arguments))}
    mentioned = set(_ITEM.findall(message))
    is_other_variant = bool(new_items) and not mentioned & new_items
    return bool(known and (mentioned if is_other_variant else set(_ITEM.findall(touched))) - known)


def _ids(pattern: re.Pattern[str], text: str, reservations: set[str]) -> set[str]:
    """The orders or reservations in a text; numbers of flights look like those of reservations, and some like them."""
    return {found.lstrip("#") for found in pattern.findall(text)} - (set(_FLIGHT.findall(text)) - reservations)


def negates(message: str, words: frozenset[str]) -> bool:
    """Whether a sentence of a message says that something is not so, and shares two words with it."""
    return any(_NEGATED.search(part) and len(content_words(part) & words) > 1 for part in sentences(message))


def _touched(message: str) -> str:
    """The parts of a message that say what is done to something; a list belongs to the sentence above it."""
    parts, acts = [], False
    for part in sentences(message):
        if not part.lstrip().startswith("-"):
            acts = bool(kinds_in(part))
        if acts and not _UNTOUCHED.search(part):
            parts.append(part)
    return "\n".join(parts)
