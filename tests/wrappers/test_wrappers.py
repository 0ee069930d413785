import json
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from agent_r1_gym.core.types import to_chat
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import register
from agent_r1_gym.wrappers import ChatSpace, MessageObservation, TokenObservation
from tests.kit.small_env import ANSWER, SmallEnv, call

WRAPPED_ID = "TestWrappers/Small-v0"
VOCABULARY = 0x110000


def code_points(text):
    return [ord(character) for character in text]


def tokens(env=None, **options):
    defaults = {"max_tokens": 64, "pad_id": 0, "vocab_size": VOCABULARY}
    return TokenObservation(env or SmallEnv(), code_points, **{**defaults, **options})


@pytest.fixture(scope="module", autouse=True)
def registered():
    register(WRAPPED_ID, SmallEnv)
    yield
    del gymnasium.registry[WRAPPED_ID]


def check_without_warnings(env):
    """Runs Gymnasium's checker; only its remark that a wrapper is a wrapper is allowed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*is different from the unwrapped version.*")
        check_env(env)


class TestTokenObservation:
    def test_pads_and_masks(self):
        env = tokens(max_tokens=2_000)
        observation, info = env.reset(seed=0)
        text = env.unwrapped.get_state().text
        assert info["observation_tokens"] == len(text)
        assert observation in env.observation_space
        assert observation["input_ids"].dtype == np.int64
        assert observation["attention_mask"].sum() == len(text)
        assert observation["input_ids"][: len(text)].tolist() == code_points(text)
        assert not observation["input_ids"][len(text) :].any()

    @pytest.mark.parametrize(("side", "expected"), [("left", slice(-64, None)), ("right", slice(0, 64))])
    def test_cuts_the_side_asked_for_and_tells(self, side, expected):
        env = tokens(truncation_side=side)
        observation, info = env.reset(seed=0)
        assert observation["input_ids"].tolist() == code_points(env.unwrapped.get_state().text)[expected]
        assert observation["attention_mask"].all()
        assert info["observation_tokens"] > 64

    def test_pads_left_for_generation(self):
        env = tokens(SmallEnv(system_prompt=""), padding_side="left", pad_id=7)
        observation, info = env.reset(seed=0)
        assert (observation["input_ids"][: 64 - info["observation_tokens"]] == 7).all()
        assert observation["attention_mask"][-1] == 1

    def test_passes_the_checker_of_gymnasium(self):
        check_without_warnings(tokens(gymnasium.make(WRAPPED_ID)))

    @pytest.mark.parametrize("shared_memory", [True, False])
    def test_vectors_of_gymnasium(self, shared_memory):
        sync = SyncVectorEnv([tokens] * 2)
        parallel = AsyncVectorEnv([tokens] * 2, shared_memory=shared_memory)
        try:
            for vector in (sync, parallel):
                vector.reset(seed=3)
            ours, theirs = (vector.step([call("x"), ANSWER]) for vector in (sync, parallel))
            assert (ours[0]["input_ids"] == theirs[0]["input_ids"]).all()
            assert ours[0]["input_ids"].shape == (2, 64)
            assert ours[1].tolist() == theirs[1].tolist()
        finally:
            parallel.close()

    def test_an_id_outside_the_vocabulary_is_an_error(self):
        with pytest.raises(ConfigurationError, match="outside vocab_size=100"):
            tokens(vocab_size=100).reset(seed=0)

    def test_bad_arguments(self):
        for options, message in [
            ({"pad_id": None}, "pass pad_id="),
            ({"vocab_size": None}, "pass vocab_size="),
            ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
            ({"pad_id": "0"}, "pad_id must be an integer of at least 0"),
            ({"truncation_side": "rihgt"}, "Did you mean 'right'"),
            ({"padding_side": "both"}, "Unknown padding_side"),
            ({"chat_template": True}, "apply_chat_template"),
            ({"template_options": {}}, "needs chat_template=True"),
        ]:
            with pytest.raises(ConfigurationError, match=message):
                tokens(**options)

    def test_refuses_what_is_no_tokenizer(self):
        with pytest.raises(ConfigurationError, match="got int"):
            TokenObservation(SmallEnv(), 5, pad_id=0, vocab_size=9)

    def test_refuses_observations_that_are_no_text(self):
        with pytest.raises(ConfigurationError, match="drop that wrapper"):
            tokens(MessageObservation(SmallEnv()))

    def test_state_of_the_environment_is_reachable(self):
        env = tokens()
        env.reset(seed=0)
        state = env.get_wrapper_attr("get_state")()
        first = env.step(call("x"))
        env.get_wrapper_attr("set_state")(state)
        second = env.step(call("x"))
        assert (first[0]["input_ids"] == second[0]["input_ids"]).all()


@pytest.fixture(scope="module")
def word_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"<unk>": 0, "<pad>": 1, "<end>": 2, "user": 3, "system": 4, "assistant": 5}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer


class TestTokenizers:
    def test_of_the_tokenizers_library(self, word_tokenizer):
        env = TokenObservation(SmallEnv(), word_tokenizer, max_tokens=50, pad_id=1, truncation_side="right")
        observation, _ = env.reset(seed=0)
        text = env.unwrapped.get_state().text
        assert observation["input_ids"].tolist() == word_tokenizer.encode(text).ids[:50]
        assert env.observation_space["input_ids"].high.max() == 5

    def test_padding_set_in_the_tokenizer_counts(self, word_tokenizer):
        padded = type(word_tokenizer).from_str(word_tokenizer.to_str())
        padded.enable_padding(pad_id=1, pad_token="<pad>")
        env = TokenObservation(SmallEnv(), padded, max_tokens=4_000)
        assert env.reset(seed=0)[0]["input_ids"][-1] == 1

    def test_of_transformers_with_and_without_template(self, word_tokenizer):
        transformers = pytest.importorskip("transformers")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=word_tokenizer, unk_token="<unk>")
        with pytest.raises(ConfigurationError, match="pass pad_id="):
            TokenObservation(SmallEnv(), tokenizer)
        tokenizer.pad_token = "<pad>"
        with pytest.raises(ConfigurationError, match="no chat template"):
            TokenObservation(SmallEnv(), tokenizer, chat_template=True)
        tokenizer.chat_template = (
            "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}"
            "{% if add_generation_prompt %}assistant{% endif %}"
        )
        plain = TokenObservation(SmallEnv(), tokenizer, max_tokens=500)
        observation, _ = plain.reset(seed=0)
        ids = tokenizer.encode(plain.unwrapped.get_state().text, add_special_tokens=False)
        assert observation["input_ids"][: len(ids)].tolist() == ids

        chat = TokenObservation(SmallEnv(), tokenizer, max_tokens=500, chat_template=True)
        _, info = chat.reset(seed=0)
        observation, _, _, _, info = chat.step(call("x"))
        ids = tokenizer.apply_chat_template(to_chat(info["messages"]), add_generation_prompt=True, return_dict=False)
        assert observation["input_ids"][: len(ids)].tolist() == ids
        assert ids[-1] == 5

        silent = TokenObservation(
            SmallEnv(), tokenizer, chat_template=True, template_options={"add_generation_prompt": False}
        )
        assert silent.reset(seed=0)[1]["observation_tokens"] == chat.reset(seed=0)[1]["observation_tokens"] - 1

    def test_a_template_gets_the_arguments_of_calls_as_objects(self):
        class Recorder:
            """A tokenizer whose template is Python."""

            chat_template = "recorded"

            def apply_chat_template(self, chat, **_options):
                self.chat = chat
                return [0]

        tokenizer = Recorder()
        env = TokenObservation(SmallEnv(parser="openai"), tokenizer, pad_id=0, vocab_size=1, chat_template=True)
        env.reset(seed=0)
        env.step(json.dumps({"tool_calls": [{"function": {"name": "echo", "arguments": '{"text": "x"}'}}]}))
        assert tokenizer.chat[-2]["tool_calls"][0]["function"]["arguments"] == {"text": "x"}


class TestMessageObservation:
    def test_shows_the_messages_as_chat(self):
        env = MessageObservation(SmallEnv())
        env.reset(seed=0)
        observation, _, _, _, info = env.step(call("x"))
        assert observation == tuple(to_chat(info["messages"]))
        assert [message["role"] for message in observation] == ["system", "user", "assistant", "tool"]
        assert observation[-1]["name"] == "echo"
        assert observation in env.observation_space

    def test_structured_calls_are_in_the_space(self):
        env = MessageObservation(SmallEnv(parser="openai"))
        env.reset(seed=0)
        turn = {"content": "", "tool_calls": [{"function": {"name": "echo", "arguments": {"text": "x"}}}]}
        observation = env.step(json.dumps(turn))[0]
        assert observation[-2]["tool_calls"][0]["function"] == {"name": "echo", "arguments": {"text": "x"}}
        assert observation[-1]["tool_call_id"] == observation[-2]["tool_calls"][0]["id"]
        assert observation in env.observation_space

    def test_passes_the_checker_of_gymnasium(self):
        check_without_warnings(MessageObservation(gymnasium.make(WRAPPED_ID)))

    def test_changing_an_observation_changes_nothing_else(self):
        env = MessageObservation(SmallEnv())
        first, _ = env.reset(seed=0)
        first[0]["content"] = "changed"
        assert env.step(call("x"))[0][0]["content"] != "changed"

    @pytest.mark.slow
    def test_vectors_of_gymnasium(self):
        envs = [lambda: MessageObservation(SmallEnv())] * 2
        sync, parallel = SyncVectorEnv(envs), AsyncVectorEnv(envs, shared_memory=False)
        try:
            assert sync.reset(seed=3)[0] == parallel.reset(seed=3)[0]
            assert sync.step([call("x"), ANSWER])[0] == parallel.step([call("x"), ANSWER])[0]
        finally:
            parallel.close()


class TestChatSpace:
    def test_samples_are_members_and_follow_the_seed(self):
        space, twin = ChatSpace(seed=1), ChatSpace(seed=1)
        samples = [space.sample() for _ in range(50)]
        assert all(sample in space for sample in samples)
        assert samples == [twin.sample() for _ in range(50)]
        assert space == twin
        with pytest.raises(ConfigurationError, match="no masks"):
            space.sample(mask=1)

    def test_refuses_what_is_no_chat(self):
        for value in [
            [],
            "text",
            ("text",),
            ({"role": "user"},),
            ({"role": "nobody", "content": ""},),
            ({"role": "user", "content": None},),
            ({"role": "user", "content": "\ud800"},),
            ({"role": "user", "content": "", "name": 5},),
            ({"role": "user", "content": "", "other": "x"},),
        ]:
            assert value not in ChatSpace()


def play(env, actions):
    """Returns the steps of an episode, reset first."""
    steps = [env.reset(seed=0)]
    return steps + [env.step(action) for action in actions]
