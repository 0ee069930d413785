"""The bank: operations behind a knowledge base, ways to its documents, and customers that act."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.envs.tau2.banking import BankingOperations, described
from agent_r1_gym.envs.tau2.database import Database
from agent_r1_gym.envs.tau2.dialogue import Kind, read_script
from agent_r1_gym.envs.tau2.env import Tau2BankingEnv, Tau2Env, Tau2RetailEnv
from agent_r1_gym.envs.tau2.grading import grade
from agent_r1_gym.envs.tau2.knowledge import VARIANTS, GrepTool, SearchTool
from agent_r1_gym.envs.tau2.language import STOP, TRANSFER
from agent_r1_gym.envs.tau2.sample import sample_files
from agent_r1_gym.envs.tau2.tasks import Tau2Task, open_world
from agent_r1_gym.envs.tau2.users import scripted_user
from agent_r1_gym.errors import ConfigurationError, DatasetError, ToolError
from tests.kit.cpu_time import cpu_below
from tests.kit.environments import play_script

ADA, ACCOUNT, CARD = "u_7001", "chk_7001", "dbc_7001"
EMAIL, LOST_CARD, SAVINGS, GROCERIES, CHECK, STATEMENT = range(6)
RUMOUR = 11


@pytest.fixture
def bank() -> BankingOperations:
    world = open_world("banking", "sample")
    operations = world.operations(Database(world.tables))
    assert isinstance(operations, BankingOperations)
    return operations


def task(index: int) -> Tau2Task:
    return open_world("banking", "sample").part("base")[0][index]


def internal(bank: BankingOperations, name: str, **arguments: Any) -> str:
    """Unlocks and calls an internal operation."""
    bank.call("unlock_discoverable_agent_tool", {"agent_tool_name": name})
    call = {"agent_tool_name": name, "arguments": json.dumps(arguments)}
    return bank.call("call_discoverable_agent_tool", call)


def refusal(bank: BankingOperations, name: str, **arguments: Any) -> str:
    with pytest.raises(ToolError) as caught:
        bank.call(name, arguments)
    return str(caught.value)


class TestOperations:
    def test_rows_are_shown_as_text(self, bank: BankingOperations) -> None:
        assert bank.call("get_user_information_by_name", {"customer_name": "Ada Brandt"}) == (
            "Found 1 record(s) in 'users':\n\n1. Record ID: u_7001\n   user_id: u_7001\n   name: Ada Brandt\n"
            "   email: ada@example.com\n   phone_number: 555-010-2001\n   date_of_birth: 02/01/1980\n"
            "   address: 10 Harbour Lane\n"
        )
        assert bank.call("get_referrals_by_user", {"user_id": ADA}) == "No records found in 'referrals'."

    def test_an_internal_operation_is_unlocked_before_it_is_called(self, bank: BankingOperations) -> None:
        call = {"agent_tool_name": "freeze_debit_card_3892", "arguments": json.dumps({"card_id": CARD})}
        assert "has not been unlocked" in refusal(bank, "call_discoverable_agent_tool", **call)
        shown = bank.call("unlock_discoverable_agent_tool", {"agent_tool_name": "freeze_debit_card_3892"})
        assert shown == (
            "Tool unlocked: freeze_debit_card_3892\nDescription: Temporarily freeze a debit card. The card can be "
            "unfrozen later.\n\nTool: freeze_debit_card_3892\nDescription: Temporarily freeze a debit card. The card "
            "can be unfrozen later.\nParameters:\n  - card_id: string (required) - The debit card ID to freeze\n\nYou "
            "can now use this tool by calling `call_discoverable_agent_tool` with "
            "agent_tool_name='freeze_debit_card_3892' and the required arguments."
        )
        assert bank.call("call_discoverable_agent_tool", call).startswith("Debit Card Frozen Successfully")
        assert bank.database.find("debit_cards", CARD) == {
            **open_world("banking", "sample").tables["debit_cards"][CARD],
            **{"status": "FROZEN", "frozen_date": "11/14/2025"},
        }

    def test_what_does_not_exist_or_cannot_be_read_is_refused(self, bank: BankingOperations) -> None:
        for name in ("get_current_time", "calculate", "__init__", "x", ""):
            assert "Unknown agent tool" in refusal(bank, "unlock_discoverable_agent_tool", agent_tool_name=name)
            assert "Unknown discoverable" in refusal(bank, "give_discoverable_user_tool", discoverable_tool_name=name)
        bank.call("unlock_discoverable_agent_tool", {"agent_tool_name": "freeze_debit_card_3892"})
        for arguments, problem in (
            ("{", "Invalid JSON in arguments"),
            ("[" * 100_000, "Invalid JSON in arguments"),
            ("[]", "must be an object"),
            ("{}", "KnowledgeTools.freeze_debit_card_3892() missing 1 required positional argument: 'card_id'"),
            ('{"card_id": 1, "more": 2}', "unexpected keyword argument 'more'"),
            ('{"card_id": ["x"]}', "unhashable"),
        ):
            call = {"agent_tool_name": "freeze_debit_card_3892", "arguments": arguments}
            assert problem in refusal(bank, "call_discoverable_agent_tool", **call)
        assert not list(bank.database.rows("agent_discoverable_tools"))

    def test_numbers_are_floats_so_that_equal_calls_make_equal_rows(self, bank: BankingOperations) -> None:
        changes = []
        for amount in ("25", "25.0"):
            database = Database(open_world("banking", "sample").tables)
            operations = BankingOperations(database)
            name = {"agent_tool_name": "apply_checking_account_credit_5829"}
            operations.call("unlock_discoverable_agent_tool", name)
            arguments = f'{{"account_id": "{ACCOUNT}", "amount": {amount}, "credit_type": "fee_refund"}}'
            operations.call("call_discoverable_agent_tool", {**name, "arguments": arguments})
            changes.append(database.changes)
        assert changes[0] == changes[1]
        assert changes[0]["accounts"][ACCOUNT]["current_holdings"] == "$525.00"

    def test_calls_are_logged_also_if_refused_and_reads_only_where_the_task_asks_for_them(
        self, bank: BankingOperations
    ) -> None:
        with pytest.raises(ToolError, match="already active"):
            internal(bank, "unfreeze_debit_card_3893", card_id=CARD)
        internal(bank, "get_bank_account_transactions_9173", account_id=ACCOUNT)
        assert [row["tool_name"] for row in bank.database.rows("agent_discoverable_tools")] == [
            "unfreeze_debit_card_3893"
        ]
        bank.prepare([ToolCall("call_discoverable_agent_tool", {"agent_tool_name": "get_debit_dispute_status_7483"})])
        internal(bank, "get_debit_dispute_status_7483", user_id=ADA)
        assert len(list(bank.database.rows("agent_discoverable_tools"))) == 2

    def test_a_card_is_closed_ordered_and_activated(self, bank: BankingOperations) -> None:
        order = {"account_id": ACCOUNT, "user_id": ADA, "shipping_address": "10 Harbour Lane"}
        fees = {"delivery_option": "rush", "delivery_fee": 20, "card_design": "Custom", "design_fee": 10}
        with pytest.raises(ToolError, match="already has an active debit card"):
            internal(bank, "order_debit_card_5739", **order, **fees)
        internal(bank, "close_debit_card_4721", card_id=CARD, reason="stolen")
        text = internal(bank, "order_debit_card_5739", **order, **fees)
        assert "Total Fees: $30.00 (Delivery: $20.0, Design: $10.0) - CHARGED" in text
        new = next(card for card in bank.database.rows("debit_cards") if card["status"] == "PENDING")
        assert (new["issue_reason"], new["cardholder_name"]) == ("stolen", "ADA BRANDT")
        details = {"card_id": new["card_id"], "last_4_digits": new["last_4_digits"], "expiration_date": "11/29"}
        for pin, problem in (("1234", "sequential"), ("7777", "same digit"), ("12", "4 digits")):
            with pytest.raises(ToolError, match=problem):
                internal(bank, "activate_debit_card_8292", **details, cvv="123", pin=pin)
        with pytest.raises(ToolError, match="Please use activate_debit_card_8292 instead"):
            internal(bank, "activate_debit_card_8291", **details, cvv="123", pin="8302")
        assert "Replacement Reason: Stolen" in internal(
            bank, "activate_debit_card_8292", **details, cvv="123", pin="8302"
        )

    def test_a_user_has_only_the_operations_that_it_was_given(self, bank: BankingOperations) -> None:
        name = {"discoverable_tool_name": "deposit_check_3847"}
        call = {**name, "arguments": json.dumps({"account_id": ACCOUNT, "check_amount": 80})}
        assert "has not been given to you" in refusal(bank, "call_discoverable_user_tool", **call)
        assert refusal(bank, "give_discoverable_user_tool", **name, arguments='{"x": 1}') == "Unexpected parameter: x"
        assert "(no arguments)" in bank.call("give_discoverable_user_tool", name)
        assert "New Balance: $580.00" in bank.call("call_discoverable_user_tool", call)
        (logged,) = bank.database.rows("user_discoverable_tool_calls")
        assert logged["arguments"] == {"account_id": ACCOUNT, "check_amount": 80.0}

    def test_every_internal_operation_describes_its_parameters(self) -> None:
        for name in (*BankingOperations.internal_tools, *BankingOperations.discoverable_tools):
            description, parameters = described(name)
            assert description
            assert all(" - " in text for text in parameters.values()), name
        assert described("order_debit_card_5739")[1]["excess_replacement_fee"] == (
            "number (optional) - Fee for exceeding replacement limit, if applicable"
        )

    def test_unlocking_is_no_change_of_the_database(self) -> None:
        free = task(RUMOUR)
        database = free.open_database()
        unlock = {"agent_tool_name": "freeze_debit_card_3892"}
        free.world.operations(database).call("unlock_discoverable_agent_tool", unlock)
        assert grade(free, database.changes, (), []).checks["DB"]


class TestKnowledge:
    def test_each_variant_has_its_tools_and_names_them_in_the_policy(self) -> None:
        for name, variant in VARIANTS.items():
            env = Tau2BankingEnv(dataset="sample", retrieval=name)
            system = env.reset(options={"task_index": LOST_CARD})[1]["messages"][0].content
            assert [tool.name for tool in env.tools if tool.name in ("KB_search", "grep")] == list(variant.tools)
            assert "# Policy of the bank" in system
            assert "{{" not in system
            assert ("Freeze the card first" in system) == (name == "golden_retrieval")
            assert play_script(env, LOST_CARD)[0] == 1.0

    @pytest.mark.parametrize("name", ["alltools", "bm25_reranker", "terminal_use", "full_kb", "x", "", 5])
    def test_others_are_refused_by_name(self, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="retrieval must be one of"):
            Tau2BankingEnv(dataset="sample", retrieval=name)

    def test_domains_without_documents_have_no_retrieval(self) -> None:
        with pytest.raises(ConfigurationError):
            Tau2RetailEnv(dataset="sample", retrieval="bm25")
        with pytest.raises(ConfigurationError, match="retail has no documents"):
            Tau2Env(domain="retail", dataset="sample", retrieval="bm25")

    def test_a_search_shows_documents_as_tau2_bench_does(self) -> None:
        world = open_world("banking", "sample")
        found = SearchTool(world).execute({"query": "how do I deposit a check?"}).content
        assert found.startswith("1. Checks\n   ID: checks\n   Score: ")
        assert SearchTool(world).execute({"query": ""}).content == "No relevant documents found."
        found = GrepTool(world).execute({"pattern": "unlock.*ACCOUNT|statement"}).content
        assert found.startswith("1. Statements\n   ID: statements\n   Score: 2.0000\n   Content: Unlock `get_bank")
        assert GrepTool(world).execute({"pattern": "zebra"}).content == "No matches found for pattern: zebra"

    @pytest.mark.parametrize(
        "pattern", ["(a+)+$", "(x", "a{1,9}", "a+b+", "[z-a]", "\\", "x" * 201, "a?a?a?a?a?a", "\\1"]
    )
    def test_patterns_that_could_take_forever_are_refused(self, pattern: str) -> None:
        with cpu_below(5), pytest.raises(ToolError, match="pattern"):
            GrepTool(open_world("banking", "sample")).execute({"pattern": pattern})

    def test_the_tools_of_a_pickled_environment_search_the_same_world(self) -> None:
        env = Tau2BankingEnv(dataset="sample")
        assert len(pickle.dumps(env)) < 200_000
        twin = pickle.loads(pickle.dumps(env))
        search = next(tool for tool in twin.tools if tool.name == "KB_search")
        assert search.knowledge is env.tasks[0].world.knowledge  # type: ignore[attr-defined]

    def test_the_oracle_searches_before_it_unlocks(self) -> None:
        env = Tau2BankingEnv(dataset="sample", split="base")
        play_script(env, LOST_CARD)
        names = [call.name for step in env.transitions for call in step.parsed.calls]
        assert names.index("KB_search") == names.index("unlock_discoverable_agent_tool") - 1


class TestFiles:
    @staticmethod
    def write(folder: Path, prefix: str = "") -> Path:
        """Writes the sample as a checkout has it: a file a task and a document; with a prefix, one file for all."""
        files = sample_files("banking")
        folder.mkdir(parents=True)
        (folder / f"{prefix}db.json").write_text(json.dumps(files["db"]))
        for kind, key in (("tasks", "id"), ("documents", "id")):
            rows = files[kind]
            if prefix:
                lines = "\n".join(map(json.dumps, rows)) if kind == "documents" else json.dumps(rows)
                (folder / f"{prefix}{kind}{'.jsonl' if kind == 'documents' else '.json'}").write_text(lines)
                continue
            (folder / kind).mkdir()
            for row in rows:
                (folder / kind / f"{kind[:-1]}_{row[key]:0>3}.json").write_text(json.dumps(row))
        (folder / f"{prefix}prompts" / "components").mkdir(parents=True)
        for name, text in files["prompts"].items():
            place = "" if "{{" in text else "components"
            (folder / f"{prefix}prompts" / place / f"{name}.md").write_text(text)
        return folder

    def test_a_checkout_and_flat_names_give_the_same_world(self, tmp_path: Path) -> None:
        self.write(tmp_path / "checkout" / "data" / "tau2" / "domains" / "banking_knowledge")
        folders = [tmp_path / "checkout", self.write(tmp_path / "flat", "banking_")]
        worlds = [open_world("banking", folder) for folder in folders]
        sample = open_world("banking", "sample")
        for world in worlds:
            assert (list(world.tasks), world.tables) == (list(sample.tasks), sample.tables)
            assert world.knowledge is not None
            assert sample.knowledge is not None
            assert world.knowledge.documents == {
                key: sample.knowledge.documents[key] for key in world.knowledge.documents
            }
            assert len(world.knowledge.documents) == len(sample.knowledge.documents)
            assert world.knowledge.policy(VARIANTS["bm25"]) == sample.knowledge.policy(VARIANTS["bm25"])
        assert open_world("banking", folders[0]) is worlds[0]

    def test_a_document_that_changes_is_read_again_and_what_is_missing_is_named(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path / "banking_knowledge")
        before = open_world("banking", tmp_path)
        document = folder / "documents" / "document_hours.json"
        document.write_text(json.dumps({"id": "hours", "title": "Hours", "content": "Never open."}))
        os.utime(document, (1, 1))
        after = open_world("banking", tmp_path)
        assert after is not before
        assert after.knowledge is not None
        assert after.knowledge.documents["hours"].text == "Never open."
        document.write_text(json.dumps({"id": "hours", "content": "Never open."}))
        with pytest.raises(DatasetError, match="has no 'title'"):
            open_world("banking", tmp_path)
        shutil.rmtree(folder / "prompts")
        with pytest.raises(DatasetError, match="but not prompts"):
            open_world("banking", tmp_path)

    def test_a_missing_template_and_an_unknown_operation_are_refused(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path / "banking_knowledge")
        (folder / "prompts" / "grep_only.md").unlink()
        with pytest.raises(DatasetError, match="no prompt 'grep_only'"):
            Tau2BankingEnv(dataset=tmp_path, retrieval="grep_only")
        row = {**sample_files("banking")["tasks"][0], "user_tools": ["rob_the_bank"]}
        (folder / "tasks" / "task_000.json").write_text(json.dumps(row))
        with pytest.raises(DatasetError, match="rob_the_bank"):
            Tau2BankingEnv(dataset=tmp_path)


SCENARIO = """\
**Your character:** You are Ada Brandt, a 30-year-old baker from Larkhaven.

Your user ID is u_1 and your email is ada@x.org. Do NOT volunteer this. You run a bakery called "Ada's Rolls".

- Name: Ada Brandt | Phone: 555-1

## How to Behave

1. **Start naturally:** "Hi, can you help me with my fees?"

2. **If agent asks about your monthly withdrawals:** "About eight
   a month."
   - **If it suggests a branch:** "No, that is too far."

3. **If agent says "You have to wait."**, accept it: "Fine."
"""


class TestCustomers:
    def test_a_script_is_read_and_said_word_by_word(self) -> None:
        script = read_script(SCENARIO)
        assert script is not None
        assert script.opening == "Hi, can you help me with my fees?"
        assert script.known.split("\n") == [
            *("My name is Ada Brandt.", "My user ID is u_1.", "My email is ada@x.org.", "My phone number is 555-1.")
        ]
        assert [fact.kind for fact in script.facts if fact.is_reserved] == ["user ID", "email"]
        assert [line.text for line in script.replies] == ["About eight a month.", "No, that is too far.", "Fine."]
        assert {"withdr", "monthl"} <= (script.replies[0].trigger or set())
        assert [line.kind for line in script.replies] == [Kind.ASKED, Kind.REACTION, Kind.REACTION]
        assert read_script("You want to delete all your tasks.") is None

    def test_a_text_without_a_script_is_turned_into_the_first_person(self) -> None:
        script = read_script(
            "You are playing the role of a customer. Your character is a baker named Bo who earns $9,000 annually.\n\n"
            "You're looking for a credit card. You travel a lot. You have access to a tool.\n\nNever act as the agent."
        )
        assert script is not None
        assert (script.opening, script.known) == (
            "I'm looking for a credit card.",
            "My name is Bo.\nI earn $9,000 annually.",
        )
        assert [line.text for line in script.replies] == ["I travel a lot."]

    @staticmethod
    def converse(about: Tau2Task, *messages: str) -> tuple[list[str], list[tuple[str, Mapping[str, Any]]]]:
        """Says messages one after another; returns the replies, and what the customer did."""
        bank, made, turns = about.world.operations(about.open_database()), [], [Message("user", about.prompt)]
        bank.call("give_discoverable_user_tool", {"discoverable_tool_name": "deposit_check_3847"})

        def act(name: str, arguments: Mapping[str, Any]) -> str:
            made.append((name, arguments))
            return bank.call(name, arguments)

        for message in messages:
            turns.append(Message("assistant", message))
            turns.append(Message("user", scripted_user(about, turns, act)))
        return [turn.content for turn in turns[2::2]], made

    def test_they_say_who_they_are_and_answer_what_their_script_answers(self) -> None:
        replies, made = self.converse(
            task(EMAIL),
            "To verify you, could you please confirm your date of birth and phone number?",
            "Which branch do you use?",
            "I will change your e-mail address. Shall I go ahead?",
            "Everything is done. Is there anything else?",
            "You are welcome. Goodbye!",
        )
        assert replies[0] == "My phone number is 555-010-2001. My date of birth is 02/01/1980."
        assert replies[1:4] == ["The one at the harbour.", "Yes, please go ahead.", "Thank you, that was quick."]
        assert STOP in replies[4]
        assert not made

    def test_they_apply_for_the_one_card_that_they_want(self) -> None:
        replies, made = self.converse(
            task(GROCERIES),
            "There are the Bronze Rewards Card and the Gold Rewards Card.",
            "Take the Bronze Rewards Card.",
            "The Business Gold Rewards Card is good too.",
            "I recommend the Gold Rewards Card.",
            "So you have applied for the Gold Rewards Card.",
        )
        assert [name for name, _ in made] == ["apply_for_credit_card"]
        assert replies[3].startswith("I have applied for the Gold Rewards Card. Credit card application submitted")

    def test_they_use_once_what_they_were_given(self) -> None:
        call = 'call_discoverable_user_tool {"discoverable_tool_name": "deposit_check_3847", "arguments": "{}"}'
        replies, made = self.converse(
            task(CHECK),
            "You can deposit it in the app.",
            "Please use deposit_check_3847.",
            "Did deposit_check_3847 work?",
        )
        assert [name for name, _ in made] == ["call_discoverable_user_tool"]
        assert "New Balance: $580.00" in replies[1]
        with pytest.raises(ToolError, match="Missing required parameter"):
            self.converse(task(CHECK), f"Please do this: {call}")

    def test_a_transfer_ends_the_conversation(self) -> None:
        assert self.converse(task(RUMOUR), "I am transferring you to a human agent.")[0] == [TRANSFER]
