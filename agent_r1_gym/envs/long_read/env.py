"""LongRead: a ledger that is read page by page, longer than an agent's context, and a question about it.

In this order: the tool that shows pages, the reward for notes, the scripted readers, and the environment.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from agent_r1_gym.core.rewards import RewardTerm, failed_call, malformed_call, valid_call
from agent_r1_gym.core.scoring import normalize_answer
from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ScriptedPolicy, ScriptedTurn, Task, Thought, ToolCall, ToolOutcome, Transition
from agent_r1_gym.envs.long_read.dataset import STYLES, LedgerTask, LedgerTasks
from agent_r1_gym.envs.long_read.ledger import Fact, answer_of, last_values, support_of
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_flag
from agent_r1_gym.tools.notebook import notebook_tools

NOTHING = "nothing"
"""Value of a key that no page mentions, in the notes of a reader."""
_COMPACT: Mapping[str, Any] = {"system_prompt": "", "feedback": "short"}
_QUESTION_POSITIONS = ("first", "last")


# --- pages -----------------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """Data of an outcome of `next_page`: page `number` of `total`; beyond the last page it has no facts."""

    number: int
    total: int
    facts: tuple[Fact, ...]


class PageTool(Tool):
    """`next_page()`: shows the pages of a ledger one by one, each once.

    Args:
        pages: rendered pages.
        facts: entries of the pages.
        end_text: text beyond the last page.
    """

    def __init__(self, pages: Sequence[str], facts: Sequence[tuple[Fact, ...]], end_text: str) -> None:
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        super().__init__("next_page", "Read the next page; no page is shown twice.", parameters, timeout=None)
        self._pages, self._facts, self._end_text = pages, facts, end_text
        self._pages_read = 0

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Shows the next page."""
        number, total = self._pages_read + 1, len(self._pages)
        if number > total:
            return ToolOutcome(self._end_text, data=Page(number, total, ()))
        self._pages_read = number
        return ToolOutcome(self._pages[number - 1], data=Page(number, total, self._facts[number - 1]))

    def get_state(self) -> int:
        """Number of pages read so far."""
        return self._pages_read

    def set_state(self, state: Any) -> None:
        """Continues after that many pages."""
        self._pages_read = state


def _pages_of(step: Transition) -> Iterator[Page]:
    return (outcome.data for outcome in step.outcomes if isinstance(outcome.data, Page))


def _notes_of(step: Transition) -> Iterator[str]:
    for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
        if call.name == "note" and outcome.ok:
            yield call.arguments["text"]


# --- the reward for notes --------------------------------------------------------------------------------------------

_FILLERS = frozenset(("is", "has", "now", "held", "by", "with", "at", "to", "balance", "account", "of", "was"))
"""Words that may stand between the key and the value of a fact in a note."""


def noted_fact(transition: Transition) -> float:
    """Share of the facts behind the answer that this step noted first, after they were read; in [0, 1].

    The sum over an episode is at most 1. A note contains a fact if it has the key and then the value, with nothing but
    punctuation and fillers (`is`, `has`, `held by` ...) between them: a list of names and numbers contains none.
    """
    support = getattr(transition.task, "support", ())
    notes = tuple(_notes_of(transition)) if support else ()
    if not notes:
        return 0.0
    read = {fact for step in transition.earlier for page in _pages_of(step) for fact in page.facts}
    earlier = [note for step in transition.earlier for note in _notes_of(step)]
    new = {fact for fact in read.intersection(support) if _contain(notes, fact) and not _contain(earlier, fact)}
    return len(new) / len(set(support))


def _contain(notes: Sequence[str], fact: Fact) -> bool:
    key, value = normalize_answer(fact.key).split(), normalize_answer(fact.value).split()
    for note in notes:
        words = normalize_answer(note).split()
        for start in range(len(words) - len(key)):
            position = start + len(key)
            if words[start:position] == key:
                while position < len(words) and words[position] in _FILLERS:
                    position += 1
                if words[position : position + len(value)] == value:
                    return True
    return False


_PROCESS = (
    RewardTerm("valid_call", valid_call, 0.05, kind="process"),
    RewardTerm("malformed_call", malformed_call, -0.1, kind="process"),
    RewardTerm("failed_call", failed_call, -0.05, kind="process"),
    RewardTerm("noted_fact", noted_fact, 0.2, kind="process"),
)


PRESETS: Mapping[str, tuple[str | RewardTerm, ...]] = {"process": ("em", *_PROCESS)}
"""Meaning of a usual preset here, where `next_page` is called again and again: no penalty for repeated calls."""


# --- scripted readers ------------------------------------------------------------------------------------------------

_NEXT, _RECALL = ToolCall("next_page", {}), ToolCall("recall", {})
_BEGINNER_ACCURACY = 0.3
_Turn = ToolCall | Thought | str


def _last_output(history: Sequence[Transition]) -> Any:
    """Data of the last tool output, which is all that a window of one turn leaves in sight."""
    outcomes = history[-1].outcomes if history else ()
    return outcomes[-1].data if outcomes and outcomes[-1].ok else None


def _with_notes(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> ToolCall | str:
    """Notes what the question needs of each page, and answers from the output of `recall`."""
    output = _last_output(history)
    if isinstance(output, Page):
        if facts := env.relevant_facts(task, output):
            return ToolCall("note", {"text": env.ledger_style.note(facts)})
        return _RECALL if env.is_after_last(output) else _NEXT
    if output is not None and history[-1].parsed.calls[-1].name == "recall":
        return env.answer_from(task, [fact for note in output for fact in env.ledger_style.parse_note(note)])
    return _NEXT


def _aloud(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> _Turn:
    """Acts like `_with_notes`, after a thought with what the page states about the question, perhaps `nothing`.

    The thought shows a tiny model, word by word, how to find out whether a page has the key, and what follows it.
    """
    output, turn = _last_output(history), _with_notes(env, task, history)
    if not isinstance(output, Page) or env.question_last:
        return turn
    return Thought(env.note_text(task, env.relevant_facts(task, output)), turn)


def _without_notes(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> ToolCall | str:
    """Reads all pages, and answers from the whole history; `nothing` where a window removed it."""
    output = _last_output(history)
    if isinstance(output, Page) and env.is_after_last(output):
        facts = [fact for step in history for page in _pages_of(step) for fact in page.facts]
        return NOTHING if answer_of(task.question, facts) is None else env.answer_from(task, facts)
    return _NEXT


def _summariser(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> _Turn:
    """Keeps a summary of what the question needs between `<summary>` tags, and answers from it."""
    output = _last_output(history)
    if not isinstance(output, Page):
        return _NEXT
    messages = env.get_state().messages
    last_turn = next(message.content for message in reversed(messages) if message.role == "assistant")
    summary = last_turn.partition("<summary>")[2].partition("</summary>")[0]
    facts = [fact for fact in env.ledger_style.parse_note(summary) if fact.value != NOTHING]
    facts += env.relevant_facts(task, output)
    if env.is_after_last(output):
        return env.answer_from(task, facts)
    if task.question.type != "changes":
        facts = [Fact(*entry) for entry in last_values(facts).items()]
    return Thought(f"<summary>{env.note_text(task, facts)}</summary>", _NEXT)


def _forgetful(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> ToolCall | str:
    """Reads all pages without notes, and answers from the last output."""
    output = _last_output(history)
    is_over = isinstance(output, Page) and env.is_after_last(output)
    return env.answer_from(task, output.facts) if is_over else _NEXT


def _stale(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> ToolCall | str:
    """Acts like the oracle, but notes nothing about a key that it has noted before: it misses updates."""
    turn = _with_notes(env, task, history)
    if not isinstance(turn, ToolCall) or turn.name != "note":
        return turn
    noted = {fact.key for step in history for note in _notes_of(step) for fact in env.ledger_style.parse_note(note)}
    new = [fact for fact in env.ledger_style.parse_note(turn.arguments["text"]) if fact.key not in noted]
    if new:
        return ToolCall("note", {"text": env.ledger_style.note(new)})
    return _RECALL if env.is_after_last(_last_output(history)) else _NEXT


def _guesser(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> str:
    """Answers at once with a plausible value."""
    return env.answer_from(task, ())


def _is_right(task: LedgerTask) -> bool:
    """Whether a beginner plays a task right."""
    # Per task, before the first turn: below a window of one turn the model cannot see how an episode began, so that
    # strategies which diverge later would be mixed in every turn.
    return random.Random(f"{task.id} beginner").random() < _BEGINNER_ACCURACY


def _beginner(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> _Turn:
    """Takes notes, thinking aloud, in 30 of 100 tasks, and guesses in the others; for demonstrations."""
    reader = _aloud if env.has_notebook else _without_notes
    return reader(env, task, history) if _is_right(task) else _guesser(env, task, history)


def _summary_beginner(env: LongReadEnv, task: LedgerTask, history: Sequence[Transition]) -> _Turn:
    """Like `_beginner`, with a summary instead of notes."""
    return (_summariser if _is_right(task) else _guesser)(env, task, history)


SCRIPTS: Mapping[str, Any] = {
    "aloud": _aloud,
    "without_notes": _without_notes,
    "summariser": _summariser,
    "forgetful": _forgetful,
    "stale": _stale,
    "guesser": _guesser,
    "beginner": _beginner,
    "summary_beginner": _summary_beginner,
}


# --- the environment -------------------------------------------------------------------------------------------------


class LongReadEnv(ToolEnv):
    """LongRead: read a ledger page by page, remember what matters, answer a question about it.

    ## Description
    A seeded generator writes a ledger of `pages` pages: holders of items, and balances of persons. Later
    entries replace earlier ones. Each page is shown once, so that the agent meets what the question needs once, among
    other entries, and must use it many turns later. Five types of questions: the last holder of an item, the last
    balance of a person, how often either changed, the sum of two balances, the balance of the holder of an item. Gold
    answers are computed from the entries. No question is about an entry of the last page. Compact pages hold as many
    entries about items as about persons, as far as the question permits.

    Three ways to play, see `docs/worlds.md`: with the whole history; with a `ContextWindow` and notes; with a summary
    that the model writes.

    ## Tools
    `next_page()`: the next page; beyond the last one, an end mark. `note(text: string)`: adds a note to the
    notebook of the episode, which holds at most `max_notes` notes of `note_chars` characters. `recall(query: string)`:
    the notes that contain the words of the query, all notes without one. `notebook=False` removes `note` and `recall`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`, except for
    "search-r1", which supports one tool.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (none in compact style) and a user turn: the question, of a ledger drawn uniformly from the split.
    With `question_position="last"`, the question follows the last page instead.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals the gold answer,
    numbers by value, names after HotpotQA's normalisation, else 0; in compact style with or without the key before it.
    "f1", "agent_r1": as in `AgentR1/HotpotQA-v0`.
    ### Process
    Preset "process" adds to "em", each at most once per
    turn: valid_call +0.05 (first successful call of the episode), malformed_call -0.1 (the turn does not parse),
    failed_call -0.05 (unknown tool, bad arguments, a rejected note), noted_fact +0.2 x the share of the facts behind
    the answer that are noted for the first time, after they were read. The reward of a step is between -0.15 and 1.25.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `type` and `updates` (of the first key of the question).

    ## Arguments
    `world_seed=0`, `questions=2000`, `split="train"` ("validation" and "test": no item and no person of another split;
    in compact style, whose splits share all words, no pair of key and last value that another split asks for),
    `style="natural"` or "compact" (23 words and numbers, for tiny models), `pages=None` (8; compact: 3; 2 to 32),
    `facts=None` (entries per page: 6; compact: 2; 2 to 12), `updates=None` (maximum number of changes of a requested
    value: 3; compact: 1; 0 to `pages` - 2), `types=None` (question types: "holder", "balance", "changes", "sum",
    "balance_of_holder"; compact: the first two), `question_position="first"` or "last", `notebook=True`,
    `max_notes=32`, `note_chars=500`, `max_turns=None` (what the oracle needs at most, and one or two more: 2 `pages` +
    2, with `question_position="last"` or "balance_of_holder" 2 `pages` + 4), `reward="em"`. The rest: see `ToolEnv`.

    ## References
    MemAgent (arXiv 2507.02259), for a memory that replaces the context. The generator is part of this package
    (`envs/long_read/`).

    ## Version History
    v0: first release.
    """

    held_out_splits: Sequence[str] = ("validation", "test")
    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "dataset", "fields")
    reward_presets = PRESETS
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = SCRIPTS
    instructions: ClassVar[str] = (
        "Answer a question about a ledger, which you read one page at a time.\n"
        "1. Call next_page until you have read the last page. Each page is shown only once, and earlier pages may "
        "disappear from your context.\n"
        "2. After each page, write down the entries that the question is about.\n"
        "3. Entries change: the last entry about an item or a person is the current one.\n"
        "4. Answer with the name or the number alone, for example: 412"
    )

    def __init__(
        self,
        *,
        world_seed: int = 0,
        questions: int = 2_000,
        split: str = "train",
        style: str = "natural",
        pages: int | None = None,
        facts: int | None = None,
        updates: int | None = None,
        types: Sequence[str] | None = None,
        question_position: str = "first",
        notebook: bool = True,
        max_notes: int = 32,
        note_chars: int = 500,
        max_turns: int | None = None,
        **options: Any,
    ) -> None:
        size: dict[str, Any] = {"pages": pages, "facts": facts, "updates": updates, "types": types}
        self.ledgers = LedgerTasks(questions, seed=world_seed, split=split, style=style, **size)
        check_choice("question_position", question_position, _QUESTION_POSITIONS)
        check_flag("notebook", notebook)
        self.question_last, self.has_notebook = question_position == "last", notebook
        self.ledger_style = STYLES[style]
        note_style = "plain" if style == "compact" else "numbered"
        self._notebook = notebook_tools(max_notes=max_notes, max_chars=note_chars, style=note_style) if notebook else ()
        config = self.ledgers.config
        spare = 4 if self.question_last or "balance_of_holder" in config.types else 2
        super().__init__(
            tasks=self.ledgers,
            tools=self.make_tools(self.ledgers[0]),
            max_turns=2 * config.pages + spare if max_turns is None else max_turns,
            **{"scorer": "long_read", **(_COMPACT if style == "compact" else {}), **options},
        )

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Makes a tool that reads the ledger of a task; the notebook comes along."""
        if not isinstance(task, LedgerTask):
            raise ConfigurationError(f"LongRead needs a LedgerTask, got a {type(task).__name__}.")
        end = "end" if self.ledger_style.name == "compact" else "That was the last page."
        if self.question_last:
            end = f"{end} {task.prompt}"
        return [PageTool(task.pages, task.facts, end), *self._notebook]

    def task_prompt(self, task: Task) -> str:
        """The question, or a notice that it comes after the last page."""
        if not self.question_last:
            return task.prompt
        if self.ledger_style.name == "compact":
            return "end"
        return "Read the ledger to its last page. You will get the question after that page."

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """The next turn of a reader who takes notes; without a notebook, of one who reads the whole history.

        It uses the question, the entries in the last tool output and, after `recall`, its notes; nothing else, so that
        it can play below a window that keeps only the last turn. With `question_position="last"`, the question is in
        the output before the last one.
        """
        if not isinstance(task, LedgerTask):
            return super().oracle(task, history)
        return (_with_notes if self.has_notebook else _without_notes)(self, task, history)

    def describe_dataset(self) -> str:
        """Split, number, style, size and seed of the ledgers."""
        return self.ledgers.describe()

    # What the scripts know about their reading.

    def is_after_last(self, page: Page) -> bool:
        """Whether a page ends the reading: the last page, or what follows it if that holds the question."""
        return page.number >= page.total + self.question_last

    def relevant_facts(self, task: LedgerTask, page: Page) -> list[Fact]:
        """The entries of a page that a reader must remember; all of them while the question is unknown."""
        return [fact for fact in page.facts if self.question_last or task.question.needs_fact(fact)]

    def note_text(self, task: LedgerTask, facts: Sequence[Fact]) -> str:
        """Words entries as a note; without any, that nothing is known about the keys of the question."""
        return self.ledger_style.note(facts or [Fact(key, NOTHING) for key in task.question.keys])

    def answer_from(self, task: LedgerTask, facts: Sequence[Fact]) -> str:
        """Answers from known entries, in order; guesses, always the same, where they do not suffice."""
        answer = answer_of(task.question, facts)
        if answer is None:
            facts = tuple(self._guessed_facts(task))
            answer = str(answer_of(task.question, facts))
        return self.ledger_style.answers(task.question, answer, support_of(task.question, facts))[0]

    def _guessed_facts(self, task: LedgerTask) -> Iterator[Fact]:
        rng, config, question = random.Random(f"{task.id} guess"), self.ledgers.config, task.question
        persons = self.ledger_style.persons[config.split]
        values = persons if question.is_about_item else self.ledger_style.balances
        for key in question.keys:
            for _ in range(1 + rng.randint(0, config.updates) * (question.type == "changes")):
                value = rng.choice(values)
                yield Fact(key, value)
        if question.type == "balance_of_holder":
            yield Fact(value, rng.choice(self.ledger_style.balances))
