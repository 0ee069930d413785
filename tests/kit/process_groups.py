"""The processes of a run, on a CPU: threads, forks, and a launch by `accelerate`.

As a program, run by `accelerate launch`, it is `trainers.commands.train` as on two GPUs, but by gloo on the CPU.
Several command lines, separated by `--then`, run one after another; one that begins with `sft` is of
`trainers.commands.sft`. Accelerate knows FSDP on accelerators only; with
the CPU declared to be one, it shards there as well.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from tests.kit.processes import free_ports
from trainers.algorithms.process_group import ProcessGroup


def in_processes(functions: Sequence[Callable[[ProcessGroup], Any]]) -> list[Any]:
    """Calls each function with the world of its process, all at once; returns what they return."""
    count = len(functions)
    barrier, values = threading.Barrier(count, timeout=30), [None] * count

    def play(number: int) -> Any:
        def exchange(value: Any) -> list[Any]:
            values[number] = value
            barrier.wait()
            found = list(values)
            barrier.wait()  # nobody writes before everybody has read
            return found

        try:
            return functions[number](ProcessGroup(exchange, rank=number, size=len(functions)))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(play, range(count)))


def in_world(processes: int, work: Callable[[], None]) -> list[int]:
    """Runs `work` in so many forks, by gloo where they are several; returns their wait statuses.

    For scripts that have joined no processes and started no threads themselves.
    """
    gc.freeze()  # a run begins by collecting garbage, for which each fork would look through all that was imported
    port = free_ports(1)
    children = []
    for rank in range(processes):
        child = os.fork()
        if not child:
            _work(rank, processes, port, work)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


def renew_threads() -> None:
    """Makes torch replace the parent's pool of threads, in a fork that has one thread yet.

    torch does so at the pool's next use, without a lock: of two threads that use it at once, one may find none and
    abort the process ("Invalid thread pool!").
    """
    torch.set_num_threads(torch.get_num_threads())


def _work(rank: int, processes: int, port: int, work: Callable[[], None]) -> None:
    renew_threads()
    if processes > 1:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(number) for name, number in places.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    status = 0
    try:
        work()
        if processes > 1:
            torch.distributed.barrier()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        status = 1
    sys.stdout.flush()
    os._exit(status)  # gloo's threads now and then abort a process that tears down while another one still does


def as_on_gpus(self: Any, *_: Any, **__: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_GPU


FSDP = {
    **{"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"},
    **{"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP", "FSDP_TRANSFORMER_CLS_TO_WRAP": "Qwen3DecoderLayer"},
    **{"FSDP_CPU_RAM_EFFICIENT_LOADING": "false", "ACCELERATE_TORCH_DEVICE": "cpu"},
}
"""What `accelerate launch` sets for examples/launch/fsdp2.yaml, for a CPU."""


def under_fsdp2(form: str) -> None:
    """Makes this process one that `accelerate launch` started with FSDP2; `form` is how it saves weights."""
    PartialState._prepare_backend = as_on_gpus
    os.environ.update({**FSDP, "FSDP_STATE_DICT_TYPE": form})


if __name__ == "__main__":
    PartialState._prepare_backend = as_on_gpus
    from trainers.commands import sft, train

    words = sys.argv[1:]
    while words:
        line = words[: words.index("--then")] if "--then" in words else words
        words = words[len(line) + 1 :]
        if line[0] == "sft":
            sft.main(line[1:])
        else:
            train.main(line)
    if torch.distributed.get_world_size() != 2:
        raise SystemExit("expected 2 processes")
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
