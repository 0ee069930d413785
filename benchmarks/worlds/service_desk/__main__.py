"""`python -m benchmarks.worlds.service_desk` is its `run.py`."""

from benchmarks.worlds.service_desk.run import main

main()
