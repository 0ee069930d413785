"""`python -m benchmarks.refill` is its `run.py`."""

from benchmarks.refill.run import main

raise SystemExit(main())
