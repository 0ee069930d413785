"""Every registered environment of this suite; the ids come from Gymnasium's registry."""

import inspect
import json
import pickle
import re
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.vector import ToolVectorEnv
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.qa.multihop_qa import MultiHopQAEnv
from agent_r1_gym.errors import ConfigurationError
from tests.kit.data import HOTPOTQA_ROW, write_json
from tests.kit.environments import IDS, MATHS_ENVS, OFFLINE, QA_ENVS, STATE_ENVS, TOOL_ENVS, creator

HEADINGS = [
    "Description",
    "Tools",
    "Action Space",
    "Observation Space",
    "Starting State",
    "Rewards",
    "Outcome",
    "Process",
    "Episode End",
    "Termination",
    "Truncation",
    "Information",
    "Arguments",
    "References",
    "Version History",
]
pytestmark = pytest.mark.filterwarnings("error")


every_id = pytest.mark.parametrize("env_id", IDS)
every_tool_env = pytest.mark.parametrize("env_id", TOOL_ENVS)
every_qa_env = pytest.mark.parametrize("env_id", QA_ENVS)


def offline(env_id):
    """Returns the options that keep an environment off data prepared on this machine."""
    return OFFLINE[env_id]


@pytest.fixture
def make():
    """Makes environments and closes them."""
    made = []

    def build(env_id, **options):
        made.append(gymnasium.make(env_id, **{**offline(env_id), **options}))
        return made[-1]

    yield build
    for env in made:
        env.close()


def test_the_issue_s_environments_are_registered():
    names = {"HotpotQA", "2WikiMultihopQA", "MuSiQue", "FictionQA"}
    assert {f"AgentR1/{name}-v0" for name in names} <= set(IDS)


@every_tool_env
class TestContract:
    def test_gymnasium_finds_nothing_to_warn_of(self, env_id, make):
        check_env(make(env_id))

    @pytest.mark.slow
    def test_the_suite_s_own_checker_with_each_reward(self, env_id, make):
        for reward in ("em", "process", "agent_r1"):
            if not (env_id in STATE_ENVS and reward != "process"):  # those are not solved by an answer
                check_tool_env(make(env_id, reward=reward))
        check_tool_env(make(env_id))

    @pytest.mark.slow
    def test_the_suite_s_own_checker_with_other_formats(self, env_id, make):
        check_tool_env(make(env_id, parser="openai"))
        if env_id in QA_ENVS and env_id not in MATHS_ENVS:  # "search-r1" supports no other tool
            check_tool_env(make(env_id, parser="search-r1"))
        if issubclass(creator(env_id), MultiHopQAEnv):
            check_tool_env(make(env_id, setting="distractor", reward="process"))

    def test_it_is_made_without_wrappers_and_refuses_unknown_options(self, env_id, make):
        assert isinstance(make(env_id), ToolEnv)
        with pytest.raises(ConfigurationError, match="Did you mean 'max_turns'"):
            gymnasium.make(env_id, max_turn=3)

    def test_many_environments_share_the_table_of_their_attributes(self, env_id, make):
        """CPython keeps one for all instances of a class with at most 29 attributes, else one of 1.6 kB for each."""
        env = make(env_id, max_turns=3)
        env.reset(seed=0)
        assert len(vars(env)) <= 29

    @pytest.mark.slow
    def test_render_modes(self, env_id, make, capsys):
        for mode in ("ansi", "human"):
            env = make(env_id, render_mode=mode)
            env.reset(seed=0)
            env.step("hello")
            assert "hello" in (env.render() if mode == "ansi" else capsys.readouterr().out)


class TestSpec:
    def test_all_pickle_and_print(self):
        for env_id in IDS:
            spec = gymnasium.spec(env_id)
            assert pickle.loads(pickle.dumps(spec)) == spec
            assert env_id in spec.pprint(disable_print=True, print_all=True)

    @every_tool_env
    def test_it_survives_json_and_makes_the_same_environment(self, env_id, make):
        env = make(env_id, max_turns=2)
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.unwrapped.max_turns == 2
        assert again.reset(seed=4)[0] == env.reset(seed=4)[0]
        assert json.loads(env.spec.to_json())["id"] == env_id


def test_a_path_among_the_options_goes_to_json_as_a_text(tmp_path):
    path = write_json(tmp_path / "train.json", [HOTPOTQA_ROW])
    spec = gymnasium.make("AgentR1/HotpotQA-v0", dataset=path).spec
    assert json.loads(spec.to_json())["kwargs"] == {"dataset": str(path)}
    assert len(gymnasium.make(EnvSpec.from_json(spec.to_json())).unwrapped.tasks) == 1
    vector = gymnasium.make_vec("AgentR1/HotpotQA-v0", num_envs=2, dataset=path)
    assert json.loads(vector.spec.to_json())["kwargs"]["dataset"] == str(path)


def bonus(transition):
    """A user's own term."""
    return 0.25


def test_a_reward_that_a_module_holds_goes_to_json_by_its_name():
    env = gymnasium.make("AgentR1/FictionQA-v0", questions=2, reward=["em", bonus])
    assert json.loads(env.spec.to_json())["kwargs"]["reward"] == ["em", f"{__name__}:bonus"]
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.reward_weights == env.unwrapped.reward_weights == {"em": 1.0, "bonus": 1.0}

    def hidden(transition):
        return 0.0

    with pytest.raises(TypeError, match="function is not JSON serializable"):
        gymnasium.make("AgentR1/FictionQA-v0", questions=2, reward=hidden).spec.to_json()


def test_the_compact_style_of_fiction_keeps_the_contract(make):
    check_tool_env(make("AgentR1/FictionQA-v0", style="compact", reward="process"))


def test_the_registry_prints(capsys):
    gymnasium.pprint_registry()
    printed = capsys.readouterr().out
    assert all(env_id in printed for env_id in IDS)


@every_tool_env
class TestVector:
    def test_make_vec_returns_the_transitions_of_single_environments(self, env_id, make):
        vector = gymnasium.make_vec(env_id, num_envs=3, **offline(env_id))
        assert isinstance(vector.unwrapped, ToolVectorEnv)
        singles = [make(env_id) for _ in range(3)]
        observations, _ = vector.reset(seed=5)
        assert list(observations) == [env.reset(seed=5 + index)[0] for index, env in enumerate(singles)]
        call = '<tool_call>{"name": "search", "arguments": {"query": "founded"}}</tool_call>'
        actions = [call, "<answer>x</answer>", "neither"]
        observations, rewards, terminations, truncations, _ = vector.step(actions)
        steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        assert list(observations) == [step[0] for step in steps]
        assert rewards.tolist() == [step[1] for step in steps]
        assert terminations.tolist() == [step[2] for step in steps]
        assert truncations.tolist() == [step[3] for step in steps]
        vector.close()


@every_qa_env
def test_environments_of_a_vector_share_data_and_tools(env_id):
    vector = gymnasium.make_vec(env_id, num_envs=2, **offline(env_id)).unwrapped
    first, second = vector.envs
    assert first.tasks is second.tasks
    assert first.tools[0].batch_key == second.tools[0].batch_key
    vector.close()


class TestSpecification:
    @every_id
    def test_the_docstring_has_its_headings_in_order_none_of_them_empty(self, env_id):
        documentation = inspect.getdoc(creator(env_id))
        assert re.findall(r"^#{2,3} (.+)$", documentation, re.MULTILINE) == HEADINGS
        sections = re.split(r"^#{2,3} .+$", documentation, flags=re.MULTILINE)
        empty = [heading for heading, body in zip(HEADINGS, sections[1:], strict=True) if not body.strip()]
        assert empty in ([], ["Rewards", "Episode End"])
        # The arguments are listed, or the section refers to another environment.
        arguments = inspect.getdoc(creator(env_id)).split("## Arguments")[1].split("\n## ")[0]
        names = [
            parameter.name
            for parameter in inspect.signature(creator(env_id).__init__).parameters.values()
            if parameter.default is not parameter.empty
        ]
        missing = [name for name in names if f"`{name}=" not in arguments]
        assert not missing or "As in `AgentR1/" in arguments

    @every_qa_env
    def test_the_bounds_of_the_process_preset(self, env_id, make):
        """As the docstring of HotpotQAEnv states them."""
        assert make(env_id, reward="process").reward_bounds == pytest.approx((-0.2, 1.25))


@pytest.mark.slow
@every_tool_env
def test_the_default_call_works_and_warns_when_it_serves_the_sample(env_id):
    """A fresh process, because the warning comes once in one for each data set; prepared data gives none."""
    if "isolation" in OFFLINE[env_id]:
        pytest.skip("this machine cannot give what it needs by default")
    code = (
        "import warnings; warnings.simplefilter('always')\n"
        "import gymnasium\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        f"    env = gymnasium.make('agent_r1_gym:{env_id}'); env.reset(seed=0); env.step('hello')\n"
        f"    gymnasium.make({env_id!r})\n"
        "print([w.category.__name__ for w in caught])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    datasets = 2 if env_id == "AgentR1/MixedQA-v0" else 1
    assert done.stdout.strip() in ("[]", str(["SampleDataWarning"] * datasets))


@every_tool_env
def test_samples_of_the_action_space_can_be_played(env_id, make):
    env = make(env_id)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(40):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert np.isfinite(reward)
        if terminated or truncated:
            env.reset()


def test_nothing_above_warns_when_the_package_is_imported_again():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", "import agent_r1_gym"], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
