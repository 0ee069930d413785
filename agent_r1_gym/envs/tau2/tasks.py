"""The benchmark's tasks and databases: found in a checkout, checked, and shared by all episodes."""

from __future__ import annotations

import functools
import importlib
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Message, Task, ToolCall
from agent_r1_gym.data.load import AUTO, SAMPLE, prepared_folder, warn_of_sample
from agent_r1_gym.data.official.sources import file_version
from agent_r1_gym.envs.tau2.database import Changes, Database, Tables
from agent_r1_gym.envs.tau2.dialogue import read_script
from agent_r1_gym.envs.tau2.file_schema import Record, Shape, anything, choice, flag, items, table, text
from agent_r1_gym.envs.tau2.knowledge import Knowledge
from agent_r1_gym.envs.tau2.language import Line, opening
from agent_r1_gym.envs.tau2.operations import Operations
from agent_r1_gym.errors import ConfigurationError, DatasetError, ToolError
from agent_r1_gym.support.json_data import parse_json

DOMAINS: Mapping[str, str] = {
    "airline": "AirlineOperations",
    "banking": "BankingOperations",
    "mock": "MockOperations",
    "retail": "RetailOperations",
    "telecom": "TelecomOperations",
}
"""Class of each domain, in the module of its name."""
REWARD_BASES = ("DB", "ENV_ASSERTION", "COMMUNICATE", "NL_ASSERTION", "ACTION")
_DEFAULT_BASIS = ("DB", "COMMUNICATE")
_REPOSITORY = "https://github.com/sierra-research/tau2-bench"
_WHOLE = "base"
_WITHOUT_SPLITS = "train"


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the user knows and wants.

    Attributes:
        reason: why they call; for scenarios that are one text, all of it.
        known: what they know about themselves.
        unknown: what they do not know.
        instructions: how they behave, and what they do if.
        persona: what kind of person they are.
        replies: what they say, each with what it answers, where the scenario is a script; None: it is none.
    """

    reason: str
    known: str = ""
    unknown: str = ""
    instructions: str = ""
    persona: str = ""
    replies: tuple[Line, ...] | None = None


@dataclass(frozen=True, slots=True)
class GoldAction:
    """A call of the reference solution.

    Attributes:
        call: the call.
        by_user: whether the user makes it, not the agent.
        compared: arguments that the check of actions compares; None: those of the call that was made.
    """

    call: ToolCall
    by_user: bool = False
    compared: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class EnvAssertion:
    """A condition on the final database: the result of an operation must be `expected`."""

    name: str
    arguments: Mapping[str, Any]
    expected: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tau2Task(Task):
    """A task of tau2-bench; `prompt` is the user's first message.

    Attributes:
        world: the domain's database and policy.
        scenario: what the user knows and wants.
        actions: the reference solution; None: the task has none, and its database is not checked.
        env_assertions: conditions on the final database.
        communicate_info: texts that the agent must tell the user.
        nl_assertions: statements about the conversation that need a judge.
        reward_basis: the checks whose product is the reward, some of `REWARD_BASES`.
        initial_changes: rows in which the task's database differs from the domain's at the start.
        earlier_calls: calls of the conversation that the task continues.
        user_tools: operations of the user; None: all.
        required_documents: ids of the documents that the reference solution follows.
        is_graded: False: the task has no criteria, and every episode that ends passes.
    """

    world: World
    scenario: Scenario
    actions: tuple[GoldAction, ...] | None = None
    env_assertions: tuple[EnvAssertion, ...] | None = None
    communicate_info: tuple[str, ...] = ()
    nl_assertions: tuple[str, ...] = ()
    reward_basis: tuple[str, ...] = _DEFAULT_BASIS
    initial_changes: Changes = field(default_factory=dict)
    earlier_calls: tuple[ToolCall, ...] = ()
    user_tools: tuple[str, ...] | None = None
    required_documents: tuple[str, ...] = ()
    is_graded: bool = True

    @property
    def gold_writes(self) -> tuple[GoldAction, ...]:
        """The actions of the reference solution that may change the database."""
        writes = self.world.operations.writes
        return tuple(action for action in self.actions or () if action.call.name in writes)

    def open_database(self) -> Database:
        """The database at the start of an episode."""
        return Database(self.world.tables, json.loads(json.dumps(self.initial_changes)))


class World:
    """Database, policy and tasks of a domain: immutable, and shared by environments.

    Args:
        operations: the domain.
        tables: rows by table and key, in their one form.
        policy: the policy document.
        raw_tasks: the tasks as the file has them, checked.
        splits: ids of tasks by split.
        source: where it comes from, for people.
        reopen: makes the same world in another process.
        knowledge: documents and policies, where the policy depends on how documents are found.
    """

    def __init__(
        self,
        operations: type[Operations],
        tables: Tables,
        policy: str,
        raw_tasks: Sequence[Mapping[str, Any]],
        splits: Mapping[str, Sequence[str]],
        *,
        source: str,
        reopen: tuple[Callable[..., World], tuple[Any, ...]],
        knowledge: Knowledge | None = None,
    ) -> None:
        self.operations, self.tables, self.policy, self.source = operations, tables, policy, source
        self.knowledge = knowledge
        self.tasks = {raw["id"]: _make_task(self, raw) for raw in raw_tasks}
        self.splits = {_WHOLE: list(self.tasks), **splits}
        self._reopen = reopen
        self._gold: dict[str, Changes] = {}
        for split, ids in splits.items():
            if missing := [identifier for identifier in ids if identifier not in self.tasks]:
                raise DatasetError(f"{source}: the split {split!r} names tasks that do not exist: {missing[:5]}.")

    def part(self, split: str | None) -> tuple[Sequence[Tau2Task], str]:
        """The tasks of a split with its name; None: "train", or all where the domain has no splits."""
        name = split or (_WITHOUT_SPLITS if _WITHOUT_SPLITS in self.splits else _WHOLE)
        if name not in self.splits:
            raise ConfigurationError(
                f"split={split!r} is none of {sorted(self.splits)}, the splits of {self.operations.domain} in "
                f"{self.source}."
            )
        return tuple(self.tasks[identifier] for identifier in self.splits[name]), name

    def gold_changes(self, task: Tau2Task) -> Changes:
        """The changed rows after the reference solution; actions that fail change nothing, as in the benchmark."""
        known = self._gold.get(task.id)
        if known is None:
            database = task.open_database()
            operations = self.operations(database)
            for action in task.actions or ():
                _try(operations, action.call)
            known = self._gold[task.id] = database.changes
        return known

    def __deepcopy__(self, memo: dict[int, Any]) -> World:
        return self

    def __reduce__(self) -> tuple[Callable[..., World], tuple[Any, ...]]:
        return self._reopen

    def __repr__(self) -> str:
        return f"World({self.operations.domain}, {len(self.tasks)} tasks, {self.source})"


def _try(operations: Operations, call: ToolCall) -> None:
    try:
        operations.call(call.name, dict(call.arguments))
    except ToolError:
        return


# --- from a row of tasks.json to a task ------------------------------------------------------------------------------

_FUNCTION = {"env_type": choice("user", "assistant"), "func_name": text, "arguments": table(anything)}
_INSTRUCTIONS = Record({"reason_for_call": text, "task_instructions": text}, {"known_info": text, "unknown_info": text})
_TASK = Record(
    {
        "id": text,
        "user_scenario": Record(
            {"instructions": lambda value, where: (text if isinstance(value, str) else _INSTRUCTIONS)(value, where)},
            {"persona": text},
        ),
    },
    {
        "initial_state": Record(
            {},
            {
                "initialization_data": Record(
                    {}, {"agent_data": table(table(anything)), "user_data": table(table(anything))}
                ),
                "initialization_actions": items(Record(_FUNCTION)),
                "message_history": items(
                    Record(
                        {"role": choice("user", "assistant", "tool")},
                        {
                            "content": text,
                            "id": text,
                            "tool_calls": items(Record({"id": text, "name": text, "arguments": table(anything)})),
                        },
                    )
                ),
            },
        ),
        "evaluation_criteria": Record(
            {},
            {
                "actions": items(
                    Record(
                        {"name": text, "arguments": table(anything)},
                        {"requestor": choice("user", "assistant"), "compare_args": items(text)},
                    )
                ),
                "env_assertions": items(Record(_FUNCTION, {"assert_value": flag})),
                "communicate_info": items(text),
                "nl_assertions": items(text),
                "reward_basis": items(choice(*REWARD_BASES)),
            },
        ),
        "user_tools": items(text),
        "required_documents": items(text),
    },
)


def _make_task(world: World, raw: Mapping[str, Any]) -> Tau2Task:
    operations, criteria = world.operations, raw["evaluation_criteria"]
    state = raw["initial_state"] or {}
    scenario = _scenario(raw["user_scenario"])
    where = f"{world.source}: task {raw['id']!r}"
    history = tuple(_messages(state.get("message_history") or ()))
    earlier = tuple(call for message in history for call in message.tool_calls)
    actions = None
    basis = _DEFAULT_BASIS
    if criteria is not None:
        basis = _DEFAULT_BASIS if criteria["reward_basis"] is None else tuple(criteria["reward_basis"])
        if criteria["actions"] is not None:
            actions = tuple(map(_gold_action, criteria["actions"]))
    assertions = None if criteria is None or criteria["env_assertions"] is None else criteria["env_assertions"]
    functions = [*(state.get("initialization_actions") or ()), *(assertions or ())]
    names = [entry["func_name"] for entry in functions]
    names += [call.name for call in (*earlier, *(action.call for action in actions or ()))]
    names += raw["user_tools"] or ()
    for name in names:
        if name.startswith("_") or not callable(getattr(operations, name, None)):
            raise DatasetError(
                f"{where} uses {name!r}, which is not an operation of {operations.domain} here: the files belong to "
                "another version of tau2-bench, or its tools were changed. This reader follows "
                f"{_REPOSITORY} as of August 2026."
            )
    return Tau2Task(
        raw["id"],
        opening(scenario),
        metadata={"reward_basis": "+".join(basis)},
        history=history,
        world=world,
        scenario=scenario,
        actions=actions,
        env_assertions=None
        if assertions is None
        else tuple(
            EnvAssertion(entry["func_name"], entry["arguments"], entry["assert_value"] is not False)
            for entry in assertions
        ),
        communicate_info=tuple((criteria or {}).get("communicate_info") or ()),
        nl_assertions=tuple((criteria or {}).get("nl_assertions") or ()),
        reward_basis=basis,
        initial_changes=_initial_changes(world, state, earlier, [action.call for action in actions or ()], where),
        earlier_calls=earlier,
        user_tools=None if raw["user_tools"] is None else tuple(raw["user_tools"]),
        required_documents=tuple(raw["required_documents"] or ()),
        is_graded=criteria is not None,
    )


def _scenario(raw: Mapping[str, Any]) -> Scenario:
    written, persona = raw["instructions"], raw["persona"] or ""
    if isinstance(written, str):
        script = read_script(written)
        if script is None:
            return Scenario(written, persona=persona)
        return Scenario(script.opening, script.known, instructions=written, persona=persona, replies=script.replies)
    return Scenario(
        reason=written["reason_for_call"],
        known=written["known_info"] or "",
        unknown=written["unknown_info"] or "",
        instructions=written["task_instructions"],
        persona=persona,
    )


def _gold_action(raw: Mapping[str, Any]) -> GoldAction:
    compared = raw["compare_args"]
    return GoldAction(
        ToolCall(raw["name"], raw["arguments"]),
        by_user=raw["requestor"] == "user",
        compared=None if compared is None else tuple(compared),
    )


def _messages(rows: Sequence[Mapping[str, Any]]) -> Iterator[Message]:
    """The turns of a conversation that a task continues."""
    names: dict[str, str] = {}
    for row in rows:
        calls = tuple(ToolCall(call["name"], call["arguments"], call["id"]) for call in row["tool_calls"] or ())
        names |= {str(call.id): call.name for call in calls}
        is_outcome = row["role"] == "tool"
        yield Message(
            row["role"],
            row["content"] or "",
            name=names.get(row["id"]) if is_outcome else None,
            tool_call_id=row["id"] if is_outcome else None,
            tool_calls=calls,
        )


def _initial_changes(
    world: World,
    state: Mapping[str, Any],
    earlier_calls: Sequence[ToolCall],
    gold_calls: Sequence[ToolCall],
    where: str,
) -> Changes:
    """The rows that a task changes before the episode: merged data, then operations, then the conversation so far."""
    database = Database(world.tables)
    shapes = {**world.operations.tables, **world.operations.user_tables}
    data = state.get("initialization_data") or {}
    for part in (data.get("agent_data") or {}, data.get("user_data") or {}):
        for name, rows in world.operations.arrange_initial(part).items():
            if name not in shapes:
                raise DatasetError(f"{where} fills the table {name!r}, which {world.operations.domain} does not have.")
            merged = {key: _merged(database.find(name, key), row) for key, row in rows.items()}
            for key, row in shapes[name](merged, f"{where}, {name}").items():
                database.add(name, key, row)
    operations = world.operations(database)
    operations.prepare(gold_calls)
    for action in state.get("initialization_actions") or ():
        try:
            operations.call(action["func_name"], action["arguments"])
        except ToolError as error:
            raise DatasetError(f"{where}: its first state cannot be made: {error}.") from error
    for call in earlier_calls:
        _try(operations, call)
    return database.changes


def _merged(old: Any, new: Any) -> Any:
    """Objects merge key by key, anything else is replaced."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


# --- finding and reading the files -----------------------------------------------------------------------------------


def open_world(domain: str, dataset: str | os.PathLike[str]) -> World:
    """The world of a domain.

    Args:
        domain: one of `DOMAINS`.
        dataset: "sample" (invented), a folder (a checkout of tau2-bench, its `data/tau2/domains`, or a folder with
            files such as `retail_tasks.json`), or "auto": the checkout at `$AGENT_R1_HOME/datasets/tau2`, else the
            sample, with one `SampleDataWarning` per process.

    Raises:
        ConfigurationError: the folder does not exist.
        DatasetError: files are missing, or of another shape.
    """
    if dataset == AUTO:
        prepared = prepared_folder("tau2")
        if prepared.is_dir():
            return open_world(domain, prepared)
        remedy = f"run `git clone {_REPOSITORY} {prepared}`, or pass dataset=FOLDER"
        warn_of_sample(
            f"tau2-bench {domain}", "INVENTED tasks, which measure nothing comparable,", remedy, stacklevel=4
        )
        return _sample_world(domain)
    if dataset == SAMPLE:
        return _sample_world(domain)
    folder = Path(dataset).expanduser()
    if not folder.is_dir():
        raise ConfigurationError(
            f"dataset={os.fspath(dataset)!r} is not a folder; expected a checkout of {_REPOSITORY}."
        )
    files = _find_files(folder, domain)
    return _read_world(domain, tuple(files.items()), tuple(map(_version, files.values())))


def _operations(domain: str) -> type[Operations]:
    module = importlib.import_module(f"agent_r1_gym.envs.tau2.{domain}")
    found: type[Operations] = getattr(module, DOMAINS[domain])
    return found


@functools.cache
def _sample_world(domain: str) -> World:
    from agent_r1_gym.envs.tau2.sample import sample_files

    files = sample_files(domain)
    source = f"an INVENTED sample in the format of tau2-bench's {domain} (not the benchmark)"
    return _make_world(
        domain,
        {kind: files[kind] for kind in ("db", "user_db") if kind in files},
        policies={kind: files[kind] for kind in _operations(domain).policy_files},
        knowledge=Knowledge(files["documents"], files["prompts"], source) if "documents" in files else None,
        tasks=files["tasks"],
        splits=files["split_tasks"],
        source=source,
        reopen=(_sample_world, (domain,)),
    )


_AIRLINE_PARTS = ("flights", "users", "reservations")
_KNOWLEDGE = ("documents", "prompts")


def _find_files(folder: Path, domain: str) -> dict[str, Path]:
    """The files of a domain by kind: "db" (or the parts of the first tau-bench's airline), "tasks", "policy" ..."""
    name = _operations(domain).folder or domain
    layouts = [
        (folder / "data" / "tau2" / "domains" / name, ""),
        (folder / name, ""),
        (folder, f"{domain}_"),
    ]
    for place, prefix in layouts:
        found: dict[str, Path] = {}
        for kind, names in _NAMES.items():
            paths = (place / f"{prefix}{name}" for name in names)
            if path := next((path for path in paths if path.exists()), None):
                found[kind] = path
        if "tasks" not in found:
            continue
        if found["tasks"].stem.endswith("small"):
            found.pop("split_tasks", None)  # it splits the large file
        parts: tuple[str, ...] = _AIRLINE_PARTS if domain == "airline" and "db" not in found else ("db",)
        parts += _KNOWLEDGE if domain == "banking" else ()
        missing = [_NAMES[kind][0] for kind in (*_operations(domain).policy_files, *parts) if kind not in found]
        if missing:
            raise DatasetError(
                f"{place} has the tasks of {domain}, but not {', '.join(prefix + name for name in missing)}: expected "
                f"the files of {_REPOSITORY}."
            )
        return found
    expected = " or ".join(str(place / f"{prefix}tasks.json") for place, prefix in layouts)
    raise DatasetError(f"{folder} has no tasks of tau2-bench's domain {domain}: expected {expected}.")


_NAMES: Mapping[str, tuple[str, ...]] = {
    "tasks": ("tasks", "tasks.json", "tasks_small.json"),
    "split_tasks": ("split_tasks.json",),
    "db": ("db.json", "db.toml"),
    "user_db": ("user_db.json", "user_db.toml"),
    "policy": ("policy.md",),
    "main_policy": ("main_policy.md",),
    "tech_support_manual": ("tech_support_manual.md",),
    **{part: (f"{part}.json",) for part in _AIRLINE_PARTS},
    "documents": ("documents", "documents.jsonl"),
    "prompts": ("prompts",),
}
"""Names of the files by kind; the first that exists is read. Those without an ending are folders."""


@functools.lru_cache(maxsize=16)
def _read_world(domain: str, files: tuple[tuple[str, Path], ...], versions: tuple[Any, ...]) -> World:
    """The world of some files; `versions` makes changed files another entry of the cache."""
    paths = dict(files)
    data = {kind: _read(path) for kind, path in paths.items() if kind in ("db", "user_db", *_AIRLINE_PARTS)}
    splits = _read(paths["split_tasks"]) if "split_tasks" in paths else {}
    return _make_world(
        domain,
        data,
        policies={kind: _text(paths[kind]) for kind in _operations(domain).policy_files},
        knowledge=_read_knowledge(paths) if "documents" in paths and "prompts" in paths else None,
        tasks=_read(paths["tasks"]),
        splits=splits,
        source=str(paths["tasks"]),
        reopen=(_reopen_world, (domain, files)),
    )


def _reopen_world(domain: str, files: tuple[tuple[str, Path], ...]) -> World:
    return _read_world(domain, files, tuple(_version(path) for _, path in files))


def _version(path: Path) -> Any:
    """Identifies the content of a file, or of the files of a folder."""
    return tuple(map(file_version, sorted(path.rglob("*")))) if path.is_dir() else file_version(path)


def _read_knowledge(paths: Mapping[str, Path]) -> Knowledge:
    prompts = {path.stem: _text(path) for path in sorted(paths["prompts"].rglob("*.md"))}
    return Knowledge(_read(paths["documents"]), prompts, str(paths["documents"]))


def _make_world(
    domain: str,
    data: Mapping[str, Any],
    *,
    policies: Mapping[str, str],
    tasks: Any,
    splits: Any,
    source: str,
    reopen: tuple[Callable[..., World], tuple[Any, ...]],
    knowledge: Knowledge | None = None,
) -> World:
    operations = _operations(domain)
    shapes = {**operations.tables, **operations.user_tables}
    tables = _read_tables(shapes, operations.arrange(data), f"{source}, database")
    tags = operations.policy_files
    policy = "\n".join(
        f"<{tags[kind]}>\n{document}\n</{tags[kind]}>" if tags[kind] else document
        for kind, document in policies.items()
    )
    rows = items(_TASK)(tasks, source)
    read_splits = table(items(text))(splits, f"{source}, splits")
    return World(operations, tables, policy, rows, read_splits, source=source, reopen=reopen, knowledge=knowledge)


def _read_tables(shapes: Mapping[str, Shape], raw: Any, where: str) -> dict[str, Any]:
    if not isinstance(raw, dict) or not shapes.keys() <= raw.keys():
        found = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise DatasetError(f"{where} must have the tables {sorted(shapes)}, got {found!s:.200}.")
    return {name: shape(raw[name], f"{where}.{name}") for name, shape in shapes.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path} cannot be read: {error}.") from error


def _read(path: Path) -> Any:
    """The content of a file; of a folder, that of its JSON files, and of a JSONL file, that of its lines, as a list."""
    if path.is_dir():
        return [_read(file) for file in sorted(path.glob("*.json"))]
    content = _text(path)
    try:
        if path.suffix == ".jsonl":
            return [parse_json(line) for line in content.split("\n") if line.strip()]
        return tomllib.loads(content) if path.suffix == ".toml" else parse_json(content)
    except ValueError as error:
        raise DatasetError(f"{path} is not a {path.suffix[1:].upper()} file: {error}.") from error
