"""From a scenario, which instructs a simulated user, to what a scripted user says, and what it makes of a message.

tau2-bench writes scenarios for a language model: "You want to return the lamp. If the agent says no, ask for a human
agent." A script cannot interpret that; it can sort the sentences. Some state a fact or a wish and can be spoken, some
are conditions that wait for their trigger, some only direct the acting. Nothing is added: every word that a scripted
user says, apart from a few set phrases, stands in its scenario.

A message of the agent is read sentence by sentence: whether it asks for information, asks for a yes, refuses something,
says that something is done, or closes the conversation.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import Scenario

# --- set phrases -----------------------------------------------------------------------------------------------------

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""What a user says last: the request is dealt with, a human takes over, or the scenario does not say how to go on."""
END_TOKENS = (STOP, TRANSFER, OUT_OF_SCOPE)
YES, NO = "Yes, please go ahead.", "No, that is not what I want."
UNKNOWN, WAITING = "I don't know.", "OK."
NOTHING_ELSE = "No, that is all."
THE_END = f"{NOTHING_ELSE} Thank you. {STOP}"

# --- what a message does ---------------------------------------------------------------------------------------------

REFUSED, CONFIRM = "<refused>", "<confirm>"
"""Content words for whatever refuses, or asks for a confirmation."""
ASKED, AGREED, DONE, PENDING, CLOSING = "<asked>", "<agreed>", "<done>", "<pending>", "<closing>"
"""Content words of messages that ask for information, say that something can be done, is done, or is not shipped yet,
or close the conversation."""
HELD = "<held>"
"""In a trigger: the line is not said unless the condition is met."""
OVER, UNDER = "<over>", "<under>"
"""In a trigger: the message must state an amount above, or below, the trigger's number or the scenario's limit."""

_LIST_BEGIN = re.compile(r"(?::|,| or| and)[ \t]*\n\s*- ")
_PLAIN = str.maketrans({"’": "'", "“": '"', "”": '"', "*": "", "`": ""})
_MESSAGE_SENTENCE = re.compile(r"(?<=[.!?])[\"')]*\s+|\n+")
_REFUSAL = re.compile(
    r"(?:\b(?:can(?:no|')t|can not|couldn't|could not|unable|impossible|unfortunately|ineligible|prohibit(?:s|ed)|"
    r"invalid|den(?:y|ies|ied)|refuse[sd]?|declined?|no (?:way|luck|record|match)|won't|will not|no longer possible|"
    r"(?:against|outside(?: of)?) (?:our |the )?polic(?:y|ies)|out of stock|(?:only|other) option|"
    r"only the (?:full|entire|whole)|can only|no [\w ]{1,30}(?:possible|available|allowed))|"
    r"(?:\bnot|n't) (?:be )?(?:possible|able|allowed|eligible|available|permitted|supported|offered|authorized|found|"
    r"an option|something (?:we|i|that)|allow|agree|permit|support|offer|qualify|let|accept|meet|exist|work|find))\b"
    r"(?!.{0,12}\b(?:undone|revers|until|before))(?!.{0,20}\bonce\b)|^no,",
    re.IGNORECASE,
)
_DONE = re.compile(
    r"\b(?:done|completed?|all set|success\w*|(?:has|have) been \w+|(?:is|are|was|were|'ve|have|'s) (?:now )?"
    r"(?:been )?(?:cancell?ed|processed|returned|exchanged|updated|changed|modified|booked|refunded|submitted))\b",
    re.IGNORECASE,
)
_MORE_TO_COME = re.compile(r"\b(?:now|next|let me|i'll|i will|moment|going to|located|found|verified)\b", re.IGNORECASE)
_AGREEMENT = re.compile(
    r"\b(?:yes|sure|certainly|of course|possible|can|able|available|there (?:is|are))\b", re.IGNORECASE
)
_PENDING = re.compile(r"\bpending\b|(?:not|n't) (?:yet )?(?:been )?(?:yet )?shipped", re.IGNORECASE)
_CLOSING = re.compile(
    r"\b(?:(?:any|some)thing (?:else|more|further|(?:that )?i (?:have )?(?:overlook|miss|forg)\w*)|(?:good|bye-)?bye|"
    r"take care(?! of)|you're welcome|(?<!be )happy to help|further service|(?:that|this) (?:be )?all\b|"
    r"(?:any|some) (?:other|more|further) (?:question|request|help|assistance|concern|matter|item|change)s?|"
    r"other (?:question|request)s|(?:other|more|further) issues?|what else|all set|glad i could|pleasure|"
    r"cover everything|"
    r"(?:is|was|be) (?:that|this) everything|(?:that|this) (?:is|be|covers?) everything|are you satisfied|"
    r"(?:does|did) (?:that|this|it|i) (?:help|answer|clarify|resolve|cover|clear)|"
    r"(?:great|nice|good|wonderful|lovely|pleasant) (?:day|evening|weekend|one|rest))\b",
    re.IGNORECASE,
)
_EXPLICIT_YES = re.compile(
    r"yes/no|\byes or no\b|^- yes\b|"
    r"\bwhat (?:do )?you (?:say|think)\b(?! (?:about|of)\b)|\bwhen(?:ever)? you(?:'re| are) ready\b|"
    r"\bwhat(?: is|'s) your (?:decision|verdict)\b|"
    r"\b(?:reply|respond|answer|type|say|write|enter|send)\b.{0,25}\byes\b|\bsay the word\b|"
    r"\bthe (?:go-ahead|green light|okay)\b|"
    r"\b(?:an?|your) (?:\w+ )?(?:yes|approval|consent|permission|go-ahead|okay|ok|confirmation|green light)\b"
    r"(?! (?:number|code|id|e-?mail))",
    re.IGNORECASE,
)
_WH_QUESTION = re.compile(
    r"(?:^|[,;:(—–-]\s*|\b(?:and|so|but|or|know|tell me|ask)\s+)(?:(?:for|to|on|from|in|with|by|at) )?"
    r"(?:which|whose|what|who|where|why|how(?! about| do(?:es)? (?:that|this|it) (?:sound|look))|"
    r"when(?= (?:do|does|did|would|will|is|are|was|should|shall|can)\b))\b.*\?|"
    r"\bshould (?:the|your)\b.{0,80}\bor (?:would|should|shall|do)\b",
    re.IGNORECASE,
)
_PERSONAL = (
    r"(?:e-?mail|zip|post ?code|user ?id|customer id|identity|date of birth|birth ?date|name|phone|account|"
    r"address(?= ?(?:[?,.]|$|and|on)))"
)
_REQUEST = re.compile(
    r"\b(?:may|can|could|might) (?:i|we)\b(?:[ ,]*\b(?:please|also|kindly|just|quickly|once more|again|first)\b)*,? "
    r"(?:have|get|know|ask|take|grab|request|see)\b(?! (?:whether|if|it|this|that|started|care|going|a moment)\b)|"
    r"\b(?:provide|specify|spell|shar(?:e|ing))\b|"
    r"\bplease (?:enter|state|list|name|identify|verify|choose|select|fill in)\b|"
    r"\bdo you (?:have(?! (?:any )?(?:other|more|further)\b)|remember|know)\b|"
    r"\b(?:tell|give|send|let) me (?!know(?! (?:your|which|what|where|when|who|how|the)\b)|"
    r"do|go|proceed|check|look|(?:just )?(?:a|one) (?:moment|second|minute))|"
    r"\b(?:i|we)(?:'ll|'d)?(?: (?:will|would|do|just|still|also|first))* (?:have to know|(?:need|require):? "
    rf"(?:your\b|the\b|to know|(?!to\b)[^.?!]{{0,40}}\b{_PERSONAL}\b))|"
    rf"^(?:- )?(?:(?:your|the|and|full|first|last) )*{_PERSONAL}\b[^.?!]{{0,60}}(?:\bplease[.!]?|:)$|"
    rf"^missing: [^.?!]{{0,40}}\b{_PERSONAL}\b|"
    r"\b(?:confirm|verify|check)\b(?:(?! (?:that|if|whether)\b)[^.?!]){0,60}"
    rf"\b(?:your|the|an?) (?:\w+ ){{0,3}}{_PERSONAL}\b|"
    r"\bneed to (?:verify|identify|confirm|authenticate)\b[^.?!]{0,60}\b(?:your|who you are)\b|"
    r"\bneed to (?:look up|locate|find|pull up|access) your (?:account|profile|details)\b",
    re.IGNORECASE,
)
_ASKS_TO_AGREE = re.compile(
    r"\bconfirm(?:s|ing|ation)?\b|\bdouble check\b|\bproceed\b|\bgo ahead\b|\bcontinue\b|\bsounds? good\b|"
    r"\bhow about\b|"
    r"\b(?:may|can) i\b(?! (?:help|assist|do|be)\b)|\b(?:good|ready) (?:for me|to)\b|\b(?:any|no) objections?\b|"
    r"(?:^|[,;:-] )(?:(?:all|everything)(?: is| looks)? )?(?:ok|okay|right|correct|agreed|deal|fine|good|alright)\?|"
    r"(?:^|[,;:-] )(?:ok|okay|fine|alright) (?:to|for|if|with)\b|"
    r"\b(?:did|do|have) i (?:get|got|understand|understood)\b.{0,20}\b(?:right|correct)|"
    r"\b(?:is|are|does|do|would|will|how) (?:that|this|it|these|those|everything|all (?:of )?(?:this|that)|the \w+) "
    r".{0,25}?\b(?:correct|right|ok|okay|fine|good|acceptable|alright|work|like|want|sound|look|suit)\b|"
    r"\b(?:okay|ok|fine|alright|all right|happy) (?:with (?:you|that|this)|for me to|if i)\b|"
    r"\bare you (?:sure|ok|okay|fine|happy|certain)\b|"
    r"\bdo you (?:agree|accept|approve|authori[sz]e|consent|want that)\b|"
    r"\bif (?:this|that|it|everything|all) (?:is|looks|sounds|works|suits)\b",
    re.IGNORECASE,
)
_OFFERS = re.compile(
    r"\b(?:shall|should) (?:i|that|this|it)\b|\bshall we (?:do|get|make|book|cancel|change)\b|"
    r"\b(?:do|would) you (?:want|like|prefer)\b|\b(?:want|like) me to\b|"
    r"\b(?:with|for|by|let) me\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\bor\b(?! (?:not|no)\b)(?!.{0,40}\b(?:any|some)thing\b)", re.IGNORECASE)
_INTRODUCTION = re.compile(r"^(?:in order )?to (?:proceed|continue|go ahead)\b[^,.?!]{0,40}, ?", re.IGNORECASE)
_AGREE_IF = re.compile(
    r"^confirm\b|\blet me know\b|\bif you(?:'d| would) like me to\b|\b(?:please|kindly|just|if you|"
    r"(?:need|ask)(?:s|ed)? (?:that )?you(?: to)?|once you|when you|until you|asks? for(?: \w+)?|"
    r"asks? (?:you|me) (?:to|for)) (?:\w+ )?(?:confirm|double check|agree|proceed|(?:that|this|it|everything) )",
    re.IGNORECASE,
)


def is_closing(text: str) -> bool:
    """Whether a text has a phrase that closes a conversation; a message also needs to ask for nothing (`heard`)."""
    return _CLOSING.search(plain_text(text)) is not None


def plain_text(text: str) -> str:
    """A message with straight quotes, without marks of emphasis, and with its list items behind hyphens."""
    text = re.sub(r"^[ \t]*(?:\*|•|\d+[.)])[ \t]+", "- ", text, flags=re.MULTILINE)
    return text.translate(_PLAIN)


def sentences(text: str) -> list[str]:
    """The sentences and list items of a message."""
    return [part for part in _MESSAGE_SENTENCE.split(plain_text(text)) if part.strip()]


def asking_sentences(text: str) -> list[tuple[str, bool]]:
    """The sentences of a message that want an answer, each with whether the answer is a yes or a no."""
    found: list[tuple[str, bool]] = []
    is_choice = False  # between "- Yes" and "- No"
    for sentence in sentences(_LIST_BEGIN.sub(": ", plain_text(text))):
        sentence = _INTRODUCTION.sub("", sentence)
        is_question = sentence.rstrip("\"') ").endswith("?")
        is_choice = is_choice or sentence.lower().startswith("- yes")
        if _EXPLICIT_YES.search(sentence) or (is_choice and is_question):
            found.append((sentence, True))
        elif (is_question and _WH_QUESTION.search(sentence)) or _REQUEST.search(sentence):
            found.append((sentence, False))
        elif _ASKS_TO_AGREE.search(sentence) and (is_question or _AGREE_IF.search(sentence)):
            found.append((sentence, True))
        elif is_question and not is_closing(sentence):
            found.append((sentence, _OFFERS.search(sentence) is not None and not _CHOICE.search(sentence)))
    return found


@functools.lru_cache(maxsize=4096)
def heard(message: str) -> frozenset[str]:
    """The content words of a message, among them what it does (`REFUSED`, `CONFIRM`, `ASKED` ...)."""
    text, found = plain_text(message), set(content_words(message))
    if CONFIRM not in found and asking_sentences(message):
        found.add(ASKED)
    if REFUSED not in found and _AGREEMENT.search(text):
        found.add(AGREED)
    if _DONE.search(text) and not _MORE_TO_COME.search(text):
        found.add(DONE)
    if _PENDING.search(text):
        found.add(PENDING)
    if is_closing(text) and not {ASKED, CONFIRM} & found:
        found.add(CLOSING)
    return frozenset(found)


# --- words -----------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[a-z0-9#_@.]*[a-z0-9]", re.IGNORECASE)
_COMMON = """
a an and any are ask asked asks at be been but by can could did do does for from get had has have how i if in is it its
just like make may me my no not of on or our please provide say says should so some sure tell than that the their them
then there they this to us want wants was we were what when which who will with would yes you your agent service about
also am because help need know don doesn didn isn won ll ve re
"""
_STOP_WORDS = frozenset(_COMMON.split())
_SAME = {
    **{"birthd": "birth", "dob": "birth", "paymen": "pay", "number": "id"},
    **{"fly": "flight", "flying": "flight", "back": "return"},
    **dict.fromkeys(("bag", "bags", "suitca", "luggag"), "baggag"),
}


def content_words(text: str) -> frozenset[str]:
    """Lower-case words that carry meaning, shortened so that forms of a word agree."""
    words = {word.lower() for word in _WORD.findall(text)}
    found = {word[:6] if word.isalpha() else word for word in words - _STOP_WORDS if len(word) > 1}
    found = {_SAME.get(word, word) for word in found}
    if any(_REFUSAL.search(sentence) for sentence in sentences(text)):
        found.add(REFUSED)
    asking = asking_sentences(text)
    if asking and asking[-1][1]:
        found.add(CONFIRM)
    return frozenset(found)


# --- what a scenario lets its user say -------------------------------------------------------------------------------

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z#'\"(])|\n+")
_INNER_CONDITION = re.compile(
    r"[,;]?\s+(?:but|and) (?=if\b[^.]*,)|[;,] (?:but )?(?=(?:if|when) (?:the )?(?:service )?agent\b)", re.IGNORECASE
)
_ABBREVIATION = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|e\.g|i\.e|etc)\.$")
_CONDITION = re.compile(
    r"^(?:(?:but|and|or|then|also|only|even)\s+)*(?:if|when|once|unless|after (?!this|that)|in case|halfway)\b"
    r"|\bif (?:the |your )?(?:customer )?(?:service )?(?:agent|representative)\b|\b(?:if|when) asked\b",
    re.IGNORECASE,
)
_WONDERS = re.compile(r"\b(?:wonder|know|see|check|ask)\b", re.IGNORECASE)
_DIRECTION = re.compile(
    r"^(?:please )?(?:(?:but|and|also|however|then|so|therefore),? )?"
    r"(?:be|(?:do not|don't) (?!exchange|cancel|return|modify|change|do any)\w+|never|always|act|sound|"
    r"try to (?:make|get|be)|make (?:sure|everything)|insist (?!that)|under no|avoid|keep (?!the)|remember|initially|"
    r"first complain|you will never|otherwise,? just|accept it|use both|(?:you )?move on|end the|ask explicitly|"
    r"you (?:also )?(?:like|tend|prefer) to (?:talk|say|speak|do one thing))\b|"
    r"do not reveal|don't reveal|English is not perfect|do not mention|don't mention|do not tell|"
    r"do not share|not volunteer|"
    r"this is incorrect|is meant to test|same conversation|tool calls?\b|always ask|follow their guidance|whenever|"
    r"you are trying to make|until the agent asks|you (?:occasionally|randomly) insert|try a maximum|"
    r"approach will be|famous poem|carry on with|at once and in|things together|upfront|at the same time|"
    r"end the call|^accept\.?$",
    re.IGNORECASE,
)
_PERSONA = re.compile(
    r"^you(?: are|'re) (?!.*(?:\d|about the|upset that|because|with original|looking))"
    r"(?:an?|very|extremely|really|now|also|usually|in debt|into|upset|polite|brief|calm|busy|"
    r"impatient|persistent|insecure|detail|emotional|reactive|sad|happy|angry|anxious|rigid|relaxing|organized|curious|"
    r"optimistic|pessimistic|logical|creative|confident|cautious|independent|messy|flexible|dependent|patient|direct|"
    r"shy|outgoing|rude|mysterious)\b",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"\s*\((?![^()]*\b(?:but (?:it|should)|only want|share)\b)"
    r"[^()]*\b(?:do not|don't|mention|agent|common mistake)\b[^()]*\)",
    re.IGNORECASE,
)
_HELD_BACK = re.compile(r"\s*\((?:do not|don't) mention it if [^()]*\)", re.IGNORECASE)
_REWRITTEN = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (
            r"\((?:that )?you (?:do not|don't|prefer not to) (?:want to )?(?:mention|reveal) it,? but (?:it is|it's) ",
            "(it is ",
        ),
        (r"\s+,", ","),
        (r"(?<!\.)\.\s*\.(?!\.)", "."),  # what a secret leaves
        (r",\s*\n+\s*(?=(?-i:[a-z]))", ", "),
        (r" {2,}", " "),
        (r":\s*\n+\s*- ", ": "),
        (r"\s*\n\s*- ", ", "),
        (r", then correct yourself and (say [^.]+?) if ([^.]+)\.", r". If \2, \1."),
        (r"\b(?:after (?:the )?\w+ agent message|in the middle of the conversation)[^,]*, ", ""),
        (r"\bhalfway through ([^,]*), [^.]*? by saying that ", r"Halfway through \1, say that "),
        (r"\bfor that you make up a story about having\b", "You had"),
        (r"\byou will come up with a great idea to\b", "You want to"),
        (r"\bfor the first \d+ rounds of interaction but then suddenly find\b", "but you find"),
        (r"\bbecome angry and ", "want to "),
        (r"\b(?:are|would be) angry (?:and|but) (?:swear for a few times, then )?", ""),
        (r"\badd another request and (?=also want)", ""),
        (r"\bmade a mistake and provide\b", "made a mistake, it is"),
        (r"\bwant to rethink for a while, and then change your mind to\b", "have changed your mind and want to"),
        (r"\bask for (?=changing\b)", "you insist on "),
        (r"\ban? \w+ (?:guy|man|woman|person) (?:called|named) ", ""),
        (r"\bsuddenly change your mind\b", "you change your mind"),
        (r"\b(?:you suddenly decide that|suddenly|do not say yes immediately, because) ", ""),
        (r"\btell the agent not to do it\b", "then not"),
        (r"\s+and to keep looking\b", ", keep looking"),
        (r"\balso if the agent can help\b", "Also, you want to know if the agent can help"),
        (r"\band that you're\b", "and you're"),
        (r"\byou can also ask for ([^.]*) or try to negotiate ", r"you also ask for \1 or "),
        (r"- do not accept\b", "- you do not accept"),
        (r"\bconfirm and ask the agent to\b", ""),
        (r"(?<!\bdid )\b(?:first,? )?try to (?!make|get|be\b|negotiate)", "you want to "),
        (r"\binsist persistently on\b", "you insist on"),
        (r"\binsist (?=the agent should\b)", ""),
        (r"\bbut (don't remember|are not sure)\b", r"but you \1"),
        (r"\byou do not want the (?=you\b)", ""),
        (r"\band are (in a bad mood|willing)\b", r"and you are \1"),
        (r",? and be adamant about it|, be insistent", ""),
        (r"\byour forgot\b", "you forgot"),
    )
)
_TO_AGENT = re.compile(
    r"^(?:you )?(?:want to )?(?:(?:tell|say|mention|explain|state|inform|provide|give|admit|insist that)s?|"
    r"respond exactly with|reply with)(?: to)?(?: (?:it|them|(?:the |your )?(?:customer )?(?:service )?"
    r"(?:agent|representative)))?(?: that| it's because| to)? (?=\S)",
    re.IGNORECASE,
)
_AGENT = re.compile(
    r"\b(?:(the|your|a|an|another|human) )?(?:customer )?(?:service )?(?<!support )(?:agent|representative)\b"
    r"(?: (is|has|does|doesn't|was|[a-z]{2,}[a-rt-z]s)(?= ))?",
    re.IGNORECASE,
)
_NOT_THIS_AGENT = frozenset({"a", "an", "another", "human"})
_PLURAL = {"is": "are", "has": "have", "does": "do", "doesn't": "don't", "was": "were", "denies": "deny"}
_OBJECT_AFTER = re.compile(
    r"\b(to|for|tell|tells|told|ask|asks|asked|give|gives|gave|given|with|help|helps|let|of|from|send|sends|offer|"
    r"offers|charge|charges|owe|owes|allow|allows|assure|assured|promised|cost|costs|inform|informs|informed|caused?|"
    r"compensate|saves?|upgrade)$",
    re.IGNORECASE,
)
_SECOND_PERSON = re.compile(
    r"\byou (?:are|were)\b|\byou['’](?:re|ve|d|ll)\b|\byourself\b|\byours\b|\byour\b|\byou\b", re.IGNORECASE
)
_FORGOTTEN_R = re.compile(r"\b(you)(?= (?:name|mobile|skateboard|reservation)\b)", re.IGNORECASE)
_FORMS = {
    **{"you are": "I am", "you're": "I'm", "you’re": "I'm", "you were": "I was", "you've": "I've", "you’ve": "I've"},
    **{"you'd": "I'd", "you’d": "I'd", "you'll": "I'll", "you’ll": "I'll", "yourself": "myself", "yours": "mine"},
    "your": "my",
}
_CONSEQUENCE = re.compile(
    r",\s+(?:then\s+|and\s+|please\s+)*(?=(?:you|you'd|you're|your|it|that|there|no|only|just|also|the (?!agent)|"
    r"paypal|using|do|don't|say|ask|mention|tell|cancel|return|exchange|modify|use|accept|proceed|provide|agree|get|go|drop|"
    r"choose|transfer|move|see|keep|change|confirm|suddenly|admit|insist|make|end|be|try|respond)\b)",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"^\W*(?:if )?not\b|\bno\b|\bissues?\b|\bfails\b|doesn't work|\berror\b|only do one", re.IGNORECASE
)
_EVEN_IF = re.compile(r"\beven if\b", re.IGNORECASE)
_IF_SO = re.compile(r"^(?:so|there are|(?:that|it) is(?: possible| available)?)$", re.IGNORECASE)
_AFTER = re.compile(r"^(?:only )?(?:after|once)\b", re.IGNORECASE)
_REFERS_BACK = re.compile(r"^(?:so|not|that|it|there|after \w+ing it)\b", re.IGNORECASE)
_ABOVE, _BELOW = re.compile(r"\b(?:more|greater|higher|above|exceeds?)\b"), re.compile(r"\b(?:less|cheaper|below)\b")
_CONFIRMING = frozenset({"confir", "double", "check", "final", "again", "before", "procee"})
_PRICED = re.compile(r"\b(?:price|costs?|bucks)\b|\$|\bit (?:is|will be) (?:more|less)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Line:
    """Something that a scripted user may say.

    Attributes:
        text: in the first person.
        words: content words, to find out whether a question is about it.
        trigger: content words of its condition; None: it has none, and may be said at any time.
        after: what must be said first, for a condition such as "If not" that refers back to it.
    """

    text: str
    words: frozenset[str]
    trigger: frozenset[str] | None = None
    after: str = ""


def opening(scenario: Scenario) -> str:
    """The user's first message: the reason for the call, as far as it has no condition."""
    if scenario.replies is not None:
        return scenario.reason  # to say word by word
    spoken = [line.text for line in lines(scenario.reason) if line.trigger is None]
    return " ".join(spoken) or first_person(_SECRET.sub("", scenario.reason).strip()) or "Hello, I need help."


def lines(text: str) -> list[Line]:
    """The sentences of a part of a scenario that a user may say; directions for the acting are dropped."""
    text = _SECRET.sub("", _HELD_BACK.sub(HELD, text))
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    found: list[Line] = []
    for sentence in _sentences(text):
        line = _line(sentence, found[-1] if found else None)
        if line is not None:
            found.append(line)
    return found


def first_person(text: str) -> str:
    """Turn what a scenario tells its actor ("you want your money") into what the actor says ("I want my money")."""
    text = _FORGOTTEN_R.sub(r"\1r", text)

    def replace(match: re.Match[str]) -> str:
        word = match.group().lower()
        if word == "you":
            before, after = text[: match.start()].rstrip(), text[match.end() :]
            is_object = _OBJECT_AFTER.search(before) or (before.endswith("refund") and after.startswith(" for"))
            return "me" if is_object else "I"
        form = _FORMS[word]
        starts_sentence = not text[: match.start()].strip() or text[: match.start()].rstrip()[-1] in ".!?"
        return form[0].upper() + form[1:] if starts_sentence else form

    return _AGENT.sub(_address, _SECOND_PERSON.sub(replace, text))


def _address(match: re.Match[str]) -> str:
    """Speak to the agent ("the agent gives" is "you give"), not to another one."""
    article, verb = (match.group(1) or "").lower(), match.group(2)
    if article in _NOT_THIS_AGENT:
        return match.group()
    return f"you {_PLURAL.get(verb, verb[:-1])}" if verb else "you"


def _sentences(text: str) -> list[str]:
    parts: list[str] = []
    rough = (part for sentence in _SENTENCE_END.split(text) for part in _INNER_CONDITION.split(sentence))
    for part in filter(None, (part.strip() for part in rough)):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += f" {part}"
        else:
            parts.append(part)
    return parts


def _line(sentence: str, previous: Line | None) -> Line | None:
    sentence = re.sub(r"^[.\s]+", "", sentence)
    if not any(character.isalnum() for character in sentence) or _PERSONA.search(sentence):
        return None
    condition = _CONDITION.search(sentence)
    before = sentence[: condition.start()] if condition else sentence
    if condition and not (_WONDERS.search(before) or _EVEN_IF.search(sentence)):
        return _conditional(sentence, previous)
    if _DIRECTION.search(sentence):
        return None
    spoken = _spoken(sentence)
    return Line(spoken, content_words(spoken))


def _conditional(sentence: str, previous: Line | None) -> Line | None:
    """Split a sentence such as "If the agent says X, ask for Y": it waits for X, and then says Y."""
    if found := _CONSEQUENCE.search(sentence) or re.search(r"(?<=\w)\s+(?=you want\b)", sentence):
        condition, consequence = sentence[: found.start()], sentence[found.end() :]
    else:
        condition, _, consequence = sentence.partition(",")
    if not consequence:
        before, _, after = sentence.partition(" if ")
        condition, consequence = (after, before) if after else (sentence, "")
    consequence = re.sub(r"^\s*(?:then|and)\s+", "", consequence.strip(), flags=re.IGNORECASE)
    if not consequence or _DIRECTION.search(consequence):
        return None
    spoken = re.sub(r" (?:first|initially)\.$", ".", _spoken(consequence))
    words = content_words(spoken)
    condition = re.sub(
        r"^(?:(?:but|and|then|also|only|if|when)\b\s*)+", "", condition.rstrip(" ."), flags=re.IGNORECASE
    )
    trigger, after = _trigger(condition, words), ""
    if previous and _REFERS_BACK.search(condition) and trigger & {REFUSED, AGREED, DONE}:
        after = previous.after if previous.trigger and AGREED in previous.trigger else previous.text
        trigger |= previous.words if AGREED in trigger else frozenset()
    return Line(spoken, words, trigger, after)


def _trigger(condition: str, consequence: frozenset[str]) -> frozenset[str]:
    """The content words of a condition, among them what a message must do."""
    words = content_words(condition.replace(HELD, "")) | ({HELD} if HELD in condition else set())
    if CONFIRM in words or re.search(r"\b(?:asks?|wants?)\b.*\bconfirm", condition, re.IGNORECASE):
        return (words - _CONFIRMING) | {CONFIRM}
    if _FAILED.search(condition):
        words |= {REFUSED}
    elif _IF_SO.search(condition):
        return frozenset({AGREED})
    elif _AFTER.search(condition) or re.match("halfway", condition, re.IGNORECASE):
        return (words - {REFUSED, "after", "once"}) | {DONE}
    elif "shipped" in condition and _PENDING.search(condition):
        return frozenset({PENDING})
    elif _PRICED.search(condition) and (_ABOVE.search(condition) or _BELOW.search(condition)):
        return words | {OVER if _ABOVE.search(condition) else UNDER}
    elif re.search(r"\bask(?:s|ed)?\b", condition, re.IGNORECASE):
        return (words or consequence) | {ASKED}
    return words or frozenset({REFUSED})


def _spoken(sentence: str) -> str:
    text = first_person(_TO_AGENT.sub("", sentence.replace(HELD, "").strip()))
    text = re.sub(r"^((?:finally, )?)ask\b", r"\1I want to ask", text, flags=re.IGNORECASE)
    text = re.sub(r"(, |\band |\bso )ask (?=you\b)", r"\1I ask ", text)
    text = text[:1].upper() + text[1:] if text[:1].islower() else text
    return text if text[-1:] in ".!?'\")" else text.rstrip(",;:") + "."
