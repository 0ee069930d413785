"""`agent-r1 report` and `agent-r1 compare`, from folders to pages."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.report.compare import compare
from agent_r1_gym.report.evaluation import read_evaluation_runs
from agent_r1_gym.report.runs import write_report
from agent_r1_gym.report.training import curve_over_seeds, curve_plots, group_by_settings, read_training_run
from agent_r1_gym.run.evaluation.run_folder import InfraFailure, RunFolder
from agent_r1_gym.run.record import Trajectory
from tests.kit.cpu_time import cpu_below
from tests.kit.reports import chunks, episodes, sides, token_row, write_run

LOST = InfraFailure(99, 0, "task-99", "unavailable: search", 2)


def judged(record: Trajectory, em: float) -> Trajectory:
    return replace(record, answer="oslo" if em else "rome", scores={**record.scores, "em": em, "f1": em})


def write_training(folder: Path, log: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return folder


def report(folder: Path, *runs: Path) -> str:
    write_report(runs, folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


def plain(page: str) -> str:
    return re.sub(r"<[^>]+>", " ", page.partition("<body>")[2])


class TestReport:
    def test_numbers_are_those_of_the_run(self, tmp_path: Path) -> None:
        rows = [judged(row, float(number < 30)) for number, row in enumerate(episodes(40, corpus=10))]
        run = write_run(tmp_path / "run", rows, failures=[LOST])
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
        page = (tmp_path / "page.html").read_text(encoding="utf-8")
        overall = json.loads((run / "metrics.json").read_text())["overall"]["metrics"]["em"]
        assert f"0.750<small>[{overall['low']:.3f}, {overall['high']:.3f}]" in page
        text = plain(page)
        assert "40 of 41 episodes" in text and "1 episodes lost their backend" in text and "NOT COMPLETE" not in text
        for title in ("By type", "By hops", "EM by hops", "calls by hops", "Reward terms"):
            assert title in text
        index = chunks(page)["index"]
        assert len(index["titles"]) == 41 and index["details"][-1] == "unavailable: search"

    def test_an_unfinished_run_is_shown_as_such(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", episodes(5, corpus=10), finished=False, questions=9)
        text = plain(report(tmp_path, run))
        assert "5 of 9 episodes" in text and "NOT COMPLETE" in text

    def test_runs_of_one_policy_get_distinct_names(self, tmp_path: Path) -> None:
        runs = [write_run(tmp_path / name, episodes(3, corpus=10)) for name in ("a", "b")]
        index = chunks(report(tmp_path, *runs))["index"]
        assert index["facets"][0]["options"] == ["oracle (a)", "oracle (b)"]

    def test_folders_of_one_name_are_told_apart_by_their_paths(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name / "eval", episodes(3, corpus=10)) for name in ("a", "b")]
        assert [run.name for run in read_evaluation_runs(paths)] == [f"oracle ({path})" for path in paths]

    def test_lost_episodes_that_have_finished_since_are_not_lost(self, tmp_path: Path) -> None:
        """As a resumed run leaves them that was stopped again."""
        rows = [judged(row, 1.0) for row in episodes(3, corpus=10)]
        lost = [replace(LOST, task_index=index) for index in (2, 3)]
        folder = RunFolder(write_run(tmp_path / "run", rows[:2], failures=lost))
        folder.add(rows[2])
        folder.close()
        (run,) = read_evaluation_runs([folder.path])
        assert [failure.task_index for failure in run.failures] == [3]
        assert run.metrics["em_counting_excluded_as_wrong"] == 3 / 4

    def test_what_is_no_run_is_refused(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
        assert "agent-r1 eval" in capsys.readouterr().err
        assert main(["report", str(tmp_path), "--out", str(tmp_path)]) == 2
        assert "is a folder" in capsys.readouterr().err
        assert not (tmp_path / "page.html").exists()

    @pytest.mark.parametrize("command", ["report", "compare"])
    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("run.json", "{}"),
            ("run.json", "["),
            ("run.json", '{"format": 1, "settings": {}, "invocations": []}'),
            ("run.json", '{"format": 2, "settings": {"samples": "two"}, "invocations": []}'),
            ("metrics.json", "["),
            ("episodes.jsonl", '{"task_index": 0, "sample": 0}\n'),
            ("episodes.jsonl", '{"task_index": 0, "sample": 0, "scores": 7}\n'),
            ("episodes.jsonl", '{"scores": {"em": "one"}}\n'),
            ("episodes.jsonl", '{"labels": []}\n'),
            ("episodes.jsonl", '{"turns": [{"action": "a", "reward": 1, "reward_terms": {"em": "one"}}]}\n'),
            ("timings.jsonl", '{"task_index": 0}\n'),
            ("infra_failures.jsonl", '{"task_index": 9, "sample": 0}\n'),
        ],
    )
    def test_a_damaged_run_is_reported_in_a_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, file: str, text: str
    ) -> None:
        runs = [write_run(tmp_path / name, episodes(3, corpus=10)) for name in "ab"]
        (runs[0] / file).write_text(text)
        status = main([command, *map(str, runs), "--out", str(tmp_path / "page.html")])
        message = capsys.readouterr().err
        assert (status, message) == (0, "") or (status == 2 and re.fullmatch(rf"agent-r1: .*{tmp_path}/a.*\n", message))


class TestTraining:
    def test_seeds_become_a_mean_and_a_band(self) -> None:
        logs = [[{"step": 1, "reward": 0.0}, {"step": 2, "reward": 1.0}, {"step": 3, "reward": 1.0}],
                [{"step": 1, "reward": 1.0}, {"step": 2, "reward": 1.0}]]  # fmt: skip
        curve = curve_over_seeds(logs, "reward")
        assert curve.x == [1, 2]
        assert curve.y == [(0.5, 0.0, 1.0), (1.0, 1.0, 1.0)]
        assert curve.raw == [
            (1, 0.0),
            (2, 1.0),
            (1, 1.0),
            (2, 1.0),
        ]  # step 3 is on no line: one seed has not reached it

    def test_a_line_smooths_a_tenth_of_the_run_on_both_sides(self) -> None:
        """A mean that looks back lags behind; a line through few points is those points."""
        ramp = [{"step": step, "reward": float(step)} for step in range(1, 101)]
        whole = curve_over_seeds([ramp], "reward").y
        assert whole[50] == (51.0, 51.0, 51.0) and whole[-1][0] == 97.5  # the mean of 95 ... 100
        few = curve_over_seeds([ramp[:9]], "reward").y
        assert [mean for mean, _, _ in few] == [row["reward"] for row in ramp[:9]]

    def test_a_long_log_takes_time_linear_in_its_length(self) -> None:
        log = [{"step": step, "reward": 0.5} for step in range(50_000)]
        with cpu_below(1):  # .2 is usual
            curve_over_seeds([log], "reward")

    def test_seeds_are_runs_of_equal_settings_whatever_their_folders_are_called(self, tmp_path: Path) -> None:
        settings = {"learning_rate": 1e-5, "max_steps": 3}
        runs = []
        for name, changes in {
            "g-1": {"seed": 1},
            "g-2": {"seed": 2, "output_dir": "elsewhere"},
            "g-3": {"seed": 3, "learning_rate": 5e-5},
            "other": {"seed": 4, "max_steps": 3},
            "lora8": None,
            "lora16": None,
        }.items():
            run = write_training(tmp_path / name, [{"step": 1, "reward": 0.5}])
            if changes:
                (run / "checkpoint-1").mkdir()
                record = {"complete": True, "settings": settings | {"output_dir": name} | changes}
                (run / "checkpoint-1/checkpoint.json").write_text(json.dumps(record))
            runs.append(read_training_run(run))
        groups = group_by_settings([run for run in runs if run is not None])
        names = {name: [run.path.name for run in group] for name, group in groups.items()}
        assert list(names.values()) == [["g-1", "g-2", "other"], ["g-3"], ["lora8"], ["lora16"]]
        assert list(names) == ["g-1 and 2 more", "g-3", "lora8", "lora16"]

    def test_runs_of_one_name_get_distinct_names(self, tmp_path: Path) -> None:
        runs = [read_training_run(write_training(tmp_path / parent / "grpo", [])) for parent in "ab"]
        assert list(group_by_settings([run for run in runs if run])) == ["grpo", f"grpo ({tmp_path / 'b' / 'grpo'})"]

    @pytest.mark.parametrize(
        ("file", "text"),
        [
            ("trainer_state.json", '{"log_history": [{"reward": 1.0}]}'),
            ("trainer_state.json", '{"log_history": 7}'),
            ("trainer_state.json", '{"log_history": ["reward"]}'),
            ("trainer_state.json", '{"log_history": [{"reward": 1.0, "step": null}]}'),
            ("trainer_state.json", "["),
            ("trainer_state.json", "[]"),
            ("curves.csv", "reward\n0.5\n"),
            ("curves.csv", "step,reward\n1,much\n"),
            ("scores.json", '{"scores": {"agent": 0.5}}'),
            ("scores.json", '{"scores": {"agent": {"test": "much"}}}'),
            ("scores.json", "[]"),
            ("checkpoint-1/checkpoint.json", "[]"),
            ("training.json", "[]"),
            ("training.json", '{"invocations": [7]}'),
        ],
    )
    def test_a_damaged_or_foreign_folder_is_reported_in_a_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
    ) -> None:
        run = tmp_path / "run"
        if file in ("trainer_state.json", "checkpoint-1/checkpoint.json", "training.json"):
            write_training(run, [{"step": 1, "reward": 0.5}])
        else:
            run.mkdir()
            (run / "curves.csv").write_text("step,reward\n1,0.5\n")
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).write_text(text)
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 2
        text = capsys.readouterr().err
        assert re.fullmatch(
            r"agent-r1: .*/run is not a readable training run: .* Expected trainer_state\.json .*\n", text
        )

    def test_values_that_are_not_finite_are_skipped(self, tmp_path: Path) -> None:
        run = read_training_run(write_training(tmp_path / "run", [{"step": 1, "reward": 0.5, "kl": math.nan}]))
        assert run is not None and run.log == [{"step": 1, "reward": 0.5}]

    def test_the_newest_checkpoint_counts(self, tmp_path: Path) -> None:
        for step in (9, 10):
            write_training(tmp_path / f"checkpoint-{step}", [{"step": step, "reward": 0.5}, {"step": step, "x": "y"}])
        run = read_training_run(tmp_path)
        assert run is not None and run.log == [{"step": 10, "reward": 0.5}]

    def test_curves_scores_and_tokens_reach_the_page(self, tmp_path: Path) -> None:
        log = [{"step": step, "reward": step / 4, "rollout/reward/em": 0.5} for step in range(1, 5)]
        run = write_training(tmp_path / "grpo-0", log)
        (run / "traces").mkdir()
        evil = token_row(pieces=["</script>", "b", "c", "d", "e", "f"])
        (run / "traces/batch-000010.jsonl").write_text(json.dumps(evil) + "\n")
        quick = tmp_path / "quick"
        quick.mkdir()
        (quick / "curves.csv").write_text("step,reward,entropy\n1,0.5,\n2,0.75,0.1\n")
        scores = {"algorithm": "rloo", "scores": {"Naive RAG": {"test/bridge": 0.125}}}
        (quick / "scores.json").write_text(json.dumps(scores))
        page = report(tmp_path, run, quick)
        assert "reward term em" in page and "0.125" in page and "quickstart rloo" in page
        block = sides(page)[0][0][2][1]
        assert block[5] == [["</script>", "b"], "11", [-0.1, -1.25], [0.5, 0.5]]
        assert page.count("</script>") == page.count("<script")

    def test_quickstarts_of_equal_settings_are_one_group(self, tmp_path: Path) -> None:
        runs = []
        for name, algorithm, seed, score in (("a", "rloo", 0, 0.5), ("b", "rloo", 1, 0.25), ("c", "ppo", 0, 0.5)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "curves.csv").write_text("step,reward\n1,0.5\n")
            scores = {"algorithm": algorithm, "seed": seed, "scores": {"agent": {"test": score}}, "seconds": score}
            (tmp_path / name / "scores.json").write_text(json.dumps(scores))
            runs.append(read_training_run(tmp_path / name))
        groups = group_by_settings([run for run in runs if run is not None])
        assert [[run.path.name for run in group] for group in groups.values()] == [["a", "b"], ["c"]]

    def test_a_return_that_is_the_exact_match_is_drawn_once(self) -> None:
        log = [{"step": step, "reward": step / 4, "rollout/reward/em": step / 4, "rollout/reward/f1": 0.5}
               for step in range(1, 5)]  # fmt: skip
        log += [{"step": 4, "eval_reward": 0.5, "eval_rollout/reward/em": 0.5}]
        page = "".join(part.text for part in curve_plots({"a": [log]}, {"rollout/reward/em": {"Naive RAG": 0.125}}))
        assert "return (equal to reward term em)" in page and ">reward term em<" not in page
        assert "reward term f1" in page and page.count("<figure>") == 3
        assert "return in evaluation (equal to exact match in evaluation)" in page
        assert page.count("Naive RAG 0.125") == 1
        apart = [{**row, "rollout/reward/em": 0.0} for row in log]
        assert ">reward term em<" in "".join(part.text for part in curve_plots({"a": [apart]}))

    def test_environments_of_a_mixture_have_plots_of_their_own(self) -> None:
        others = {"rollout/reward/return": 1.0, "eval_rollout/return": 1.0, "rollout/turns": 1.0, "rollout/calls": 1.0}
        log = [
            {"step": step, "reward": step, "rollout/shop/return": 2 * step, "eval_shop/return": step, **others}
            for step in range(3)
        ]
        page = "".join(part.text for part in curve_plots({"a": [log]}))
        assert ">return in shop<" in page and ">return in shop, evaluation<" in page and "In each environment" in page
        assert "return in reward" not in page and "return in rollout" not in page

    @pytest.mark.parametrize("line", ["{", "{}", json.dumps(token_row(loss_mask=[1]))])
    def test_torn_traces_are_refused(self, tmp_path: Path, line: str) -> None:
        run = write_training(tmp_path / "grpo", [{"step": 1, "reward": 0.5}])
        (run / "traces").mkdir()
        (run / "traces/batch-000000.jsonl").write_text(line + "\n")
        with pytest.raises(DatasetError, match=r"line 1: expected a (token trace|JSON object)"):
            report(tmp_path, run)


class TestCompare:
    def test_counts_tests_and_differing_questions(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rows = episodes(10, corpus=10)
        ems = [(1, 1)] * 4 + [(1, 0)] * 3 + [(0, 1)] + [(0, 0)] * 2
        ours, theirs = (
            [judged(row, float(pair[side])) for row, pair in zip(rows, ems, strict=True)] for side in (0, 1)
        )
        a, b = write_run(tmp_path / "a", ours, policy="mine"), write_run(tmp_path / "b", theirs, policy="other")
        out = tmp_path / "page.html"
        assert main(["compare", str(a), str(b), "--out", str(out), "--show", "2"]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"\n +4 +3 +1 +2 +0\n", printed)
        assert "compare two checkpoints" in printed
        assert "2 of 4" in printed and "0.200" in printed and "0.62" in printed  # McNemar: 3 against 1, p = 10/16
        page = out.read_text(encoding="utf-8")
        outcome = next(facet for facet in chunks(page)["index"]["facets"] if facet["name"] == "outcome")
        assert outcome["options"][outcome["selected"]] == "differ"
        assert dict(zip(outcome["options"], outcome["counts"], strict=True)) == {
            "differ": 4, "both right": 4, "only A right": 3, "both wrong": 2, "only B right": 1}  # fmt: skip
        assert [side[0].split(".")[0] for side in sides(page)[0]] == ["A: mine", "B: other"]

    def test_only_what_both_have_finished_is_compared(self, tmp_path: Path) -> None:
        rows = episodes(6, corpus=10)
        a, b = write_run(tmp_path / "a", rows, questions=6), write_run(tmp_path / "b", rows[2:], questions=6)
        comparison = compare([a, b])
        assert len(comparison.groups) == 4 == sum(comparison.counts.values()) and not comparison.differing

    def test_partial_credit_is_compared_without_mcnemar(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        rows = [replace(row, scores={"em": 0.5}) for row in episodes(4, corpus=10)]
        runs = [str(write_run(tmp_path / name, rows)) for name in ("a", "b")]
        for command in ("compare", "report"):
            assert main([command, *runs, "--out", str(tmp_path / "page.html")]) == 0, capsys.readouterr().err
        metrics = [row.metric for row in compare(list(map(Path, runs))).differences]
        assert "em" in metrics and "em (McNemar)" not in metrics

    def test_other_questions_are_refused(self, tmp_path: Path) -> None:
        a = write_run(tmp_path / "a", episodes(3, corpus=10))
        b = write_run(tmp_path / "b", episodes(3, corpus=10), question_hash="another")
        with pytest.raises(ConfigurationError, match="have different questions"):
            compare([a, b])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", json.dumps({"log_history": [{"step": 1, "reward": 10**400}, {"step": 2, "reward": 1}]})),
        ("trainer_state.json", json.dumps({"log_history": [{"step": s, "reward": (-1) ** s * 1e308} for s in (1, 2)]})),
        ("trainer_state.json", json.dumps({"log_history": [{"step": 1e308, "reward": 1}]})),
        ("training.json", json.dumps({"invocations": [{"command": 5, "model": {"a": 1}, "environment": [1]}]})),
        ("training.json", json.dumps({"invocations": [{"command": [1, {}], "settings": [1]}], "stop_reason": {}})),
    ],
)
def test_odd_values_of_a_training_run_are_shown_or_left_out(name: str, text: str, tmp_path: Path) -> None:
    history = [{"step": step, "reward": step / 4} for step in range(1, 5)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (tmp_path / name).write_text(text)
    assert write_report([tmp_path], tmp_path / "page.html") > 0
