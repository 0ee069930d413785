"""AgentR1/LongRead-v0: a ledger that is read page by page, with notes or without."""
