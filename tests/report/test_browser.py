"""The viewer in a real browser: lists, filters, keys, tokens, narrow and dark; skipped where there is no Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_r1_gym.report.episodes import episode_item, token_item
from agent_r1_gym.report.page import paragraph, table, write_page
from agent_r1_gym.report.viewer import viewer
from tests.kit.browser import CHROMIUM, Browser, browser
from tests.kit.synthetic import episodes, token_row

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: the viewer is not tried in a browser"),
]
EVIL = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>"
NUMBER = 3_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = episodes(NUMBER, corpus=100)
    rows[0]["messages"][3]["content"] = EVIL
    rows[0]["question"] = EVIL
    rows[1234]["messages"][2]["content"] += " a needle in the trace"
    path = tmp_path_factory.mktemp("page") / "page.html"
    items = [*(episode_item(row, run="oracle") for row in rows), token_item(token_row(), run="grpo")]
    parts = [paragraph(EVIL), table("t", ("",) * 20, [["x" * 9] * 20]), *viewer(items)]
    write_page(path, "Report", parts)
    return path


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as found:
        yield found


def shown(tab: Browser) -> str:
    return str(tab.run("document.querySelector('#trace h3').textContent"))


def test_the_list_is_drawn_lazily_and_nothing_foreign_runs(tab: Browser, page: Path) -> None:
    tab.open(page)
    assert tab.run("document.title") == "Report"
    assert EVIL in shown(tab)
    assert EVIL in tab.run("document.getElementById('trace').innerText")
    assert tab.run("document.querySelectorAll('[role=option]').length") < 60
    assert tab.run("document.querySelector('[role=option]').getAttribute('aria-setsize')") == str(NUMBER + 1)
    assert tab.run("document.querySelectorAll('img').length") == 0
    assert not tab.errors and not [url for url in tab.requests if not url.startswith(("file:", "about:"))]


def test_keys_move_through_the_episodes(tab: Browser, page: Path) -> None:
    tab.open(page)
    for key in "jjk":
        tab.press(key)
    tab.wait_for("document.querySelector('#trace h3').textContent.includes('Question 1:')")
    tab.run("document.getElementById('list').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        tab.press(key)
    tab.wait_for("document.querySelector('#trace h3').textContent.includes('Question 2:')")
    tab.press("End")
    tab.wait_for("document.querySelector('[aria-selected=true]')?.textContent.includes('where ?')")
    active = "document.getElementById('list').getAttribute('aria-activedescendant')"
    assert tab.run(f"document.getElementById({active}).getAttribute('aria-selected')") == "true"
    tab.press("/")
    assert tab.run("document.activeElement.id") == "search"


def test_search_reads_the_traces_and_filters_narrow_it(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#q=needle+in+the")
    tab.wait_for(f"document.getElementById('count').textContent === '1 of {NUMBER + 1}'")
    tab.wait_for("document.querySelector('#trace h3')?.textContent.includes('Question 1234')")
    tab.wait_for("document.querySelector('#trace mark.hit')?.textContent === 'needle in the'")
    tab.open(page, anchor="#trouble=failed+call")
    wanted = sum("bad_arguments" in row["scores"]["failures"] for row in episodes(NUMBER, corpus=100))
    assert tab.run("document.getElementById('count').textContent") == f"{wanted} of {NUMBER + 1}"
    assert "call 1: bad_arguments" in tab.run("document.querySelector('#trace .fault').textContent")


def test_tokens_are_shaded_and_told(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#run=grpo")
    classes = tab.run("[...document.querySelectorAll('#trace .t')].map(node => node.className)")
    assert classes == ["t on up", "t on up", "t", "t", "t on down", "t on down"]
    tab.press("n")
    tab.press("n")
    told = "document.getElementById('token').textContent"
    assert tab.run(told) == '" Oslo" · trained on · log-prob -1.250 · advantage 0.500'
    tab.press("n")
    assert "not trained on" in tab.run(told)


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_windows_do_not_scroll_sideways_and_follow_the_scheme(tab: Browser, page: Path, dark: bool) -> None:
    tab.open(page, width=400, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") <= 400
    red = int(tab.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"))
    assert red < 60 if dark else red > 200
