"""`python -m benchmarks.discovery.retry` is its `run.py`."""

from benchmarks.discovery.retry.run import main

raise SystemExit(main())
