"""Curves, scores and traces on one page."""

from __future__ import annotations

import re
from pathlib import Path

from agent_r1_gym.play.policies import make_policy
from agent_r1_gym.registry import make_text_env
from tests.kit.playing import play
from tests.kit.reading import Tags, chunks, sides
from trainers.toy.learning_report import CURVES, score_rows, write_curves, write_report

SCORES = {"before <b>": {"test/bridge": 0.25}, "after": {"test/bridge": 0.75}}


def test_page_stands_alone_and_escapes_foreign_text(tmp_path: Path) -> None:
    log = [{"step": step, "reward": step / 4, "rollout/reward/em": step / 4, "entropy": 0.5} for step in range(1, 5)]
    write_curves([*log, {"step": 4, "train_loss": 1.0}], tmp_path)
    episodes = play(make_policy("oracle"), range(2), lambda: make_text_env("FictionQA", {}))
    write_report(tmp_path, title="T", facts=["a < b"], scores=SCORES, traces={"Episodes": episodes})
    page = (tmp_path / "report.html").read_text()
    assert [block[2] for block in sides(page)[0][0][2]] == [message.content for message in episodes[0].messages]
    assert chunks(page)["index"]["facets"][0]["name"] == "episodes"
    assert "before &lt;b&gt;" in page
    assert "a &lt; b" in page
    assert "0.25" in page
    assert "0.75" in page
    assert "entropy per token" in page
    assert Tags(page).running == 1
    assert not re.search(r"(src|href)=.http", page)


def test_curves_keep_every_logged_step(tmp_path: Path) -> None:
    write_curves([{"step": 1, "reward": 0.5}, {"step": 2, "reward": 1.0, "entropy": 0.1}], tmp_path)
    lines = (tmp_path / "curves.csv").read_text().splitlines()
    assert lines == [f"step,{','.join(CURVES)}", "1,0.5,,,", "2,1.0,,,0.1"]


def test_a_row_a_set_and_a_column_an_agent() -> None:
    assert score_rows(SCORES) == [("test/bridge", 0.25, 0.75)]
