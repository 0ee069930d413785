"""Building blocks of the parsers: a raw row with checked fields, and a pool of passages."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import frozen

_SHORT_REPR = reprlib.Repr()
_SHORT_REPR.maxstring, _SHORT_REPR.maxlist, _SHORT_REPR.maxdict, _SHORT_REPR.maxlevel = 80, 3, 3, 3


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file or of the hub, with access to its fields that checks them.

    Attributes:
        data: the row in the official shape of its data set.
        where: file and line or row number, for error messages.
    """

    data: Mapping[str, Any]
    where: str

    def error(self, field: str, expected: str) -> DatasetError:
        """The error for a malformed field: where it is, what was expected, what it holds."""
        got = (
            _SHORT_REPR.repr(self.data[field])
            if field in self.data
            else f"no such field (fields: {', '.join(self.data)})"
        )
        return DatasetError(f"{self.where}, field {field!r}: expected {expected}; got {got}")

    def text(self, field: str) -> str:
        """Reads a field that must be a non-empty string."""
        value = self.data.get(field)
        if not isinstance(value, str) or not value:
            raise self.error(field, "a non-empty string")
        return value

    def optional_text(self, field: str) -> str:
        """Reads a field that may be absent, null or a string; "" if there is none."""
        value = self.data.get(field)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(field, "a string")
        return value

    def label(self, field: str) -> str:
        """Reads an optional text with few distinct values, interned: all rows share one copy."""
        return sys.intern(self.optional_text(field))

    def items(self, field: str, is_item: Callable[[Any], bool], expected: str) -> list[Any]:
        """Reads a field that may be absent, null or a list; [] if there is none.

        Args:
            field: name of the field.
            is_item: checks an item of the list.
            expected: description of a correct list, for the error message.
        """
        values = self.data.get(field)
        if values is None:
            return []
        if not isinstance(values, list) or not all(map(is_item, values)):
            raise self.error(field, expected)
        return values

    def objects(self, field: str) -> list[Mapping[str, Any]]:
        """Reads a field that may be absent, null or a list of objects."""
        return self.items(field, lambda value: isinstance(value, dict), "a list of objects")

    def answers(self, aliases: str = "answer_aliases") -> tuple[str, ...]:
        """Reads the gold answer and its aliases without duplicates; () if the answer is hidden, as in test splits."""
        answer = self.optional_text("answer")
        if not answer:
            return ()
        others = self.items(aliases, lambda value: isinstance(value, str), "a list of strings")
        return tuple(dict.fromkeys((answer, *filter(None, others))))

    def extra_fields(self, known: Iterable[str]) -> dict[str, Any]:
        """Fields other than `known`, for the metadata of a question; read-only, because environments share them."""
        others: dict[str, Any] = frozen({field: value for field, value in self.data.items() if field not in known})
        return others


class PassagePool:
    """Makes passages without duplicates: the questions of a data set share many paragraphs.

    The id is the title; later passages of the same title get "title#2", "title#3" ... in order of appearance.
    """

    def __init__(self) -> None:
        self._passages: dict[tuple[str, str], Passage] = {}
        self._copies: dict[str, int] = {}
        self._digest = blake2b(digest_size=8)

    def passage(self, title: str, sentences: Sequence[str], *, separator: str = "") -> Passage:
        """Makes the passage of some sentences, or returns the equal one made before.

        Args:
            title: heading.
            sentences: concatenated as they are, as in HotpotQA, where a sentence starts with its white space.
            separator: inserted between sentences where neither side has white space.
        """
        if separator:
            sentences = [
                separator + sentence
                if before and sentence and not before[-1].isspace() and not sentence[0].isspace()
                else sentence
                for before, sentence in pairwise(("", *sentences))
            ]
        text = "".join(sentences)
        ends = tuple(accumulate(map(len, sentences))) if len(sentences) > 1 else ()
        passage = self._passages.get((title, text))
        if passage is None:
            passage = self._add(title, text, ends)
        return passage if passage.sentence_ends == ends else replace(passage, sentence_ends=ends)

    def passages(self) -> tuple[Passage, ...]:
        """All distinct passages in order of appearance."""
        return tuple(self._passages.values())

    def fingerprint(self) -> str:
        """16 hexadecimal digits that depend only on titles, texts and their order."""
        return self._digest.hexdigest()

    def _add(self, title: str, text: str, ends: tuple[int, ...]) -> Passage:
        title = sys.intern(title)
        passage = Passage(self._new_id(title), title, text, ends)
        self._passages[title, text] = passage
        self._digest.update(f"{len(title)}:{title}{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        return passage

    def _new_id(self, title: str) -> str:
        number = self._copies[title] = self._copies.get(title, 0) + 1
        return title if number == 1 else self._new_id(f"{title}#{number}")


def official_tables(data: Mapping[str, Any], tables: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Converts a row of a hub copy to the official shape; an official row stays as it is.

    Hub copies name `_id` `id`, and store tables as an object of columns or as JSON text.

    Args:
        data: the row.
        tables: maps each field that is a table to its columns in the official order; its rows become lists.
    """
    row = dict(data)
    if "id" in row and "_id" not in row:
        row["_id"] = row.pop("id")
    for field, columns in tables.items():
        if field in row:
            row[field] = _as_list_of_rows(decode_json(row[field]), columns)
    return row


def decode_json(value: Any) -> Any:
    """Decodes JSON text of a list or an object; other values stay as they are."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _as_list_of_rows(table: Any, columns: tuple[str, ...]) -> Any:
    if not isinstance(table, dict) or not all(isinstance(table.get(column), list) for column in columns):
        return table
    values = [table[column] for column in columns]
    return [list(row) for row in zip(*values, strict=True)] if len(set(map(len, values))) == 1 else table
