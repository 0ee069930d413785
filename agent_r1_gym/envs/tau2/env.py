"""tau2-bench's domains as environments: a base class with the rules, and one class a domain with its specification."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.tool import PendingCall, Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ScriptedPolicy, Task, ToolCall, Transition
from agent_r1_gym.envs.tau2.grading import PRESETS, final_changes
from agent_r1_gym.envs.tau2.judge import StatementJudge
from agent_r1_gym.envs.tau2.knowledge import DEFAULT_VARIANT, SEARCH, TOOLS, check_variant
from agent_r1_gym.envs.tau2.operations import OperationTool
from agent_r1_gym.envs.tau2.scripts import SCRIPTS, gold_turn
from agent_r1_gym.envs.tau2.tasks import DOMAINS, Tau2Task, World, open_world
from agent_r1_gym.envs.tau2.users import EpisodeStart, ModelUser, User, UserTool, scripted_user
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_path, check_split

_DEFAULT_URL = "http://127.0.0.1:8000/v1"
_ENDPOINT = "openai:"


class Tau2Env(ToolEnv):
    """A domain of tau2-bench; base of the registered environments.

    Args:
        domain: "retail", "airline", "telecom", "banking" or "mock".
        dataset: "auto" (the checkout of tau2-bench at `$AGENT_R1_HOME/datasets/tau2`, else an invented sample, with a
            warning), "sample", or a folder: a checkout, its `data/tau2/domains`, or one with files such as
            `retail_tasks.json`.
        split: "train", "test" or "base" (all tasks); None: "train", or "base" where the domain has no splits.
        user: "scripted", "openai:MODEL", or a function of the task, the conversation and what the user can do (see
            `users.User`).
        user_url: base URL of the model that plays the user; None: http://127.0.0.1:8000/v1.
        judge: "openai:MODEL", which decides on statements about the conversation (NL_ASSERTION); None: they are left
            out.
        judge_url: base URL of the judge; None: http://127.0.0.1:8000/v1.
        retrieval: how the bank's documents are found, one of `knowledge.VARIANTS`; None: the first. Other domains have
            no documents.
        **options: options of `ToolEnv`.

    Raises:
        ConfigurationError: an argument has a wrong value.
        DatasetError: the files of the benchmark are missing, or of another shape.
    """

    instructions: ClassVar[str] = """\
You are an agent of customer service. Help the user, and follow the policy below.
In each turn do one of two things: call functions, or write a message to the user. Never do both."""
    held_out_splits: Sequence[str] = ("test",)
    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields", "scorer")
    plain_errors: ClassVar[Sequence[list[str]]] = (["no_action"], ["other_format"])  # a text goes to the user
    reward_presets = PRESETS
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = SCRIPTS

    def __init__(
        self,
        *,
        domain: str,
        dataset: str | os.PathLike[str] = "auto",
        split: str | None = None,
        user: str | User = "scripted",
        user_url: str | None = None,
        judge: str | None = None,
        judge_url: str | None = None,
        retrieval: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("domain", domain, tuple(DOMAINS))
        check_path("dataset", dataset)
        check_split(split)
        world = open_world(domain, dataset)
        tasks, part = world.part(split)
        self._description = f"tau2-bench {domain}/{part} ({len(tasks)} tasks) from {world.source}"
        self._start = EpisodeStart()
        self._policy, search_tools, tasks = _choose_retrieval(world, retrieval, tasks)
        tools = [OperationTool(world.operations, name, self._start.open_database) for name in world.operations.tools]
        super().__init__(
            tasks=tasks,
            tools=[
                *tools,
                *search_tools,
                UserTool(_make_user(user, user_url), self._start, _make_judge(judge, judge_url)),
            ],
            **{"max_turns": 60, "max_history_chars": 262_144, "plain_turn": "answer", **options},
        )

    def system_text(self, parser: Parser, row_system: str = "") -> str:
        """The instructions, with the policy, and the tools and the format."""
        policy = row_system or self.formatter.sanitize(self._policy)
        return super().system_text(parser, f"{self.instructions}\n\n<policy>\n{policy}\n</policy>")

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The tools, over the database of `task`."""
        if not isinstance(task, Tau2Task):
            raise ConfigurationError(f"tau2-bench's environments play its tasks only, got a {type(task).__name__}.")
        self._start.task = task
        return self.tools

    def begin_step(self, action: str) -> tuple[PendingCall, ...]:
        """Begin a step; a judge at its end reads the steps before it."""
        self._start.earlier = self.transitions
        return super().begin_step(action)

    def is_terminated(self, transition: Transition) -> bool:
        """Whether the user ended the conversation."""
        return final_changes(transition) is not None

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
        """The gold actions, with the questions, confirmations and searches that the policies ask for."""
        if not isinstance(task, Tau2Task):
            return None
        return gold_turn(task, history, searches=SEARCH in self.toolbox.by_name)

    def describe_dataset(self) -> str:
        """Domain, split, number and source of the tasks."""
        return self._description


class Tau2RetailEnv(Tau2Env):
    """Tau2Retail: orders of a shop's users, changed under a policy; the retail domain of tau2-bench.

    ## Description
    The agent serves one user per episode: it finds out who they are, looks up orders and products, and cancels,
    changes, exchanges or returns what the policy allows, after the user has confirmed. 114 tasks over 500 users, 1,000
    orders and 50 products: tau2-bench's own files, tools and policy, and its graders, re-implemented and compared with
    the official code on every task. The files are not part of this package. Without them an invented sample of 12
    tasks is played, with a warning; its scores are not comparable to anything.

    ## Tools
    16, with the names, arguments, descriptions and results of tau2-bench: `calculate`, `cancel_pending_order`,
    `exchange_delivered_order_items`, `find_user_id_by_name_zip`, `find_user_id_by_email`, `get_order_details`,
    `get_product_details`, `get_item_details`, `get_user_details`, `list_all_product_types`,
    `modify_pending_order_address`, `modify_pending_order_items`, `modify_pending_order_payment`,
    `modify_user_address`, `return_delivered_order_items`, `transfer_to_human_agents`. The tools do not enforce the
    policy. Calls whose arguments do not fit the schema are refused, where tau2-bench tries them.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`. A turn without a
    call, and what a format calls the answer, is a message to the user.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`. What the user replies is a
    user turn.

    ## Starting State
    A system turn (instructions, policy, tools, format) and the user's first message: the reason for the call.

    ## Rewards
    ### Outcome
    `solved`, 1 or 0, in the step in which the user ends the conversation: the product of the checks that the task's
    `reward_basis` names. DB: the database equals that after the gold actions. ACTION: each gold action was called.
    COMMUNICATE: each text that the task lists is in a message to the user. ENV_ASSERTION: conditions on the database
    hold. NL_ASSERTION: statements about the conversation are true, as `judge` decides; without a judge they are left
    out: in retail's 40 tasks with such statements only DB decides, so that scores are upper bounds of the official ones
    there. An episode that is cut earns 0.
    ### Process
    With `reward="process"` also `malformed_call` (-.1).

    ## Episode End
    ### Termination
    The user ends the conversation (`###STOP###`, `###TRANSFER###` or `###OUT-OF-SCOPE###`).
    ### Truncation
    `max_turns` model turns are used up, or the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`. A message to the user is a call of `message_user` in `tool_calls`, its outcome the
    reply; `data` of the last one holds the changed rows. Why an episode failed is among the `reward_terms`, with weight
    0: `unfinished`, `missing_write`, `wrong_write`, `extra_write`, `missing_action`, `failed_assertion`,
    `not_communicated`, `false_statement`. A model as the user or the judge that fails is an `infrastructure_error`.

    ## Arguments
    `dataset="auto"` (the checkout of tau2-bench at `$AGENT_R1_HOME/datasets/tau2`, else the sample with a warning), or
    "sample", or a folder: a checkout, its `data/tau2/domains`, or one with files such as `retail_tasks.json`.
    `split=None` ("train"; "test" is held out, "base" is both, as the leaderboard uses). `user="scripted"`, which says
    only what the scenario says, or "openai:MODEL", a model that plays the scenario behind the OpenAI-compatible
    endpoint `user_url=None` ("http://127.0.0.1:8000/v1"; episodes then differ from run to run), or a function (see
    `envs.tau2.users`). `judge=None`, or "openai:MODEL" behind `judge_url=None` (the same address). `reward="em"`
    (`solved` alone) or "process" or custom terms, `max_turns=60`, `max_history_chars=262144`, `plain_turn="answer"`;
    for the others see `ToolEnv`.

    ## References
    tau2-bench (arXiv 2506.07982, MIT licence), commit a2c0247 of August 2026; tau-bench (arXiv 2406.12045).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = (*Tau2Env.fixed_options, "domain", "retrieval")

    def __init__(self, **options: Any) -> None:
        super().__init__(domain="retail", **options)


class Tau2AirlineEnv(Tau2Env):
    """Tau2Airline: reservations of an airline's users, changed under a policy; the airline domain of tau2-bench.

    ## Description
    As `AgentR1/Tau2Retail-v0`, for an airline: the agent books, changes and cancels reservations, and compensates. 50
    tasks over 500 users, 2,000 reservations and 300 flights. In 24 of them the policy forbids what the user wants: an
    agent that changes nothing passes the check of the database.

    ## Tools
    14, with the names, arguments, descriptions and results of tau2-bench: `book_reservation`, `calculate`,
    `cancel_reservation`, `get_reservation_details`, `get_user_details`, `list_all_airports`, `search_direct_flight`,
    `search_onestop_flight`, `send_certificate`, `transfer_to_human_agents`, `update_reservation_baggages`,
    `update_reservation_flights`, `update_reservation_passengers`, `get_flight_status`.

    ## Action Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Observation Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Starting State
    As in `AgentR1/Tau2Retail-v0`.

    ## Rewards
    ### Outcome
    As in `AgentR1/Tau2Retail-v0`. All tasks are graded by DB and COMMUNICATE, as officially.
    ### Process
    As in `AgentR1/Tau2Retail-v0`.

    ## Episode End
    ### Termination
    As in `AgentR1/Tau2Retail-v0`.
    ### Truncation
    As in `AgentR1/Tau2Retail-v0`.

    ## Information
    As in `AgentR1/Tau2Retail-v0`.

    ## Arguments
    As in `AgentR1/Tau2Retail-v0`. A folder may hold `airline_flights.json`, `airline_users.json` and
    `airline_reservations.json`, as the first tau-bench had them, instead of `airline_db.json`.

    ## References
    As in `AgentR1/Tau2Retail-v0`.

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = (*Tau2Env.fixed_options, "domain", "retrieval")

    def __init__(self, **options: Any) -> None:
        super().__init__(domain="airline", **options)


class Tau2TelecomEnv(Tau2Env):
    """Tau2Telecom: an operator's users whose telephone does not work; the telecom domain of tau2-bench.

    ## Description
    As `AgentR1/Tau2Retail-v0`, for an operator of mobile networks. The agent sees customers, lines and bills; the fault
    is often in the user's telephone, which only the user can touch: the agent has to ask what it shows, and what to do
    with it. 20 tasks in the set "small", 114 in "base", 2,285 in "full", made of combinations of faults.

    ## Tools
    13, with the names, arguments, descriptions and results of tau2-bench: `get_customer_by_phone`,
    `get_customer_by_id`, `get_customer_by_name`, `get_details_by_id`, `suspend_line`, `resume_line`,
    `get_bills_for_customer`, `send_payment_request`, `get_data_usage`, `enable_roaming`, `disable_roaming`,
    `transfer_to_human_agents`, `refuel_data`. The user has 30 operations of a telephone (`envs/tau2/phone.py`).

    ## Action Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Observation Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Starting State
    As in `AgentR1/Tau2Retail-v0`.

    ## Rewards
    ### Outcome
    As in `AgentR1/Tau2Retail-v0`. Tasks are graded by ENV_ASSERTION, such as an excellent result of a speed test, some
    by ACTION too.
    ### Process
    As in `AgentR1/Tau2Retail-v0`.

    ## Episode End
    ### Termination
    As in `AgentR1/Tau2Retail-v0`.
    ### Truncation
    As in `AgentR1/Tau2Retail-v0`.

    ## Information
    As in `AgentR1/Tau2Retail-v0`. `data` of a reply holds what the user did with the telephone (`user_calls`).

    ## Arguments
    As in `AgentR1/Tau2Retail-v0`. A folder with `telecom_tasks_small.json` alone has no splits. A scripted user does
    what a message asks for by the name of an operation ("toggle_roaming") or in plain words ("turn on mobile data",
    "restart your phone"), reports what the telephone shows, and is content only if it works.

    ## References
    As in `AgentR1/Tau2Retail-v0`.

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = (*Tau2Env.fixed_options, "domain", "retrieval")

    def __init__(self, **options: Any) -> None:
        super().__init__(domain="telecom", **options)


class Tau2BankingEnv(Tau2Env):
    """Tau2Banking: customers of a bank whose rules, and most tools, are in a knowledge base; banking of tau2-bench.

    ## Description
    As `AgentR1/Tau2Retail-v0`, for a bank. The policy is short: the agent has to search 698 documents for the rules of
    a request, and for the names of the operations that carry it out. Some it unlocks for itself, others it gives to the
    user. 97 tasks over 39 users: credit cards, accounts, debit cards, disputes, referrals. One row that is wrong or too
    many fails a task.

    ## Tools
    14, with the names, arguments, descriptions and results of tau2-bench: `transfer_to_human_agents`,
    `get_current_time`, `get_user_information_by_id`, `get_user_information_by_name`, `get_user_information_by_email`,
    `change_user_email`, `get_referrals_by_user`, `get_credit_card_transactions_by_user`,
    `get_credit_card_accounts_by_user`, `log_verification`, `give_discoverable_user_tool`,
    `unlock_discoverable_agent_tool`, `call_discoverable_agent_tool`, `list_discoverable_agent_tools`; and `KB_search`
    and `grep`. 44 internal operations are called by `call_discoverable_agent_tool` once they are unlocked. The user has
    6 operations, and 4 that the agent can give.

    ## Action Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Observation Space
    As in `AgentR1/Tau2Retail-v0`.

    ## Starting State
    As in `AgentR1/Tau2Retail-v0`.

    ## Rewards
    ### Outcome
    As in `AgentR1/Tau2Retail-v0`. 88 tasks are graded by DB, 9 by ACTION. The database also records which internal
    operations were called (of those that change nothing, the ones that the gold actions call).
    ### Process
    As in `AgentR1/Tau2Retail-v0`.

    ## Episode End
    ### Termination
    As in `AgentR1/Tau2Retail-v0`.
    ### Truncation
    As in `AgentR1/Tau2Retail-v0`.

    ## Information
    As in `AgentR1/Tau2Retail-v0`. `data` of a reply holds what the user did (`user_calls`).

    ## Arguments
    As in `AgentR1/Tau2Retail-v0`, but `max_turns=100` and `max_history_chars=524288`. `retrieval="bm25_grep"`
    (`KB_search` by BM25, and `grep`), "bm25", "grep_only", "golden_retrieval" (no search: the policy shows the
    documents that the task needs) or "no_knowledge". tau2-bench's default, "alltools", and its other variants need a
    hosted model or a shell, and are refused. `KB_search` ranks by this project's BM25 (title and text, stemmed); `grep`
    reads patterns without parentheses and braces. The domain has no splits. A folder may hold `banking_db.json`,
    `banking_tasks.json`, `banking_documents.jsonl` and `banking_prompts/`. A scripted user says the sentences of its
    script, and applies, refers or disputes once the agent has named the one card or account, or the operation.

    ## References
    As in `AgentR1/Tau2Retail-v0`.

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = (*Tau2Env.fixed_options, "domain")

    def __init__(self, **options: Any) -> None:
        super().__init__(domain="banking", **{"max_turns": 100, "max_history_chars": 524_288, **options})


def _choose_retrieval(
    world: World, retrieval: str | None, tasks: Sequence[Tau2Task]
) -> tuple[str, list[Tool], Sequence[Tau2Task]]:
    """Policy, search tools and tasks of a way to the documents."""
    knowledge = world.knowledge
    if knowledge is None:
        if retrieval is not None:
            raise ConfigurationError(f"retrieval={retrieval!r:.80}: {world.operations.domain} has no documents.")
        return world.policy, [], tasks
    name = DEFAULT_VARIANT if retrieval is None else retrieval
    variant = check_variant(name)
    tools: list[Tool] = [TOOLS[tool](world) for tool in variant.tools]
    if name == "golden_retrieval":
        # The policy of such a task shows the documents that it needs: a first turn of its own conversation.
        first_turns = [Message("system", knowledge.policy(variant, task.required_documents)) for task in tasks]
        tasks = [replace(task, history=(turn, *task.history)) for turn, task in zip(first_turns, tasks, strict=True)]
    return knowledge.policy(variant), tools, tasks


def _make_user(user: Any, url: str | None) -> User:
    if not callable(user) and user != "scripted":
        expected = "'scripted', 'openai:MODEL' or a function"
        return ModelUser(_model_of("user", user, expected), _DEFAULT_URL if url is None else url)
    if url is not None:
        raise ConfigurationError(f"user_url={url!r} needs user='openai:MODEL', or drop it.")
    return user if callable(user) else scripted_user


def _make_judge(judge: Any, url: str | None) -> StatementJudge | None:
    if judge is not None:
        return StatementJudge(_model_of("judge", judge, "'openai:MODEL' or None"), _DEFAULT_URL if url is None else url)
    if url is not None:
        raise ConfigurationError(f"judge_url={url!r} needs judge='openai:MODEL', or drop it.")
    return None


def _model_of(option: str, value: Any, expected: str) -> str:
    if not isinstance(value, str) or not value.startswith(_ENDPOINT) or value == _ENDPOINT:
        raise ConfigurationError(f"{option} must be {expected}, got {value!r:.80}.")
    return value.removeprefix(_ENDPOINT)
