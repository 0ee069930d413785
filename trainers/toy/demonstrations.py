"""Imperfect demonstrations: an agent that knows the format and how to read, but calls badly.

They stand in for an instruct model: what reinforcement learning can teach afterwards is which of these habits pays.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from agent_r1_gym.core.types import Message
from agent_r1_gym.data.base import Hop, Question
from agent_r1_gym.envs.fiction_qa.compact_style import COMPACT
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.tools.search import NOTHING_FOUND
from trainers.toy.model import ANSWER_CLOSE, ANSWER_OPEN, BROKEN_CLOSES, CALL_CLOSE, CALL_OPEN, THINK_CLOSE, THINK_OPEN

QUESTION_MIX: Mapping[str, float] = {"1hop": 0.2, "bridge": 0.35, "3hop": 0.15, "comparison": 0.3}
"""Question types of the warm start; without one-hop questions the policy would always search twice."""

NOTHING = "nothing"
"""Value noted for a name whose passage is not in the search result."""

Script = Generator[str, str, None]
"""Yields the turns of a demonstrator; is sent the environment's reply to each."""


@dataclass(frozen=True)
class Habits:
    """How often the demonstrator plays each habit: weights, in any unit."""

    full_chain: float = 0.12
    """Searches for one fact after the other, then answers: the only habit that solves multi-hop questions."""
    stops_early: float = 0.44
    """The same, but answers with the result of an earlier search."""
    malformed_call: float = 0.12
    """One of the two above, but one call is malformed and is repeated after the error."""
    direct_answer: float = 0.08
    """Answers without a search, with a name from the question."""
    question_as_query: float = 0.04
    """The full chain, but the first search is for the whole question."""
    retrieve_once: float = 0.20
    """Searches for the whole question once and answers with a value from the result (Naive RAG)."""
    wanders: float = 0.0
    """Searches for the first fact, then for the requested fact of a wrong name or a wrong fact of the right name."""

    def draw(self, rng: random.Random) -> str:
        """Sample a habit."""
        names = [field.name for field in fields(self)]
        return rng.choices(names, [getattr(self, name) for name in names])[0]


@dataclass(frozen=True)
class PersistentHabits(Habits):
    """Habits with persistence as one more."""

    looks_again: float = 0.0
    """The full chain, but repeats a search that returned other passages; all other habits give up there."""


IMPERFECT = Habits()
IMPERFECT_HABITS: Mapping[str, Habits] = {
    **dict.fromkeys(("1hop", "bridge", "3hop", "4hop"), IMPERFECT),
    "comparison": replace(IMPERFECT, full_chain=0.6),
}
"""Habits by question type. Only a full chain shows how two values compare, and that takes many examples."""


def demonstrations(
    *,
    seed: int,
    mix: Mapping[str, float] = QUESTION_MIX,
    habits: Mapping[str, Habits] = IMPERFECT_HABITS,
    entities: int = 200,
    per_world: int = 16,
    notes: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[list[Message]]:
    """Yield demonstrations without end, as full histories of FictionQA in compact style.

    Args:
        seed: seed of worlds and demonstrations.
        mix: question type to weight, see `fiction_dataset`.
        habits: habits of the demonstrator by question type.
        entities: size of each world.
        per_world: demonstrations, one question each, before the next world; a model memorises the answers of a
            world that stays, and does not learn to read.
        notes: see `demonstrate`.
        options: further options of `FictionQAEnv`.
    """
    rng = random.Random(f"demonstrations/{seed}")
    while True:
        world: dict[str, Any] = {
            "world_seed": rng.getrandbits(48),
            "entities": entities,
            "questions": per_world,
            "mix": mix,
        }
        env = FictionQAEnv(style="compact", **world, **options)
        for index in rng.sample(range(per_world), per_world):
            habit = habits[env.dataset[index].type].draw(rng)
            yield demonstrate(env, index, habit=habit, rng=rng, notes=notes)


def demonstrate(env: FictionQAEnv, index: int, *, habit: str, rng: random.Random, notes: bool = False) -> list[Message]:
    """Play one episode and return its history.

    Args:
        env: FictionQA in compact style.
        index: index of the question.
        habit: field of `Habits` to play.
        rng: random generator of the habit.
        notes: whether each turn after a search begins with a thought about the result, such as
            `birthplace of ana kovic : eno daburg`, or `: nothing` if the passage is missing.
    """
    # The environment draws which searches miss; drawn from `rng`, it would shift what the habits draw.
    seed = random.Random(f"{env.dataset.fingerprint}/{index}").getrandbits(31)
    env.reset(seed=seed, options={"task_index": index})
    question, remark = env.dataset[index], ""
    script = _SCRIPTS[habit](question, rng)
    action = next(script)
    while True:
        _, _, terminated, truncated, info = env.step(_remark(remark, action))
        if terminated or truncated:
            return list(info["messages"])
        reply = info["new_messages"][-1].content
        last, action = action, script.send(reply)
        if notes and not reply.startswith("error "):  # after an error the turn is repeated, with the earlier note
            remark = _what_was_read(question, last, reply, action)


def format_note(relation: str, name: str, value: str) -> str:
    """Format a note, `relation of name : value`."""
    return f"{relation} of {name} : {value}"


def _follow(question: Question, searches: int, rng: random.Random, *, looks_again: bool = False) -> Script:
    """Search for the first facts of the question, then answer; with fewer `searches` than hops, too early.

    A search without results is repeated or, as often, the last; so is one without the passage that it was for, unless
    the demonstrator `looks_again`. The answer is then the name searched for, since nothing else is known.
    """
    for done in range(searches):
        thought = _think(_what_is_left(question, done)) if done else ""
        name = _stated(question, done)
        while not _about(name, reply := (yield thought + _call(name))):
            gives_up = rng.random() < 0.5 if reply == NOTHING_FOUND else not looks_again
            if gives_up:
                yield _answer(name)
    if searches < len(question.decomposition):
        yield _answer(question.decomposition[searches - 1].answer)
    else:
        yield _verdict(question) + _answer(question.answers[0])


def _full_chain(question: Question, rng: random.Random) -> Script:
    return _follow(question, len(question.decomposition), rng)


def _looks_again(question: Question, rng: random.Random) -> Script:
    return _follow(question, len(question.decomposition), rng, looks_again=True)


def _stops_early(question: Question, rng: random.Random) -> Script:
    return _follow(question, rng.randrange(1, max(2, len(question.decomposition))), rng)


def _malformed_call(question: Question, rng: random.Random) -> Script:
    script = rng.choice((_full_chain, _stops_early))(question, rng)
    slip = rng.randrange(2)
    action = next(script)
    for turn in itertools.count():
        if turn == slip and action.endswith(CALL_CLOSE):
            yield action.removesuffix(CALL_CLOSE) + rng.choice(BROKEN_CLOSES)
        action = script.send((yield action))


def _direct_answer(question: Question, rng: random.Random) -> Script:
    yield _answer(_subject(question.decomposition[0]))


def _question_as_query(question: Question, rng: random.Random) -> Script:
    script = _full_chain(question, rng)
    next(script)
    action = _call(_bare(question))
    while True:
        action = script.send((yield action))


def _retrieve_once(question: Question, rng: random.Random) -> Script:
    reply = yield _call(_bare(question))
    title = _subject(question.decomposition[0])
    yield _answer(_read(_about(title, reply) or reply, question.metadata["path"]) or title)


def _wanders(question: Question, rng: random.Random) -> Script:
    first = _subject(question.decomposition[0])
    facts = _facts(_about(first, (yield _call(first))))
    if not facts:  # the first passage only mentions the name
        yield _answer(first)
        return
    relation, wanted = _astray(facts, tuple(question.metadata["path"]), rng)
    name = facts[relation]
    there = _facts((yield _think(f"{wanted} of {name}") + _call(name)))
    candidates = [there.get(wanted, rng.choice([*there.values()])), name, first]
    yield _answer(next(value for value in candidates if value not in question.answers))


_SCRIPTS: Mapping[str, Callable[[Question, random.Random], Script]] = {
    "full_chain": _full_chain,
    "stops_early": _stops_early,
    "malformed_call": _malformed_call,
    "direct_answer": _direct_answer,
    "question_as_query": _question_as_query,
    "retrieve_once": _retrieve_once,
    "wanders": _wanders,
    "looks_again": _looks_again,
}


def _subject(hop: Hop) -> str:
    """Subject of a hop; in compact style also the title of its passage."""
    return hop.title or ""


def _stated(question: Question, done: int) -> str:
    """Name to search for after `done` searches, as the question or a passage stated it."""
    hops = question.decomposition
    return hops[done - 1].answer if done and question.type != "comparison" else _subject(hops[done])


def _call(query: str) -> str:
    return f"{CALL_OPEN}{query}{CALL_CLOSE}"


def _answer(text: str) -> str:
    return f"{ANSWER_OPEN}{text}{ANSWER_CLOSE}"


def _think(text: str) -> str:
    return f"{THINK_OPEN}{text}{THINK_CLOSE}"


def _bare(question: Question) -> str:
    return question.prompt.removesuffix(" ?")


def _what_is_left(question: Question, done: int) -> str:
    """Remaining question, with the results of `done` searches substituted.

    `birthyear of #1`, with #1 read; comparisons: `later 1809 or birthyear of ana kovic`, at last `later 1809 or 1804`.
    """
    path, hops = question.metadata["path"], question.decomposition
    if question.type != "comparison":
        return " of ".join([*reversed(path[done:]), _stated(question, done)])
    word = question.prompt.split()[0]
    sides = [hop.answer if position < done else f"{path[0]} of {_subject(hop)}" for position, hop in enumerate(hops)]
    return f"{word} {(' and ' if word == 'same' else ' or ').join(sides)}"


def _what_was_read(question: Question, search: str, reply: str, action: str) -> str:
    """Note of what `action` takes from the reply to `search`; "" if the search had no results."""
    query = search.rpartition(CALL_OPEN)[2].removesuffix(CALL_CLOSE)
    name = " ".join(query.split()[-2:])  # a question ends in a name too
    facts, path = _facts(_about(name, reply)), question.metadata["path"]
    if reply == NOTHING_FOUND:
        return ""
    if not facts:
        stated = [_stated(question, done) for done in range(len(path))]
        return format_note(path[stated.index(name)], name, NOTHING)
    used = (relation for relation in reversed(path) if relation in facts and facts[relation] in action)
    return next((format_note(relation, name, facts[relation]) for relation in used), "")


def _remark(remark: str, action: str) -> str:
    """Put a remark before the thought of `action`."""
    if not remark:
        return action
    rest = action.removeprefix(THINK_OPEN)
    return f"{THINK_OPEN}{remark} . {rest}" if rest != action else _think(remark) + action


def _verdict(question: Question) -> str:
    """Thought before the answer: comparisons weigh the two values, other questions need none."""
    if question.type != "comparison":
        return ""
    titles = [_subject(hop) for hop in question.decomposition]
    answer = question.answers[0]
    found = f"#{titles.index(answer) + 1}" if answer in titles else answer
    return _think(f"{_what_is_left(question, len(titles))} : {found}")


def _read(passage: str, path: tuple[str, ...]) -> str:
    """Value of the last relation of `path` that a compact passage states; "" if it states none."""
    facts = _facts(passage)
    return next((facts[relation] for relation in reversed(path) if relation in facts), "")


def _about(name: str, reply: str) -> str:
    """Passage of a reply with this title or alias; "" if there is none."""
    passages = reply.split("\n")
    return next((text for text in passages if text.startswith(f"{name} :") or f" or {name} " in text), "")


def _facts(passage: str) -> dict[str, str]:
    """Facts of a compact passage, by relation."""
    title, _, text = passage.partition(" : ")
    stated = text.removeprefix(title)
    if stated.startswith(" or "):
        stated = " ".join(stated.split()[3:])  # another name
    clauses = stated.replace(",", ".").split(".")
    return {words[0]: " ".join(words[1:]) for words in map(str.split, clauses) if words}


def _astray(facts: Mapping[str, str], path: tuple[str, str], rng: random.Random) -> tuple[str, str]:
    """Two relations to follow from an entity with these `facts`, just one of them from `path`."""
    right, requested = path
    kinds = COMPACT.relations.values()  # kind of entity -> relation -> kind of its value
    targets = next(relations for relations in kinds if relations.keys() == facts.keys())
    others = [relation for relation, kind in targets.items() if kind in COMPACT.kinds and relation != right]
    if others and rng.random() < 0.5:
        return rng.choice(others), requested
    return right, rng.choice([wanted for wanted in COMPACT.relations[targets[right]] if wanted != requested])
