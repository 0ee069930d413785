"""Adapters: environments of other libraries as ours, one file per library; a library is imported when it is needed."""
