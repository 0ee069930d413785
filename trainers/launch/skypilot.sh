%%{values}
# Processes that fail are not started again here: `sky jobs launch` starts a run again whose machines are lost.
MAX_RESTARTS=0

%%{nodes_sh}
STOPPED=0
mapfile -t hosts <<<"$SKYPILOT_NODE_IPS"
node "$SKYPILOT_NODE_RANK" "${hosts[0]}" "${hosts[@]:TRAINER_NODES}"
