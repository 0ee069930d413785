"""`accelerate launch -m trainers.sft ...` is `agent-r1 sft ...` on as many processes as one likes."""

from trainers.sft.command import run

raise SystemExit(run())
