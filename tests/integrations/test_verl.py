"""verl: the real base class and worker, with a server whose model is the oracle; no Ray, no training."""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import sys
import warnings
from types import SimpleNamespace

import pytest

from agent_r1_gym.errors import ConfigurationError, InfrastructureError, MissingDependencyError
from agent_r1_gym.integrations import verl as adapter
from agent_r1_gym.integrations.dataset_rows import ADAPTER_NAME, write_rows
from agent_r1_gym.run.record import Tokens, Trajectory, Turn
from benchmarks.speed.adapters import TEMPLATE, byte_tokenizer
from tests.kit.foreign import HOTPOTQA, SMALL, WINDOW, evaluated, evaluated_hotpotqa
from tests.kit.small_env import ANSWER, COUNT, call

DROPS = TEMPLATE.replace("{{ message.content }}", "{{ message.content.split('</think>')[-1] }}")
HEADER = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def verl():
    pytest.importorskip("verl", reason="verl is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of engines that are not here
        return pytest.importorskip("verl.experimental.agent_loop.agent_loop", reason="verl's loop cannot be imported")


class Server:
    """A stand-in for verl's server manager: writes the turns that belong to the question."""

    def __init__(self, tokenizer, turns, *, logprobs=True, stop_reason="completed"):
        self.tokenizer, self.turns, self.logprobs, self.stop_reason = tokenizer, turns, logprobs, stop_reason
        self.contexts: list[list[int]] = []
        self.sampling: list[dict[str, object]] = []

    async def generate(self, request_id, *, prompt_ids, sampling_params):
        await asyncio.sleep(0)
        self.contexts.append(list(prompt_ids))
        self.sampling.append(sampling_params)
        text = self.tokenizer.decode(prompt_ids)
        (question,) = [question for question in self.turns if question in text]
        ids = [*self.tokenizer.encode(self.turns[question][text.count(HEADER) - 1]), self.tokenizer.eos_token_id]
        ids = ids[: sampling_params["max_tokens"]]
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-0.5] * len(ids) if self.logprobs else None,
            stop_reason=self.stop_reason,
            num_preempted=None,
            extra_fields={"global_steps": 7, "min_global_steps": 7, "max_global_steps": 6 + len(self.contexts)},
        )


def make_worker(verl, server, *, prompt_length=2_000, response_length=4_000):
    """Returns verl's own worker, without the parts that start servers."""
    from omegaconf import OmegaConf

    rollout = {"prompt_length": prompt_length, "response_length": response_length, "full_determinism": False}
    worker = object.__new__(verl.AgentLoopWorker)
    worker.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    worker.rollout_config = worker.config.actor_rollout_ref.rollout
    worker.llm_client, worker.tokenizer, worker.processor = server, server.tokenizer, None
    worker.dataset_cls, worker.hf_model_type, worker.tools = None, "qwen3", []
    worker.mm_processor_kwargs, worker.distillation_enabled, worker.reward_loop_worker_handles = {}, False, None
    verl._agent_loop_registry[ADAPTER_NAME] = {
        "_target_": "agent_r1_gym.integrations.verl.AgentR1Loop"
    }  # as the YAML file says
    return worker


def loop(verl, server, **lengths):
    """Returns one loop, as the worker makes it."""
    worker = make_worker(verl, server, **lengths)
    wrap = verl.DictConfigWrap
    return adapter.AgentR1Loop(
        trainer_config=wrap(worker.config),
        server_manager=server,
        tokenizer=server.tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=wrap(worker.config.data),
        hf_model_type="qwen3",
        tools=verl.ToolListWrap([]),
    )


def play(verl, turns, extra, *, tokenizer=None, lengths=None, **server):
    fake = Server(tokenizer or byte_tokenizer(), turns, **server)
    made = loop(verl, fake, **(lengths or {}))
    return asyncio.run(made.run({"temperature": 1.0, "logprobs": True}, extra_info=extra)), fake


def small(task=1, env=SMALL, **options):
    return {"env_id": env, "options": json.dumps(options), "task_index": task, "seed": 0}


@pytest.mark.adapters
def test_the_oracle_scores_what_eval_says(verl, tmp_path):
    """Through verl's own worker: the loop by its YAML entry, side by side, padded, scores on their tokens."""
    path = tmp_path / "rows.jsonl"
    write_rows(HOTPOTQA[0], path, library="verl", options=HOTPOTQA[1], held_out=True, num_rows=50)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    records = evaluated_hotpotqa(tmp_path)
    server = Server(byte_tokenizer(), {record.question: [turn.action for turn in record.turns] for record in records})
    worker = make_worker(verl, server)
    trajectory = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}

    async def run():
        plays = [
            worker._run_agent_loop({}, trajectory, trace=False, raw_prompt=row["prompt"], **fields(row)) for row in rows
        ]
        return await asyncio.gather(*plays)

    outputs = asyncio.run(run())
    scores = worker._postprocess(outputs).batch["rm_scores"].sum(dim=1).tolist()
    for output, record, score in zip(outputs, records, scores, strict=True):
        info = output.extra_fields["reward_extra_info"]
        assert (info["success"], info["episode_return"]) == (1.0, record.episode_return)
        assert output.extra_fields["reward_terms"] == record.reward_terms
        assert output.extra_fields["turn_scores"] == [turn.reward for turn in record.turns]
        assert output.extra_fields["end_reason"] == record.end_reason
        assert output.reward_score == pytest.approx(record.episode_return)
        assert score == pytest.approx(record.episode_return)


def fields(row):
    return {name: row[name] for name in ("agent_name", "extra_info", "reward_model", "data_source")}


@pytest.mark.adapters
def test_verls_own_data_set_reads_the_rows(verl, tmp_path):
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset

    write_rows(SMALL, tmp_path / "rows.parquet", library="verl", options={"max_turns": 2})
    settings = OmegaConf.create(
        {"cache_dir": str(tmp_path), "filter_overlong_prompts": True, "max_prompt_length": 3_000}
    )
    data = RLHFDataset(str(tmp_path / "rows.parquet"), byte_tokenizer(), settings)
    assert len(data) == 5
    row = data[1]
    assert (row["agent_name"], row["index"], row["raw_prompt"][-1]["role"]) == (ADAPTER_NAME, 1, "user")
    output, _ = play(verl, {"Say 1.": [COUNT, COUNT]}, row["extra_info"])
    assert output.extra_fields["end_reason"] == "max_turns"


@pytest.mark.adapters
def test_tokens_are_those_that_were_sampled(verl):
    output, server = play(verl, {"Say 1.": [COUNT, call("é"), ANSWER]}, small())
    tokenizer = server.tokenizer
    assert output.prompt_ids == server.contexts[0]
    assert output.prompt_ids + output.response_ids == [
        *server.contexts[-1],
        *tokenizer.encode(ANSWER),
        tokenizer.eos_token_id,
    ]
    sampled = [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]
    assert tokenizer.decode(sampled) == "".join(f"{text}<|im_end|>" for text in (COUNT, call("é"), ANSWER))
    assert output.response_logprobs == [-0.5 * mask for mask in output.response_mask]
    whole = tokenizer.decode(output.prompt_ids + output.response_ids)
    assert f"{COUNT}<|im_end|>\n<|im_start|>tool\n1<|im_end|>\n{HEADER}" in whole
    assert server.sampling[0]["stop_token_ids"] == [tokenizer.eos_token_id]
    assert server.sampling[0]["temperature"] == 1.0
    assert output.num_turns == 6  # question, three turns, two outcomes
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (7, 9)


@pytest.mark.adapters
def test_each_turn_is_paid_on_its_last_token(verl):
    output, server = play(verl, {"Say 1.": [COUNT, ANSWER]}, small())
    ends = [at for at, token in enumerate(output.response_ids) if token == server.tokenizer.eos_token_id]
    scores = output.as_dict()["rm_scores"]
    turns = output.extra_fields["turn_scores"]
    assert turns[0] != 0.0
    (num_rows, reward), (last, _) = output.extra_fields["turn_rewards"]
    assert (num_rows, last) == (ends[0], len(output.response_ids) - 1)
    assert scores[num_rows].item() == pytest.approx(reward)
    assert scores.sum().item() == pytest.approx(output.reward_score)
    assert scores.count_nonzero() == 2


@pytest.mark.adapters
def test_a_budget_cuts_the_episode_after_a_turn(verl):
    room = len(byte_tokenizer().encode(COUNT)) + 20
    output, _ = play(verl, {"Say 1.": [COUNT, COUNT]}, small(), lengths={"response_length": room})
    assert output.extra_fields["truncated"] and output.extra_fields["end_reason"] == "max_tokens"
    assert set(output.response_mask) == {1}
    output, _ = play(verl, {"Say 1.": [COUNT * 9]}, small(), lengths={"response_length": 30})
    assert len(output.response_ids) == 30
    with pytest.raises(ConfigurationError, match="more than the 10 allowed"):
        play(verl, {"Say 1.": [COUNT]}, small(), lengths={"prompt_length": 10})


@pytest.mark.adapters
def test_without_log_probs_there_are_none(verl):
    output, _ = play(verl, {"Say 1.": [ANSWER]}, small(), logprobs=False)
    assert output.response_logprobs is None
    assert "rollout_log_probs" not in output.as_dict()


@pytest.mark.adapters
def test_an_environment_without_tasks_plays_its_seeds(verl, tmp_path):
    for record in evaluated(tmp_path, "FrozenLakeText", questions=3):
        turns = {record.question: [turn.action for turn in record.turns]}
        output, _ = play(verl, turns, {"env_id": "AgentR1/FrozenLakeText-v0", "seed": record.seed})
        assert output.reward_score == 1.0
        assert len(output.extra_fields["turn_rewards"]) == len(record.turns)


@pytest.mark.adapters
def test_what_is_lost_is_an_exception_and_no_reward(verl):
    with pytest.raises(InfrastructureError, match=r"Stranger/Small-v0 lost a backend: .*the backend is down"):
        play(verl, {"Say 1.": [call("down"), ANSWER]}, small())
    with pytest.raises(InfrastructureError, match="server gave up a turn: aborted"):
        play(verl, {"Say 1.": [ANSWER]}, small(), stop_reason="aborted")


@pytest.mark.adapters
def test_a_rewritten_context_is_refused_by_name(verl):
    turns = {"Say 1.": [call("long " * 60)] * 4}
    with pytest.raises(ConfigurationError, match=r"was rewritten, by a wrapper \(such as `ContextWindow`"):
        play(verl, turns, small(env=WINDOW))
    thinking = {"Say 1.": [f"<think>hm</think>{COUNT}", ANSWER]}
    with pytest.raises(ConfigurationError, match="a template that keeps all messages"):
        play(verl, thinking, small(), tokenizer=byte_tokenizer(DROPS))


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "A row needs env_id"),
        ({"env_id": "AgentR1/No-v0", "seed": 0}, "Unknown environment"),
        ({"env_id": SMALL, "task_index": 5}, r"must be in 0\.\.4, got 5"),
        ({"env_id": SMALL, "task_index": 0, "options": '{"colour": 1}'}, "SmallEnv has no option 'colour'"),
    ],
)
def test_a_bad_row_is_one_clear_error(verl, extra, message):
    with pytest.raises(ConfigurationError, match=message):
        play(verl, {}, extra)


# --- without ---------------------------------------------------------------------------------------------------------


def asked(*answers):
    """Returns a server of ours that was asked once for each of these answers of verl's."""
    given = iter(answers)

    async def generate(**_):
        fields: dict[str, object] = {
            "log_probs": None,
            "stop_reason": "completed",
            "num_preempted": None,
            "extra_fields": {},
        }
        return SimpleNamespace(**{**fields, **next(given)})

    server = adapter._GenerationServer(SimpleNamespace(generate=generate), "request", {}, (9,))

    async def ask():
        for _ in answers:
            await server.turn([1, 2], 3)

    asyncio.run(ask())
    return server


def episode(ids=(5, 9), **fields):
    """Returns an episode of one turn."""
    tokens = Tokens((1, 2), tuple(ids), (1,) * len(ids), (-0.5,) * len(ids), ((0, len(ids)),))
    return Trajectory(turns=(Turn("x", 1.0, fields.pop("terms", {})),), tokens=tokens, **fields)


def test_validation_reads_the_same_names_of_every_environment():
    """verl fills in None for a name that an episode lacks, and takes the mean."""
    server = asked({"token_ids": [5, 9]})
    one = adapter._output(episode(scores={"em": 1.0, "f1": 1.0}, terms={"em": 1.0, "cost": -0.1}), server)
    other = adapter._output(episode(), server)
    infos = [output["extra_fields"]["reward_extra_info"] for output in (one, other)]
    assert infos[0].keys() == infos[1].keys()
    assert all(isinstance(value, int | float) for info in infos for value in info.values())
    assert infos[0]["success"] == 1.0 and math.isnan(infos[1]["success"])
    assert one["extra_fields"]["scores"] == {"em": 1.0, "f1": 1.0}
    assert one["extra_fields"]["reward_terms"] == {"em": 1.0, "cost": -0.1}


def test_experts_of_the_last_turn_are_kept_up_to_the_last_token_that_is():
    server = asked(
        {"token_ids": [5], "routed_experts": [[0]]}, {"token_ids": [6, 7, 8, 9], "routed_experts": [*"abcdef"]}
    )
    assert adapter._output(episode((6, 7, 8)), server)["routed_experts"] == [*"abcde"]
    assert adapter._output(episode(), asked({"token_ids": [9]}))["routed_experts"] is None


def test_counters_of_speculative_decoding_are_summed_over_the_turns():
    first = {"global_steps": 1, "max_global_steps": 1, "spec_num_draft_tokens": 3, "spec_num_verify_steps": 2}
    second = {"global_steps": 2, "max_global_steps": 2, "spec_num_draft_tokens": 4, "spec_num_verify_steps": 5}
    server = asked({"token_ids": [9], "extra_fields": first}, {"token_ids": [9], "extra_fields": second})
    assert server.extra_fields == {
        **{"global_steps": 1, "max_global_steps": 2},
        **{"spec_num_draft_tokens": 7, "spec_num_verify_steps": 7},
    }


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, adapter._MODULE, None)
    importlib.reload(adapter)  # it keeps what it has made
    with pytest.raises(MissingDependencyError, match=r"^verl is not installed: pip install verl$"):
        adapter.AgentR1Loop  # noqa: B018 - made when named
