r"""Words of any script: one form for texts that read the same, and where a word begins and ends.

Python's `\w` alone assumes Latin: it makes a Chinese sentence one word, and cuts Hindi at every vowel sign. Scorers,
BM25 and the notebook split text here, so that all of them agree.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata

UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59"  # Thai
    "\u0e81-\u0edf\u1000-\u1049\u1050-\u109f\u1780-\u17d3\u17d7\u17dc-\u17e9"  # Lao, Burmese, Khmer
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"  # Japanese kana
    "\u3105-\u312f\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U000323af"  # Chinese characters, bopomofo
    "\u1100-\u11ff\uac00-\ud7a3"  # Korean: it has spaces, but particles stick to the words
)
"""Scripts whose words are not found by their spaces, as the inside of a character class; a unit is a character."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
    # Vowel signs and stretching that Arabic and Hebrew may be written with or without.
    "\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]"
)
_SUPERSCRIPTS = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207f]+")
_FRACTION_AFTER_DIGIT = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e\u2189])")
_LONGEST_RUN_OF_MARKS = 30  # of UAX #15: sorting the marks of one letter takes time quadratic in their number


def normal_form(text: str) -> str:
    """Give texts that look or read the same one form: NFKC, without invisible characters and optional vowel signs.

    Full-width characters, ligatures and presentation forms become ordinary ones, and composed characters meet
    decomposed ones. A superscript becomes `^n`, since ten squared is not 102, and a fraction n/d. Accents, voicing
    marks and the vowel signs of Indic scripts stay: without them a word is another one.
    """
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = _SUPERSCRIPTS.sub(lambda match: f"^{match[0]}", _FRACTION_AFTER_DIGIT.sub(" ", text))
        text = _long_runs_of_marks().sub(lambda match: match[0][:_LONGEST_RUN_OF_MARKS], text)
        text = unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/")
    visible = _INVISIBLE.sub("", text)
    # Removing a character may bring a letter and its mark together.
    return text if len(visible) == len(text) else unicodedata.normalize("NFC", visible)


def split_words(text: str) -> list[str]:
    """Split text into words of letters, digits and their marks; case stays.

    A run of characters of an `UNSPACED` script is one word: see `characters`.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text)
    if not _unspaced_character().search(text):
        return _spaced_pattern().findall(text.replace("_", " "))
    return _word_pattern().findall(text)


def is_unspaced(word: str) -> bool:
    """Whether a word of `split_words` is a run of characters of an `UNSPACED` script."""
    return not word.isascii() and _unspaced_character().match(word) is not None


def is_mostly_unspaced(text: str) -> bool:
    """Whether more than half of the visible characters of a text belong to an `UNSPACED` script."""
    return not text.isascii() and 2 * len(_unspaced_character().findall(text)) > len("".join(text.split()))


def characters(run: str) -> list[str]:
    """Split a run into its characters, each with its marks."""
    return _character_pattern().findall(run)


def bigrams(units: list[str]) -> list[str]:
    """Join neighbours; a single unit stays."""
    return ["".join(pair) for pair in itertools.pairwise(units)] or units


_ASCII_WORD = re.compile(r"[a-zA-Z0-9]+")


@functools.cache
def _unspaced_character() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}]")


@functools.cache
def _marks() -> str:
    """All marks (category M), as the inside of a character class; `re` has no class for them."""
    codes = (code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)).startswith("M"))
    runs = itertools.groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])
    ranges = ([chr(code) for _, code in run] for _, run in runs)
    return "".join(f"{run[0]}-{run[-1]}" for run in ranges)


@functools.cache
def _spaced_pattern() -> re.Pattern[str]:
    return re.compile(f"[\\w{_marks()}]+")


@functools.cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(f"[{UNSPACED}][{UNSPACED}{_marks()}]*|(?:(?![{UNSPACED}_])[\\w{_marks()}])+")


@functools.cache
def _character_pattern() -> re.Pattern[str]:
    return re.compile(f".[{_marks()}]*", re.DOTALL)


@functools.cache
def _long_runs_of_marks() -> re.Pattern[str]:
    return re.compile(f"[{_marks()}]{{{_LONGEST_RUN_OF_MARKS + 1},}}")
