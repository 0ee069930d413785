"""ServiceDesk: a shop's service desk under a sampled policy, over a database that each episode clones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, Thought, ToolCall, Transition
from agent_r1_gym.envs.service_desk.customer import UserSimulator
from agent_r1_gym.envs.service_desk.grading import PRESETS, find_closing_call
from agent_r1_gym.envs.service_desk.operations import DeskFactory, Rephrase, desk_tools
from agent_r1_gym.envs.service_desk.scripts import SCRIPTS, next_call, reason_to_close
from agent_r1_gym.envs.service_desk.world import Ticket, TicketTasks
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_flag, check_text

_CUSTOMER_URL = "http://127.0.0.1:8000/v1"
_MAX_TURNS: Mapping[int, int] = {1: 16, 2: 24, 3: 32}


class ServiceDeskEnv(ToolEnv):
    """ServiceDesk: tickets of a shop's customers, handled under a policy, over a database that must end up right.

    ## Description
    A seed makes a shop: customers, items, orders, staff, vouchers in a SQLite database, a policy sampled from a grammar
    of rules (limits, exceptions, roles, deadlines), and tickets: refund, exchange, cancellation, change of address,
    goodwill voucher. The policy is given as text; the gold is computed from the same object, so that the two cannot
    differ. Every episode has its own clone of the database. Customers are scripted: they know, forgot or confuse order
    number and code, or change their mind; from difficulty 2 on some write texts that try to manipulate the clerk, and
    calls fail upstream (429, 500) until they are repeated; at difficulty 3 an order may first be read from a stale
    copy. 44 of 100 requests are to be granted, the others to be refused or escalated, with the reason.

    ## Tools
    22: reads (`get_ticket`, `find_customer`, `get_customer`, `list_orders`, `get_order`, `get_item`, `find_items`,
    `list_vouchers`, `list_checks`, `list_staff`), `ask_customer(slot)`, `verify_identity(customer, code)`, writes
    (`refund_order`, `exchange_order`, `cancel_order`, `change_address`, `issue_voucher`, `set_tier`, `restock_item`,
    `assign_ticket`, `add_note`), and `close_ticket(decision, reason, amount)`. The tools do not enforce the policy.
    They return JSON.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn and a user turn: the clerk's role, the policy, and the ticket.

    ## Rewards
    ### Outcome
    `solved`, 1 or 0, in the step that closes the ticket: 1 if the database differs from its template exactly as the
    policy requires (checks and notes on the own ticket are free), decision, reason and amount of the closing call are
    right, and nothing was changed before a required identity check. Reads never count. A ticket that is left open
    earns 0.
    ### Process
    With `reward="process"` also: `verified` (.1, once), `correct_write` (.2, once), `forbidden_write` (-.2, for each
    turn that makes one), `malformed_call` (-.1).

    ## Episode End
    ### Termination
    `close_ticket` was carried out, or an answer was given, which leaves the ticket open.
    ### Truncation
    `max_turns` model turns are used up, or the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`. `data` of an outcome is the body of the response; that of `close_ticket` holds
    `changes` (table, key or "+", column, value) and `unverified_writes`.

    ## Arguments
    `world_seed=0`, `tickets=1000` (8 of each shop), `split="train"` ("validation", "test": lists of rules that are in
    no other split; "ood": neighbouring rules that are in no other split), `difficulty=2` (1 to 3: rules per section,
    exceptions, fees, what customers forget, faults; at 1 no exceptions, fees and faults), `server=None` (URL of the
    same operations as an HTTP service, `envs/service_desk/server.py`), `sleep=False` (wait as long as a service would
    take; else the time is only reported), `customer_model=None` (a model that words the script's answers; its
    OpenAI-compatible endpoint is `customer_url=None` ("http://127.0.0.1:8000/v1"); episodes then differ from run to
    run), `reward="em"` (`solved` alone) or "process" or custom terms, `max_turns` 16, 24, 32 by difficulty. For the
    others see `ToolEnv`.

    ## References
    tau-bench (arXiv 2406.12045) and AppWorld (arXiv 2407.18901) for grading by state; the generator is this project's
    own (`envs/service_desk/`).

    ## Version History
    v0: first release.
    """

    held_out_splits: Sequence[str] = ("validation", "test", "ood")
    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "dataset", "fields", "scorer")
    reward_presets = PRESETS
    scripts = SCRIPTS
    instructions: ClassVar[str] = """\
You are a clerk at the service desk of a shop. Handle the ticket according to the policy:
1. Find the customer and the order.
2. If the policy requires an identity check, verify the customer before you change anything.
3. Look up what the rules depend on, and decide. Change only what the policy allows.
4. Call close_ticket with your decision. For example: decision "refused", reason "too_late".
close_ticket ends your work. Do not write an answer: it would leave the ticket open.
If a call fails with HTTP 424, repeat it."""

    def __init__(
        self,
        *,
        world_seed: int = 0,
        tickets: int = 1_000,
        split: str = "train",
        difficulty: int = 2,
        server: str | None = None,
        sleep: bool = False,
        customer_model: str | None = None,
        customer_url: str | None = None,
        **options: Any,
    ) -> None:
        check_flag("sleep", sleep)
        for name, text in (("server", server), ("customer_model", customer_model), ("customer_url", customer_url)):
            if text is not None:
                check_text(name, text)
        tasks = TicketTasks(tickets, seed=world_seed, split=split, difficulty=difficulty)
        self._description = tasks.describe()
        self._desk_factory = _make_desk_factory(server)
        super().__init__(
            tasks=tasks,
            tools=desk_tools(self._desk_factory, sleep=sleep, rephrase=_make_rephrase(customer_model, customer_url)),
            **{"max_turns": _MAX_TURNS[difficulty], **options},
        )

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The tools, over the desk of `task`."""
        if not isinstance(task, Ticket):
            raise ConfigurationError(f"ServiceDesk plays its own tickets only, got a {type(task).__name__}.")
        self._desk_factory.scenario = task.scenario
        return self.tools

    def is_terminated(self, transition: Transition) -> bool:
        """Whether the ticket was closed, or left open by an answer."""
        return find_closing_call(transition) is not None or super().is_terminated(transition)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | Thought | None:
        """The planner's next call; before it closes the ticket, it thinks the rule that decides."""
        if not isinstance(task, Ticket):
            return None
        call = next_call(task.plan, history)
        return Thought(reason_to_close(task), call) if call.name == "close_ticket" else call

    def describe_dataset(self) -> str:
        """Split, number, difficulty and seed of the tickets."""
        return self._description


def _make_desk_factory(server: str | None) -> DeskFactory:
    if server is None:
        return DeskFactory()
    from agent_r1_gym.envs.service_desk.server import RemoteDeskFactory

    return RemoteDeskFactory(server)


def _make_rephrase(model: str | None, url: str | None) -> Rephrase | None:
    if model is not None:
        return UserSimulator(model, _CUSTOMER_URL if url is None else url).rephrase
    if url is not None:
        raise ConfigurationError(f"customer_url={url!r} needs customer_model=NAME, or drop it.")
    return None
