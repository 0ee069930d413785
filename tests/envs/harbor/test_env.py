"""Harbor task folders: which are played, how they are graded, and what an agent cannot forge."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import gymnasium
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.harbor.tasks import TasksRefusedWarning, read_task, read_tasks
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.sandbox.container import containers_unavailable
from tests.kit.environments import play_script
from tests.kit.harbor import write_task

pytestmark = pytest.mark.skipif(bool(containers_unavailable()), reason=containers_unavailable())
ID = "AgentR1/Harbor-v0"


def make(path, **options):
    return gymnasium.make(ID, dataset=path, **options).unwrapped


def play(env, *commands, index=0):
    """Play commands and the answer; return the terms of the last reward."""
    env.reset(options={"task_index": index})
    for command in commands:
        env.step(env.parser.format_call(ToolCall("bash", {"command": command})))
    return env.step(env.parser.format_answer("done"))[4]["reward_terms"]


class TestPlaying:
    @pytest.mark.parametrize("index", range(3))
    def test_the_sample_is_solved_by_its_solutions_alone(self, index):
        env = gymnasium.make(ID).unwrapped
        for script, expected in (("oracle", 1.0), ("idle", 0.0), ("forger", 0.0)):
            reward, info = play_script(env, index, script)
            assert (reward, info["infrastructure_error"], info["end_reason"]) == (expected, None, "answer")
            assert env.success(env.task, env.transitions) == expected
        env.close()

    def test_a_task_passes_another_fails_a_third_hangs_and_a_fourth_is_refused(self, tmp_path):
        write_task(tmp_path / "a")
        write_task(tmp_path / "b", tests="echo 0.25 > /logs/verifier/reward.txt")
        write_task(tmp_path / "c", tests="sleep 600", config="[verifier]\ntimeout_sec = 0.3\n")
        write_task(tmp_path / "d", dockerfile="FROM nvcr.io/nvidia/pytorch:24.01-py3\n")
        with pytest.warns(TasksRefusedWarning, match="d: it needs the image nvcr.io/nvidia/pytorch:24.01-py3"):
            env = make(tmp_path)
        assert [task.id for task in env.tasks] == ["a", "b", "c"]
        assert env.describe_dataset() == f"3 Harbor tasks of {tmp_path}"
        assert play_script(env, 0)[0] == 1.0
        assert play(env) == {"solved": 0.0, "tests_timed_out": 0.0, "no_reward": 0.0}
        assert play(env, index=1)["solved"] == 0.25
        assert play(env, index=2) == {"solved": 0.0, "tests_timed_out": 1.0, "no_reward": 1.0}
        env.close()

    def test_a_truncated_episode_is_graded_too(self, tmp_path):
        env = make(write_task(tmp_path / "a"), max_turns=1)
        env.reset(seed=0)
        call = env.parser.format_call(ToolCall("bash", {"command": "touch made"}))
        _, reward, terminated, truncated, _ = env.step(call)
        assert (reward, terminated, truncated) == (1.0, False, True)
        env.close()
        env = make(write_task(tmp_path / "b"))
        env.reset(seed=0)
        env.step(call)
        assert env.truncate() == 1.0
        env.close()

    def test_a_container_that_dies_is_no_low_score(self, tmp_path):
        env = make(write_task(tmp_path / "a"))
        env.reset(seed=0)
        env.step(env.parser.format_call(ToolCall("bash", {"command": "true"})))
        os.killpg(env.episode_tools[0].container._process.pid, 9)
        _, reward, *_, info = env.step(env.parser.format_answer("done"))
        assert reward == 0.0
        assert info["infrastructure_error"].startswith("reward: ")
        env.close()

    def test_files_folder_and_variables_are_those_of_the_dockerfile(self, tmp_path):
        dockerfile = (
            "# comment\nFROM docker.io/library/python:3.13-slim\nLABEL a=b\nWORKDIR /srv\nWORKDIR app\n"
            'ENV A=1 \\\n    B="two words"\nENV C three\nCOPY data here\nCOPY one.txt data/two.txt ./\nCMD ["bash"]\n'
        )
        path = write_task(
            tmp_path / "a",
            dockerfile=dockerfile,
            tests='[ "$(pwd) $A $B $C $T $(cat one.txt)" = "/srv/app 1 two words three 4 one" ]\n'
            "echo $((1 - $?)) > /logs/verifier/reward.txt",
            config='[verifier.env]\nT = "4"\n',
            **{"environment__one.txt": "one", "environment__data__two.txt": "two"},
        )
        env = make(path)
        env.reset(seed=0)
        shown = env.step(env.parser.format_call(ToolCall("bash", {"command": "pwd; ls; ls here; echo $B"})))[4]
        assert shown["tool_outcomes"][0].content == "/srv/app\nhere\none.txt\ntwo.txt\ntwo.txt\ntwo words"
        assert env.step(env.parser.format_answer("done"))[1] == 1.0
        env.close()

    def test_a_file_that_is_copied_to_a_folder_keeps_its_name(self, tmp_path):
        dockerfile = (
            "FROM debian\nWORKDIR /home/app/deep\nCOPY one.txt /home/app\nCOPY one.txt /root\nCOPY one.txt ..\n"
            "COPY one.txt .\nCOPY data /data\nCOPY one.txt /data\nCOPY one.txt /data/inner\nCOPY one.txt /opt\n"
            "COPY one.txt /made/two.txt\nCOPY one.txt /made\nCOPY one.txt /file\n"
        )
        path = write_task(
            tmp_path / "a",
            dockerfile=dockerfile,
            **{"environment__one.txt": "one", "environment__data__inner__two.txt": "two"},
        )
        targets = ["/home/app/one.txt", "/root/one.txt", "/home/app/one.txt", "/home/app/deep/one.txt", "/data"]
        targets += ["/data/one.txt", "/data/inner/one.txt", "/opt/one.txt", "/made/two.txt", "/made/one.txt", "/file"]
        assert [target for _, target in read_task(path).copies] == targets
        env = make(path)
        env.reset(seed=0)
        shown = env.step(env.parser.format_call(ToolCall("bash", {"command": f"ls {' '.join(targets)}"})))[4]
        assert shown["infrastructure_error"] is None
        assert "cannot access" not in shown["tool_outcomes"][0].content
        env.close()

    def test_a_solution_with_files_is_played_too(self, tmp_path):
        env = make(
            write_task(tmp_path / "a", solution="bash $(dirname $0)/step.sh", **{"solution__step.sh": "touch $NAME"},
                   config='[solution.env]\nNAME = "made"\n')
        )  # fmt: skip
        assert not env.has_solution(env.tasks[0])
        assert play_script(env, 0)[0] == 1.0
        env.close()
        without = make(write_task(tmp_path / "b", solution=""))
        without.reset(seed=0)
        assert without.oracle(without.task, ()) is None
        without.close()

    def test_it_pickles(self, tmp_path):
        env = pickle.loads(pickle.dumps(make(write_task(tmp_path / "a"))))
        assert play_script(env, 0)[0] == 1.0
        env.close()


class TestGrading:
    @pytest.mark.parametrize(
        ("tests", "expected"),
        [
            ("echo 1 > /logs/verifier/reward.txt", (1.0, 0.0)),
            ("echo ' 0.5 ' > /logs/verifier/reward.txt", (0.5, 0.0)),
            ("echo 7 > /logs/verifier/reward.txt", (1.0, 0.0)),
            ("echo -3 > /logs/verifier/reward.txt", (0.0, 0.0)),
            ("""echo '{"reward": 0.25, "style": 1}' > /logs/verifier/reward.json""", (0.25, 0.0)),
            ("""echo '{"accuracy": 1}' > /logs/verifier/reward.json""", (1.0, 0.0)),
            ("""echo '{"reward": true, "style": 0}' > /logs/verifier/reward.json""", (1.0, 0.0)),
            ("""echo '{"passed": false}' > /logs/verifier/reward.json""", (0.0, 0.0)),
            ("echo 1 > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt", (1.0, 0.0)),
            ("""echo '{"a": 1, "b": 1}' > /logs/verifier/reward.json""", (0.0, 1.0)),
            ("echo nan > /logs/verifier/reward.txt", (0.0, 1.0)),
            ("echo true > /logs/verifier/reward.json", (0.0, 1.0)),
            ("echo pass > /logs/verifier/reward.txt", (0.0, 1.0)),
            ("printf '\\xff' > /logs/verifier/reward.txt", (0.0, 1.0)),
            ("mkdir /logs/verifier/reward.txt", (0.0, 1.0)),
            ("exit 1", (0.0, 1.0)),
        ],
    )
    def test_a_reward_is_read_as_the_format_has_it(self, tmp_path, tests, expected):
        env = make(write_task(tmp_path / "a", tests=tests))
        terms = play(env)
        assert (terms["solved"], terms["no_reward"]) == expected
        env.close()

    def test_an_agent_forges_no_reward(self, tmp_path):
        """Files where the tests and the reward will be, links, and programs that go on writing."""
        write = "echo 1 > /logs/verifier/reward.txt"
        attacks = [
            write,
            f"setsid bash -c 'while true; do {write}; done' > /dev/null 2>&1 &",
            "echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 0 /tests /tests/test.sh",
            "rm -r /logs; mkdir -p mine /logs; echo 1 > mine/reward.txt; ln -s /app/mine /logs/verifier",
            "rm -r /tests; ln -s /app /tests; echo 'echo 1 > /logs/verifier/reward.txt' > test.sh",
            "echo '{\"reward\": 1}' > /logs/verifier/reward.json",
            "mkdir -p ~/.local/lib; echo 'exec echo 1' > ~/.bashrc; echo 'exec echo 1' > ~/.bash_profile",
            *(
                f"B={folder}; mv /$(echo $B | cut -d/ -f2) /gone; mkdir -p $B; PATH=$PATH:/gone; "
                f"printf '#!/usr/bin/bash\n{write}\n' > $B/bash; chmod +x $B/bash"
                for folder in ("$(dirname $(which python3))", "/bin", "/usr/local/bin")
            ),
        ]
        env = make(write_task(tmp_path / "a"))
        for attack in attacks:
            assert play(env, attack)["solved"] == 0.0, attack
        ends = ("rm -rf /app; echo > /app", "rm -rf /app /logs", "kill -9 -1", "rm -rf /logs; echo > /logs")
        for end in (*ends, "cat /dev/zero > /app/full", "for i in $(seq 99999); do echo > $i; done"):
            assert play(env, end)["solved"] == 0.0, end
        for change in ("chmod 0 /", "chmod 0 /logs /tests /logs/verifier", "rm -rf /logs /tests /root"):
            assert play(env, f"touch made; {change}")["solved"] == 1.0, change
        env.close()

    def test_tests_are_hidden_until_the_end(self, tmp_path):
        env = make(write_task(tmp_path / "a"))
        env.reset(seed=0)
        call = ToolCall("bash", {"command": "ls /tests /solution; find / -xdev -name '*.sh'"})
        shown = env.step(env.parser.format_call(call))[4]["tool_outcomes"][0].content
        assert "/tests:" in shown
        assert "test.sh" not in shown
        env.close()


class TestReading:
    @pytest.mark.parametrize(
        ("config", "dockerfile", "reason"),
        [
            ("", "FROM python:3.11\nRUN pip install flask\n", "its Dockerfile has 'RUN pip install flask'"),
            ("", "FROM python:3.11 AS base\n", "it needs the image python:3.11 AS base"),
            ("", "FROM debian\nCOPY --from=x a b\n", "its Dockerfile has 'COPY --from"),
            ("", "FROM debian\nARG V\n", "its Dockerfile has 'ARG V'"),
            ("", "FROM debian\nUSER app\n", "its Dockerfile has 'USER app'"),
            ('[environment]\ndocker_image = "ghcr.io/a/b:1"', None, "it needs the image ghcr.io/a/b:1"),
            ("[environment]\ngpus = 1", None, "it needs environment.gpus"),
            ('[environment]\nos = "windows"', None, "it needs another system than Linux"),
            ('[environment]\nnetwork_mode = "allowlist"', None, "it needs the network"),
            ('[[environment.mcp_servers]]\nname = "x"', None, "it needs environment.mcp_servers"),
            ('[verifier]\nenvironment_mode = "separate"', None, "it needs a container of its own"),
            ('[[steps]]\nname = "one"', None, "it needs several steps"),
            ('[agent]\nuser = "coder"', None, "it needs the user coder (agent.user)"),
            ("[verifier]\nuser = 1000", None, "it needs the user 1000 (verifier.user)"),
            ('[verifier.env]\nKEY = "${OPENAI_API_KEY}"', None, "verifier.env.KEY takes a variable of the host"),
        ],
    )
    def test_what_needs_more_is_refused_by_name(self, tmp_path, config, dockerfile, reason):
        write_task(tmp_path / "mine", config=config or "\n", dockerfile=dockerfile or "")
        with pytest.raises(DatasetError) as caught:
            read_tasks(tmp_path)
        assert f"mine: {reason}" in str(caught.value)

    def test_services_are_refused(self, tmp_path):
        write_task(tmp_path / "mine", **{"environment__docker-compose.yaml": "services: {}"})
        with pytest.raises(DatasetError, match="mine: it needs services"):
            read_tasks(tmp_path)

    def test_earlier_turns_are_refused_and_the_user_is_root(self, tmp_path):
        path = write_task(tmp_path / "mine", config='[agent]\nuser = "root"\n[verifier]\nuser = 0\n')
        assert read_task(path).id == "mine"
        (path / "trajectory.json").write_text("{}")
        with pytest.raises(DatasetError, match=r"mine: it needs earlier turns of the agent \(trajectory.json\)"):
            read_tasks(path)

    def test_files_below_a_folder_that_is_read_only_are_refused(self, tmp_path):
        for target in ("/usr/local/bin/", "/etc", "/etc/x.conf", "/bin"):
            path = write_task(tmp_path / "mine", dockerfile=f"FROM debian\nCOPY one.txt {target}\n",
                              **{"environment__one.txt": "one"})  # fmt: skip
            with pytest.raises(DatasetError, match=r"mine: its Dockerfile copies 'one.txt' to /.*, which is read-only"):
                read_tasks(path)

    def test_a_folder_of_which_files_may_be_excluded_is_refused(self, tmp_path):
        files = {"environment__.dockerignore": "*.key", "environment__data__one.key": "1", "environment__two.txt": "2"}
        copies = write_task(tmp_path / "copies", dockerfile="FROM debian\nCOPY two.txt /app/\n", **files)
        assert read_task(copies).copies == (("two.txt", "/app/two.txt"),)
        for source in ("data", "."):
            path = write_task(tmp_path / "mine", dockerfile=f"FROM debian\nCOPY {source} /app\n", **files)
            with pytest.raises(DatasetError, match=r"mine: it copies the folder '.*', and .dockerignore may exclude"):
                read_tasks(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"task.toml": "name = "}, "is not valid TOML"),
            ({"task.toml": 'schema_version = "2.0"'}, "versions 1.x can be read"),
            ({"task.toml": "verifier = 3"}, r"\[verifier\] of task.toml must be a table"),
            ({"task.toml": '[verifier]\ntimeout_sec = "long"'}, "timeout_sec must be seconds"),
            ({"task.toml": "[verifier.env]\nA = 1"}, "verifier.env must be a table of texts"),
            ({"instruction.md": None}, "has no instruction.md"),
            ({"tests/test.sh": None}, "has no tests/test.sh"),
            ({"environment/Dockerfile": "FROM debian\nCOPY ../x ."}, "which is not in its folder"),
            ({"environment/Dockerfile": "FROM debian\nCOPY none ."}, "which is not in its folder"),
        ],
    )
    def test_a_malformed_folder_is_named(self, tmp_path, change, message):
        path = write_task(tmp_path / "mine")
        for name, text in change.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).unlink(missing_ok=True)
            if text is not None:
                (path / name).write_text(text)
        with pytest.raises(DatasetError, match=message):
            read_task(path)

    def test_a_folder_without_tasks_is_named(self, tmp_path):
        with pytest.raises(DatasetError, match="holds no task folder"):
            read_tasks(tmp_path)
        with pytest.raises(DatasetError, match="is not a folder"):
            make(tmp_path / "none")
        with pytest.raises(ConfigurationError, match="sets 'split' itself"):
            gymnasium.make(ID, split="test")

    def test_names_canaries_and_metadata_are_read(self, tmp_path):
        path = write_task(
            tmp_path / "mine",
            config='version = "1.0"\n[task]\nname = "org/short"\n[metadata]\ndifficulty = "hard"\nauthor = "x"\n',
        )
        (path / "instruction.md").write_text("\ufeff<!-- x CANARY guid -->\n# canary 2\n\nDo it.\n# canary stays\n")
        task = read_task(path)
        assert (task.id, task.prompt) == ("org/short", "Do it.\n# canary stays")
        assert json.dumps(dict(task.metadata)) == '{"difficulty": "hard"}'
        assert Path(task.folder) == path
