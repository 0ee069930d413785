"""Draws the README's picture from the folder of a quickstart: python docs/quickstart_picture.py runs/quickstart-..."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

from agent_r1_gym.report.plots import Curve, curves
from trainers.toy.quickstart import baselines

_STYLE = (
    "svg{font:11px system-ui,sans-serif;background:#fff}text{fill:#555}"
    "line{stroke-width:1}.axis{stroke:#ddd}.line0{stroke:#0a6ebd;fill:none;stroke-width:2}.dots{fill:none;stroke:#0a6ebd;stroke-width:3;"
    "stroke-linecap:round;opacity:.5}.across{stroke:#888;stroke-dasharray:4 3}"
)


def main(folder: Path) -> None:
    """Writes `docs/_static/quickstart.svg`."""
    with (folder / "curves.csv").open(newline="", encoding="utf-8") as file:
        rows = [(float(row["step"]), float(row["reward"])) for row in csv.DictReader(file)]
    scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["scores"]
    smooth = [
        (x, sum(y for _, y in rows[max(0, at - 5) : at + 6]) / len(rows[max(0, at - 5) : at + 6]))
        for at, (x, _) in enumerate(rows)
    ]
    curve = Curve([x for x, _ in smooth], [(y, y, y) for _, y in smooth], raw=rows)
    figure = curves("exact match", {"GRPO": curve}, lines=baselines(scores), x_label="optimiser step").text
    (svg,) = re.findall(r"<svg.*?</svg>", figure, re.S)
    svg = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1).replace(">", f"><style>{_STYLE}</style>", 1)
    (Path(__file__).parent / "_static" / "quickstart.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
