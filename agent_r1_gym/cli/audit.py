"""`agent-r1 audit ENV`: does an environment measure what it claims? A verdict per rule, with evidence."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from agent_r1_gym.audit.audit import audit, settings_of
from agent_r1_gym.audit.findings import AT, FORMAT, TURN, AuditReport, RuleResult
from agent_r1_gym.audit.rules import find_rules
from agent_r1_gym.audit.sources import hashes
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import short_id
from agent_r1_gym.report.audit import write_audit
from agent_r1_gym.run.env_options import ENV_HELP, add_env_arguments, env_options
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.json_data import parse_json
from agent_r1_gym.support.terminal import Progress, print_line, print_note, table

FILE = "audit.json"
_WIDTH, _MAX_ROWS = 60, 5
_GAMES = ("textworld", "scienceworld", "textarena", "reasoning-gym", "gem-llm", "skyrl-gym")
_LIBRARIES = (*_GAMES, "verifiers", "openenv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.epilog = (
        "Exit status: 0 no error was found (warnings may be), 1 at least one error, 2 the environment cannot be "
        "audited, or a rule or the policy of --oracle is broken. The audit plays the environment and calls its tools "
        "with generated arguments: run it where that does no harm."
    )
    add_env_arguments(parser, env_help=f"{ENV_HELP}; or a class, registered or not, as MODULE:CLASS")
    parser.add_argument(
        "--rules", nargs="+", metavar="RULE", help="rules to run, custom ones as MODULE:NAME (default: all)"
    )
    parser.add_argument("--skip", nargs="+", metavar="RULE", default=[], help="rules to leave out")
    parser.add_argument(
        "--oracle",
        default="",
        metavar="POLICY",
        help="policy that plays best: MODULE:NAME of a Policy or of a function of the texts so far, or replay:RUN "
        "(default: the environment's own oracle)",
    )
    defaults = Settings()
    parser.add_argument(
        "-n", "--episodes", type=int, default=defaults.episodes, help=f"tasks per player (default: {defaults.episodes})"
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, help="first seed (default: 0)")
    for name, what in (("call", "one call of the environment"), ("rule", "one rule"), ("total", "the whole audit")):
        value = getattr(defaults, f"{name}_seconds")
        parser.add_argument(
            f"--{name}-seconds", type=float, default=value, help=f"limit for {what} (default: {value:g})"
        )
    parser.add_argument(
        "--memory-gib", type=float, default=8.0, help="memory limit of all processes of the environment (default: 8)"
    )
    parser.add_argument(
        "--network", action="store_true", help="let the environment connect to other machines (default: refused)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help=f"folder of {FILE} and report.html; an interrupted audit of the same code is resumed (default: runs/...)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 also for a warning, and for a rule that was not run"
    )
    parser.add_argument("--json", action="store_true", help=f"print {FILE} instead of the table")


def run(options: argparse.Namespace) -> int:
    """Audit, print the verdict of each rule, write `audit.json` and the page, and return the exit status.

    Nothing of the environment is imported here, also not by `--import`: its code runs in processes of the audit.
    """
    target = Target(options.env, env_options(options), tuple(options.imports), options.oracle)
    settings = Settings(
        memory=int(options.memory_gib * 2**30),
        **{field.name: getattr(options, field.name) for field in fields(Settings) if field.name != "memory"},
    )
    out: Path = options.out or Path("runs") / f"audit-{short_id(target.env)}-{time.strftime('%Y%m%d-%H%M%S')}"

    def save(report: AuditReport) -> None:
        with atomic_file(out / FILE) as temporary:
            temporary.write_text(_as_json(report) + "\n", encoding="utf-8")

    finished, sources = _finished_rules(out / FILE, target, settings)
    changed = [path for path, known in hashes(sources).items() if known != sources[path]]
    if changed or (finished and not sources):
        why = f"{changed[0]} has changed" if changed else "it does not name the code that they are about"
        print_note(f"{out} holds verdicts of other code ({why}): all rules are run again")
        finished, sources = [], {}
    if finished:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime((out / FILE).stat().st_mtime))
        print_note(f"{out} holds {len(finished)} finished rules of {when}; they are not run again")
    with Progress(len(find_rules(options.rules, skip=options.skip)), f"audit {target.env}", "rule") as progress:

        def show(report: AuditReport) -> None:
            save(report)
            progress.update(len(report.results) - progress.n)

        report = audit(
            target,
            settings,
            rules=options.rules,
            skip=options.skip,
            finished=finished,
            sources=sources,
            packages=_LIBRARIES,
            on_report=show,
        )
    if report.could_not_run:
        raise ConfigurationError(report.could_not_run)
    report = replace(report, strict=options.strict)
    save(report)
    size = write_audit(out / "report.html", report)
    print_line(_as_json(report) if options.json else format_report(report))
    if not options.json:
        print_line(f"{out / FILE}; {out / 'report.html'}: {size / 1e6:.1f} MB")
    for result in report.results:
        if result.broken:
            print_note(f"the audit is not complete: rule {result.rule}: {result.not_run}")
    return report.exit_status


def _as_json(report: AuditReport) -> str:
    return json.dumps(report.to_dict(), indent=2, default=repr)


def _finished_rules(path: Path, target: Target, settings: Settings) -> tuple[list[RuleResult], dict[str, str]]:
    """Read the results of an interrupted audit, and the hashes of the code that they are about.

    Raises:
        ConfigurationError: the file is another audit's, or no audit's.
    """
    if not path.exists():
        return [], {}
    try:
        saved = parse_json(path.read_bytes())
        known = saved["format"], saved["env"], saved["options"], saved["settings"]
        sources = {str(path): str(known) for path, known in saved.get("sources", {}).items()}
        results = [RuleResult.from_dict(entry) for entry in saved["rules"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is not the file of an audit ({error!r:.100}); choose another --out."
        ) from error
    expected = FORMAT, target.env, dict(target.options), settings_of(target, settings)
    if known != expected:
        raise ConfigurationError(f"{path} is of another audit ({_differing(known, expected)}); choose another --out.")
    return results, sources


def _differing(known: Sequence[Any], expected: Sequence[Any]) -> str:
    """Name what differs between two audits, each by its value there and here."""
    parts = []
    for one, other in zip(known, expected, strict=True):
        if one == other:
            continue
        if not (isinstance(one, dict) and isinstance(other, dict)):
            parts.append(f"{one!r:.80}, not {other!r:.80}")
            continue
        for name in dict.fromkeys((*one, *other)):
            if one.get(name) != other.get(name):
                parts.append(f"{name}={one.get(name)!r:.40}, not {other.get(name)!r:.40}")
    return "; ".join(parts)


def format_report(report: AuditReport) -> str:
    """Format the verdict of each rule, and below the table each reason that is too long for it, and each finding."""
    idle = Counter(result.not_run for result in report.results if result.status == "not run")
    common, number = next(iter(idle.most_common(1)), ("", 0))
    hidden = common if number > _MAX_ROWS else None  # nearly all rules, for one reason
    reasons: dict[str, list[str]] = {}
    rows = []
    for result in report.results:
        if result.status == "not run" and result.not_run == hidden:
            continue
        remark = _remark(result)
        if len(remark) > _WIDTH:
            reasons.setdefault(f"{result.status.upper()} {{}}: {remark}", []).append(result.rule)
            remark = "(below)"
        rows.append((result.rule, result.status, remark, f"{result.seconds:.1f}"))
    if hidden is not None:
        reasons[f"NOT RUN {{}}: {hidden}"] = [f"({number} others)"]
        rows.append((f"({number} others)", "not run", "(below)", ""))
    parts = [table(("rule", "verdict", "reason", "s"), rows), ""]
    parts += [text.replace("{}", ", ".join(names), 1) for text, names in reasons.items()]
    for result in report.results:
        for finding in result.findings:
            where = [str(finding.evidence[AT])] if AT in finding.evidence else []
            where += [f"turn {finding.evidence[TURN]!r:.80}"] if TURN in finding.evidence else []
            place = f" ({', '.join(where)})" if where else ""
            parts.append(f"{finding.severity.upper()} {result.rule}: {finding.message}{place}")
    return "\n".join([*parts, "", f"{report.env}: {report.verdict}"])


def _remark(result: RuleResult) -> str:
    if result.findings:
        return f"{len(result.findings)} finding{'s' * (len(result.findings) > 1)}"
    return result.not_run or result.not_applicable
