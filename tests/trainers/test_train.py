"""The entry point: from a command line to a trained model, and what it refuses before the first step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer, BitsAndBytesConfig

from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.wrappers import WINDOW_MODES, ContextWindow
from tests.kit.pages import PAGES
from tests.trainers.rollouts.test_collect import EchoEnv
from trainers.algorithms.process_group import ProcessGroup
from trainers.commands.train import command, main
from trainers.commands.train.building import build_collector, build_trainer
from trainers.commands.train.environments import env_maker
from trainers.commands.train.rollouts import build_engine, sampling_seeds
from trainers.config.agent import AgentConfig
from trainers.resume.signals import StopOnSignal
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.chat_template import trl_templates
from trainers.rollouts.local_model import LocalOptions, open_model
from trainers.rollouts.request_engine import RequestEngine, SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine
from trainers.toy.model import build_model, build_tokenizer

COMPACT = {"style": "compact", "entities": 200, "questions": 40}

MARKUP = ("<|im_end|>",)


def config(folder: Path, **changes: Any) -> AgentConfig:
    options: dict[str, Any] = {
        "output_dir": str(folder),
        "env_id": "AgentR1/FictionQA-v0",
        "env_kwargs": COMPACT,
        "max_steps": 2,
        "num_generations": 2,
        "per_device_train_batch_size": 4,
        "beta": 0.0,
        "max_turn_tokens": 12,
        "max_completion_length": 64,
        "max_prompt_length": 64,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return AgentConfig(**{**options, **changes})


@pytest.mark.parametrize("engine", ["cached", "trl"])
@pytest.mark.slow
def test_a_command_line_trains_and_saves(engine: str, model_folder: Path, tmp_path: Path) -> None:
    words = (
        "--env AgentR1/FictionQA-v0 --max_steps 1 --num_generations 2 --per_device_train_batch_size 4 --beta 0 "
        "--max_turn_tokens 8 --max_completion_length 32 --max_prompt_length 64 --report_to none --save_strategy no "
        f"--use_cpu True --bf16 False --gradient_checkpointing False --engine {engine} --disable_tqdm True"
    ).split()
    paths = ["--model_name_or_path", str(model_folder), "--output_dir", str(tmp_path / "run")]
    main([*words, *paths, "--env_kwargs", json.dumps(COMPACT)])
    assert (tmp_path / "run" / "model.safetensors").is_file()
    card = AgentCard.load(tmp_path / "run")
    assert card is not None and (card.env_options, card.base_model) == (COMPACT, str(model_folder))
    assert card.token_limits == {"max_turn_tokens": 8, "max_prompt_length": 64, "max_completion_length": 32}
    assert [tool["function"]["name"] for tool in card.tools or ()] == ["search"]
    assert "No scores are claimed" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_model_whose_weights_are_not_finite_is_not_saved(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spoil(StopOnSignal):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            with torch.no_grad():
                next(others["model"].parameters()).fill_(torch.nan)

    monkeypatch.setattr(command, "StopOnSignal", Spoil)
    run = tmp_path / "run"
    words = (
        "FictionQA --max_steps 1 --num_generations 2 --per_device_train_batch_size 4 --beta 0 --max_turn_tokens 8 "
        "--max_completion_length 32 --max_prompt_length 64 --save_steps 1 --use_cpu True --bf16 False "
        f"--gradient_checkpointing False --disable_tqdm True --model {model_folder} --out {run}"
    ).split()
    with pytest.raises(SystemExit, match=r"a gradient was not finite\. The model is not saved: its weights"):
        main([*words, "--env_kwargs", json.dumps(COMPACT)])
    assert not [*run.glob("*.safetensors"), *run.glob("checkpoint-*")]
    assert (run / "trainer_state.json").is_file()
    assert json.loads((run / "training.json").read_text())["stop_reason"] == "a gradient was not finite"


def first_is_best(group: Sequence[Trajectory]) -> list[float]:
    """A group reward that a test can predict."""
    return [10.0, *[0.0] * (len(group) - 1)]


@pytest.mark.slow
def test_rollouts_of_a_task_are_compared(tmp_path: Path) -> None:
    """By a function, then by a judge that is down: its groups teach nothing, and the run goes on."""
    (tmp_path / "down.toml").write_text('model = "m"\nendpoint = "http://127.0.0.1:9/v1"\nretries = 0\n')
    log = {}
    for name in ("tests.trainers.test_train:first_is_best", str(tmp_path / "down.toml")):
        tokenizer = build_tokenizer()
        args = config(tmp_path / Path(name).stem, group_reward=name, max_steps=1, logging_steps=1, seed=3)
        trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
        before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        trainer.train()
        log[name] = next(row for row in trainer.state.log_history if "reward" in row)
        moved = any((old != new).any() for old, new in zip(before, trainer.model.parameters(), strict=True))
        assert moved == (name != str(tmp_path / "down.toml"))
        trainer.collect.close()
    compared, dropped = log.values()
    assert compared["reward"] > 4  # half of the rollouts have 10, and what the environment takes is small
    assert compared["group/frac_zero_std"] == 0.0
    assert dropped["rollout/infra_failures"] == 1.0


def test_a_group_reward_needs_whole_groups(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"compares num_generations=1 rollouts"):
        config(tmp_path, group_reward="x.toml", algorithm="ppo", num_generations=1)
    with pytest.raises(ConfigurationError, match="which reads no rewards"):
        config(tmp_path, group_reward="x.toml", algorithm="opsd")
    args = config(tmp_path, group_reward=str(tmp_path / "absent.toml"))
    with pytest.raises(ConfigurationError, match=r"absent.toml cannot be read"):
        build_trainer(args, build_model(build_tokenizer()), tokenizer=build_tokenizer())


@pytest.mark.parametrize("adapter", ["", "--lora_r 2 --lora_target_modules all-linear"], ids=["full", "lora"])
@pytest.mark.slow
def test_what_was_trained_is_evaluated_with_the_same_chat_format(adapter: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = trl_templates()["qwen3.jinja"]
    build_model(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = (
        f"--env AgentR1/FictionQA-v0 --model {tmp_path / 'model'} --output_dir {tmp_path / 'run'} --max_steps 1 "
        "--beta 0 --num_generations 2 --per_device_train_batch_size 4 --max_turn_tokens 8 --max_completion_length 32 "
        "--max_prompt_length 128 --report_to none --save_steps 1 --use_cpu True --bf16 False --disable_tqdm True "
        f"--gradient_checkpointing False {adapter}"
    ).split()
    main([*words, "--env_kwargs", json.dumps(COMPACT), "--chat_template_kwargs", '{"enable_thinking": false}'])
    trained = ChatFormat(tokenizer, template_options={"enable_thinking": False})
    question = [Message("user", "who ?")]
    assert tokenizer.decode(trained.prompt_ids(question)).endswith("<think>\n\n</think>\n\n")
    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-1"):
        local = open_model(LocalOptions(model=str(folder), device="cpu"), slots=1)
        assert local.chat.prompt_ids(question) == trained.prompt_ids(question)
        assert local.chat.template.source == trained.template.source
        served = AutoTokenizer.from_pretrained(folder)
        assert served.chat_template == trained.template.source


def test_both_engines_stop_where_the_template_ends_a_turn(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    for engine in ("cached", "trl"):
        args = config(tmp_path, engine=engine)
        trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
        assert trainer.chat is not None
        playing = build_engine(args, trainer.chat, trainer._request([], training=True), slots=1)
        stops = playing.options.stop_token_ids if isinstance(playing, SlotEngine) else playing.stop_token_ids
        assert set(stops) == set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


def test_rollouts_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """A process's rows have the seeds that the same rows of the batch have in one process."""
    tokenizer = build_tokenizer()
    trainer = build_trainer(config(tmp_path), build_model(tokenizer), tokenizer=tokenizer)
    request = trainer._request([trainer.train_dataset[number // 2] for number in range(8)], training=True)
    whole = trainer.collect(request).records
    parts = list[Trajectory]()
    for rank in range(2):
        rows, group = request.rows[4 * rank : 4 * rank + 4], ProcessGroup(rank=rank, size=2)
        parts += trainer.collect(replace(request, rows=rows, process_group=group)).records
    assert [record.tokens.completion_ids for record in parts] == [record.tokens.completion_ids for record in whole]
    assert whole[0].tokens.completion_ids != whole[1].tokens.completion_ids  # each row has a seed of its own


@pytest.mark.parametrize("rank", range(3))
def test_seeds_of_requests_are_shared_out_too(rank: int) -> None:
    def engine() -> RequestEngine:
        return RequestEngine(cast(Any, None), SamplingOptions(max_new_tokens=1), slots=1, max_length=8, seed=5)

    drawn = engine()
    whole = [drawn.draw_seed() for _ in range(12)]
    assert sampling_seeds(engine(), 4, rank) == whole[4 * rank : 4 * rank + 4]


def test_a_used_folder_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint-4").mkdir(parents=True)
    absent = str(tmp_path / "absent")
    words = ["FictionQA", "--output_dir", str(tmp_path / "run"), "--model", absent, "--use_cpu", "True"]
    with pytest.raises(ConfigurationError, match=r"output_dir=.* holds checkpoints of an earlier run"):
        main(words)
    with pytest.raises(ConfigurationError, match="no such folder"):
        main([*words, "--resume_from_checkpoint", "True"])


def test_unknown_options_are_refused(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean '--learning-rate'"):
        main(["FictionQA", "--model", str(model_folder), "--output_dir", str(tmp_path), "--learning_rat", "1e-3"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env_id": None}, "env_id is not given"),
        ({"env_id": "AgentR1/FictionQ-v0"}, "Did you mean 'fictionqa'"),
        ({"env_id": "CartPole-v1", "env_kwargs": {}}, "observes Box"),
        ({"env_id": "no_such_module:Echo-v0"}, "'no_such_module' cannot be imported"),
        ({"env_id": "agent_r1_gym:Echo-v0"}, "'agent_r1_gym' registers no 'Echo-v0'"),
        ({"env_kwargs": "style"}, "must be a JSON object"),
        ({"env_kwargs": {"styl": "compact"}}, "no option 'styl'. Did you mean 'style'"),
        ({"env_id": "CartPole-v1", "env_kwargs": {"styl": 1}}, "do not fit CartPole-v1: .*'styl'"),
        ({"env_id": "AgentR1/HotpotQA-v0", "env_kwargs": {}}, '"dataset": "sample"'),
    ],
)
def test_unfit_environments_are_refused_before_training(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    with pytest.raises(ConfigurationError, match=words):
        build_trainer(config(tmp_path, **changes), build_model(tokenizer), tokenizer=tokenizer)


@pytest.mark.slow
def test_sample_data_is_trained_on_when_asked_for(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    changes = {
        "env_id": "AgentR1/HotpotQA-v0", "env_kwargs": {"dataset": "sample", "system_prompt": ""}, "max_steps": 1,
        "max_prompt_length": 512,
    }  # fmt: skip
    trainer = build_trainer(config(tmp_path, **changes), build_model(tokenizer), tokenizer=tokenizer)
    assert trainer.train().training_loss is not None


def test_special_tokens_of_the_tokenizer_cannot_come_from_documents(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_tokens([AddedToken("]~b]", special=True)], special_tokens=False)  # known, but not by a name
    assert "]~b]" not in tokenizer.all_special_tokens
    env = env_maker(config(tmp_path), ChatFormat(tokenizer).markup)()
    assert {"<|im_end|>", "]~b]"} <= set(env.markup)


@pytest.mark.slow
def test_any_registered_text_environment_can_be_trained_on(tmp_path: Path) -> None:
    if "Test/Echo-v0" not in gym.registry:
        gym.register("Test/Echo-v0", EchoEnv)
    tokenizer = build_tokenizer()
    args = config(tmp_path, env_id="Test/Echo-v0", env_kwargs={}, max_steps=1)
    assert build_trainer(args, build_model(tokenizer), tokenizer=tokenizer).train().global_step == 1


def test_a_module_may_register_the_environment(tmp_path: Path) -> None:
    env = env_maker(config(tmp_path, env_id="agent_r1_gym:AgentR1/FictionQA-v0"), MARKUP)()
    assert isinstance(env, ToolEnv)


def test_options_of_the_chat_template_reach_the_prompts(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% if not enable_thinking %}no{% endif %}" + tokenizer.chat_template
    prompts = []
    for options in ({"enable_thinking": True}, {"enable_thinking": False}):
        chat = build_collector(config(tmp_path, chat_template_kwargs=options), tokenizer).player.chat
        prompts.append(chat.prompt_ids([Message("user", "who ?")]))
    assert prompts[1][1:] == prompts[0]


def test_a_quantised_model_has_no_critic(tmp_path: Path) -> None:
    args = config(tmp_path, algorithm="ppo", num_generations=1)
    with pytest.raises(ConfigurationError, match="ppo cannot train a quantised model"):
        build_trainer(
            args,
            build_model(build_tokenizer(), size="0.4M"),
            tokenizer=build_tokenizer(),
            quantization_config=BitsAndBytesConfig(load_in_4bit=True),
        )


def test_a_module_in_the_current_folder_may_register_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = (
        "from gymnasium import register\nregister('Mine/Fiction-v0', 'agent_r1_gym.envs.fiction_qa.env:FictionQAEnv')\n"
    )
    (tmp_path / "my_trained_env.py").write_text(register)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # a console script has no current folder
    try:
        env = env_maker(config(tmp_path, env_id="my_trained_env:Mine/Fiction-v0"), MARKUP)()
        assert env.spec.id == "Mine/Fiction-v0"
    finally:
        sys.modules.pop("my_trained_env", None)
        gym.registry.pop("Mine/Fiction-v0", None)


@pytest.mark.parametrize("mode", WINDOW_MODES)
@pytest.mark.slow
def test_a_context_window_makes_rows(tmp_path: Path, mode: str) -> None:
    tokenizer = build_tokenizer()
    args = config(tmp_path, env_kwargs={**COMPACT, "context_window": 1, "context_mode": mode}, max_steps=1)
    env = env_maker(args, MARKUP)()
    assert isinstance(env, ContextWindow)
    assert build_trainer(args, build_model(tokenizer), tokenizer=tokenizer).train().global_step == 1


@pytest.mark.parametrize("mode", ["drop_turns", "summary"])
def test_a_window_may_remove_whole_turns(tmp_path: Path, mode: str) -> None:
    env = env_maker(config(tmp_path, env_kwargs={**COMPACT, "context_window": 1, "context_mode": mode}), MARKUP)()
    env.reset(seed=0)
    call = '<tool_call>{"name": "search", "arguments": {"query": "it"}}</tool_call>'
    for said in ("<summary>first</summary>", ""):
        _, _, _, _, info = env.step(said + call)
    assert [message.role for message in info["messages"]] == ["user", "assistant", "tool"]
    assert ("first" in info["messages"][0].content) is (mode == "summary")


def test_a_context_window_needs_tool_output(tmp_path: Path) -> None:
    if "Test/Echo-v0" not in gym.registry:
        gym.register("Test/Echo-v0", EchoEnv)
    with pytest.raises(ConfigurationError, match="context_window=2: 'Test/Echo-v0' is not a ToolEnv"):
        env_maker(config(tmp_path, env_id="Test/Echo-v0", env_kwargs={"context_window": 2}), MARKUP)


def test_wrappers_of_a_registration_are_kept_and_checks_are_not(tmp_path: Path) -> None:
    if "Test/Limited-v0" not in gym.registry:
        gym.register("Test/Limited-v0", EchoEnv, max_episode_steps=1)
    limited = env_maker(config(tmp_path, env_id="Test/Limited-v0", env_kwargs={}), MARKUP)()
    limited.reset(seed=0)
    assert limited.step("yes")[3]
    assert isinstance(env_maker(config(tmp_path), MARKUP)(), ToolEnv)


@pytest.mark.slow
def test_every_number_of_the_docs_is_logged(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    logged: set[str] = set()
    # No run has a critic and refills, or a teacher in two places.
    teacher = {"teacher_privileged": "answer", "distillation_weight": 0.1}
    in_loss = {"distillation_placement": "loss", **teacher}
    for own in ({"algorithm": "ppo", "beta": 0.01, **teacher}, in_loss, {"refill_groups": 1}):
        changes = {"num_generations": 2, "logging_steps": 1, "max_steps": 1, **own}
        trainer = build_trainer(config(tmp_path, **changes), build_model(tokenizer), tokenizer=tokenizer)
        trainer.train()
        logged |= trainer.state.log_history[0].keys()
    table = PAGES["docs/training.md"].split("## What is logged")[1].split("\n##")[0].splitlines()[3:]
    names = {name for row in table for name in re.findall(r"`([^`]+)`", row.split("|")[1] if "|" in row else "")}
    names = {name.replace("TERM", "em") for name in names}
    assert len(names) > 25
    assert not names - logged


@pytest.mark.slow
def test_wrong_input_is_one_line_however_training_is_started(tmp_path: Path) -> None:
    for module, name in (("trainers.commands.train", "trainers.commands.train"), ("agent_r1_gym", "agent-r1 train")):
        words = ["train"] if module == "agent_r1_gym" else []
        words += ["FictionQA", "--model", "none", "--max_steps", "1", "--max_turn_tokens", "0"]
        command = [sys.executable, "-W", "ignore", "-m", module, *words]
        done = subprocess.run([*command, "--use_cpu", "True", "--bf16", "False"], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"{name}: max_turn_tokens must lie between")
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("space", "chosen", "tokens"),
    [
        (gym.spaces.Text(100), None, 101),  # README's guessing game: letters and digits, one byte each
        (gym.spaces.Text(10, charset="ab€"), None, 31),
        (UnicodeText(50), None, 201),
        (UnicodeText(1_000_000), None, 256),  # on a CPU
        (gym.spaces.Text(100), 7, 7),
    ],
)
def test_a_turn_has_room_for_every_action_and_no_more(
    space: gym.spaces.Text, chosen: int | None, tokens: int, tmp_path: Path
) -> None:
    class Spaced(EchoEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space  # type: ignore[assignment]

    gym.register("Test/Spaced-v0", Spaced)
    try:
        tokenizer = build_tokenizer()
        args = config(tmp_path, env_id="Test/Spaced-v0", env_kwargs={}, max_turn_tokens=chosen)
        trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
        engine = build_engine(args, trainer.chat, trainer._request([], training=True), slots=1)
    finally:
        gym.registry.pop("Test/Spaced-v0")
    assert engine.options.max_new_tokens == args.max_turn_tokens == tokens


def test_a_split_that_is_held_out_is_not_trained_on_unless_it_is_named(tmp_path: Path) -> None:
    row = {"Body": "Ann has 3 pens", "Question": "How many are 2 more?", "Equation": "( 3.0 + 2.0 )", "Answer": 5.0}
    (tmp_path / "test.json").write_text(json.dumps([row]))
    options = {"dataset": str(tmp_path)}
    with pytest.raises(ConfigurationError, match="serves the split 'test' only, which is not for training"):
        env_maker(config(tmp_path / "out", env_id="AgentR1/SVAMP-v0", env_kwargs=options), MARKUP)
    env_maker(config(tmp_path / "out", env_id="AgentR1/SVAMP-v0", env_kwargs={**options, "split": "test"}), MARKUP)
