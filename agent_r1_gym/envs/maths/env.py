"""Mathematics with a calculator or Python: GSM8K, SVAMP, Arithmetic (generated) and ReTool (code between thoughts)."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.scoring import AnswerScorer, final_number
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ScriptedPolicy, ScriptedTurn, Task, Thought, ToolCall, Transition
from agent_r1_gym.data.base import QADataset
from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.data.official.gsm8k import reasons
from agent_r1_gym.data.tasks import TaskSet
from agent_r1_gym.envs.maths.latex_answers import MATH_VERIFY, latex_scorer
from agent_r1_gym.envs.maths.problems import (
    CALCULATOR_PROBLEMS,
    PROGRAM_PROBLEMS,
    WORDED_PROBLEMS,
    Problem,
    problems,
    rounded,
)
from agent_r1_gym.envs.maths.rewards import PRESETS
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.sandbox import Isolation
from agent_r1_gym.sandbox.interface import check_isolation
from agent_r1_gym.support.checks import check_choice, check_choices, check_seconds, check_split
from agent_r1_gym.tools.calculator import calculator
from agent_r1_gym.tools.python import PythonTool

GENERATED = "generated"
TOOLS = ("calculator", "python", "both", "none")
_WITHOUT_TOOLS = "Solve the problem step by step. Then answer with the number alone, for example: 42"
_PYTHON_TIMEOUT = 5.0
_BEGINNER_ACCURACY = 0.25


# --- scripts ---------------------------------------------------------------------------------------------------------


def _in_head(env: MathsEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Uses no tool: answers with the right size and first digit."""
    if isinstance(task, Problem):
        return task.guess
    number = final_number(task.answers[0])
    return task.answers[0] if number is None else str(rounded(round(number)))


def _careless(env: MathsEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Drops a term, or the last step of the solution, and answers with the output of the tool."""
    if isinstance(task, Problem):
        calls = [
            env.run(task.careless_expression)
            if "range(" in task.careless_expression
            else env.compute(task.careless_expression)
        ]
    else:
        calls = list(env.solution(task)[:-1])
    if len(history) < len(calls) and len(history) + 1 < env.max_turns:
        return calls[len(history)]
    output = history[-1].outcomes[0].content if history and history[-1].outcomes else ""
    return output or _quoter(env, task, history)


def _quoter(env: MathsEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Answers with the last number of the question."""
    number = final_number(task.prompt)
    return "0" if number is None else str(number)


def _beginner(env: MathsEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
    """Right in a quarter of the problems, else careless or a quoter, equally often; for demonstrations."""
    drawn = random.Random(f"{task.id} {task.prompt}").random()
    if drawn < _BEGINNER_ACCURACY:
        return env.oracle(task, history)
    return (_careless if drawn < (1 + _BEGINNER_ACCURACY) / 2 else _quoter)(env, task, history)


_MIN_REASON_WORDS = 4
"""Words of a solution before a computation that are worth a thought: "It is" explains nothing."""


# --- environments ----------------------------------------------------------------------------------------------------


class MathsEnv(ToolEnv):
    """Problems whose answer is a number, and tools that compute; base of the registered environments.

    Args:
        tasks: the problems.
        tools: "calculator", "python" (one interpreter per episode), "both", or "none" (a control: the model computes
            in its head).
        isolation: isolation of Python's sandbox, "strong", "weak" or "monty", see `tools.python.PythonTool`; None:
            "strong".
        seconds: wall-clock and CPU time of one run of Python; None: 5.
        scorer: "gsm8k" (numbers), "math-verify" (answers in LaTeX, compared in the sandbox; the extra `maths`), or
            another scorer of `ToolEnv`.
        max_turns: see `ToolEnv`.
        **options: see `ToolEnv`.

    Raises:
        ConfigurationError: an argument has a wrong value, or this machine cannot provide that isolation.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks",)
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {
        "in_head": _in_head,
        "careless": _careless,
        "quoter": _quoter,
        "beginner": _beginner,
    }
    reward_presets = PRESETS
    held_out_splits: Sequence[str] = ("validation", "test")
    instructions: ClassVar[str] = (
        "Solve the problem step by step. Do not compute in your head: call a tool for every computation, and use its "
        "output in the next step. Then answer with the number alone, for example: 42"
    )

    def __init__(
        self,
        *,
        tasks: Sequence[Task] = (),
        tools: str = "calculator",
        isolation: Isolation | None = None,
        seconds: float | None = None,
        scorer: str | AnswerScorer = "gsm8k",
        max_turns: int = 10,
        **options: Any,
    ) -> None:
        self._compute_tools = _make_compute_tools(tools, isolation, seconds)
        if not self._compute_tools and options.get("system_prompt") is options.get("raw_system_prompt") is None:
            options["system_prompt"] = _WITHOUT_TOOLS
        if scorer == MATH_VERIFY:
            scorer = latex_scorer("weak" if isolation == "weak" else "strong")
        super().__init__(tasks=tasks, tools=self._compute_tools, scorer=scorer, max_turns=max_turns, **options)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """The computations of the solution, one per turn, then the gold answer; without tools, all in one thought."""
        calls = self.solution(task)
        turn = len(history)
        if turn < len(calls):
            return calls[turn]
        answer, steps = super().oracle(task, history), getattr(task, "decomposition", ())
        if self._compute_tools or self._system_prompt == "" or not steps or not isinstance(answer, str):
            return answer
        # A bare number would teach a model to guess, and the control to lose for that reason.
        return Thought("; ".join(f"{step.question} = {step.answer}" for step in steps), answer)

    def has_solution(self, task: Task) -> bool:
        """Whether the computations are known: an answer without them would teach guessing."""
        return bool(self.solution(task) if self._compute_tools else getattr(task, "decomposition", ()))

    def compute(self, expression: str) -> ToolCall:
        """The call that computes an expression, with the calculator or else with Python."""
        if next(iter(self._compute_tools), calculator) is calculator:
            return ToolCall("calculator", {"expression": expression})
        imports = "from math import gcd, lcm\n" if "gcd(" in expression or "lcm(" in expression else ""
        return ToolCall("python", {"code": imports + expression})

    def run(self, code: str) -> ToolCall:
        """The call that runs a program."""
        return ToolCall("python", {"code": code})

    def solution(self, task: Task) -> Sequence[ToolCall]:
        """The calls that compute the answer: one program, or one call per step; none without tools or a solution."""
        if not self._compute_tools:
            return []
        code = getattr(task, "code", "")
        if code and self._compute_tools[-1] is not calculator:
            return [self.run(code)]
        return [self.compute(step.question) for step in getattr(task, "decomposition", ())]


def _problem_types(chosen: Sequence[str] | None, tools: str) -> tuple[str, ...]:
    """Returns the chosen types of generated problems; None: all that the tools are needed for."""
    default = (*CALCULATOR_PROBLEMS, *(() if tools == "calculator" else PROGRAM_PROBLEMS))
    if chosen is None:
        return default
    return check_choices(f"problem_types for tools={tools!r}", chosen, (*default, *WORDED_PROBLEMS))


def _make_compute_tools(tools: str, isolation: Isolation | None, seconds: float | None) -> tuple[Tool, ...]:
    """Makes the tools; environments with equal options share them."""
    check_choice("tools", tools, TOOLS)
    if tools in ("calculator", "none"):
        if (isolation, seconds) != (None, None):
            raise ConfigurationError(
                "isolation and seconds are options of Python: set tools='python' or 'both', or drop them."
            )
        return (calculator,) if tools == "calculator" else ()
    level = "strong" if isolation is None else isolation
    check_isolation(level)
    if seconds is not None:
        check_seconds("seconds", seconds)
    python = _python(level, _PYTHON_TIMEOUT if seconds is None else seconds)
    return (calculator, python) if tools == "both" else (python,)


@functools.lru_cache(maxsize=16)
def _python(isolation: Isolation, seconds: float) -> PythonTool:
    return PythonTool(stateful=True, isolation=isolation, timeout=seconds)


class GSM8KEnv(MathsEnv):
    """GSM8K: word problems of grade-school mathematics, with a calculator.

    ## Description
    The agent reads a problem of two to eight steps, computes each step with a tool, and answers with a number. 8,792
    problems by human authors, each with a solution in words whose computations are annotated.

    ## Tools
    `calculator(expression: string)`: exact arithmetic, such as `(3 + 4) * 12 / 5`. `python(code: string)`: runs a
    program in a sandbox and returns its output and the value of its last expression; one interpreter per episode, 5 s
    per run. A run that fails or takes too long is a mistake of the model ("tool_error").

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (task, tools, format) and a user turn (the problem), drawn uniformly with the environment's generator;
    `options={"task_index": i}` or `{"task": Task(...)}` select it.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the last number of the answer equals the gold number
    (exactly: 72 = 72.0 = $72), else 0. "f1": the same. "agent_r1": the paper's formula, one of 1, 0, -0.5, -1.
    ### Process
    Preset "process", as in `AgentR1/HotpotQA-v0`, with correct_step instead of new_support: +0.2 x the share of the
    solution's steps whose result a call returned for the first time; the last result stands for all steps.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`.

    ## Arguments
    `dataset="auto"`: prepared data (`agent-r1 data prepare gsm8k`), else a generated sample with a warning;
    "sample", "hub", a path or a `QADataset`. `split=None` ("train"; "test" is held out). `tools="calculator"`,
    "python", "both" or "none"; `isolation=None`, `seconds=None`: see `MathsEnv`. `scorer="gsm8k"` ("math-verify" for
    answers in LaTeX), `max_turns=10`; the rest: see `ToolEnv`.

    ## References
    Cobbe et al., Training Verifiers to Solve Math Word Problems (arXiv 2110.14168).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "fields")
    held_out_splits: Sequence[str] = ("test",)

    def __init__(
        self, *, dataset: str | os.PathLike[str] | QADataset = "auto", split: str | None = None, **options: Any
    ) -> None:
        super().__init__(tasks=load_dataset("gsm8k", dataset, split=split), **options)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """The computations of the solution and the gold answer, each after the words of the solution that lead to it.

        A cold start on bare calls would teach a model to stop reasoning.
        """
        turn, words = super().oracle(task, history), reasons(str(task.metadata.get("solution", "")))
        text = words[len(history)] if len(history) < len(words) and self._system_prompt != "" else ""
        is_reason = len(text.split()) >= _MIN_REASON_WORDS
        return Thought(text, turn) if is_reason and isinstance(turn, ToolCall | str) else turn


class SVAMPEnv(MathsEnv):
    """SVAMP: short word problems of one or two operations, with a calculator; training on MAWPS.

    ## Description
    The agent reads a problem of two or three sentences, computes with a tool, and answers with a number. SVAMP's 1,000
    problems vary those of older collections so that reading by pattern fails; all of them are test problems. Training
    problems are MAWPS's, as in the paper.

    ## Tools
    `calculator(expression: string)`, `python(code: string)`: as in `AgentR1/GSM8K-v0`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (task, tools, format) and a user turn (the problem), drawn uniformly with the environment's generator;
    `options={"task_index": i}` or `{"task": Task(...)}` select it.

    ## Rewards
    ### Outcome
    As in `AgentR1/GSM8K-v0`.
    ### Process
    As in `AgentR1/GSM8K-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `type` (the operation, where the data names it).

    ## Arguments
    `dataset="auto"`: prepared data, else a generated sample with a warning; "sample", "hub", a path or a `QADataset`.
    A folder holds `mawps.jsonl` or `train.jsonl` (rows with `input` and `target`) and `SVAMP.json`; "hub" splits SVAMP
    itself, which the paper does not. `split=None` ("train"; "validation" and "test" are held out).
    `tools="calculator"`, `isolation=None`, `seconds=None`: see `MathsEnv`. `scorer="gsm8k"`, `max_turns=5`; the rest:
    see `ToolEnv`.

    ## References
    Patel et al., Are NLP Models really able to Solve Simple Math Word Problems? (arXiv 2103.07191).
    Koncel-Kedziorski et al., MAWPS: A Math Word Problem Repository (NAACL 2016).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "fields")
    held_out_splits: Sequence[str] = ("validation", "test")

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] | QADataset = "auto",
        split: str | None = None,
        max_turns: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(tasks=load_dataset("svamp", dataset, split=split), max_turns=max_turns, **options)


class ArithmeticEnv(MathsEnv):
    """Arithmetic: generated problems that are too large for mental arithmetic, with a calculator or Python.

    ## Description
    Five types of problems with whole answers of at least 10: remainders of powers, counting by inclusion and exclusion,
    terms of recurrences, linear systems, greatest common divisors and least common multiples; and two more that need a
    program: sums of primes, counting by sums of digits. Numbers and steps grow with the difficulty. A model that skips
    the tool earns almost nothing. A further type, "nested", asks for sums, differences, products and quotients inside
    each other, in words, as many as the difficulty; from three on, splits share no tree of operations.

    ## Tools
    `calculator(expression: string)`, `python(code: string)`: as in `AgentR1/GSM8K-v0`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (task, tools, format) and a user turn (the problem), drawn uniformly with the environment's generator.

    ## Rewards
    ### Outcome
    As in `AgentR1/GSM8K-v0`.
    ### Process
    As in `AgentR1/GSM8K-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `type` and `level` (the difficulty).

    ## Arguments
    `world_seed=0`, `questions=2000`, `split="train"` ("validation" and "test": no problem is in two splits, whatever
    their seeds), `problem_types=None` (all that the tools can compute, but "nested" only if it is named),
    `difficulty=None` (1 to 5; None: all), `tools="calculator"`, "python", "both" or "none"; `isolation`, `seconds`:
    see `MathsEnv`. `scorer="gsm8k"`, `max_turns=10`; the rest: see `ToolEnv`.

    ## References
    The generator is part of this package (`envs/maths/`).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "dataset", "fields")

    def __init__(
        self,
        *,
        world_seed: int = 0,
        questions: int = 2_000,
        split: str = "train",
        problem_types: Sequence[str] | None = None,
        difficulty: int | None = None,
        tools: str = "calculator",
        **options: Any,
    ) -> None:
        types = _problem_types(problem_types, tools)
        tasks = problems(seed=world_seed, split=split, questions=questions, problem_types=types, difficulty=difficulty)
        super().__init__(tasks=tasks, tools=tools, **options)


class ReToolEnv(MathsEnv):
    """ReTool: code between thoughts, run in a sandbox with one interpreter per episode.

    ## Description
    The agent thinks, writes code, reads its output, continues thinking, and answers with a number. By default the
    problems are generated, of all seven types of `AgentR1/Arithmetic-v0`, of which two need a program.

    ## Tools
    `python(code: string)`: names that an earlier run of the episode defined persist; as in `AgentR1/GSM8K-v0`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text. In the format "retool", code is enclosed in
    `<code>...</code>`, with or without a Markdown fence, and the answer in `<answer>...</answer>`; code within
    `<think>` is not run. With `parser="hermes"` a run is an ordinary call: `<tool_call>{"name": "python", "arguments":
    {"code": "..."}}</tool_call>`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`; the output of a run is
    enclosed in `<interpreter>...</interpreter>`.

    ## Starting State
    A system turn (task, format) and a user turn (the problem), drawn uniformly with the environment's generator.

    ## Rewards
    ### Outcome
    As in `AgentR1/GSM8K-v0`.
    ### Process
    As in `AgentR1/GSM8K-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`.

    ## Arguments
    `dataset="generated"`, or a file or folder of problems and answers, or "hub:NAME", see `load_tasks`; `split=None`
    ("train"). For generated problems `world_seed=0`, `questions=2000`, `problem_types=None`, `difficulty=None`, as in
    `AgentR1/Arithmetic-v0`. `isolation=None` ("strong"; an error names what the kernel lacks for it), `seconds=None`
    (5): see `MathsEnv`. `parser="retool"`, `scorer="gsm8k"`, `max_turns=10`; the rest: see `ToolEnv`.

    ## References
    Feng et al., ReTool (arXiv 2504.11536). Its data: "hub:BytedTsinghua-SIA/DAPO-Math-17k".

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools")
    held_out_splits: Sequence[str] = ()

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] | TaskSet = GENERATED,
        split: str | None = None,
        world_seed: int = 0,
        questions: int = 2_000,
        problem_types: Sequence[str] | None = None,
        difficulty: int | None = None,
        parser: str | Parser = "retool",
        **options: Any,
    ) -> None:
        check_split(split)
        if dataset == GENERATED:
            types = _problem_types(problem_types, "python")
            options["tasks"] = problems(
                seed=world_seed,
                split="train" if split is None else split,
                questions=questions,
                problem_types=types,
                difficulty=difficulty,
            )
            self.held_out_splits = ("validation", "test")
        elif (world_seed, questions, problem_types, difficulty) != (0, 2_000, None, None):
            raise ConfigurationError(
                "world_seed, questions, problem_types and difficulty are options of the generator: drop them, or "
                "drop dataset=."
            )
        else:
            options |= {"dataset": dataset, "split": split}
        super().__init__(tools="python", parser=parser, **options)
