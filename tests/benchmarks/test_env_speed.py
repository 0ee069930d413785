"""The benchmarks run and say what they must; their speed is not judged here."""

import argparse
import dataclasses
import json
import threading

import gymnasium
import pytest

from agent_r1_gym.errors import ConfigurationError
from benchmarks.common import measure
from benchmarks.common.measure import Check, Figure, Report
from benchmarks.speed import env_peers as peers
from benchmarks.speed import env_speed
from benchmarks.speed import env_systems as systems
from benchmarks.speed.env_speed import FULL, QUICK, TARGETS

pytest.importorskip("uvicorn", reason="the benchmark of the server needs the server extra")

TINY = dataclasses.replace(QUICK, rounds=1, questions=20, episodes=2, envs=3, corpus=100, latency=0.001, memory_envs=5)
FIELDS = {"claim", "met", "checks", "figures", "absent", "settings", "command", "commit", "versions", "machine", "date"}


@pytest.fixture
def no_peers(monkeypatch):
    absent = dict.fromkeys((peers.GEM, peers.SKYRL), "not measured: not installed")
    monkeypatch.setattr(peers, "installed", lambda: ([], absent))
    monkeypatch.setattr(env_speed, "install_and_play", lambda: 1.0)  # pip may need the network
    return absent


@pytest.mark.parametrize("claim", env_speed.CLAIMS)
@pytest.mark.slow
def test_every_claim_measures_prints_and_keeps_a_row(claim, no_peers, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(env_speed, "QUICK", TINY)
    path = tmp_path / "rows.jsonl"
    env_speed.main(["--quick", "--claim", claim, "--out", str(path)])
    row = json.loads(path.read_text(encoding="utf-8"))
    assert set(row) == FIELDS
    assert row["claim"] == claim
    assert row["command"] == f"python -m benchmarks.speed.env_speed --quick --claim {claim} --out {path}"
    assert row["figures"]
    assert row["checks"]
    assert row["settings"]["envs"] == 3
    for figure in row["figures"]:
        assert set(figure) == {"name", "unit", "median", "min", "max", "rounds"}
        assert figure["min"] <= figure["median"] <= figure["max"]
    assert {"python", "gymnasium", "agent-r1-gym"} <= set(row["versions"])
    assert {"cpu", "cpus"} <= set(row["machine"])
    table = capsys.readouterr().out
    assert claim in table
    if claim in ("stub", "server"):  # an absent peer is not beaten
        assert row["absent"] == no_peers
        assert row["checks"][0]["met"] is None
        assert row["met"] is not True
        assert "not measured" in table


def test_an_unknown_claim_is_refused():
    with pytest.raises(SystemExit):
        env_speed.main(["--claim", "nothing"])


def test_one_peer_out_of_two_is_not_enough(no_peers):
    ours = systems.System(systems.OURS, 1, 1, rewards=float)
    speeds = {name: Figure(name, "steps/s", (value,)) for name, value in ((systems.OURS, 2.0), ("other", 1.0))}
    _, check = env_speed._against_peers(ours, speeds, {"third": "not measured"}, limit=1.0)
    assert check.met is None
    figures, check = env_speed._against_peers(ours, speeds, {}, limit=1.0)
    assert check.met is True
    assert figures[-1].median == 2.0


def test_settings_and_targets_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.rounds = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        TARGETS["import_s"] = 9.0  # type: ignore[index]
    with pytest.raises(TypeError):
        env_speed.CLAIMS["stub"] = None  # type: ignore[index]
    assert FULL.rounds >= 5
    assert FULL.install_rounds >= 5
    assert (FULL.envs, FULL.searches, FULL.memory_envs, FULL.latency) == (64, 3, 1000, 0.05)
    assert hash(QUICK) != hash(FULL)


@pytest.mark.slow
def test_rounds_are_interleaved_after_a_warm_up():
    calls = []
    measures = {name: lambda name=name: calls.append(name) or float(len(calls)) for name in "ab"}
    figures = measure.interleave(measures, rounds=2, unit="s")
    assert calls == ["a", "b"] * 3
    assert figures["a"].values == (3.0, 5.0)
    assert measure.ratio("a / b", figures["a"], figures["b"]).values == (3 / 4, 5 / 6)


def test_a_check_compares_in_its_own_sense():
    assert Check("speed", 1.0, 1.0).met is True
    assert Check("speed", 1.0, 0.99).met is False
    assert Check("seconds", 1.0, 0.99, at_most=True).met is True
    assert Check("seconds", 1.0, 1.01, at_most=True).met is False
    assert Check("seconds", 1.0, None, at_most=True).met is None


@pytest.mark.parametrize(
    ("values", "met"), [((2.0, 2.0), True), ((2.0, 0.5), False), ((2.0, None), None), ((0.5, None), False)]
)
def test_a_claim_is_met_if_all_its_targets_are(values, met):
    report = Report("x", (), tuple(Check("c", 1.0, value) for value in values), {})
    assert measure.to_row(report, settings={}, command=[])["met"] is met


@pytest.fixture
def heads(monkeypatch):
    """Stands for git: its first item is the commit of the working tree, the second whether files differ from it."""
    head = ["5eed", ""]
    monkeypatch.setattr(measure, "_git", lambda *words: head[words[0] == "status"])
    measure.commit.cache_clear()
    yield head
    measure.commit.cache_clear()


def options(out):
    parser = argparse.ArgumentParser()
    measure.add_claim_options(parser, ["x"])
    return parser.parse_args(["--out", str(out)])


def test_a_row_names_the_commit_at_the_start(heads, tmp_path, capsys):
    """Files that change, or are committed, while it measures did not make its numbers."""

    def claim():
        heads[:] = ["1a7e", " M README.md"]
        return Report("x", (), (), {})

    path = tmp_path / "rows.jsonl"
    measure.run_claims(options(path), {"x": claim, "y": claim}, name="x", settings=TINY, words=[])
    assert [json.loads(line)["commit"] for line in path.read_text().splitlines()] == ["5eed", "5eed"]
    assert capsys.readouterr().err == ""


def test_a_committed_file_is_refused_while_files_differ_and_another_one_is_warned_of(heads, tmp_path, capsys):
    heads[1] = " M README.md"
    measured = []

    def claim():
        measured.append(1)
        return Report("x", (), (), {})

    for out in (measure.results_of("made_up"), measure.results_of("env_speed")):
        with pytest.raises(ConfigurationError, match="Commit first, or write elsewhere with --out"):
            measure.run_claims(options(out), {"x": claim}, name="x", settings=TINY, words=[])
        with pytest.raises(ConfigurationError, match="Commit first"):
            measure.append_report(claim, options(out), name="x")
    assert not measured  # before minutes are lost
    path = tmp_path / "rows.jsonl"
    measure.append_report(claim, options(path), name="x")
    assert json.loads(path.read_text())["commit"] == "5eed+changes"
    assert "They will say '5eed+changes': commit first" in capsys.readouterr().err


def test_rows_are_appended_whole(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    rows = [{"number": number, "text": "é" * 5000} for number in range(8)]
    threads = [threading.Thread(target=measure.append_row, args=(path, row)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert sorted(row["number"] for row in found) == list(range(8))


def test_a_wrong_episode_has_no_speed():
    workload = systems.make_workload(questions=3, passages=2)
    env = gymnasium.make(
        "AgentR1/HotpotQA-v0", dataset=workload.dataset(), retriever=systems.StubRetriever(workload.passages)
    )
    wrong = systems.one_env("wrong", env, [systems.tag_search("a"), "<answer>wrong</answer>"])
    with pytest.raises(systems.WrongEpisodeError, match="expected 2"):
        wrong.play(2)


def test_no_two_queries_are_alike_and_formats_agree():
    passages = systems.make_workload(questions=3, passages=3).passages
    batches = systems.distinct_queries(passages, steps=3, width=5)
    queries = [query for batch in batches for query in batch]
    assert [len(batch) for batch in batches] == [5, 5, 5]
    assert systems.tag_search("x y").endswith("<search>x y</search>")
    assert len(set(queries)) == 15
