"""The bank's internal operations on debit cards: disputes, orders, activation, locks, PINs, limits.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from agent_r1_gym.envs.tau2.banking_records import (
    TODAY,
    TRANSACTIONS,
    BankRecords,
    days_since,
    digest,
    title,
    to_number,
)
from agent_r1_gym.envs.tau2.database import Row
from agent_r1_gym.errors import ToolError

DEBIT_CARDS = "debit_cards"
_DISPUTE_CATEGORIES = [
    *("unauthorized_transaction", "atm_cash_discrepancy", "atm_deposit_not_credited", "duplicate_charge"),
    *("incorrect_amount", "goods_services_not_received", "recurring_charge_after_cancellation", "card_present_fraud"),
    "card_not_present_fraud",
]
_TRANSACTION_TYPES = [
    *("pin_purchase", "signature_purchase", "online_purchase", "atm_withdrawal", "atm_deposit", "recurring_payment"),
    "person_to_person",
]
_DELIVERY_TIMES = {
    "STANDARD": "7-10 business days",
    "EXPEDITED": "3-5 business days",
    "RUSH": "1-2 business days",
}
_ACTIVATIONS = {
    "activate_debit_card_8291": ("new_account", "first_card"),
    "activate_debit_card_8292": ("lost", "stolen", "fraud"),
    "activate_debit_card_8293": ("expired", "damaged", "upgrade", "bank_reissue"),
}
"""Why a card was issued, by the operation that activates it."""
_LIMITS = {
    "atm": ("daily_atm_limit", "Daily ATM Withdrawal Limit"),
    "purchase": ("daily_purchase_limit", "Daily Purchase Limit"),
}
_ATM_LIMITS = {
    **{"blue account": 500, "green account": 600, "light blue account": 400, "green fee-free account": 500},
    **{"evergreen account": 750, "bluest account": 1500, "dark green account": 300, "gold years account": 600},
    "purple account": 1000,
}
_NEW_PIN = (
    "Customer can use the new PIN for ATM withdrawals and point-of-sale transactions.",
    "",
    "Security reminder: Never share your PIN with anyone.",
)


class DebitCardOperations(BankRecords):
    """Operations on debit cards that an agent finds in the knowledge base."""

    debit_card_tools: ClassVar[tuple[str, ...]] = (
        "file_debit_card_transaction_dispute_6281",
        "set_debit_card_recurring_block_7382",
        "get_debit_dispute_status_7483",
        "order_debit_card_5739",
        "activate_debit_card_8291",
        "activate_debit_card_8292",
        "activate_debit_card_8293",
        "close_debit_card_4721",
        "freeze_debit_card_3892",
        "unfreeze_debit_card_3893",
        "clear_debit_card_fraud_alert_4892",
        "reset_debit_card_pin_6284",
        "change_debit_card_pin_6285",
        "get_debit_cards_by_account_id_7823",
        "request_temporary_debit_card_limit_increase_8374",
    )

    def file_debit_card_transaction_dispute_6281(
        self,
        transaction_id: str,
        account_id: str,
        card_id: str,
        user_id: str,
        dispute_category: str,
        transaction_date: str,
        discovery_date: str,
        disputed_amount: float,
        transaction_type: str,
        card_in_possession: bool,
        pin_compromised: str,
        contacted_merchant: bool,
        police_report_filed: bool,
        written_statement_provided: bool,
        provisional_credit_eligible: bool,
        customer_max_liability_amount: float,
        card_action: str,
    ) -> str:
        """File a formal dispute for a debit card transaction under Regulation E. Debit card disputes affect actual bank
        funds and have different liability rules based on reporting timing.

        Args:
            transaction_id: The unique identifier for the transaction being disputed
            account_id: The checking account ID linked to the debit card
            card_id: The debit card ID
            user_id: The user's unique identifier in the system
            dispute_category: Category of the dispute. Must be one of: 'unauthorized_transaction',
                'atm_cash_discrepancy', 'atm_deposit_not_credited', 'duplicate_charge', 'incorrect_amount',
                'goods_services_not_received', 'recurring_charge_after_cancellation', 'card_present_fraud',
                'card_not_present_fraud'
            transaction_date: Date when the transaction occurred, format MM/DD/YYYY
            discovery_date: Date when the user first noticed the issue, format MM/DD/YYYY
            disputed_amount: The dollar amount being disputed
            transaction_type: Type of transaction. Must be one of: 'pin_purchase', 'signature_purchase',
                'online_purchase', 'atm_withdrawal', 'atm_deposit', 'recurring_payment', 'person_to_person'
            card_in_possession: Whether the customer still has their physical debit card in their possession
            pin_compromised: Whether the customer's PIN may have been compromised. Must be one of: 'yes_shared',
                'yes_observed', 'no', 'unknown'
            contacted_merchant: Whether the user attempted to resolve the issue with the merchant first
            police_report_filed: Whether a police report has been filed (recommended for fraud over $500)
            written_statement_provided: Whether the customer has provided a written statement describing what happened
                (required for Reg E provisional credit)
            provisional_credit_eligible: Whether the user is eligible for provisional credit based on Debit Card
                Provisional Credit Guidelines
            customer_max_liability_amount: The maximum dollar amount the customer could be liable for based on
                Regulation E reporting timing rules and the disputed amount. Use -1 for unlimited liability.
            card_action: Action to take on the card. Must be one of: 'keep_active', 'freeze_pending_investigation',
                'close_and_reissue'
        """
        self._require(
            "Missing required parameters.",
            *(transaction_id, account_id, card_id, user_id, dispute_category, transaction_date, discovery_date),
            *(disputed_amount, transaction_type, pin_compromised, card_action),
        )
        self._require("customer_max_liability_amount is required.", customer_max_liability_amount is not None)
        answers = (card_in_possession, contacted_merchant, police_report_filed, written_statement_provided)
        problem = (
            "card_in_possession, contacted_merchant, police_report_filed, and written_statement_provided are required "
            "boolean fields."
        )
        self._require(problem, all(answer is not None for answer in answers))
        self._one_of("dispute_category", dispute_category, _DISPUTE_CATEGORIES)
        self._one_of("transaction_type", transaction_type, _TRANSACTION_TYPES)
        self._one_of("pin_compromised", pin_compromised, ["yes_shared", "yes_observed", "no", "unknown"])
        actions = ["keep_active", "freeze_pending_investigation", "close_and_reissue"]
        self._one_of("card_action", card_action, actions)
        if disputed_amount <= 0:
            raise ToolError("disputed_amount must be a positive number.")
        dispute_id = f"dsp_{digest(f'dispute:{user_id}:{transaction_id}', 12)}"
        is_fraud = dispute_category in ("unauthorized_transaction", "card_present_fraud", "card_not_present_fraud")
        is_shared = pin_compromised == "yes_shared"
        dispute = {
            "dispute_id": dispute_id,
            "transaction_id": transaction_id,
            "account_id": account_id,
            "card_id": card_id,
            "user_id": user_id,
            "dispute_category": dispute_category,
            "transaction_date": transaction_date,
            "discovery_date": discovery_date,
            "disputed_amount": disputed_amount,
            "transaction_type": transaction_type,
            "card_in_possession": card_in_possession,
            "pin_compromised": pin_compromised,
            "contacted_merchant": contacted_merchant,
            "police_report_filed": police_report_filed,
            "written_statement_provided": written_statement_provided,
            "provisional_credit_eligible": provisional_credit_eligible,
            "provisional_credit_issued": provisional_credit_eligible,
            "provisional_credit_amount": disputed_amount if provisional_credit_eligible else None,
            "customer_max_liability_amount": customer_max_liability_amount,
            "card_action": card_action,
            "is_fraud_category": is_fraud,
            "pin_shared_voluntarily": is_shared,
            "submitted_at": TODAY,
            "status": "OPEN",
        }
        if not self._add("debit_card_disputes", dispute_id, dispute):
            raise ToolError("Dispute may have already been filed for this transaction.")
        lines = [
            f"Dispute ID: {dispute_id}",
            f"Transaction: {transaction_id}",
            f"Account: {account_id}",
            f"Category: {title(dispute_category)}",
            f"Disputed Amount: ${disputed_amount:.2f}",
            f"Card Action: {title(card_action)}",
            f"Provisional Credit: ISSUED - ${disputed_amount:.2f} credited within 10 business days per Regulation E."
            if provisional_credit_eligible
            else "Provisional Credit: Not eligible - see Debit Card Provisional Credit Guidelines for details.",
        ]
        if is_shared:
            lines.append(
                "WARNING: Customer indicated PIN was shared voluntarily. This may affect liability determination."
            )
        if is_fraud and not police_report_filed and disputed_amount > 500:
            lines.append("RECOMMENDATION: For fraud disputes over $500, filing a police report is recommended.")
        return "\n".join(lines)

    def set_debit_card_recurring_block_7382(self, card_id: str, block_recurring: bool) -> str:
        """Block or unblock all recurring payments on a debit card. When blocked, all recurring/subscription charges
        will be declined. One-time purchases are not affected.

        Args:
            card_id: The debit card ID to update
            block_recurring: True to block all recurring payments, False to unblock/allow recurring payments
        """
        self._require("Missing required parameter: card_id", card_id)
        status = self._card(card_id).get("status", "").upper()
        if status != "ACTIVE":
            raise ToolError(
                f"Cannot update recurring block settings for a card with status '{status}'. Card must be ACTIVE."
            )
        self.database.edit(DEBIT_CARDS, card_id)["recurring_blocked"] = block_recurring
        if block_recurring:
            return (
                f"Recurring payments BLOCKED for debit card {card_id}.\n"
                "All recurring/subscription charges will be declined.\nOne-time purchases are not affected.\n"
                "This change takes effect within 24 hours."
            )
        return (
            f"Recurring payments UNBLOCKED for debit card {card_id}.\n"
            "Recurring/subscription charges will now be allowed.\nThis change takes effect within 24 hours."
        )

    def get_debit_dispute_status_7483(self, user_id: str) -> str:
        """Retrieve a user's debit card dispute history from the debit_card_disputes table. Returns all debit card
        disputes filed by the user, including dispute IDs, categories, amounts, statuses, and provisional credit
        information.

        Args:
            user_id: The user's unique identifier in the system
        """
        self._require("Missing required parameter: user_id", user_id)
        return self._report(
            "Debit card dispute history retrieved successfully.",
            "get_debit_dispute_status_7483",
            f"Debit card dispute history for user {user_id}:",
            "No debit card disputes found for this user.",
            self._records("debit_card_disputes", user_id=user_id),
            table="debit_card_disputes",
        )

    def order_debit_card_5739(
        self,
        account_id: str,
        user_id: str,
        delivery_option: str,
        delivery_fee: float,
        card_design: str,
        design_fee: float,
        shipping_address: str,
        excess_replacement_fee: float | None = None,
    ) -> str:
        """Order a new debit card for a customer's checking account.

        Args:
            account_id: The checking account ID to link the debit card to
            user_id: The customer's unique identifier
            delivery_option: Shipping speed: STANDARD, EXPEDITED, or RUSH
            delivery_fee: Fee to charge for delivery in dollars
            card_design: Card design: CLASSIC, PREMIUM, or CUSTOM
            design_fee: Fee to charge for card design in dollars
            shipping_address: Full shipping address for card delivery
            excess_replacement_fee: Fee for exceeding replacement limit, if applicable
        """
        try:
            replacement_fee = float(excess_replacement_fee or 0)
        except (TypeError, ValueError):
            replacement_fee = 0
        fees = [_fee("delivery_fee", delivery_fee), _fee("design_fee", design_fee), replacement_fee]
        self._require(
            "Missing required parameters. Required: account_id, user_id, delivery_option, delivery_fee, card_design, "
            "design_fee, shipping_address.",
            *(account_id, user_id, delivery_option, card_design, shipping_address),
            all(fee is not None for fee in fees),
        )
        self._one_of("delivery_option", delivery_option.upper(), list(_DELIVERY_TIMES))
        self._one_of("card_design", card_design.upper(), ["CLASSIC", "PREMIUM", "CUSTOM"])
        delivery_option, card_design = delivery_option.upper(), card_design.upper()
        holdings = self._check_order(account_id, user_id)
        delivery_fee, design_fee, replacement_fee = charges = [fee or 0.0 for fee in fees]
        total_fee = sum(charges)
        if total_fee > 0 and holdings < total_fee:
            raise ToolError(
                f"Insufficient funds for fees. Total fees: ${total_fee:.2f}. Current balance: ${holdings:.2f}"
            )
        order_id = f"dcord_{digest(f'debit_card_order:{account_id}:{user_id}:{delivery_option}', 12)}"
        order = {
            "order_id": order_id,
            "account_id": account_id,
            "user_id": user_id,
            "delivery_option": delivery_option,
            "card_design": card_design,
            "shipping_address": shipping_address,
            "delivery_fee": delivery_fee,
            "design_fee": design_fee,
            "excess_replacement_fee": replacement_fee,
            "total_fee": total_fee,
            "order_date": TODAY,
            "expected_delivery": _DELIVERY_TIMES[delivery_option],
            "status": "PENDING",
        }
        if not self._add("debit_card_orders", order_id, order):
            raise ToolError("Failed to create debit card order. Order may already exist.")
        forms = (("Delivery", ""), ("Design", ""), ("Excess Replacement", ".0f"))
        named = [(name, format(fee, form)) for (name, form), fee in zip(forms, charges, strict=True) if fee > 0]
        if total_fee > 0:
            self.database.edit("accounts", account_id)["current_holdings"] = f"{holdings - total_fee:.2f}"
            fee_id = f"btxn_dcfee_{order_id[-8:]}"
            charge = {
                "transaction_id": fee_id,
                "account_id": account_id,
                "date": TODAY,
                "description": f"DEBIT CARD ORDER FEE - {', '.join(f'{name} ${fee}' for name, fee in named)}",
                "amount": -total_fee,
                "type": "debit_card_fee",
                "status": "posted",
            }
            self._add(TRANSACTIONS, fee_id, charge)
            charged = (
                f"Total Fees: ${total_fee:.2f} ({', '.join(f'{name}: ${fee}' for name, fee in named)}) - "
                "CHARGED to account "
                f"{account_id}\nNew Account Balance: ${holdings - total_fee:.2f}"
            )
        else:
            charged = "Total Fees: $0 (No additional charges)"
        card_id = f"dbc_{digest(f'debit_card:{account_id}:{user_id}:{TODAY}', 12)}"
        user = self.database.find("users", user_id) or {}
        card = {
            "card_id": card_id,
            "account_id": account_id,
            "user_id": user_id,
            "cardholder_name": user.get("name", "CARDHOLDER").upper(),
            "last_4_digits": _digits(digest(f"card_details:{card_id}:last4", 8), 4),
            "cvv": _digits(digest(f"card_details:{card_id}:cvv", 6), 3),
            "status": "PENDING",
            "issue_date": TODAY,
            "expiration_date": "11/30/2029",
            "card_design": card_design,
            "issue_reason": self._issue_reason(account_id),
        }
        self._add(DEBIT_CARDS, card_id, card)
        return "\n".join(
            [
                "Debit Card Order Confirmed",
                f"Order ID: {order_id}",
                f"Card ID: {card_id}",
                f"Linked Account: {account_id}",
                f"Delivery Option: {delivery_option}",
                f"Card Design: {card_design}",
                f"Shipping Address: {shipping_address}",
                f"Expected Delivery: {_DELIVERY_TIMES[delivery_option]}",
                "",
                "Note: Card will arrive with status PENDING. Customer must call to activate after receiving the card.",
                charged,
            ]
        )

    def activate_debit_card_8291(
        self, card_id: str, last_4_digits: str, expiration_date: str, cvv: str, pin: str
    ) -> str:
        """Activate a NEW debit card for a customer. Use ONLY for first-time cards on a checking account (issue_reason =
        'new_account' or 'first_card'). For replacement or reissued cards, use the appropriate variant.

        Args:
            card_id: The debit card ID to activate
            last_4_digits: Last 4 digits of the card number (for verification)
            expiration_date: Card expiration date in MM/YY format
            cvv: 3-digit CVV from the back of the card
            pin: 4-digit PIN chosen by the customer
        """
        account_id, _ = self._activate("activate_debit_card_8291", card_id, last_4_digits, expiration_date, cvv, pin)
        others = self._retire_other_cards(account_id, card_id, "DEACTIVATED", "deactivated_date", "New card activated")
        note = [f"\nNote: Previous card(s) have been deactivated: {', '.join(others)}"] if others else []
        return "\n".join(
            [
                "New Debit Card Activation Successful",
                f"Card ID: {card_id}",
                "Status: ACTIVE",
                f"Activation Date: {TODAY}",
                "",
                "Your card is now ready to use at any ATM or point of sale terminal.",
                "For security, please sign the back of your card.",
                *note,
            ]
        )

    def activate_debit_card_8292(
        self, card_id: str, last_4_digits: str, expiration_date: str, cvv: str, pin: str
    ) -> str:
        """Activate a REPLACEMENT debit card. Use ONLY for cards replacing lost, stolen, or fraud-suspected cards
        (issue_reason = 'lost', 'stolen', or 'fraud'). For new or reissued cards, use the appropriate variant.

        Args:
            card_id: The debit card ID to activate
            last_4_digits: Last 4 digits of the card number (for verification)
            expiration_date: Card expiration date in MM/YY format
            cvv: 3-digit CVV from the back of the card
            pin: 4-digit PIN chosen by the customer
        """
        account_id, why = self._activate("activate_debit_card_8292", card_id, last_4_digits, expiration_date, cvv, pin)
        reason = f"Replacement card activated ({why})"
        others = self._retire_other_cards(account_id, card_id, "DEACTIVATED", "deactivated_date", reason)
        lines = [
            "Replacement Debit Card Activation Successful",
            f"Card ID: {card_id}",
            f"Replacement Reason: {title(why)}",
            "Status: ACTIVE",
            f"Activation Date: {TODAY}",
            "",
            "Your replacement card is now ready to use.",
            "",
            "IMPORTANT SECURITY REMINDERS:",
            "- Please review your recent transactions for any unauthorized charges",
            "- Report any suspicious activity immediately",
        ]
        if why == "fraud":
            lines.append("- Since fraud was suspected, we recommend changing your online banking password")
        if others:
            lines.append(f"\nPrevious card(s) have been deactivated for security: {', '.join(others)}")
        return "\n".join(lines)

    def activate_debit_card_8293(
        self, card_id: str, last_4_digits: str, expiration_date: str, cvv: str, pin: str
    ) -> str:
        """Activate a REISSUED debit card. Use ONLY for cards reissued due to expiration, damage, design upgrade, or
        bank-initiated replacement (issue_reason = 'expired', 'damaged', 'upgrade', or 'bank_reissue'). For new or
        replacement cards, use the appropriate variant.

        Args:
            card_id: The debit card ID to activate
            last_4_digits: Last 4 digits of the card number (for verification)
            expiration_date: Card expiration date in MM/YY format
            cvv: 3-digit CVV from the back of the card
            pin: 4-digit PIN chosen by the customer
        """
        account_id, why = self._activate("activate_debit_card_8293", card_id, last_4_digits, expiration_date, cvv, pin)
        reason = f"Reissued card activated ({why})"
        others = self._retire_other_cards(account_id, card_id, "GRACE_PERIOD", "grace_period_ends", reason)
        lines = [
            "Reissued Debit Card Activation Successful",
            f"Card ID: {card_id}",
            f"Reissue Reason: {title(why)}",
            "Status: ACTIVE",
            f"Activation Date: {TODAY}",
            "",
            "Your reissued card is now ready to use.",
        ]
        if others:
            lines += [
                f"\nNote: Your previous card(s) ({', '.join(others)}) will remain active for 24 hours as "
                "a grace period.",
                "After 24 hours, the old card(s) will be automatically deactivated.",
            ]
        if why in ("expired", "bank_reissue"):
            lines.append(
                "\nReminder: If your card number changed, please update any recurring payments with your "
                "new card details."
            )
        return "\n".join(lines)

    def close_debit_card_4721(self, card_id: str, reason: str) -> str:
        """Close or cancel a debit card permanently.

        Args:
            card_id: The debit card ID to close
            reason: Reason for closing: lost, stolen, fraud_suspected, damaged, no_longer_needed, or account_closing
        """
        self._require("Missing required parameters. Required: card_id, reason.", card_id, reason)
        reason = reason.lower()
        reasons = ["lost", "stolen", "fraud_suspected", "damaged", "no_longer_needed", "account_closing"]
        self._one_of("reason", reason, reasons)
        before = self._card(card_id).get("status")
        if before not in ("ACTIVE", "PENDING"):
            raise ToolError(
                f"Debit card '{card_id}' cannot be closed. Current status: {before}. Only ACTIVE or PENDING cards can "
                "be closed."
            )
        self.database.edit(DEBIT_CARDS, card_id).update(status="CLOSED", closed_date=TODAY, closure_reason=reason)
        lines = [
            "Debit Card Closed Successfully",
            f"Card ID: {card_id}",
            f"Previous Status: {before}",
            "New Status: CLOSED",
            f"Closure Reason: {title(reason)}",
            f"Closure Date: {TODAY}",
            "",
        ]
        if reason in ("lost", "stolen", "fraud_suspected"):
            lines += [
                "IMPORTANT: This card has been immediately deactivated for security.",
                "Any pending transactions may still be processed.",
            ]
        if reason == "fraud_suspected":
            lines += [
                "Please advise the customer to review recent transactions and file disputes for any "
                "unauthorized charges.",
                "Also recommend changing their online banking password.",
            ]
        lines += [
            "",
            "Note: This card cannot be reactivated. If the customer needs a new card, they can order one through the "
            "standard ordering process.",
            "Any recurring payments linked to this card will need to be updated with new payment information.",
        ]
        return "\n".join(lines)

    def freeze_debit_card_3892(self, card_id: str) -> str:
        """Temporarily freeze a debit card. The card can be unfrozen later.

        Args:
            card_id: The debit card ID to freeze
        """
        self._require("Missing required parameter: card_id.", card_id)
        status = self._card(card_id).get("status")
        if status == "FROZEN":
            raise ToolError(f"Debit card '{card_id}' is already frozen.")
        if status != "ACTIVE":
            raise ToolError(
                f"Debit card '{card_id}' cannot be frozen. Current status: {status}. Only ACTIVE cards can be frozen."
            )
        self.database.edit(DEBIT_CARDS, card_id).update(status="FROZEN", frozen_date=TODAY)
        return "\n".join(
            [
                "Debit Card Frozen Successfully",
                f"Card ID: {card_id}",
                "Status: FROZEN",
                f"Frozen Date: {TODAY}",
                "",
                "While frozen:",
                "- All new purchase transactions will be declined",
                "- Recurring payments and subscriptions will be declined",
                "- Pending transactions already authorized may still process",
                "",
                "To unfreeze, the customer can call customer service or use the mobile app.",
                "If the card is confirmed lost or stolen, recommend closing the card permanently instead.",
            ]
        )

    def unfreeze_debit_card_3893(self, card_id: str) -> str:
        """Unfreeze a previously frozen debit card.

        Args:
            card_id: The debit card ID to unfreeze
        """
        self._require("Missing required parameter: card_id.", card_id)
        card = self._card(card_id)
        status = card.get("status")
        if status == "ACTIVE":
            raise ToolError(f"Debit card '{card_id}' is already active.")
        if status != "FROZEN":
            raise ToolError(
                f"Debit card '{card_id}' cannot be unfrozen. Current status: {status}. Only FROZEN cards "
                "can be unfrozen."
            )
        self._check_linked_account(card, "unfrozen")
        self.database.edit(DEBIT_CARDS, card_id).update(status="ACTIVE", unfrozen_date=TODAY)
        return "\n".join(
            [
                "Debit Card Unfrozen Successfully",
                f"Card ID: {card_id}",
                "Status: ACTIVE",
                f"Unfrozen Date: {TODAY}",
                "",
                "The card is now active and ready to use immediately.",
                "All transactions will process normally.",
            ]
        )

    def clear_debit_card_fraud_alert_4892(self, card_id: str, reason: str) -> str:
        """Clear a fraud alert or velocity block on a debit card.

        Args:
            card_id: The debit card ID to clear the alert/block for
            reason: Reason for clearing: 'customer_verified' (for fraud alerts after customer verification) or
                'velocity_clear' (for velocity blocks after identity verification)
        """
        self._require("Missing required parameter: card_id.", card_id)
        self._require("Missing required parameter: reason.", reason)
        if reason not in ("customer_verified", "velocity_clear"):
            raise ToolError(f"Invalid reason '{reason}'. Must be one of: customer_verified, velocity_clear")
        card = self._card(card_id)
        if reason == "velocity_clear":
            if not card.get("velocity_blocked", False):
                raise ToolError(f"Debit card '{card_id}' does not have an active velocity block.")
            self.database.edit(DEBIT_CARDS, card_id).update(velocity_blocked=False, velocity_cleared_date=TODAY)
            return "\n".join(
                [
                    "Velocity Block Cleared Successfully",
                    f"Card ID: {card_id}",
                    f"Cleared Date: {TODAY}",
                    "",
                    "The card is now unblocked and ready for normal use.",
                    "The velocity monitoring will continue - if the same unusual patterns recur,",
                    "the card may be blocked again automatically.",
                ]
            )
        if not card.get("fraud_alert_active", False):
            raise ToolError(f"Debit card '{card_id}' does not have an active fraud alert.")
        if card.get("alert_source") == "bank_initiated":
            raise ToolError(
                "BANK_INITIATED_ALERT - This fraud alert was initiated by the bank's fraud detection system and cannot "
                "be cleared by customer service agents. Please transfer the customer to the security team using "
                "transfer_to_human_agents."
            )
        changed = {"fraud_alert_active": False, "alert_source": None, "fraud_alert_cleared_date": TODAY}
        self.database.edit(DEBIT_CARDS, card_id).update(changed)
        return "\n".join(
            [
                "Fraud Alert Cleared Successfully",
                f"Card ID: {card_id}",
                f"Cleared Date: {TODAY}",
                "",
                "The fraud alert has been removed from the card.",
                "All transactions will process normally.",
                "",
                "Remind the customer to review recent transactions and report any unauthorized charges.",
            ]
        )

    def reset_debit_card_pin_6284(self, card_id: str, last_4_digits: str, new_pin: str) -> str:
        """Reset a debit card PIN when the customer has forgotten it.

        Args:
            card_id: The debit card ID to reset PIN for
            last_4_digits: Last 4 digits of the card number (for verification)
            new_pin: The new 4-digit PIN chosen by the customer
        """
        problem = "Missing required parameters. Required: card_id, last_4_digits, new_pin."
        self._require(problem, card_id, last_4_digits, new_pin)
        if not last_4_digits.isdigit() or len(last_4_digits) != 4:
            raise ToolError("Last 4 digits must be exactly 4 digits.")
        _check_pin(new_pin)
        card = self._card(card_id)
        if card.get("last_4_digits") != last_4_digits:
            raise ToolError("Card verification failed. The last 4 digits do not match our records.")
        if card.get("status") != "ACTIVE":
            raise ToolError(
                f"Cannot reset PIN. Card status is {card.get('status')}. Only ACTIVE cards can have their PIN reset."
            )
        changed = {"pin_last_changed": TODAY, "pin_locked": False, "pin_attempts_remaining": 3}
        self.database.edit(DEBIT_CARDS, card_id).update(changed)
        return "\n".join(
            [
                "Debit Card PIN Reset Successfully",
                f"Card ID: {card_id}",
                f"PIN Changed: {TODAY}",
                "",
                "The new PIN is effective immediately.",
                "Your card has been unlocked and is ready to use.",
                *_NEW_PIN,
            ]
        )

    def change_debit_card_pin_6285(self, card_id: str, current_pin: str, new_pin: str) -> str:
        """Change a debit card PIN when the customer knows their current PIN.

        Args:
            card_id: The debit card ID to change PIN for
            current_pin: The customer's current 4-digit PIN
            new_pin: The new 4-digit PIN chosen by the customer
        """
        problem = "Missing required parameters. Required: card_id, current_pin, new_pin."
        self._require(problem, card_id, current_pin, new_pin)
        if not current_pin.isdigit() or len(current_pin) != 4:
            raise ToolError("Current PIN must be exactly 4 digits.")
        _check_pin(new_pin)
        if current_pin == new_pin:
            raise ToolError("New PIN must be different from current PIN.")
        status = self._card(card_id).get("status")
        if status != "ACTIVE":
            raise ToolError(
                f"Cannot change PIN. Card status is {status}. Only ACTIVE cards can have their PIN changed."
            )
        self.database.edit(DEBIT_CARDS, card_id)["pin_last_changed"] = TODAY
        return "\n".join(
            [
                "Debit Card PIN Changed Successfully",
                f"Card ID: {card_id}",
                f"PIN Changed: {TODAY}",
                "",
                "The new PIN is effective immediately.",
                *_NEW_PIN,
            ]
        )

    def get_debit_cards_by_account_id_7823(self, account_id: str) -> str:
        """Retrieve all debit cards associated with a checking account. Returns card details including status, issue
        reason, and expiration date.

        Args:
            account_id: The checking account ID to retrieve debit cards for
        """
        self._require("Missing required parameter 'account_id'.", account_id)
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        if account.get("class", "").lower() not in ("checking", "business_checking"):
            raise ToolError(
                f"Account '{account_id}' is not a checking account. Debit cards are only available for "
                "checking accounts."
            )
        cards = [
            _card_for_display(card_id, card) for card_id, card in self._records(DEBIT_CARDS, account_id=account_id)
        ]
        if not cards:
            return f"No debit cards found for account '{account_id}'."
        cards.sort(key=lambda card: card.get("date_issued") or "", reverse=True)
        return json.dumps(cards, indent=2)

    def request_temporary_debit_card_limit_increase_8374(self, card_id: str, limit_type: str, new_limit: int) -> str:
        """Request a temporary 24-hour increase to a debit card's daily ATM or purchase limit.

        Args:
            card_id: The debit card ID to increase limits for
            limit_type: Type of limit to increase: 'atm' for daily ATM withdrawal limit, 'purchase' for daily purchase
                limit
            new_limit: The requested new temporary limit amount in dollars
        """
        self._require("Missing required parameter: card_id.", card_id)
        self._require("Missing required parameter: limit_type.", limit_type)
        if limit_type not in ("atm", "purchase"):
            raise ToolError(f"Invalid limit_type '{limit_type}'. Must be 'atm' or 'purchase'.")
        self._require("Missing required parameter: new_limit.", new_limit is not None)
        wanted = to_number(new_limit, f"new_limit must be an integer, got '{new_limit}'.")
        if not wanted.is_integer():
            raise ToolError(f"new_limit must be an integer, got '{wanted}'.")
        limit = int(wanted)
        if limit <= 0:
            raise ToolError("new_limit must be a positive amount.")
        card = self._card(card_id)
        if card.get("status") != "ACTIVE":
            raise ToolError(
                f"Debit card '{card_id}' is not active. Current status: {card.get('status')}. Only ACTIVE cards can "
                "have limit increases."
            )
        account_id = card.get("account_id")
        problem = f"Could not find linked account for debit card '{card_id}'."
        account = self._row("accounts", account_id or "", problem)
        _check_age(account)
        field, name = _LIMITS[limit_type]
        current = card.get(field)
        if current is None and limit_type == "atm":
            current = _default_atm_limit(account)
        if current is None:
            raise ToolError(
                f"The card does not have a {name.lower()} configured. This may be a restricted account type where "
                "limits are set by account policy and cannot be modified."
            )
        allowed = int(current * 1.5)
        if limit > allowed:
            raise ToolError(
                f"Requested limit ${limit} exceeds the maximum allowed temporary increase. Maximum temporary limit is "
                f"${allowed} (150% of current ${current} limit)."
            )
        if limit <= current:
            raise ToolError(f"Requested limit ${limit} is not higher than the current limit of ${current}.")
        changed = {
            field: limit,
            f"temporary_{limit_type}_limit_increase": True,
            f"original_{limit_type}_limit": current,
            f"temporary_{limit_type}_limit_expires": TODAY,
        }
        self.database.edit(DEBIT_CARDS, card_id).update(changed)
        return "\n".join(
            [
                f"Temporary {name} Increase Granted Successfully",
                f"Card ID: {card_id}",
                f"Previous Limit: ${current}",
                f"New Temporary Limit: ${limit}",
                f"Increase Amount: ${limit - current}",
                "",
                "Important Information:",
                "- This temporary increase expires in 24 hours",
                f"- After expiration, the limit will revert to ${current}",
                "- Only one temporary increase is allowed per 24-hour period",
                "",
                "Note: If the customer is at a third-party (non-Rho-Bank) ATM, that ATM may have its own",
                "per-transaction or daily limits that Rho-Bank cannot override. The customer may need to",
                "use a Rho-Bank ATM or make multiple smaller withdrawals at third-party ATMs.",
            ]
        )

    def _card(self, card_id: str) -> Row:
        return self._row(DEBIT_CARDS, card_id, f"Debit card '{card_id}' not found.")

    def _check_linked_account(self, card: Row, what: str) -> None:
        account_id = card.get("account_id")
        account = self.database.find("accounts", account_id) if account_id else None
        if account is not None and account.get("status") != "OPEN":
            raise ToolError(f"The linked checking account '{account_id}' is no longer open. Card cannot be {what}.")

    def _check_order(self, account_id: str, user_id: str) -> float:
        """Check whether a card may be ordered for an account, and return what the account holds."""
        account = self._row("accounts", account_id, f"Account '{account_id}' not found.")
        if account.get("class") != "checking":
            raise ToolError(
                f"Debit cards can only be ordered for checking accounts. Account '{account_id}' is a "
                f"{account.get('class')} account."
            )
        if account.get("status") != "OPEN":
            raise ToolError(f"Account must be OPEN. Account '{account_id}' has status: {account.get('status')}")
        if account.get("user_id") != user_id:
            raise ToolError(f"Account '{account_id}' does not belong to user '{user_id}'.")
        try:
            holdings = float(str(account.get("current_holdings", "0")).replace(",", ""))
        except ValueError:
            holdings = 0.0
        if holdings < 25.0:
            raise ToolError(f"Account must have a minimum balance of $25. Current balance: ${holdings:.2f}")
        orders = self._records("debit_card_orders", account_id=account_id)
        if any(order.get("status") == "PENDING" for _, order in orders):
            raise ToolError(f"There is already a pending debit card order for account '{account_id}'.")
        cards = self._records(DEBIT_CARDS, account_id=account_id)
        if any(card.get("status") == "ACTIVE" for _, card in cards):
            raise ToolError(
                f"Account '{account_id}' already has an active debit card. Maximum 1 active card per checking account."
            )
        return holdings

    def _issue_reason(self, account_id: str) -> str:
        """Why a further card of an account is issued."""
        cards = [card for _, card in self._records(DEBIT_CARDS, account_id=account_id)]
        closed = next((card for card in cards if card.get("status") == "CLOSED"), None)
        if closed is None:
            return "first_card" if cards else "new_account"
        reason = str(closed.get("closure_reason", "first_card"))
        return {"lost": "lost", "stolen": "stolen", "fraud": "fraud", "fraud_suspected": "fraud"}.get(
            reason, "first_card"
        )

    def _activate(
        self, tool: str, card_id: str, last_4_digits: str, expiration_date: str, cvv: str, pin: str
    ) -> tuple[str, str]:
        """Activate a card that an operation is meant for; return its account, and why it was issued."""
        self._require(
            "Missing required parameters. Required: card_id, last_4_digits, expiration_date, cvv, pin.",
            *(card_id, last_4_digits, expiration_date, cvv, pin),
        )
        _check_pin(pin)
        if not cvv.isdigit() or len(cvv) != 3:
            raise ToolError("CVV must be exactly 3 digits.")
        if not last_4_digits.isdigit() or len(last_4_digits) != 4:
            raise ToolError("Last 4 digits must be exactly 4 digits.")
        card = self._card(card_id)
        reason = card.get("issue_reason", "new_account")
        if reason not in _ACTIVATIONS[tool]:
            right = next((name for name, reasons in _ACTIVATIONS.items() if reason in reasons), "unknown")
            raise ToolError(
                f"Wrong activation tool. This card has issue_reason='{reason}'. Please use {right} instead of {tool}."
            )
        status = card.get("status")
        if status == "ACTIVE":
            raise ToolError(f"Debit card '{card_id}' is already active.")
        if status != "PENDING":
            raise ToolError(
                f"Debit card '{card_id}' cannot be activated. Current status: {status}. Only PENDING cards can be "
                "activated."
            )
        if card.get("last_4_digits") != last_4_digits:
            raise ToolError("Card verification failed. The last 4 digits do not match our records.")
        self._check_linked_account(card, "activated")
        self.database.edit(DEBIT_CARDS, card_id).update(status="ACTIVE", activated_date=TODAY)
        return card.get("account_id", ""), reason

    def _retire_other_cards(self, account_id: str, card_id: str, status: str, stamp: str, reason: str) -> list[str]:
        """Take the other active cards of an account out of use, and return their ids."""
        others = [
            other
            for other, card in self._records(DEBIT_CARDS, account_id=account_id)
            if other != card_id and card.get("status") == "ACTIVE"
        ]
        for other in others:
            self.database.edit(DEBIT_CARDS, other).update(
                {"status": status, stamp: TODAY, "deactivation_reason": reason}
            )
        return others


def _check_pin(pin: str) -> None:
    if not pin or not pin.isdigit() or len(pin) != 4:
        raise ToolError("PIN must be exactly 4 digits.")
    if pin in "0123456789" or pin in "9876543210":
        raise ToolError("PIN cannot be sequential (e.g., 1234). Please choose a more secure PIN.")
    if len(set(pin)) == 1:
        raise ToolError("PIN cannot be all the same digit (e.g., 1111). Please choose a more secure PIN.")


def _fee(name: str, value: Any) -> float | None:
    return None if value is None else to_number(value, f"{name} must be a number.")


def _digits(text: str, number: int) -> str:
    """The first digits of a text, filled up with zeros."""
    return "".join(character for character in text if character.isdigit())[:number].zfill(number)


def _card_for_display(card_id: str, card: Row) -> Row:
    """A card as it is display, under the names that the newest cards have."""
    display = {"card_id": card_id, **card}
    for old, new in (
        ("last_4_digits", "card_number_last_4"),
        ("issue_date", "date_issued"),
        ("created_date", "date_issued"),
    ):
        if old in display and new not in display:
            display[new] = display.pop(old)
    return display


def _check_age(account: Row) -> None:
    age = days_since(account.get("date_opened") or "")
    if age is not None and age < 60:
        raise ToolError(
            f"Account must be at least 60 days old for a temporary limit increase. Account age: {age} days."
        )


def _default_atm_limit(account: Row) -> int:
    level = account.get("level", "").lower()
    if "light green" in level:
        raise ToolError(
            "Light Green Account (teen checking) cards have policy-based limits that cannot be modified. The daily ATM "
            "withdrawal limit of $150 is fixed by account policy for safety reasons. The customer may request the "
            "parent/guardian to withdraw cash from their own account if needed."
        )
    if level not in _ATM_LIMITS:
        raise ToolError(
            f"Could not determine the default ATM limit for account type '{account.get('level')}'. Please verify the "
            "account type."
        )
    return _ATM_LIMITS[level]
