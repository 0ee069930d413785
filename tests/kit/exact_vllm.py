"""A server that computes what it says: it samples from the weights that it was given, and reports their log-probs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.kit.vllm_stub import StubVLLM


@dataclass
class ExactVLLM(StubVLLM):
    """Takes whole weights.

    Attributes:
        model: folder of the model that it is started with.
        keeps: whether it goes on with these weights after the first ones that it is given, and says that it does not.
    """

    model: str = ""
    keeps: bool = False

    def __enter__(self) -> ExactVLLM:
        self._weights = AutoModelForCausalLM.from_pretrained(self.model).eval()
        self._computing = threading.Lock()
        super().__enter__()
        return self

    def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if path == "/collective_rpc" and not (self.keeps and self.loads):
            weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            with self._computing:
                self._weights.load_state_dict(weights, strict=False)
        if path == "/v1/completions" and not body["logprobs"]:
            return 200, self._sampled(body)
        return super().answer(path, body)

    def _sampled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ids, logprobs = list(body["prompt"]), []
        generator = torch.Generator().manual_seed(body["seed"] % 2**63)
        for _ in range(body["max_tokens"]):
            with self._computing, torch.no_grad():
                table = self._weights(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            ids.append(int(torch.multinomial(table.exp(), 1, generator=generator)))
            logprobs.append(table[ids[-1]].item())
            if ids[-1] in body["stop_token_ids"]:
                break
        turn = ids[len(body["prompt"]) :]
        self.turns.append((tuple(body["prompt"]), body["seed"], self.version))
        reason = "stop" if turn[-1] in body["stop_token_ids"] else "length"
        choice = {"token_ids": turn, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
        return {"model": body["model"], "choices": [choice]}
