"""Players without a model: a reward that one of them gets is a reward for nothing.

Each is a `Policy`, so `agent-r1 eval ENV --policy agent_r1_gym.audit.players:EchoPrompt` plays one on its own. In a
`ToolEnv` they write calls and answers in its format. In another environment they write an answer in all the forms that
graders look for, since its format is not known, and take actions that it lists. The players of `derived` speak it.
"""

from __future__ import annotations

import abc
import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.core.text import sanitize
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.env_checker import IDLE
from agent_r1_gym.run.policies import Policy, PolicyInput

_SAMPLED_TASKS = 100
"""Tasks whose answers are counted for the most frequent one."""
_MAX_ANSWER = 2_000
_WORD = re.compile(r"\w[\w-]*")
_EXAMPLE = re.compile(r"\\boxed\{[^{}\n]{1,40}\}|\[[^\[\]\n]{1,40}\]|`[^`\n]{1,40}`")
_NUMBER = re.compile(r"\d+|\b(?:[a-z]|row|col|column|index|number)\b")
"""A number of an example, or a word that stands for one."""
_PLACE_FORM = r"<[\w -]+>|\[<?[\w -]+>?\]|\{[\w -]+\}|[A-Z][A-Z_]+\b"
_PLACE = re.compile(_PLACE_FORM)
_COMMAND = re.compile(rf"\s*[-*`]?\s*([a-z][\w-]*)((?: (?:{_PLACE_FORM}))*)(.*)")
"""A line that describes a command: its word, places for arguments, and what follows, such as an explanation."""
_LISTED_SHARE, _COMMAND_SHARE = 0.75, 0.5
_QUOTED = re.compile(r"['\"](\w[\w ]{0,20})['\"]")
_LARGEST = 9


class TrivialPlayer(Policy):
    """Base class: a player that does not solve the task.

    Attributes:
        means: what it means if such a player is rewarded.
        is_idle: whether it neither acts nor gives an answer with any content.
        is_chance: whether a good score is the base rate of guessing, and so is reported rather than failed.
    """

    means: ClassVar[str]
    is_idle: ClassVar[bool] = False
    is_chance: ClassVar[bool] = False

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return one action per input, in order."""
        return [self.turn(state) for state in inputs]

    @abc.abstractmethod
    def turn(self, state: PolicyInput) -> str:
        """Return the next turn."""


class NoOp(TrivialPlayer):
    """Writes a sentence that neither acts nor answers, in every turn."""

    name = "no_op"
    means = "doing nothing is rewarded"
    is_idle = True

    def turn(self, state: PolicyInput) -> str:
        """Return the sentence."""
        return IDLE


class Empty(TrivialPlayer):
    """Writes nothing, in every turn."""

    name = "empty"
    means = "an empty turn is rewarded"
    is_idle = True

    def turn(self, state: PolicyInput) -> str:
        """Return an empty turn."""
        return ""


class Refusing(TrivialPlayer):
    """Answers that it cannot help."""

    name = "refusing"
    means = "refusing is rewarded"
    is_idle = True

    def turn(self, state: PolicyInput) -> str:
        """Return the refusal, as the answer."""
        return answer(state, "I am sorry, but I cannot help with that.")


class FormatOnly(TrivialPlayer):
    """Answers in the right format, with nothing in it."""

    name = "format_only"
    means = "the format alone is rewarded, without a right answer"
    is_idle = True

    def turn(self, state: PolicyInput) -> str:
        """Return an answer without content."""
        return answer(state, "x")


class EchoPrompt(TrivialPlayer):
    """Answers with the text of the task."""

    name = "echo_prompt"
    means = (
        "repeating the question is rewarded: the answer is in the prompt, or the grader looks for it inside longer "
        "texts"
    )

    def turn(self, state: PolicyInput) -> str:
        """Return the prompt as the answer."""
        prompt = next((m.content for m in reversed(state.messages[:2]) if m.role == "user"), state.observation)
        return answer(state, state.task.prompt if state.parser is not None else prompt)


class EchoToolOutput(TrivialPlayer):
    """Calls one tool with words of the task, then answers with all that it returned."""

    name = "echo_tool_output"
    means = "repeating a tool's output is rewarded: the grader looks for the answer inside longer texts"

    def turn(self, state: PolicyInput) -> str:
        """Return the call, then the answer."""
        if state.turn == 0 and state.turns_left > 1 and (call := random_call(state, from_prompt=True)) is not None:
            return call
        output = [message.content for message in state.messages if message.role == "tool"]
        return answer(state, output[-1] if output else state.observation[-_MAX_ANSWER:])


class RepeatCall(TrivialPlayer):
    """Repeats one valid call, or one listed action, until the end."""

    name = "repeat_call"
    means = "calls are rewarded, whatever they are for"

    def turn(self, state: PolicyInput) -> str:
        """Return the same action every time."""
        if state.actions:
            return min(state.actions)
        return random_call(state, turn=0) or answer(state, "x")


class ListedAction(TrivialPlayer):
    """Base class: takes the listed action at one position of `info["actions"]`.

    Attributes:
        position: index of the action.
    """

    means = "the order of the listed actions gives the right one away"
    position: ClassVar[int]

    def turn(self, state: PolicyInput) -> str:
        """Return the action."""
        return state.actions[self.position] if state.actions else answer(state, "x")


class FirstListed(ListedAction):
    """Takes the first listed action, in every turn."""

    name = "first_listed"
    position = 0


class LastListed(ListedAction):
    """Takes the last listed action, in every turn."""

    name = "last_listed"
    position = -1


class RandomCall(TrivialPlayer):
    """Makes random valid calls, or takes random listed actions and commands; guesses a word of the task at the end.

    Of listed actions, it draws the first word first, so that the many forms of one command do not crowd out the
    others. In an environment other than a `ToolEnv`, some of its turns are answers, and commands that the prompt
    describes (`logs <service>`), with words that it has read, since a list rarely has those with free text.
    """

    name = "random_call"
    means = "random valid actions are rewarded: this is the chance level of the task"
    is_chance = True

    def turn(self, state: PolicyInput) -> str:
        """Return a random action, which depends on task and turn only."""
        chosen = _random(state)
        forms = prompt_commands(_opening(state)) if state.parser is None else []
        if state.actions and chosen.random() < _LISTED_SHARE:
            groups = by_first_word(state.actions)
            return chosen.choice(groups[chosen.choice(list(groups))])
        if forms and chosen.random() < _COMMAND_SHARE:
            return _command(*chosen.choice(forms), state, chosen)
        call = random_call(state) if state.turns_left > 1 else None
        return call or answer(state, chosen.choice(_WORD.findall(state.task.prompt)[-30:] or ["x"]))


class Touring(Policy):
    """Takes each listed action and each command of the prompt in turn, one of each first word after the other.

    So episodes of several tasks have turns in common, which meet what one of them has left to another.

    Args:
        last: first words that end an episode, and so come last.
    """

    name = "touring"

    def __init__(self, last: Collection[str] = ()) -> None:
        self._last = last

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return one action per input, in order."""
        return [self._turn(state) for state in inputs]

    def _turn(self, state: PolicyInput) -> str:
        listed, forms = by_first_word(state.actions), dict(prompt_commands(_opening(state)))
        words = [word for word in dict.fromkeys((*sorted(listed), *forms)) if word not in self._last]
        if not words:
            return answer(state, "x")
        number, position = divmod(state.turn, len(words))
        word = words[position]
        if word in listed:
            return listed[word][number % len(listed[word])]
        return _command(word, forms[word], state, random.Random(state.turn))


def by_first_word(actions: Sequence[str]) -> dict[str, list[str]]:
    """Group actions by their first word, sorted."""
    groups: dict[str, list[str]] = {}
    for action in sorted(actions):
        groups.setdefault(action.partition(" ")[0], []).append(action)
    return groups


class NotANumber(TrivialPlayer):
    """Answers `nan`."""

    name = "not_a_number"
    means = "`nan` is rewarded: no comparison with it is true, so a grader that looks for a difference finds none"

    def turn(self, state: PolicyInput) -> str:
        """Return the answer."""
        return answer(state, "nan")


class PromptExample(TrivialPlayer):
    """Writes an example that the prompt gives, such as `[A 5]`, with other numbers."""

    name = "prompt_example"
    means = "random turns of the form that the prompt shows are rewarded: this is the chance level of the task"
    is_chance = True

    def turn(self, state: PolicyInput) -> str:
        """Return an example with random numbers, which depends on task and turn only."""
        found, chosen = prompt_examples(_opening(state)) if state.parser is None else [], _random(state)
        if not found:
            return answer(state, "x")

        def other(match: re.Match[str]) -> str:
            number = match[0].isdigit()
            if not number and chosen.random() < 0.5:  # a letter may stand for a number, or for itself
                return match[0]
            return str(chosen.randint(0, max(_LARGEST, int(match[0])) if number else _LARGEST))

        example = chosen.choice(found)
        if _NUMBER.search(example) or _WORD.search(example.removeprefix("\\boxed")):
            return _NUMBER.sub(other, example)
        return example.replace("...", chosen.choice([*_QUOTED.findall(_opening(state)), str(chosen.randint(0, 20))]))


class OneNumber(TrivialPlayer):
    """Writes an example that the prompt gives, with one number in all places."""

    name = "one_number"
    means = "naming one thing several times is rewarded"

    def turn(self, state: PolicyInput) -> str:
        """Return the example."""
        found = prompt_examples(_opening(state)) if state.parser is None else []
        places = [example for example in found if len(_NUMBER.findall(example)) > 1]
        return _NUMBER.sub("1", places[0]) if places else answer(state, "x")


def prompt_examples(opening: str) -> list[str]:
    """List what a prompt shows in square brackets, a LaTeX box or backticks: turns that a game may understand."""
    return list(dict.fromkeys(match[0].strip("`") for match in _EXAMPLE.finditer(opening)))


def prompt_commands(opening: str) -> list[tuple[str, list[str]]]:
    """List the commands that lines of a prompt describe with places for arguments, such as `logs <service>`.

    Returns:
        The first word of each such line, and its places; also lines of one word next to them, such as `look`.
    """
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_COMMAND.match, opening.splitlines())):
        places = _PLACE.findall(match[2])
        if places or not match[3].strip() or match[3].startswith("  "):
            found.setdefault(match[1], places)
    return list(found.items()) if any(found.values()) else []


def _command(word: str, places: Sequence[str], state: PolicyInput, chosen: random.Random) -> str:
    read = "\n".join(message.content for message in state.messages if message.role != "assistant")
    written = [place for place in places if place[0] != "[" or chosen.random() < 0.5]  # which may be left out
    return " ".join([word, *(chosen.choice(_fitting(place, read)) for place in written)])


def _fitting(place: str, read: str) -> list[str]:
    """List words for a place of a command: those after its name and a colon (`Services: auth, mailer`), or all."""
    name = re.escape(place.strip("<[{}]>").lower())
    lists = [text.split(",") for text in re.findall(rf"\b{name}(?:s|es)?\b[^:\n]*:([^\n]*)", read, re.IGNORECASE)]
    words = [word.strip(" .") for words in lists if len(words) > 1 for word in words]
    return words or _WORD.findall(read)


def _opening(state: PolicyInput) -> str:
    shown = (message.content for message in state.messages[:2] if message.role != "assistant")
    return "\n".join(shown) or state.observation


class NoisyOracle(Policy):
    """Plays an oracle that errs: some of its turns are random valid calls or actions instead.

    Args:
        oracle: the policy that plays best.
        errors: share of random turns, from 0 to 1.
    """

    def __init__(self, oracle: Policy, errors: float) -> None:
        self.name = f"oracle with {errors:.0%} random turns"
        self._oracle, self._errors, self._random = oracle, errors, RandomCall()

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return one action per input, in order."""
        return [self._turn(state) for state in inputs]

    def _turn(self, state: PolicyInput) -> str:
        errs = random.Random(f"{state.task.id}/{state.turn}/{state.sample}/{self.name}").random() < self._errors
        return (self._random if errs else self._oracle).act([state])[0]


class ConstantAnswer(TrivialPlayer):
    """Answers every task alike.

    Args:
        name: name of the player.
        text: the answer.
    """

    means = "one answer to all tasks is rewarded"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    def turn(self, state: PolicyInput) -> str:
        """Return the answer."""
        return answer(state, self.text)


class MostFrequentAnswer(ConstantAnswer):
    """Answers every task with the most frequent gold answer: the base rate of a data set, such as "yes"."""

    means = "the most frequent answer is rewarded: this is the base rate of the data set"
    is_chance = True


class EveryAnswer(ConstantAnswer):
    """Answers every task with all gold answers of the data set, one after the other."""

    means = "an answer that lists every candidate is rewarded: the grader looks for the answer inside longer texts"


def players(env: ToolEnv | None) -> list[TrivialPlayer]:
    """Make the players for an environment.

    Args:
        env: the environment; None: it is no `ToolEnv`, so its answers are not known.
    """
    found: list[TrivialPlayer] = [
        *(NoOp(), Empty(), Refusing(), FormatOnly(), EchoPrompt(), EchoToolOutput(), RepeatCall(), RandomCall()),
        NotANumber(),
    ]
    if env is None:
        found += [PromptExample(), OneNumber(), FirstListed(), LastListed()]
    golds = gold_answers(env) if env is not None else []
    if env is not None and golds:
        counts = Counter(env.scorer.key(gold) for gold in golds)
        key, _ = counts.most_common(1)[0]
        frequent = next(gold for gold in golds if env.scorer.key(gold) == key)
        listed = ", ".join(dict.fromkeys(golds))[:_MAX_ANSWER]
        found += [MostFrequentAnswer("most_frequent_answer", frequent), EveryAnswer("every_answer", listed)]
    return found


def gold_answers(env: ToolEnv) -> list[str]:
    """List the first gold answer of tasks from all over the data set."""
    return [task.answers[0] for task in sampled_tasks(env) if task.answers]


def sampled_tasks(env: ToolEnv) -> list[Task]:
    """Draw up to 100 tasks from all over the data set, always the same ones."""
    size = len(env.tasks)
    return [env.tasks[index] for index in sorted(random.Random(0).sample(range(size), min(size, _SAMPLED_TASKS)))]


def answer(state: PolicyInput, text: str) -> str:
    """Write a final answer in the format of the environment; without one, in all the forms that graders look for."""
    text = sanitize(text)[:_MAX_ANSWER]
    return state.parser.format_answer(text) if state.parser is not None else answer_in_all_forms(text)


def answer_in_all_forms(text: str) -> str:
    """Write an answer in all the forms that graders look for."""
    return f"{text}\n<answer>{text}</answer>\n\\boxed{{{text}}}\n[{text}]"


def random_call(state: PolicyInput, *, from_prompt: bool = False, turn: int | None = None) -> str | None:
    """Write a call with random arguments that its schema allows; None if there is no tool.

    Args:
        state: what the player sees.
        from_prompt: use the prompt as text arguments, instead of some of its words.
        turn: position whose random numbers are used; None: that of `state`.
    """
    parser = state.parser
    tools = [tool for tool in state.tools if parser is not None and parser.can_call(tool)]
    if not tools or parser is None:
        return None
    chosen = _random(state, turn)
    function = chosen.choice(tools)["function"]
    words = _WORD.findall(state.task.prompt) or ["x"]
    texts = [state.task.prompt] if from_prompt else [*words, " ".join(words[-5:])]
    return parser.format_call(ToolCall(function["name"], _arguments(function["parameters"], chosen, texts)))


def _arguments(schema: Mapping[str, Any], chosen: random.Random, texts: Sequence[str]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), schema.get("required", ())
    names = [name for name in properties if name in required or chosen.random() < 0.3]
    return {name: _value(properties[name], chosen, texts) for name in names}


def _value(schema: Mapping[str, Any], chosen: random.Random, texts: Sequence[str]) -> Any:
    """Draw a value that plain JSON schemas accept."""
    if schema.get("enum"):
        return chosen.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return _value(branches[0], chosen, texts)
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        return _arguments(schema, chosen, texts)
    if kind == "array":
        return [_value(schema.get("items", {}), chosen, texts) for _ in range(max(1, schema.get("minItems", 1)))]
    if kind in ("integer", "number"):
        low = schema.get("minimum", 1)
        return chosen.randint(int(low), int(max(low, schema.get("maximum", low + 9))))
    if kind in ("boolean", "null"):
        return chosen.random() < 0.5 if kind == "boolean" else None
    return chosen.choice(texts)


def _random(state: PolicyInput, turn: int | None = None) -> random.Random:
    return random.Random(f"{state.task.id}/{state.turn if turn is None else turn}/{state.sample}")
