"""`agent-r1 audit ENV`: does an environment measure what it claims? A verdict per rule, with evidence."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path

from agent_r1_gym.audit.audit import audit, settings_of
from agent_r1_gym.audit.findings import FORMAT, AuditReport, RuleResult
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
        "audited. The audit plays the environment and calls its tools with generated arguments: run it where that does "
        "no harm."
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
        help="policy that plays best, such as MODULE:NAME or replay:RUN (default: the environment's own oracle)",
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
    save(report)
    size = write_audit(out / "report.html", report)
    print_line(_as_json(report) if options.json else format_report(report))
    if not options.json:
        print_line(f"{out / FILE}; {out / 'report.html'}: {size / 1e6:.1f} MB")
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
        differing = next((one, other) for one, other in zip(known, expected, strict=True) if one != other)
        raise ConfigurationError(
            f"{path} is of another audit ({differing[0]!r:.80}, not {differing[1]!r:.80}); choose another --out."
        )
    return results, sources


def format_report(report: AuditReport) -> str:
    """Format the verdict of each rule, and each finding with the end of its reproduction."""
    idle = Counter(result.not_run for result in report.results if result.status == "not run")
    common, number = next(iter(idle.most_common(1)), ("", 0))
    hidden = common if number > _MAX_ROWS else None  # nearly all rules, for one reason
    rows = [
        (result.rule, result.status, _remark(result), f"{result.seconds:.1f}")
        for result in report.results
        if result.status != "not run" or result.not_run != hidden
    ]
    rows += [(f"({number} others)", "not run", common, "")] if hidden is not None else []
    parts = [table(("rule", "verdict", "", "s"), rows), ""]
    for result in report.results:
        parts += [f"{finding.severity.upper()} {result.rule}: {finding.message}" for finding in result.findings]
    return "\n".join([*parts, "", f"{report.env}: {report.verdict}"])


def _remark(result: RuleResult) -> str:
    if result.findings:
        return f"{len(result.findings)} finding{'s' * (len(result.findings) > 1)}"
    reason = result.not_run or result.not_applicable
    return reason if len(reason) <= _WIDTH else f"{reason[:_WIDTH]}..."
