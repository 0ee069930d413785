"""`python -m benchmarks.worlds` is its `run.py`."""

from benchmarks.worlds.run import main

raise SystemExit(main())
