"""From episodes to numbers: the row of an episode, the summary of a run, two runs side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.evaluation.run_folder import Row, RunFolder
from agent_r1_gym.evaluation.statistics import bootstrap, majority_at_k, mcnemar_test, paired_bootstrap, pass_at_k
from agent_r1_gym.play.jobs import Job
from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.scoring import AnswerScorer, normalize_answer, sub_exact_match
from agent_r1_gym.types import Task

METRICS = (
    "em",
    "f1",
    "sub_em",
    "support_recall",
    "return",
    "turns",
    "calls",
    "failed_calls",
    "malformed_turns",
    "prompt_tokens",
    "completion_tokens",
)
"""Numbers of an episode that are averaged, in the order of tables. `sub_em` is the lenient substring match."""


def episode_row(job: Job, trajectory: Trajectory, *, task: Task, scorer: AnswerScorer) -> Row:
    """Returns an episode as `episodes.jsonl` holds it (see `runs`)."""
    row = trajectory.to_dict()
    del row["dataset"], row["infrastructure_error"], row["support_recall"]
    row["sample"] = job.sample
    row["question"] = task.prompt
    row["type"] = getattr(task, "type", None) or None
    row["hops"] = getattr(task, "hops", None)
    row["scores"] = _scores(trajectory, scorer)
    return row


def _scores(trajectory: Trajectory, scorer: AnswerScorer) -> dict[str, Any]:
    turns = trajectory.turns
    errors = [error for turn in turns for error in turn.outcome_errors]
    codes = [code for turn in turns for code in turn.parse_errors]
    answered = {"em": scorer.em, "f1": scorer.f1, "sub_em": sub_exact_match}
    return {
        **{name: _score(trajectory, metric) for name, metric in answered.items()},
        "support_recall": trajectory.support_recall,
        "return": trajectory.episode_return,
        "turns": len(turns),
        "calls": len(errors),
        "failed_calls": sum(error is not None for error in errors),
        "malformed_turns": sum(bool(turn.parse_errors) for turn in turns),
        "prompt_tokens": _total(turn.prompt_tokens for turn in turns),
        "completion_tokens": _total(turn.completion_tokens for turn in turns),
        "failures": dict(sorted(Counter([*filter(None, errors), *codes]).items())),
    }


def _score(trajectory: Trajectory, metric: Callable[[str, tuple[str, ...]], float]) -> float | None:
    if not trajectory.gold_answers:
        return None
    return 0.0 if trajectory.answer is None else metric(trajectory.answer, trajectory.gold_answers)


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def summarize(
    rows: Sequence[Row], failures: Sequence[Row], *, samples: int, seconds: Mapping[Job, float] | None = None
) -> Row:
    """Returns what `metrics.json` holds.

    `overall`, and `by_type` and `by_hops` by value (as text), each with: `questions`, `episodes`, `metrics` (by name of
    `METRICS`, and `seconds` if they were timed: `mean`, `low`, `high`; absent where no episode has the metric),
    `failures` (number of episodes with each kind), `ends` (number of episodes by end reason). Besides, for the whole
    run: `excluded` (`episodes`, `by_error`) and `em_counting_excluded_as_wrong`; with several samples `pass_at_k` and
    `majority_at_k` by k, both estimated from all samples (see `statistics`).

    Args:
        rows: finished episodes.
        failures: episodes that stayed without a backend.
        samples: episodes a question that were asked for.
        seconds: by job.
    """
    summary: Row = {"overall": _group(rows, seconds or {})}
    for name, key in (("by_type", "type"), ("by_hops", "hops")):
        values = sorted({row[key] for row in rows if row[key] is not None})
        summary[name] = {
            str(value): _group([row for row in rows if row[key] == value], seconds or {}) for value in values
        }
    summary["excluded"] = {"episodes": len(failures), "by_error": lost_by_error([row["error"] for row in failures])}
    scored = [row["scores"]["em"] for row in rows if row["scores"]["em"] is not None]
    total = len(scored) + len(failures)
    summary["em_counting_excluded_as_wrong"] = sum(scored) / total if scored or (failures and not rows) else None
    if samples > 1:
        summary |= _best_of_k(rows, samples)
    return summary


def lost_by_error(errors: Iterable[str]) -> dict[str, int]:
    """Returns the number of lost episodes by kind of error (tool and kind, without the details)."""
    return dict(sorted(Counter(": ".join(error.split(": ")[:2]) for error in errors).items()))


def _group(rows: Sequence[Row], seconds: Mapping[Job, float]) -> Row:
    by_task = _by_task(rows)
    scores = {
        name: [[r["scores"][name] for r in group if r["scores"][name] is not None] for group in by_task.values()]
        for name in METRICS
    }
    jobs = [[Job(row["task_index"], row["sample"]) for row in group] for group in by_task.values()]
    scores["seconds"] = [[seconds[job] for job in group if job in seconds] for group in jobs]
    failures = Counter(kind for row in rows for kind in row["scores"]["failures"])
    return {
        "questions": len(by_task),
        "episodes": len(rows),
        "metrics": {name: interval._asdict() for name, interval in bootstrap(scores).items()},
        "failures": dict(sorted(failures.items())),
        "ends": dict(sorted(Counter(row["end_reason"] for row in rows).items())),
    }


def _best_of_k(rows: Sequence[Row], samples: int) -> Row:
    sizes = sorted({k for power in range(samples.bit_length()) if (k := 2**power) <= samples} | {samples})
    groups = [group for group in _by_task(rows).values() if group[0]["scores"]["em"] is not None]
    found: Row = {"pass_at_k": {}, "majority_at_k": {}}
    for k in sizes:
        whole = [group for group in groups if len(group) >= k]
        chances = [[pass_at_k(len(group), sum(r["scores"]["em"] == 1 for r in group), k)] for group in whole]
        votes = [[majority_at_k(_votes(group), [r["scores"]["em"] for r in group], k)] for group in whole]
        for name, interval in bootstrap({"pass_at_k": chances, "majority_at_k": votes}).items():
            found[name][str(k)] = interval._asdict()
    return found


def _votes(group: Sequence[Row]) -> list[str | None]:
    return [None if row["answer"] is None else normalize_answer(row["answer"]) for row in group]


def _by_task(rows: Sequence[Row]) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["task_index"], row["sample"])):
        groups.setdefault(row["task_index"], []).append(row)
    return groups


def compare_runs(ours: RunFolder, theirs: RunFolder, *, seed: int = 0) -> Row:
    """Returns the paired comparison of two runs over the questions that both have finished (see `compare_rows`).

    Raises:
        ConfigurationError: the runs asked different sets of questions.
        DatasetError: a folder holds no run.
    """
    hashes = [run.load()["settings"]["question_hash"] for run in (ours, theirs)]
    if hashes[0] != hashes[1]:
        raise ConfigurationError(
            f"{ours.path} and {theirs.path} asked different questions (hashes {hashes[0][:12]} and {hashes[1][:12]}); "
            "evaluate both on the same data, split and number of questions."
        )
    return compare_rows(ours.episodes(), theirs.episodes(), seed=seed)


def compare_rows(ours: Sequence[Row], theirs: Sequence[Row], *, seed: int = 0) -> Row:
    """Returns the paired comparison of two runs' episodes.

    `questions` (number), and by metric `em`, `f1`, `sub_em`, `support_recall`, `turns`, `calls`: `difference` (ours -
    theirs, a question's score being the mean of its samples), `low`, `high`, `p_value` (sign-flip test); for `em` with
    one sample each also `mcnemar_p_value`.

    Raises:
        ConfigurationError: no question is in both.
    """
    left, right = _by_task(ours), _by_task(theirs)
    common = sorted(left.keys() & right.keys())
    if not common:
        raise ConfigurationError("The runs have finished no question in common; resume them first.")
    result: Row = {"questions": len(common)}
    for name in ("em", "f1", "sub_em", "support_recall", "turns", "calls"):
        pairs = [(_mean(left[index], name), _mean(right[index], name)) for index in common]
        pairs = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        if pairs:
            mine, other = zip(*pairs, strict=True)
            result[name] = paired_bootstrap(mine, other, seed=seed)._asdict()
            if name == "em" and all(len(left[index]) == len(right[index]) == 1 for index in common):
                result[name]["mcnemar_p_value"] = mcnemar_test(mine, other)
    return result


def _mean(rows: Sequence[Row], name: str) -> float | None:
    scores = [row["scores"][name] for row in rows if row["scores"][name] is not None]
    return sum(scores) / len(scores) if scores else None
