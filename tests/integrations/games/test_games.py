"""Games of other libraries: what the contract over the registry (tests/envs/test_all_games.py) does not say."""

from __future__ import annotations

import pickle
import random
import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from agent_r1_gym.integrations.base import IsolatedRNG, UntestedVersionWarning, library
from agent_r1_gym.integrations.games import gem as gem_games
from agent_r1_gym.integrations.games import reasoning_gym, skyrl_gym

SPLITS = ("train", "validation")


def make(name, **options):
    try:
        return gymnasium.make(f"AgentR1/{name}-v0", **options)
    except MissingDependencyError as error:
        pytest.skip(str(error))


def episode(env, actions, seed=3):
    env.reset(seed=seed)
    return [env.step(action) for action in actions]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("TextWorld", "textworld"),
        ("ScienceWorld", "scienceworld"),
        ("TextArena", "textarena"),
        ("ReasoningGym", "reasoning-gym"),
        ("GEM", "gem-llm"),
        ("SkyRLGym", "skyrl-gym"),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_command(name, package, monkeypatch):
    module = {"gem-llm": "gem"}.get(package, package.replace("-", "_"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=f"^{package} is not installed: pip install {package}$"):
        gymnasium.make(f"AgentR1/{name}-v0")


def test_what_a_library_lacks_is_named(monkeypatch, tmp_path):
    (tmp_path / "their_games.py").write_text("import something_else_entirely\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match="their-games cannot be imported: No module named 'something_else"):
        library("their_games", package="their-games", tested_version="1")


@pytest.mark.parametrize(("version", "warns"), [("1.7.3", False), ("1.70", True), ("2", True)])
def test_an_untested_version_is_warned_of(version, warns, monkeypatch):
    monkeypatch.setitem(sys.modules, "their_games", ModuleType("their_games"))
    monkeypatch.setattr("agent_r1_gym.integrations.base.installed_version", lambda package: version)
    if warns:
        with pytest.warns(UntestedVersionWarning, match=f"their-games {version} is untested .* with 1.7"):
            library("their_games", package="their-games", tested_version="1.7")
    else:
        library("their_games", package="their-games", tested_version="1.7")


def test_games_that_draw_globally_do_not_disturb_each_other():
    def draws(own, number, seed=None):
        with own(seed):
            return [(random.random(), float(np.random.random())) for _ in range(number)]

    alone, first, second = IsolatedRNG(), IsolatedRNG(), IsolatedRNG()
    expected = draws(alone, 4, seed=1)
    random.seed(9)
    outside = random.Random(9).random()
    mixed = draws(first, 2, seed=1)
    draws(second, 3, seed=2)
    assert mixed + draws(first, 2) == expected
    assert random.random() == outside


@pytest.mark.adapters
@pytest.mark.parametrize("name", ["TextWorld", "ScienceWorld", "TextArena", "ReasoningGym", "GEM", "SkyRLGym"])
def test_an_environment_pickles_in_the_middle_of_an_episode(name):
    env = make(name, **({"games": 1, "nb_objects": 3} if name == "TextWorld" else {}))
    text, _ = env.reset(seed=3)
    again = pickle.loads(pickle.dumps(env))
    assert again.reset(seed=3)[0] == text
    env.close()
    again.close()


@pytest.mark.adapters
class TestTextWorld:
    def make(self, **options):
        return make("TextWorld", games=1, nb_objects=3, **options)

    def test_the_oracle_wins(self):
        env = self.make()
        env.reset(seed=0)
        total, over = 0.0, False
        while not over:
            _, reward, over, truncated, info = env.step(env.unwrapped.oracle())
            assert not truncated
            total += reward
        assert info["won"]
        assert total == 1.0
        env.close()

    def test_held_out_games_are_others(self):
        env, held_out = (make("TextWorld", games=2, nb_rooms=1, theme="basic", split=split) for split in SPLITS)
        games = [[one.reset(seed=seed) for seed in (0, 1, 2)] for one in (env, held_out)]
        texts = [[text for text, _ in drawn] for drawn in games]
        assert texts[0][0] == texts[0][2]
        assert not set(texts[0]) & set(texts[1])
        assert [info["game_seed"] for _, info in games[1]] == [1_000_001, 1_000_002, 1_000_001]
        env.close()
        held_out.close()

    def test_the_basic_theme_is_short(self):
        lengths = {}
        for theme in ("basic", "house"):
            env = self.make(theme=theme)
            lengths[theme] = len(env.reset(seed=0)[0])
            env.close()
        assert lengths["basic"] < 0.8 * lengths["house"]

    @pytest.mark.parametrize(
        "turn", ["", "\\", "look\\\\", "\x00\x1b[2J", "x" * 5_000, "日本", "restart", "quit", "save"]
    )
    def test_no_turn_hangs_the_engine(self, turn):
        env = self.make()
        texts = [step[0] for step in episode(env, [turn])]
        assert texts[0] != ""
        assert "\x1b" not in texts[0]
        env.close()

    @pytest.mark.parametrize(
        "turn", ["save", "SAVE", "look. save", "look then save", "look, script", "restart", "undo"]
    )
    def test_the_engine_itself_takes_no_orders(self, turn, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        env = self.make()
        ((text, reward, terminated, truncated, _), (after, *_)) = episode(env, [turn, "look"])
        assert text.startswith("That is no command of the game.")
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert "-=" in after
        assert list(tmp_path.iterdir()) == []
        env.close()

    def test_the_commands_can_be_hidden(self):
        env = self.make(show_commands=False)
        text, info = env.reset(seed=0)
        assert "Commands:" not in text
        assert info["actions"]
        env.close()


@pytest.mark.adapters
class TestTextArena:
    def test_only_what_is_new_is_shown(self):
        env = make("TextArena", game="Mastermind-v0")
        env.reset(seed=3)
        (text, reward, terminated, *_) = env.step("[1 2 3 4]")
        assert "You are playing" not in text
        assert "Feedback" in text
        assert (reward, terminated) == (0.0, False)

    def test_two_games_side_by_side_play_as_each_alone(self):
        moves = ["[1 2 3 4]", "[2 3 4 5]", "[6 1 2 3]"]
        alone = [step[0] for step in episode(make("TextArena"), moves)]
        env, other = make("TextArena"), make("TextArena")
        env.reset(seed=3)
        other.reset(seed=8)
        texts = []
        for move in moves:
            other.step("[6 5 4 3]")
            texts.append(env.step(move)[0])
        assert texts == alone

    def test_an_unknown_game_and_one_for_two_are_refused(self):
        with pytest.raises(ConfigurationError, match="Did you mean 'Mastermind-v0'"):
            make("TextArena", game="Mastermin-v0")
        with pytest.raises(ConfigurationError, match="AgentR1/TextArena-v0, turn 0, seed 3: the game raised"):
            make("TextArena", game="Chess-v0").reset(seed=3)


@pytest.mark.adapters
@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting", "basic_arithmetic", "word_sorting"])
def test_the_answers_of_reasoning_gym_score_1(dataset):
    env = make("ReasoningGym", dataset=dataset)
    env.reset(seed=4)
    answer = env.unwrapped.oracle()
    assert env.step(f"Let me see.\n{answer}")[1:3] == (1.0, True)
    env.reset(seed=4)
    assert env.step("I do not know")[1] < 0.5


@pytest.mark.adapters
def test_a_plain_last_line_is_an_answer_to_reasoning_gym():
    env = make("ReasoningGym")
    env.reset(seed=4)
    bare = env.unwrapped.oracle().removeprefix("<answer>").removesuffix("</answer>")
    step = env.step(f"thinking\n{bare}\n")
    assert (step[1], step[4]["answer"]) == (1.0, bare)


@pytest.mark.adapters
def test_gem_tells_its_limit_from_its_goal():
    env = make("GEM")
    steps: list[tuple] = []
    low, high = 1, 10
    env.reset(seed=3)
    while not steps or not (steps[-1][2] or steps[-1][3]):
        guess = (low + high) // 2
        steps.append(env.step(f"\\boxed{{{guess}}}"))
        low, high = (guess + 1, high) if "higher" in steps[-1][0] else (low, guess - 1)
    assert steps[-1][1:4] == (1, True, False)
    env.reset(seed=3)
    last = [env.step("\\boxed{99}") for _ in range(4)][-1]
    assert last[2:4] == (False, True)


def test_the_board_of_gem_is_shown(monkeypatch):
    class Board:
        def reset(self, seed):
            return "Solve.", {"suffix": "1 _ 3"}

        def step(self, action):
            return "Right.\n", 0.0, False, False, {"prefix": "> ", "suffix": "1 2 3", "turn": 1}

    registration = SimpleNamespace(ENV_REGISTRY={"game:Board": None})
    module = SimpleNamespace(envs=SimpleNamespace(registration=registration), make=lambda *_, **__: Board())
    monkeypatch.setattr(gem_games, "library", lambda *_, **__: module)
    monkeypatch.setitem(sys.modules, "gem", module)
    env = gem_games.GEMEnv(game="game:Board")
    assert env.reset(seed=0)[0] == "Solve.\n1 _ 3"
    text, *_, info = env.step("2")
    assert text == "> Right.\n1 2 3"
    assert (info["turn"], "suffix" in info) == (1, False)


def test_an_empty_answer_of_reasoning_gym_is_an_answer(monkeypatch):
    module = SimpleNamespace(factory=SimpleNamespace(DATASETS={"ab": None}))
    monkeypatch.setattr(reasoning_gym, "library", lambda *_, **__: module)
    env = reasoning_gym.ReasoningGymEnv(dataset="ab")
    env._questions = SimpleNamespace(score_answer=lambda answer, _: float(answer == ""))
    assert env._play("So\n<answer></answer>")[1] == 1.0
    assert env._play("So\n<answer>")[3] == {"answer": "<answer>"}


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n\n"])
def test_rows_of_skyrl_are_read_as_other_files_are(tmp_path, monkeypatch, start):
    registry = SimpleNamespace(envs=SimpleNamespace(registration=SimpleNamespace(registry={"gsm8k": None})))
    monkeypatch.setattr(skyrl_gym, "library", lambda *_, **__: registry)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(start + b'{"prompt": []}\r\n\r\n{"prompt": [1]}')  # no line end at the end
    assert skyrl_gym.SkyRLGymEnv(rows=path)._rows == ({"prompt": []}, {"prompt": [1]})
    assert skyrl_gym.SkyRLGymEnv()._rows[0]["reward_model"]["ground_truth"] == "2"  # what aime reads


@pytest.mark.adapters
def test_rows_of_skyrl_are_scored_by_its_rules(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": [{"role": "user", "content": "6 x 7?"}], "reward_spec": {"ground_truth": "42"}}\n')
    env = make("SkyRLGym", rows=str(path))
    assert env.reset(seed=5)[0] == "6 x 7?"
    assert env.step("So it is\n#### 42")[1:3] == (1.0, True)
    env.reset(seed=5)
    assert env.step("#### 41")[1:3] == (0.0, True)
    with pytest.raises(ConfigurationError, match="rows must contain at least one row, each with a prompt"):
        make("SkyRLGym", rows=[{}])
