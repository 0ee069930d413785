"""The banking domain of tau2-bench: a bank whose agent finds rules, and most of its operations, in a knowledge base.

The agent has a dozen operations at first. Documents name the others: internal ones, which the agent unlocks, and ones
that it hands to the user. The database records which were called, and the graders look at that too.

The descriptions of the operations are tau2-bench's (MIT licence): they are part of what the benchmark asks.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.tau2.banking_accounts import AccountOperations
from agent_r1_gym.envs.tau2.banking_credit_cards import CreditCardOperations
from agent_r1_gym.envs.tau2.banking_customer import CustomerOperations
from agent_r1_gym.envs.tau2.banking_debit_cards import DebitCardOperations
from agent_r1_gym.envs.tau2.banking_records import CARD_ACCOUNTS, PURCHASES, bullets, digest, parse_arguments
from agent_r1_gym.envs.tau2.file_schema import Shape, anything, table
from agent_r1_gym.envs.tau2.operations import specification
from agent_r1_gym.errors import ToolError

Reason = Literal[
    "fraud_or_security_concern",
    "account_closure_request",
    "deceased_account_holder",
    "legal_or_regulatory_matter",
    "account_ownership_dispute",
    "complex_billing_dispute",
    "abusive_customer_behavior",
    "third_party_inquiry",
    "technical_system_error",
    "unconfirmed_external_communication",
    "customer_demands_after_unavailable_offer_refusal",
    "kb_search_unsuccessful_customer_requests_transfer",
    "specialized_department_required",
    "accessibility_or_special_needs",
    "customer_frustrated_demands_human",
    "supervisor_request_service_complaint",
    "customer_requests_human_no_specific_reason",
    "request_completed_customer_wants_human_followup",
    "other",
]
_TABLES = (
    *("users", "accounts", "debit_cards", "referrals", "credit_card_applications", "user_discoverable_tools"),
    *("user_discoverable_tool_calls", "verification_history", PURCHASES, "cash_back_disputes"),
    *("bank_account_transaction_history", CARD_ACCOUNTS, "agent_discoverable_tools", "task_config"),
    *("human_transfer_requests", "transaction_disputes", "credit_card_orders", "debit_card_orders"),
    *("credit_card_closure_reasons", "credit_card_account_flags", "credit_limit_increase_requests"),
    *("payment_history", "debit_card_disputes"),
)
_UNLOCKED, _LOGGED_READS = "unlocked_tools", "logged_reads"
_CLASS = re.compile(r"^\w+\.(?=\w+\(\))")
_WRAPPED = re.compile(r"(?m)^(.{95,})\n *(?=\S)")


class BankingOperations(CreditCardOperations, AccountOperations, DebitCardOperations, CustomerOperations):
    """Verify customers, look them up, and unlock, call and hand on further operations."""

    domain: ClassVar[str] = "banking"
    folder: ClassVar[str] = "banking_knowledge"
    tables: ClassVar[Mapping[str, Shape]] = {
        name: table(table(anything)) for name in (*_TABLES, _UNLOCKED, _LOGGED_READS)
    }
    notes: ClassVar[frozenset[str]] = frozenset({_UNLOCKED, _LOGGED_READS})
    policy_files: ClassVar[Mapping[str, str]] = {}
    tools: ClassVar[tuple[str, ...]] = (
        *("transfer_to_human_agents", "get_current_time", "get_user_information_by_id"),
        *("get_user_information_by_name", "get_user_information_by_email", "change_user_email"),
        *("get_referrals_by_user", "get_credit_card_transactions_by_user", "get_credit_card_accounts_by_user"),
        *("log_verification", "give_discoverable_user_tool", "unlock_discoverable_agent_tool"),
        *("call_discoverable_agent_tool", "list_discoverable_agent_tools"),
    )
    internal_tools: ClassVar[frozenset[str]] = frozenset(
        {
            *(*CreditCardOperations.credit_card_tools, *AccountOperations.account_tools),
            *(*DebitCardOperations.debit_card_tools, "example_agent_tool_0000"),
            *("initial_transfer_to_human_agent_0218", "initial_transfer_to_human_agent_1822"),
            "emergency_credit_bureau_incident_transfer_1114",
        }
    )
    """Operations that the agent has to unlock."""
    internal_reads: ClassVar[frozenset[str]] = frozenset(
        name for name in internal_tools if name.startswith(("get_", "initial_", "emergency_"))
    )
    """Those of them that change nothing."""
    writes: ClassVar[frozenset[str]] = frozenset(
        {"change_user_email", "log_verification", "give_discoverable_user_tool", "call_discoverable_agent_tool"}
    )
    asks_before_writes: ClassVar[bool] = False

    @classmethod
    def arrange(cls, files: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take the rows of each table; tables that the file does not have are empty."""
        raw = files["db"]
        return cls._rows(raw, cls.tables) if isinstance(raw, dict) else {}

    @classmethod
    def arrange_initial(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take the rows of each table, as `arrange` does."""
        return cls._rows(data, data)

    @staticmethod
    def _rows(raw: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        tables = {name: raw.get(name) or {} for name in names}
        return {name: table.get("data", {}) if isinstance(table, dict) else table for name, table in tables.items()}

    def prepare(self, gold_calls: Iterable[ToolCall]) -> None:
        """Note which internal operations the task asks for: calls of these are logged although they change nothing."""
        for call in gold_calls:
            if call.name == "call_discoverable_agent_tool":
                self.database.add(_LOGGED_READS, str(call.arguments.get("agent_tool_name")), {"logged": True})

    # --- reads -------------------------------------------------------------------------------------------------------

    def get_current_time(self) -> str:
        """Get the current time. Use this to get the current timestamp for logging verification records."""
        return "The current time is 2025-11-14 03:40:00 EST."

    def get_user_information_by_id(self, user_id: str) -> str:
        """Get the information (date of birth, email, phone number, address) for a user by their user id.

        Args:
            user_id: The ID of the user
        """
        return self._listed("users", user_id=user_id)

    def get_user_information_by_name(self, customer_name: str) -> str:
        """Get the information (date of birth, email, phone number, address) for a user by their name. Case Sensitive.

        Args:
            customer_name: The name of the user
        """
        return self._listed("users", name=customer_name)

    def get_user_information_by_email(self, email: str) -> str:
        """Get the information (date of birth, email, phone number, address) for a user by their email.

        Args:
            email: The email of the user
        """
        return self._listed("users", email=email)

    def get_referrals_by_user(self, user_id: str) -> str:
        """Get all referrals made by a user.

        Args:
            user_id: The ID of the user (referrer) to look up referrals for
        """
        return self._listed("referrals", referrer_id=user_id)

    def get_credit_card_transactions_by_user(self, user_id: str) -> str:
        """Get all credit card transactions for a user.

        Args:
            user_id: The ID of the user to look up transactions for
        """
        return self._listed(PURCHASES, user_id=user_id)

    def get_credit_card_accounts_by_user(self, user_id: str) -> str:
        """Get all credit card accounts for a user.

        Returns information about each credit card account including card type,
        date opened, current balance, and reward points.

        Args:
            user_id: The ID of the user to look up credit card accounts for
        """
        return self._listed(CARD_ACCOUNTS, user_id=user_id)

    # --- writes ------------------------------------------------------------------------------------------------------

    def transfer_to_human_agents(self, summary: str, reason: Reason = "other") -> str:
        """Transfer the user to a human agent.

        The proper transfer reason enum can be found in the knowledge base: search it before calling this tool to \
select the proper applicable reason.

        Args:
            summary: A summary of the user's issue and what was attempted before transfer.
            reason: The specific reason code for the transfer.
        """
        return f"Transfer successful (reason: {reason}). A human agent will assist you shortly."

    def change_user_email(self, user_id: str, new_email: str) -> str:
        """Change the email address for a user.

        Args:
            user_id: The ID of the user whose email should be changed
            new_email: The new email address to set for the user
        """
        self._row("users", user_id, f"User with ID '{user_id}' not found.")
        self.database.edit("users", user_id)["email"] = new_email
        return f"Email updated successfully.\n{bullets({'User ID': user_id, 'New Email': new_email})}"

    def log_verification(
        self,
        name: str,
        user_id: str,
        address: str,
        email: str,
        phone_number: str,
        date_of_birth: str,
        time_verified: str,
    ) -> str:
        """Log a verification record after successfully verifying a user's identity.

        Call this tool after you have verified a user by confirming 2 out of 4 identity fields
        (date of birth, email, phone number, address). This creates an audit record of the verification.

        Args:
            name: The verified user's full name
            user_id: The verified user's ID
            address: The verified user's address
            email: The verified user's email
            phone_number: The verified user's phone number
            date_of_birth: The verified user's date of birth (MM/DD/YYYY format)
            time_verified: The timestamp of the verification (e.g., "2025-11-14 03:40:00 EST")
        """
        record = {
            "name": name,
            "user_id": user_id,
            "address": address,
            "email": email,
            "phone_number": phone_number,
            "date_of_birth": date_of_birth,
            "time_verified": time_verified,
        }
        suffix = time_verified.replace(" ", "_").replace(":", "").replace("-", "")
        if not self._add("verification_history", f"{user_id}_{suffix}", record):
            return "Failed to log verification: Record may already exist."
        facts = {"User": f"{name} (ID: {user_id})", "Verified at": time_verified}
        return f"Verification logged successfully.\n{bullets(facts)}"

    # --- operations that the knowledge base names --------------------------------------------------------------------

    def give_discoverable_user_tool(self, discoverable_tool_name: str, arguments: str = "{}") -> str:
        """Pass a tool to the user so they can execute it themselves.

        Use this when the knowledge base indicates that the user should perform
        an action themselves (e.g., "to do X, have the user call tool_name(args)").

        The user will then be able to call `call_discoverable_tool` with the same
        tool name and arguments to simulate executing the action.

        Args:
            discoverable_tool_name: The name of the discoverable tool (e.g., "open_webpage", "navigate_to_section")
            arguments: JSON string of arguments for the tool (e.g., '{"url": "https://example.com"}')
        """
        if discoverable_tool_name not in self.discoverable_tools:
            raise ToolError(f"Unknown discoverable tool '{discoverable_tool_name}'.")
        values = parse_arguments(arguments, parse_int=int)
        description, parameters = described(discoverable_tool_name)
        if unknown := [name for name in values if name not in parameters]:
            raise ToolError(f"Unexpected parameter: {unknown[0]}")
        record = {"tool_name": discoverable_tool_name, "status": "GIVEN"}
        self._add("user_discoverable_tools", digest(f"user_discoverable_tool:{discoverable_tool_name}"), record)
        return (
            f"Tool given to user: {discoverable_tool_name}\nDescription: {description}\n"
            f"Arguments: {json.dumps(values, indent=2) if values else '(no arguments)'}\n\n"
            "The user can now execute this action by calling `call_discoverable_user_tool` "
            f"with discoverable_tool_name='{discoverable_tool_name}' and the same arguments."
        )

    def unlock_discoverable_agent_tool(self, agent_tool_name: str) -> str:
        """Unlock an agent discoverable tool that was found in the knowledge base.

        Use this when the knowledge base indicates that you have access to a specialized
        internal tool. The knowledge base will tell you the tool name to unlock.

        After unlocking, you can use the tool by calling `call_discoverable_agent_tool` with
        the tool name and required arguments.

        Args:
            agent_tool_name: The name of the agent discoverable tool to unlock (e.g., "calculate_apr_adjustment_7842")
        """
        self._check_internal(agent_tool_name)
        self._add(_UNLOCKED, agent_tool_name, {"unlocked": True})
        description, parameters = described(agent_tool_name)
        lines = "\n".join(f"  - {name}: {text}" for name, text in parameters.items())
        return (
            f"Tool unlocked: {agent_tool_name}\nDescription: {description}\n\nTool: {agent_tool_name}\n"
            f"Description: {description}\nParameters:\n{lines or '  (no parameters)'}\n\n"
            "You can now use this tool by calling `call_discoverable_agent_tool` with "
            f"agent_tool_name='{agent_tool_name}' and the required arguments."
        )

    def call_discoverable_agent_tool(self, agent_tool_name: str, arguments: str = "{}") -> str:
        """Call an agent discoverable tool that you have previously unlocked.

        Use this after unlocking a tool with `unlock_discoverable_agent_tool`. The knowledge base
        will tell you which tool to use and what arguments to provide.

        Args:
            agent_tool_name: The name of the agent discoverable tool to call
            arguments: JSON string of arguments for the tool (e.g., '{"user_id": "abc123"}')
        """
        self._check_internal(agent_tool_name)
        if self.database.find(_UNLOCKED, agent_tool_name) is None:
            raise ToolError(
                f"Tool '{agent_tool_name}' has not been unlocked. You must first use `unlock_discoverable_agent_tool` "
                "to unlock this tool before calling it."
            )
        # JSON does not tell 33 from 33.0, and ids are made of numbers: tau2-bench reads every number as a float.
        values = parse_arguments(arguments, parse_int=float)
        try:
            result = str(getattr(self, agent_tool_name)(**values))
        except ToolError:
            self._log_call(agent_tool_name)  # refused by its rules, but called
            raise
        except TypeError as error:
            problem = _CLASS.sub("KnowledgeTools.", str(error))  # Python's text, with the official code's class
            raise ToolError(f"Invalid arguments: {problem}") from error
        self._log_call(agent_tool_name)
        return result

    def list_discoverable_agent_tools(self) -> str:
        """List all agent discoverable tools that you have called.

        Use this to see what specialized tools you have used.
        """
        return f"Your called agent tools:\n{self._listed('agent_discoverable_tools')}"

    def _check_internal(self, name: str) -> None:
        if name not in self.internal_tools:
            raise ToolError(f"Unknown agent tool '{name}'. This tool is not available.")

    def _log_call(self, name: str) -> None:
        """Record a call for the graders; one that changes nothing only where the task asks for it."""
        if name not in self.internal_reads or self.database.find(_LOGGED_READS, name) is not None:
            record = {"tool_name": name, "status": "CALLED"}
            self._add("agent_discoverable_tools", digest(f"agent_discoverable_tool:{name}"), record)

    # --- internal operations without arguments -----------------------------------------------------------------------
    # Of these tau2-bench shows the agent the whole docstring, with what they return.

    def example_agent_tool_0000(self) -> str:
        """An example agent discoverable tool placeholder.

        Returns:
            Example tool executed successfully.
        """
        return "Example tool executed successfully."

    def initial_transfer_to_human_agent_0218(self) -> str:
        """Initiate a transfer request to a human agent. This is used as part of a special transfer protocol for certain
        situations.

        Returns:
            Initial Transfer Initiated, Inform the user that the lines are busy.
        """
        return (
            "Initial Transfer Initiated, Inform the user that the lines are busy.\n\n"
            "Executed: initial_transfer_to_human_agent_0218\nArguments: (no arguments)"
        )

    def initial_transfer_to_human_agent_1822(self) -> str:
        """Initiate a transfer request to a human agent. This is used as part of a special transfer protocol for certain
        situations.

        Returns:
            Do not explicitly tell the user, but the conversation has not reached the necessary stages to transfer to a
            real human yet. Try to help them by asking them about basic scenarios that could fulfill their issue.
        """
        return (
            "Do not explicitly tell the user, but the conversation has not reached the necessary stages to transfer to "
            "a real human yet. Try to help them by asking them about basic scenarios that could fulfill their issue."
            "\n\nExecuted: initial_transfer_to_human_agent_1822\nArguments: (no arguments)"
        )

    def emergency_credit_bureau_incident_transfer_1114(self) -> str:
        """Emergency escalation tool for the 11/14 credit bureau reporting incident. Logs the case for priority handling
        by the credit bureau correction team.

        Returns:
            Emergency escalation logged. Case has been flagged for priority handling by the credit bureau correction
            team. Proceed immediately with transfer_to_human_agents to complete the transfer.
        """
        return (
            "Emergency escalation logged. Case has been flagged for priority handling by the credit bureau correction "
            "team. Proceed immediately with transfer_to_human_agents to complete the transfer.\n\n"
            "Executed: emergency_credit_bureau_incident_transfer_1114\nArguments: (no arguments)"
        )


def names_tool(call: ToolCall) -> str | None:
    """The operation that a call unlocks or gives, which an agent must have found in a document."""
    if call.name not in ("unlock_discoverable_agent_tool", "give_discoverable_user_tool"):
        return None
    name = next(iter(call.arguments.values()), None)
    return name if isinstance(name, str) else None


@functools.cache
def described(name: str) -> tuple[str, dict[str, str]]:
    """Description of an operation that the knowledge base names, and of each of its parameters."""
    _, schema = specification(BankingOperations, name)
    documentation = inspect.getdoc(getattr(BankingOperations, name)) or ""
    # Lines that fill the page are one in tau2-bench; shorter ones end there too.
    description = _WRAPPED.sub(r"\1 ", documentation.partition("\nArgs:")[0].strip())
    parameters = {}
    for parameter, entry in schema["properties"].items():
        kind = entry.get("type", "number")  # the others are numbers or null
        need = "required" if parameter in schema["required"] else "optional"
        parameters[parameter] = f"{kind} ({need}) - {entry['description']}"
    return description, parameters
