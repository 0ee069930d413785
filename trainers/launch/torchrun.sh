#!/bin/bash
# Run this on every node: bash %%{file} NODE_RANK HEAD%%{server_words}
#   NODE_RANK     0 to %%{last_rank}%%{server_ranks}
#   HEAD          address of node 0, by which all others reach it
# The environment of Python has to be active, and the working folder the one that the words below are relative to.
# Written by:
#   %%{command}
%%{values}
# torchrun (Accelerate starts it) has the nodes meet at HEAD:PORT, in any order, and wait for one another at most
# JOIN_SECONDS. Where a process fails or a node is lost, all others end too; each node starts again, at most MAX_RESTARTS
# times, and the run goes on from the last whole checkpoint. A node that was lost may come back by the same command.
MAX_RESTARTS=%%{restarts}

%%{nodes_sh}
if (($# < 2)); then
  echo "usage: bash $0 NODE_RANK HEAD%%{server_words}" >&2
  exit 2
fi
STOPPED=0
node "$@"
