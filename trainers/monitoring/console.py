"""What a run prints: first screen, progress bar, time estimates, sample rollouts, last screen."""

from __future__ import annotations

import os
import shlex
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.gateway.env import ProgramEnv
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.evaluation.agent_card import FILE, AgentCard
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.support.terminal import Progress, short_number
from agent_r1_gym.wrappers.game import TextGame
from trainers.config.agent import AgentConfig

# --- Before the run ---

_SHORT_BARS = ("Loading weights", "Writing model shards")
"""Labels of progress bars that are full before anyone can read them; those of downloads stay."""


def silence_libraries() -> None:
    """Silence warnings and bars of TRL and transformers that appear at every start and that users cannot act on."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # `rollout_func` is experimental; a contract test watches it
    # TRL sets the old name of an option that transformers has renamed.
    warnings.filterwarnings(
        "ignore", message="\\W*(is_)?gradient_checkpointing\\S* is deprecated", category=FutureWarning
    )
    # Pinned memory is torch's default, and useless without a GPU.
    warnings.filterwarnings("ignore", message="'pin_memory' argument is set as true but no accelerator")
    if hasattr(logging, "set_tqdm_hook"):  # since transformers 5
        logging.set_tqdm_hook(_without_short_bars)


def _without_short_bars(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return factory(*args, **(kwargs | {"disable": True} if kwargs.get("desc") in _SHORT_BARS else kwargs))


def start_summary(
    args: AgentConfig,
    model: str,
    parameters: tuple[int, int],
    envs: Mapping[str, TextEnv],
    rows: int,
    *,
    memory: str = "",
    slots: str = "",
) -> str:
    """First screen of a run.

    Args:
        args: the configuration.
        model: hub id or folder of the trained model.
        parameters: number of trained parameters, and of all.
        envs: environments of the run, by name.
        rows: number of training rows.
        memory: estimated memory per device; "" if it is unknown.
        slots: number of concurrent rollouts and its reason; "" if the engine decides.
    """
    batch = args.generation_batch_size or args.per_device_train_batch_size
    prompts = max(1, batch // args.num_generations)
    passes = f"{args.num_train_epochs:g} passes over {f'{rows} rows' if len(envs) > 1 else 'the tasks'}"
    steps = f"{args.max_steps} steps" if args.max_steps > 0 else passes
    trained, total_parameters = parameters
    lines = [("model", f"{model}: {short_number(trained)} of {short_number(total_parameters)} parameters are trained")]
    total = sum(member.weight for member in args.environments)
    for member, env in zip(args.environments, envs.values(), strict=True):
        share = f", {member.weight / total:.0%} of the rows" if len(envs) > 1 else ""
        lines += _environment_lines(member.name if len(envs) > 1 else member.env_id, env, rows, share)
    lines += [
        ("algorithm", f"{args.algorithm}: {prompts} prompts x {args.num_generations} rollouts per batch, {steps}"),
        *optimiser_lines(args),
        (
            "budget",
            f"{args.max_turn_tokens} tokens per turn, {args.max_completion_length} per episode after the prompt; a "
            f"batch samples up to {batch * args.max_completion_length:,} (--max-turn-tokens, --max-completion-length)",
        ),
        *([("rollouts", slots)] if slots else []),
        ("memory", memory or "not estimated: unknown model architecture"),
        ("time", "estimated after the first step"),
        ("output", f"{args.output_dir}"),
    ]
    return screen(lines)


def screen(lines: Sequence[tuple[str, str]]) -> str:
    """Format the lines of a first screen: name, then text."""
    return "\n".join(f"{name:13} {text}" for name, text in lines)


def optimiser_lines(args: Any) -> list[tuple[str, str]]:
    """Learning rate and precision, each with its reason, for the first screen of `train` and `sft`."""
    schedule = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    falling = "" if schedule.startswith("constant") else ", falls to 0"
    numbers = "bf16" if args.bf16 else "fp16" if args.fp16 else "float32"
    activations = "recomputed in the backward pass" if args.gradient_checkpointing else "stored, since they fit"
    return [
        ("learning rate", f"{args.learning_rate:g}, {schedule}{falling}: {args.learning_rate_reason}"),
        ("precision", f"{numbers}; activations are {activations}"),
    ]


def _environment_lines(name: str, env: TextEnv, rows: int, share: str) -> list[tuple[str, str]]:
    bare = env.unwrapped
    turns = bare.max_turns if isinstance(bare, ToolEnv | TextGame) else getattr(env.spec, "max_episode_steps", None)
    limit = f", {turns} turns" if turns else ""
    if not isinstance(bare, ToolEnv):
        tasks = f"{rows} seeds" if not share else "seeds"
        tools, weights = "none: a plain text environment", {"reward": 1.0}
    else:
        tasks, weights = bare.describe_dataset(), bare.reward_weights
        tools = ", ".join(tool.name for tool in bare.tools) or "made for each task"
    return [
        ("environment", f"{name}: {tasks}{share}{limit}"),
        ("tools", tools),
        *_prompt_lines(bare),
        ("reward", " + ".join(f"{weight:g} x {term}" for term, weight in weights.items())),
    ]


def _prompt_lines(env: Any) -> list[tuple[str, str]]:
    """Return the line of the prompt: the format of calls, and how the system turn of the first task begins."""
    if not isinstance(env, ToolEnv):
        return []
    if isinstance(env, ProgramEnv):
        return [("program", f"{env.agent}: it writes the prompts, and calls in the format {env.parser.name}")]
    _, info = env.reset(seed=0, options={"task_index": 0})
    system = next((message.content for message in info["messages"] if message.role == "system"), "")
    words = " ".join(system.split())
    beginning = words if len(words) <= _PROMPT_WIDTH else f"{words[:_PROMPT_WIDTH]} ..."
    text = f'"{beginning}" ({len(system):,} characters)' if system else "no system turn"
    return [("prompt", f"{env.parser.name} ({env.parser.tool_style}), {len(env.shots)} shots, {text}")]


_PROMPT_WIDTH = 60

# --- While it trains ---

DISPLAYED_METRICS = {
    "reward": "reward",
    "em": "rollout/reward/em",
    "turns": "rollout/turns",
    "tok/s": "rollout/tokens_per_second",
    "accuracy": "mean_token_accuracy",
}
"""Metrics in the progress bar: label to logged name."""


class RolloutProgress(ProgressCallback):
    """transformers' progress bar, with the latest `DISPLAYED_METRICS` in it instead of a line for every log.

    Within a step it shows what is under way, at least every ten seconds.

    Args:
        name: label of the bar.
        status: describes the step under way; None: the bar counts the passes of the step.
    """

    def __init__(self, name: str = "training", status: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._name, self._status = name, status or self._describe_step
        self._passes, self._step_began = 0, time.monotonic()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Start the bar."""
        if state.is_world_process_zero:
            self.training_bar: Any = Progress(
                state.max_steps, self._name, "step", done=state.global_step, status=self._status
            )
        self.current_step = state.global_step
        self._step_began = time.monotonic()

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Start the clock of the step."""
        self._passes, self._step_began = 0, time.monotonic()

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Count a pass of the step."""
        self._passes += 1

    def close(self) -> None:
        """End the bar of a run that failed."""
        if getattr(self, "training_bar", None) is not None:
            self.training_bar.close()

    def _describe_step(self) -> str:
        seconds, passes = time.monotonic() - self._step_began, f", {self._passes} passes done" if self._passes else ""
        return f"step {self.current_step + 1}: {seconds:.0f} s{passes}" if seconds >= 1 else ""

    def on_prediction_step(
        self, args: Any, state: TrainerState, control: TrainerControl, eval_dataloader: Any = None, **others: Any
    ) -> None:
        """Show a bar for the evaluation, on a terminal only: it disappears when it is full."""
        if sys.stderr.isatty():
            super().on_prediction_step(args, state, control, eval_dataloader, **others)  # type: ignore[no-untyped-call]

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        """Show the metrics of an optimiser step."""
        logged = {label: (logs or {}).get(name) for label, name in DISPLAYED_METRICS.items()}
        if logged["em"] == logged["reward"]:
            del logged["em"]  # the reward is the exact match
        # TRL logs None if every rollout of the step was lost.
        values = {label: short_number(value) for label, value in logged.items() if value is not None}
        if self.training_bar is not None and values:
            self.training_bar.set_metrics(values)


SAMPLES_EVERY = 10
"""Generation batches between two prints of sample rollouts; the first batch is printed."""
WINDOW = 10
"""Steps over which the duration is averaged."""
MIN_SHIFT, MIN_SHIFT_SECONDS = 0.25, 60.0
"""An estimate is printed again when the end moves by this share of the remaining time, and by this many seconds."""


class EtaEstimator:
    """Estimate the end of a run from its recent steps.

    Args:
        steps: number of the last step.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._seconds: deque[tuple[float, float]] = deque(maxlen=WINDOW)
        self._reported_end: float | None = None
        self._warm = False

    def add(self, step: int, *, seconds: float, rollouts: float, now: float) -> str | None:
        """Record a step; return a line to print after the first step, and when the estimate has changed.

        Args:
            step: number of the step.
            seconds: its duration, evaluations and checkpoints included.
            rollouts: seconds of it spent on rollouts.
            now: current time, in seconds since 1970.
        """
        first = self._reported_end is None
        if not first and not self._warm:  # the first step also compiles, allocates and reads files
            self._warm = True
            self._seconds.clear()
        self._seconds.append((seconds, rollouts))
        per_step, played = (sum(part) / len(self._seconds) for part in zip(*self._seconds, strict=True))
        left = (self._steps - step) * per_step
        end = now + left
        shift = 0.0 if self._reported_end is None else abs(end - self._reported_end)
        if left <= 0 or not (first or shift > max(MIN_SHIFT * left, MIN_SHIFT_SECONDS)):
            return None
        self._reported_end = end
        parts = f"(rollouts {played:.3g}, update {max(0.0, per_step - played):.3g})"
        took = f"step {step} took {seconds:.3g} s" if first else f"step {step}: {per_step:.3g} s per step lately"
        clock = time.strftime("%H:%M" if left < 12 * 3600 else "%a %H:%M", time.localtime(end))
        return f"{took} {parts}: {self._steps - step} more take about {_duration(left)}, until {clock}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{max(1, round(seconds))} s"


class ConsoleCallback(TrainerCallback):
    """Print time estimates and sample rollouts above the progress bar, from the main process.

    Samples are rollouts of the batch that has just been trained on; nothing is generated for them.

    Args:
        trainer: the `AgentTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._printed_batch = -1
        self._began = self._played = 0.0
        self._eta: EtaEstimator | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Start the clock."""
        self._eta = EtaEstimator(state.max_steps)
        self._began, self._played = time.perf_counter(), self._trainer.progress.rollout_seconds
        # A resumed run may train on the rest of a batch whose records ended with another process: no samples of it.
        self._printed_batch = self._trainer.batches - 1

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Print the news of a step."""
        if not state.is_world_process_zero or self._eta is None:
            return
        now, played = time.perf_counter(), self._trainer.progress.rollout_seconds
        seconds, rollouts = now - self._began, played - self._played
        self._began, self._played = now, played
        line = self._eta.add(state.global_step, seconds=seconds, rollouts=rollouts, now=time.time())
        if line is not None:
            tqdm.write(line)
        number, batch = self._trainer.batches - 1, self._trainer.progress.batch
        if batch is None or number % SAMPLES_EVERY or number == self._printed_batch:
            return
        self._printed_batch = number
        text = best_and_worst(batch.records, group_size=self._trainer.num_generations)
        if text is not None:
            tqdm.write(f"samples of step {state.global_step}:\n{text}")


# --- Sample rollouts ---

WIDTH = 118
"""Maximum width of a line; longer ones lose their middle."""
MAX_MESSAGES = 6
"""Maximum number of messages of a rollout; longer ones lose their middle."""


def best_and_worst(records: Sequence[Trajectory], *, group_size: int) -> str | None:
    """Format the best and the worst rollout of the prompt whose returns differ most; of equal ones only one.

    None if every rollout was lost to an infrastructure failure.

    Args:
        records: rollouts of a batch; those of a prompt are adjacent.
        group_size: number of rollouts per prompt; 1: the full batch is compared.
    """
    size = group_size if group_size > 1 else max(1, len(records))
    groups = [
        sorted(valid, key=lambda record: record.episode_return)
        for start in range(0, len(records), size)
        if (valid := [record for record in records[start : start + size] if record.infrastructure_error is None])
    ]
    if not groups:
        return None
    group = max(groups, key=lambda group: group[-1].episode_return - group[0].episode_return)
    worst, best = group[0], group[-1]
    where = f" in {best.env_id}" if len({record.env_id for record in records}) > 1 else ""
    if worst.episode_return == best.episode_return:
        return "\n".join(_rollout_lines(best, f"one of {len(group)} equal rollouts{where}"))
    parts = [
        *_rollout_lines(best, f"best of {len(group)} rollouts{where}"),
        *_rollout_lines(worst, "worst", task=group_size == 1),
    ]
    return "\n".join(parts)


def _rollout_lines(record: Trajectory, title: str, *, task: bool = True) -> Iterator[str]:
    terms = ", ".join(f"{name} {value:.3g}" for name, value in record.reward_terms.items())
    ending = record.end_reason.replace("_", " ")
    yield f"  {title}: return {record.episode_return:.3g}{f' ({terms})' if terms else ''}, ended by {ending}"
    messages = [*_messages(record)]
    if task and record.question:
        yield _line("task", record.question)
    if len(messages) > MAX_MESSAGES:
        hidden = len(messages) - MAX_MESSAGES
        messages = [*messages[: MAX_MESSAGES // 2], ("", f"({hidden} more)"), *messages[-(MAX_MESSAGES // 2) :]]
    yield from (_line(role, text) for role, text in messages)
    if record.gold_answers:
        answer = "none" if record.answer is None else record.answer
        yield _line("answer", f"{answer} (accepted: {' | '.join(record.gold_answers)})")


def _messages(record: Trajectory) -> Iterator[tuple[str, str]]:
    """Yield role and text of the messages after the task, the model's as it wrote them."""
    actions = iter(record.turns)
    started = False
    for message in record.transcript:
        if message.role == "assistant":
            turn = next(actions, None)
            started = True
            yield "model", message.content if turn is None else turn.action
        elif started:
            yield ("tool" if message.role == "tool" else "env"), message.content


def _line(role: str, text: str) -> str:
    # A model's control characters must not reach the terminal.
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    room = WIDTH - 13
    if len(plain) > room:
        plain = f"{plain[: room // 2 - 2]} ... {plain[-(room // 2 - 3) :]}"
    return f"    {role:8} {plain}"


# --- After it ---


def nothing_parsed(turns: Mapping[str, int]) -> str | None:
    """Describe a run in which no turn was ever parsed, and what to do; None if one was.

    Args:
        turns: number of turns by parse error, "" for those that were parsed.
    """
    if turns.get("", 0) or not turns:
        return None
    errors = ", ".join(f"{error}: {number}" for error, number in sorted(turns.items(), key=lambda item: -item[1]))
    return (
        f"WARNING: the model has learned nothing useful: none of its {sum(turns.values())} turns was a call or an "
        f"answer that could be parsed ({errors}). Show it how first: worked examples in the prompt (--option shots=2), "
        "or a cold start by `agent-r1 sft ENV --from oracle`, then `agent-r1 train --warm-start DIR`."
    )


def end_summary(folder: str | None, card: AgentCard) -> str:
    """Last screen: where the trained model is, and the next commands.

    Args:
        folder: folder of the model.
        card: card of the agent.
    """
    here, measured, after = (shlex.quote(f"{folder}{more}") for more in ("", "/eval", "-rl"))
    return (
        f"the model is in {folder}; its {FILE} describes the agent and sets the options of these commands\n"
        f"measure it:  agent-r1 eval {here} --out {measured}\n"
        f"look at it:  agent-r1 report {here} {measured}\n"
        + (f"talk to it:  agent-r1 chat {here}\n" if card.has_tools and "agent" not in card.env_options else "")
        + f"continue:    agent-r1 train --warm-start {here} --out {after}"
    )
