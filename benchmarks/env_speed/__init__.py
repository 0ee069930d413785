"""Speed and weight of the environments, beside their peers."""
