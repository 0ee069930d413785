"""The 0.4M policy of quickstart and benchmarks: model, warm start, demonstrations, controls."""
