"""`python -m benchmarks.endurance` is its `run.py`."""

from benchmarks.endurance.run import main

raise SystemExit(main())
