#!/bin/bash
#SBATCH --job-name=%%{name}
#SBATCH --nodes=%%{all_nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=%%{gpus}
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=%%{time}
#SBATCH --signal=B:USR1@%%{warning}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
%%{sbatch}
# Submit by `sbatch` from the folder that the words below are relative to; written by:
#   %%{command}
%%{values}
# A signal comes STOP_SECONDS before the end of the job, and a minute: the run saves, and the job goes back into the queue,
# at most MAX_REQUEUES times. What a lost node ended, Slurm starts again itself (--requeue).
MAX_REQUEUES=%%{restarts}

%%{nodes_sh}
# --- The job: one step per role, on nodes of their own ---

on() {  # NUMBER HOSTS COMMAND [OPTION...]: a command on each of these nodes, with all that stands above
  # Called with & only: in the place of the subshell, srun itself gets the signals that are sent to $!.
  # --wait: where one node has ended the others may still save; what hangs is killed after 300 s.
  exec srun --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --nodelist="$2" --cpu-bind=none --wait=300 "${@:4}" \
    bash -c "$(declare -p %%{names} STOPPED; declare -f)"$'\n'"setup && $3"
}

STOPPED=0
servers='' trainer='' urls=()
trap 'STOPPED=1; if [[ $trainer ]]; then kill -USR1 "$trainer"; fi' USR1 TERM
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if ((${#hosts[@]} != TRAINER_NODES + VLLM_NODES)); then
  say "the job has ${#hosts[@]} nodes (${hosts[*]}), but this script needs $((TRAINER_NODES + VLLM_NODES))."
  exit 1
fi
join() { local IFS=,; echo "$*"; }

if ((VLLM_NODES)); then
  on "$VLLM_NODES" "$(join "${hosts[@]:TRAINER_NODES}")" serve --output="%x-%j-vllm-%N.log" --open-mode=append &
  servers=$!
  mapfile -t urls < <(server_urls "${hosts[@]:TRAINER_NODES}")
fi
await_servers "${urls[@]}"
status=$?
if ((!status)); then
  on "$TRAINER_NODES" "$(join "${hosts[@]:0:TRAINER_NODES}")" "train \"\$SLURM_PROCID\" ${hosts[0]} ${urls[*]}" &
  trainer=$!
  wait "$trainer"
  status=$?
  while ((status > 128)) && kill -0 "$trainer" 2>/dev/null; do wait "$trainer"; status=$?; done  # a trap cuts it short
fi
if [[ $servers ]]; then  # srun passes USR1 on; TERM would make it kill what it has started
  kill -USR1 "$servers" 2>/dev/null
  wait "$servers"
fi
if ((STOPPED && status && ${SLURM_RESTART_COUNT:-0} < MAX_REQUEUES)); then
  say "stopped with the state saved in $OUTPUT_DIR; back into the queue, to go on from there."
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
