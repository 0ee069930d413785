"""Backends that die during a run: retries, exclusion, resume, and warnings."""

import pytest

from agent_r1_gym.cli.eval import metrics_table, mixture_table
from agent_r1_gym.cli.main import main
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.evaluation import evaluate as runner
from agent_r1_gym.run.evaluation.evaluate import Runner
from agent_r1_gym.run.evaluation.metrics import weighted_means
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import OraclePolicy
from benchmarks.speed.chat_server import Answer, scripted_turn, served
from tests.kit.helpers import TASKS, GivenTool, answer, call
from tests.run.evaluation.test_run_folder import COMMAND, job, run


class Flaky:
    """A cast that loses the backend of task 1 for its first tries."""

    def __init__(self, failing):
        self.failing, self.played = failing, []

    def __call__(self, rank):
        return Runner(Player(self.make_env), self)

    def make_env(self):
        return ToolEnv(tasks=TASKS, tools=[Sometimes(self)])

    def run(self, sessions):
        policy = OraclePolicy()
        policy.act = lambda inputs: [call("given") if s.turn == 0 else answer(s.task.answers[0]) for s in inputs]
        self.played.append([])

        def noted():
            for session in sessions:
                self.played[-1].append(session.job.key)
                self.lost = session.job.task_index == 1 and self.failing > 0
                self.failing -= self.lost
                yield session

        ScriptedEngine(policy, max_concurrent=1).run(noted())

    def close(self):
        pass


class Sometimes(GivenTool):
    def __init__(self, flaky):
        super().__init__("fine")
        self.flaky = flaky

    def execute(self, arguments):
        if self.flaky.lost:
            raise InfrastructureError("no luck")
        return "fine"


class TestInfrastructure:
    def test_a_lost_episode_is_tried_again(self, tmp_path):
        flaky = Flaky(1)
        metrics = run(RunFolder(tmp_path), flaky, retries=1)
        assert flaky.played == [[(0, 0), (1, 0), (2, 0)], [(1, 0)]]
        assert metrics["overall"]["episodes"] == 3 and metrics["excluded"]["episodes"] == 0
        assert not RunFolder(tmp_path).failures()

    def test_what_stays_lost_is_reported_apart_and_resumed(self, tmp_path):
        folder = RunFolder(tmp_path)
        metrics = run(folder, Flaky(9), retries=2)
        assert metrics["overall"]["metrics"]["em"]["mean"] == 1.0
        assert metrics["overall"]["episodes"] == 2
        assert metrics["excluded"] == {"episodes": 1, "by_error": {"given: unavailable": 1}}
        assert metrics["em_counting_excluded_as_wrong"] == pytest.approx(2 / 3)
        assert [(failure.task_index, failure.attempts) for failure in folder.failures()] == [(1, 3)]
        again = Flaky(0)
        metrics = run(folder, again)
        assert again.played == [[(1, 0)]]
        assert metrics["overall"]["episodes"] == 3 and not folder.infra_failures_path.exists()

    def test_metrics_stay_until_a_lost_episode_finishes(self, tmp_path):
        """A run that is stopped then is not complete, and none of its numbers are those of other episodes."""

        class Stopped(Flaky):
            def run(self, sessions):
                super().run(sessions)
                raise KeyboardInterrupt

        folder = RunFolder(tmp_path)
        before = run(folder, Flaky(9), retries=0)
        with pytest.raises(KeyboardInterrupt):
            run(folder, Stopped(9), retries=0)  # lost again
        assert folder.metrics() == before
        with pytest.raises(KeyboardInterrupt):
            run(folder, Stopped(0))
        assert len(folder.episodes()) == 3
        assert not folder.complete
        assert run(folder, Flaky(0)) == folder.metrics()

    def test_a_dead_backend_stops_the_run_and_keeps_what_is_done(self, tmp_path, monkeypatch):
        monkeypatch.setattr(runner, "_FAILURES_BEFORE_BACKOFF", 2)
        jobs = [job(0), *(job(1, sample) for sample in range(5)), job(2)]
        with pytest.raises(InfrastructureError, match="2 episodes in a row lost their backend, for 0 s"):
            run(RunFolder(tmp_path), Flaky(9), jobs=jobs, retries=0, patience=0.0)
        assert [record.task_index for record in RunFolder(tmp_path).episodes()] == [0]

    def test_a_backend_that_comes_back_costs_pauses_and_no_episode(self, tmp_path, monkeypatch):
        pauses: list[float] = []
        monkeypatch.setattr(runner, "_FAILURES_BEFORE_BACKOFF", 2)
        monkeypatch.setattr(runner.time, "sleep", pauses.append)
        jobs = [*(job(1, sample) for sample in range(5)), job(0)]
        metrics = run(RunFolder(tmp_path), Flaky(4), jobs=jobs, samples=5)
        assert metrics["overall"]["episodes"] == 6 and metrics["excluded"]["episodes"] == 0
        assert pauses == [0.25, 0.5, 1.0]  # before the third, fourth and fifth episode; then it is there again

    @pytest.mark.slow
    def test_the_command_warns(self, tmp_path, capsys, monkeypatch):
        def respond(request, headers):
            return Answer(status=500) if len(request["messages"]) > 4 else scripted_turn(request, headers)

        with served(respond) as url:
            words = [
                "--max-retries",
                "1",
                "--retries",
                "0",
                "--split",
                "train",
                "--base-url",
                url,
                "--out",
                str(tmp_path / "run"),
            ]
            assert main([*COMMAND[:2], "-n", "3", "--policy", "openai:x", *words]) == 1
        err = capsys.readouterr().err
        assert "WARNING: 3 episodes lost their backend and are NOT in the scores (3 x endpoint: unavailable" in err
        assert "Counted as wrong, EM would be 0.000." in err


class TestTables:
    def lost_run(self, tmp_path):
        return run(RunFolder(tmp_path), Flaky(9), retries=0)

    def test_the_headline_counts_lost_episodes_as_wrong(self, tmp_path):
        lines = metrics_table(self.lost_run(tmp_path)).splitlines()
        assert lines[2].split()[:6] == ["all,", "lost", "=", "wrong", "-", "0.667"]
        assert lines[3].split()[:3] == ["finished", "2", "1.000"]
        assert "mistakes  none" in lines and "lost episodes  given: unavailable: 1" in lines

    def test_several_samples_are_shown_both_ways(self, tmp_path):
        jobs = [job(index, sample) for index in range(3) for sample in range(2)]
        text = metrics_table(run(RunFolder(tmp_path), Flaky(9), jobs=jobs, samples=2, retries=0))
        assert [line.split("  ")[0] for line in text.splitlines() if line.startswith("pass_hat_k")] == [
            "pass_hat_k, lost = wrong",
            "pass_hat_k, finished",
        ]

    def test_without_losses_there_is_one_row_and_the_line_says_none(self, tmp_path):
        text = metrics_table(run(RunFolder(tmp_path), Flaky(0)))
        assert "lost episodes  none" in text.splitlines() and "lost = wrong" not in text

    def test_a_mixture_weighs_what_it_shows(self, tmp_path):
        summaries = {"a": self.lost_run(tmp_path / "a"), "b": run(RunFolder(tmp_path / "b"), Flaky(0))}
        mean = weighted_means(summaries, {"a": 1.0, "b": 1.0})
        assert mean["em"] == pytest.approx((2 / 3 + 1) / 2)
        header, _, *rows, last = mixture_table(summaries, mean).splitlines()
        assert header.endswith("em, lost = wrong  lost")
        assert [row.split()[-2:] for row in rows] == [["0.667", "1"], ["1.000", "0"]]
        assert "0.833" in last.split()

    def test_a_run_of_lost_episodes_only_scores_nothing(self, tmp_path):
        metrics = run(RunFolder(tmp_path), Flaky(9), jobs=[job(1)], retries=0)
        assert "0.000" in metrics_table(metrics).splitlines()[2]
