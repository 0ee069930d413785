"""OwnThread: whoever asks, one thread does it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_r1_gym.support.own_thread import OwnThread


def test_all_is_done_where_it_was_made() -> None:
    home = OwnThread(threading.get_ident)
    with ThreadPoolExecutor(3) as others:
        seen = [future.result() for future in [others.submit(home.call, threading.get_ident) for _ in range(9)]]
    assert set(seen) == {home.made} and home.made != threading.get_ident()
    closed: list[int] = []
    home.end(lambda: closed.append(threading.get_ident()))
    home.end(lambda: closed.append(0))
    assert closed == [home.made]


def test_what_it_raises_comes_to_whoever_asked() -> None:
    home: OwnThread[dict[str, int]] = OwnThread(dict)
    with pytest.raises(ZeroDivisionError):
        home.call(lambda: 1 / 0)
    assert home.call(dict, a=1) == {"a": 1}
    with pytest.raises(ZeroDivisionError):
        OwnThread(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        home.end(lambda: 1 / 0)
    home.end(dict)
