#!/usr/bin/env bash
# Word problems with a calculator: a cold start on 240 demonstrations of MAWPS, then GRPO; SVAMP before and after each.
#
#     bash run.sh MODEL RUNS [SEED]        MODEL: a folder, hub id or GGUF file; RUNS: a new folder
#
# In the environment: DATA (data, of get_data.py), EPISODES (240 demonstrations), STEPS (40, of 16 problems x 8 rollouts)
# QUESTIONS (SVAMP's first 1000), SLOTS (64 episodes side by side in evaluations).
set -euo pipefail
model=$1 runs=$2 seed=${3:-0}
data=${DATA:-$(dirname "$0")/data}
episodes=${EPISODES:-240} steps=${STEPS:-40} questions=${QUESTIONS:-1000}

measure() {  # measure NAME MODEL: the first SVAMP problems, greedy
    agent-r1 eval "$2" --split test --questions "$questions" --max-turn-tokens 64 --max-concurrent "${SLOTS:-64}" --out "$runs/eval-$1"
}

agent-r1 sft SVAMP --model "$model" --dataset "$data" --option tool_style=signature --episodes "$episodes" \
    --num-train-epochs 2 --seed "$seed" --out "$runs/sft"
measure sft "$runs/sft"
agent-r1 train SVAMP --warm-start "$runs/sft" --dataset "$data" --num-generations 8 \
    --per-device-train-batch-size 16 --gradient-accumulation-steps 8 --temperature 1.4 --beta 0 \
    --max-turn-tokens 64 --max-completion-length 512 --max-steps "$steps" --lr-scheduler-type constant --logging-steps 1 --seed "$seed" \
    --out "$runs/grpo"
measure grpo "$runs/grpo"
