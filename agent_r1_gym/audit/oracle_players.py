"""Players made of the oracle's turns: they speak the language of an environment whose format is not known.

A plain environment may understand a few commands only. Players that write sentences and answers then test its error
message. The turns of its oracle are valid; rearranged without knowledge of the task, they must not be rewarded like it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1_gym.audit.findings import COMMANDS, EFFECTS, LEAST_EFFECT, ORACLE, SPEAK
from agent_r1_gym.audit.players import Empty, NoOp, answer_in_all_forms, players, prompt_examples
from agent_r1_gym.audit.subject import Episode, Subject, is_finite
from agent_r1_gym.run.session import Job

_LEAST_ENDINGS = 5
"""Different last turns that must be known before naming all of them is more than a good guess."""
_LEAST_CANDIDATES = 3
_MAX_REPEATS = 10
_MAX_TURNS, _MAX_FORMS = 40, 24
_LONGEST_WORD, _MAX_COMMANDS = 30, 50
ODD_VALUES = (
    *("nan", "inf", "-1", "0", "1e400", "9" * 400, "null", "[]", "{}", '{"a": 1}', "[[]]", "[1, null]", "x" * 5_000),
    *("(" * 3_000, "1/0", "٣", "½", "1,000,000.5", '"', "\\", "True"),
)
"""Answers that are no number, no list, or none that fits where one is expected."""
_WORD = re.compile(r"\w+")
Plan = Callable[[Sequence[Episode], int, int | None], list[str] | None]
"""Makes the turns for the task at a position, from the oracle's episodes and the limit of turns; None: not possible."""


@dataclass(frozen=True, slots=True)
class DerivedPlayer:
    """A player that rearranges the oracle's turns.

    Attributes:
        name: its name.
        does: what it does.
        means: what it means if it is rewarded.
        plan: makes its turns.
        chance: share of tasks that it may solve by chance.
        how: in what way it repeats a turn, for the finding.
    """

    name: str
    does: str
    means: str
    plan: Plan
    chance: float = 0.0
    how: str = ""


def _other_task(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
    own = oracle[position].actions
    others = (oracle[(position + step) % len(oracle)].actions for step in range(1, len(oracle)))
    return next((other for other in others if other and other != own), None)


def _wrong_ending(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
    *earlier, own = oracle[position].actions
    others = (oracle[(position + step) % len(oracle)].actions[-1:] for step in range(1, len(oracle)))
    return next(([*earlier, *ending] for ending in others if ending and ending != [own]), None)


def markup_of_answers(oracle: Sequence[Episode]) -> tuple[str, str]:
    """Return the markup that all last turns of the oracle begin and end with, such as `<answer>` and `</answer>`."""
    endings = list({episode.actions[-1] for episode in oracle if episode.actions})
    if len(endings) < 2:
        return "", ""
    opening = _common_prefix(endings)
    closing = _common_prefix([ending[len(opening) :][::-1] for ending in endings])[::-1]
    opens, closes = re.match(r".*[>{]", opening, re.DOTALL), re.search(r"[<}].*", closing, re.DOTALL)
    return (opens[0], closes[0]) if opens and closes else ("", "")


def _common_prefix(texts: Sequence[str]) -> str:
    alike = itertools.takewhile(lambda characters: len(set(characters)) == 1, zip(*texts, strict=False))
    return "".join(characters[0] for characters in alike)


def _every_ending(separator: str) -> Plan:
    def plan(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
        *earlier, own = oracle[position].actions
        endings = list(dict.fromkeys(episode.actions[-1] for episode in oracle if episode.actions))
        if len(endings) < _LEAST_ENDINGS:
            return None
        opening, closing = markup_of_answers(oracle)
        others = [ending for ending in endings if ending != own]
        half = len(others) // 2  # the right one in the middle: reading the first or the last is not a fault
        every = [*others[:half], own, *others[half:]]
        inner = separator.join(each.removeprefix(opening).removesuffix(closing) for each in every)
        return [*earlier, f"{opening}{inner}{closing}"]

    return plan


def _mentioned(which: int) -> Plan:
    def plan(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
        *earlier, own = oracle[position].actions
        before, after = markup_of_answers(oracle)

        def words_of(ending: str) -> list[str]:
            return ending.removeprefix(before).removesuffix(after).split()

        opening, words = oracle[position].opening, words_of(own)
        endings = [words_of(episode.actions[-1]) for episode in oracle if episode.actions]
        replaced = False
        for column in range(len(words)):
            candidates = {ending[column] for ending in endings if len(ending) == len(words)}
            places = {word: re.search(rf"(?<!\w){re.escape(word)}(?!\w)", opening) for word in candidates}
            if len(candidates) >= _LEAST_CANDIDATES and all(places.values()):
                ordered = sorted(candidates, key=lambda word: places[word].start())  # type: ignore[union-attr]
                words[column], replaced = ordered[which], True
        return [*earlier, f"{before}{' '.join(words)}{after}"] if replaced else None

    return plan


def _not_a_number(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
    *earlier, own = oracle[position].actions
    changed = re.sub(r"-?\d+(?:\.\d+)?", "NaN", own)
    return [*earlier, changed] if changed != own else None


def _every_argument(oracle: Sequence[Episode], position: int, _limit: int | None) -> list[str] | None:
    *earlier, own = oracle[position].actions
    before, after = markup_of_answers(oracle)
    endings = [e.actions[-1].removeprefix(before).removesuffix(after).split() for e in oracle if e.actions]
    words, listed = own.removeprefix(before).removesuffix(after).split(), False
    for column in range(1, len(words)):
        others = {ending[column] for ending in endings if len(ending) == len(words)} - {words[column]}
        if len(others) + 1 >= _LEAST_CANDIDATES:
            half = len(others) // 2
            words[column] = ",".join([*sorted(others)[:half], words[column], *sorted(others)[half:]])
            listed = True
    return [*earlier, f"{before}{' '.join(words)}{after}"] if listed else None


def _repeat_rewarded(spellings: Callable[[str], list[str]]) -> Plan:
    def plan(oracle: Sequence[Episode], position: int, limit: int | None) -> list[str] | None:
        episode = oracle[position]
        actions, rewards = episode.actions, episode.rewards
        rewarded = next((n for n, reward in enumerate(rewards[:-1]) if is_finite(reward) and float(reward) > 0), None)
        if rewarded is None:
            return None
        room = _MAX_REPEATS if limit is None else min(_MAX_REPEATS, limit - len(actions))
        repeats = itertools.islice(itertools.cycle(spellings(actions[rewarded])), max(0, room))
        return [*actions[: rewarded + 1], *repeats, *actions[rewarded + 1 :]]

    return plan


def other_spellings(turn: str) -> list[str]:
    """Write a turn in other letters and with other spaces, each once; itself if it has no other form."""
    wide, capital = turn.replace(" ", "  "), turn[:1].swapcase() + turn[1:]
    forms = (turn.upper(), capital, wide, turn.title(), f" {turn}", f"{turn} ", wide.upper(), turn.swapcase())
    return [form for form in dict.fromkeys((*forms, f"  {turn}", f" {turn.upper()}")) if form != turn] or [turn]


OTHER_TASK = DerivedPlayer(
    "other_task",
    "Plays the oracle's turns for another task.",
    "the same turns solve several tasks: reported, since tasks may be alike; a warning if they solve all of them",
    _other_task,
    chance=1.0,
)
WRONG_ENDING = DerivedPlayer(
    "wrong_ending",
    "Plays the oracle's turns, but the last one of another task.",
    "the last turn does not matter: reported, and the players below are then not judged",
    _wrong_ending,
    chance=1.0,
)
REPEATING = (
    DerivedPlayer(
        "repeat_rewarded",
        "Plays the oracle's turns, and repeats the first one that is rewarded before the last.",
        "a turn is rewarded again and again, so that a model learns to repeat it (`reward_order`)",
        _repeat_rewarded(lambda turn: [turn]),
    ),
    DerivedPlayer(
        "respell_rewarded",
        "Plays the oracle's turns, and repeats the first one that is rewarded in other letters and with other spaces.",
        "a turn is rewarded again in each spelling, so that a model learns to repeat it (`reward_order`)",
        _repeat_rewarded(other_spellings),
        how=" in other letters and with other spaces",
    ),
)
MENTIONED = (
    DerivedPlayer(
        "first_mentioned",
        "Plays the oracle's turns, but in the last one takes the candidates that the prompt names first.",
        "the order of the candidates in the prompt gives the right one away",
        _mentioned(0),
        chance=1 / _LEAST_CANDIDATES,
    ),
    DerivedPlayer(
        "last_mentioned",
        "Plays the oracle's turns, but in the last one takes the candidates that the prompt names last.",
        "the order of the candidates in the prompt gives the right one away",
        _mentioned(-1),
        chance=1 / _LEAST_CANDIDATES,
    ),
)
GUESSING = (
    DerivedPlayer(
        "every_ending_in_words",
        "Plays the oracle's turns, but its last turn has those of all tasks, separated by spaces.",
        "a turn that names every candidate is rewarded",
        _every_ending(" "),
    ),
    DerivedPlayer(
        "every_ending_in_lines",
        "Plays the oracle's turns, but its last turn has those of all tasks, one a line.",
        "a turn with many commands is rewarded if any of them is right",
        _every_ending("\n"),
    ),
    DerivedPlayer(
        "every_argument_listed",
        "Plays the oracle's turns, but lists the candidates for each argument of the last one, separated by commas.",
        "a turn that names every candidate is rewarded",
        _every_argument,
    ),
    *MENTIONED,
    DerivedPlayer(
        "no_numbers",
        "Plays the oracle's turns, but writes `NaN` for each number of the last one.",
        "`NaN` is rewarded: no comparison with it is true, so a grader that looks for a difference finds none",
        _not_a_number,
    ),
)
DERIVED = (OTHER_TASK, WRONG_ENDING, *GUESSING, *REPEATING)


def derived_episodes(subject: Subject, player: DerivedPlayer) -> list[Episode]:
    """Return the episodes of a derived player, at most one per job; none in a `ToolEnv`, or without an oracle."""
    if subject.tool_env is not None or subject.oracle is None:
        return []
    oracle = subject.episodes(subject.oracle)
    known = [position for position, episode in enumerate(oracle) if episode.actions and episode.crash is None]
    plans = [(oracle[n].job, player.plan(oracle, n, subject.turn_limit)) for n in known]
    return subject.replays(player.name, [(job, plan) for job, plan in plans if plan is not None])


# --- malformed turns -------------------------------------------------------------------------------------------------


def malformed_turns(subject: Subject) -> list[str]:
    """Write turns that are nearly valid: words of known turns dropped, doubled, swapped and replaced.

    Known are the oracle's turns, the listed actions, and the words with which lines of the prompt begin: a prompt
    often lists its commands in this way.
    """
    oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
    idle = [episode for episode in subject.episodes(NoOp()) if episode.infos]
    known = [action for episode in oracle for action in episode.actions]
    listed = [actions for episode in idle if isinstance(actions := episode.infos[0].get("actions"), list | tuple)]
    known += [action for action in itertools.chain(*listed) if isinstance(action, str)]
    known += prompt_examples(idle[0].opening) if idle else []
    lines = [words for line in idle[0].opening.splitlines() if (words := line.split())] if idle else []
    forms: dict[str, str] = {}
    for turn in (*known, *(words[0] for words in lines)):
        if turn.strip():
            forms.setdefault(turn.split()[0], turn)
    chosen = list(forms.values())[:_MAX_FORMS]
    return list(dict.fromkeys(itertools.chain.from_iterable(map(_malformed, chosen))))


def odd_answers(subject: Subject) -> list[str]:
    """Write answers that graders stumble over, in the markup of the oracle's answers, or else in all forms."""
    oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
    opening, closing = markup_of_answers(oracle)
    return [f"{opening}{odd}{closing}" if opening else answer_in_all_forms(odd) for odd in ODD_VALUES]


def _malformed(turn: str) -> Iterator[str]:
    words = turn.split()
    yield words[0]
    yield " ".join(words[:-1])
    yield " ".join([*words, words[-1]])
    yield " ".join(reversed(words))
    yield re.sub(r"\d+", "0", turn)
    yield re.sub(r"\d+", "9" * 11, turn)
    for odd in ("x", "-1"):
        yield " ".join([*words[:-1], odd]) if len(words) > 1 else f"{turn} {odd}"
        yield f"{turn} {odd}"
    yield f"{words[0]} x x"


# --- coverage --------------------------------------------------------------------------------------------------------


def effects(subject: Subject) -> dict[str, Any]:
    """Measure how well each player speaks the language of a plain environment.

    Returns:
        Measured values, by name: for each player, and for the oracle, the share of its turns with an effect, and the
        first words of those turns. A turn has an effect if the environment answered or rewarded otherwise than after a
        sentence or an empty turn at the same position, did not end the episode alike, or raised. Empty for a
        `ToolEnv`, whose players write its format.
    """
    if subject.tool_env is not None:
        return {}
    if "effects" not in subject.memo:
        subject.memo["effects"] = _effects(subject)
    measured: dict[str, Any] = subject.memo["effects"]
    return measured


def _effects(subject: Subject) -> dict[str, Any]:
    nonsense = _nonsense(subject)
    played = {player.name: subject.episodes(player) for player in players(None) if not isinstance(player, NoOp | Empty)}
    played |= {player.name: derived_episodes(subject, player) for player in DERIVED}
    if subject.oracle is not None:
        played[ORACLE] = subject.episodes(subject.oracle)
    shares, words = {}, set[str]()
    for name, episodes in played.items():
        turns = [
            (episode.actions[position], all(_has_effect(episode, position, of_job[episode.job]) for of_job in nonsense))
            for episode in episodes
            if all(episode.job in of_job for of_job in nonsense)
            for position in range(min(len(episode.actions), _MAX_TURNS))
        ]
        if turns:
            shares[name] = round(sum(effect for _, effect in turns) / len(turns), 4)
            words |= {turn.split()[0].casefold()[:_LONGEST_WORD] for turn, effect in turns if effect and turn.split()}
    return {EFFECTS: shares, COMMANDS: sorted(words)[:_MAX_COMMANDS]}


def _nonsense(subject: Subject) -> list[dict[Job, Episode]]:
    """Return the episodes of a sentence and of empty turns by job, but not of the one that is paid more: it is a hack.

    An environment that pays it has understood it.
    """
    played = [subject.episodes(NoOp()), subject.episodes(Empty())]
    totals = [sum(episode.total for episode in episodes) for episodes in played]
    known = [episodes for episodes, total in zip(played, totals, strict=True) if total <= min(totals)]
    return [{episode.job: episode for episode in episodes} for episodes in known]


def _has_effect(episode: Episode, position: int, nonsense: Episode) -> bool:
    if position >= len(episode.flags):  # it raised, or returned what no step may return
        return len(nonsense.actions) == len(nonsense.flags) or position < len(nonsense.flags)
    # A game may end at the first turn that it does not understand, as it does after a sentence.
    if position >= len(nonsense.flags) or episode.flags[position] != nonsense.flags[position]:
        return True
    if repr(episode.rewards[position]) != repr(nonsense.rewards[position]):
        return True
    written = {*_WORD.findall(episode.actions[position]), *_WORD.findall(nonsense.actions[position])}
    texts = (episode.texts[position + 1], nonsense.texts[position + 1])  # feedback may quote the turn
    one, other = ([word for word in _WORD.findall(text) if word not in written] for text in texts)
    return one != other


def unspoken(subject: Subject, *, oracle_counts: bool = True) -> str:
    """Return why a clean verdict would mean little: no player wrote a turn with an effect; "" if one did.

    Args:
        subject: the environment.
        oracle_counts: whether turns of the oracle with an effect suffice.
    """
    shares: dict[str, float] = effects(subject).get(EFFECTS, {})
    known = [share for name, share in shares.items() if oracle_counts or name != ORACLE]
    if subject.tool_env is not None or max(known, default=0.0) >= LEAST_EFFECT:
        return ""
    if ORACLE in shares and oracle_counts:
        return "no turn, of the oracle neither, is answered otherwise than a sentence without meaning"
    return f"no player wrote a turn that the environment understands; {SPEAK}"
