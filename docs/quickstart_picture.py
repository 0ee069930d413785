"""Draws the README's picture from the folder of a quickstart: python docs/quickstart_picture.py runs/quickstart-..."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from agent_r1_gym.report.plots import Curve, curves, standalone
from trainers.toy.quickstart import baselines


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
    figure = curves("exact match", {"GRPO": curve}, lines=baselines(scores), x_label="optimiser step")
    (Path(__file__).parent / "_static" / "quickstart.svg").write_text(standalone(figure), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
