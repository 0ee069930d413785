"""Games of other libraries: what the contract over the registry (tests/envs/test_all_games.py) does not say."""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.errors import ConfigurationError, EpisodeError, MissingDependencyError
from agent_r1_gym.integrations import base
from agent_r1_gym.integrations.base import IsolatedRNG, UntestedVersionWarning, library
from agent_r1_gym.integrations.games import gem as gem_games
from agent_r1_gym.integrations.games import reasoning_gym, skyrl_gym, textarena

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
        assert text.startswith("That is not a command of the game.")
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
        assert "[Player]" not in text  # its own action
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


class Board:
    """A game of TextArena with its rules and a board that changes at "go"; `shows` makes the observation."""

    def __init__(self, shows):
        self.shows, self.messages = shows, []
        self.state = SimpleNamespace(logs=[], observations={0: []})

    def reset(self, num_players, seed):
        self.add("The rules.", "board 0")
        self.state.logs = [(-1, "The rules.")]

    def add(self, *texts):
        self.state.observations[0] += [(-1, text, "board") for text in texts]

    def get_observation(self):
        self.messages.append(self.state.observations[0])
        self.state.observations[0] = []
        return 0, self.shows(self.messages)

    def step(self, action):
        self.state.observations[0].append((-1 if action == "wait" else 0, action, "action"))
        if action != "silence":
            self.add(f"board {int(action == 'go')}")
        return False, {}


def board_env(shows, monkeypatch):
    registration = SimpleNamespace(ENV_REGISTRY={"Board-v0": None})
    module = SimpleNamespace(
        envs=SimpleNamespace(registration=registration),
        make=lambda *_, **__: Board(shows),
        ObservationType=SimpleNamespace(PLAYER_ACTION="action"),
    )
    monkeypatch.setattr(textarena, "library", lambda *_, **__: module)
    monkeypatch.setitem(sys.modules, "textarena", module)
    return textarena.TextArenaEnv(game="Board-v0")


def test_the_players_own_action_is_not_repeated_unless_there_is_nothing_else(monkeypatch):
    def history(messages):
        return "".join(f"[{text}]" for each in messages for _, text, _ in each)

    env = board_env(history, monkeypatch)
    env.reset(seed=0)
    shown = [env.step(action)[0] for action in ("go", "silence", "wait")]
    assert shown == ["[board 1]", "[silence]", "[board 0]"]


@pytest.mark.parametrize(
    ("shows", "texts"),
    [
        (lambda messages: "".join(f"[{text}]" for each in messages for _, text, _ in each), ["[board 0]", "[board 1]"]),
        (lambda messages: f"The rules.\n\n{messages[-1][-1][1]}", ["board 0", "board 1"]),
        (lambda messages: messages[-1], ["board 0", "board 1"]),
        (lambda messages: "The rules.", ["The rules.", "The rules."]),
    ],
    ids=["history", "board", "raw", "nothing"],
)
def test_every_way_in_which_textarena_shows_a_turn_shows_something(shows, texts, monkeypatch):
    env = board_env(shows, monkeypatch)
    assert "The rules." in env.reset(seed=0)[0]
    assert [env.step(action)[0] for action in ("wait", "wait", "go")] == [texts[0], *texts]


@pytest.mark.adapters
@pytest.mark.parametrize("game", ["2048-v0-train", "2048-v0-raw", "Mastermind-v0-train"])
def test_a_variant_of_textarena_shows_something_new_in_each_turn(game):
    for text, *_ in episode(make("TextArena", game=game), ["[Up]", "[Down]"] if "2048" in game else ["[1 2 3 4]"]):
        assert text
        assert "You are playing" not in text


@pytest.mark.adapters
@pytest.mark.parametrize("dataset", ["chain_sum", "leg_counting", "word_sorting", "graph_color", "rubiks_cube"])
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
@pytest.mark.parametrize("dataset", ["mini_sudoku", "rotate_matrix"])
def test_a_plain_answer_of_several_lines_is_one_to_reasoning_gym(dataset):
    env = make("ReasoningGym", dataset=dataset)
    env.reset(seed=4)
    bare = env.unwrapped.oracle().removeprefix("<answer>").removesuffix("</answer>")
    assert env.step(f"thinking\n{bare}\n")[1] == 1.0


@pytest.mark.adapters
@pytest.mark.parametrize(("dataset", "turn"), [("prime_factorization", "I do not know"), ("coin_flip", "1e999")])
def test_no_turn_makes_reasoning_gym_raise(dataset, turn):
    env = make("ReasoningGym", dataset=dataset)
    env.reset(seed=4)
    step = env.step(turn)
    assert step[1:3] == (0.0, True)
    assert "Error: " in step[4]["scorer_error"]


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


class GEMGame:
    """A game of GEM whose turn returns `outcome`, or raises it."""

    def __init__(self, outcome=None, **attributes):
        self.outcome, self.resets = outcome, 0
        self.__dict__ |= attributes

    def reset(self, seed):
        self.resets += 1
        return f"Solve. {self.resets}", {"suffix": "1 _ 3"}

    def step(self, action):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.fixture
def gem_env(monkeypatch):
    def made(*outcome, game="game:Board", **attributes):
        module = SimpleNamespace(
            envs=SimpleNamespace(registration=SimpleNamespace(ENV_REGISTRY={game: None})),
            make=lambda *_, **__: GEMGame(*outcome, **attributes),
        )
        monkeypatch.setattr(gem_games, "library", lambda *_, **__: module)
        monkeypatch.setitem(sys.modules, "gem", module)
        return gem_games.GEMEnv(game=game)

    return made


def test_the_board_of_gem_is_shown(gem_env):
    env = gem_env(("Right.\n", 0.0, False, False, {"prefix": "> ", "suffix": "1 2 3", "turn": 1}))
    assert env.reset(seed=0)[0] == "Solve. 1\n1 _ 3"
    text, *_, info = env.step("2")
    assert text == "> Right.\n1 2 3"
    assert (info["turn"], "suffix" in info) == (1, False)


@pytest.mark.parametrize(
    ("attributes", "truncated"),
    [({}, False), ({"turn_count": 2, "max_turns": None}, False), ({"turn_count": 2, "max_turns": 2}, True)],
)
def test_both_ends_of_gem_are_a_limit_only_where_there_is_one(attributes, truncated, gem_env):
    env = gem_env(("Over.", 1.0, True, True, {}), **attributes)
    env.reset(seed=0)
    assert env.step("42")[2:4] == (not truncated, truncated)


def test_a_seed_of_gem_is_one_task_though_a_data_set_is_replaced(gem_env):
    env = gem_env(game="rg:chain_sum")
    assert env.reset(seed=3)[0] == env.reset(seed=3)[0]


def test_the_processes_of_a_gem_game_end_with_it_and_are_not_pickled(gem_env):
    ended = []
    pool = SimpleNamespace(terminate=lambda: ended.append("pool"))
    for attributes in ({"mp_pool": pool, "close": pytest.fail}, {"close": lambda: ended.append("game")}):
        env = gem_env(**attributes)
        opening = env.reset(seed=0)
        assert pickle.loads(pickle.dumps(env)).reset(seed=0) == opening
        env.close()
        env.close()
        with pytest.raises(EpisodeError, match="call reset"):
            env.step("42")
    assert ended == ["pool", "game"]


def test_a_scorer_that_raises_costs_its_turn_and_is_logged_once(gem_env, monkeypatch, caplog):
    monkeypatch.setattr(base, "_LOGGED", set())
    env = gem_env(ValueError("no answer"))
    for seed in (0, 1):
        env.reset(seed=seed)
        assert env.step("I do not know")[1:] == (0.0, True, False, {"scorer_error": "ValueError: no answer"})
    assert [record.getMessage() for record in caplog.records] == [
        "GEMEnv, game:Board: the scorer raised ValueError: no answer; the turn is scored 0, and so are others like it."
    ]


@pytest.fixture
def puzzle(monkeypatch):
    """Returns a puzzle of reasoning-gym with this solution and scorer."""
    module = SimpleNamespace(factory=SimpleNamespace(DATASETS={"ab": None}))
    monkeypatch.setattr(reasoning_gym, "library", lambda *_, **__: module)

    def made(solution, score):
        env = reasoning_gym.ReasoningGymEnv(dataset="ab")
        env._question = {"question": "?", "answer": solution}
        env._questions = SimpleNamespace(score_answer=lambda answer, _: score(answer))
        return env

    return made


def test_an_answer_without_tags_is_as_long_as_the_solution(puzzle):
    env = puzzle("1 2\n3 4", lambda answer: float(answer == "1 2\n3 4"))
    assert env._play("So\n1 2\n3 4\n")[1:] == (1.0, True, {"answer": "1 2\n3 4"})
    assert env._play("So\n1 2\n3 5")[1:] == (0.0, True, {"answer": "3 5"})
    assert env._play("<answer>1 2\n3 4</answer> Done.")[1] == 1.0
    assert puzzle("1 2\n3 4", lambda answer: float(answer == "[1, 2]"))._play("So\n[1, 2]")[1] == 1.0


def test_a_scorer_of_reasoning_gym_that_raises_pays_nothing(puzzle):
    step = puzzle("7", int)._play("I do not know")
    assert step[1:3] == (0.0, True)
    assert step[3]["scorer_error"].startswith("ValueError: invalid literal")
    assert puzzle("1\n2", lambda answer: len(answer.split("\n")[1]))._play("1\n2")[1] == 1
    assert "SystemExit" in puzzle("7", eval)._play("exit()")[3]["scorer_error"]


def test_the_example_among_several_answers_is_the_one_of_the_oracle(puzzle):
    env = puzzle(None, lambda answer: float(answer == '{"0": 1}'))
    env._question["metadata"] = {"possible_answer": {0: 1}}
    assert env._play(env._oracle_action())[1] == 1.0
    env._question["metadata"] = {"example_answer": "P"}
    assert env._oracle_action() == "<answer>P</answer>"
    env._question["metadata"] = {}
    assert env._oracle_action() is None


def test_an_empty_answer_of_reasoning_gym_is_an_answer(puzzle):
    env = puzzle(None, lambda answer: float(answer == ""))
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


@dataclass
class SearchConfig:
    search_url: str = "http://127.0.0.1:8000/retrieve"
    topk: int = 3


@pytest.mark.adapters
@pytest.mark.parametrize("game", ["gsm8k", "gsm8k_multi_turn", "aime"])
def test_the_answers_of_skyrl_score_1(game):
    env = make("SkyRLGym", game=game)
    for seed in range(3):
        env.reset(seed=seed)
        assert env.step(env.unwrapped.oracle())[1:3] == (1.0, True)


def test_a_game_of_skyrl_reads_its_configuration_as_attributes(monkeypatch):
    registration = SimpleNamespace(registry={"search": None, "gsm8k": None})
    module = SimpleNamespace(envs=SimpleNamespace(registration=registration), SearchEnvConfig=SearchConfig)
    monkeypatch.setattr(skyrl_gym, "library", lambda *_, **__: module)
    own = SearchConfig(topk=1)
    given = [None, {"topk": 5}, own]
    made = [skyrl_gym.SkyRLGymEnv(game="search", env_config=config)._config for config in given]
    assert made == [SearchConfig(), SearchConfig(topk=5), own]
    assert skyrl_gym.SkyRLGymEnv(env_config={"topk": 5})._config == {"topk": 5}
    with pytest.raises(ConfigurationError, match="option of env_config for search 'top_k'"):
        skyrl_gym.SkyRLGymEnv(game="search", env_config={"top_k": 5})


@pytest.mark.adapters
def test_games_of_skyrl_begin_with_options_of_the_command_line(tmp_path):
    (tmp_path / "spider/database/d").mkdir(parents=True)
    (tmp_path / "spider/database/d/d.sqlite").touch()
    row = {"prompt": [{"role": "user", "content": "q"}], "reward_spec": {"ground_truth": "1"}}
    row |= {"data": "spider", "db_id": "d"}
    for game, config in (("search", {"topk": 1}), ("text2sql", {"db_path": str(tmp_path)})):
        assert make("SkyRLGym", game=game, rows=[row], env_config=config).reset(seed=0)[0] == "q"
    env = make("SkyRLGym", game="gsm8k_multi_turn")
    env.reset(seed=0)
    assert env.step("#### 2")[1:3] == (1.0, True)


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
