"""Retrievers: from a short text to passages."""
