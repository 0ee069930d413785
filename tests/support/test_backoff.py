"""Back-off and the circuit breaker; that of hung calls is in test_concurrency."""

from __future__ import annotations

import math

import pytest

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.support.backoff import CircuitBreaker, backoff
from tests.support.conftest import Clock


def test_pauses_double_up_to_the_longest() -> None:
    assert [backoff(0.5, retry, longest=3.0) for retry in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert backoff(0.0, 5) == 0.0
    assert math.isfinite(backoff(1.0, 10**9))


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker("url", 1, 10.0)
    breaker.record_failure(InfrastructureError("down"))
    return breaker


def test_a_half_open_breaker_lets_one_caller_probe(clock: Clock) -> None:
    breaker = opened()
    clock.sleep(10.0)
    breaker.check()
    with pytest.raises(InfrastructureError, match=r"url .* left alone"):
        breaker.check()
    breaker.record_abort()
    breaker.check()
    breaker.record_success()
    breaker.check()


def test_an_open_breaker_says_how_long_to_wait_and_waiting_so_long_is_enough(clock: Clock) -> None:
    breaker = opened()
    clock.sleep(4.0)
    with pytest.raises(InfrastructureError) as refusal, breaker.guard():
        pytest.fail("the block must not run")
    assert refusal.value.retry_after == 6.0
    clock.sleep(6.0)
    with breaker.guard():
        pass
    breaker.check()


def test_the_failure_that_opens_a_breaker_says_so_too() -> None:
    breaker, failure = CircuitBreaker("url", 2, 5.0), InfrastructureError("down")
    for expected in (None, 5.0):
        with pytest.raises(InfrastructureError), breaker.guard():
            raise failure
        assert failure.retry_after == expected


def test_a_breaker_of_zero_never_opens() -> None:
    breaker = CircuitBreaker("url", 0, 10)
    for _ in range(20):
        breaker.record_failure(InfrastructureError("down"))
        breaker.check()
