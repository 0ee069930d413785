"""ProgramEnv: an episode that a program drives, as an environment; engines, trainer and records do not know of it.

`reset` starts the program and waits for its first request, whose messages and tools are the context. `step(turn)`
answers that request with the model's turn and waits for the next one. A request that continues a conversation adds its
new messages behind the turn, whose tokens stay as they were sampled. Any other request begins a new context of the same
episode, as when a history is rewritten: a compacted history, a second conversation, other tools. A conversation that
another one interrupted continues from its own tokens.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium

from agent_r1_gym.core.history import EpisodeState, History
from agent_r1_gym.core.parsing import visible_text
from agent_r1_gym.core.parsing.plain_turn import plain_answer
from agent_r1_gym.core.rewards import StepReward
from agent_r1_gym.core.text import encodable, render_message, render_text
from agent_r1_gym.core.tool import Arguments, PendingCall, Tool, execute_calls
from agent_r1_gym.core.tool_env import PendingStep, StepReturn, ToolEnv
from agent_r1_gym.core.types import (
    Message,
    ModelAction,
    ParsedTurn,
    ScriptedTurn,
    Task,
    ToolCall,
    ToolOutcome,
    Transition,
)
from agent_r1_gym.errors import ActionTypeError, ConfigurationError, EpisodeError, InfrastructureError
from agent_r1_gym.gateway.episode import Episode, ModelRequest, ModelTurn, ProgramEnd
from agent_r1_gym.gateway.programs import Program, ProgramJob, Stop, make_program
from agent_r1_gym.gateway.server import running_gateway
from agent_r1_gym.support.checks import check_path, check_seconds
from agent_r1_gym.support.concurrency import WorkerThread

AGENT_OPTIONS = ("agent", "agent_timeout", "agent_logs")
"""Options of an environment that have a program play it (see `split_agent`)."""
MAX_TURNS = 32
"""Turns of the model after which the episode of a program is truncated, unless the environment is made with another
number: how many a program takes is its own matter."""
_MAX_HISTORY_CHARS = 2**22
_LONGEST_QUOTE = 60
_LAST_REPORT_SECONDS = 5.0
"""How long a program that has used up its turns may take to report its result, or to end."""


class _Turn(NamedTuple):
    """A turn of the model, and the conversation that ends with it.

    Attributes:
        sent: the conversation as the program has it, as fingerprints.
        messages: the same as the model has it.
        tools: the tools on offer, as JSON.
    """

    sent: tuple[Hashable, ...]
    messages: tuple[Message, ...]
    tools: str


class _Context(NamedTuple):
    """What the model sees before its next turn.

    Attributes:
        request: the request that it comes from.
        messages: all of it.
        new: number of messages behind the turn that it continues; of a conversation that was not seen before: all.
        continued: number of the turn that it continues; None: none.
        reason: why it does not continue the latest turn; "" if it does.
    """

    request: ModelRequest
    messages: tuple[Message, ...]
    new: int
    continued: int | None = None
    reason: str = ""


class ProgramEnv(ToolEnv):
    """A task environment whose episodes are played by a program.

    Tasks, rewards, scorer and parser are those of the task environment. Its prompt is not shown: the program writes its
    own. Tools that a request offers are described to the model in the format of the parser, behind the program's system
    message (a task environment with `system_prompt=""`, for a model that was trained without, adds nothing); without
    tools, a turn is text and nothing is parsed. The program executes the calls, itself or with the tools of the task
    environment (`POST /v1/tools/NAME`).

    An episode ends when the program ends, or by the rules of the task (a ticket is closed), unless by an answer. The
    final answer is what the program reports, else that of the last turn. A reward that the program reports takes
    the place of the outcome reward. A program that fails, or that asks for nothing for `agent_timeout` seconds, is an
    infrastructure failure.

    Information, in addition to `ToolEnv`: `context_rewritten` (the next turn does not continue the latest one),
    `resumed_turn` (number of the earlier turn that it continues, None if it continues none), `rewrite_reason`.

    Args:
        task_env: the environment that has the tasks.
        agent: the program, see `programs.make_program`.
        agent_timeout: seconds to wait for its next request or its end.
        agent_logs: folder for what commands print; None: those of failed ones, in a temporary folder.

    Attributes:
        agent: name of the program.

    Raises:
        ConfigurationError: an argument has a wrong value.
        MissingDependencyError: the server extra is not installed.
    """

    waits_at_reset = True

    def __init__(
        self,
        task_env: ToolEnv,
        agent: str | Callable[..., Any] | Program,
        *,
        agent_timeout: float = 300.0,
        agent_logs: str | None = None,
    ) -> None:
        check_seconds("agent_timeout", agent_timeout)
        if agent_logs is not None:
            check_path("agent_logs", agent_logs)
        if any(tool.takes_messages for tool in task_env.make_tools(task_env.tasks[0])):
            raise ConfigurationError(
                f"The tasks of {type(task_env).__name__} are conversations with a simulated user, to whom a program "
                "cannot speak; drop agent (--agent)."
            )
        self.task_env, self._timeout = task_env, agent_timeout
        self._program = make_program(agent, logs=None if agent_logs is None else str(agent_logs))
        self.agent = agent if isinstance(agent, str) else getattr(agent, "__name__", type(agent).__name__)
        self._offered: tuple[Mapping[str, Any], ...] = ()
        self._episode: Episode | None = None
        """The latest episode; closed once it has ended."""
        self._stop: Stop | None = None
        self._context: _Context
        super().__init__(
            tasks=task_env.tasks,
            parser=task_env.parser,
            reward=task_env.rewards,
            scorer=task_env.scorer,
            max_turns=task_env._given_options.get("max_turns", MAX_TURNS),
            max_history_chars=_MAX_HISTORY_CHARS,
            markup=task_env.markup,
        )
        self.formatter, self.held_out_splits = task_env.formatter, task_env.held_out_splits
        self._spec = task_env.spec
        self._turns: list[_Turn] = []
        self._executed: dict[str, list[ToolOutcome]] = {}
        self._called: list[tuple[ToolCall, ToolOutcome]] = []
        """Calls of tools with a budget."""
        self._lost_tool: str | None = None
        """The failure of a tool's backend, in a call of the model or of the program."""
        self._tool_thread = WorkerThread()
        self._action = ModelAction("")
        """The turn that was begun last."""
        self._gateway = running_gateway()

    # --- what comes from the task environment ------------------------------------------------------------------------

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The tools that the latest request offers."""
        return [dict(schema) for schema in self._offered]

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """See `ToolEnv`."""
        return self.task_env.make_tools(task)

    def task_prompt(self, task: Task) -> str:
        """See `ToolEnv`."""
        return self.task_env.task_prompt(task)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """See `ToolEnv`."""
        return self.task_env.oracle(task, history)

    def has_solution(self, task: Task) -> bool:
        """See `ToolEnv`."""
        return self.task_env.has_solution(task)

    def success(self, task: Task, history: Sequence[Transition]) -> float | None:
        """See `ToolEnv`."""
        return self.task_env.success(task, history)

    def describe_dataset(self) -> str:
        """See `ToolEnv`."""
        return self.task_env.describe_dataset()

    def task_of(self, task: Task, request: ModelRequest) -> Task:
        """Return the task of the episode that begins with `request`; default: the one that the program was given."""
        return task

    def system_text(self, parser: Any, row_system: str = "") -> str:
        """Write the system turn: that of the program, and how to call the tools that it offers."""
        teaches = self._offered and parser.tool_style != "native" and self.task_env._system_prompt != ""
        return "\n\n".join(filter(None, [row_system, parser.instructions(self.tool_schemas) if teaches else ""]))

    # --- reset and step ----------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start the program on a task, and return its first request (see `ToolEnv`).

        Raises:
            InfrastructureError: the program failed before its first request.
        """
        self._end_program("another one began", wait_for_tool=True)
        gymnasium.Env.reset(self, seed=seed)
        self._tool_thread.call_or_run_here(functools.partial(self.task_env.reset, seed=seed, options=options))
        task = self.task_env.task
        if task.history:
            raise ConfigurationError(
                f"Task {task.id!r} continues a conversation of {len(task.history)} messages, but a program is given "
                "the last one only; drop agent (--agent)."
            )
        self._pending, self._turns, self._executed, self._called, self._offered = None, [], {}, [], ()
        self._lost_tool = None
        self._history = History(task, (), "", ended=True)  # no episode until the program asks
        waits = self._program.comes_by_itself
        self._episode = episode = Episode(
            self._run_tool, self.task_env.tool_schemas, thread=self._tool_thread, ends_with_result=waits
        )
        self._gateway.gateway.open(episode)
        self._stop = self._program.start(
            ProgramJob(
                task=self.task_prompt(task),
                base_url=self._gateway.base_url,
                api_key=episode.key,
                on_result=episode.report,
                on_end=episode.end,
            )
        )
        event = episode.next_event(None if waits else self._timeout)
        if isinstance(event, ProgramEnd):
            self._end_program("the program has ended")
            ended = "the program ended without asking for a turn: it must send its requests to {base_url}"
            raise InfrastructureError(event.failure or ended)
        try:
            self._context = context = self._read(event)
        except ConfigurationError as error:
            self._end_program("its first request cannot be played")
            raise InfrastructureError(f"The first request of the program cannot be played: {error}") from error
        text = render_text(context.messages)
        if len(text) > self.max_history_chars:
            self._end_program("its first request is too long")
            raise InfrastructureError(
                f"The first request of the program has {len(text)} characters; at most {self.max_history_chars} are "
                "supported."
            )
        task = self.task_of(task, event)
        self._history = History(task, context.messages, text, prompt_length=len(context.messages))
        return self._observe(new=len(context.messages), step_reward=StepReward(0.0, {}, 0.0), end_reason=None)

    def begin_step(self, action: str) -> tuple[PendingCall, ...]:
        """First half of `step`: the wait for the program is its one call (see `ToolEnv`)."""
        if not isinstance(action, str):
            raise ActionTypeError(f"An action must be a string (one model turn), got {type(action).__name__}.")
        if self._history is None or self._history.ended or self._episode is None:
            raise EpisodeError("No episode is running: call reset() before the first step and after an episode ended.")
        self._action = action if isinstance(action, ModelAction) else ModelAction(action)
        action = encodable(str(action))
        self._pending = PendingStep(action, self.parse(action), (), {}, over_budget=False)
        call = PendingCall(_NEXT_REQUEST, ToolCall(_NEXT_REQUEST.name, {"env": self}), id(self))
        self._pending.calls = (call,)
        return (call,)

    def parse(self, action: str) -> ParsedTurn:
        """Parse a turn; one without a call is an answer, if the program takes it as its last."""
        parsed = self.parser.parse(action)
        if not self._offered:  # text is text
            parsed = replace(parsed, calls=(), errors=(), content=self._as_text(parsed))
        if parsed.calls or parsed.answer is not None:
            return parsed
        if parsed.errors and [error.code for error in parsed.errors] not in self.task_env.plain_errors:
            return parsed
        extractor = self.task_env._answer_extractor or "text"
        content = action if parsed.content is None else parsed.content
        return replace(parsed, answer=plain_answer(content, extractor), errors=())

    def _as_text(self, parsed: ParsedTurn) -> str | None:
        """Return the content of a turn, with the calls that its format has outside of it as the model wrote them."""
        write = getattr(self.parser, "write_call", None) or self.parser.format_call
        is_outside = self.parser.tool_style == "native" and parsed.calls
        return "\n".join(filter(None, [parsed.content, *map(write, parsed.calls)])) if is_outside else parsed.content

    def preview_transition(self, outcomes: Sequence[ToolOutcome]) -> Transition:
        """See `ToolEnv`; what a judge is asked ahead is never the end, which is known when the program has ended."""
        if self._pending is None or self._history is None:
            raise EpisodeError("preview_transition() was called without begin_step().")
        earlier = self._history.transitions
        return Transition(
            self._history.task, len(earlier), replace(self._pending.parsed, calls=()), (), earlier=earlier
        )

    def _without_marks(self, answer: str) -> str:
        """Return an answer that the program reports; it may have passed on the model's turn, marks included."""
        inner = self.parser.parse(answer).answer
        return answer if inner is None else inner

    def send_turn(self) -> None:
        """Answer the request of the program with the turn that was begun."""
        pending, context, episode = self._pending, self._context, self._episode
        assert pending is not None
        assert episode is not None
        own, number = self.parser.to_message(pending.action, pending.parsed), len(self._turns)
        turn = self._delivered(own, pending, number)
        sent = Message("assistant", turn.content, tool_calls=turn.calls)
        self._turns.append(
            _Turn(
                (*map(_fingerprint, context.request.messages), _fingerprint(sent)),
                (*context.messages, own),
                json.dumps(context.request.tools),
            )
        )
        episode.answer(turn)

    def wait(self) -> ToolOutcome:
        """Wait for the next request of the program, or its end, which is the outcome's `data`."""
        assert self._episode is not None
        event = self._episode.next_event(self._timeout)
        if isinstance(event, ModelRequest) and len(self._turns) >= self.max_turns:
            self._episode.refuse_turns("max_turns")
            while isinstance(self._episode.next_event(_LAST_REPORT_SECONDS), ModelRequest):
                pass  # what it reports of its episode counts
        if isinstance(event, ProgramEnd) and event.failure:
            return ToolOutcome(event.failure, ok=False, error="timeout" if event.timed_out else "unavailable")
        return ToolOutcome("", data=event)

    def finish_step(self, outcomes: Sequence[ToolOutcome]) -> StepReturn:
        """Second half of `step`: what the program did with the turn (see `ToolEnv`)."""
        pending, history = self._pending, self._history
        if pending is None or history is None or len(outcomes) != 1 or len(self._turns) == len(history.transitions):
            raise EpisodeError("finish_step() takes the one outcome of the call that begin_step() returned.")
        self._pending = None
        (outcome,) = outcomes
        event = outcome.data
        own, parsed, turn = self._turns[-1].messages[-1], pending.parsed, len(history.transitions)
        if not outcome.ok:
            return self._failed(history, own, outcome)
        results = self._results(parsed, turn, event if isinstance(event, ModelRequest) else None)
        end_reason = self._program_end_reason(event, parsed, results, history)
        if end_reason is None:
            try:
                self._context = self._read(event)
            except ConfigurationError as error:  # such as a call that the format cannot express
                problem = ToolOutcome(f"a request of the program cannot be played: {error}", ok=False)
                return self._failed(history, own, problem)
        text = self._text(history, own, end_reason)
        if len(text) > self.max_history_chars and end_reason is None:
            text, end_reason = history.text, "max_history"
        assert self._episode is not None
        reported = self._episode.result.answer
        if reported is not None and end_reason not in (None, "goal"):
            parsed, end_reason = replace(parsed, answer=self._without_marks(reported)), "answer"
        if end_reason is not None:
            self._end_program(end_reason, wait_for_tool=True)
        terminated = end_reason in ("answer", "goal", "program_ended")
        transition = Transition(
            history.task,
            turn,
            parsed,
            results,
            terminated,
            end_reason is not None and not terminated,
            history.transitions,
        )
        step_reward = self._reward(transition)
        failure = self._lost_tool if step_reward.failure is None else f"reward: {step_reward.failure}"
        messages = (*history.messages, own) if end_reason is not None else self._context.messages
        self._history = History(
            history.task,
            messages,
            text,
            (*history.transitions, transition),
            ended=end_reason is not None,
            infrastructure_error=failure or history.infrastructure_error,
            prompt_length=history.prompt_length,
        )
        new = () if end_reason is not None else messages[len(messages) - self._context.new :]
        observation, info = self._observe(new=1, step_reward=step_reward, end_reason=end_reason)
        info["new_messages"] = (own, *new)
        return observation, step_reward.reward, transition.terminated, transition.truncated, info

    def _program_end_reason(
        self, event: Any, parsed: ParsedTurn, results: tuple[ToolOutcome, ...], history: History
    ) -> str | None:
        """Return why an episode ends after a turn; None if it goes on."""
        if not isinstance(event, ModelRequest):
            return "program_ended" if parsed.answer is None else "answer"
        turn = len(history.transitions)
        done = Transition(history.task, turn, parsed, results, False, False, history.transitions)
        if parsed.answer is None and self.task_env.is_terminated(done):  # an answer may not be the last
            return "goal"
        return "max_turns" if turn + 1 >= self.max_turns else None

    def _failed(self, history: History, own: Message, outcome: ToolOutcome) -> StepReturn:
        """End the episode of a program that failed, without a reward."""
        self._history = history._replace(
            messages=(*history.messages, own), ended=True, infrastructure_error=outcome.content
        )
        self._end_program("the program has failed")
        nothing = StepReward(0.0, {}, 0.0)
        observation, info = self._observe(new=1, step_reward=nothing, end_reason="program_failed")
        return observation, 0.0, False, True, info

    def _observe(self, *, new: int, step_reward: StepReward, end_reason: str | None) -> tuple[str, dict[str, Any]]:
        if end_reason is not None:
            self._tool_thread.call_or_run_here(self.task_env.toolbox.finish)
        observation, info = super()._observe(new=new, step_reward=step_reward, end_reason=end_reason)
        context = self._context if end_reason is None else None
        info["context_rewritten"] = context is not None and bool(context.reason)
        info["resumed_turn"] = context.continued if context is not None and context.reason else None
        info["rewrite_reason"] = context.reason if context is not None else ""
        return observation, info

    # --- conversations -----------------------------------------------------------------------------------------------

    def _read(self, request: ModelRequest) -> _Context:
        """Find the turn that a request continues, and write its messages as the model gets them."""
        sent, tools = tuple(map(_fingerprint, request.messages)), json.dumps(request.tools)
        self._offered = request.tools
        for number in reversed(range(len(self._turns))):
            turn = self._turns[number]
            rest = request.messages[len(turn.sent) :]
            is_same = turn.tools == tools and sent[: len(turn.sent)] == turn.sent
            if is_same and rest and all(message.role != "assistant" for message in rest):
                new = [self._shown(message) for message in rest]
                is_latest = number == len(self._turns) - 1
                reason = "" if is_latest else f"it continues turn {number}, of an earlier conversation"
                return _Context(request, (*turn.messages, *new), len(new), number, reason)
        messages = list(request.messages)
        system = messages.pop(0).content if messages[0].role == "system" else ""
        text = self.system_text(self.parser, _without(system, self.markup))
        opening = [Message("system", text)] if text else []
        shown = (*opening, *(self._shown(message) for message in messages))
        return _Context(request, shown, len(shown), None, self._difference(sent, tools) if self._turns else "")

    def _shown(self, message: Message) -> Message:
        """Write a message of the program as the model gets it: a turn that was its own, as it wrote it."""
        if message.role == "assistant":
            fingerprint = _fingerprint(message)
            own = next((turn.messages[-1] for turn in reversed(self._turns) if turn.sent[-1] == fingerprint), None)
            if own is not None:
                return own
            if self.parser.tool_style == "native":
                return message
            return Message("assistant", self.parser.format_message(message))
        if message.role != "tool":  # the program's own words, as in its system message
            return Message("user", _without(encodable(message.content), self.markup))
        call = ToolCall(message.name or "", {})
        shown = self.formatter.outcome(call, ToolOutcome(message.content), self._model_id(message.tool_call_id))
        return replace(shown, content=self.parser.show_outcome(shown.content))

    def _model_id(self, identifier: str | None) -> str | None:
        """Return the id of a call as the model wrote it; None where its format numbers no calls."""
        for turn in reversed(self._turns):
            own, sent = turn.messages[-1], turn.sent[-1]
            ids = [call[0] for call in sent[3]] if isinstance(sent, tuple) else []
            if identifier in ids and own.tool_calls:
                position = ids.index(identifier)
                return own.tool_calls[position].id or f"call_{position}"
        return identifier if self.parser.tool_style == "native" else None

    def _difference(self, sent: Sequence[Hashable], tools: str) -> str:
        """Say where a request departs from the conversation of the latest turn."""
        latest = self._turns[-1]
        for number, (old, new) in enumerate(zip(latest.sent, sent, strict=False)):
            if old != new:
                return f"message {number} was {_quote(old)}, and is {_quote(new)}"
        if len(sent) <= len(latest.sent):
            return f"it ends before message {len(sent)}, {_quote(latest.sent[len(sent)])}"
        if tools != latest.tools:
            return "the tools have changed"
        return f"message {len(latest.sent)} is a turn of the assistant that the model did not write"

    def _delivered(self, own: Message, pending: PendingStep, number: int) -> ModelTurn:
        """Write a turn as the program gets it: without the markup of the format, and without reasoning."""
        parsed_calls = enumerate(pending.parsed.calls)
        calls = tuple(replace(call, id=f"call_{number}_{position}") for position, call in parsed_calls)
        marked = self.parser.parse(pending.action).answer if self._offered and not calls else None
        action = self._action
        counts = action.prompt_tokens or 0, action.completion_tokens or 0
        if marked is not None:
            return ModelTurn(marked, (), False, *counts)
        content = own.content if own.tool_calls or not calls else self.parser.split_calls(own.content)[0]
        return ModelTurn(visible_text(content).strip(), calls, action.is_cut, *counts)

    def _text(self, history: History, own: Message, end_reason: str | None) -> str:
        if end_reason is None and self._context.reason:
            return render_text(self._context.messages)
        new = (
            () if end_reason is not None else self._context.messages[len(self._context.messages) - self._context.new :]
        )
        return "".join([history.text, *map(render_message, (own, *new))])

    # --- calls and rewards -------------------------------------------------------------------------------------------

    def _run_tool(self, call: ToolCall) -> ToolOutcome:
        """Execute a call of a tool of the task environment; the content is as models read it."""
        history = self.task_env._history
        if history is None:
            raise EpisodeError("The task environment has no episode.")
        # The task environment makes no steps: its budgets count what was called so far as one turn.
        earlier = ParsedTurn(tuple(each for each, _ in self._called))
        so_far = Transition(history.task, 0, earlier, tuple(outcome for _, outcome in self._called))
        valid, rejected = self.task_env._check_calls((call,), history._replace(transitions=(so_far,)))
        outcome = rejected[0] if rejected else execute_calls(valid)[0]
        if call.name in self.task_env.budgets:
            self._called.append((call, outcome))
        if outcome.is_infrastructure_failure:
            self._lost_tool = self._lost_tool or f"{call.name}: {outcome.error}: {outcome.content}"
        self._executed.setdefault(_call_key(call), []).append(outcome)
        return replace(outcome, content=self.formatter.outcome(call, outcome, None).content)

    def _results(self, parsed: ParsedTurn, number: int, request: ModelRequest | None) -> tuple[ToolOutcome, ...]:
        """Return the outcomes of a turn's calls: of the task environment's tools, else what the program sends back."""
        answers = {
            m.tool_call_id: m.content for m in (request.messages if request is not None else ()) if m.role == "tool"
        }
        offered = {schema["function"]["name"] for schema in json.loads(self._turns[-1].tools)}
        numbers, results = Counter(map(_call_key, parsed.calls)), []
        # The latest ones: a program may have run the same call before, or tried it again.
        latest = {key: self._executed.pop(key, [])[-number:] for key, number in numbers.items()}
        for position, call in enumerate(parsed.calls):
            if executed := latest[_call_key(call)]:
                results.append(executed.pop(0))
                continue
            content = answers.get(f"call_{number}_{position}", "")
            is_known = call.name in offered
            results.append(ToolOutcome(content, ok=is_known, error=None if is_known else "unknown_tool"))
        return tuple(results)

    def _reward(self, transition: Transition) -> StepReward:
        """Reward a step; what the program reports takes the place of the outcome reward, at the end."""
        step_reward = self.rewards.evaluate(transition)
        return self._with_reported(step_reward) if transition.terminated or transition.truncated else step_reward

    def _with_reported(self, step_reward: StepReward) -> StepReward:
        reported = self._episode.result.reward if self._episode is not None else None
        if reported is None:
            return step_reward
        process = step_reward.reward - step_reward.outcome
        return StepReward(
            process + reported, {**step_reward.terms, "reported": reported}, reported, step_reward.failure
        )

    # --- the end of the program --------------------------------------------------------------------------------------

    def truncate_with_terms(self) -> StepReward:
        """See `ToolEnv`; ends the program."""
        if self._history is not None and not self._history.ended:
            self._end_program("a budget of tokens or time ran out", wait_for_tool=True)
        step_reward = self._with_reported(super().truncate_with_terms())
        if self._lost_tool is not None and self._history is not None:
            step_reward = step_reward._replace(failure=self._lost_tool)
            self._history = self._history._replace(infrastructure_error=self._lost_tool)
        self._tool_thread.call_or_run_here(self.task_env.toolbox.finish)
        return step_reward

    def release_resources(self) -> None:
        """End the program."""
        super().release_resources()
        self._end_program("it was stopped")
        self._tool_thread.call_or_run_here(self.task_env.release_resources)

    def close(self) -> None:
        """End the program, and close the task environment."""
        self._end_program("it was stopped")
        super().close()
        self._tool_thread.call_or_run_here(self.task_env.close)
        self._tool_thread.end()
        self._tool_thread = WorkerThread()  # for an episode after `close`

    def get_state(self) -> EpisodeState:
        """Refuse: a running program cannot be copied."""
        raise EpisodeError("The episode of a program cannot be saved: nothing can copy a running program.")

    def set_state(self, state: EpisodeState) -> None:
        """Refuse: see `get_state`."""
        self.get_state()

    def _end_program(self, reason: str, *, wait_for_tool: bool = False) -> None:
        """Refuse the program further turns and calls, and stop it.

        Args:
            reason: why, for the program.
            wait_for_tool: whether to wait for a call that runs: it must change neither an episode that is being scored
                nor the next one.
        """
        # Kept, so that a step that is under way in another thread ends as that of a failed program.
        if self._episode is not None:
            self._gateway.gateway.close(self._episode, reason)
        if self._stop is not None:
            self._stop()
        if self._episode is not None and wait_for_tool:
            self._episode.wait_for_tool()


class _NextRequest(Tool):
    """The wait for programs as a tool, so that it runs wherever calls run: in any thread, and for many at once.

    The argument of a call is the environment of the episode.
    """

    def __init__(self) -> None:
        super().__init__("next_request", "Waits for a program.", {"type": "object"}, timeout=None)

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """See `execute_batch`."""
        return self.execute_batch([arguments])[0]

    def execute_batch(self, batch: Sequence[Arguments]) -> list[ToolOutcome]:
        """Answer all programs, which then work side by side, and wait for each."""
        envs: list[ProgramEnv] = [arguments["env"] for arguments in batch]
        for env in envs:
            env.send_turn()
        return [env.wait() for env in envs]

    @property
    def is_instant(self) -> bool:
        """Programs take their time."""
        return False


_NEXT_REQUEST = _NextRequest()


def split_agent(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of the environment and the `AGENT_OPTIONS` among them that are not None."""
    agent = {name: options[name] for name in AGENT_OPTIONS if options.get(name) is not None}
    if agent and "agent" not in agent:
        raise ConfigurationError(f"{next(iter(agent))} has no effect without agent, the program.")
    return {name: value for name, value in options.items() if name not in AGENT_OPTIONS}, agent


def with_agent(env: gymnasium.Env[str, str], name: str, agent: Mapping[str, Any]) -> gymnasium.Env[str, str]:
    """Have a program play an environment, if its options name one.

    Args:
        env: the environment.
        name: its name in error messages.
        agent: the second result of `split_agent`.

    Raises:
        ConfigurationError: a value is wrong, or the environment is no `ToolEnv`, or has wrappers.
    """
    if not agent:
        return env
    if not isinstance(env, ToolEnv):
        raise ConfigurationError(
            f"agent={agent['agent']!r:.80} needs an environment with tasks and a scorer; {name!r} is a "
            f"{type(env).__name__}, not a ToolEnv. A context window has no effect on a program, which keeps its own "
            "history."
        )
    return ProgramEnv(env, **agent)


def _fingerprint(message: Message) -> Hashable:
    """Return what is compared of a message: clients may change the white space around a text, and the form of JSON."""
    calls = tuple((call.id, _call_key(call)) for call in message.tool_calls)
    return message.role, message.content.strip(), message.tool_call_id, calls


def _call_key(call: ToolCall) -> str:
    """Return what a call asks for: 2.0 is 2, as clients in other languages write it."""
    return replace(call, arguments=_with_integers(dict(call.arguments))).key


def _with_integers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_integers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _quote(fingerprint: Any) -> str:
    role, content, answered, calls = fingerprint
    text = " ".join(filter(None, [answered, content, *(f"{identifier} {key}" for identifier, key in calls)]))
    return f"{role}: {text[:_LONGEST_QUOTE]!r}"


def _without(text: str, markup: Sequence[str]) -> str:
    """Break special tokens in the system message of a program, which may name tags of the format."""
    for literal in markup:
        text = text.replace(literal, f"{literal[0]}\u200b{literal[1:]}")
    return text
