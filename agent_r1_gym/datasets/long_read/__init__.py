"""LongRead: ledgers that are read page by page, and questions about what stands in them."""
