"""`agent-r1 compare A B`: where two evaluation runs differ."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent_r1_gym.cli.env_options import page_path
from agent_r1_gym.report.compare import CLASSES, class_of, compare, test_rows, write_comparison
from agent_r1_gym.report.episodes import question_of
from agent_r1_gym.support.terminal import say, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("a", metavar="A", type=Path, help="folder of `agent-r1 eval`")
    parser.add_argument("b", metavar="B", type=Path, help="folder of another run on the same questions")
    parser.add_argument("--show", type=int, default=10, help="number of differing questions to print (default: 10)")
    parser.add_argument("--out", type=Path, help="HTML file with both traces (default: runs/compare-....html)")


def run(options: argparse.Namespace) -> int:
    """Prints counts, tests and the first differing questions, and writes the page."""
    out = page_path(options.out, "compare")
    comparison = compare(options.a, options.b)
    for text in comparison.facts:
        say(text)
    say(table(CLASSES, [tuple(comparison.counts[name] for name in CLASSES)]))
    say()
    tests = [(*numbers, f"{p:.2g}") for *numbers, p in test_rows(comparison)]
    say(table(("A - B", "difference", "low", "high", "p-value"), tests))
    say("These p-values compare two checkpoints. One run per method says little about the methods that made them.")
    shown = comparison.differing[: max(0, options.show)]
    if shown:
        rows = [(class_of(a, b), _cut(question_of(a)), _cut(a.answer), _cut(b.answer)) for a, b in shown]
        say()
        say(table(("right", f"question ({len(shown)} of {len(comparison.differing)})", "A", "B"), rows))
    size = write_comparison(comparison, out)
    say(f"{out}: {size / 1e6:.1f} MB; open it in a browser")
    return 0


def _cut(text: str | None) -> str:
    plain = "-" if text is None else "".join(sign if sign.isprintable() else " " for sign in text)
    return plain if len(plain) <= 60 else plain[:59] + "…"
