"""Layouts of rollouts: the log-probs and gradients of one context at a time, nothing seen across other rows."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from trl.trainer.utils import add_fused_lm_head, split_tensor_dict

from agent_r1_gym.errors import ConfigurationError
from tests.kit.models import make_causal_lm
from tests.kit.samples import samples
from tests.kit.small_runs import give, make_trainer, multi_turn_batch, score
from trainers.algorithms.packing import (
    IGNORE_INDEX,
    Layout,
    Segment,
    can_reorder_micro_batches,
    compute_logprobs,
    install_packed_attention,
    packed_layout,
    reorder_micro_batches,
    rows_layout,
    rows_per_pass,
    setup_packing,
    similarity_order,
    supports_packing,
    without_dropout,
)

CPU = torch.device("cpu")
PROMPT = 4
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}


def batch(rows: int = 12, *, contexts: bool, seed: int = 0) -> dict[str, Any]:
    """Rows of three prompts, padded at both sides, some with tool tokens, some with rewritten contexts."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(9, 60) for _ in range(length)] for length in (4, 2, 1)]
    width = 14
    ids, mask = torch.zeros(rows, PROMPT + width, dtype=torch.long), torch.zeros(rows, PROMPT + width, dtype=torch.long)
    scored, context_ids = torch.zeros(rows, width, dtype=torch.bool), torch.zeros(rows, width, dtype=torch.long)
    for row in range(rows):
        prompt, length = prompts[draw.randrange(3)], draw.randint(1, width)
        ids[row, PROMPT - len(prompt) : PROMPT] = torch.tensor(prompt)
        ids[row, PROMPT : PROMPT + length] = torch.tensor([draw.randrange(9, 60) for _ in range(length)])
        mask[row, PROMPT - len(prompt) : PROMPT + length] = 1
        scored[row, :length] = torch.tensor([draw.random() < 0.6 for _ in range(length)])
        for start in range(3, length, 5):
            if contexts and row % 2:
                context_ids[row, start:] += 1
                scored[row, start] = False  # a context begins with what was rendered
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "needs_logprobs": scored,
        "context_ids": context_ids if contexts else None,
    }


def by_hand(model: Any, sample: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies (B, T) by a plain pass over each context alone."""
    scored, context_ids = sample["needs_logprobs"], sample["context_ids"]
    rows = []
    for row in range(len(scored)):
        line, entropies = torch.zeros(scored.size(1)), torch.zeros(scored.size(1))
        real = sample["attention_mask"][row].bool()
        kinds = torch.zeros(len(real), dtype=torch.long)
        if context_ids is not None:
            kinds[PROMPT:] = context_ids[row]
        for kind in kinds[real].unique():
            places = (real & (kinds == kind)).nonzero()[:, 0]
            table = model(sample["input_ids"][row, places][None]).logits[0].float().log_softmax(-1)
            for index in range(1, len(places)):
                column = int(places[index]) - PROMPT
                if column >= 0 and scored[row, column]:
                    line[column] = table[index - 1, sample["input_ids"][row, places[index]]]
                    entropies[column] = -(table[index - 1].exp() * table[index - 1]).sum()
        rows.append((line, entropies))
    return torch.stack([line for line, _ in rows]), torch.stack([line for _, line in rows])


def logprobs_by(model: Any, sample: dict[str, Any], *, packed: bool, rows: int) -> tuple[Tensor, Tensor]:
    passes = []

    def run(layout: Layout) -> Any:
        passes.append(layout)
        output = model(**layout.inputs, shift_labels=layout.labels, fused_lm_head=True)
        return [output.log_probs, output.entropy], None

    (logps, entropies), aux = compute_logprobs(run, **sample, rows=rows, packed=packed)
    assert aux is None
    assert len(passes) == -(-len(sample["needs_logprobs"]) // rows)
    return logps, entropies


def weighted(logps: Tensor, entropies: Tensor) -> Tensor:
    weights = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    return (logps * weights).sum() + 0.1 * (entropies * weights.flip(0)).sum()


def gradients_of(model: Any) -> dict[str, Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


class TestEqualsOneContextAtATime:
    @pytest.mark.slow
    @pytest.mark.parametrize("rows", [1, 5, 12])
    @pytest.mark.parametrize("contexts", [False, True])
    @pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
    @samples("packed", [False, True])
    def test_log_probs_entropies_and_gradients(self, kind: str, packed: bool, contexts: bool, rows: int) -> None:
        model, sample = make_causal_lm(kind), batch(contexts=contexts)
        expected = by_hand(model, sample)
        weighted(*expected).backward()
        wanted = gradients_of(model)
        model.zero_grad()
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        if packed:
            install_packed_attention(model)
        found = logprobs_by(model, sample, packed=packed, rows=rows)
        assert_close(found, expected, rtol=1e-5, atol=1e-5)
        weighted(*found).backward()
        for name, value in gradients_of(model).items():
            assert_close(value, wanted[name], rtol=1e-4, atol=1e-4 * float(wanted[name].abs().max()), msg=name)

    @pytest.mark.parametrize("adapter", [False, True])
    def test_recomputed_layers(self, adapter: bool) -> None:
        """Checkpointing looks the attention up again, in the backward pass."""
        sample, found = batch(contexts=True), []
        for recompute in (False, True):
            model: Any = make_causal_lm()
            add_fused_lm_head(model, outputs=("log_probs", "entropy"))
            if adapter:
                torch.manual_seed(0)
                model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
                model.enable_input_require_grads()
            install_packed_attention(model)
            if recompute:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()
            weighted(*logprobs_by(model, sample, packed=True, rows=4)).backward()
            found.append(gradients_of(model))
        assert found[0]
        assert_close(found[0], found[1])

    def test_autocast(self) -> None:
        """Rotary positions make float32 of queries and keys, not of values."""
        model, sample = make_causal_lm(), batch(contexts=False)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        expected, _ = logprobs_by(model, sample, packed=False, rows=12)
        install_packed_attention(model)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, _ = logprobs_by(model, sample, packed=True, rows=12)
        assert_close(found.float(), expected.float(), rtol=0.05, atol=0.2)

    def test_other_rows_are_not_seen(self) -> None:
        model = make_causal_lm()
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        install_packed_attention(model)
        sample = batch(contexts=False)
        before, _ = logprobs_by(model, sample, packed=True, rows=12)
        changed = {**sample, "input_ids": sample["input_ids"].clone()}
        changed["input_ids"][3, PROMPT:] = (changed["input_ids"][3, PROMPT:] + 5) % 60
        after, _ = logprobs_by(model, changed, packed=True, rows=12)
        others = torch.arange(12) != 3
        assert_close(after[others], before[others])
        assert not torch.equal(after[3], before[3])


class TestLayouts:
    IDS = torch.tensor([[0, 7, 8, 9, 10, 11], [0, 7, 8, 12, 13, 0], [5, 6, 7, 14, 0, 0]])
    MASK = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    SCORED = torch.tensor([[0, 0, 0, 1, 0, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()

    def test_packed_by_hand(self) -> None:
        layout = packed_layout(self.IDS, self.MASK, self.SCORED, None, prompt=3)
        assert layout.inputs["input_ids"].tolist() == [[7, 8, 9, 10, 11, 8, 12, 13, 5, 6, 7, 14]]
        assert layout.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 1, 2, 3, 0, 1, 2, 3]]
        assert layout.inputs["segments"] == (Segment(0, 5), Segment(5, 8, 0, 1), Segment(8, 12))
        none = IGNORE_INDEX
        assert layout.labels.tolist() == [[none, 9, none, 11, none, 12, 13, none, none, none, 14, none]]
        back = layout.to_rows(torch.arange(12)[None] + 100)
        assert back[:, 3:].tolist() == [[101, 102, 103], [105, 106, 107], [110, 111, 0]]

    def test_packed_contexts_by_hand(self) -> None:
        contexts = torch.tensor([[0, 0, 0, 0, 1, 1], [0] * 6, [0] * 6])
        layout = packed_layout(self.IDS, self.MASK, self.SCORED, contexts, prompt=3)
        assert layout.inputs["position_ids"].tolist() == [[0, 1, 2, 0, 1, 1, 2, 3, 0, 1, 2, 3]]
        # The second row goes on from the prompt of the first, which stands in that one's first context.
        assert layout.inputs["segments"] == (
            *(Segment(0, 3), Segment(3, 5)),
            *(Segment(5, 8, 0, 1), Segment(8, 12)),
        )

    def test_rows_by_hand(self) -> None:
        layout = rows_layout(self.IDS, self.MASK, self.SCORED, None)
        assert layout.inputs["input_ids"].tolist() == [[7, 8, 9, 10, 11], [7, 8, 12, 13, 0], [5, 6, 7, 14, 0]]
        assert layout.inputs["attention_mask"].tolist() == [[1] * 5, [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]
        none = IGNORE_INDEX
        assert layout.labels.tolist() == [
            [none, 9, none, 11, none],
            [none, 12, 13, none, none],
            [none, none, 14, none, none],
        ]

    def test_contexts_are_rows_of_their_own(self) -> None:
        ids = torch.tensor([[0, 2, 5, 21, 22, 31, 32, 33], [7, 8, 9, 41, 0, 0, 0, 0]])
        contexts = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8])
        layout = rows_layout(ids, (ids > 0).long(), torch.ones_like(ids, dtype=torch.bool), contexts)
        assert layout.inputs["input_ids"].tolist() == [[2, 5, 21, 22], [31, 32, 33, 0], [7, 8, 9, 41]]
        assert layout.inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
        none = IGNORE_INDEX
        assert layout.labels.tolist() == [[5, 21, 22, none], [32, 33, none, none], [8, 9, 41, none]]
        laid = layout.to_rows(layout.labels)
        assert laid.tolist() == [[0, 0, 5, 21, 22, none, 32, 33], [0, 8, 9, 41, none, 0, 0, 0]]

    def test_like_rows_stand_together(self) -> None:
        prompts = torch.tensor([[0, 1], [2, 1], [0, 1], [2, 1]])
        mask = torch.tensor([[0, 1, 1, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 0]])
        assert similarity_order(prompts, mask, packed=True).tolist() == [2, 0, 3, 1]
        assert similarity_order(prompts, mask, packed=False).tolist() == [2, 3, 1, 0]

    @pytest.mark.parametrize("packed", [True, False])
    def test_micro_batches_of_a_step_get_like_rollouts_and_lose_none(self, packed: bool) -> None:
        draw = torch.Generator().manual_seed(0)
        prompts = torch.randint(1, 3, (24, 1), generator=draw)
        lengths = torch.randint(1, 9, (24,), generator=draw)
        whole = {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_mask": (torch.arange(8) < lengths[:, None]).long(),
            "name": list(range(24)),
            "share": torch.tensor(0.5),
            "nothing": None,
        }
        batches = split_tensor_dict(whole, 6)
        made = reorder_micro_batches(batches, SimpleNamespace(gradient_accumulation_steps=3), packed=packed)
        assert [len(batch["name"]) for batch in made] == [4] * 6
        for block in (slice(0, 3), slice(3, 6)):
            names = [name for batch in made[block] for name in batch["name"]]
            assert sorted(names) == [name for batch in batches[block] for name in batch["name"]]
            keys = [(int(prompts[name]) if packed else 0, -int(lengths[name])) for name in names]
            assert keys == sorted(keys)
            for batch in made[block]:
                assert batch["prompt_ids"].tolist() == prompts[batch["name"]].tolist()
                assert (batch["share"], batch["nothing"]) == (0.5, None)

    @samples(
        ("changes", "may"),
        [
            ({}, True),
            ({"loss_type": "bnpo"}, False),
            ({"entropy_coef": 0.1}, False),
            ({"use_adaptive_entropy": True}, False),  # even where it begins at 0
            ({"top_entropy_quantile": 0.5}, False),
            ({"steps_per_generation": 3}, False),
            ({"steps_per_generation": 1}, False),
        ],
    )
    def test_when_micro_batches_may_be_put_together_anew(self, changes: dict[str, Any], may: bool) -> None:
        options = {"loss_type": "dapo", "entropy_coef": 0.0, "use_adaptive_entropy": False, "top_entropy_quantile": 1.0}
        args = SimpleNamespace(gradient_accumulation_steps=2, **{**options, "steps_per_generation": 4, **changes})
        assert bool(can_reorder_micro_batches(args)) == may

    def test_passes(self) -> None:
        assert rows_per_pass(64, torch.device("cpu")) == 8
        assert rows_per_pass(3, torch.device("cpu")) == 3
        assert rows_per_pass(64, torch.device("cuda")) == 64


class TestModels:
    def test_a_layer_that_hands_nothing_on_is_laid_out_in_rows(self) -> None:
        config = NemotronConfig(**SMALL, vocab_size=64, num_hidden_layers=1)
        model = NemotronForCausalLM(config)
        assert not supports_packing(model)
        add_fused_lm_head(model, outputs=("log_probs", "entropy"))
        install_packed_attention(model)
        with pytest.raises(ConfigurationError, match=r"was not handed the segments .*update_layout=rows"):
            logprobs_by(model, batch(contexts=False), packed=True, rows=12)

    def test_full_attention_takes_segments_and_with_an_adapter_too(self) -> None:
        assert supports_packing(make_causal_lm("qwen2"))
        assert supports_packing(get_peft_model(make_causal_lm(), LoraConfig(target_modules="all-linear")))
        model = make_causal_lm("llama")
        assert not any(setup_packing("auto", model, None, device=torch.device(name)) for name in ("cuda", "mps"))
        assert setup_packing("auto", model, None, device=CPU)
        assert supports_packing(model)  # still, once it is exchanged

    @pytest.mark.parametrize(
        "model",
        [
            pytest.param(lambda: make_causal_lm(attention="eager"), id="eager"),
            pytest.param(
                lambda: MistralForCausalLM(
                    MistralConfig(**SMALL, vocab_size=64, num_hidden_layers=1, sliding_window=8)
                ),
                id="window",
            ),
            pytest.param(
                lambda: Qwen3MoeForCausalLM(
                    Qwen3MoeConfig(**SMALL, vocab_size=64, num_hidden_layers=1, num_experts=2, moe_intermediate_size=8)
                ),
                id="experts",
            ),
        ],
    )
    def test_others_are_laid_out_in_rows(self, model: Any) -> None:
        made = model()
        assert not setup_packing("auto", made, device=CPU)
        assert not setup_packing("rows", make_causal_lm(), device=CPU)
        with pytest.raises(ConfigurationError, match="update_layout=packed needs a model of full attention"):
            setup_packing("packed", made, device=CPU)


@pytest.mark.parametrize("layout", ["packed", "rows"])
def test_a_reference_and_old_log_probs_are_scored_so_too(tmp_path: Path, layout: str) -> None:
    settings: dict[str, Any] = {"beta": 0.1, "num_iterations": 2, "update_layout": layout}
    trainer = make_trainer(tmp_path, give(multi_turn_batch()), **settings)
    output = score(trainer)
    seen = (output["completion_mask"] * output["tool_mask"]).bool()
    assert_close(output["ref_per_token_logps"][seen], output["old_per_token_logps"][seen])
    assert not output["ref_per_token_logps"][~seen].any()
    assert trainer.packed == (layout == "packed")


def test_configuration_of_the_layout(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="update_layout: got 'padded'"):
        make_trainer(tmp_path, give([]), update_layout="padded")


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "bnpo"])
@samples("layout", ["packed", "rows"])
@pytest.mark.slow
def test_micro_batches_add_up_to_the_same_update(tmp_path: Path, layout: str, loss: str) -> None:
    settings: dict[str, Any] = {"learning_rate": 1.0, "optim": "sgd", "loss_type": loss, "update_layout": layout}
    trajectories, ends = multi_turn_batch() * 2, []
    for size, accumulation in ((len(trajectories), 1), (len(trajectories) // 4, 4)):
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        trainer = make_trainer(tmp_path, give(trajectories), **settings, **batches)
        trainer.train()
        ends.append(trainer.model.state_dict())
    if loss == "bnpo":  # its divisor is the micro-batch's
        assert not torch.equal(ends[0]["model.norm.weight"], ends[1]["model.norm.weight"])
    else:
        assert_close(ends[0], ends[1], rtol=0, atol=1e-6)


def test_what_only_scores_drops_nothing_out() -> None:
    model = torch.nn.Sequential(torch.nn.Dropout(0.5)).train()
    ones = torch.ones(64)
    with torch.no_grad(), without_dropout(model):
        assert torch.equal(model(ones), ones)
    assert model.training
    with without_dropout(model):  # gradients are wanted
        assert not torch.equal(model(ones), ones)
    with pytest.raises(ValueError, match="stop"), torch.no_grad(), without_dropout(model):
        raise ValueError("stop")
    assert model.training
    model.eval()
    with torch.no_grad(), without_dropout(model):
        pass
    assert not model.training
