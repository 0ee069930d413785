"""A process of an audit: `python -m agent_r1_gym.audit.child KIND PIPE COUNTER`, with a request on standard input.

"rules" runs rules and sends each result; "traces" plays given episodes, perhaps under another clock.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import os
import signal
import sys
import sysconfig
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from agent_r1_gym.audit.network import connection_attempts, watch_connections
from agent_r1_gym.audit.processes import CallCounter
from agent_r1_gym.audit.rules import find_rules, run_rule, unplayable
from agent_r1_gym.audit.sources import loaded_sources
from agent_r1_gym.audit.subject import Crash, Subject
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.errors import AgentR1Error
from agent_r1_gym.run.session import Job

Send = Callable[..., None]
_FORKED = "{} forked, and returned in both processes. End a forked process with os._exit."
_DURATIONS = ("monotonic", "perf_counter", "process_time")
_LONGEST_TEXT = 20_000


def main() -> None:
    """Read the request, and carry it out."""
    kind, pipe, counter = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    request = json.loads(sys.stdin.buffer.read())
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)  # a call of `input` ends at once
    os.set_inheritable(pipe, False)
    os.set_inheritable(counter, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)

    def send(**message: Any) -> None:
        line = json.dumps(message, default=repr).encode() + b"\n"
        while line:
            line = line[os.write(pipe, line) :]

    (_run_rules if kind == "rules" else _play_traces)(request, send, CallCounter(counter))
    sys.stdout.flush()
    os._exit(0)  # threads and exit handlers of an environment may hang


def _run_rules(request: Mapping[str, Any], send: Send, counter: CallCounter) -> None:
    settings = Settings(**request["settings"])
    watch_connections(block=not settings.network)
    try:
        rules = find_rules(request["rules"])
        subject = Subject.of_target(Target.from_dict(request["target"]), settings)
        subject.on_call = counter.add
        subject.on_fork = lambda what: send(crash=_FORKED.format(what))
        reason = unplayable(subject)
        _ = "" if reason else subject.oracle  # which may be unusable
    except AgentR1Error as error:
        send(refused=str(error))
        return
    if reason:
        crashes = [asdict(crash) for crash in subject.crashes]
        if hosts := ", ".join(sorted(connection_attempts())):
            reached = f"It tried to reach {hosts} before" + ("." if settings.network else "; --network allows that.")
            reason = f"{reason} {reached}"
            crashes = [{**crash, "message": f"{crash['message']} {reached}"} for crash in crashes]
        send(unplayable=reason, crashes=crashes)
        return
    send(sources=loaded_sources(subject.env))
    for rule in rules:
        send(start=rule.name)
        send(result=run_rule(rule, subject).to_dict())


def _play_traces(request: Mapping[str, Any], send: Send, counter: CallCounter) -> None:
    clock = Clock(request["clock"], request["clock_shift"])
    clock.replace_times()
    settings = Settings(**request["settings"])
    watch_connections(block=not settings.network)
    try:
        subject = Subject.of_target(Target.from_dict(request["target"]), settings)
        subject.on_call = counter.add
        subject.replay(Job(0, seed=0), [])  # loads what the environment imports late
        clock.replace_dates()
        episodes = []
        for episode in request["episodes"]:
            index, seed = episode["job"]
            clock.begin()
            played = subject.replay(Job(index, seed=seed), episode["actions"], subject.make())
            texts = [text[:_LONGEST_TEXT] for text in played.texts]
            episodes.append([played.trace, texts] if played.crash is None else [[], []])
    except (AgentR1Error, Crash) as error:
        send(error=str(error))
        return
    send(episodes=episodes)


class Clock:
    """The time of day in this process: it begins at the same moment in each episode, and moves only if it is read.

    So two processes see the same times, unless one is shifted. What measures durations goes on.

    Args:
        start: Unix time at which an episode begins.
        shift: seconds by which all clocks are ahead.
    """

    _TICK = 1e-6

    def __init__(self, start: float, shift: float = 0.0) -> None:
        self._start, self._shift, self._reads = start + shift, shift, 0

    def begin(self) -> None:
        """Set the time of day back to its start."""
        self._reads = 0

    def now(self) -> float:
        """Return the Unix time."""
        self._reads += 1
        return self._start + self._reads * self._TICK

    def replace_times(self) -> None:
        """Replace the functions of `time`, for code that is imported from now on."""
        time.time, time.time_ns = self.now, lambda: int(self.now() * 1e9)
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, self._at_now(getattr(time, name)))
        strftime, localtime = time.strftime, time.localtime
        time.strftime = lambda form, moment=None: strftime(form, localtime() if moment is None else moment)
        for name in _DURATIONS if self._shift else ():
            _shift(name, self._shift)
            _shift(f"{name}_ns", int(self._shift * 1e9))

    def _at_now(self, function: Callable[[float], Any]) -> Callable[..., Any]:
        return lambda seconds=None: function(self.now() if seconds is None else seconds)

    def replace_dates(self) -> None:
        """Replace `datetime`, in every module in Python that is loaded and not of the standard library.

        Its classes cannot be changed, and extension modules crash where they find others in their place.
        """
        replace_dates(self.now)


def _shift(name: str, ahead: float) -> None:
    clock: Callable[[], float] = getattr(time, name)
    setattr(time, name, lambda: clock() + ahead)


def replace_dates(clock: Callable[[], float]) -> None:
    """Let `datetime` read another clock, see `Clock.replace_dates`.

    Args:
        clock: returns the Unix time.
    """

    class Kind(type(datetime.datetime)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, cls.__mro__[1])

    class Later(datetime.datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return datetime.datetime.fromtimestamp(clock(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return datetime.datetime.fromtimestamp(clock(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return datetime.datetime.fromtimestamp(clock())

    class LaterDate(datetime.date, metaclass=Kind):
        @classmethod
        def today(cls) -> Any:
            return datetime.date.fromtimestamp(clock())

    module = types.ModuleType("datetime")
    vars(module).update(vars(datetime) | {"datetime": Later, "date": LaterDate})
    changed = {id(datetime): module, id(datetime.datetime): Later, id(datetime.date): LaterDate}
    standard = sysconfig.get_path("stdlib")
    for loaded in list(sys.modules.values()):
        file = getattr(loaded, "__file__", None) or ""
        is_own = file.endswith(".py") and (not file.startswith(standard) or "site-packages" in file)
        if is_own and loaded.__name__ not in (__name__, "__main__"):
            for name, value in list(vars(loaded).items()):
                if id(value) in changed:
                    setattr(loaded, name, changed[id(value)])


if __name__ == "__main__":
    main()
