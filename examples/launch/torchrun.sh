#!/bin/bash
# Several machines that you reach by ssh. On each, from the repository's root, with the Python environment active:
#   bash examples/launch/torchrun.sh NODE_RANK HEAD [options of the trainer]
# NODE_RANK is 0, 1, ...; HEAD is the address of node 0, which all others reach. Nodes may start in any order and wait ten
# minutes for one another. When a process fails, its node ends at once. The others end when NCCL notices, which may take as
# long as --ddp_timeout (four hours) where a node is lost: stop them by hand. Then run the same commands again (or `until
# bash ...; do sleep 5; done`), and the run resumes from the last complete checkpoint. SIGTERM and Ctrl-C finish the step
# and save. output_dir and $AGENT_R1_HOME must lie on a file system that all nodes see.
set -eu
NODES=${NODES:-2} GPUS=${GPUS:-8} CONFIG=${CONFIG:-examples/launch/ddp.yaml} PORT=${PORT:-29500}
rank=$1 head=$2
shift 2

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=600  # time to finish a step and save; torchrun's own limit is 30 s
# Accelerate starts torchrun. --max_restarts 0: launchers whose processes fail at different moments would miss each other.
# 16 processes x 5 rollouts x 1 pass = 16 groups of 5 per generation batch.
exec accelerate launch --config_file "$CONFIG" --num_machines "$NODES" --num_processes $((NODES * GPUS)) \
  --machine_rank "$rank" --main_process_ip "$head" --main_process_port "$PORT" --max_restarts 0 \
  --rdzv_backend c10d --rdzv_conf "join_timeout=600,read_timeout=600,is_host=$((rank == 0))" \
  -m trainers.commands.train --config examples/hotpotqa_grpo.yaml --gradient_accumulation_steps 1 \
  --resume_from_checkpoint True "$@"
