"""The rules of an audit: the table, those of users, and running one.

A rule is a function of a `Subject` that returns a `Verdict`; its docstring describes what it checks, and its limits.
Other packages add rules with an entry point of the group `agent_r1_gym.audit_rules`, or by MODULE:NAME.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import entry_points

from agent_r1_gym.audit.findings import (
    COST,
    CRASHES,
    Finding,
    NotApplicable,
    NotRun,
    RuleResult,
    Verdict,
    collect_crashes,
)
from agent_r1_gym.audit.players import NoOp
from agent_r1_gym.audit.rules import determinism, leaks, runs, scores, usability
from agent_r1_gym.audit.subject import BrokenError, Crash, Subject, TooManyHangs, place_of
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, InfrastructureError, suggest
from agent_r1_gym.support.packages import import_object

RuleFunction = Callable[[Subject], Verdict]
GROUP = "agent_r1_gym.audit_rules"
"""Group of the entry points with rules of other packages."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        name: its name, in reports and for `--rules`.
        topic: what it is about: "runs", "scores", "leaks", "determinism", "use", or the package that brings it.
        function: checks an environment.
    """

    name: str
    topic: str
    function: RuleFunction

    @property
    def claim(self) -> str:
        """What the rule checks: the first sentences of its docstring."""
        return _paragraphs(self.function)[0]

    @property
    def limits(self) -> str:
        """What the rule cannot find: the paragraph of its docstring that begins with "Limits:"."""
        text = next((text[7:].strip() for text in _paragraphs(self.function) if text.startswith("Limits:")), "")
        return text[:1].upper() + text[1:]


def _paragraphs(function: RuleFunction) -> list[str]:
    text = inspect.getdoc(function) or "(not documented)"
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


_FUNCTIONS: Mapping[str, tuple[RuleFunction, ...]] = {
    "runs": (
        *(runs.interface, runs.survives, runs.contract, runs.ends, runs.after_the_end, runs.quiet, runs.cleans_up),
        *(runs.offline, runs.executes_no_text),
    ),
    "scores": (
        *(scores.reachable, scores.not_hackable, scores.forged_answers, scores.finite_rewards, scores.reward_order),
        *(scores.last_turn, scores.informative, scores.learnable),
    ),
    "leaks": (leaks.canary, leaks.answer_in_prompt, leaks.gold_in_info),
    "determinism": (
        *(determinism.same_seed, determinism.global_random, determinism.independent_episodes),
        *(determinism.independent_instances, determinism.kept_values, determinism.threads, determinism.hash_seeds),
        determinism.clocks,
    ),
    "use": (
        *(usability.feedback, usability.clean_text, usability.cost, usability.memory, usability.side_by_side),
        usability.dead_backend,
    ),
}

RULES: Mapping[str, Rule] = {
    function.__name__: Rule(function.__name__, topic, function)
    for topic, functions in _FUNCTIONS.items()
    for function in functions
}
"""The rules of this package by name; they run in this order, but `cost` first."""


def find_rules(names: Iterable[str] | None = None, *, skip: Iterable[str] = ()) -> list[Rule]:
    """Find rules by name, those of installed packages among them.

    Args:
        names: names of rules, or MODULE:NAME of functions; None: all.
        skip: names of rules to leave out.

    Raises:
        ConfigurationError: there is no such rule.
    """
    known = {**RULES, **{rule.name: rule for rule in _installed_rules()}}
    skipped = list(skip)
    for name in skipped:
        if name not in known:
            raise ConfigurationError(f"Unknown rule {name!r}. {suggest(name, known)}")
    selected = [_find(name, known) for name in names] if names is not None else sorted(known.values(), key=_is_later)
    return [rule for rule in dict.fromkeys(selected) if rule.name not in skipped]


def _is_later(rule: Rule) -> bool:
    """Whether the rule is not the one that measures what all others spend their time on."""
    return rule.name != COST


def _installed_rules() -> Iterator[Rule]:
    for point in entry_points(group=GROUP):
        if point.name in RULES:
            raise ConfigurationError(f"The entry point {point.name!r} of {GROUP} has the name of a built-in rule.")
        yield Rule(point.name, point.module.partition(".")[0], point.load())


def _find(name: str, known: Mapping[str, Rule]) -> Rule:
    if name in known:
        return known[name]
    if ":" not in name:
        raise ConfigurationError(f"Unknown rule {name!r}. {suggest(name, known)} Your own: MODULE:NAME.")
    function = import_object(name)
    if not callable(function):
        raise ConfigurationError(f"The rule {name} is a {type(function).__name__}, not a function of a Subject.")
    return Rule(name, name.partition(":")[0], function)


def run_rule(rule: Rule, subject: Subject) -> RuleResult:
    """Run one rule; what the environment does wrong, and what the rule itself raises, is in the result."""
    subject.crashes.clear()
    subject.hangs = 0
    started = time.perf_counter()
    try:
        verdict = rule.function(subject)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"it returned {verdict!r:.80}; a rule returns a Verdict")
        result = RuleResult(rule.name, tuple(verdict.findings), dict(verdict.measured), not_run=verdict.not_run)
    except NotApplicable as reason:
        result = RuleResult(rule.name, not_applicable=str(reason))
    except NotRun as reason:
        result = RuleResult(rule.name, not_run=str(reason))
    except TooManyHangs as hangs:
        result = RuleResult(rule.name, not_run=f"the environment broke: {hangs}")
    except (Crash, BrokenError) as crash:
        cause = "a backend failed" if isinstance(crash, Crash) and crash.is_backend else "the environment broke"
        result = RuleResult(rule.name, not_run=f"{cause}: {crash}")
    except Exception as error:  # a rule reads what an environment returned, which may be anything
        raised = f"{type(error).__name__}: {error!s:.300} ({place_of(error)})"
        if subject.raised(error):  # by an instance that a rule of the user called itself
            message = f"The environment raised {raised} when the rule called it."
            result = RuleResult(rule.name, (Finding("error", message, {"traceback": _traceback(error)}),))
        else:
            result = RuleResult(rule.name, not_run=f"the rule raised {raised}", broken=_traceback(error))
    subject.close_instances()
    return replace(result, crashes=tuple(subject.crashes), seconds=time.perf_counter() - started)


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-1_500:]


def unplayable(subject: Subject) -> str:
    """Return why no episode can be played at all; "" if one can.

    Raises:
        AgentR1Error: the environment, or its options, are named wrongly; or its backend cannot be reached.
    """
    try:
        episodes = subject.episodes(NoOp())
    except TooManyHangs as hangs:
        return str(hangs)
    except Crash as crash:  # of the constructor
        if isinstance(crash.__cause__, AgentR1Error):
            raise crash.__cause__ from crash
        return str(crash)
    crashes = [episode.crash for episode in episodes if episode.crash is not None and not episode.actions]
    if len(crashes) < len(episodes):  # an episode that returned something wrong is for the rule `interface`
        return ""
    if all(crash.is_backend for crash in crashes):
        raise InfrastructureError(f"its backend cannot be reached: {crashes[0].__cause__}")
    return str(crashes[0])


def run_rules(subject: Subject, rules: Iterable[Rule] | None = None) -> list[RuleResult]:
    """Run rules in this process, without isolation: for tests, and for an environment that only this process can make.

    Args:
        subject: the environment.
        rules: the rules; None: all.

    Raises:
        ConfigurationError: the given oracle knows no turn.
    """
    selected = list(rules) if rules is not None else find_rules()
    subject.crashes.clear()
    reason = unplayable(subject)
    _ = "" if reason else subject.oracle  # which may be unusable
    if reason:
        crashes = tuple(subject.crashes) or (Finding("error", f"No episode can be played: {reason}"),)
        return collect_crashes(
            [RuleResult(CRASHES, not_run=reason, crashes=crashes)]
            + [RuleResult(rule.name, not_run="no episode can be played") for rule in selected if rule.name != CRASHES]
        )
    return collect_crashes(run_rule(rule, subject) for rule in selected)
