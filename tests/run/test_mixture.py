"""Mixtures: how environments of a run are written, and how often each comes."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.mixture import (
    ENV_SYNTAX,
    EnvConfig,
    env_configs_from_args,
    env_configs_from_file,
    format_option,
    interleaved_order,
    parse_mixture,
    parse_option,
)


def test_text_sets_options_weight_name_and_evaluation_options() -> None:
    text = 'AgentR1/FictionQA-v0 weight=2 name=hops mix={"bridge": 1, "1hop": 2} max-turns=3 eval.split=test'
    assert EnvConfig.parse(text) == EnvConfig(
        env_id="AgentR1/FictionQA-v0",
        name="hops",
        weight=2,
        options={"mix": {"bridge": 1, "1hop": 2}, "max_turns": 3},
        eval_options={"split": "test"},
    )
    assert EnvConfig.parse("my_env:Mine/Shop-v1").name == "Shop-v1"
    assert EnvConfig.parse("FictionQA").eval_options is None
    assert EnvConfig.parse("FictionQA eval").eval_options == {}
    assert EnvConfig.parse("FictionQA\tname=3\nmix={}\nweight=2") == EnvConfig(
        env_id="FictionQA", name="3", weight=2, options={"mix": {}}
    )


WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=12
)
VALUES = st.recursive(
    WORDS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
)
NAMES = st.from_regex(r"[a-z]{1,6}", fullmatch=True).filter(lambda name: name not in ("name", "weight"))


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.none() | st.dictionaries(NAMES, VALUES, max_size=2))
@pytest.mark.slow
def test_a_member_survives_the_command_line_and_json(options: dict, include_eval: dict | None) -> None:
    env_config = EnvConfig(env_id="Mine/Shop-v0", name="shop", weight=0.5, options=options, eval_options=include_eval)
    assert EnvConfig.parse(env_config.to_text()) == env_config
    assert EnvConfig.parse(env_config.to_dict()) == env_config
    assert EnvConfig.parse(env_config.to_text(include_eval=False)).eval_options is None


@given(NAMES, VALUES)
def test_an_option_survives_the_command_line(name: str, value: object) -> None:
    assert parse_option(format_option(name, value)) == (name, value)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([], "A mixture needs at least one environment"),
        (["FictionQA", "AgentR1/FictionQA"], "Two environments of the mixture are called 'FictionQA'"),
        (["FictionQA weight=0"], "FictionQA: weight=0 must be a number above 0"),
        (["FictionQA weight=many"], "weight='many' must be a number"),
        (["FictionQA weight=NaN"], "weight=nan must be a number"),
        (["FictionQA name=a/b"], "name='a/b' names metrics and folders"),
        (["FictionQA name=.."], "name='..' names metrics and folders"),
        ({"FictionQA": {"weight": 2}}, "envs must be a list of environments"),
        (["FictionQA name=reward"], "none of reward, rollout, mixture.json"),
        (["FictionQA max_turns"], "An option is written NAME=VALUE, got 'max_turns'"),
        (["FictionQA a b=1"], "An option is written NAME=VALUE"),
        ([""], "env_id must name an environment, got ''"),
        ([{"name": "x"}], "or as a mapping with env_id"),
        ([3], "or as a mapping with env_id; got 3"),
        ([{"env_id": "FictionQA", "wieght": 2}], "FictionQA: 'wieght' is not a field of it. Did you mean 'weight'"),
        ([{"env_id": "FictionQA", "env_kwargs": "style"}], "env_kwargs must be a mapping of options, got 'style'"),
        ([{"env_id": 3}], "env_id must name an environment, got 3"),
    ],
)
def test_wrong_entries_are_named(entries: list, problem: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_mixture(entries)
    assert problem in str(error.value)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1, 2, 3, 7.5])), min_size=1, max_size=4),
)
def test_every_row_comes_and_every_member_has_its_share(parts: list[tuple[int, float]]) -> None:
    lengths, weights = zip(*parts, strict=True)
    order = interleaved_order(lengths, weights)
    assert set(order) == set(range(sum(lengths)))
    ends = list(accumulate(lengths))
    owner = Counter(next(i for i, end in enumerate(ends) if place < end) for place in order)
    for number, weight in enumerate(weights):
        assert owner[number] == pytest.approx(len(order) * weight / sum(weights), abs=1.01)


def test_the_shares_hold_all_along() -> None:
    assert interleaved_order([2, 4], [1, 1]) == [0, 2, 1, 3, 0, 4, 1, 5]
    assert interleaved_order([1, 4], [1, 4]) == [1, 2, 0, 3, 4]
    assert interleaved_order([3], [5]) == [0, 1, 2]


def run(**given: object) -> SimpleNamespace:
    return SimpleNamespace(**{"env_id": None, "env_kwargs": None, "envs": None, "eval_env_kwargs": None, **given})


def test_a_run_has_one_environment_or_several() -> None:
    alone = run(env_id="FictionQA", env_kwargs={"style": "compact"}, eval_env_kwargs={})
    assert env_configs_from_args(alone) == (
        EnvConfig(env_id="FictionQA", options={"style": "compact"}, eval_options={}),
    )
    several = run(envs=["A max_turns=3", {"env_id": "B"}], env_kwargs={"max_turns": 5, "reward": "f1"})
    assert [env_config.options for env_config in env_configs_from_args(several)] == [
        {"max_turns": 3, "reward": "f1"},
        {"max_turns": 5, "reward": "f1"},
    ]
    assert [env_config.eval_options for env_config in env_configs_from_args(several)] == [None, None]
    evaluated = run(envs=["A eval.n=1", "B"], eval_env_kwargs={"n": 2, "split": "test"})
    assert [env_config.eval_options for env_config in env_configs_from_args(evaluated)] == [
        {"n": 1, "split": "test"},
        {"n": 2, "split": "test"},
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "env_id is not given"),
        ({"env_id": "A", "envs": ["B"]}, "env_id='A' and envs are both set"),
        ({"env_id": "A", "env_kwargs": "[1]"}, "env_kwargs must be a JSON object"),
    ],
)
def test_a_run_without_a_clear_environment_is_refused(given: dict, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        env_configs_from_args(run(**given))


def test_a_training_file_sets_what_is_evaluated(tmp_path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "mixture.yaml"
    path.write_text(
        "learning_rate: 1e-6\nenv_kwargs: {max_turns: 2}\neval_env_kwargs: {n: 1}\n"
        "envs:\n  - FictionQA style=compact\n  - {env_id: Shop, weight: 3}\n"
    )
    found = env_configs_from_file(path)
    assert [(env_config.name, env_config.weight) for env_config in found] == [("FictionQA", 1), ("Shop", 3)]
    assert found[1].options == {"max_turns": 2} and found[1].eval_options == {"n": 1}  # as training takes it
    path.write_text("env_id: FictionQA")
    assert env_configs_from_file(path) == (EnvConfig(env_id="FictionQA"),)
    for text, problem in (("envs: 3", "must be a list"), ("{", "cannot be read as YAML"), ("", "names no environment")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=problem):
            env_configs_from_file(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        env_configs_from_file(tmp_path / "absent.yaml")
    assert "weight=W" in ENV_SYNTAX


@pytest.mark.parametrize(
    "env_id", ["GSM8K isolation=weak", "GSM8K\tdataset=/etc/x", "GSM8K\u2003a=b", "GSM8K\x1b[2J", " "]
)
def test_an_id_is_one_word(env_id: str) -> None:
    with pytest.raises(ConfigurationError, match="env_id must be one word"):
        EnvConfig(env_id=env_id, name="a")
