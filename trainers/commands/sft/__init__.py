"""`agent-r1 sft`: supervised training on demonstrations, a cold start before reinforcement learning.

RL learns nothing where every episode fails. Here the successful episodes of a source (the environment's oracle, a
policy, a run of a stronger model, the model's own samples) become token rows, of which only what the agent writes is in
the loss. The result is a model or adapter with its chat format, from which `agent-r1 train --warm-start DIR` continues.
On several processes: `accelerate launch -m trainers.commands.sft ENV --model ... --from SOURCE --out ...`.

Exit status: 0 trained to the end; 1 out of memory; 2 wrong input; 143 (SIGTERM), 129 (SIGHUP), 130 (Ctrl-C) stopped by
a signal after the step under way, with the state saved.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from agent_r1_gym.errors import AgentR1Error
from agent_r1_gym.support.out_of_memory import is_out_of_memory, out_of_memory_message
from agent_r1_gym.support.terminal import print_error, print_line, still_working
from trainers.commands.help import sft_help_text


def main(argv: Sequence[str]) -> None:
    """Collect demonstrations, train on them, and save model or adapter, tokenizer and chat format in `output_dir`."""
    if {"-h", "--help"} & set(argv):
        print_line(sft_help_text())
        return
    with still_working("loading PyTorch and TRL"):
        from trainers.commands.sft.command import sft
    sft(argv)


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; invalid input is one line on stderr and exit status 2."""
    try:
        main(sys.argv[1:] if argv is None else argv)
    except AgentR1Error as error:
        print_error(str(error), Path(sys.argv[0]).name)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print_error(out_of_memory_message(error, "sft"), Path(sys.argv[0]).name)
        return 1
    return 0
