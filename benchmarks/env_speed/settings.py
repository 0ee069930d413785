"""What the benchmarks run with and what they must show: data only, and immutable."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of one run.

    Attributes:
        rounds: values per figure; the systems take turns in each.
        searches: search turns of an episode; one more turn answers.
        top_k: passages per search (the default of both peers).
        questions: questions that environments sample from.
        episodes: episodes per value with one environment.
        envs: environments of a vector.
        vector_episodes: episodes per environment and value, over the server.
        corpus: passages that the server searches.
        pools: sizes of SkyRL-Gym's thread pool; 32 is the default of SkyRL's generator.
        latency: seconds that the slow tool takes.
        memory_envs: environments that share a data set.
        install_rounds: installations in an empty environment.
    """

    rounds: int = 7
    searches: int = 3
    top_k: int = 3
    questions: int = 2000
    episodes: int = 1000
    envs: int = 64
    vector_episodes: int = 8
    corpus: int = 6000
    pools: tuple[int, ...] = (8, 32, 64)
    latency: float = 0.05
    memory_envs: int = 1000
    install_rounds: int = 5


FULL = Settings()
QUICK = Settings(
    rounds=2,
    questions=200,
    episodes=50,
    envs=8,
    vector_episodes=1,
    corpus=600,
    pools=(8,),
    memory_envs=50,
    install_rounds=1,
)

TARGETS = MappingProxyType(
    {
        "stub_vs_faster_peer": 1.0,
        "server_vs_faster_peer": 5.0,
        "server_vs_bare_client": 0.8,
        "latency_step_ms": 75.0,
        "import_s": 0.35,
        "import_mb": 20.0,
        "env_kb": 10.0,
        "install_s": 60.0,
    }
)
"""What has to be shown; ratios, milliseconds, seconds, megabytes (10^6), kilobytes (10^3)."""
