"""`python -m benchmarks.multihop_qa` is its `run.py`."""

import sys

from benchmarks.multihop_qa.run import main

sys.exit(main())
