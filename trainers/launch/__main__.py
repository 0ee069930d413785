"""`python -m trainers.launch` is `agent-r1 launch`."""

from trainers.launch.command import run

raise SystemExit(run())
