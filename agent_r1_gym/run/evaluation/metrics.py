"""Metrics of a run, and the paired comparison of two runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.run_folder import InfraFailure, RunFolder, settings_differences
from agent_r1_gym.run.evaluation.statistics import (
    PROPORTIONS,
    bootstrap,
    majority_at_k,
    mcnemar_test,
    paired_bootstrap,
    pass_at_k,
    pass_hat_k,
)
from agent_r1_gym.run.record import Trajectory

Summary = dict[str, Any]
"""Content of `metrics.json`."""
Key = tuple[int, int]
"""Task index and sample."""
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
"""Metrics of an episode that are averaged, in the order of tables. `sub_em` is the lenient substring match."""
_PAIRED = ("em", "f1", "sub_em", "support_recall", "return", "turns", "calls")
_ALWAYS = ("type", "hops")
_MOST_VALUES = 8
_NO_LOSSES: Mapping[int, int] = MappingProxyType({})


def summarize(
    records: Sequence[Trajectory],
    failures: Sequence[InfraFailure],
    *,
    samples: int,
    seconds: Mapping[Key, float] | None = None,
) -> Summary:
    """Compute the content of `metrics.json`.

    `overall`, and `by` label of the task ("type", "hops", any with two to eight values) and its value (as text), each
    with: `questions`, `episodes`, `metrics` (by name of `METRICS`, and `seconds` if they were timed: `mean`, `low`,
    `high`; absent where no episode has the metric), `reward_terms` (likewise: each raw term, summed over an episode),
    `failures` (number of episodes with each kind), `end_reasons` (number of episodes by end reason). For the whole run:
    `answers` (`distinct`, `none`: episodes without one, `most_frequent`: up to five normalised answers and their
    numbers of episodes), `most_frequent_gold` (`answer`, and `em`: the fraction of questions that it answers
    correctly; None without gold answers), `excluded` (`episodes`, `by_error`) and
    `em_counting_excluded_as_wrong`; with several samples `pass_at_k`, `pass_hat_k` (all of k right) and `majority_at_k`
    (empty without answers) by k, estimated from all samples (see `statistics`); where episodes were excluded, over the
    questions that have k finished ones, and the same three over all questions in
    `best_of_k_counting_excluded_as_wrong`.

    Args:
        records: finished episodes.
        failures: episodes whose backend failed in every attempt.
        samples: requested number of episodes per question.
        seconds: by task index and sample.
    """
    summary: Summary = {"overall": _group(records, seconds or {})}
    summary["by"] = {
        label: {
            value: _group([r for r in records if label in r.labels and str(r.labels[label]) == value], seconds or {})
            for value in values
        }
        for label, values in _label_values(records).items()
    }
    summary["answers"] = _answers(records)
    summary["most_frequent_gold"] = _most_frequent_gold(records)
    infra_failures = count_by_error([failure.error for failure in failures])
    summary["excluded"] = {"episodes": len(failures), "by_error": infra_failures}
    scored = [record.scores["em"] for record in records if "em" in record.scores]
    total = len(scored) + len(failures)
    summary["em_counting_excluded_as_wrong"] = sum(scored) / total if scored or (failures and not records) else None
    if samples > 1:
        summary |= _best_of_k(records, samples)
        if failures:
            lost = Counter(failure.task_index for failure in failures)
            summary["best_of_k_counting_excluded_as_wrong"] = _best_of_k(records, samples, lost)
    return summary


def _label_values(records: Sequence[Trajectory]) -> dict[str, list[str]]:
    """Return the labels of breakdowns and their sorted values: numbers first, then text."""
    values: dict[str, set[str]] = {}
    for record in records:
        for label, value in record.labels.items():
            values.setdefault(label, set()).add(str(value))  # as text: 1, 1.0 and True are equal in a set
    ordered = {
        label: sorted(found, key=_rank)
        for label, found in values.items()
        if label in _ALWAYS or 2 <= len(found) <= _MOST_VALUES
    }
    return {label: ordered[label] for label in (*_ALWAYS, *ordered) if label in ordered}


def _rank(value: str) -> tuple[bool, float, str]:
    try:
        return False, float(value), value
    except ValueError:
        return True, 0.0, value


def _answers(records: Sequence[Trajectory]) -> Summary:
    """Summarise the answers: an agent that always gives the same one shows here."""
    counts = Counter(key for record in records if (key := record.answer_key) is not None)
    return {
        "distinct": len(counts),
        "none": len(records) - counts.total(),
        "most_frequent": dict(sorted(counts.most_common(5), key=lambda item: (-item[1], item[0]))),
    }


def _most_frequent_gold(records: Sequence[Trajectory]) -> Summary | None:
    """Return the gold answer that most questions accept: the baseline of a constant answer."""
    groups = [group for group in _by_task(records).values() if group[0].gold_answers]
    golds = [frozenset(map(group[0].key, group[0].gold_answers)) for group in groups]
    accepted = Counter(answer for accepts in golds for answer in sorted(accepts))
    if not accepted:
        return None
    answer, number = min(accepted.items(), key=lambda item: (-item[1], item[0]))
    return {"answer": answer, "em": number / len(golds)}


def describe_answers(summary: Mapping[str, Any]) -> str:
    """Describe the most frequent answer, and the score of a constant answer; "" without answers."""
    answers, gold = summary["answers"], summary["most_frequent_gold"]
    text = ""
    if answers["most_frequent"]:
        answer_text, number = next(iter(answers["most_frequent"].items()))
        kinds = "one answer" if answers["distinct"] == 1 else f"{answers['distinct']} different answers, most often"
        text = f"{kinds} {answer_text!r} ({number} of {summary['overall']['episodes']} episodes); "
    if gold is not None:
        text += f"always answering {gold['answer']!r} would score EM {gold['em']:.3f}"
    return text.removesuffix("; ")


def count_by_error(errors: Iterable[str]) -> dict[str, int]:
    """Count infrastructure failures by source and kind, without the details."""
    return dict(sorted(Counter(map(kind_of_error, errors)).items()))


def kind_of_error(error: str) -> str:
    """Return the source and the kind of an infrastructure failure, without the details."""
    return ": ".join(error.split(": ")[:2])


def _group(records: Sequence[Trajectory], seconds: Mapping[Key, float]) -> Summary:
    by_task = _by_task(records)
    measured = [[record.metrics() for record in group] for group in by_task.values()]
    scores = {
        name: [[number for metrics in group if (number := metrics[name]) is not None] for group in measured]
        for name in METRICS
    }
    keys = [[(record.task_index, record.sample) for record in group] for group in by_task.values()]
    scores["seconds"] = [[seconds[key] for key in group if key in seconds] for group in keys]
    terms = [[record.reward_terms for record in group] for group in by_task.values()]
    names = dict.fromkeys(name for group in terms for sums in group for name in sums)
    earned = {name: [[sums.get(name, 0.0) for sums in group] for group in terms] for name in names}
    failures = Counter(kind for record in records for kind in record.failures)
    return {
        "questions": len(by_task),
        "episodes": len(records),
        "metrics": {name: interval._asdict() for name, interval in bootstrap(scores).items()},
        "reward_terms": {name: interval._asdict() for name, interval in bootstrap(earned, proportions=()).items()},
        "failures": dict(sorted(failures.items())),
        "end_reasons": dict(sorted(Counter(record.end_reason for record in records).items())),
    }


def _best_of_k(records: Sequence[Trajectory], samples: int, lost: Mapping[int, int] = _NO_LOSSES) -> Summary:
    """Estimate the metrics of several samples; `lost` has the number of episodes to count as wrong, by task."""
    sizes = sorted({k for power in range(samples.bit_length()) if (k := 2**power) <= samples} | {samples})
    by_task = _by_task(records)
    groups = [(group, lost.get(task, 0)) for task, group in by_task.items() if group[0].scores]
    if groups or not records:  # without scores nothing counts as wrong
        groups += [([], number) for task, number in lost.items() if task not in by_task]
    has_answers = any(record.answer is not None or record.gold_answers for record in records)
    best: Summary = {"pass_at_k": {}, "pass_hat_k": {}, "majority_at_k": {}}
    for k in sizes:
        complete = [(group, wrong) for group, wrong in groups if len(group) + wrong >= k]
        counts = [(len(group) + wrong, sum(bool(record.solved) for record in group)) for group, wrong in complete]
        shares = {
            "pass_at_k": [[pass_at_k(number, right, k)] for number, right in counts],
            "pass_hat_k": [[pass_hat_k(number, right, k)] for number, right in counts],
        }
        if has_answers:
            shares["majority_at_k"] = [
                [
                    majority_at_k(
                        [*(record.answer_key for record in group), *[None] * wrong],
                        [*(record.scores["em"] for record in group), *[0.0] * wrong],
                        k,
                    )
                ]
                for group, wrong in complete
            ]
        for name, interval in bootstrap(shares).items():
            best[name][str(k)] = interval._asdict()
    return best


def _by_task(records: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    groups: dict[int, list[Trajectory]] = {}
    for record in sorted(records, key=lambda record: (record.task_index, record.sample)):
        groups.setdefault(record.task_index, []).append(record)
    return groups


def headline_em(summary: Mapping[str, Any]) -> float | None:
    """Return the EM to show first: lost episodes count as wrong, or a model would score by those that it did not lose.

    None if no episode has an EM.
    """
    if summary["excluded"]["episodes"]:
        worst: float | None = summary["em_counting_excluded_as_wrong"]
        return worst
    interval = summary["overall"]["metrics"].get("em")
    return None if interval is None else float(interval["mean"])


def weighted_means(summaries: Mapping[str, Summary], weights: Mapping[str, float]) -> dict[str, float]:
    """Average each metric that all environments have, by their weights; lost episodes count as wrong in `em`."""
    means = {
        env: {name: interval["mean"] for name, interval in metrics["overall"]["metrics"].items()}
        for env, metrics in summaries.items()
    }
    for env, metrics in summaries.items():
        if (em := headline_em(metrics)) is not None:
            means[env]["em"] = em
    shared = set.intersection(*(set(values) for values in means.values()))
    total = sum(weights.values())
    return {
        name: sum(weights[env] * means[env][name] for env in means) / total
        for name in next(iter(means.values()))
        if name in shared
    }


def question_set_id(settings: Mapping[str, Any]) -> str:
    """Identify the questions of a run: equal for runs that can be paired.

    Without a list of tasks the questions are seeds of an environment, and its options are part of their identity.
    """
    known = settings["question_hash"]
    if known is not None:
        return f"questions with the hash {known[:12]}"
    options = json.dumps(settings.get("env_options") or {}, sort_keys=True)
    return f"{settings['questions']} seeds from {settings['seed']} of {settings['env_id']} with the options {options}"


def check_same_questions(ours: RunFolder, theirs: RunFolder) -> None:
    """Raise `ConfigurationError` if two runs have different questions, `DatasetError` if one is not a run."""
    first, second = ours.settings(), theirs.settings()
    if question_set_id(first) == question_set_id(second):
        return
    names = ("env_id", "dataset", "questions", "env_options", *(() if first["question_hash"] else ("seed",)))
    old, new = ({name: settings.get(name) for name in names} for settings in (first, second))
    causes = "; ".join(settings_differences(old, new)) or "equal settings, so the data changed between the two"
    if first["question_hash"] and second["question_hash"]:
        tasks = [{(r.task_id, r.question, r.gold_answers) for r in run.episodes()} for run in (ours, theirs)]
        causes += f"; {len(tasks[0] & tasks[1])} of the questions are in both"
    raise ConfigurationError(
        f"{ours.path} and {theirs.path} have different questions ({causes}); evaluate both on the same data, split "
        "and number of questions."
    )


def compare_runs(ours: RunFolder, theirs: RunFolder, *, seed: int = 0) -> Summary:
    """Compare two runs over the questions that both have finished (see `compare_records`).

    Raises:
        ConfigurationError: the runs have different questions.
        DatasetError: a folder holds no run.
    """
    check_same_questions(ours, theirs)
    return compare_records(ours.episodes(), theirs.episodes(), seed=seed)


def compare_records(ours: Sequence[Trajectory], theirs: Sequence[Trajectory], *, seed: int = 0) -> Summary:
    """Compare the episodes of two runs, paired by question.

    `questions` (number), and by metric `em`, `f1`, `sub_em`, `support_recall`, `turns`, `calls`: `difference` (ours -
    theirs; the score of a question is the mean of its samples), `low`, `high`, `p_value` (sign-flip test); for `em`
    with one sample each, of scores 0 and 1, also `mcnemar_p_value`. If no episode has an `em`, also `return`.

    Raises:
        ConfigurationError: no question is in both.
    """
    left, right = _by_task(ours), _by_task(theirs)
    common = sorted(left.keys() & right.keys())
    if not common:
        raise ConfigurationError("The runs have finished no question in common; resume them first.")
    result: Summary = {"questions": len(common)}
    is_single = all(len(left[index]) == len(right[index]) == 1 for index in common)
    for name in _PAIRED:
        pairs = [(mean_metric(left[index], name), mean_metric(right[index], name)) for index in common]
        pairs = [(mine, theirs_mean) for mine, theirs_mean in pairs if mine is not None and theirs_mean is not None]
        if pairs and (name != "return" or "em" not in result):
            mine, theirs_mean = zip(*pairs, strict=True)
            result[name] = paired_bootstrap(mine, theirs_mean, proportion=name in PROPORTIONS, seed=seed)._asdict()
            if name == "em" and is_single and {*mine, *theirs_mean} <= {0.0, 1.0}:
                result[name]["mcnemar_p_value"] = mcnemar_test(mine, theirs_mean)
    return result


def p_value(test: Mapping[str, float]) -> float:
    """Return the p-value of one metric of a comparison: McNemar's if there is one."""
    return test.get("mcnemar_p_value", test["p_value"])


def mean_metric(records: Sequence[Trajectory], name: str) -> float | None:
    """Return the mean of a metric over the episodes that have it, None if none has."""
    numbers = [number for record in records if (number := record.metrics()[name]) is not None]
    return sum(numbers) / len(numbers) if numbers else None
