"""What a scripted user does with a telephone: the operations that an agent's message asks for, clause by clause.

It understands names of operations ("toggle_roaming"), and plain requests such as "turn on mobile data", "restart your
phone" or "what does the status bar show?". What the agent forbids, asks about the past, or does itself is not done.
Before it turns something on or off it looks whether it is so already. It reports results as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Act = Callable[[str, Mapping[str, Any]], str]
_DECODER = json.JSONDecoder()
_VERB = (
    r"(?:turn|switch|toggl|enabl|disabl|activat|deactivat|disconnect|connect|set|chang|select|choos|pick|grant|allow|giv|"
    r"pay|settl|accept|mak|ensur|restart|reboot|power|reset|restor|re-?seat|re-?insert|remov|eject|tak|pull|put)"
)
_LOOK = r"(?:check|run|do|perform|try|tell|look|see|show|test|read|confirm|verify|report|send|open)"
_JOINT = r"and|but|then|so|please"
_LATER = rf"(?:(?:{_JOINT}|afterwards|after (?:that|this)|finally|also|next|now|to),?\s{{1,4}}){{0,3}}"
_CLAUSE = re.compile(
    rf"(?<=[.!?;])\s+|\n+|(?<=:)\s+(?={_VERB}e?\b)|,?\s{{1,4}}(?:{_JOINT})\s{{1,4}}{_LATER}"
    rf"(?=(?:{_VERB}e?|{_LOOK}|don['’]?t|do not|never|not)\b)"
    rf"|,\s{{1,4}}(?=(?:(?:{_JOINT}|now|next|just|simply|you|can|could|would|should)\s{{1,4}}){{0,4}}"
    rf"(?:{_VERB}e?|{_LOOK}|don['’]?t|do not|never|without|I|we)\b)|,?\s{{1,4}}(?:and|but|so)\s{{1,4}}(?=(?:I|we)\b)",
    re.IGNORECASE,
)
_BEFORE_REQUEST = re.compile(
    r"^.*\b(?:please\b(?=\W*\w)|(?:can|could|would|will) you|you (?:to|should|must)|you(?:['’]ll| will)? need to)\b",
    re.IGNORECASE,
)
_IMPERATIVE = re.compile(
    r"^[\W\d]*(?:(?:please|kindly|now|then|next|first|finally|also|and|so|but|ok|okay|great|just|simply|again|go|ahead|"
    r"try|to|you|we|should|need|must|can|could|would|will|may|might|have|want|like|let['’]?s|mind|be|able|willing|us|don|t|"
    rf"not|forget|never|hesitate)\W+)*(?:{_VERB}e?|(?<=mind ){_VERB}t?ing|(?<=try ){_VERB}(?:t?ing|e?d))\b"
    r"(?![\s*]{0,4}:| [-–] )"
    rf"|\b(?:must|should|ha(?:s|ve) to|needs? to) be {_VERB}(?:t?ed|d|en)?\b",
    re.IGNORECASE,
)
_IS_ASKED_BACK = re.compile(
    r"^\W*(?:(?:and|so|but|or)\s+)?(?:(?:did|have you|has|had|were|was|is|does|when|why|who|what|which|where)\b"
    r"|do (?:you|your|they)\b(?! mind)|are\b(?! you (?:able|willing)))",
    re.IGNORECASE,
)
_IS_FORBIDDEN = re.compile(
    r"\b(?:(?:do not|don['’]?t|never)(?! (?:forget|hesitate))|not to|no need to|without|avoid|"
    r"(?:should|must|need)(?:n['’]?t| not)|can['’]?t|cannot|won['’]?t)\b|^not\b",
    re.IGNORECASE,
)
_IS_BY_AGENT = re.compile(
    r"\b(?:I|we(?! (?:need|have) to\b))\b(?:['’](?:ll|ve|d|m|re))?"
    rf"(?!.{{0,80}}\byou(?: to| please| should| can| could)? (?:{_VERB}e?|{_LOOK}|go)\b)"
    r"|\b(?:I|we)\b.{0,80}\bfor you\b|\b(?:let me|me to)\b(?! (?:know|see))|\b(?:with|for) me \w+ing\b"
    r"|\bsend(?:ing)? you\b|\bon (?:our|my) (?:side|end)\b|\b(?:on|for) your (?:line|account|plan)\b",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"^(?P<last>.*\w\W+)(?:after|once|as soon as)\s+(?:you(?:['’]ve| have)?\s+)?(?P<first>(?!that\b|this\b).*\w)",
    re.IGNORECASE,
)
_REPLACED = re.compile(r"\b(?:rather than|instead of)\b[^,.;!?\n]*", re.IGNORECASE)
_DIRECTION = re.compile(
    r"(?P<off>\b(?:off|disabl\w+|deactivat\w+|disconnect\w*)\b|\bnot (?:(?:turned|switched) )?on\b)"
    r"|\b(?:turn|switch)(?:ing)? on\b|\bon\b(?! (?:your|our|my|this|that|its?|the|a)\b)"
    r"|\b(?:enabl\w+|activat\w+|connect\w*)\b",
    re.IGNORECASE,
)


class _Switch(NamedTuple):
    """A setting that is on or off.

    Attributes:
        topic: how messages name it.
        on: the operation that turns it on.
        off: the operation that turns it off.
        look: the operation that shows it.
        is_on: what that shows if it is on.
    """

    topic: str
    on: str
    off: str
    look: str
    is_on: str


def _toggle(topic: str, name: str, look: str, is_on: str) -> _Switch:
    return _Switch(topic, f"toggle_{name}", f"toggle_{name}", look, is_on)


_SWITCHES = (
    _toggle(r"airplane|flight mode", "airplane_mode", "check_network_status", "Airplane Mode: ON"),
    _toggle(r"data saver", "data_saver_mode", "check_data_restriction_status", "is ON"),
    _toggle(r"roaming", "roaming", "check_network_status", "Data Roaming Enabled: Yes"),
    _toggle(r"wi-?fi calling|calling over wi-?fi", "wifi_calling", "check_wifi_calling_status", "turned ON"),
    _toggle(r"(?<!calling over )wi-?fi(?! calling)", "wifi", "check_wifi_status", "Wi-Fi is ON"),
    _toggle(r"(?:mobile|cellular) data(?! usage)", "data", "check_network_status", "Mobile Data Enabled: Yes"),
    _Switch(r"vpn", "connect_vpn", "disconnect_vpn", "check_vpn_status", "connected"),
)
_DEEDS = (
    (
        r"\b(?:restart|reboot)|\bpower[- ]?cycl|\b(?:turn|switch|power)\w* (?:(?:the|your) )?"
        r"(?:phone|device|handset)\b.{0,9}\boff\b",
        "reboot_device",
    ),
    (r"\bre-?(?:seat|insert)|\b(?:remov|eject|tak|pull|put)\w*.{0,20}\bsim\b", "reseat_sim_card"),
    (
        r"\b(?:reset|restor)\w*\b.{0,30}\b(?:apn|access point)|\b(?:apn|access point)\b.{0,30}\b(?:reset|restor)",
        "reset_apn_settings",
    ),
    (r"\b(?:pay|settl)(?:e|ing)?\b|\bmak\w+ (?:(?:the|a|your) )?payment|\baccept\b.{0,20}\bpayment", "make_payment"),
)
"""What a clause asks for, and the operation that does it: once for a message, so that "remove and re-insert" is one."""
_LOOKS = (
    (r"status bar|top of (?:the|your) (?:screen|display|phone)|\bicons?\b", "check_status_bar"),
    (r"\bspeed\b|how fast", "run_speed_test"),
    (r"network status|signal|cellular connection|\bservice\b", "check_network_status"),
    (r"\bsim\b", "check_sim_status"),
    (r"\bapn\b", "check_apn_settings"),
    (r"installed apps|which apps|what apps", "check_installed_apps"),
    (r"\bmms\b|picture message", "can_send_mms"),
    (r"payment request", "check_payment_request"),
)
_MODE = r"network (?:mode|type|preference)|preferred network"
_CHOOSE = r"\b(?:set|choos|select|chang|switch|pick|put|enabl|turn)"
_MODES = (("5g", "4g_5g_preferred"), ("4g|lte", "4g_only"), ("3g", "3g_only"), ("2g", "2g_only"))
_PERMISSIONS = ("sms", "storage", "phone", "network")
_ABOUT_PERMISSIONS = re.compile(r"\bpermissions?\b|\b(?:sms|storage)\b", re.IGNORECASE)


def follow(message: str, operations: Sequence[str], act: Act) -> list[str]:
    """Do what a message asks for; the results, [] if it asks for nothing.

    Args:
        message: what the agent wrote.
        operations: names of the user's operations; without any there is no telephone.
        act: carries them out.
    """
    if not operations:
        return []
    named = list(_named(message, operations))
    if "apply_for_credit_card" in operations:  # a bank's operations need arguments
        return [act(name, arguments) for name, arguments in named if arguments is not None]
    if named:
        return [act(name, arguments or {}) for name, arguments in named]
    if "toggle_data" not in operations:
        return []
    return list(_carry_out(message, act))


def _named(message: str, operations: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """Yield the operations that a message names, each with the JSON object behind its name, None if there is none."""
    position = 0
    for match in re.finditer(rf"\b({'|'.join(operations)})\b\s*", message):
        if match.start() < position:
            continue  # within the arguments of the one before
        try:
            arguments, position = _DECODER.raw_decode(message, match.end())
        except (ValueError, RecursionError):
            arguments = None
        yield match.group(1), arguments if isinstance(arguments, dict) else None


def _carry_out(message: str, act: Act) -> Iterator[str]:
    """Yield the results of a message's clauses, in the order in which it wants them."""
    topics: list[_Switch] = []
    done: set[str] = set()
    for clause in filter(None, _CLAUSE.split(_REPLACED.sub("", _in_order(message)))):
        named = [switch for switch in _SWITCHES if re.search(switch.topic, clause, re.IGNORECASE)]
        topics = named or topics
        if _is_request(clause):
            meant = topics if re.search(r"\b(?:it|that|them|this)\b", clause, re.IGNORECASE) else named
            results = list(_deeds(clause, meant, done, act))
            yield from results
            if results:
                continue
        if _is_spoken_to(clause) and ("?" in clause or re.search(rf"\b{_LOOK}\b", clause, re.IGNORECASE)):
            yield from _looks(clause, named, act)


def _in_order(message: str) -> str:
    """A message whose requests stand in the order in which they are to be done: "A after B" is "B, then A"."""
    return "\n".join(map(_reordered, re.split(r"(?<=[.!?;])\s+|\n+", message)))


def _reordered(sentence: str) -> str:
    match = _AFTER.match(sentence)
    if match is None or not _is_request(match["last"]) or not _is_request(f"try {match['first']}"):
        return sentence
    return f"try {match['first']}, then {match['last']}"


def _is_spoken_to(clause: str) -> bool:
    """Whether a clause is about what the user does, and does not forbid it."""
    return not (_IS_FORBIDDEN.search(clause) or _IS_BY_AGENT.search(clause))


def _is_request(clause: str) -> bool:
    """Whether a clause asks the user to do something."""
    if not _is_spoken_to(clause) or _IS_ASKED_BACK.search(clause):
        return False
    return any(_IMPERATIVE.search(text) for text in (_BEFORE_REQUEST.sub("", clause), clause))


def _deeds(clause: str, switches: Sequence[_Switch], done: set[str], act: Act) -> Iterator[str]:
    """Yield the results of a request: deeds, or else switches, network mode and permissions."""
    found = ((re.search(topic, clause, re.IGNORECASE), name) for topic, name in _DEEDS)
    deeds = [name for _, name in sorted((match.start(), name) for match, name in found if match)]
    for name in deeds:
        if name not in done:
            yield act(name, {})
    done.update(deeds)
    for switch in () if deeds else switches:
        yield _switch(switch, clause, act)
    wanted = (
        mode for words, mode in _MODES if re.search(rf"(?<!not )(?<!n['’]t )\b(?:{words})\b", clause, re.IGNORECASE)
    )
    mode = next(wanted, None) if re.search(rf"{_MODE}|{_CHOOSE}", clause, re.IGNORECASE) else None
    if mode is not None and not re.search(r"\b(?:off|disabl\w+)\b", clause, re.IGNORECASE):
        yield act("set_network_mode_preference", {"mode": mode})
    if _ABOUT_PERMISSIONS.search(clause):
        yield from _permissions(clause.lower(), True, act)


def _looks(clause: str, switches: Sequence[_Switch], act: Act) -> Iterator[str]:
    """Yield what the user sees of the topics of a clause."""
    names = [switch.look for switch in switches]
    names += [name for topic, name in _LOOKS if re.search(topic, clause, re.IGNORECASE)]
    if re.search(_MODE, clause, re.IGNORECASE):
        names.append("check_network_mode_preference")
    for name in dict.fromkeys(names):
        yield act(name, {})
    if re.search(r"\bpermission|\b(?:sms|storage)\b.{0,60}\b(?:allow|access|grant)", clause, re.IGNORECASE):
        yield from _permissions(clause.lower(), False, act)


def _switch(switch: _Switch, clause: str, act: Act) -> str:
    """Turn something on or off as a clause says ("off and on again" is both); toggle it where it says neither."""
    state = act(switch.look, {})
    is_on = switch.is_on in state
    for wanted in [match.group("off") is None for match in _DIRECTION.finditer(clause)] or [not is_on]:
        if wanted != is_on:
            state, is_on = act(switch.on if wanted else switch.off, {}), wanted
    return state


def _permissions(sentence: str, does: bool, act: Act) -> Iterator[str]:
    app = "browser" if "browser" in sentence else "messaging"
    known = _PERMISSIONS if "permission" in sentence else ("sms", "storage")
    wanted = [name for name in known if re.search(rf"(?<!your )\b{name}\b", sentence)] if does else []
    for name in wanted:
        yield act("grant_app_permission", {"app_name": app, "permission": name})
    if not wanted:
        yield act("check_app_permissions", {"app_name": app})


def remaining_problem(reason: str, operations: Sequence[str], act: Act) -> str | None:
    """What still does not work of the reason for a call, None if it works: scenarios say when a user is content."""
    if "run_speed_test" not in operations:
        return None
    if "mms" in reason.lower():
        result, works = act("can_send_mms", {}), "can send"
    elif "speed" in reason.lower():
        result, works = act("run_speed_test", {}), "(Excellent)"
    else:
        result, works = act("check_network_status", {}), "Cellular Connection: connected"
    return None if works in result else f"It still does not work. {result}"
