"""`agent-r1 report`: evaluation and training runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.report.evaluation import evaluation_items, evaluation_parts, is_evaluation_run, read_evaluation_runs
from agent_r1_gym.report.page import heading, write_page
from agent_r1_gym.report.training import TrainingRun, read_training_run, training_items, training_parts
from agent_r1_gym.report.viewer import viewer


def write_report(paths: Sequence[Path], out: Path, *, title: str = "Report") -> int:
    """Writes one page about evaluation and training runs, and returns its size in bytes.

    Raises:
        DatasetError: a folder holds no run, or one that cannot be read.
    """
    evaluations = read_evaluation_runs([path for path in paths if is_evaluation_run(path)])
    trainings = [_training_run(path) for path in paths if not is_evaluation_run(path)]
    items = [*evaluation_items(evaluations), *training_items(trainings)]
    parts = [*evaluation_parts(evaluations), *training_parts(trainings), heading("Traces"), *viewer(items)]
    return write_page(out, title, parts)


def _training_run(path: Path) -> TrainingRun:
    run = read_training_run(path)
    if run is None:
        raise DatasetError(
            f"{path} holds no run; expected a folder of `agent-r1 eval` (run.json), of `agent-r1 quickstart` "
            "(curves.csv), or of the trainer (trainer_state.json, in it or in a checkpoint)."
        )
    return run
