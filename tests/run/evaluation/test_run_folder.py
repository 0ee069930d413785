"""Runs on disk: what is kept, what is resumed, what is refused, and that nothing is lost."""

import json
import random

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, DatasetError
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.evaluation import evaluate as runner
from agent_r1_gym.run.evaluation.evaluate import Runner, evaluate
from agent_r1_gym.run.evaluation.metrics import compare_runs, summarize
from agent_r1_gym.run.evaluation.run_folder import RunFolder, question_hash
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.policies import OraclePolicy
from agent_r1_gym.run.record import Trajectory
from benchmarks.speed.chat_server import scripted_turn, served
from tests.kit.helpers import TASKS
from tests.kit.processes import kill_at_its_first_line

SETTINGS = {"question_hash": "h", "seed": 0}
WHOLE = {"env_id": "", "policy": "oracle", "dataset": "", "samples": 1, "questions": 3, **SETTINGS}
JOBS = evaluation_jobs(range(3))
TWICE = evaluation_jobs(range(3), samples=5)
COMMAND = ["eval", "FictionQA", "-n", "60", "--policy"]
STOPS_AFTER = """
import sys, threading
from agent_r1_gym.cli.main import main
from agent_r1_gym.run.evaluation.run_folder import RunFolder

def stopping(folder, record):
    global left
    add(folder, record)
    left -= 1
    if not left:
        print("played", flush=True)
        threading.Event().wait()

left, add, RunFolder.add = int(sys.argv[1]), RunFolder.add, stopping
sys.exit(main(sys.argv[2:]))
"""
"""A command that waits to be killed after so many episodes; 0: that plays all."""


def oracle(rank):
    return Runner(Player(lambda: ToolEnv(tasks=TASKS)), ScriptedEngine(OraclePolicy(), max_concurrent=2))


def run(folder, make_runner=oracle, *, jobs=JOBS, settings=SETTINGS, **options):
    return evaluate(folder, make_runner, settings=settings, jobs=jobs, **options)


def job(index, sample=0):
    return TWICE[5 * index + sample]


class TestFolder:
    def test_episodes_are_sorted_and_complete(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        metrics = run(folder, jobs=[job(2), job(0, 1), job(0), job(1)], samples=2)
        rows = folder.episodes()
        assert [(row.task_index, row.sample) for row in rows] == [(0, 0), (0, 1), (1, 0), (2, 0)]
        assert rows[0].question == "What is the capital of France?"
        assert rows[0].scores["em"] == 1.0 and rows[0].support_recall is None
        assert metrics == folder.metrics()
        assert metrics["overall"]["episodes"] == 4 and metrics["overall"]["questions"] == 3
        assert metrics["pass_at_k"]["2"]["mean"] == 1.0
        assert set(folder.seconds()) == {(2, 0), (0, 1), (0, 0), (1, 0)}

    def test_where_a_run_comes_from_does_not_decide_whether_it_is_resumed(self, tmp_path):
        folder = RunFolder(tmp_path / "run")
        run(folder, jobs=[job(0)], start_metadata={"reward_weights": {"em": 1.0}})
        run(folder, jobs=[job(0), job(1)], start_metadata={"reward_weights": {"em": 2.0}})
        first, second = folder.load()["invocations"]
        assert first["reward_weights"] == {"em": 1.0} and second["reward_weights"] == {"em": 2.0}
        for name in ("date", "command", "commit", "versions", "python", "host", "seconds"):
            assert name in first and name in second
        assert folder.load()["settings"] == SETTINGS

    @pytest.mark.parametrize("cut", [1, 7, 200])
    def test_a_torn_line_is_played_again(self, tmp_path, cut):
        whole, torn = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "torn")
        run(whole)
        run(torn)
        content = torn.episodes_path.read_bytes()
        torn.episodes_path.write_bytes(content[:-cut])
        assert len(torn.episodes()) == 2
        run(torn)
        assert torn.episodes_path.read_bytes() == whole.episodes_path.read_bytes() == content

    def test_a_broken_line_in_the_middle_is_named(self, tmp_path):
        folder = RunFolder(tmp_path)
        run(folder)
        folder.episodes_path.write_bytes(b"{\n" + folder.episodes_path.read_bytes())
        with pytest.raises(DatasetError, match=r"episodes.jsonl, line 1"):
            run(folder)

    def test_other_settings_are_refused_by_name(self, tmp_path):
        folder = RunFolder(tmp_path)
        run(folder)
        before = folder.episodes_path.read_bytes()
        with pytest.raises(ConfigurationError, match=r"question_hash: 'h' != 'other'"):
            run(folder, settings={**SETTINGS, "question_hash": "other"})
        assert folder.episodes_path.read_bytes() == before

    def test_of_other_settings_only_the_fields_that_differ_are_named(self, tmp_path):
        model = {"model": "/a/long/path/to/a/checkpoint" * 5, "temperature": 0.0, "max_turn_tokens": 512}
        dataset = "d" * 100
        run(RunFolder(tmp_path), settings={**SETTINGS, "model": model, "dataset": f"{dataset} train", "options": {}})
        changed = {"model": {**model, "max_turn_tokens": 64}, "dataset": f"{dataset} test", "options": {"top_k": 3}}
        with pytest.raises(ConfigurationError) as refusal:
            run(RunFolder(tmp_path), settings={**SETTINGS, **changed})
        named = str(refusal.value).split("settings (")[1].split("). Resume")[0].split("; ")
        assert named[0] == "model.max_turn_tokens: 512 != 64"
        assert named[1].endswith("dd train' != …" + "d" * 38 + " test'")
        assert named[2:] == ["options.top_k: (not set) != 3"]

    def test_a_folder_with_something_else_is_refused(self, tmp_path):
        (tmp_path / "precious.txt").write_text("x")
        with pytest.raises(ConfigurationError, match="neither empty nor a run"):
            run(RunFolder(tmp_path))

    def test_another_writer_is_refused(self, tmp_path):
        folder = RunFolder(tmp_path)
        with runner._exclusive_lock(folder), pytest.raises(AgentR1Error, match="Another process"):
            run(RunFolder(tmp_path))

    def test_an_unfinished_or_foreign_folder_cannot_be_read(self, tmp_path):
        with pytest.raises(DatasetError, match=r"no run.json"):
            RunFolder(tmp_path).load()
        with pytest.raises(DatasetError, match="not complete"):
            RunFolder(tmp_path).metrics()
        (tmp_path / "run.json").write_text('{"format": 99}')
        with pytest.raises(DatasetError, match="format 3"):
            RunFolder(tmp_path).load()

    def test_the_hash_knows_ids_questions_golds_and_order(self):
        tasks = [Task("a", "q", ("x", "y")), Task("b", "r", ("z",))]
        others = [
            tasks[::-1],
            tasks[:1],
            [Task("a", "q", ("x",)), tasks[1]],
            [Task("a", "Q", ("x", "y")), tasks[1]],
            [Task("c", "q", ("x", "y")), tasks[1]],
        ]
        assert len({question_hash(them) for them in [tasks, *others]}) == 6
        assert question_hash(tasks) == question_hash(list(tasks))

    def test_runs_on_other_questions_are_not_compared(self, tmp_path):
        ours, theirs = RunFolder(tmp_path / "a"), RunFolder(tmp_path / "b")
        run(ours, settings=WHOLE)
        run(theirs, settings={**WHOLE, "question_hash": "other"})
        with pytest.raises(ConfigurationError, match="different questions"):
            compare_runs(ours, theirs)
        same = compare_runs(ours, ours)
        assert same["questions"] == 3
        low, high = same["em"].pop("low"), same["em"].pop("high")
        assert same["em"] == {"difference": 0.0, "p_value": 1.0, "mcnemar_p_value": 1.0}
        assert -low == high > 0.5  # three questions are few


class TestCommand:
    @pytest.mark.slow
    def test_one_and_two_processes_and_any_number_in_flight_write_the_same_file(self, tmp_path):
        def written(name, *words):
            assert main([*COMMAND, "oracle", "--out", str(tmp_path / name), *words]) == 0
            folder = RunFolder(tmp_path / name)
            metrics = folder.metrics()
            metrics["overall"]["metrics"].pop("seconds")
            return folder.episodes_path.read_bytes(), metrics["overall"]

        one = written("one")
        assert one == written("again", "--max-concurrent", "3") == written("two", "--processes", "2")
        assert one[1]["metrics"]["em"]["mean"] == 1.0

    @pytest.mark.slow
    def test_an_endpoint_gives_the_same_file_in_any_order(self, tmp_path):
        files = []
        with served(scripted_turn) as url:
            for max_concurrent in ("1", "16"):
                out = tmp_path / max_concurrent
                words = ["openai:x", "--base-url", url, "--max-concurrent", max_concurrent, "--out", str(out)]
                assert main([*COMMAND, *words]) == 0
                files.append((out / "episodes.jsonl").read_bytes())
        assert files[0] == files[1]

    @pytest.mark.slow
    def test_killed_five_times_and_resumed_it_writes_the_file_of_an_undisturbed_run(self, tmp_path):
        words = [*COMMAND, "naive", "--max-concurrent", "2"]
        assert main([*words, "--out", str(tmp_path / "whole")]) == 0
        episodes, rng = tmp_path / "killed/episodes.jsonl", random.Random(0)
        played = 0
        for _ in range(5):
            more = rng.randrange(1, 9)
            played += more
            assert kill_at_its_first_line(STOPS_AFTER, more, *words, "--out", tmp_path / "killed") == "played\n"
            assert episodes.read_bytes().count(b"\n") == played
        assert main([*words, "--out", str(tmp_path / "killed")]) == 0
        assert episodes.read_bytes() == (tmp_path / "whole/episodes.jsonl").read_bytes()
        assert len(RunFolder(tmp_path / "killed").load()["invocations"]) == 6

    @pytest.mark.slow
    def test_a_run_that_is_complete_plays_nothing(self, tmp_path, capsys, monkeypatch):
        words = [*COMMAND, "oracle", "--out", str(tmp_path / "run")]
        assert main(words) == 0
        monkeypatch.setattr(OraclePolicy, "act", lambda self, inputs: pytest.fail("an episode was played again"))
        assert main(words) == 0

    def test_numbers_by_type_and_hops(self, tmp_path, capsys):
        assert main([*COMMAND, "naive", "--out", str(tmp_path / "run")]) == 0
        out = capsys.readouterr().out
        metrics = RunFolder(tmp_path / "run").metrics()
        assert sum(group["questions"] for group in metrics["by"]["type"].values()) == 60
        assert sum(group["questions"] for group in metrics["by"]["hops"].values()) == 60
        assert 0 < metrics["overall"]["metrics"]["support_recall"]["mean"] < 1
        assert all(
            name in out for name in ("type bridge", "hops 4", "em", "support_recall", "calls", "always answering")
        )

    def test_a_majority_of_one_equals_pass_at_1(self, tmp_path):
        """The third sample alone is right: what looks at the first ones only would see nothing."""
        rows = [
            Trajectory(sample=number, answer=answer, scores={"em": float(answer == "yes")})
            for number, answer in enumerate(["no", None, "yes"])
        ]
        summary = summarize(rows, [], samples=3)
        assert summary["majority_at_k"]["1"]["mean"] == pytest.approx(1 / 3)
        assert summary["majority_at_k"]["1"] == pytest.approx(summary["pass_at_k"]["1"])
        assert summary["majority_at_k"]["2"]["mean"] == pytest.approx(1 / 2)  # no-, -yes, and a tie
        assert summary["majority_at_k"]["3"]["mean"] == 0.5

    def test_held_out_questions_are_the_default_and_training_questions_are_noted(self, tmp_path, capsys):
        def played(name, *words):
            out = tmp_path / name
            assert main(["eval", "FictionQA", *words, "-n", "1", "--policy", "oracle", "--out", str(out)]) == 0
            noted = "these are training questions (split 'train')" in capsys.readouterr().err
            return RunFolder(out).load()["settings"]["env_options"].get("split"), noted

        assert played("default") == ("test", False)
        assert played("ood", "--split", "ood") == ("ood", False)
        assert played("train", "--split", "train") == ("train", True)

    def test_a_file_is_served_as_it_is(self, tmp_path, capsys):
        row = {
            "_id": "x1", "question": "Where is Oslo?", "answer": "Norway", "type": "bridge", "level": "easy",
            "supporting_facts": [["Oslo", 0]], "context": [["Oslo", ["Oslo is in Norway."]]],
        }  # fmt: skip
        (tmp_path / "hotpot_train_v1.1.json").write_text(json.dumps([row]))
        words = ["--dataset", str(tmp_path / "hotpot_train_v1.1.json"), "--out", str(tmp_path / "run")]
        assert main(["eval", "HotpotQA", "--policy", "oracle", *words]) == 0
        assert "split" not in RunFolder(tmp_path / "run").load()["settings"]["env_options"]

    def test_equal_samples_of_a_greedy_model_are_warned_of(self, tmp_path, capsys):
        def warned(*words):
            with served(scripted_turn) as url:
                options = [
                    "-n",
                    "1",
                    "--policy",
                    "openai:x",
                    "--base-url",
                    url,
                    "--out",
                    str(tmp_path / str(len(words))),
                ]
                assert main(["eval", "FictionQA", *options, *words]) == 0
            return "temperature 0 gives the same answer every time; pass --temperature 1" in capsys.readouterr().err

        assert warned("--samples", "3")
        assert not warned()
        assert not warned("--samples", "3", "--temperature", "1")
        assert not warned("--samples", "2", "--extra-body", '{"temperature": 0.7}', "--retries", "0")

    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            (["--policy", "orakle"], "oracle"),
            (["--policy", "naive-rag"], "names no model"),
            (["--policy", "openai:x"], "--base-url"),
            (["--policy", "oracle", "--base-url", "http://x/v1"], "no effect"),
            (["--policy", "openai:x", "--base-url", "http://x/v1", "--device", "cpu"], "--device"),
            (["--policy", "openai:x", "--base-url", "nowhere"], "base_url"),
            (
                ["--policy", "openai:x", "--base-url", "http://x/v1", "--extra-body", '{"api_key": "sk"}'],
                "--extra-body with 'api_key': run.json and the report would show it",
            ),
            (["--policy", "oracle", "-n", "0"], "between 1 and"),
            (["--policy", "oracle", "--samples", "0"], "--samples"),
        ],
    )
    def test_wrong_input_ends_with_status_2_and_a_hint(self, words, hint, capsys, run_folder):
        assert main(["eval", "FictionQA", *words]) == 2
        assert hint in capsys.readouterr().err

    def test_going_on_with_another_server_is_warned_of(self, tmp_path, capsys):
        def warning_with(url):
            words = ["-n", "2", "--policy", "openai:x", "--base-url", url, "--out", str(tmp_path / "run")]
            assert main(["eval", "FictionQA", *words]) == 0
            return capsys.readouterr().err

        with served(scripted_turn) as one, served(scripted_turn) as two:
            assert "resumes with the server" not in warning_with(one) + warning_with(one)
            assert f"resumes with the server {two}, after {one}" in warning_with(two)

    def test_a_replay_of_more_tasks_than_there_are_is_refused(self, tmp_path, capsys, run_folder):
        assert main(["eval", "FictionQA", "-n", "5", "--policy", "oracle", "--out", "big"]) == 0
        gymnasium.register("My/Two-v0", lambda: ToolEnv(tasks=TASKS[:2]))
        try:
            assert main(["eval", "My/Two-v0", "--policy", "replay:big", "--out", "x"]) == 2
        finally:
            gymnasium.registry.pop("My/Two-v0", None)
        assert "replay:big holds task number" in capsys.readouterr().err

    def test_the_key_is_written_nowhere(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AGENT_R1_API_KEY", "sk-very-secret")
        with served(scripted_turn) as url:
            assert main([*COMMAND, "openai:x", "--base-url", url, "--out", str(tmp_path / "run")]) == 0
        written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
        assert b"sk-very-secret" not in written
        assert json.loads((tmp_path / "run/run.json").read_text())["settings"]["model"]["temperature"] == 0.0
