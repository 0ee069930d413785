"""Speed of evaluation through an endpoint."""
