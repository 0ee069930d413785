"""`python -m benchmarks.discovery` is its `run.py`."""

from benchmarks.discovery.run import main

raise SystemExit(main())
