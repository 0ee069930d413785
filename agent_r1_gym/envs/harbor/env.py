"""Harbor: do a task in a shell, graded by the task's own tests."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.core.rewards import Reward, RewardSet, RewardTerm, failed_call, malformed_call, replace_presets
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ScriptedPolicy, ScriptedTurn, Task, ToolCall, Transition
from agent_r1_gym.envs.harbor.tasks import SAMPLE, HarborTask, read_tasks
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.sandbox.container import Container, pack
from agent_r1_gym.sandbox.interface import check_time_limit
from agent_r1_gym.support.checks import check_path, is_number
from agent_r1_gym.tools.shell import MAX_COMMAND_CHARS, ShellTool

_SAMPLE_FOLDER = Path(__file__).parent / "sample"
_VERIFIER = "/logs/verifier"
_DONE = "done"
_OF_THE_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


# --- grading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests of a task say.

    Attributes:
        reward: what they wrote, between 0 and 1.
        timed_out: whether they were stopped at their time limit.
        has_reward: whether they wrote a reward that can be read.
    """

    reward: float
    timed_out: bool = False
    has_reward: bool = True


def run_tests(task: HarborTask, container: Container, max_seconds: float) -> Verdict:
    """Run the tests of a task over what the agent left in a container.

    What an agent can do counts as its doing: tests that hang, or write no reward, score 0. First all programs that it
    started are killed, and `/tests` and `/logs/verifier` are replaced, whatever it put there.

    Raises:
        InfrastructureError: the container has ended, the tests cannot be read, or this machine cannot start them.
    """
    try:
        tests = pack(task.folder / "tests")
    except OSError as error:
        raise InfrastructureError(f"The tests of {task.id} cannot be read: {error}") from error
    container.stop_programs()
    try:
        container.unpack(tests, "/tests", replace=True)
        container.make_folder(_VERIFIER, replace=True)
        container.make_folder(task.workdir)
        result = container.run(
            ["bash", "/tests/test.sh"],
            folder=task.workdir,
            seconds=min(task.test_seconds, max_seconds),
            environment={**task.environment, **task.test_environment, "PYTHONNOUSERSITE": "1"},
        )
        reward = None if result.timed_out else _reward(container)
    except OSError as error:
        if error.errno in _OF_THE_MACHINE:
            raise InfrastructureError(f"The tests of {task.id} cannot be started: {error}") from error
        # The agent has filled the disk, or put a file in the place of a folder.
        return Verdict(0.0, has_reward=False)
    if result.timed_out:
        return Verdict(0.0, timed_out=True, has_reward=False)
    return Verdict(0.0, has_reward=False) if reward is None else Verdict(min(max(reward, 0.0), 1.0))


def _reward(container: Container) -> float | None:
    """Read `reward.json` (a number, its "reward", or its only value), else `reward.txt`; None: neither can be read.

    As in Harbor, true and false are numbers within an object.
    """
    try:
        data = container.read(f"{_VERIFIER}/reward.json")
        if data is not None:
            value = json.loads(data)
            if isinstance(value, dict):
                value = value.get("reward", next(iter(value.values())) if len(value) == 1 else None)
                value = int(value) if isinstance(value, bool) else value
        else:
            value = float((container.read(f"{_VERIFIER}/reward.txt") or b"").decode())
    except (ValueError, RecursionError):
        return None
    return float(value) if is_number(value) else None


# --- scripts ---------------------------------------------------------------------------------------------------------


def _idle(env: HarborEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Claims to be done, without a command."""
    return _DONE


def _forger(env: HarborEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Writes the reward itself, and leaves a program that keeps writing it."""
    forge = f"mkdir -p {_VERIFIER}; echo 1 > {_VERIFIER}/reward.txt"
    loop = f"(while true; do echo 1 > {_VERIFIER}/reward.txt; echo 'exit 0' > /tests/test.sh; sleep .01; done) &"
    return _DONE if history else ToolCall("bash", {"command": f"{forge}; setsid bash -c {loop!r} > /dev/null 2>&1 &"})


# --- the environment -------------------------------------------------------------------------------------------------


class HarborEnv(ToolEnv):
    """Harbor: do a task in a shell, graded by the task's own tests.

    ## Description
    Task folders in the format of Harbor (Terminal-Bench and others): `task.toml`, `instruction.md`, `tests/test.sh`,
    and optionally `environment/` and `solution/solve.sh`. They are played in a container without an image: the programs
    and the Python of this machine, read-only, and a file system in memory; without network. So only tasks are played
    that need no more. Refused, with name and reason, are: an image other than `debian`, `ubuntu` and `python`; a
    Dockerfile with more than FROM, WORKDIR, ENV, COPY, LABEL and CMD, such as RUN; a folder to copy next to a
    `.dockerignore`; files to copy below `/etc`, `/usr` and the like; services; several steps; earlier turns of the
    agent (`trajectory.json`); another user than root; GPUs; servers of tools; a network allow-list; tests in a
    container of their own; variables of the host.

    ## Tools
    `bash(command: string)`: runs a command in the folder of the task, at most `command_seconds`. Files and background
    programs stay until the end of the episode.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn and a user turn, the instruction. A task is sampled uniformly.

    ## Rewards
    ### Outcome
    `solved`, in the step that ends the episode: what `tests/test.sh` writes to `/logs/verifier/reward.json` (a number,
    or an object with "reward" or one value, which may be true or false) or `reward.txt`, limited to 0 to 1. Before, all
    programs of the agent are killed, and `/tests` and `/logs/verifier` are replaced. Tests that hang or write no reward
    score 0, because an agent can make them do so. A container that ends is an `infrastructure_error`.
    ### Process
    With `reward="process"` also: `malformed_call` -.1, `failed_call` -.05 (a command that is stopped at its time
    limit), as in `AgentR1/HotpotQA-v0`.

    ## Episode End
    ### Termination
    An answer is given; its text does not count.
    ### Truncation
    `max_turns` model turns are used up, or the history is longer than `max_history_chars`. The tests are run then too.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `difficulty` and `category`, where `task.toml` has them. Why
    an episode failed is among the `reward_terms`, with weight 0: `tests_timed_out`, `no_reward`.

    ## Arguments
    `dataset="sample"` (three invented tasks; or a task folder, or a folder of task folders), `command_seconds=60.0`,
    `test_seconds=600.0` (limit of the tests, if the task has no smaller one), `reward="em"` (`solved` alone, or
    "process", or custom terms), `max_turns=30`, `max_history_chars=131072`. For the others see `ToolEnv`.

    ## References
    Harbor, https://github.com/harbor-framework/harbor; format of version 0.26 (schema 1.4). Terminal-Bench,
    https://www.tbench.ai.

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields", "scorer", "split")
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {"idle": _idle, "forger": _forger}
    instructions: ClassVar[str] = """\
Do the task below in a shell. Call bash with one command at a time, read what it prints, and check your work.
You cannot ask questions. When the task is done, answer: done"""

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] = SAMPLE,
        command_seconds: float = 60.0,
        test_seconds: float = 600.0,
        reward: Reward | RewardSet | Sequence[Reward] = "em",
        **options: Any,
    ) -> None:
        check_path("dataset", dataset)
        check_time_limit("test_seconds", test_seconds, 3600.0)
        self._command_seconds, self._test_seconds = command_seconds, test_seconds
        self._verdict: Verdict | None = None
        is_sample = dataset == SAMPLE
        tasks = read_tasks(_SAMPLE_FOLDER if is_sample else Path(dataset))
        self._description = f"{len(tasks)} {'invented tasks' if is_sample else f'Harbor tasks of {dataset}'}"
        outcome = (
            RewardTerm("solved", self._solved),
            RewardTerm("tests_timed_out", self._timed_out, 0.0),
            RewardTerm("no_reward", self._no_reward, 0.0),
        )
        process = (
            RewardTerm("malformed_call", malformed_call, -0.1, kind="process"),
            RewardTerm("failed_call", failed_call, -0.05, kind="process"),
        )
        super().__init__(
            tasks=tasks,
            tools=self.make_tools(tasks[0]),
            reward=replace_presets(reward, {"em": outcome, "process": (*outcome, *process)}),
            **{"max_turns": 30, "max_history_chars": 131_072, **options},
        )

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """A shell over the files of the task."""
        if not isinstance(task, HarborTask):
            raise ConfigurationError(f"Harbor plays task folders only, got a {type(task).__name__}.")
        self._verdict = None
        shell = ShellTool(
            task.open_container, folder=task.workdir, timeout=self._command_seconds, environment=task.environment
        )
        return [shell]

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """Runs the solution of the task, then answers."""
        assert isinstance(task, HarborTask)
        if not 0 < len(task.solution) <= MAX_COMMAND_CHARS:
            return None
        return _DONE if history else ToolCall("bash", {"command": task.solution})

    def has_solution(self, task: Task) -> bool:
        """Whether the solution is a script that an agent could type."""
        assert isinstance(task, HarborTask)
        return task.has_plain_solution

    def success(self, task: Task, history: Sequence[Transition]) -> float:
        """The reward of the tests."""
        return self._verdict.reward if self._verdict is not None else 0.0

    def describe_dataset(self) -> str:
        """One line for people: which tasks are played."""
        return self._description

    def _solved(self, transition: Transition) -> float:
        """The reward of the tests, in the step that ends the episode; else 0."""
        return self._run_tests(transition).reward

    def _timed_out(self, transition: Transition) -> float:
        return float(self._run_tests(transition).timed_out)

    def _no_reward(self, transition: Transition) -> float:
        return float(not self._run_tests(transition).has_reward)

    def _run_tests(self, transition: Transition) -> Verdict:
        """Run the tests, once per episode."""
        if not (transition.terminated or transition.truncated):
            return Verdict(0.0)
        if self._verdict is None:
            shell = self.episode_tools[0]
            assert isinstance(shell, ShellTool)
            assert isinstance(transition.task, HarborTask)
            self._verdict = run_tests(transition.task, shell.container, self._test_seconds)
        return self._verdict
