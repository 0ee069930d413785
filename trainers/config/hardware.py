"""What this machine can do: an accelerator, bfloat16 on its CPU, free memory. Defaults depend on it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
import time
from pathlib import Path

import torch

MIN_BF16_PARAMETERS = 20_000_000
"""Parameters from which a model computes in bfloat16 on a CPU by default: smaller matrices gain nothing."""
MIN_BF16_SPEEDUP = 1.25
"""From which ratio of matrix products a CPU computes in bfloat16: the rest of a step is no faster in it."""
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of /proc/cpuinfo with instructions for bfloat16: of x86 the first two, of ARM the last."""
_M_MMAP_THRESHOLD = -3
"""Of malloc.h: size from which `malloc` maps a block of its own, which `free` gives back to the system."""
_LARGE_BLOCK = 2**20
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def has_accelerator() -> bool:
    """Whether torch finds a GPU or another accelerator."""
    return torch.accelerator.is_available()


def gpu_has_bf16() -> bool:
    """Whether there is a GPU or another accelerator that computes in bfloat16; emulated (V100, T4) it is slow."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    from transformers.utils.import_utils import is_torch_bf16_gpu_available

    return bool(is_torch_bf16_gpu_available())


@functools.cache
def cpu_prefers_bf16() -> bool:
    """Whether this CPU multiplies matrices clearly faster in bfloat16 than in float32: has the instructions, and does.

    The instructions alone do not decide it: a product took a third to a fifth of the time on one machine with
    `avx512_bf16`, and one and a half times as long on another.
    """
    return cpu_has_bf16() and bf16_speedup() >= MIN_BF16_SPEEDUP


def bf16_speedup() -> float:
    """Measure how many times as fast as in float32 a matrix product is in bfloat16, in a tenth of a second.

    The two take turns, and each counts with its fastest time: other programs can only make one slower.
    """
    left, right = torch.rand(256, 1024), torch.rand(1024, 1024)
    seconds = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for _ in range(5):
        for dtype in seconds:
            pair = left.to(dtype), right.to(dtype)
            begin = time.perf_counter()
            torch.mm(*pair)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - begin)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def cpu_has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has instructions for bfloat16; emulated it is slower than float32."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return False
    flags = (line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features")))
    return bool(_CPU_FLAGS & set(next(flags, [])))


def free_memory(device: torch.device) -> int | None:
    """Free bytes of a device: of a CPU those of the machine or, if lower, of the container; None: unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = (line.split() for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        free = 1024 * next(int(words[1]) for words in lines if words[0] == "MemAvailable:")
    except (OSError, StopIteration):  # not Linux
        return None
    try:
        limit, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no limit ("max"), or none that can be read
        return free
    return min(free, limit - used)


def max_resident_bytes() -> int:
    """Most memory that this process has occupied so far, in bytes; 0 where the system does not count it."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0


def return_large_blocks() -> None:
    """Make the C library return freed blocks of 1 MiB and more to the system, those that it holds and all later ones.

    glibc raises the size from which it does so up to 32 MiB. Activations are often smaller than that, and differ in
    length from batch to batch, so its heap fragments. But each block that was returned is mapped anew, page by page: a
    step of `sft` with a model of 135M parameters took 24.6 s instead of 17.0, and 5.7 GiB instead of 7.7.
    """
    with contextlib.suppress(AttributeError, OSError):  # glibc alone has them
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        library.malloc_trim(0)
