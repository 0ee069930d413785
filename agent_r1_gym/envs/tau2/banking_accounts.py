"""The bank's internal operations on checking and savings accounts: open, close, transfer, credit, look up.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

from agent_r1_gym.envs.tau2.banking_records import (
    CARD_ACCOUNTS,
    TODAY,
    TRANSACTIONS,
    BankRecords,
    balance_of,
    bullets,
    days_since,
    digest,
    listing,
    to_number,
)
from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.errors import ToolError

_PERSONAL_CHECKING = ("checking", "personal_checking")
_EARLY_CLOSURE = {
    "checking": {
        **dict.fromkeys(("Light Blue Account", "Light Green Account", "Green Fee-Free Account"), (15, 30)),
        **dict.fromkeys(("Blue Account", "Green Account"), (25, 60)),
        **{"Evergreen Account": (50, 90), "Bluest Account": (100, 180)},
    },
    "savings": {
        **{"Bronze Account": (20, 60)},
        **dict.fromkeys(("Silver Account", "Silver Plus Account"), (35, 90)),
        **dict.fromkeys(("Gold Account", "Gold Plus Account", "Gold Years Account"), (75, 180)),
        **dict.fromkeys(("Platinum Account", "Platinum Plus Account", "Diamond Elite Account"), (150, 270)),
    },
}
"""Fee in dollars, and number of days in which it is due, by class and level of an account."""
_SCANNED_DEPOSIT = "btxn_834027370c20"
"""The one deposit of the benchmark's tasks with an image; `_SCAN` is what it shows."""
_SCAN = """\
ATM Deposit Image Retrieval Results
=====================================
Transaction ID: btxn_834027370c20
ATM: ATM #3921
Deposit Date: {date}


=== ATM DEPOSIT ENVELOPE SCAN ===
Envelope ID: ENV-2025-3921-00923
Deposit Time: 3:47 PM CST
ATM Location: Rho-Bank ATM #3921, Cedar Lane Branch, Austin, TX

--- ENVELOPE CONTENTS ---
Item 1: Personal Check
  - Check Number: 7284
  - Drawn On: First Texas Bank
  - Payee: Derek Yamamoto
  - Amount: $875.00
  - Memo: "October rent refund"
  - Signature: Present and legible
  - Date on Check: 11/03/2025

Item 2: Cash
  - Denomination breakdown:
    * 2 x $100 bills = $200.00
    * 3 x $20 bills = $60.00
  - Total Cash: $260.00

--- DEPOSIT SUMMARY ---
Check Total: $875.00
Cash Total: $260.00
GRAND TOTAL: $1,135.00

--- MACHINE RECORD ---
Amount Recorded by ATM: $385.00
DISCREPANCY DETECTED: $750.00 difference

--- IMAGE QUALITY ---
Envelope scan: CLEAR
Check front: CLEAR
Check back (endorsement): CLEAR - endorsed "For Deposit Only - Derek Yamamoto"
Cash image: CLEAR - bills visible and countable


--- VERIFICATION NOTES ---
Images clearly show deposit contents totaling $1,135.00. ATM machine recorded only $385.00. \
Discrepancy of $750.00 confirmed via image review.
"""
_NO_SCAN = """\
ATM Deposit Image Retrieval Results
=====================================
Transaction ID: {transaction}
ATM: {atm}
Deposit Date: {date}
Amount Recorded: ${amount:.2f}

--- IMAGE STATUS ---
Status: IMAGES NOT AVAILABLE
Reason: Deposit images for this transaction have either expired (older than 90 days) or were not captured by the ATM \
system.

For deposits without available images, the dispute will proceed based on customer statement and ATM journal records \
only. Investigation timeline may be extended.
"""


class AccountOperations(BankRecords):
    """Operations on bank accounts that an agent finds in the knowledge base."""

    account_tools: ClassVar[tuple[str, ...]] = (
        "open_bank_account_4821",
        "close_bank_account_7392",
        "get_all_user_accounts_by_user_id_3847",
        "transfer_funds_between_bank_accounts_7291",
        "apply_checking_account_credit_5829",
        "apply_savings_account_credit_6831",
        "submit_interest_discrepancy_report_7294",
        "get_bank_account_transactions_9173",
        "get_atm_deposit_images_8473",
    )

    def open_bank_account_4821(self, user_id: str, account_type: str, account_class: str) -> str:
        """Open a new bank account for a customer.

        Args:
            user_id: The customer's unique identifier in the system
            account_type: Type of account to open. Must be one of: 'checking' (personal checking), 'savings' (personal
                savings), 'business_checking', 'business_savings'
            account_class: The full official account class name
        """
        self._require("Missing required parameters.", user_id, account_type, account_class)
        self._one_of("account_type", account_type, ["checking", "savings", "business_checking", "business_savings"])
        own = [account for _, account in self._records("accounts", user_id=user_id)]
        if account_type == "savings":
            is_eligible = _has_account(own, _PERSONAL_CHECKING, min_days=14)
        elif account_type == "business_checking":
            is_closed = any(account.get("status") == "CLOSED" for account in own)
            is_eligible = not is_closed and _has_account(own, _PERSONAL_CHECKING)
        elif account_type == "business_savings":
            is_overdrawn = any(balance_of(account) < 0 for account in own)
            is_eligible = not is_overdrawn and _has_account(own, ("business_checking",), min_days=30)
        else:
            is_eligible = True
        if not is_eligible:
            raise ToolError("Account eligibility requirements not met.")
        account_id = digest(f"account:{user_id}:{account_type}:{account_class}")
        account = {
            "account_id": account_id,
            "user_id": user_id,
            "account_type": account_type,
            "account_class": account_class,
            "current_holdings": "0.00",
            "status": "OPEN",
            "date_opened": TODAY,
        }
        if not self._add("accounts", account_id, account):
            return f"Failed to open account: Account ID '{account_id}' may already exist."
        facts = {
            "Account ID": account_id,
            "User ID": user_id,
            "Account Type": account_type,
            "Account Class": account_class,
            "Status": "OPEN",
            "Initial Balance": "$0.00",
            "Date Opened": TODAY,
        }
        return f"Bank account opened successfully!\n{bullets(facts)}"

    def close_bank_account_7392(
        self, account_id: str, reason: str = "Customer requested closure", waive_early_closure_fee: bool = False
    ) -> str:
        """Close a customer's bank account (checking or savings).

        Args:
            account_id: The ID of the bank account to close
            reason: The reason for closing the account
            waive_early_closure_fee: Whether to waive early closure fees
        """
        self._require("Missing required parameter (account_id).", account_id)
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        if account.get("status") == "CLOSED":
            raise ToolError(f"Account '{account_id}' is already closed.")
        balance = balance_of(account)
        fee = 0 if waive_early_closure_fee else _early_closure_fee(account)
        if fee and balance < fee:
            raise ToolError("Account unable to be closed.")
        if balance - fee != 0:
            raise ToolError(f"Account balance must be $0.00 before closing. Current balance: ${balance:.2f}")
        self.database.edit("accounts", account_id).update(
            status="CLOSED",
            date_closed=TODAY,
            closure_reason=reason,
            early_closure_fee_waived=waive_early_closure_fee,
        )
        facts = {
            "Account ID": account_id,
            "Account Type": account.get("account_type", "N/A"),
            "Account Class": account.get("account_class", "N/A"),
            "Status": "CLOSED",
            "Date Closed": TODAY,
            "Reason": reason,
            "Early Closure Fee Waived": "Yes" if waive_early_closure_fee else "No",
        }
        return f"Bank account closed successfully!\n{bullets(facts)}"

    def get_all_user_accounts_by_user_id_3847(self, user_id: str) -> str:
        """Retrieve all accounts (checking, savings, credit cards) for a customer.

        Args:
            user_id: The customer's unique identifier in the system
        """
        self._require("Missing required parameter: user_id", user_id)
        accounts, cards = self._records("accounts", user_id=user_id), self._records(CARD_ACCOUNTS, user_id=user_id)
        return "\n".join(
            [
                "User accounts retrieved successfully.",
                "",
                "Executed: get_all_user_accounts_by_user_id_3847",
                f"Accounts for user {user_id}:",
                "",
                "Bank Accounts:",
                listing("accounts", accounts) if accounts else "  No bank accounts found.",
                "\nCredit Card Accounts:",
                listing(CARD_ACCOUNTS, cards) if cards else "  No credit card accounts found.",
            ]
        )

    def transfer_funds_between_bank_accounts_7291(
        self, source_account_id: str, destination_account_id: str, amount: float
    ) -> str:
        """Transfer funds from one bank account to another.

        Args:
            source_account_id: The account ID to transfer funds from
            destination_account_id: The account ID to transfer funds to
            amount: The amount to transfer in USD
        """
        problem = "Missing required parameters (source_account_id, destination_account_id, amount)."
        self._require(problem, source_account_id, destination_account_id, amount is not None)
        amount = to_number(amount, f"Invalid amount '{amount}'. Must be a number.")
        if amount <= 0:
            raise ToolError("Transfer amount must be positive.")
        if source_account_id == destination_account_id:
            raise ToolError("Source and destination accounts cannot be the same.")
        source = self._row("accounts", source_account_id, f"Source account '{source_account_id}' not found.")
        problem = f"Destination account '{destination_account_id}' not found."
        destination = self._row("accounts", destination_account_id, problem)
        if source.get("status") not in ("ACTIVE", "OPEN"):
            raise ToolError(f"Source account '{source_account_id}' is not active.")
        if destination.get("status") not in ("ACTIVE", "OPEN"):
            raise ToolError(f"Destination account '{destination_account_id}' is not active.")
        funds = balance_of(source)
        if funds < amount:
            raise ToolError(
                f"Insufficient funds. Source account balance is ${funds:.2f}, but transfer amount is ${amount:.2f}."
            )
        left, new = f"${funds - amount:.2f}", f"${balance_of(destination) + amount:.2f}"
        self.database.edit("accounts", source_account_id)["current_holdings"] = left
        self.database.edit("accounts", destination_account_id)["current_holdings"] = new
        facts = {
            "Amount": f"${amount:.2f}",
            "From": f"{source_account_id} (new balance: {left})",
            "To": f"{destination_account_id} (new balance: {new})",
        }
        return f"Transfer completed successfully!\n{bullets(facts)}"

    def apply_checking_account_credit_5829(self, account_id: str, amount: float, credit_type: str) -> str:
        """Apply a credit to a customer's checking account.

        Args:
            account_id: The checking account ID to credit
            amount: The positive dollar amount to credit (must be greater than 0)
            credit_type: The type of credit: 'rebate_credit' for missing rebates, 'fee_refund' for incorrect fee charges
        """
        kinds = {"rebate_credit": "REBATE CREDIT", "fee_refund": "FEE REFUND"}
        amount = self._check_credit(account_id, amount, credit_type, list(kinds))
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        if account.get("class", "").lower() != "checking":
            raise ToolError(
                f"Account '{account_id}' is not a checking account. Credits can only be applied to checking accounts."
            )
        return self._credit(account, account_id, amount, credit_type, kinds, seed="checking_credit", sign="$")

    def apply_savings_account_credit_6831(self, account_id: str, amount: float, credit_type: str) -> str:
        """Apply a credit to a customer's savings account for interest corrections, fee refunds, or goodwill
        adjustments.

        Args:
            account_id: The savings account ID to credit
            amount: The positive dollar amount to credit (must be greater than 0)
            credit_type: The type of credit: 'interest_correction' for APY/interest calculation errors, 'fee_refund' for
                incorrect fee charges, 'goodwill_credit' for customer service gestures
        """
        kinds = {
            "interest_correction": "INTEREST CORRECTION",
            "fee_refund": "FEE REFUND",
            "goodwill_credit": "GOODWILL CREDIT",
        }
        amount = self._check_credit(account_id, amount, credit_type, list(kinds))
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        if account.get("class", "").lower() not in ("saving", "savings"):
            raise ToolError(
                f"Account '{account_id}' is not a savings account. This tool only applies to savings accounts."
            )
        return self._credit(account, account_id, amount, credit_type, kinds, seed="savings_credit", sign="")

    def submit_interest_discrepancy_report_7294(
        self, account_id: str, user_id: str, expected_apy: float, actual_apy: float, amount_difference: float
    ) -> str:
        """Submit a report for interest calculation discrepancies to the backend team for investigation. Use this when
        the interest credited to a customer's account does not match expected APY calculations.

        Args:
            account_id: The savings account ID with the discrepancy
            user_id: The customer's unique identifier
            expected_apy: The APY percentage the customer should have received (e.g., 2.775 for 2.775%)
            actual_apy: The APY percentage that was actually applied (e.g., 2.5 for 2.5%)
            amount_difference: The dollar amount difference between expected and actual interest credited
        """
        numbers = (expected_apy, actual_apy, amount_difference)
        self._require("Missing required parameters.", account_id, user_id, all(value is not None for value in numbers))
        problem = "expected_apy, actual_apy, and amount_difference must be numbers."
        expected_apy, actual_apy, amount_difference = (to_number(value, problem) for value in numbers)
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        user = self._row("users", user_id, f"User '{user_id}' not found.")
        # tau2-bench's database has no table of such reports: it knows that one was made, not which.
        seed = f"interest_report:{account_id}:{user_id}:{expected_apy}:{actual_apy}:{TODAY}"
        facts = {
            "Report ID": f"IDR_{digest(seed)}",
            "Account": f"{account_id} ({account.get('level', 'Unknown')})",
            "Customer": user.get("name", "Unknown"),
            "Expected APY": f"{expected_apy}%",
            "Actual APY": f"{actual_apy}%",
            "APY Difference": f"{round(expected_apy - actual_apy, 4)}%",
            "Amount Difference": f"${amount_difference:.2f}",
            "Status": "PENDING_REVIEW",
        }
        return (
            f"\nInterest Discrepancy Report Submitted Successfully!\n{bullets(facts)}\n\nThe backend team will "
            "investigate this discrepancy and ensure correct APY calculations are applied going forward."
        )

    def get_bank_account_transactions_9173(self, account_id: str) -> str:
        """Retrieve the transaction history for a bank account.

        Transactions are returned in reverse chronological order (most recent
        first).

        Args:
            account_id: The bank account ID to retrieve transactions for
        """
        self._require("Missing required parameter: account_id", account_id)
        self._row("accounts", account_id, f"Account '{account_id}' not found.")
        records = self._records(TRANSACTIONS, account_id=account_id)
        # Stable: of equal dates the later row is the earlier transaction.
        records.sort(key=lambda item: _moment(item[1].get("date", "")), reverse=True)
        return self._report(
            "Bank account transactions retrieved successfully.",
            "get_bank_account_transactions_9173",
            f"Transactions for account {account_id}:",
            "No transactions found for this account.",
            records,
            table=TRANSACTIONS,
        )

    def get_atm_deposit_images_8473(self, transaction_id: str) -> str:
        """Retrieve ATM deposit envelope/check images for a specific ATM deposit transaction.

        Args:
            transaction_id: The transaction ID of the ATM deposit to retrieve images for
        """
        self._require("Missing required parameter: transaction_id", transaction_id)
        deposit = self._row(TRANSACTIONS, transaction_id, f"Transaction '{transaction_id}' not found.")
        if deposit.get("type") != "atm_deposit":
            raise ToolError(
                f"Transaction '{transaction_id}' is not an ATM deposit. This tool only works for ATM "
                "deposit transactions."
            )
        description = deposit.get("description", "")
        if not re.search("RHO-?BANK", description.upper()):
            raise ToolError(
                f"Transaction '{transaction_id}' is from a third-party ATM. Deposit images are only available for "
                "Rho-Bank ATM deposits. For third-party ATM disputes, a chargeback request must be submitted to the "
                "ATM network."
            )
        date = deposit.get("date", "Unknown")
        if transaction_id == _SCANNED_DEPOSIT:
            return _SCAN.format(date=date)
        return _NO_SCAN.format(
            transaction=transaction_id, atm=description, date=date, amount=abs(deposit.get("amount", 0))
        )

    def _check_credit(self, account_id: str, amount: Any, credit_type: str, kinds: Sequence[str]) -> float:
        """Check the arguments of a credit, and return its amount."""
        self._require("Missing required parameters.", account_id, amount is not None, credit_type)
        value = to_number(amount, "Invalid credit amount. Must be a number.")
        if value <= 0:
            raise ToolError("Credit amount must be positive.")
        self._one_of("credit_type", credit_type, kinds)
        return value

    def _credit(
        self, account: Row, account_id: str, amount: float, kind: str, kinds: Mapping[str, str], *, seed: str, sign: str
    ) -> str:
        """Credit an amount to an account.

        Args:
            account: its row.
            account_id: its id.
            amount: dollars.
            kind: type of the credit.
            kinds: how a statement names each type.
            seed: start of the text that the id of the transaction is made of.
            sign: what precedes the stored balance.
        """
        if account.get("status") not in ("ACTIVE", "OPEN"):
            raise ToolError(f"Account '{account_id}' is not active.")
        before = balance_of(account)
        after = before + amount
        self.database.edit("accounts", account_id)["current_holdings"] = f"{sign}{after:.2f}"
        transaction_id = f"txn_{digest(f'{seed}:{account_id}:{kind}:{amount}:{TODAY}')}"
        transaction = {
            "transaction_id": transaction_id,
            "account_id": account_id,
            "date": TODAY,
            "description": f"{kinds[kind]} - CUSTOMER SERVICE",
            "amount": amount,
            "type": kind,
            "status": "posted",
        }
        self.database.add(TRANSACTIONS, transaction_id, transaction)
        facts = {
            "Transaction ID": transaction_id,
            "Account": account_id,
            "Credit Type": kind,
            "Amount": f"${amount:.2f}",
            "Previous Balance": f"${before:.2f}",
            "New Balance": f"${after:.2f}",
        }
        return f"\nCredit applied successfully!\n{bullets(facts)}"


def _has_account(accounts: Iterable[Row], kinds: Sequence[str], min_days: int | None = None) -> bool:
    """Whether one of some accounts is of a kind, open, and old enough."""
    return any(
        account.get("account_type", account.get("class", "")) in kinds
        and account.get("status", "") in ("OPEN", "ACTIVE")
        and (min_days is None or (days_since(account.get("date_opened", "")) or 0) >= min_days)
        for account in accounts
    )


def _early_closure_fee(account: Row) -> int:
    """What it costs to close an account as young as this one, in dollars."""
    fee, window = _EARLY_CLOSURE.get(account.get("class", ""), {}).get(account.get("level", ""), (0, 0))
    age = days_since(account.get("date_opened", ""))
    return fee if age is not None and age < window else 0


def _moment(date: Any) -> datetime:
    for form in ("%m/%d/%Y %H:%M:%S", "%m/%d/%Y"):
        try:
            return datetime.strptime(str(date), form)
        except ValueError:
            continue
    return datetime.min
