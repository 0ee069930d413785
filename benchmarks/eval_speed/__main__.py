"""`python -m benchmarks.eval_speed` is its `run.py`."""

import sys

from benchmarks.eval_speed.run import main

sys.exit(main())
