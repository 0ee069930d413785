"""`accelerate launch -m trainers.train ...` is `agent-r1 train ...` on as many processes as one likes."""

from trainers.train import run

raise SystemExit(run())
