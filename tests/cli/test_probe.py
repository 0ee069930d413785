"""`agent-r1 probe`: agents that read pass, agents that do not fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.commands import call

WORLD = ("--option", "style=compact", "--option", "entities=120")


def run_probe(
    capsys: pytest.CaptureFixture[str], out: Path, policy: str, *words: str, n: int = 30
) -> tuple[int, dict[str, Any], str]:
    name = policy if policy == "oracle" else f"tests.kit.readers:{policy}"
    status, output, _ = call(capsys, "probe", "--policy", name, *WORLD, "-n", str(n), "--out", str(out), *words)
    return status, json.loads((out / "probe.json").read_text()), output


def em_of(result: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["condition"], row["reference"]): row["em"]["all"]["mean"] for row in result["rows"]}


def broken(result: dict[str, Any]) -> list[int]:
    return [number for number, rule in enumerate(result["rules"]) if not rule["holds"]]


@pytest.mark.slow
def test_who_reads_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result, output = run_probe(capsys, tmp_path / "out", "Reads")
    em = em_of(result)
    assert (status, result["reads"]) == (0, True)
    same = ("normal", "larger_world", "no_question_mark", "several_passages")
    assert [em[name, "world"] for name in same] == [1] * len(same)
    assert em["counterfactual", "passages"] > 0.95  # BM25 may rank another page of the changed world first
    assert em["counterfactual", "old truth"] == 0
    gone = ("nothing_found", "random_passages", "another_world", "reversed_chain")
    assert all(em[name, "world"] <= 0.05 for name in gone)
    assert "READS: its answers follow" in output and "3-hop" in output and "holds" in output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "READS" in page and "<svg" in page and "counterfactual: passages" in page
    normal = next(row for row in result["rows"] if row["condition"] == "normal")
    assert normal["calls"] == pytest.approx(2.0) and normal["em"].keys() == {"all", "1", "2", "3"}
    assert (result["env_options"]["split"], result["hops"], result["questions"]) == ("test", [1, 2, 3], 30)


@pytest.mark.slow
def test_the_oracle_knows_the_answers_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result, output = run_probe(capsys, tmp_path / "out", "oracle")
    assert (status, result["reads"], broken(result)) == (3, False, [1, 2, 3])
    em = em_of(result)
    assert all(score == 1 for (_, truth), score in em.items() if truth != "passages")
    assert em["counterfactual", "passages"] < 0.1
    assert "DOES NOT READ" in output


@pytest.mark.parametrize(
    ("policy", "rules"),
    [("ByHeart", [1, 2, 3]), ("ReadsAndRemembers", [1]), ("NeverSearches", [0]), ("Guesses", [0, 2])],
)
@pytest.mark.slow
def test_who_only_seems_to_read_fails(
    policy: str, rules: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the world whose answers they know, where that helps them."""
    status, result, _ = run_probe(capsys, tmp_path / "out", policy, "--split", "train")
    assert (status, result["reads"], broken(result)) == (3, False, rules)


@pytest.mark.slow
def test_knowledge_of_another_world_is_worth_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result, _ = run_probe(capsys, tmp_path / "out", "ByHeart")
    assert status == 3 and broken(result)[0] == 0 and em_of(result)["normal", "world"] == 0


@pytest.mark.slow
def test_an_interrupted_probe_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    _, whole, _ = run_probe(capsys, out, "Reads", "--hops", "1", "2", n=4)
    episodes = out / "counterfactual" / "episodes.jsonl"
    kept = episodes.read_text()
    episodes.write_text("".join(kept.splitlines(keepends=True)[:3]) + '{"torn')
    for path in (out / "probe.json", out / "counterfactual" / "metrics.json"):
        path.unlink()
    _, again, _ = run_probe(capsys, out, "Reads", "--hops", "1", "2", n=4)
    assert again == whole and episodes.read_text() == kept
    assert RunFolder(out / "normal").settings()["questions"] == 8
    status, _, output = call(
        capsys, "probe", "--policy", "tests.kit.readers:Reads", *WORLD, "-n", "5", "--hops", "1", "--out", str(out)
    )
    assert status == 2 and "other settings" in output


@pytest.mark.slow
def test_natural_questions_are_rephrased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert call(capsys, "probe", "--policy", "oracle", "-n", "4", "--out", str(out))[0] == 3
    normal, other = (RunFolder(out / name).episodes() for name in ("normal", "other_words"))
    assert all(
        a.question != b.question and a.gold_answers == b.gold_answers for a, b in zip(normal, other, strict=True)
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "Name the agent"),
        (["some/model", "--policy", "oracle"], "one of the two"),
        (["--policy", "oracle", "--env", "FrozenLakeText"], "changes the generated worlds of FictionQA"),
        (["--policy", "oracle", "--env", "Text2SQL"], "changes the generated worlds of FictionQA"),
        (["--policy", "oracle", "-n", "0"], "at least 1"),
        (
            ["--policy", "oracle", "-n", "900000"],
            "-n 900000 questions of each of 1hop, bridge, 3hop: questions=2700000",
        ),
        (["--policy", "oracle", "--setting", "distractor"], "searched whole"),
        (["--policy", "oracle", "--option", "perturbation=counterfactual"], "drop it"),
        (["--policy", "oracle", "--retriever", "http://127.0.0.1:9"], "searches its own passages"),
        (["EMPTY"], "holds no model"),
    ],
)
def test_what_cannot_be_probed_is_refused(
    words: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = [str(tmp_path / "empty") if word == "EMPTY" else word for word in words]
    status, _, output = call(capsys, "probe", *words, "--out", str(tmp_path / "out"))
    assert status == 2 and problem in output
    assert not (tmp_path / "out").exists()
