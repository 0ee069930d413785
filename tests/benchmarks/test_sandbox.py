"""The benchmark of the sandbox runs and says what it must; its speed is not judged here."""

import json

import pytest

from benchmarks.speed import sandbox as run
from benchmarks.speed import sandbox_peers as peers
from benchmarks.speed.sandbox import TARGETS
from tests.kit.sandboxes import needs


@pytest.mark.parametrize("claim", run.CLAIMS)
@pytest.mark.slow
def test_every_claim_measures_and_keeps_a_row(claim, tmp_path, monkeypatch):
    needs("strong")
    monkeypatch.setattr(run, "PEERS", {"gem": peers.gem})
    path = tmp_path / "rows.jsonl"
    words = ["--quick", "--claim", claim, "--out", str(path), "--peer", "gem=/no/such/python"]
    run.main(words)
    row = json.loads(path.read_text(encoding="utf-8"))
    assert row["claim"] == claim
    assert row["figures"] and all(figure["median"] > 0 for figure in row["figures"])
    assert row["checks"][0]["target"].endswith(f"{TARGETS[f'{claim}_per_s']:g}")
    assert "/no/such" not in row["command"]
    if claim == "fresh":
        assert "gem" in row["absent"]


@pytest.mark.parametrize("words", [["--peer", "gem"], ["--peer", "nobody=python"]])
def test_a_peer_that_is_unknown_is_refused(words):
    with pytest.raises(SystemExit):
        run.main(words)
