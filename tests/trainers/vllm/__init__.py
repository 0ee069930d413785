"""Tests that need vLLM: `make test-vllm`."""
