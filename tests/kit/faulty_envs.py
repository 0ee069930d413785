"""Three small environments without a fault, and copies of them with one fault each, for the tests of the audit.

`FAULTS` names the rule that has to find each of them.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import mmap
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np

from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, Thought, ToolCall, Transition
from agent_r1_gym.envs.long_read.env import LongReadEnv
from agent_r1_gym.envs.maths.env import ArithmeticEnv
from agent_r1_gym.envs.service_desk.env import ServiceDeskEnv
from agent_r1_gym.envs.toy_text import FrozenLakeTextEnv
from agent_r1_gym.errors import InfrastructureError, ToolError

COUNTRIES = {
    **{"Norland": "Ostwick", "Sudland": "Harrow Bay", "Westmark": "Lindenau", "Eastmark": "Quarrel"},
    **{"Midway": "Bramble", "Farholm": "Tessin", "Nearholm": "Oakridge", "Highmoor": "Silverton"},
    **{"Lowmoor": "Pendle", "Coldbay": "Vexford"},
}  # fmt: skip


# --- a ToolEnv: one search, then the answer --------------------------------------------------------------------------


class Atlas(Tool):
    """Finds a sentence about a country."""

    def __init__(self, description: str = "Finds a sentence about a country.") -> None:
        text = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        super().__init__("atlas", description, text, timeout=None)

    def execute(self, arguments: Mapping[str, Any]) -> str:
        names = [name for name in COUNTRIES if name in arguments["query"]]
        return " ".join(f"{COUNTRIES[name]} is the capital of {name}." for name in names) or "Nothing was found."


class Capitals(ToolEnv):
    """Asks for capitals; the oracle looks them up."""

    def __init__(self, **options: Any) -> None:
        tasks = [Task(name, f"What is the capital of {name}?", (city,)) for name, city in COUNTRIES.items()]
        super().__init__(**{"tasks": tasks, "tools": [Atlas()], "max_turns": 4, **options})

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str:
        called = any(step.outcomes for step in history)
        return task.answers[0] if called else ToolCall("atlas", {"query": task.id})


class EvaluatesCalls(Capitals):
    """Has a tool that executes its argument."""

    def __init__(self) -> None:
        super().__init__(tools=[Calculator()])


class Calculator(Tool):
    """Computes a term by executing it."""

    def __init__(self) -> None:
        text = {"type": "object", "properties": {"term": {"type": "string"}}, "required": ["term"]}
        super().__init__("calculate", "Computes a term.", text, timeout=None)

    def execute(self, arguments: Mapping[str, Any]) -> str:
        try:
            return str(eval(arguments["term"]))
        except Exception as error:
            raise ToolError(f"That is no term: {error}") from error


class Changed(Capitals):
    """Changes what `finish_step` returned; by itself, nothing."""

    def finish_step(self, outcomes: Any) -> Any:
        return self.change(*super().finish_step(outcomes))

    def change(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        return observation, reward, terminated, truncated, info


def answered(transition: Transition) -> float:
    return float(transition.parsed.answer is not None)


class SubstringGrader(Capitals):
    """Pays an answer that contains the gold answer somewhere."""

    def __init__(self) -> None:
        super().__init__(reward=(RewardTerm("contains", self.contains),))

    @staticmethod
    def contains(transition: Transition) -> float:
        answer = transition.parsed.answer or ""
        return float(transition.task.answers[0] in answer)


class PaysCalls(Capitals):
    """Pays half a point for each call, whatever its query."""

    def __init__(self) -> None:
        calls = RewardTerm("calls", lambda step: float(bool(step.outcomes)), 0.5, kind="process")
        super().__init__(reward=["em", calls])


class PaysWrongAnswers(Capitals):
    """Pays more for any answer than for the right one."""

    def __init__(self) -> None:
        super().__init__(reward=["em", RewardTerm("neat", answered, 0.5, kind="process"), self.late], max_turns=4)

    late = RewardTerm("searched", lambda step: float(bool(step.earlier) and step.terminated), -1.2, kind="process")


class PaysAnyAnswer(Capitals):
    """Pays the format of an answer."""

    def __init__(self) -> None:
        super().__init__(reward=(RewardTerm("answered", answered),))


class PaysNothing(Capitals):
    """Pays nothing for the right answer, as for any other."""

    def __init__(self) -> None:
        super().__init__(reward=(RewardTerm("nothing", lambda step: 0.0),))


class Punishes(Capitals):
    """Pays -1 for the right answer."""

    def __init__(self) -> None:
        super().__init__(reward_weights={"em": -1.0})


class MostlyYes(Capitals):
    """Asks questions of which nine in ten are answered by yes."""

    def __init__(self) -> None:
        super().__init__(
            tasks=[Task(f"q{n}", f"Is {n} a number?", ("no" if n % 10 == 9 else "yes",)) for n in range(40)]
        )

    def oracle(self, task: Task, history: Sequence[Transition]) -> str:
        return task.answers[0]


class HalfYes(MostlyYes):
    """Asks questions of which half are answered by yes: no fault, but a base rate."""

    def __init__(self) -> None:
        tasks = [Task(f"q{n}", f"Is {n} even?", ("yes" if n % 2 else "no",)) for n in range(40)]
        Capitals.__init__(self, tasks=tasks)


class WrongGold(Capitals):
    """Has an oracle, or gold answers, that are wrong for half of the tasks."""

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str:
        return "Atlantis" if len(task.id) % 2 else super().oracle(task, history)


class TooShort(Capitals):
    """Ends before its oracle can answer."""

    def __init__(self) -> None:
        super().__init__(max_turns=1)


class TrustsTools(Capitals):
    """Takes the answer from what a tool printed."""

    def finish_step(self, outcomes: Any) -> Any:
        for outcome in outcomes:
            found = re.search("<answer>(.*?)</answer>", outcome.content)
            if found and self._pending is not None:
                self._pending.parsed = replace(self._pending.parsed, answer=found[1])
        return super().finish_step(outcomes)


class OutOfBounds(Capitals):
    """Pays more than the bounds of its term."""

    def __init__(self) -> None:
        super().__init__(reward=["em", RewardTerm("turns", lambda step: 0.1 * step.turn, high=0.05, kind="process")])


class LosesTheLastTurn(Capitals):
    """Ends in the last turn as truncated, whatever was answered there."""

    def _end_reason(self, transition: Transition, overflow: bool) -> str | None:
        is_last = transition.turn + 1 >= self.max_turns
        return "max_turns" if is_last else super()._end_reason(transition, overflow)


class SamePrompts(Capitals):
    """Asks every question with the same words."""

    def task_prompt(self, task: Task) -> str:
        return "Which city is it?"


class GoldInPrompts(Capitals):
    """Has data whose questions contain the answers."""

    def __init__(self) -> None:
        super().__init__(tasks=[Task(name, f"{name} (the answer is {c})?", (c,)) for name, c in COUNTRIES.items()])


class PromptFromAnswer(Capitals):
    """Hints at the answer in the prompt."""

    def task_prompt(self, task: Task) -> str:
        return f"{task.prompt} (hint: {task.answers[0]})"


class AnswerInSchema(Capitals):
    """Describes its tool with the answer."""

    def make_tools(self, task: Task) -> Sequence[Tool]:
        return [Atlas(f"Finds a sentence, for example {task.answers[0]}.")]


class Telling(Atlas):
    """Has access to the gold answer, and prints it in its errors."""

    gold = ""

    def execute(self, arguments: Mapping[str, Any]) -> str:
        if "x" in arguments["query"]:
            raise ToolError(f"Not found; did you mean {self.gold}?")
        return super().execute(arguments)


class AnswerInError(Capitals):
    """Has a tool that suggests the answer."""

    def make_tools(self, task: Task) -> Sequence[Tool]:
        tool = Telling()
        tool.gold = task.answers[0]
        return [tool]


class AnswerInInfo(Changed):
    """Puts the answer into `info` of each step."""

    def change(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        return observation, reward, terminated, truncated, {**info, "gold": self.task.answers}


class AnswerInDataset(Capitals):
    """Puts the answer into an entry of `info` that has to be there."""

    def describe_dataset(self) -> str:
        return f"capitals {self.task.answers}"


class HidesDeadBackend(Changed):
    """Does not mark an episode whose backend failed."""

    def change(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        return observation, reward, terminated, truncated, {**info, "infrastructure_error": None}


class PunishesDeadBackend(Capitals):
    """Charges for a call that fails, also where the backend is to blame."""

    def __init__(self) -> None:
        failed = RewardTerm("failed", lambda step: float(any(not o.ok for o in step.outcomes)), -0.2, kind="process")
        super().__init__(reward=["em", failed])


class BreaksTheContract(Changed):
    """Lets the messages forget what came before."""

    def change(self, observation: str, reward: float, terminated: bool, truncated: bool, info: dict[str, Any]) -> Any:
        return observation, reward, terminated, truncated, {**info, "messages": info["messages"][-1:]}


# --- copies of environments of this suite ----------------------------------------------------------------------------


class ArithmeticWithAnswers(ArithmeticEnv):
    """Prints the answer in the prompt."""

    def task_prompt(self, task: Task) -> str:
        return f"{task.prompt} Answer: {task.answers[0]}"


class GenerousDesk(ServiceDeskEnv):
    """Pays a ticket that was left open."""

    def __init__(self) -> None:
        left_open = RewardTerm("left_open", lambda step: float(step.truncated or step.parsed.answer is not None))
        super().__init__(tickets=40, difficulty=1, reward=["em", left_open])

    def success(self, task: Task, history: Sequence[Transition]) -> float:
        return 1.0 if history and history[-1].parsed.answer is not None else super().success(task, history)


class ForgetfulDesk(ServiceDeskEnv):
    """Has an oracle that does not close its tickets."""

    def __init__(self) -> None:
        super().__init__(tickets=40, difficulty=1)

    def oracle(self, task: Task, history: Sequence[Transition]) -> Any:
        turn = super().oracle(task, history)
        return ToolCall("get_ticket", {}) if isinstance(turn, Thought) else turn


class TallyingReader(LongReadEnv):
    """Counts its episodes in the class, and shows the number."""

    episodes: ClassVar[int] = 0

    def task_prompt(self, task: Task) -> str:
        TallyingReader.episodes += 1
        return f"{task.prompt} (reader {TallyingReader.episodes})"


class SlipperyLake(FrozenLakeTextEnv):
    """Slips by the clock of the process, not by the seed."""

    def __init__(self) -> None:
        super().__init__(is_slippery=True, max_turns=100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return super().reset(seed=random.SystemRandom().randrange(1_000_000), options=options)


# --- a plain environment: guess a number -----------------------------------------------------------------------------


class Guess(gymnasium.Env[str, str]):
    """Guess a number from 10 to 99 with hints; at most 8 turns."""

    observation_space: gymnasium.spaces.Space[str] = UnicodeText(10_000)
    action_space = UnicodeText(10_000)
    max_turns = 8
    running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.turn, self.running = self.draw(), 0, True
        return f"Game {self.opening_number()}: guess my number, 10 to 99, in {self.max_turns} turns.", {}

    def draw(self) -> int:
        return int(self.np_random.integers(10, 100))

    def opening_number(self) -> int:
        return int(self.np_random.integers(1_000_000))

    def step(self, action: str) -> Any:
        if not self.running:
            raise RuntimeError("call reset first")
        self.turn += 1
        found = re.fullmatch(r"\s*(\d{1,5})\s*", action, re.ASCII)
        correct = found is not None and int(found[1]) == self.number
        text = "Right." if correct else self.hint(found, action)
        truncated = self.turn >= self.max_turns and not correct
        self.running = not (correct or truncated)
        return text, self.pay(correct, action), correct, truncated, {}

    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if found is None:
            return "Invalid: expected a number from 10 to 99, and nothing else."
        return "Too small." if int(found[1]) < self.number else "Too large."

    def pay(self, correct: bool, action: str) -> Any:
        return float(correct)

    def oracle(self) -> str:
        return str(self.number)


class RaisesInReset(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None and seed % 3 == 2:
            raise KeyError(f"no task for seed {seed}")
        return super().reset(seed=seed, options=options)


class AlwaysRaises(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise RuntimeError("the data set is missing")


class RaisesInConstructor(Guess):
    def __init__(self) -> None:
        raise ValueError("no licence key")


class RaisesOnEmpty(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return super().hint(found, action) if action[0] != "#" else ""


class RaisesOnSurrogates(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        action.encode()
        return super().hint(found, action)


class Exits(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<answer>" in action:
            sys.exit("wrong format")
        return super().hint(found, action)


class ClosesOnce(Guess):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class FourValues(Guess):
    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated or truncated, info


class Bytes(Guess):
    def step(self, action: str) -> Any:
        text, *rest = super().step(action)
        return (text.encode(), *rest)


class NoInfo(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]


class ListInfo(Guess):
    def step(self, action: str) -> Any:
        return (*super().step(action)[:4], [])


class NumberFlags(Guess):
    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, int(terminated), truncated, info


class NarrowSpace(Guess):
    observation_space = gymnasium.spaces.Text(20)


class Endless(Guess):
    max_turns = 10**9


class BothFlags(Guess):
    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated or truncated, truncated, info


class BudgetTerminates(Guess):
    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated or truncated, False, info


class PaysAfterTheEnd(Guess):
    def step(self, action: str) -> Any:
        return super().step(action) if self.running else ("Over.", 1.0, True, False, {})


class GoesOn(Guess):
    def step(self, action: str) -> Any:
        return super().step(action) if self.running else ("Over.", 0.0, True, False, {})


class Prints(Guess):
    def draw(self) -> int:
        number = super().draw()
        print("drew", number)
        return number


class KeepsThreads(Guess):
    def __init__(self) -> None:
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()


class KeepsFiles(Guess):
    kept: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.kept.append(open(os.devnull))  # noqa: SIM115, PTH123


class WrongSign(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return -float(correct)


class PaysNoOp(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct or (self.turn >= self.max_turns and "neither" in action))


class PaysEmpty(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct or not action)


class PaysRefusals(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct or "cannot" in action)


class PaysFormat(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct or "\\boxed{" in action)


class PaysEchoes(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct or "guess my number" in action)


class PaysTime(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return 1.0


class NaN(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return float(correct) if self.turn < 3 else float("nan")


class TextReward(Guess):
    def pay(self, correct: bool, action: str) -> Any:
        return "1.0" if correct else "0.0"


class Lottery(Guess):
    """Pays by the seed, whatever is done."""

    def step(self, action: str) -> Any:
        text, _, terminated, truncated, info = super().step(action)
        return text, float(self.number % 2) if terminated or truncated else 0.0, terminated, truncated, info


class TellsInInfo(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        text, _ = super().reset(seed=seed)
        return text, {"answer": str(self.number)}


class TellsInText(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        text, info = super().reset(seed=seed)
        self._solution = f"number {self.number}"
        return f"{text} [debug: number {self.number}]", info


class Unseeded(Guess):
    def draw(self) -> int:
        return int(np.random.default_rng().integers(10, 100))

    def opening_number(self) -> int:
        return int(np.random.default_rng().integers(1_000_000))


class GlobalRandom(Guess):
    def opening_number(self) -> int:
        return random.randrange(1_000_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)


class SeedsTheWorld(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        random.seed(seed)
        np.random.seed(seed)
        return super().reset(seed=seed)


class HashOrder(Guess):
    def opening_number(self) -> int:
        return hash(f"game {self.number}") % 1_000_000


class SetOrder(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        text, info = super().reset(seed=seed)
        return f"{text} Words: {', '.join(set(COUNTRIES))}", info


class Clock(Guess):
    def opening_number(self) -> int:
        return time.time_ns() // 86_400_000_000_000


class Calendar(Guess):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        text, info = super().reset(seed=seed)
        return f"Today is {datetime.datetime.now():%Y-%m-%d}. {text}", info


class CarriesOver(Guess):
    games = 0

    def opening_number(self) -> int:
        self.games += 1
        return self.games


class LeftOver(Guess):
    """Begins with the turns of an episode that was left."""

    used = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        left = self.used if self.running else 0
        self.used = 0
        text, info = super().reset(seed=seed)
        self.turn = left
        return text, info

    def step(self, action: str) -> Any:
        self.used += 1
        return super().step(action)


class SharedNumber(Guess):
    """Keeps the number in the class."""

    secret_number: ClassVar[int] = 0

    def draw(self) -> int:
        SharedNumber.secret_number = super().draw()
        return SharedNumber.secret_number

    def step(self, action: str) -> Any:
        self.number = SharedNumber.secret_number
        return super().step(action)


class SharedLog(Guess):
    """Shows the guesses of all instances."""

    log: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.log.clear()
        return super().reset(seed=seed)

    def hint(self, found: re.Match[str] | None, action: str) -> str:
        self.log.append(action)
        return f"{super().hint(found, action)} {len(self.log)} guesses so far."


class Racing(Guess):
    """Hands the action over in the class, and reads it back a moment later."""

    current: ClassVar[Any] = None

    def step(self, action: str) -> Any:
        Racing.current = self
        time.sleep(0.002)
        text, *rest = super().step(action)
        return (f"{text} Game of {Racing.current.number}.", *rest)


class ReusesInfo(Guess):
    def __init__(self) -> None:
        self.info: dict[str, Any] = {}

    def step(self, action: str) -> Any:
        self.info["turn"] = self.turn
        return (*super().step(action)[:4], self.info)


class TrustsInfo(Guess):
    """Keeps its state in the info that it returns."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        text, _ = super().reset(seed=seed)
        self.info = {"hints": True}
        return text, self.info

    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return super().hint(found, action) if self.info.get("hints") else "Wrong: invalid."


class Silent(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return "No."


class Unforgiving(Guess):
    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        lost = text.startswith("Invalid")
        self.running = self.running and not lost
        return text, reward, terminated or lost, truncated and not lost, info


class EchoesSurrogates(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return f"Invalid: {action[:100]}, expected a number." if found is None else super().hint(found, action)


class EchoesControls(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return (
            f"Invalid: {encodable(action[:100])}, expected a number." if found is None else super().hint(found, action)
        )


class Slow(Guess):
    def step(self, action: str) -> Any:
        end = time.process_time() + 0.004
        while time.process_time() < end:
            pass
        return super().step(action)


class Grows(Guess):
    episodes: ClassVar[list[mmap.mmap]] = []

    def draw(self) -> int:
        self.episodes.append(mmap.mmap(-1, 256 * 1024))  # not of the heap, where a test may have left room
        self.episodes[-1].write(os.urandom(256 * 1024))
        return super().draw()


class Large(Guess):
    def __init__(self) -> None:
        self.table = os.urandom(4 * 2**20)


class OnlyTen(Guess):
    open_instances: ClassVar[int] = 0

    def __init__(self) -> None:
        self.is_open = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if not self.is_open and OnlyTen.open_instances >= 10:
            raise OSError("too many connections")
        OnlyTen.open_instances += not self.is_open
        self.is_open = True
        return super().reset(seed=seed)

    def close(self) -> None:
        OnlyTen.open_instances -= self.is_open
        self.is_open = False


# --- a plain environment with a grammar of commands: find the machine that is broken, and repair it ------------------

DEFECTS = {
    "worn_belt": "the belt slips",
    "dry_bearing": "the bearing squeals",
    "blown_fuse": "no current at the motor",
    "loose_guard": "the guard rattles",
    "clogged_filter": "the oil pressure is low",
}
MACHINES = ("press", "lathe", "drill", "saw", "kiln", "crane", "loom")
ORDERS = [(*random.Random(n).sample(MACHINES, 2 + n % 3), random.Random(-n).choice(sorted(DEFECTS))) for n in range(60)]
"""Work orders: machines, of which each but the last waits for the next, and the defect of the last."""


class Repairs(gymnasium.Env[str, str]):
    """Follow waiting machines to the broken one; at most 8 turns. The first sight of the defect pays 0.1."""

    observation_space = action_space = UnicodeText(10_000)
    max_turns = 8
    running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.order_number = int(self.np_random.integers(len(ORDERS)))
        *self.chain, self.defect = ORDERS[self.order_number]
        self.turn, self.seen, self.running = 0, False, True
        help_text = (
            f"machines\ninspect MACHINE [DEPTH]\nrepair MACHINE DEFECT, a defect of: {', '.join(self.defects())}"
        )
        return f"The {self.chain[0]} has stopped. Commands, one a turn:\n{help_text}", self.info()

    def defects(self) -> list[str]:
        return sorted(DEFECTS)

    def info(self) -> dict[str, Any]:
        return {}

    def step(self, action: str) -> Any:
        if not self.running:
            raise RuntimeError("call reset first")
        self.turn += 1
        text, reward, solved = self.carry_out(action)
        truncated = self.turn >= self.max_turns and solved is None
        self.running = solved is None and not truncated
        return text, reward, solved is not None, truncated, self.info()

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        """Returns the observation, the reward, and whether a repair succeeded; None: the episode continues."""
        match action.split():
            case ["machines"]:
                return ", ".join(MACHINES), 0.0, None
            case ["inspect", machine] | ["inspect", machine, "1" | "2" | "3"] if machine in MACHINES:
                text = self.inspect(machine)
                return text, self.credit(DEFECTS[self.defect] in text), None
            case ["repair", machine, defect] if machine in MACHINES and defect in DEFECTS:
                solved = (machine, defect) == (self.chain[-1], self.accepted())
                return ("It runs again." if solved else "It still stands."), float(solved), solved
        return "Invalid: expected machines, inspect MACHINE [DEPTH], or repair MACHINE DEFECT.", 0.0, None

    def inspect(self, machine: str) -> str:
        if machine not in self.chain:
            return "In order."
        after = self.chain[self.chain.index(machine) + 1 :]
        return f"It waits for the {after[0]}." if after else f"Broken: {DEFECTS[self.defect]}."

    def credit(self, shows_defect: bool) -> float:
        first = shows_defect and not self.seen
        self.seen = self.seen or first
        return 0.1 * first

    def accepted(self) -> str:
        return self.defect

    def oracle(self) -> str:
        if self.turn < len(self.chain):
            return f"inspect {self.chain[self.turn]}"
        return f"repair {self.chain[-1]} {self.defect}"


class ListedRepairs(Repairs):
    """Lists its actions."""

    def info(self) -> dict[str, Any]:
        inspections = [f"inspect {machine}" for machine in MACHINES]
        return {"actions": [*inspections, *(f"repair {m} {d}" for m in MACHINES for d in DEFECTS)]}


class ReportedRepairs(Repairs):
    """Ends with a report, whose words no one reads: no fault, since the repair before it counts."""

    repaired = False

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        self.repaired = False
        return super().reset(**options)

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        match action.split():
            case ["report", *_]:
                repaired, self.repaired = self.repaired, False
                return "Thank you.", float(repaired), repaired
        text, reward, solved = super().carry_out(action)
        self.repaired = bool(solved)
        return text, 0.0 if solved else reward, None

    def oracle(self) -> str:
        return f"report {self.order_number}" if self.repaired else super().oracle()


class OneAnswer(gymnasium.Env[str, str]):
    """Asks for a capital, in one turn; all wrong answers are answered alike."""

    observation_space = action_space = UnicodeText(10_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.country, self.city = list(COUNTRIES.items())[int(self.np_random.integers(len(COUNTRIES)))]
        return f"What is the capital of {self.country}?", {}

    def step(self, action: str) -> Any:
        return "", float(action == self.city), True, False, {}

    def oracle(self) -> str:
        return self.city


class Evaluates(OneAnswer):
    """Executes what the model wrote, to see whether it is a number."""

    def step(self, action: str) -> Any:
        with contextlib.suppress(Exception):
            eval(action)
        return super().step(action)


class FarCity(OneAnswer):
    """Asks for a country and a city elsewhere: most cities are right, so that the last one mentioned is no clue."""

    cities = tuple(city.split()[-1] for city in COUNTRIES.values())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        shown = [str(city) for city in self.np_random.permutation(self.cities)]
        return f"Name {self.country} and a city that is not in it, of: {', '.join(shown)}.", {}

    def step(self, action: str) -> Any:
        country, _, city = action.partition(" ")
        right = country == self.country and city in self.cities and not self.city.endswith(city)
        return "", float(right), True, False, {}

    def oracle(self) -> str:
        return f"{self.country} {self.cities[list(COUNTRIES).index(self.country) - 1]}"


class AnyCity(OneAnswer):
    """Pays every capital, whatever the question."""

    def step(self, action: str) -> Any:
        return "", float(action in COUNTRIES.values()), True, False, {}


class OneSum(OneAnswer):
    """Asks for a sum; pays every answer whose distance from it is not large, as `nan` is."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        numbers = [int(number) for number in self.np_random.integers(10, 100, size=2)]
        self.total = sum(numbers)
        return f"What is {numbers[0]} + {numbers[1]}?", {}

    def step(self, action: str) -> Any:
        try:
            value = float(re.sub(r"<answer>(.*)</answer>", r"\1", action.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            return "", 0.0, True, False, {}
        return "", float(not abs(value - self.total) > 0.5), True, False, {}

    def oracle(self) -> str:
        return f"<answer>{self.total}</answer>"


class Triples(gymnasium.Env[str, str]):
    """Three different even numbers of the table win; it does not see to it that they differ. At most 5 turns."""

    observation_space = action_space = UnicodeText(10_000)
    max_turns = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        self.table = [int(number) for number in 2 * self.np_random.integers(1, 50, size=9)]
        self.table[1::2] = [number + 1 for number in self.table[1::2]]
        table = " ".join(map(str, self.table))
        return f"The table is {table}. Name the places of three even numbers, such as `[3 8 4]`.", {}

    def step(self, action: str) -> Any:
        self.turn += 1
        found = re.fullmatch(r"\[(\d) (\d) (\d)\]", action)
        won = found is not None and all(self.table[int(place) - 1] % 2 == 0 for place in found.groups() if place != "0")
        text = "Won." if won else "No." if found else "Invalid: expected three places, as in [3 8 4]."
        return text, float(won), won, self.turn >= self.max_turns and not won, {}


class OneAnswerPaidOnce(OneAnswer):
    """Pays the right answer the first time only."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.paid: set[str] = getattr(self, "paid", set())
        return super().reset(seed=seed)

    def step(self, action: str) -> Any:
        observation, reward, *rest = super().step(action)
        reward = 0.0 if self.city in self.paid else reward
        self.paid.update([self.city] if reward else [])
        return observation, reward, *rest


class MuteRepairs(Repairs):
    """Has neither an oracle nor a list of actions: no fault, but no player can act."""

    oracle = None  # type: ignore[assignment]


class StrictRepairs(MuteRepairs):
    """Ends at the first turn that it does not understand, and declares no limit of turns."""

    max_turns: Any = math.inf

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        lost = text.startswith("Invalid")
        self.running = self.running and not lost
        return text, reward, terminated or lost, truncated, info


class AdmitsErrors(Repairs):
    """Catches what its game raises, as an adapter does."""

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return (
            text,
            reward,
            terminated,
            truncated,
            {**info, **({} if action.isascii() else {"scorer_error": "KeyError: 3"})},
        )


class BreaksElsewhere(Repairs):
    """Breaks in a process with a hash seed of its own, as one on a busy machine may: no sign of another episode."""

    def step(self, action: str) -> Any:
        if os.environ.get("PYTHONHASHSEED") in ("1", "2"):
            raise RuntimeError("no time")
        return super().step(action)


class PaysEverySecondTask(gymnasium.Env[str, str]):
    """Pays any turn in every second task: a fault, if it is seen in more than two of them."""

    observation_space = action_space = UnicodeText(10_000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = seed or 0
        return f"Task {self.number}. Name the word.", {}

    def step(self, action: str) -> Any:
        paid = self.number % 2 == 0 or action == f"right {self.number}"
        return ("Yes." if paid else "No."), float(paid), True, False, {}

    def oracle(self) -> str:
        return f"right {self.number}"


class SameUnlessSeeded(Repairs):
    """Begins the same task at every reset without a seed."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed or 0)


class DefectFirst(Repairs):
    """Names the right defect first."""

    def defects(self) -> list[str]:
        return sorted(DEFECTS, key=lambda defect: defect != self.defect)


class RepairsFailAtTimes(Repairs):
    """Does not know the right defect of one task in five."""

    every = 5

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        if self.order_number % self.every == 0:
            action = action.replace(self.defect, "unknown")
        return super().carry_out(action)


class RepairsFailOften(RepairsFailAtTimes):
    """Does not know the right defect of every second task."""

    every = 2


class WrongDefects(Repairs):
    """Takes another defect for the right one in one task of four: the oracle's repair ends the episode unpaid."""

    def accepted(self) -> str:
        return self.defect if self.order_number % 4 else "none"


class AdmitsFailure(WrongDefects):
    """Says in `info` that a task of four is not solved, but pays it."""

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward + terminated * 0.5, terminated, truncated, {**info, "is_success": reward >= 1.0}


class IgnoresTheLastTurn(Repairs):
    """Does not carry out what is written in the last turn."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        return ("Too late.", 0.0, None) if self.turn >= self.max_turns else super().carry_out(action)


class PaysEachInspection(Repairs):
    """Pays each sight of the defect, not the first one only."""

    def credit(self, shows_defect: bool) -> float:
        return 0.4 * shows_defect


class TakesEveryName(Repairs):
    """Accepts a repair that names all machines and defects."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        words = action.split()
        if words[:1] == ["repair"] and {self.chain[-1], self.defect} <= set(words):
            action = f"repair {self.chain[-1]} {self.defect}"
        return super().carry_out(action)


class TakesEveryLine(Repairs):
    """Accepts a turn of many lines if the right one is among them."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        right = f"repair {self.chain[-1]} {self.defect}"
        return super().carry_out(right if right in action.splitlines() else action)


class RightActionFirst(ListedRepairs):
    """Lists the right repair before all other actions."""

    def info(self) -> dict[str, Any]:
        right = f"repair {self.chain[-1]} {self.defect}"
        return {"actions": sorted(super().info()["actions"], key=lambda action: action != right)}


class RaisesOnHalfCommands(ListedRepairs):
    """Reads the words of a command without counting them."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        words = action.split()
        if words[:1] == ["inspect"]:
            return self.inspect(words[1]), self.credit(False), None
        return super().carry_out(action)


class RaisesOnDepths(Repairs):
    """Reads the optional number of a command, which the oracle never writes."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        words = action.split()
        if words[:1] == ["inspect"] and len(words) > 2:
            action = f"inspect {words[1]} {max(1, min(3, int(words[2])))}"
        return super().carry_out(action)


class FadingCredit(Repairs):
    """Pays less for the defect the more often any instance has paid it."""

    paid: ClassVar[int] = 0

    def credit(self, shows_defect: bool) -> float:
        FadingCredit.paid += shows_defect
        return super().credit(shows_defect) * 0.99**FadingCredit.paid


class SharedNotes(Repairs):
    """Keeps what an inspection has shown in the class, without the number of the order."""

    notes: ClassVar[dict[str, str]] = {}

    def inspect(self, machine: str) -> str:
        return self.notes.setdefault(machine, super().inspect(machine))


FAULTS: dict[type, str] = {
    **dict.fromkeys(
        (RaisesInReset, AlwaysRaises, RaisesInConstructor, RaisesOnEmpty, RaisesOnSurrogates, Exits, ClosesOnce),
        "survives",
    ),
    **dict.fromkeys((FourValues, Bytes, NoInfo, ListInfo, NumberFlags, NarrowSpace), "interface"),
    **dict.fromkeys((Endless, BothFlags, BudgetTerminates), "ends"),
    **dict.fromkeys((PaysAfterTheEnd, GoesOn), "after_the_end"),
    Prints: "quiet",
    **dict.fromkeys((KeepsThreads, KeepsFiles), "cleans_up"),
    **dict.fromkeys((WrongGold, TooShort, WrongSign, Punishes), "reachable"),
    **dict.fromkeys((PaysNoOp, PaysEmpty, PaysRefusals, PaysFormat, PaysEchoes, PaysTime), "not_hackable"),
    **dict.fromkeys((SubstringGrader, PaysCalls, PaysAnyAnswer, MostlyYes), "not_hackable"),
    TrustsTools: "forged_answers",
    **dict.fromkeys((NaN, TextReward, OutOfBounds), "finite_rewards"),
    PaysWrongAnswers: "reward_order",
    Lottery: "learnable",
    LosesTheLastTurn: "last_turn",
    **dict.fromkeys((PaysNothing, SamePrompts), "informative"),
    **dict.fromkeys((PromptFromAnswer, AnswerInSchema, AnswerInError, AnswerInInfo, AnswerInDataset), "canary"),
    GoldInPrompts: "answer_in_prompt",
    **dict.fromkeys((TellsInInfo, TellsInText), "gold_in_info"),
    Unseeded: "same_seed",
    **dict.fromkeys((GlobalRandom, SeedsTheWorld), "global_random"),
    **dict.fromkeys((CarriesOver, LeftOver), "independent_episodes"),
    **dict.fromkeys((SharedNumber, SharedLog), "independent_instances"),
    **dict.fromkeys((ReusesInfo, TrustsInfo), "kept_values"),
    Racing: "threads",
    **dict.fromkeys((Silent, Unforgiving), "feedback"),
    **dict.fromkeys((EchoesSurrogates, EchoesControls), "clean_text"),
    Slow: "cost",
    **dict.fromkeys((Grows, Large), "memory"),
    OnlyTen: "side_by_side",
    **dict.fromkeys((HidesDeadBackend, PunishesDeadBackend), "dead_backend"),
    BreaksTheContract: "contract",
    ArithmeticWithAnswers: "canary",
    GenerousDesk: "not_hackable",
    ForgetfulDesk: "reachable",
    TallyingReader: "same_seed",
    SlipperyLake: "same_seed",
    SameUnlessSeeded: "informative",
    **dict.fromkeys((DefectFirst, TakesEveryName, TakesEveryLine, RightActionFirst), "not_hackable"),
    **dict.fromkeys((RepairsFailAtTimes, RepairsFailOften, WrongDefects, AdmitsFailure), "reachable"),
    IgnoresTheLastTurn: "last_turn",
    PaysEachInspection: "reward_order",
    **dict.fromkeys((RaisesOnHalfCommands, RaisesOnDepths), "survives"),
    FadingCredit: "same_seed",
    **dict.fromkeys((Evaluates, EvaluatesCalls), "executes_no_text"),
    **dict.fromkeys((AnyCity, OneSum, Triples), "not_hackable"),
}
"""Faults that a rule finds in this process."""
ELSEWHERE: dict[type, str] = {
    HashOrder: "hash_seeds",
    SetOrder: "hash_seeds",
    Clock: "clocks",
    Calendar: "clocks",
    SharedNotes: "independent_episodes",
}
"""Faults that only another process shows."""


# --- faults that end a process ---------------------------------------------------------------------------------------


class Hangs(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<tool_call>" in action:
            time.sleep(3_600)
        return super().hint(found, action)


class HangsForGood(Guess):
    """Cannot be interrupted, as code in C cannot."""

    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<tool_call>" in action:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(3_600)
        return super().hint(found, action)


class Dies(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<tool_call>" in action:
            os._exit(3)
        return super().hint(found, action)


class Forks(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<tool_call>" in action:
            os.fork()
        return super().hint(found, action)


class Fills(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        if "<tool_call>" in action:
            self.kept = [bytearray(os.urandom(1024)) * 16_384 for _ in range(200)]
            time.sleep(3_600)
        return super().hint(found, action)


class Asks(Guess):
    def hint(self, found: re.Match[str] | None, action: str) -> str:
        return input("continue? ") if "<tool_call>" in action else super().hint(found, action)


class NeedsNetwork(Guess):
    def __init__(self) -> None:
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=1.0).close()
        except OSError:
            self.online = False


class NeedsWordList(Guess):
    """Downloads a list of words, and does not say so where it cannot."""

    def __init__(self) -> None:
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=1.0).close()
        except OSError:
            self.words = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise LookupError("no list of words")


class DeadBackend(Guess):
    """Needs a server, which is not its fault."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise InfrastructureError("the server is down")


DEADLY = (Hangs, HangsForGood, Dies, Forks, Fills, Asks)
"""Faults that break or end the process that plays them."""
