"""Scoring answers: the official normalisations and metrics, as pure functions of two texts.

Every scorer takes the prediction and the accepted gold answers, returns a float in [0, 1], takes the best over the gold
answers, and runs in time linear in its input on any text (NUL, lone surrogates, megabytes).

Sources:
    HotpotQA: hotpot_evaluate_v1.py in github.com/hotpotqa/hotpot (Yang et al. 2018, arXiv 1809.09600); its
        normalisation is that of SQuAD 1.1 (Rajpurkar et al. 2016).
    2WikiMultihopQA: 2wikimultihop_evaluate_v1.1.py in github.com/Alab-NII/2wikimultihop (Ho et al. 2020): HotpotQA's
        metrics, each the maximum over the answer and its aliases.
    MuSiQue: metrics/answer.py in github.com/StonyBrookNLP/musique (Trivedi et al. 2022, arXiv 2108.00573): maximum over
        answer and aliases, F1 without the yes/no rule.
    GSM8K: the `#### N` convention of github.com/openai/grade-school-math (Cobbe et al. 2021, arXiv 2110.14168).

The official metrics are kept to the letter, faults included: if their normalisation empties a gold answer ("A", "The"),
exact match is 1 for "", "the" and "!", and HotpotQA's F1 is 0 for the right answer. Custom tasks are scored by "plain"
(and by "qa" in SearchQA), where a step of the normalisation that would leave nothing is skipped.
"""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import NamedTuple

from agent_r1_gym.core.latex import latex_form
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.words import UNSPACED, normal_form

Answers = str | Iterable[str]
"""The accepted gold answers: one text or several."""

_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


class TokenScores(NamedTuple):
    """Overlap of a prediction's tokens with a gold answer's."""

    f1: float
    precision: float
    recall: float


_NO_OVERLAP = TokenScores(0.0, 0.0, 0.0)
_AGREEMENT = TokenScores(1.0, 1.0, 1.0)


def normalize_answer(text: str) -> str:
    """Normalise an answer: lower case, without ASCII punctuation, the words a/an/the, and surplus white space.

    The four steps follow the official order (SQuAD, HotpotQA, 2Wiki and MuSiQue agree): "U.S." becomes "us", and
    "the-cat" "thecat", because punctuation goes before articles.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())


def exact_match(prediction: str, answers: Answers) -> float:
    """Score 1.0 if the normalised prediction equals a normalised gold answer, else 0.0; never a substring match."""
    golds = _as_tuple(answers)
    if prediction in golds:
        return 1.0
    normalized = normalize_answer(prediction)
    return float(any(normalized == normalize_answer(gold) for gold in golds))


def sub_exact_match(prediction: str, answers: Answers) -> float:
    """Score 1.0 if the normalised prediction contains a normalised gold answer as a substring of characters.

    For comparison with systems that report it (`subem_check` in Search-R1). Blind spot: "unknown" contains "no",
    and a prediction that lists every candidate always scores; so never use it as a reward. Unlike there, a gold answer
    that normalises to nothing ("A") must be among the words of the prediction.
    """
    return float(any(_contains(prediction, answer) for answer in _as_tuple(answers)))


def _contains(prediction: str, answer: str) -> bool:
    if gold := normalize_answer(answer):
        return gold in normalize_answer(prediction)
    gold = _qa_text(answer)
    return gold == _qa_text(prediction) or f" {gold} " in f" {_with_articles(prediction)} "


def token_scores(prediction: str, answer: str) -> TokenScores:
    """HotpotQA's and 2Wiki's token scores against one gold answer.

    With n tokens in common (as multisets): precision = n / |prediction|, recall = n / |answer|, F1 = their harmonic
    mean. All are 0 if either side is yes, no or noanswer and the sides differ, or if nothing is in common (also when
    both are empty).
    """
    return _token_scores(normalize_answer(prediction), normalize_answer(answer))


def _token_scores(normalized: str, gold: str, split: Callable[[str], list[str]] = str.split) -> TokenScores:
    if normalized != gold and (normalized in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS):
        return _NO_OVERLAP
    return _overlap(split(normalized), split(gold))


def musique_token_scores(prediction: str, answer: str) -> TokenScores:
    """MuSiQue's token scores against one gold answer: no yes/no rule, and two empty sides agree (1.0)."""
    tokens, gold_tokens = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if not tokens and not gold_tokens:
        return _AGREEMENT
    return _overlap(tokens, gold_tokens)


def f1_score(prediction: str, answers: Answers) -> float:
    """HotpotQA's and 2Wiki's F1, the best over `answers` (see `token_scores`)."""
    return max(token_scores(prediction, answer).f1 for answer in _as_tuple(answers))


def precision(prediction: str, answers: Answers) -> float:
    """HotpotQA's and 2Wiki's token precision, the best over `answers` (see `token_scores`)."""
    return max(token_scores(prediction, answer).precision for answer in _as_tuple(answers))


def recall(prediction: str, answers: Answers) -> float:
    """HotpotQA's and 2Wiki's token recall, the best over `answers` (see `token_scores`)."""
    return max(token_scores(prediction, answer).recall for answer in _as_tuple(answers))


def musique_f1_score(prediction: str, answers: Answers) -> float:
    """MuSiQue's F1, the best over the answer and its aliases (see `musique_token_scores`)."""
    return max(musique_token_scores(prediction, answer).f1 for answer in _as_tuple(answers))


def qa_match(prediction: str, answers: Answers) -> float:
    """`exact_match`, except that no answer is emptied, and for other scripts than Latin.

    An answer that the normalisation would empty keeps its articles, or its punctuation. Of a text that is not ASCII the
    `normal_form` counts, without the punctuation of its script.
    """
    normalized = _qa_text(prediction)
    return float(any(normalized == _qa_text(gold) for gold in _as_tuple(answers)))


def qa_f1_score(prediction: str, answers: Answers) -> float:
    """`f1_score` with the exceptions of `qa_match`; in scripts without spaces each character is a word."""
    return max(_token_scores(_qa_text(prediction), _qa_text(answer), _units).f1 for answer in _as_tuple(answers))


def answer_words(text: str, *, articles: bool = False) -> list[str]:
    """Words of a text as `qa_match` compares them; articles stay if asked for, or if there is nothing else."""
    text = _fold_script(text)
    return _units((not articles and normalize_answer(text)) or _with_articles(text))


def _qa_text(text: str) -> str:
    """Normalise as `normalize_answer`, but skip the steps that would leave nothing."""
    text = _fold_script(text)
    return normalize_answer(text) or _with_articles(text) or text.casefold().strip()


def _fold_script(text: str) -> str:
    """Give a text that is not ASCII its normal form, without the punctuation that `normalize_answer` does not know."""
    if text.isascii():
        return text
    text = normal_form(text)
    return _space_of_unspaced().sub("", _FOREIGN_PUNCTUATION.sub("", text)) or text


def _with_articles(text: str) -> str:
    return " ".join(text.lower().translate(_DROP_PUNCTUATION).split())


_FOREIGN_PUNCTUATION = re.compile(
    "[\u00a1\u00ab\u00bb\u00bf\u2010-\u201f\u2026\u2039\u203a\u2212\u3001-\u3003\u3008-\u3011\u3014-\u301f"
    "\u060c\u061b\u061f\u06d4\u0964\u0965]"  # Arabic, Indic
    "|[\u00b7\u30fb](?!\\d)"
)


@functools.cache  # compiled at the first text that needs it: the class of these scripts takes milliseconds
def _space_of_unspaced() -> re.Pattern[str]:
    return re.compile(rf"(?<=[{UNSPACED}])\s+(?=[{UNSPACED}])")


@functools.cache
def _unit() -> re.Pattern[str]:
    return re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


def _units(text: str) -> list[str]:
    """Split normalised text into words, and scripts without spaces into characters."""
    return text.split() if text.isascii() else _unit().findall(text)


# --- numbers ----------------------------------------------------------------------------------------------------------

_CURRENCY = "$\u00a3\u00a5\u20a9-\u20ac\u20b9-\u20bf"
_NUMERAL = (
    r"(?:"
    r"(?:(?P<whole>\d{1,30})[ ])?"
    r"(?<![\d/.])(?P<over>\d{1,30})\s?/\s?(?P<under>0{0,30}[1-9]\d{0,29})(?!\d|/|\.\d)"  # no date, no division by 0
    r"|(?P<dotted>\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?(?![.,]?\d))"  # 1.000.000,5: two groups, for 1.000 is one
    r"|(?P<digits>(?:\d{1,3}(?:[,_]\d{3})+|\d{1,2}(?:[,_]\d{2})+[,_]\d{3})(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<exponent>[+-]?\d{1,3})(?!\d)|\s?(?:[x*\u00d7]|\\times|\\cdot)\s?10\^\{?(?P<power>[+-]?\d{1,3})(?!\d)\}?)?"
    r")"
)
# A minus after a word, a dot or a bracket subtracts; it is not a sign.
_NUMBER = re.compile(rf"(?P<sign>(?<![\w.)])[+-](?:\s?[{_CURRENCY}])?)?{_NUMERAL}")
_NUMBER_ALONE = re.compile(
    rf"[{_CURRENCY}]?\s?(?P<sign>[+-](?:\s?[{_CURRENCY}])?)?\s?{_NUMERAL}\s?"
    rf"(?:(?P<percent>%|per ?cent)|[{_CURRENCY}])?",
    re.IGNORECASE,
)
_FINAL_ANSWER = "####"
_DASHES = str.maketrans("\u2010\u2011\u2012\u2013\u2212", "-----")
_QUOTED = " \t\n\r*`\"'\u2018\u2019\u201c\u201d"
_SEPARATOR = re.compile(  # of thousands: in LaTeX, as a space that does not break, Arabic or Swiss
    r"(?<=\d)(?:\{,\}|,?\\[,;:! ]|~|[\u00a0\u2007\u2009\u202f\u066c]|['\u2019](?=\d{2,3}(?!\d)))(?=\d)"
)
_LATEX_FRACTION = re.compile(r"(?P<after>(?<=\d))?\s?\\[dt]?frac(?:\{(\d{1,30})\}\s?\{(\d{1,30})\}|(\d)(\d))")
_POWER_OF_A_UNIT = re.compile(
    r"(?<=\d)\s?(?:[^\W\d_]{1,3}\s?[/\u00b7*]\s?(?:s|h|min|[cdkm]?m)|[cdkm]?m|in|ft|yd|mi)\^?[23](?!\w|\.\d)"
)
_SPACED_THOUSANDS = re.compile(r"\D*\d{1,3}(?: \d{3})+(?:\.\d+)?\D*")
_SPACE_WITHIN = re.compile(r"(?<=\d) (?=\d)")
_EXACT = Context(prec=64, Emax=999_999, Emin=-999_999)


def final_number(text: str) -> Decimal | None:
    r"""Extract the number that `text` ends on: the first one after the last "####" if there is one, else the last one.

    | written | is |
    | --- | --- |
    | `9,500`, `9_500`, `9'500`, `9{,}500`, `9\,500`, narrow or no-break spaces, `1.000.000`, `1,00,000` | thousands |
    | `9 500`, where the text has no other number | thousands |
    | `-5`, with any dash up to the en dash; `+5`, `$5`, `-€5` | the number, without the currency |
    | `1e3`, `3 x 10^2`, digits of any script | its value |
    | `1/2`, `2 1/2`, `\frac{1}{2}`, ½ | its value |
    | `50%`, `5 km`, `7 m^2`, a trailing full stop | the number before |
    | `10^3`, `12,34` | nothing is computed or guessed: 3, 34 |

    None if there is no number.
    """
    _, marker, conclusion = _numeral_text(text).rpartition(_FINAL_ANSWER)
    conclusion = _POWER_OF_A_UNIT.sub("", conclusion)
    numbers = _NUMBER.finditer(conclusion)
    match = next(numbers, None)
    if not marker:
        for match in numbers:  # noqa: B007 - the last one counts
            pass
    return None if match is None else _value(match)


def number_alone(text: str) -> str | None:
    """The number that `text` consists of, in one spelling ("1000", "0.5", "50%"); None if there is more or no number.

    Quotes, emphasis, a currency and a trailing full stop may surround it; a per cent sign belongs to the number.
    """
    match = _NUMBER_ALONE.fullmatch(_numeral_text(text).strip(_QUOTED).removesuffix(".").strip(_QUOTED))
    return None if match is None else _spelling(_value(match)) + ("%" if match["percent"] else "")


def _numeral_text(text: str) -> str:
    """Rewrite the ways to write a number to those that `_NUMERAL` reads."""
    text = _SEPARATOR.sub("_", text)
    if "\\" in text:
        text = _LATEX_FRACTION.sub(_fraction, text.replace("\\$", "$").replace("\\%", "%"))
    text = normal_form(text).translate(_DASHES).replace("\u066b", ".")
    return _SPACE_WITHIN.sub("", text) if _SPACED_THOUSANDS.fullmatch(text) else text


def _fraction(match: re.Match[str]) -> str:
    over, under = match[2] or match[4], match[3] or match[5]
    return f"{' ' if match['after'] is not None else ''}{over}/{under}"


def _value(match: re.Match[str]) -> Decimal:
    if match["over"]:
        number = _EXACT.divide(Decimal(match["over"]), Decimal(match["under"]))
        if match["whole"]:
            number = _EXACT.add(Decimal(match["whole"]), number)
    elif match["dotted"]:
        number = Decimal(match["dotted"].replace(".", "").replace(",", "."))
    else:
        digits = match["digits"].replace(",", "").replace("_", "")
        number = Decimal(f"{digits}e{match['exponent'] or match['power'] or 0}")
    return number.copy_negate() if (match["sign"] or "").startswith("-") else number


def _spelling(number: Decimal) -> str:
    if not number:
        return "0"
    digits = f"{number:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def numeric_match(prediction: str, answers: Answers) -> float:
    """Score 1.0 if the prediction ends on the number that a gold answer ends on (exactly: 72 = 72.0), else 0.0."""
    number = final_number(prediction)
    golds = map(final_number, _as_tuple(answers))
    return float(number is not None and any(number == gold for gold in golds))


def final_number_key(text: str) -> str:
    """`final_number` in one spelling; the text itself if it has no number."""
    number = final_number(text)
    return plain_text(text) if number is None else _spelling(number)


# --- custom tasks -----------------------------------------------------------------------------------------------------

# Followed by a word of two characters: "Vitamin A" and the option in "A, B" or "A B" are not articles.
_LEADING_ARTICLES = re.compile(r"\b(?:a|an|the)\b(?=\.?\s+\S\S)")
_SPACED_SYMBOL = re.compile(r"(?<=\w) ?([+<>=/%^&|~#@$\\]|(?<=[\d ])-(?=[\d ])) ?(?=\w)| (%)")  # of single spaces
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_OF_SENTENCES = re.compile(  # punctuation that belongs to no number, formula or name such as C++
    r"[;!?\"'`()\[\]{}_]|[.:-](?!\d)|(?<!\w)\*+|\*+(?!\w)"
    rf"|{_FOREIGN_PUNCTUATION.pattern}"
)


def plain_text(text: str) -> str:
    """Normalise an answer: lower case, without the words a/an/the, surplus white space and punctuation of sentences.

    Signs, decimal points and symbols stay: "C++", "1/2" and "x<0" are other answers than "C", "12" and "x>0". Texts
    that read the same have one form (`normal_form`). A step that would leave nothing is skipped: "A" stays "a", and
    "!" stays.
    """
    words = " ".join(normal_form(text).translate(_DASHES).casefold().split())
    symbols_close = _SPACED_SYMBOL.sub(lambda match: match[1] or match[2], words)
    bare = _without_punctuation(_LEADING_ARTICLES.sub(" ", symbols_close))
    if not _ARTICLES.sub("", bare).strip():
        bare = _without_punctuation(symbols_close)
    return bare or words


def _without_punctuation(text: str) -> str:
    listed = _THOUSANDS.sub("", text).replace(",", " ")  # "2,4" is "2, 4"
    bare = " ".join(_OF_SENTENCES.sub("", listed).split())
    return bare if bare.isascii() else _space_of_unspaced().sub("", bare)


def plain_key(text: str) -> str:
    """The text that equal answers share: a number in one spelling, anything else as `plain_text`."""
    return number_alone(text) or plain_text(text)


def plain_match(prediction: str, answers: Answers) -> float:
    """Score 1.0 if the prediction is a gold answer, else 0.0: a number by its value, anything else as `plain_text`.

    HotpotQA's normalisation drops punctuation: by it, -738 and 7.38 are 738, and 738.0 is not.
    """
    key = plain_key(prediction)
    return float(any(key == plain_key(gold) for gold in _as_tuple(answers)))


def plain_f1_score(prediction: str, answers: Answers) -> float:
    """F1 of the words of `plain_text`, the best over `answers`; a gold number is right or wrong.

    In scripts without spaces (Chinese, Japanese, Thai), and in Korean, each character is a word.
    """
    return max(_plain_f1(prediction, answer) for answer in _as_tuple(answers))


def _plain_f1(prediction: str, answer: str) -> float:
    words, gold = plain_text(prediction), plain_text(answer)
    if number_alone(answer) is not None or words in _CLOSED_ANSWERS or gold in _CLOSED_ANSWERS:
        return plain_match(prediction, answer)
    return _overlap(_units(words), _units(gold)).f1


def latex_match(prediction: str, answers: Answers) -> float:
    """Score 1.0 if the prediction and a gold answer have the same normal form (`latex.latex_form`), else 0.0."""
    form = latex_form(prediction)
    return float(any(form == latex_form(gold) for gold in _as_tuple(answers)))


# --- scorers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AnswerScorer:
    """The two metrics that a data set reports, and what they hold equal.

    Attributes:
        em: (prediction, answers) -> 1.0 for a correct answer, else 0.0.
        f1: (prediction, answers) -> partial credit in [0, 1].
        key: answer -> the text that equal answers share; majority votes and tables of answers count the keys of
            registered scorers, and those of `plain` for a custom one.
        name: key of `SCORERS`, "" for a custom scorer; records hold it.
    """

    em: Callable[[str, Answers], float]
    f1: Callable[[str, Answers], float]
    key: Callable[[str], str] = plain_key
    name: str = ""


_HOTPOTQA = AnswerScorer(exact_match, f1_score, normalize_answer, "hotpotqa")
_PLAIN = AnswerScorer(plain_match, plain_f1_score, plain_key, "plain")

SCORERS: Mapping[str, AnswerScorer] = MappingProxyType(
    {
        "hotpotqa": _HOTPOTQA,
        "2wikimultihopqa": _HOTPOTQA,
        "fiction": _HOTPOTQA,
        "musique": AnswerScorer(exact_match, musique_f1_score, normalize_answer, "musique"),
        "gsm8k": AnswerScorer(numeric_match, numeric_match, final_number_key, "gsm8k"),
        "qa": AnswerScorer(qa_match, qa_f1_score, _qa_text, "qa"),
        "math": AnswerScorer(latex_match, latex_match, latex_form, "math"),
        "plain": _PLAIN,
        "long_read": _PLAIN,
    }
)
"""The official scorer of each data set, by its short name; "plain" for custom tasks, and "qa" for custom questions that
are scored nearly as HotpotQA's. GSM8K: no partial credit."""


def _as_tuple(answers: Answers) -> tuple[str, ...]:
    golds = (answers,) if isinstance(answers, str) else tuple(answers)
    if not golds:
        raise ConfigurationError(
            "This task has no gold answer, which the scorer needs. Add `answers` to the task, choose a split that has "
            "them, or use a reward that needs none (a judge, or `success`)."
        )
    return golds


def _overlap(tokens: list[str], gold_tokens: list[str]) -> TokenScores:
    common = (Counter(tokens) & Counter(gold_tokens)).total()
    if common == 0:
        return _NO_OVERLAP
    precision, recall = common / len(tokens), common / len(gold_tokens)
    return TokenScores(2 * precision * recall / (precision + recall), precision, recall)
