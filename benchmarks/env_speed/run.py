"""Speed and weight of the environments, beside the peers that pip can install.

    python -m benchmarks.env_speed                   every claim; appends to results/env_speed.jsonl
    python -m benchmarks.env_speed --claim server    one claim
    python -m benchmarks.env_speed --quick           tiny sizes, to see that everything runs; keeps nothing

README.md beside this file says what each claim measures and what differs between the systems.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from agent_r1_gym.retrieval import wire
from benchmarks.common import measure
from benchmarks.common.measure import Check, Figure, Report
from benchmarks.common.process import served_by_process
from benchmarks.env_speed import fresh_process as probes
from benchmarks.env_speed import peers, server
from benchmarks.env_speed.settings import FULL, QUICK, TARGETS, Settings
from benchmarks.env_speed.systems import (
    OURS,
    System,
    distinct_queries,
    make_workload,
    our_env,
    search_vector,
    slow_vector,
)

RESULTS = Path(__file__).parent / "results" / "env_speed.jsonl"
BARE = "bare batch client"


def stub(settings: Settings) -> Report:
    """One environment, the search stubbed in the process: the cost of the environment itself."""
    present, absent = peers.installed()
    workload = make_workload(questions=settings.questions, passages=settings.top_k)
    queries = [f"{workload.passages[0].title} part {number}" for number in range(settings.searches)]
    ours = our_env(workload, queries=queries)
    systems = [ours, our_env(workload, queries=queries, parser="search-r1")]
    if peers.GEM in present:
        systems += [peers.gem_one(workload, queries=queries, history=history) for history in (False, True)]
    if peers.SKYRL in present:
        documents = workload.documents()
        one = [[query] for query in queries]
        systems.append(peers.skyrl(workload, batches=one, top_k=settings.top_k, search=lambda query: documents))
    speeds = _take_turns(systems, settings, lambda system: system.steps_per_second(settings.episodes))
    figures, check = _against_peers(ours, speeds, absent, limit=TARGETS["stub_vs_faster_peer"])
    return Report("stub", figures, (check,), absent)


def over_server(settings: Settings) -> Report:
    """Many environments over one BM25 server on this machine, and what the server gives a bare client."""
    present, absent = peers.installed()
    workload = make_workload(questions=settings.questions, passages=settings.top_k)
    batches = distinct_queries(server.corpus(settings.corpus), steps=settings.searches, width=settings.envs)
    with served_by_process(server.__name__, "--entities", str(settings.corpus)) as url:
        ours = search_vector(workload, url, batches=batches, top_k=settings.top_k)
        systems = [ours]
        work: dict[str, Any] = {"batches": batches, "top_k": settings.top_k}
        if peers.GEM in present:
            gem = url + server.GEM_PATH
            systems += [peers.gem_vector(workload, mode=mode, url=gem, **work) for mode in ("async", "sync")]
        if peers.SKYRL in present:
            sky = url + server.SKYRL_PATH
            systems += [peers.skyrl(workload, workers=size, url=sky, **work) for size in settings.pools]
        bare = {BARE: partial(_bare_client(url, batches, settings.top_k), settings.vector_episodes)}
        speeds = _take_turns(
            systems, settings, lambda system: system.steps_per_second(settings.vector_episodes), beside=bare
        )
    served = replace(speeds.pop(BARE), unit="queries/s")
    per_step = settings.searches * settings.envs / ours.episode_steps
    found = tuple(value * per_step for value in speeds[ours.name].values)
    searching = Figure(f"{ours.name}, searches alone", "queries/s", found)
    share = measure.ratio(f"{ours.name} / {BARE}", searching, served)
    figures, check = _against_peers(ours, speeds, absent, limit=TARGETS["server_vs_faster_peer"])
    use = Check("searches / what a bare client gets", TARGETS["server_vs_bare_client"], share.median)
    return Report("server", (*figures, searching, served, share), (check, use), absent)


def latency(settings: Settings) -> Report:
    """Many environments with a tool that takes a fixed time and has no batch form."""
    present, absent = peers.installed()
    workload = make_workload(questions=settings.questions, passages=settings.top_k)
    batches = distinct_queries(workload.passages, steps=settings.searches, width=settings.envs)
    documents = workload.documents()

    def slow(query: str) -> list[dict[str, object]]:
        time.sleep(settings.latency)
        return documents

    ours = slow_vector(workload, batches=batches, latency=settings.latency)
    systems = [ours]
    work: dict[str, Any] = {"batches": batches, "top_k": settings.top_k, "search": slow}
    if peers.GEM in present:
        systems.append(peers.gem_vector(workload, mode="async", **work))
    if peers.SKYRL in present:
        systems.append(peers.skyrl(workload, workers=settings.envs, **work))
    # One episode per step that uses the tool; the time of the answering step is counted as theirs.
    found = _take_turns(systems, settings, lambda system: 1000 * system.play(1) / settings.searches, unit="ms/step")
    check = Check("vector step with a slow tool, ms", TARGETS["latency_step_ms"], found[ours.name].median, at_most=True)
    return Report("latency", tuple(found.values()), (check,), absent)


def imports(settings: Settings) -> Report:
    """What `import agent_r1_gym` costs in a fresh interpreter, alone and on top of gymnasium."""
    present, absent = peers.installed()
    modules = {"import agent_r1_gym": ("agent_r1_gym", "sys"), "... after gymnasium": ("agent_r1_gym", "gymnasium")}
    modules["import gymnasium"] = ("gymnasium", "sys")
    modules |= {f"import {name}": (name, "sys") for peer, name in peers.PACKAGES.items() if peer in present}
    measures = {name: partial(probes.import_cost, module, after) for name, (module, after) in modules.items()}
    costs = measure.take_turns(measures, rounds=settings.rounds)  # the first round warms the file cache
    seconds = {name: Figure(name, "s", tuple(taken for taken, _ in found)) for name, found in costs.items()}
    sizes = {name: Figure(name, "MB", tuple(size / 1e6 for _, size in found)) for name, found in costs.items()}
    checks = (
        Check("import agent_r1_gym, s", TARGETS["import_s"], seconds["import agent_r1_gym"].median, at_most=True),
        Check("... over gymnasium, MB", TARGETS["import_mb"], sizes["... after gymnasium"].median, at_most=True),
    )
    return Report("import", (*seconds.values(), *sizes.values()), checks, absent)


def memory(settings: Settings) -> Report:
    """Memory per environment of many that share a data set, in the first turn of an episode."""
    found = [probes.env_memory(settings.memory_envs) for _ in range(settings.rounds)]
    made = Figure("per environment, made", "kB", tuple(size / 1000 for size, _ in found))
    started = Figure("per environment, episode started", "kB", tuple(size / 1000 for _, size in found))
    check = Check("memory per environment, kB", TARGETS["env_kb"], started.median, at_most=True)
    return Report("memory", (made, started), (check,), {})


def install(settings: Settings) -> Report:
    """From an empty virtual environment to the first finished episode, with a warm pip cache."""
    probes.install_and_play()
    values = tuple(probes.install_and_play() for _ in range(settings.install_rounds))
    seconds = Figure("venv, pip install, first episode", "s", values)
    check = Check("empty venv to first episode, s", TARGETS["install_s"], seconds.median, at_most=True)
    return Report("install", (seconds,), (check,), {})


CLAIMS: Mapping[str, Callable[[Settings], Report]] = MappingProxyType(
    {"stub": stub, "server": over_server, "latency": latency, "import": imports, "memory": memory, "install": install}
)


def _bare_client(url: str, batches: Sequence[Sequence[str]], top_k: int) -> Callable[[int], float]:
    """Returns the cheapest client of the server: one kept connection, whole batches, the answer read and decoded.

    It takes a number of passes through the batches and returns queries per second.
    """
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    bodies = [wire.encode_request("agent-r1", batch, top_k) for batch in batches]

    def queries_per_second(repeats: int) -> float:
        start = time.perf_counter()
        for body in bodies * repeats:
            connection.request("POST", wire.PATHS["agent-r1"], body, {"Content-Type": "application/json"})
            json.loads(connection.getresponse().read())
        return repeats * sum(map(len, batches)) / (time.perf_counter() - start)

    return queries_per_second


def _against_peers(
    ours: System, speeds: Mapping[str, Figure], absent: Mapping[str, str], *, limit: float
) -> tuple[tuple[Figure, ...], Check]:
    """Returns the figures with our ratio to each peer added, and the target: on the fastest configuration of any peer.

    Not measured while a peer is absent: the missing one might have been the faster.
    """
    others = [figure for name, figure in speeds.items() if not name.startswith(OURS)]
    ratios = {other: measure.ratio(f"{ours.name} / {other.name}", speeds[ours.name], other) for other in others}
    best = max(others, key=lambda figure: figure.median, default=None)
    value = None if best is None or absent else ratios[best].median
    name = "faster peer" if best is None else f"faster peer ({best.name})"
    return (*speeds.values(), *ratios.values()), Check(f"ours / {name}", limit, value)


def _take_turns(
    systems: Sequence[System],
    settings: Settings,
    value: Callable[[System], float],
    *,
    unit: str = "steps/s",
    beside: Mapping[str, Callable[[], float]] = MappingProxyType({}),
) -> dict[str, Figure]:
    """Returns a figure of what is measured beside the systems and of each system; closes the systems."""
    measures = dict(beside)
    measures.update((system.name, partial(value, system)) for system in systems)
    try:
        return measure.interleave(measures, rounds=settings.rounds, unit=unit)
    finally:
        for system in systems:
            system.close()


def main(arguments: list[str] | None = None) -> None:
    """Runs the claims that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measure.add_claim_options(parser, CLAIMS, RESULTS)
    parser.add_argument(
        "--corpus", type=int, help="number of passages that the server searches (default: the settings')"
    )
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    if options.corpus is not None:
        settings = replace(settings, corpus=options.corpus)
    claims = {name: partial(claim, settings) for name, claim in CLAIMS.items()}
    measure.run_claims(options, claims, settings=settings, results=RESULTS, words=arguments)
