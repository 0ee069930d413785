"""The viewer in a real browser: lists, filters, keys, tokens, narrow and dark; skipped where there is no Chromium."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import Message
from agent_r1_gym.report.episodes import episode_item, read_token_traces, token_item
from agent_r1_gym.report.page import Section, paragraph, sections, table, write_page
from agent_r1_gym.report.viewer import viewer
from agent_r1_gym.run.record import Trajectory
from tests.kit.reports import episodes, token_row

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--remote-debugging-pipe",
)
_TIMEOUT = 60.0


class Browser:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.requests: list[str] = []

    def send(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, anchor: str = "") -> None:
        """Loads a page and waits until its viewer has drawn a trace."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url="about:blank")
        self.send("Page.navigate", url=f"{path.as_uri()}{anchor}")
        self.wait_for("document.body && document.body.dataset.ready !== undefined")

    def wait_for(self, condition: str) -> None:
        limit = time.monotonic() + _TIMEOUT
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < limit, f"never came true: {condition}; errors: {self.errors}"

    def run(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        import base64

        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _TIMEOUT)
            data = os.read(self._read, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("text", ""))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """Starts a Chromium with a fresh profile and ends it."""
    assert CHROMIUM is not None
    read_by_it, write = os.pipe()
    read, written_by_it = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        shell = f'exec 3<&{read_by_it} 4>&{written_by_it}; exec "$@"'
        command = ["bash", "-c", shell, "chromium", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command, pass_fds=(read_by_it, written_by_it), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(read_by_it)
        os.close(written_by_it)
        try:
            found = Browser(write, read)
            yield found
            found._session = None
            with suppress(AssertionError, OSError):
                found.send("Browser.close")
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(write)
            os.close(read)


pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: the viewer is not tried in a browser"),
]
EVIL = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script>"
NUMBER = 3_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = episodes(NUMBER, corpus=100)
    rows[0] = replace(rows[0], question=EVIL, messages=with_text(rows[0], 3, EVIL))
    rows[1234] = replace(rows[1234], messages=with_text(rows[1234], 2, " a needle in the trace"))
    folder = tmp_path_factory.mktemp("page")
    (folder / "traces.jsonl").write_text(json.dumps(token_row()) + "\n")
    traces = read_token_traces(folder / "traces.jsonl")
    other = replace(rows[7], policy="other", turns=rows[7].turns[:1])
    items = [
        *(episode_item(row, run="oracle") for row in rows),
        episode_item(other, run="other"),
        *(token_item(trace, run="grpo") for trace in traces),
    ]
    tables = Section("Tables", [paragraph(EVIL), table("t", ("name",) * 20, [["x" * 9] * 20])], collapsed=True)
    write_page(folder / "page.html", "Report", sections(Section("Traces", viewer(items)), tables))
    return folder / "page.html"


def with_text(record: Trajectory, at: int, text: str) -> tuple[Message, ...]:
    """The messages of an episode, one of them with more text."""
    return tuple(
        replace(message, content=message.content + text) if number == at else message
        for number, message in enumerate(record.messages)
    )


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
    assert tab.run("document.querySelector('[role=option]').getAttribute('aria-setsize')") == str(NUMBER + 2)
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
    tab.wait_for(f"document.getElementById('count').textContent === '1 of {NUMBER + 2}'")
    tab.wait_for("document.querySelector('#trace h3')?.textContent.includes('Question 1234')")
    tab.wait_for("document.querySelector('#trace mark.hit')?.textContent === 'needle in the'")
    tab.open(page, anchor="#trouble=failed+call")
    wanted = sum("bad_arguments" in row.failures for row in episodes(NUMBER, corpus=100))
    assert tab.run("document.getElementById('count').textContent") == f"{wanted} of {NUMBER + 2}"
    assert "call 1: bad_arguments" in tab.run("document.querySelector('#trace .fault').textContent")


def test_tokens_are_shaded_and_described(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#run=grpo")
    classes = tab.run("[...document.querySelectorAll('#trace .t')].map(node => node.className)")
    assert classes == ["t on up", "t on up", "t", "t", "t on down", "t on down"]
    tab.press("n")
    tab.press("n")
    status = "document.getElementById('token').textContent"
    assert tab.run(status) == '" Oslo" · trained on · log-prob -1.250 · advantage 0.500'
    tab.press("n")
    assert "not trained on" in tab.run(status)


def test_the_list_is_sorted_and_stops_at_what_is_wrong(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#sort=return+-1&run=oracle")
    rows = episodes(NUMBER, corpus=100)
    first = "document.querySelector('[aria-posinset=\"1\"]').textContent"
    best = max(range(NUMBER), key=lambda at: (rows[at].episode_return, -at))
    assert (EVIL if best == 0 else f"Question {best}:") in tab.run(first)
    wrong = [at for at in range(1, NUMBER) if not rows[at].solved]
    tab.open(page, anchor="#run=oracle")
    for at in wrong[:2]:
        tab.press("w")
        tab.wait_for(f"document.querySelector('#trace h3').textContent.includes('Question {at}:')")
    assert tab.run("document.querySelector('.keys').textContent").count("next wrong") == 1


@pytest.fixture(scope="module")
def odd_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs side by side: numbers to sort by whose names have spaces, and a call with a long number."""
    call = '<tool_call>{"name": "find", "arguments": {"id": 12345678901234567890}}</tool_call>'
    rows = episodes(3, corpus=10)
    rows[0] = replace(rows[0], messages=with_text(rows[0], 2, call))
    items = [
        replace(episode_item(row, run="a"), order={"A return": value, "A - B": -value})
        for row, value in zip(rows, (1.0, 3.0, 2.0), strict=True)
    ]
    path = tmp_path_factory.mktemp("odd") / "page.html"
    write_page(path, "Report", sections(Section("Traces", viewer(items))))
    return path


def test_names_to_sort_by_may_have_spaces(tab: Browser, odd_page: Path) -> None:
    rows = "[...document.querySelectorAll('[role=option]')].map(row => row.textContent.match(/Question ([0-9])/)[1])"
    for order, expected in (("A return 1", "021"), ("A return -1", "120"), ("A - B 1", "120")):
        tab.open(odd_page)
        tab.run(f"(order => {{ order.value = '{order}'; order.dispatchEvent(new Event('change')); }})"
                "(document.getElementById('order'))")  # fmt: skip
        tab.wait_for(f"{rows}.join('') === '{expected}'")


def test_long_numbers_of_calls_are_shown_as_written(tab: Browser, odd_page: Path) -> None:
    tab.open(odd_page, anchor="#item=0")
    shown_calls = tab.run("[...document.querySelectorAll('#trace mark')].map(mark => mark.textContent)")
    assert '<tool_call>{"name": "find", "arguments": {"id": 12345678901234567890}}</tool_call>' in shown_calls
    assert "search query 0 1" in shown_calls


def test_a_link_brings_back_what_was_shown(tab: Browser, page: Path) -> None:
    tab.open(page)
    assert tab.run("location.hash") == ""  # nothing was chosen yet, so that the page opens at its top
    tab.press("j")
    tab.wait_for("location.hash.includes('item=1')")
    anchor = tab.run("location.hash")
    tab.open(page, anchor=anchor)
    assert "Question 1:" in shown(tab)


def test_calls_and_thoughts_are_set_apart_and_raw_text_is_available(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#item=1")
    assert tab.run("document.querySelector('#trace .think').textContent") == "hop 1"
    assert tab.run("document.querySelector('#trace .call').textContent") == "search query 1 1"
    assert "<tool_call>" not in tab.run("document.getElementById('trace').textContent")
    tab.run("document.getElementById('raw').click()")
    tab.wait_for("document.getElementById('trace').textContent.includes('<tool_call>{\"name\"')")


def test_long_texts_of_tools_are_folded(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#item=1")
    collapsed = "document.querySelectorAll('#trace .clipped').length"
    before = tab.run(collapsed)
    assert before == 2
    tab.run("document.querySelector('#trace .more').click()")
    assert tab.run(collapsed) == before - 1


def test_all_runs_of_a_task_stand_side_by_side(tab: Browser, page: Path) -> None:
    tab.open(page, anchor="#item=7")
    sides = "[...document.querySelectorAll('.sides > section > h3')].map(node => node.textContent).join()"
    assert tab.run(sides) == ""
    tab.run("document.getElementById('together').click()")
    tab.wait_for(f"{sides} === 'oracle,other'")


def test_the_contents_stay_in_sight_and_open_what_is_folded(tab: Browser, page: Path) -> None:
    tab.open(page)
    assert tab.run("document.querySelector('#tables details').open") is False
    tab.run("document.querySelector('.toc a[href=\"#tables\"]').click()")
    tab.wait_for("document.querySelector('#tables details').open")
    assert tab.run("document.querySelector('.toc').getBoundingClientRect().top") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_windows_do_not_scroll_sideways_and_follow_the_scheme(tab: Browser, page: Path, dark: bool) -> None:
    tab.open(page, width=400, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") <= 400
    tab.run("document.querySelector('#tables details').open = true")
    assert tab.run("document.documentElement.scrollWidth") <= 400
    right = "Math.max(...[...document.querySelectorAll('td')].map(cell => cell.getBoundingClientRect().right))"
    assert tab.run(right) <= 400  # each value is in sight, none is cut
    red = int(tab.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0]"))
    assert red < 60 if dark else red > 200
