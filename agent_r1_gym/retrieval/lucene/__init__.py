"""Pyserini's Lucene, in a process of its own that owns the Java machine."""
