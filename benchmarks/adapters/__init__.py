"""Speed of the adapters, beside what their libraries do alone."""
