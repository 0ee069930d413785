"""What the benchmarks of adapters share: their options, and where their figures go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.measure import Report, append_row, to_row, to_table


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that all of them have; `text` is a module's docstring."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="values per system (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="file to append the row to (default: none)")
    return parser


def tell(report: Report, options: argparse.Namespace, *, module: str) -> None:
    """Prints the figures, and keeps them where `options` say."""
    print(to_table(report))
    if options.output is not None:
        settings: Mapping[str, Any] = {name: value for name, value in vars(options).items() if name != "output"}
        append_row(options.output, to_row(report, settings=settings, command=["python", "-m", module, *sys.argv[1:]]))
