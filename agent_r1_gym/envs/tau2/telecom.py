"""The telecom domain of tau2-bench: customers, lines and bills of an operator; the user's telephone is in `phone.py`.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.envs.tau2.file_schema import (
    Record,
    Shape,
    choice,
    defaulting,
    flag,
    items,
    maybe,
    moment,
    number,
    table,
    text,
)
from agent_r1_gym.envs.tau2.phone import PhoneOperations
from agent_r1_gym.errors import ToolError

_TODAY = datetime.date(2025, 2, 25)
_KEYS = {"plans": "plan_id", "customers": "customer_id", "lines": "line_id", "bills": "bill_id", "devices": "device_id"}
_TABLE_OF = {"L": "lines", "D": "devices", "B": "bills", "C": "customers", "P": "plans"}
_TITLES = {"lines": "Line", "devices": "Device", "bills": "Bill", "customers": "Customer", "plans": "Plan"}
_LINE_STATUSES = ("Active", "Suspended", "Pending Activation", "Closed")
_BILL_STATUSES = ("Draft", "Issued", "Awaiting Payment", "Paid", "Overdue", "Disputed")
_ITEM = Record({"description": text, "amount": number, "date": moment, "item_type": text})
_PAYMENT_METHOD = Record(
    {
        "method_type": choice("Credit Card", "Debit Card", "PayPal"),
        "account_number_last_4": text,
        "expiration_date": text,
    }
)
_DATE = defaulting(maybe(moment), None)


class TelecomOperations(PhoneOperations):
    """Look up customers, lines and bills, suspend and resume lines, refuel data, and ask for payments."""

    domain: ClassVar[str] = "telecom"
    policy_files: ClassVar[Mapping[str, str]] = {
        "main_policy": "main_policy",
        "tech_support_manual": "tech_support_policy",
    }
    tables: ClassVar[Mapping[str, Shape]] = {
        "plans": table(
            Record(
                {
                    "plan_id": text,
                    "name": text,
                    "data_limit_gb": number,
                    "price_per_month": number,
                    "data_refueling_price_per_gb": number,
                }
            )
        ),
        "customers": table(
            Record(
                {
                    "customer_id": text,
                    "full_name": text,
                    "date_of_birth": text,
                    "email": text,
                    "phone_number": text,
                    "address": Record({"street": text, "city": text, "state": text, "zip_code": text}),
                    "account_status": defaulting(
                        choice("Active", "Suspended", "Pending Verification", "Closed"), "Pending Verification"
                    ),
                    "payment_methods": defaulting(items(_PAYMENT_METHOD), []),
                    "line_ids": defaulting(items(text), []),
                    "bill_ids": defaulting(items(text), []),
                    "created_at": defaulting(moment, "2025-01-01"),
                    "last_extension_date": _DATE,
                    "goodwill_credit_used_this_year": defaulting(number, 0.0),
                }
            )
        ),
        "lines": table(
            Record(
                {
                    "line_id": text,
                    "phone_number": text,
                    "status": defaulting(choice(*_LINE_STATUSES), "Pending Activation"),
                    "plan_id": text,
                    "device_id": defaulting(maybe(text), None),
                    "data_used_gb": defaulting(number, 0.0),
                    "data_refueling_gb": defaulting(number, 0.0),
                    "roaming_enabled": defaulting(flag, False),
                    "contract_end_date": _DATE,
                    "last_plan_change_date": _DATE,
                    "last_sim_replacement_date": _DATE,
                    "suspension_start_date": _DATE,
                }
            )
        ),
        "bills": table(
            Record(
                {
                    "bill_id": text,
                    "customer_id": text,
                    "period_start": moment,
                    "period_end": moment,
                    "issue_date": moment,
                    "total_due": number,
                    "due_date": moment,
                    "line_items": defaulting(items(_ITEM), []),
                    "status": defaulting(choice(*_BILL_STATUSES), "Draft"),
                }
            )
        ),
        "devices": table(
            Record(
                {
                    "device_id": text,
                    "device_type": choice("phone", "router", "tablet", "watch", "other"),
                    "model": text,
                    "imei": defaulting(maybe(text), None),
                    "is_esim_capable": flag,
                    "activated": defaulting(flag, False),
                    "activation_date": _DATE,
                    "last_esim_transfer_date": _DATE,
                }
            )
        ),
    }
    tools: ClassVar[tuple[str, ...]] = (
        *("get_customer_by_phone", "get_customer_by_id", "get_customer_by_name", "get_details_by_id", "suspend_line"),
        *("resume_line", "get_bills_for_customer", "send_payment_request", "get_data_usage", "enable_roaming"),
        *("disable_roaming", "transfer_to_human_agents", "refuel_data"),
    )
    writes: ClassVar[frozenset[str]] = frozenset(
        {"suspend_line", "resume_line", "send_payment_request", "enable_roaming", "disable_roaming", "refuel_data"}
    )

    @classmethod
    def arrange(cls, files: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turn the lists of the file into tables by id, and add the user's tables."""
        raw = files["db"]
        tables = dict(cls.arrange_phone(files))
        for name, key in _KEYS.items():
            rows = raw.get(name) if isinstance(raw, dict) else None
            if isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get(key), str) for row in rows):
                tables[name] = {row[key]: row for row in rows}
        return tables

    def sync(self) -> None:
        """Let the phone feel what the operator did, and the operator what the user paid."""
        around = self.surroundings
        number = around["phone_number"]
        if number is None:
            return
        line = next((line for line in self.database.rows("lines") if line["phone_number"] == number), None)
        if line is None:
            raise ToolError(f"Line with phone number {number} not found")
        plan = self._get("plans", line["plan_id"])
        around["line_active"] = line["status"] == "Active"
        around["roaming_allowed"] = line["roaming_enabled"]
        limit = plan["data_limit_gb"] + line["data_refueling_gb"]
        around["mobile_data_usage_exceeded"] = line["data_used_gb"] >= limit
        request = around["payment_request"]
        if request is not None and request["paid"]:
            self.database.edit("bills", request["bill_id"])["status"] = "Paid"
            around["payment_request"] = None
        if around["payment_request"] is None:
            awaiting = self._bills(self.get_customer_by_phone(number), "Awaiting Payment")
            if awaiting:
                bill = awaiting[0]
                amount = {"bill_id": bill["bill_id"], "amount_due": bill["total_due"], "paid": False}
                around["payment_request"] = amount

    # --- reads -------------------------------------------------------------------------------------------------------

    def get_customer_by_phone(self, phone_number: str) -> Row:
        """Finds a customer by their primary contact or line phone number.

        Args:
            phone_number: The phone number to search for.
        """
        for customer in self.database.rows("customers"):
            numbers = (self._get("lines", line_id)["phone_number"] for line_id in customer["line_ids"])
            if customer["phone_number"] == phone_number or phone_number in numbers:
                return customer
        raise ToolError(f"Customer with phone number {phone_number} not found")

    def get_customer_by_id(self, customer_id: str) -> Row:
        """Retrieves a customer directly by their unique ID.

        Args:
            customer_id: The unique identifier of the customer.
        """
        return self._get("customers", customer_id)

    def get_customer_by_name(self, full_name: str, dob: str) -> list[Row]:
        """Searches for customers by name and DOB.

        May return multiple matches if names are similar, DOB helps disambiguate.

        Args:
            full_name: The full name of the customer.
            dob: Date of birth for verification, in the format YYYY-MM-DD.
        """
        return [
            customer
            for customer in self.database.rows("customers")
            if customer["full_name"].lower() == full_name.lower() and customer["date_of_birth"] == dob
        ]

    def get_details_by_id(self, id: str) -> Row:
        """Retrieves the details for a given ID.

        The ID must be a valid ID for a Customer, Line, Device, Bill, or Plan.

        Args:
            id: The ID of the object to retrieve.
        """
        name = _TABLE_OF.get(id[:1])
        if name is None:
            raise ToolError(f"Unknown ID format or type: {id}")
        return self._get(name, id)

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Row]:
        """Retrieves a list of the customer's bills, most recent first.

        Args:
            customer_id: ID of the customer.
            limit: Maximum number of bills to return.
        """
        bills = [self._get("bills", bill_id) for bill_id in self.get_customer_by_id(customer_id)["bill_ids"]]
        return sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit]

    def get_data_usage(self, customer_id: str, line_id: str) -> Row:
        """Retrieves current billing cycle data usage for a line.

        Includes data refueling amount, data limit, and cycle end date.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to check usage for.
        """
        line = self._line_of(customer_id, line_id)
        plan = self._get("plans", line["plan_id"])
        return {  # tau2-bench prints the numbers of such a result as text
            "line_id": line_id,
            "data_used_gb": str(line["data_used_gb"]),
            "data_limit_gb": str(plan["data_limit_gb"]),
            "data_refueling_gb": str(line["data_refueling_gb"]),
            "cycle_end_date": str(_first_of_next_month(_TODAY) - datetime.timedelta(days=1)),
        }

    # --- writes ------------------------------------------------------------------------------------------------------

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Row:
        """Suspends a specific line (max 6 months).

        Checks: Line status must be Active.
        Logic: Sets line status to Suspended, records suspension_start_date.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to suspend.
            reason: Reason for suspension.
        """
        if self._line_of(customer_id, line_id)["status"] != "Active":
            raise ToolError("Line must be active to suspend")
        line = self.database.edit("lines", line_id)
        line.update(status="Suspended", suspension_start_date=str(_TODAY))
        return {"message": "Line suspended successfully. $5/month holding fee will apply.", "line": line}

    def resume_line(self, customer_id: str, line_id: str) -> Row:
        """Resumes a suspended line.

        Checks: Line status must be Suspended or Pending Activation.
        Logic: Sets line status to Active, clears suspension_start_date.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to resume.
        """
        if self._line_of(customer_id, line_id)["status"] not in ("Suspended", "Pending Activation"):
            raise ToolError("Line must be suspended to resume")
        line = self.database.edit("lines", line_id)
        line.update(status="Active", suspension_start_date=None)
        return {"message": "Line resumed successfully", "line": line}

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Sends a payment request to the customer for a specific bill.

        Checks:
            - Customer exists
            - Bill exists and belongs to the customer
            - No other bills are already awaiting payment for this customer
        Logic: Sets bill status to AWAITING_PAYMENT and notifies customer.
        Warning: This method does not check if the bill is already PAID.
        Always check the bill status before calling this method.

        Args:
            customer_id: ID of the customer who owns the bill.
            bill_id: ID of the bill to send payment request for.
        """
        customer = self.get_customer_by_id(customer_id)
        if self._bills(customer, "Awaiting Payment"):
            raise ToolError("A bill is already awaiting payment for this customer")
        if bill_id not in customer["bill_ids"]:
            raise ToolError(f"Bill {bill_id} not found for customer {customer_id}")
        self._get("bills", bill_id)
        self.database.edit("bills", bill_id)["status"] = "Awaiting Payment"
        return f"Payment request sent to the customer for bill {bill_id}"

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Enables international roaming on a line.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to enable roaming for.
        """
        if self._line_of(customer_id, line_id)["roaming_enabled"]:
            return "Roaming was already enabled"
        self.database.edit("lines", line_id)["roaming_enabled"] = True
        return "Roaming enabled successfully"

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Disables international roaming on a line.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to disable roaming for.
        """
        if not self._line_of(customer_id, line_id)["roaming_enabled"]:
            return "Roaming was already disabled"
        self.database.edit("lines", line_id)["roaming_enabled"] = False
        return "Roaming disabled successfully"

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Row:
        """Refuels data for a specific line, adding to the customer's bill.

        Checks: Line status must be Active, Customer owns the line.
        Logic: Adds data to the line and charges customer based on the plan's refueling rate.

        Args:
            customer_id: ID of the customer who owns the line.
            line_id: ID of the line to refuel data for.
            gb_amount: Amount of data to add in gigabytes.
        """
        line = self._line_of(customer_id, line_id)
        if gb_amount <= 0:
            raise ToolError("Refuel amount must be positive")
        price = self._get("plans", line["plan_id"])["data_refueling_price_per_gb"]
        charge = gb_amount * price
        line = self.database.edit("lines", line_id)
        line["data_refueling_gb"] += gb_amount
        self._charge(customer_id, charge, f"Data refueling: {gb_amount} GB at ${price}/GB")
        return {
            "message": f"Successfully added {gb_amount} GB of data for line {line_id} for ${charge:.2f}",
            "new_data_refueling_gb": str(line["data_refueling_gb"]),
            "charge": str(charge),
        }

    # --- how tasks set up a line -------------------------------------------------------------------------------------

    def set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        """Say how much data a line has used."""
        self._line_of(customer_id, line_id)
        self.database.edit("lines", line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        """Suspend a line for an unpaid bill of last month."""
        line, customer = self._get("lines", line_id), self.get_customer_by_id(customer_id)
        if line["status"] != "Active":
            raise ToolError("Line must be active to suspend for unpaid bill")
        if self._bills(customer, "Overdue"):
            raise ToolError("Customer already has an overdue bill")
        last_day = _TODAY.replace(day=1) - datetime.timedelta(days=1)
        first_day = last_day.replace(day=1)
        amount = self._get("plans", line["plan_id"])["price_per_month"]
        bill = _bill(new_bill_id, customer_id, first_day, last_day, "Overdue")
        self.database.add("bills", new_bill_id, bill)
        _add_item(bill, f"Charge for line {line_id}", amount)
        self.database.edit("customers", customer_id)["bill_ids"].append(new_bill_id)
        line = self.database.edit("lines", line_id)
        line.update(status="Suspended", suspension_start_date=str(_TODAY))
        if contract_ended:
            line["contract_end_date"] = str(last_day)

    # --- assertions of tasks -----------------------------------------------------------------------------------------

    def assert_data_refueling_amount(self, customer_id: str, line_id: str, expected_amount: float) -> bool:
        """Whether that much data was refueled."""
        return bool(abs(self._line_of(customer_id, line_id)["data_refueling_gb"] - expected_amount) < 1e-6)

    def assert_line_status(self, customer_id: str, line_id: str, expected_status: str) -> bool:
        """Whether a line has that status."""
        return bool(self._line_of(customer_id, line_id)["status"] == expected_status)

    def assert_overdue_bill_exists(self, customer_id: str, overdue_bill_id: str) -> bool:
        """Whether a bill is overdue."""
        if overdue_bill_id not in self.get_customer_by_id(customer_id)["bill_ids"]:
            raise ToolError(f"Overdue bill {overdue_bill_id} not found")
        return bool(self._get("bills", overdue_bill_id)["status"] == "Overdue")

    def assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        """Whether a bill is paid, or does not exist."""
        bill = self.database.find("bills", overdue_bill_id)
        return bill is None or bill["status"] == "Paid"

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _get(self, name: str, key: str) -> Row:
        return self._row(name, key, f"{_TITLES[name]} with ID {key} not found")

    def _line_of(self, customer_id: str, line_id: str) -> Row:
        if line_id not in self.get_customer_by_id(customer_id)["line_ids"]:
            raise ToolError(f"Line {line_id} not found for customer {customer_id}")
        return self._get("lines", line_id)

    def _bills(self, customer: Row, status: str) -> list[Row]:
        bills = (self._get("bills", bill_id) for bill_id in customer["bill_ids"])
        return [bill for bill in bills if bill["status"] == status]

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Add a charge to the customer's next bill, which is made if there is none."""
        drafts = self._bills(self.get_customer_by_id(customer_id), "Draft")
        if drafts:
            bill = self.database.edit("bills", drafts[0]["bill_id"])
        else:
            start = _first_of_next_month(_TODAY)
            # tau2-bench takes a random id here, so that it never compares such databases.
            bill_id = f"B{self.database.size('bills') + 1:08d}"
            bill = _bill(bill_id, customer_id, start, _first_of_next_month(start) - datetime.timedelta(days=1), "Draft")
            self.database.add("bills", bill_id, bill)
            self.database.edit("customers", customer_id)["bill_ids"].append(bill_id)
        _add_item(bill, description, amount)


def _first_of_next_month(day: datetime.date) -> datetime.date:
    return (day.replace(day=1) + datetime.timedelta(days=32)).replace(day=1)


def _bill(bill_id: str, customer_id: str, start: datetime.date, end: datetime.date, status: str) -> Row:
    return {
        "bill_id": bill_id,
        "customer_id": customer_id,
        "period_start": str(start),
        "period_end": str(end),
        "issue_date": str(start),
        "total_due": 0.0,
        "due_date": str(start + datetime.timedelta(days=14)),
        "line_items": [],
        "status": status,
    }


def _add_item(bill: Row, description: str, amount: float) -> None:
    kind = "Credit" if amount < 0 else "Charge"
    bill["line_items"].append(
        {"description": description, "amount": float(amount), "date": str(_TODAY), "item_type": kind}
    )
    bill["total_due"] += amount
