"""Run as a script: trains in forked children that are killed at chosen moments, and resumed.

Arguments: a folder, and at which moments the runs are killed, one after another. A moment is a number of things done in
the run's folder: files opened, renamed or removed, a rollout begun, a file of tensors written, which is torn then.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_utils

from tests.kit.process_groups import renew_threads
from tests.kit.small_runs import make_trainer, play

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "rollout")
SETTINGS = {
    "num_generations": 4,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "learning_rate": 1e-2,
    "critic_learning_rate": 1e-2,
    "max_steps": 7,
    "logging_steps": 3,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 1,
}
TIMES = ("_runtime", "_per_second", "step_time", "seconds", "flos", "train_loss")


class Moments:
    """Counts what happens in a folder, and kills the process at a chosen number."""

    def __init__(self, folder: Path, kill_at: int | None) -> None:
        self.folder, self.kill_at = str(folder), kill_at
        self.seen: list[str] = []
        sys.addaudithook(self._hear)
        torch.save = self._torn(torch.save)
        transformers.modeling_utils.safe_save_file = self._torn(transformers.modeling_utils.safe_save_file)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in EVENTS and arguments and str(arguments[0]).startswith(self.folder) and self._is_now(event):
            os.kill(os.getpid(), signal.SIGKILL)

    def _is_now(self, event: str) -> bool:
        self.seen.append(event)
        return len(self.seen) == self.kill_at

    def _torn(self, save: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(save)
        def wrapper(content: Any, path: Any, **options: Any) -> None:
            save(content, path, **options)
            if self._is_now(f"save {Path(path).name}"):
                os.truncate(path, Path(path).stat().st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)

        return wrapper


def train(folder: Path, algorithm: str, kill_at: int | None) -> None:
    """Starts or resumes a run; leaves its end in `end.pt`, its log and its moments in JSON."""
    moments = Moments(folder, kill_at)

    def collect(request: Any) -> Any:
        sys.audit("rollout", str(folder))
        return play(request)

    trainer = make_trainer(folder, collect, algorithm=algorithm, **SETTINGS)
    trainer.train(resume_from_checkpoint=True)
    critic = trainer.critic
    end = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
    if critic is not None:
        end |= {"critic": critic.model.state_dict(), "critic_optimizer": critic.optimizer.state_dict()}
    torch.save(end, folder / "end.pt")
    (folder / "log.json").write_text(json.dumps(timeless(trainer.state.log_history)))
    (folder / "moments.json").write_text(json.dumps(moments.seen))


def timeless(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a log without the numbers that measure time, or only this run of the program."""
    return [{name: value for name, value in row.items() if not name.endswith(TIMES)} for row in log]


def in_child(function: Callable[[], None]) -> int:
    """Returns the wait status of a fork that runs the function: imports are paid once."""
    child = os.fork()
    if not child:
        try:
            renew_threads()
            function()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    directory, kills = Path(sys.argv[1]), [int(word) for word in sys.argv[2:]]
    torch.set_num_threads(1)
    for name in ("grpo", "ppo"):
        in_child(functools.partial(train, directory / f"{name}-whole", name, None))
        killed = functools.partial(train, directory / f"{name}-killed", name)
        statuses = [in_child(functools.partial(killed, kill_at)) for kill_at in (*kills, None)]
        (directory / f"{name}.json").write_text(json.dumps(statuses))
