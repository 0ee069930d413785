"""`python -m benchmarks.retry` is its `run.py`."""

from benchmarks.retry.run import main

raise SystemExit(main())
