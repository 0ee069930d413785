"""What the bank's operations share: the day, ids, look-ups, and checks of arguments.

tau2-bench makes ids from what a row is about, so that equal calls make equal rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.operations import Operations
from agent_r1_gym.errors import ToolError

TODAY = "11/14/2025"
_NOW = datetime(2025, 11, 14, 3, 40)
CARD_ACCOUNTS, PURCHASES = "credit_card_accounts", "credit_card_transaction_history"
TRANSACTIONS = "bank_account_transaction_history"
Records = list[tuple[str, Row]]
"""Ids and rows."""


class BankRecords(Operations):
    """Look-ups and checks for the operations of the bank; a refusal is a `ToolError`, as everywhere."""

    def _require(self, problem: str, *values: Any) -> None:
        """Refuse with `problem` if a value is missing, or empty."""
        if not all(values):
            raise ToolError(problem)

    def _one_of(self, name: str, value: Any, options: Sequence[str]) -> None:
        if value not in options:
            raise ToolError(f"Invalid {name}. Must be one of: {list(options)}")

    def _records(self, table: str, **fields: Any) -> Records:
        """The rows of a table with these values."""
        return [
            (key, row)
            for key, row in self.database.items(table)
            if all(row.get(name) == str(value) for name, value in fields.items())
        ]

    def _listed(self, table: str, **fields: Any) -> str:
        return listing(table, self._records(table, **fields))

    def _report(self, done: str, tool: str, heading: str, nothing: str, records: Records, *, table: str = "") -> str:
        """The result of an operation that lists rows, `nothing` where there are none."""
        return "\n".join(
            [done, "", f"Executed: {tool}", heading, listing(table, records) if records else f"\n{nothing}"]
        )

    def _add(self, table: str, key: str, row: Row) -> bool:
        """Add a row, unless its key exists; whether it was added."""
        if self.database.find(table, key) is not None:
            return False
        self.database.add(table, key, row)
        return True


def listing(table: str, rows: Records) -> str:
    """Rows as an agent reads them."""
    if not rows:
        return f"No records found in '{table}'."
    lines = [f"Found {len(rows)} record(s) in '{table}':\n"]
    for number, (key, row) in enumerate(rows, 1):
        lines += [f"{number}. Record ID: {key}", *(f"   {field}: {value}" for field, value in row.items()), ""]
    return "\n".join(lines)


def bullets(facts: Mapping[str, Any]) -> str:
    """Facts, one on a line."""
    return "\n".join(f"  - {name}: {value}" for name, value in facts.items())


def executed(tool: str, arguments: Mapping[str, Any]) -> str:
    """The protocol of a call."""
    return f"Executed: {tool}\nArguments: {json.dumps(arguments, indent=2)}"


def title(code: str) -> str:
    """A code such as "full_refund" for people: "Full Refund"."""
    return code.replace("_", " ").title()


def digest(seed: str, length: int = 16) -> str:
    """The start of the SHA-256 of a text: how tau2-bench makes ids."""
    return hashlib.sha256(seed.encode()).hexdigest()[:length]


def purchase_id(user_id: str, card: str, merchant: str, amount: float, category: str) -> str:
    """Id of a purchase with a credit card."""
    return f"txn_{digest(':'.join(('transaction', user_id, card, merchant, f'{amount:.2f}', category)), 12)}"


def to_number(value: Any, problem: str) -> float:
    """A number, also written as text.

    Raises:
        ToolError: it is none, with `problem` as the message.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ToolError(problem) from None


def balance_of(account: Row) -> float:
    """What an account holds, stored as a number, "2,850.00" or "$2,850.00"."""
    value = account.get("current_holdings", account.get("balance", 0))
    if isinstance(value, int | float):
        return float(value)
    return float(value.replace("$", "").replace(",", "")) if isinstance(value, str) else 0.0


def dollars_or_zero(text: Any) -> float:
    """Dollars such as "$1,200.00"; 0 for what is none."""
    try:
        return float(str(text).replace("$", "").replace(",", ""))
    except ValueError:
        return 0.0


def days_since(date: str) -> int | None:
    """Age in days of a date such as "11/14/2025", None for what is not a date."""
    try:
        return (_NOW - datetime.strptime(date, "%m/%d/%Y")).days
    except ValueError:
        return None


def parse_arguments(text: str, *, parse_int: type[int] | type[float]) -> dict[str, Any]:
    """The arguments of a call within a call, written as JSON.

    Raises:
        ToolError: they are not JSON, or no object.
    """
    try:
        arguments = json.loads(text, parse_int=parse_int)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"Invalid JSON in arguments: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"Invalid arguments: must be an object, not {type(arguments).__name__}")
    return arguments
