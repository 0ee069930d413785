"""Intervals, paired tests and best-of-k, as pure functions of scores.

The question is the unit that is drawn: episodes of one question depend on each other, so that they enter and leave a
resample together (cluster bootstrap).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from agent_r1_gym.errors import ConfigurationError

Floats = npt.NDArray[np.float64]
RESAMPLES = 2_000
_CHUNK = 4_000_000
_EXACT_SIGNS = 14


class Interval(NamedTuple):
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """A mean difference with its 95 % bootstrap interval and a two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


def bootstrap(
    scores: Mapping[str, Sequence[Sequence[float]]], *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> dict[str, Interval]:
    """Returns mean and percentile interval of each metric over questions (Efron and Tibshirani 1993, chapter 13).

    mean = sum of all scores / number of all scores; a resample draws as many questions as there are, with replacement,
    each with all its scores; all metrics see the same resamples.

    Args:
        scores: by metric, the scores of each question, in the same order of questions; empty where there are none.
        seed: of the resamples.
        resamples: their number.
        level: of the intervals.

    Returns:
        By metric; those without any score are left out.
    """
    filled = {name: groups for name, groups in scores.items() if any(len(group) for group in groups)}
    if not filled:
        return {}
    sums = np.array([[math.fsum(group) for group in groups] for groups in filled.values()]).T
    sizes = np.array([[float(len(group)) for group in groups] for groups in filled.values()]).T
    means = _resampled_means(sums, sizes, seed, resamples)
    lows, highs = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0).tolist()
    centres = (sums.sum(axis=0) / sizes.sum(axis=0)).tolist()
    return {name: Interval(*found) for name, found in zip(filled, zip(centres, lows, highs, strict=True), strict=True)}


def paired_bootstrap(
    ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> PairedTest:
    """Returns mean(ours - theirs), its 95 % percentile interval, and the p-value of the sign-flip test.

    Args:
        ours: one score a question.
        theirs: the scores of the other run on the same questions, in the same order.
        seed: of the resamples and flips.
        resamples: their number.

    Raises:
        ConfigurationError: not equally many scores, or none.
    """
    differences = _differences(ours, theirs)
    interval = bootstrap({"": differences[:, None].tolist()}, seed=seed, resamples=resamples)[""]
    return PairedTest(*interval, permutation_test(ours, theirs, seed=seed))


def permutation_test(
    ours: Sequence[float], theirs: Sequence[float], *, seed: int = 0, resamples: int = 10_000
) -> float:
    """Returns the two-sided p-value of the paired sign-flip test (Fisher 1935) for a mean difference of zero.

    p = share of sign patterns whose |sum| is at least the observed one: over all 2^n patterns if at most 14 differences
    are not zero, else over random ones, the observed one counted in: (1 + hits) / (1 + resamples).

    Raises:
        ConfigurationError: not equally many scores, or none.
    """
    differences = _differences(ours, theirs)
    differences = differences[differences != 0]
    count = len(differences)
    if count == 0:
        return 1.0
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()  # sums in another order round differently
    if count <= _EXACT_SIGNS:
        bits = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        hits = int((np.abs((1 - 2 * bits) @ differences) >= observed).sum())
        return hits / len(bits)
    generator, hits = np.random.default_rng(seed), 0
    for size in _chunks(resamples, count):
        signs = generator.integers(0, 2, (size, count), dtype=np.int8) * 2 - 1
        hits += int((np.abs(signs @ differences) >= observed).sum())
    return float((1 + hits) / (1 + resamples))


def mcnemar_test(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Returns the exact two-sided p-value of McNemar's test (1947) for two series of right (1) and wrong (0).

    With b questions that only ours has right and c that only theirs has: p = min(1, 2 P(X <= min(b, c))), X binomial
    with b + c trials and probability 1/2.

    Raises:
        ConfigurationError: not equally many scores, none, or one that is neither 0 nor 1.
    """
    differences = _differences(ours, theirs)
    if not all(score in (0, 1) for score in (*ours, *theirs)):
        raise ConfigurationError("McNemar's test takes scores of 0 and 1 only; use permutation_test for others.")
    only_ours, only_theirs = int((differences > 0).sum()), int((differences < 0).sum())
    trials, term, tail = only_ours + only_theirs, 1, 0
    for successes in range(min(only_ours, only_theirs) + 1):
        tail += term
        term = term * (trials - successes) // (successes + 1)
    return min(1.0, 2 * tail / (1 << trials))


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Returns the unbiased estimate of the chance that one of k samples is right (Chen et al. 2021, arXiv 2107.03374).

    1 - C(n - c, k) / C(n, k), with n samples of which c are right.

    Raises:
        ConfigurationError: not 0 <= right <= samples, or not 1 <= k <= samples.
    """
    if not (0 <= right <= samples and 1 <= k <= samples):
        raise ConfigurationError(f"pass@k needs 0 <= right <= samples and 1 <= k <= samples, got {samples, right, k}.")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def majority(votes: Sequence[str | None]) -> int | None:
    """Returns the position of the first vote for the most frequent text; ties go to the text that came first.

    None votes (no answer was given) do not count; None if there is no other.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    return votes.index(counts.most_common(1)[0][0]) if counts else None


def majority_at_k(votes: Sequence[str | None], scores: Sequence[float], k: int) -> float:
    """Returns the estimate, from all n samples, of the score of the majority among k of them.

    The mean over the n windows of k consecutive samples, the first following the last, so that every sample counts
    equally often; k = n is one window. At k = 1 it is pass@1.

    Args:
        votes: of each sample, see `majority`; a window without a vote scores 0.
        scores: of each sample; equal votes have equal scores.
        k: samples that vote.

    Raises:
        ConfigurationError: not as many scores as votes, or not 1 <= k <= n.
    """
    count = len(votes)
    if len(scores) != count or not 1 <= k <= count:
        raise ConfigurationError(
            f"majority@k needs as many scores as votes and 1 <= k <= their number, got {count}, {len(scores)}, {k}."
        )
    starts = range(count) if k < count else range(1)
    windows = [[(start + offset) % count for offset in range(k)] for start in starts]
    winners = [(window, majority([votes[position] for position in window])) for window in windows]
    return sum(0.0 if winner is None else scores[window[winner]] for window, winner in winners) / len(windows)


def _resampled_means(sums: Floats, sizes: Floats, seed: int, resamples: int) -> Floats:
    """Returns sum(sums) / sum(sizes) of each resample of the questions.

    Args:
        sums: (questions, metrics), sums of the scores.
        sizes: (questions, metrics), their numbers.
        seed: of the draws.
        resamples: number of draws.

    Returns:
        (resamples, metrics); NaN where a resample drew no question that has the metric.
    """
    generator, count = np.random.default_rng(seed), len(sums)
    means = []
    for size in _chunks(resamples, count):
        drawn = generator.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)
        with np.errstate(invalid="ignore"):
            means.append((weights @ sums) / (weights @ sizes))
    return np.concatenate(means)


def _chunks(total: int, width: int) -> list[int]:
    """Returns sizes that sum up to `total`, each with at most some millions of cells of `width`."""
    most = max(1, _CHUNK // width)
    return [most] * (total // most) + ([total % most] if total % most else [])


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> Floats:
    if len(ours) != len(theirs) or not len(ours):
        raise ConfigurationError(
            f"A paired test needs one score a question from both runs, got {len(ours)} and {len(theirs)}."
        )
    return np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
