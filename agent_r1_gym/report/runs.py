"""`agent-r1 report`: evaluation and training runs on one page.

The first screen has a card for each run: what it is worth, against the baseline, as a sentence and a few figures. The
last section has its provenance: command, date, commit, versions, model, data, rewards, settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path, PurePath
from statistics import fmean, variance
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.report.evaluation import (
    EvaluationRun,
    evaluation_items,
    evaluation_plots,
    evaluation_tables,
    is_evaluation_run,
    mean_interval,
    read_evaluation_runs,
)
from agent_r1_gym.report.page import (
    Cell,
    Html,
    RunCard,
    Section,
    Trend,
    cards,
    facts,
    heading,
    number,
    sections,
    write_page,
)
from agent_r1_gym.report.training import (
    TrainingRun,
    group_by_settings,
    read_training_run,
    training_items,
    training_plots,
    training_tables,
)
from agent_r1_gym.report.viewer import viewer
from agent_r1_gym.run.evaluation.metrics import compare_records, headline_em, p_value, question_set_id
from agent_r1_gym.run.evaluation.run_folder import shard_status

Row = Mapping[str, Any]
_SIGNIFICANT = 0.05
_ENDS = 10
"""Maximum number of logged steps at either end of a run whose means are compared."""
_CLEAR = 2.0
"""Standard errors between the two means above which they count as different."""
_ENDS_OF = (
    ("held-out EM", "eval_rollout/reward/em"),
    ("held-out return", "eval_reward"),
    ("token accuracy", "mean_token_accuracy"),
    ("held-out loss", "eval_loss"),
)
"""Metrics of which a card shows the first and the last value, by label."""
_ENVIRONMENT = ("env_id", "env_options", "dataset", "question_hash", "corpus_fingerprint")
"""Settings of an evaluation that its provenance lists first."""


def write_report(paths: Sequence[Path], out: Path, *, title: str = "Report", baseline: Path | None = None) -> int:
    """Write one page about evaluation and training runs, and return its size in bytes.

    Args:
        paths: folders of runs.
        out: HTML file to write.
        title: title of the page.
        baseline: evaluation to compare the others with, in `paths` or not; default: the first.

    Raises:
        DatasetError: a folder holds no run, or one that cannot be read.
    """
    if baseline is not None and baseline.resolve() not in [path.resolve() for path in paths]:
        paths = [baseline, *paths]
    evaluations = read_evaluation_runs([path for path in paths if is_evaluation_run(path)])
    training_runs = [_training_run(path) for path in paths if not is_evaluation_run(path)]
    base = None
    if baseline is not None:
        base = next((run for run in evaluations if run.path.resolve() == baseline.resolve()), None)
        if base is None:
            raise DatasetError(f"{baseline} is not an evaluation run; --baseline takes a folder of `agent-r1 eval`.")
    items = [*evaluation_items(evaluations), *training_items(training_runs)]
    parts = sections(
        Section("Runs", cards([*evaluation_cards(evaluations, base), *training_cards(training_runs)])),
        Section("Traces", viewer(items)),
        Section("Tables", [*evaluation_tables(evaluations), *training_tables(training_runs)], collapsed=True),
        Section("Plots", [*evaluation_plots(evaluations), *training_plots(training_runs)]),
        Section("Provenance", provenance_parts(evaluations, training_runs), collapsed=True),
    )
    return write_page(out, title, parts)


def _training_run(path: Path) -> TrainingRun:
    run = read_training_run(path)
    if run is None:
        raise DatasetError(
            shard_status(path)
            or f"{path} holds no run; expected a folder of `agent-r1 eval` (run.json), of `agent-r1 quickstart` "
            "(curves.csv), or of the trainer (trainer_state.json, in it or in a checkpoint)."
        )
    return run


# --- cards of evaluations --------------------------------------------------------------------------------------------


def evaluation_cards(runs: Sequence[EvaluationRun], baseline: EvaluationRun | None = None) -> list[RunCard]:
    """Build a card for each run, each compared with the baseline (default: the first run)."""
    base = baseline or (runs[0] if runs else None)
    return [_evaluation_card(run, base, is_baseline=run is base and len(runs) > 1) for run in runs]


def _evaluation_card(run: EvaluationRun, base: EvaluationRun | None, *, is_baseline: bool) -> RunCard:
    settings = run.settings
    samples = f", {settings['samples']} samples each" if settings["samples"] > 1 else ""
    rescored = ", rescored with another reward" if settings.get("rescored_from") else ""
    subtitle = f"{settings['env_id']}, {settings['policy']}{samples}, seed {settings['seed']}{rescored}"
    metric = "em" if "em" in run.metrics["overall"]["metrics"] else "return"  # tasks without gold answers have no EM
    verdict, trend = _verdict(run, base, metric)
    return RunCard(
        run.name,
        f"{subtitle}, the baseline" if is_baseline else subtitle,
        verdict,
        trend,
        _figures(run, metric),
        _warnings(run),
    )


def _verdict(run: EvaluationRun, base: EvaluationRun | None, metric: str) -> tuple[str, Trend]:
    metrics, finished = run.metrics["overall"]["metrics"], run.metrics["overall"]["questions"]
    if not run.records or metric not in metrics:
        return "No finished episode yet.", "flat"
    label, mean = "EM" if metric == "em" else "return", metrics[metric]["mean"]
    split = run.settings.get("env_options", {}).get("split")
    of_split = f" of the split {split!r}" if split else ""
    questions = f"{finished} questions{of_split}"
    lost, worst = run.metrics["excluded"]["episodes"], headline_em(run.metrics)
    if base is None or base is run:
        if metric == "em" and lost and worst is not None:
            return f"EM {number(worst)}, lost episodes as wrong; {number(mean)} on {questions} without them.", "flat"
        return f"{label} {number(mean)} on {questions}.", "flat"
    test = _paired_test(run, base, metric)
    if test is None:
        return f"{label} {number(mean)} on {questions}. The baseline is on other questions: not compared.", "flat"
    in_both = int(test["questions"])
    if in_both < max(finished, base.metrics["overall"]["questions"]):
        questions = f"{in_both} questions{of_split} that both finished"
    text = f"{label} {number(test['before'])} → {number(test['after'])} on {questions}"
    p = p_value(test)
    difference, low, high = (_signed(test[name]) for name in ("difference", "low", "high"))
    # No line breaks within the p-value.
    change = f"{difference} [{low}, {high}], " + ("p\u00a0<\u00a00.001" if p < 0.001 else f"p\u00a0=\u00a0{p:.3f}")
    if p >= _SIGNIFICANT:
        return f"{text}: no significant difference ({change}).", "flat"
    return f"{text} ({change}).", "up" if test["difference"] > 0 else "down"


def _paired_test(run: EvaluationRun, base: EvaluationRun, metric: str) -> Row | None:
    """Test a run against another over the questions that both finished; None if there are none.

    With the means `before` and `after`, and the number of these `questions`.
    """
    before, after = _by_question(base, metric), _by_question(run, metric)
    common = before.keys() & after.keys()
    if question_set_id(run.settings) != question_set_id(base.settings) or not common:
        return None
    means = {"before": fmean(before[index] for index in common), "after": fmean(after[index] for index in common)}
    return {**compare_records(run.records, base.records)[metric], **means, "questions": len(common)}


def _by_question(run: EvaluationRun, metric: str) -> dict[int, float]:
    """Return the mean of a metric over the samples of each question."""
    values: dict[int, list[float]] = {}
    for record in run.records:
        if (value := record.metrics()[metric]) is not None:
            values.setdefault(record.task_index, []).append(value)
    return {index: fmean(samples) for index, samples in values.items()}


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else '−'}{number(abs(value))}"


def _figures(run: EvaluationRun, primary: str) -> list[tuple[str, Cell]]:
    metrics = run.metrics["overall"]["metrics"]
    figures: list[tuple[str, Cell]] = []
    labels = {"em": "EM", "return": "return", "turns": "turns per episode", "seconds": "seconds per episode"}
    for metric, label in labels.items():
        same = metric == "return" and primary == "em" and metrics["return"]["mean"] == metrics["em"]["mean"]
        if metric in metrics and not same:
            figures.append((label, mean_interval(metrics[metric])))
    tokens = [metrics[name]["mean"] for name in ("prompt_tokens", "completion_tokens") if name in metrics]
    if tokens:
        figures.append(("tokens per episode", f"{sum(tokens):,.0f}"))
    planned = run.settings["questions"] * run.settings["samples"]
    figures.append(("episodes", f"{len(run.records):,}" + (f" of {planned:,}" if len(run.records) != planned else "")))
    if run.seconds is not None and not run.settings.get("rescored_from"):
        figures.append(("played in", duration(run.seconds)))
    return figures


def duration(seconds: float) -> str:
    """Format a duration for a reader: "3.1 s", "40 s", "12 min", "2.5 h"."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _warnings(run: EvaluationRun) -> list[str]:
    overall, warnings = run.metrics["overall"], []
    gold, em = run.metrics["most_frequent_gold"], overall["metrics"].get("em")
    if em is not None and gold is not None and em["mean"] <= gold["em"]:
        warnings.append(
            f"Always answering {gold['answer']!r}, the most frequent gold answer, would score no less: EM "
            f"{number(gold['em'])}."
        )
    if run.metrics["answers"]["distinct"] == 1 and overall["questions"] > 1:
        (answer,) = run.metrics["answers"]["most_frequent"]
        warnings.append(f"It gives one answer to every question: {answer!r}.")
    if not run.complete:
        warnings.append("NOT COMPLETE: resume it for the full results.")
    if infra_failures := run.metrics["excluded"]["episodes"]:
        worst = run.metrics["em_counting_excluded_as_wrong"]
        if_wrong = "" if worst is None else f" Counted as wrong, EM would be {number(worst)}."
        warnings.append(f"{infra_failures} episodes lost their backend and are not scored.{if_wrong}")
    return warnings


# --- cards of training runs ------------------------------------------------------------------------------------------


def training_cards(runs: Sequence[TrainingRun]) -> list[RunCard]:
    """Build a card for each group of seeds."""
    return [_training_card(name, group) for name, group in group_by_settings(runs).items()]


def _training_card(name: str, group: Sequence[TrainingRun]) -> RunCard:
    logs = [run.log for run in group]
    metric = "reward" if any("reward" in row for log in logs for row in log) else "loss"  # fine-tuning has no rewards
    series = [values for log in logs if (values := [row[metric] for row in log if metric in row])]
    verdict, trend = _training_verdict(series, of_loss=metric == "loss")
    steps = max(run.steps for run in group)
    figures: list[tuple[str, Cell]] = [("steps", f"{steps:,}"), ("seeds", str(len(group)))]
    for label, key in _ENDS_OF:
        ends = [(values[0], values[-1]) for log in logs if (values := [row[key] for row in log if key in row])]
        if ends:
            first, last = (fmean(side) for side in zip(*ends, strict=True))
            text = f"{number(first)} → {number(last)}"
            if text not in [value for _, value in figures]:  # the return may be the exact match
                figures.append((label, text))
    invocation = (group[0].metadata.get("invocations") or [{}])[0]
    model = invocation.get("model")
    environment = _text(invocation.get("environment") or "")
    subtitle = ", ".join(filter(None, ("training", environment, model and f"from {_text(model)}")))
    warnings = [
        f"Stopped by an alarm: {run.metadata['stop_reason']}." for run in group if run.metadata.get("stop_reason")
    ]
    return RunCard(name, subtitle, verdict, trend, figures + _score_figures(group), warnings)


def _training_verdict(curves: Sequence[Sequence[float]], *, of_loss: bool) -> tuple[str, Trend]:
    """Judge whether the return rose, or the loss fell, from the first logged steps to the last."""
    if not curves:
        return "No step is logged yet.", "flat"
    first = [value for series in curves for value in series[: min(_ENDS, max(1, len(series) // 2))]]
    last = [value for series in curves for value in series[-min(_ENDS, max(1, len(series) // 2)) :]]
    before, after = fmean(first), fmean(last)
    steps = max(map(len, curves))
    text = f"{'Loss' if of_loss else 'Return'} {number(before)} → {number(after)} over {steps} logged steps"
    if min(len(first), len(last)) < 3:
        return f"{text}: too few to judge whether it learned.", "flat"
    error = sqrt(variance(first) / len(first) + variance(last) / len(last))
    if abs(after - before) <= _CLEAR * error:
        return f"{text}: no change beyond the noise between batches.", "flat"
    rose = after > before
    verbs = ("fell", "ROSE") if of_loss else ("FELL", "rose")
    return f"{text}: it {verbs[rose]}.", "up" if rose != of_loss else "down"


def _score_figures(group: Sequence[TrainingRun]) -> list[tuple[str, Cell]]:
    """Average the scores of quickstart's agents over seeds and question sets."""
    scores = [run.scores for run in group if run.scores]
    agents = [agent for agent in (scores[0] if scores else {}) if all(agent in by_agent for by_agent in scores)]
    return [
        (f"EM, {agent}", number(fmean(fmean(by_agent[agent].values()) for by_agent in scores if by_agent[agent])))
        for agent in agents
    ]


# --- provenance -------------------------------------------------------------------------------------------------------


def provenance_parts(evaluations: Sequence[EvaluationRun], training_runs: Sequence[TrainingRun]) -> list[Html]:
    """Describe the origin of each run, as far as its folder records it."""
    parts = []
    for evaluation in evaluations:
        metadata = {name: value for name, value in evaluation.settings.items() if name not in _ENVIRONMENT}
        settings = {name: evaluation.settings.get(name) for name in _ENVIRONMENT} | metadata
        parts += [
            heading(evaluation.name),
            facts([("folder", str(evaluation.path)), *_invocation_facts(evaluation.invocations)]),
        ]
        parts.append(facts(_named(settings)))
    for training in training_runs:
        invocations = training.metadata.get("invocations") or []
        parts += [heading(training.name), facts([("folder", str(training.path)), *_invocation_facts(invocations)])]
        settings = invocations[-1].get("settings") if invocations else json.loads(training.settings or "{}")
        parts.append(facts(_named(settings if isinstance(settings, Mapping) else {})))
    return parts


def _invocation_facts(invocations: Sequence[Row]) -> list[tuple[str, Cell]]:
    if not invocations:
        return [("command", "not recorded: the run is of an earlier version")]
    rest = dict(invocations[-1])
    rest.pop("settings", None)
    words = rest.pop("command", None) or []
    words = list(map(_text, words)) if isinstance(words, list) else []
    program = PurePath(words[0]).name.replace("__main__.py", "agent-r1") if words else ""
    command = f"{program} {shlex.join(words[1:])}" if words else "not recorded"
    latest: list[tuple[str, Cell]] = [("command", command), *_named(rest)]
    if len(invocations) == 1:
        return latest
    return [("started", f"{len(invocations)} times, first on {invocations[0].get('date')}"), *latest]


def _named(values: Row) -> list[tuple[str, Cell]]:
    return [(name.replace("_", " "), _text(value)) for name, value in values.items() if value not in (None, {}, [], "")]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner)}" for name, inner in value.items() if inner is not None)
    return value if isinstance(value, str) else json.dumps(value, default=str)
