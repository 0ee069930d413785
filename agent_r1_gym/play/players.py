"""Players without a model in this process: scripted policies, and an endpoint with many requests in flight."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.parsing import OpenAIParser
from agent_r1_gym.play.endpoint import ChatEndpoint, Completion, ContextLengthError, endpoint_failure
from agent_r1_gym.play.episode import Episode
from agent_r1_gym.play.jobs import Job, Played, Player
from agent_r1_gym.play.methods import Method, Prompt
from agent_r1_gym.play.policy import Policy
from agent_r1_gym.vector import step_together

MakeEnv = Callable[[], ToolEnv]


@dataclass(slots=True)
class _Live:
    """An episode under way."""

    job: Job
    episode: Episode
    start: float

    @classmethod
    def of(cls, job: Job, env: ToolEnv, seed: int) -> _Live:
        start = time.perf_counter()
        return cls(job, Episode.start(env, job.task_index, seed=job.seed(seed)), start)

    def played(self, name: str, error: str | None = None) -> Played:
        trajectory = self.episode.trajectory(name, infrastructure_error=error)
        return Played(self.job, trajectory, time.perf_counter() - self.start)


class ScriptedPlayer(Player):
    """Plays a policy that acts for many episodes at once, side by side.

    Args:
        make_env: returns a new environment.
        policy: who acts.
        side_by_side: episodes at once.
        seed: of the run.
    """

    def __init__(self, make_env: MakeEnv, policy: Policy, *, side_by_side: int, seed: int) -> None:
        self._make_env, self._policy, self._most, self._seed = make_env, policy, side_by_side, seed

    def play(self, jobs: Sequence[Job]) -> Iterator[Played]:
        """See the base class."""
        queue = iter(jobs)
        idle = [self._make_env() for _ in range(min(self._most, len(jobs)))]
        live: list[_Live] = []
        while True:
            live += [_Live.of(job, idle.pop(), self._seed) for job in itertools.islice(queue, len(idle))]
            if not live:
                return
            actions = self._policy.act([each.episode.policy_input() for each in live])
            steps = step_together([each.episode.env for each in live], actions)
            for each, action, step in zip(live, actions, steps, strict=True):
                each.episode.add(action, step)
                if each.episode.ended:
                    yield each.played(self._policy.name)
                    idle.append(each.episode.env)
            live = [each for each in live if not each.episode.ended]


@dataclass(frozen=True, slots=True)
class _Asked:
    live: _Live
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class _Answered:
    live: _Live
    reply: Completion | BaseException


class EndpointPlayer(Player):
    """Plays a model behind an endpoint; an episode waits for its own turn only, never for another's.

    Requests are sent by threads, one in flight each. The environments are stepped in the calling thread: what has come
    back meanwhile is stepped together, its tool calls as one batch.

    Args:
        make_env: returns a new environment.
        method: how the model is asked.
        endpoint: where it is.
        in_flight: requests at once, and episodes.
        seed: of the run.
        name: of the policy, for traces.
    """

    def __init__(
        self, make_env: MakeEnv, method: Method, endpoint: ChatEndpoint, *, in_flight: int, seed: int, name: str
    ) -> None:
        self._make_env, self._method, self._endpoint = make_env, method, endpoint
        self._most, self._seed, self._name = in_flight, seed, name
        self._inbox: SimpleQueue[_Asked | None] = SimpleQueue()
        self._outbox: SimpleQueue[_Answered] = SimpleQueue()
        self._threads = 0
        self._waiting = 0
        self._idle: list[ToolEnv] = []

    def play(self, jobs: Sequence[Job]) -> Iterator[Played]:
        """See the base class."""
        queue = iter(jobs)
        self._prepare(min(self._most, len(jobs)))
        moving: list[tuple[_Live, str | None]] = []
        while True:
            starting = itertools.islice(queue, len(self._idle))
            moving += [(_Live.of(job, self._idle.pop(), self._seed), None) for job in starting]
            moving += self._move([live for live, error in moving if error is None and not live.episode.ended])
            over = [(live, error) for live, error in moving if error is not None or live.episode.ended]
            for live, error in over:
                yield live.played(self._name, error)
                self._idle.append(live.episode.env)
            if over:
                moving = []  # their places are filled before anything is waited for
            elif self._waiting:
                moving = self._take(self._collect())
            else:
                return

    def close(self) -> None:
        """Ends the threads and closes the connections."""
        for _ in range(self._threads):
            self._inbox.put(None)
        self._threads = 0
        self._endpoint.close()

    def _move(self, lives: Sequence[_Live]) -> list[tuple[_Live, str | None]]:
        """Brings episodes to where they need the model, and asks for it; returns those that ended on the way."""
        over: list[tuple[_Live, str | None]] = []
        while lives:
            scripted: list[tuple[_Live, str]] = []
            for live in lives:
                move = self._method.ask(live.episode.policy_input())
                if isinstance(move, str):
                    scripted.append((live, move))
                else:
                    self._inbox.put(_Asked(live, move))
                    self._waiting += 1
            self._step(scripted)
            lives = [live for live, _ in scripted if not live.episode.ended]
            over += [(live, None) for live, _ in scripted if live.episode.ended]
        return over

    def _take(self, answers: Sequence[_Answered]) -> list[tuple[_Live, str | None]]:
        """Steps the episodes that were answered; returns each with what failed outside of it, None if nothing did."""
        taken: list[tuple[_Live, str | None]] = []
        spoken: list[tuple[_Live, Completion]] = []
        for answer in answers:
            if isinstance(answer.reply, Completion):
                spoken.append((answer.live, answer.reply))
                taken.append((answer.live, None))
            elif isinstance(answer.reply, ContextLengthError) and answer.live.episode.turns:
                answer.live.episode.truncate()
                taken.append((answer.live, None))
            elif isinstance(answer.reply, InfrastructureError):
                taken.append((answer.live, endpoint_failure(answer.reply)))
            else:
                raise answer.reply
        self._step([(live, self._action(live, reply)) for live, reply in spoken], [reply for _, reply in spoken])
        for live, _ in spoken:
            if self._method.one_shot and not live.episode.ended:
                live.episode.truncate("no_answer")
        return taken

    def _action(self, live: _Live, reply: Completion) -> str:
        state = live.episode.policy_input()
        return self._method.action(state, reply.text(state.parser))

    def _step(self, actions: Sequence[tuple[_Live, str]], replies: Sequence[Completion] = ()) -> None:
        steps = step_together([live.episode.env for live, _ in actions], [action for _, action in actions])
        for (live, action), step, reply in zip(actions, steps, replies or [Completion("")] * len(steps), strict=True):
            live.episode.add(action, step, prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)

    def _collect(self) -> list[_Answered]:
        """Waits for one answer and returns it with all that are there already."""
        answers = [self._outbox.get()]
        try:
            while True:
                answers.append(self._outbox.get_nowait())
        except Empty:
            self._waiting -= len(answers)
            return answers

    def _prepare(self, wanted: int) -> None:
        """Brings environments and threads to the wanted number."""
        self._idle += [self._make_env() for _ in range(wanted - len(self._idle))]
        # Daemons: a request that hangs must not keep the program from ending.
        for _ in range(wanted - self._threads):
            threading.Thread(target=self._work, name="agent-r1-endpoint", daemon=True).start()
        self._threads = max(self._threads, wanted)

    def _work(self) -> None:
        while (request := self._inbox.get()) is not None:
            live = request.live
            tools = live.episode.env.tool_schemas if self._is_structured(live) else None
            seed = (live.job.seed(self._seed) + len(live.episode.turns)) % 2**31
            try:
                self._outbox.put(_Answered(live, self._endpoint.complete(request.prompt, seed=seed, tools=tools)))
            except BaseException as error:  # raised again by the thread that waits for the answer
                self._outbox.put(_Answered(live, error))

    def _is_structured(self, live: _Live) -> bool:
        return not self._method.one_shot and isinstance(live.episode.env.parser, OpenAIParser)
