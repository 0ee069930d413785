"""TRL's `rollout_func` with a stand-in for its trainer: rows, episodes, sampling, returned columns."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

pytest.importorskip("trl", reason="the train extra is not installed")

import torch

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.integrations.trl import episode_return, make_rollout_func, read_row, task_rows
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.wrappers import ContextWindow
from tests.kit.helpers import TASKS, EchoTool, call
from tests.kit.models import make_model, make_tokenizer

pytestmark = pytest.mark.adapters

TOKENIZER = make_tokenizer()
ECHO = {"tasks": TASKS, "tools": [EchoTool()], "system_prompt": "", "feedback": "short"}
FROZEN = "AgentR1/FrozenLakeText-v0"
FICTION = "AgentR1/FictionQA-v0"
SMALL = {"questions": 4, "entities": 120}


@pytest.fixture
def own() -> Iterator[str]:
    """The id of a bare `ToolEnv`; tasks, tools and the rest come as options."""
    gymnasium.register("Own/Env-v0", ToolEnv, disable_env_checker=True)
    yield "Own/Env-v0"
    del gymnasium.registry["Own/Env-v0"]


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_names_its_episode_in_words() -> None:
    rows, env = task_rows("FictionQA", **SMALL), make_text_env(FICTION, SMALL)
    question = env.unwrapped.tasks[2].prompt
    assert rows.column_names == ["prompt"]
    assert rows[2]["prompt"] == f"[{FICTION} task 2, seed 2] {question}"
    assert [read_row(row["prompt"], "FictionQA", env) for row in rows] == [
        {"task_index": index, "seed": index} for index in range(4)
    ]


def test_an_environment_without_tasks_has_rows_of_seeds() -> None:
    name = "AgentR1/FrozenLakeText-v0"
    rows, env = task_rows(name, seeds=3, first_seed=7), make_text_env(name, {})
    assert rows["prompt"][:] == [f"[{name} seed {seed}]" for seed in (7, 8, 9)]
    assert read_row(rows[1]["prompt"], name, env) == {"seed": 8}


def test_equal_questions_stay_apart(own) -> None:
    rows = task_rows(own, tasks=[TASKS[0], TASKS[0]], tools=[EchoTool()])
    assert len(set(rows["prompt"])) == 2


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ("Who wrote Faust?", "does not name an episode"),
        ([{"role": "user", "content": "Who?"}], "does not name an episode"),
        (f"[{FICTION} task 0, seed 0] another question", "another data set"),
        (f"[{FICTION} task 99, seed 0] x", "another data set"),
        (f"[{FICTION} seed 3]", "another data set"),
        ("[AgentR1/HotpotQA-v0 task 0, seed 0] x", "is of AgentR1/HotpotQA-v0"),
    ],
)
def test_what_is_no_row_is_refused(prompt: object, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_row(prompt, FICTION, make_text_env(FICTION, SMALL))


def test_rows_of_another_split_are_refused() -> None:
    row = task_rows(FICTION, split="validation", **SMALL)[0]
    with pytest.raises(ConfigurationError, match="eval_options"):
        read_row(row["prompt"], FICTION, make_text_env(FICTION, SMALL))


# --- rollouts --------------------------------------------------------------------------------------------------------


def trainer(*, step: int = 0, training: bool = True, completion: int = 40, **changes: Any) -> Any:
    """A stand-in for a `GRPOTrainer`: what a rollout function may look at."""
    settings = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    return SimpleNamespace(
        model=make_model(TOKENIZER).train(training),
        args=SimpleNamespace(**{"seed": 0, "repetition_penalty": 1.0, "bf16": False, "fp16": False, **changes}),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model, process_index=0),
        state=SimpleNamespace(global_step=step),
        max_completion_length=completion,
        chat_template_kwargs={},
        eos_token_ids=[TOKENIZER.eos_token_id],
        **settings,
    )


def prompts(env_id: str, *, copies: int = 2, **options: Any) -> list[str]:
    return [prompt for prompt in task_rows(env_id, **options)["prompt"] for _ in range(copies)]


def test_each_copy_of_a_prompt_is_an_episode_of_its_own(own) -> None:
    play = make_rollout_func(own, TOKENIZER, max_turn_tokens=6, **ECHO)
    rows = prompts(own, copies=3, **ECHO)
    batch = play(rows, trainer())
    assert [record.task_id for record in batch["trajectory"]] == [f"t{index}" for index in range(3) for _ in range(3)]
    assert [record.seed for record in batch["trajectory"]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        assert len(batch[name]) == 9
    for ids, logprobs, mask, record in zip(
        batch["completion_ids"], batch["logprobs"], batch["env_mask"], batch["trajectory"], strict=True
    ):
        assert len(ids) == len(logprobs) == len(mask) <= 40
        assert sum(mask) == sum(end - start for start, end in record.tokens.spans)
        assert all((logprob != 0.0) == bool(bit) for logprob, bit in zip(logprobs, mask, strict=True))
    assert batch["prompt_ids"][0] == batch["prompt_ids"][2] != batch["prompt_ids"][3]
    assert len({tuple(ids) for ids in batch["completion_ids"][:3]}) > 1
    assert episode_return(**{"trajectory": batch["trajectory"]}) == [r.episode_return for r in batch["trajectory"]]


@pytest.mark.slow
def test_a_later_step_samples_other_numbers_and_evaluations_the_same(own) -> None:
    play = make_rollout_func(own, TOKENIZER, max_turn_tokens=6, **ECHO)
    rows = prompts(own, **ECHO)

    def sampled(**changes: Any) -> list[list[int]]:
        return play(rows, trainer(**changes))["completion_ids"]

    assert sampled(step=3) == sampled(step=3) != sampled(step=0)
    assert sampled(step=3, seed=1) != sampled(step=3)
    assert sampled(step=3, training=False) == sampled(step=0, training=False) != sampled(step=0)


@pytest.mark.parametrize("bf16", [True, False])
def test_rollouts_compute_in_the_type_of_the_trainer(own, bf16: bool) -> None:
    seen: set[torch.dtype] = set()
    here = trainer(bf16=bf16)
    hook = here.model.lm_head.register_forward_pre_hook(lambda module, _: seen.add(module.weight.dtype))
    make_rollout_func(own, TOKENIZER, max_turn_tokens=4, **ECHO)(prompts(own, **ECHO), here)
    hook.remove()
    assert seen == {torch.bfloat16 if bf16 else torch.float32}
    assert {weight.dtype for weight in here.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_in_the_mode_in_which_it_was(own, training: bool) -> None:
    here = trainer(training=training)
    make_rollout_func(own, TOKENIZER, max_turn_tokens=4, **ECHO)(prompts(own, **ECHO), here)
    assert here.model.training is training


def test_evaluations_have_options_and_a_temperature_of_their_own(own) -> None:
    held_out = {**ECHO, "tasks": TASKS[1:]}
    play = make_rollout_func(
        own, TOKENIZER, max_turn_tokens=6, eval_options={"tasks": TASKS[1:]}, eval_temperature=0.0, **ECHO
    )
    batch = play(prompts(own, **held_out), trainer(training=False))
    assert [record.task_id for record in batch["trajectory"]] == ["t1", "t1", "t2", "t2"]
    assert batch["completion_ids"][0] == batch["completion_ids"][1]  # greedy
    with pytest.raises(ConfigurationError, match="eval_options"):
        play(prompts(own, **held_out), trainer())


def test_an_environment_without_tasks_is_played_by_its_seeds() -> None:
    play = make_rollout_func(FROZEN, TOKENIZER, max_turn_tokens=4)
    batch = play([*task_rows(FROZEN, seeds=2, first_seed=5)["prompt"]], trainer(completion=60))
    assert [record.seed for record in batch["trajectory"]] == [5, 6]


def test_a_wrapped_environment_keeps_its_wrappers() -> None:
    gymnasium.register(
        "Own/Plus-v0",
        lambda **options: gymnasium.wrappers.TransformReward(ToolEnv(**options), lambda reward: reward + 10),
        disable_env_checker=True,
    )
    play = make_rollout_func("Own/Plus-v0", TOKENIZER, max_turn_tokens=4, max_turns=1, **ECHO)
    batch = play(prompts("Own/Plus-v0", **ECHO), trainer())
    assert episode_return(batch["trajectory"]) == [10.0] * 6


class Lost(EchoTool):
    """A tool whose backend is always lost."""

    def execute(self, arguments):
        return ToolOutcome("gone", ok=False, error="unavailable")


class AlwaysCalls(ToolEnv):
    """Every turn calls the tool, whatever the model says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tasks=TASKS, tools=[Lost()], system_prompt="", feedback="short", **options)

    def begin_step(self, action):
        return super().begin_step(call("echo", text="x"))


def test_a_lost_backend_leaves_nothing_in_the_loss() -> None:
    gymnasium.register("Own/Lost-v0", AlwaysCalls, disable_env_checker=True)
    play = make_rollout_func("Own/Lost-v0", TOKENIZER, max_turn_tokens=4, infrastructure_retries=0)
    batch = play(prompts("Own/Lost-v0"), trainer())
    logged: dict[str, float] = {}
    assert episode_return(batch["trajectory"], logged.__setitem__) == [None] * 6
    assert logged == {"rollout/infra_failures": 1.0}
    assert all(len(mask) == len(ids) for mask, ids in zip(batch["env_mask"], batch["completion_ids"], strict=True))
    assert sum(map(sum, batch["env_mask"])) == 0


def test_a_prompt_that_is_too_long_is_named(own) -> None:
    long = {**ECHO, "system_prompt": "red " * 60}
    play = make_rollout_func(own, TOKENIZER, max_turn_tokens=4, max_prompt_tokens=30, **long)
    with pytest.raises(ConfigurationError, match=r"prompt of task 0 .* more than the 30"):
        play(prompts(own, **long), trainer())


@pytest.mark.slow
def test_a_model_without_room_for_an_answer_ends_its_episodes(own) -> None:
    """The tiny model takes 256 tokens; TRL would let a completion run on."""
    play = make_rollout_func(own, TOKENIZER, max_turn_tokens=200, max_turns=50, **ECHO)
    batch = play(prompts(own, **ECHO), trainer(completion=1_000))
    assert all(len(p) + len(c) <= 256 for p, c in zip(batch["prompt_ids"], batch["completion_ids"], strict=True))


def test_a_rewritten_context_is_refused() -> None:
    class Calls(ToolEnv):
        def begin_step(self, action):
            return super().begin_step(call("echo", text="red " * 40))

    gymnasium.register(
        "Own/Window-v0", lambda **options: ContextWindow(Calls(**options), keep_last=1), disable_env_checker=True
    )
    play = make_rollout_func("Own/Window-v0", TOKENIZER, max_turn_tokens=4, **ECHO)
    with pytest.raises(ConfigurationError, match="was rewritten between two turns"):
        play(prompts("Own/Window-v0", **ECHO), trainer(completion=220))


@pytest.mark.parametrize("name", ["min_p", "repetition_penalty", "use_vllm", "generation_kwargs"])
def test_settings_without_effect_are_refused(own, name: str) -> None:
    play = make_rollout_func(own, TOKENIZER, **ECHO)
    with pytest.raises(ConfigurationError, match=f"{name}=0.5 has no effect"):
        play(prompts(own, **ECHO), trainer(**{name: 0.5}))


def test_a_mask_by_the_last_token_is_refused(own) -> None:
    play = make_rollout_func(own, TOKENIZER, **ECHO)
    with pytest.raises(ConfigurationError, match="mask_truncated_completions=True goes by the last token"):
        play(prompts(own, **ECHO), trainer(mask_truncated_completions=True))


def test_foreign_text_cannot_become_a_special_token(own) -> None:
    play = make_rollout_func(own, TOKENIZER, **ECHO)
    env = play.training.player.acquire()
    assert set(env.unwrapped.markup) == set(TOKENIZER.all_special_tokens)


def test_options_that_do_not_fit_are_refused_at_once(own) -> None:
    with pytest.raises(ConfigurationError, match="tasks is empty"):
        make_rollout_func(own, TOKENIZER)
    with pytest.raises(ConfigurationError, match="Unknown environment"):
        make_rollout_func("AgentR1/Nothing-v0", TOKENIZER)


def test_closing_closes_the_environments(own) -> None:
    closed: list[str] = []

    class Closing(EchoTool):
        def close(self) -> None:
            closed.append(self.name)

    play = make_rollout_func(own, TOKENIZER, **{**ECHO, "tools": [Closing()]})
    closed.clear()
    play.close()
    assert closed
    assert torch.is_grad_enabled()
