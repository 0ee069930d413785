"""The knowledge base of tau2-bench's bank: its documents, the tools that search them, and the policies that name these.

tau2-bench calls a way to the documents a retrieval variant; each has tools and a policy of its own. Those that need no
hosted model and no container are here: BM25 by this project's retriever, and a search for patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import Passage, ToolOutcome
from agent_r1_gym.envs.tau2.file_schema import Record, items, text
from agent_r1_gym.errors import ConfigurationError, DatasetError, ToolError

if TYPE_CHECKING:
    from agent_r1_gym.envs.tau2.tasks import World
    from agent_r1_gym.retrieval.bm25 import BM25Retriever

SEARCH, GREP = "KB_search", "grep"
"""Names of the tools."""
MAX_OUTPUT_CHARS = 65_536
_TOP_K = 10
_COMPONENT = re.compile(r"\{\{component:(\w+)\}\}")


class Variant(NamedTuple):
    """A way to the documents: a template of the policy, and the tools that it names."""

    template: str
    tools: tuple[str, ...] = ()


VARIANTS: Mapping[str, Variant] = {
    "bm25_grep": Variant("classic_rag_bm25", (SEARCH, GREP)),
    "bm25": Variant("classic_rag_bm25_no_grep", (SEARCH,)),
    "grep_only": Variant("grep_only", (GREP,)),
    "golden_retrieval": Variant("required_docs"),
    "no_knowledge": Variant("no_knowledge"),
}
"""The variants of tau2-bench that are offered, the default first."""
DEFAULT_VARIANT = next(iter(VARIANTS))
_HOSTED = "needs a hosted model for embeddings or reranking"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("alltools", "AllTools", "alltools-qwen"), f"{_HOSTED}, and a shell"),
    **{
        f"{name}{reranker}{grep}": _HOSTED
        for name in ("qwen_embeddings", "openai_embeddings")
        for reranker in ("", "_reranker")
        for grep in ("", "_grep")
    },
    **dict.fromkeys(("bm25_reranker", "bm25_reranker_grep"), _HOSTED),
    **dict.fromkeys(("terminal_use", "terminal_use_write"), "needs a shell in a container"),
    "full_kb": "puts all documents, a million characters, into the policy",
}


def check_variant(name: str) -> Variant:
    """The variant of a name.

    Raises:
        ConfigurationError: there is none, or it is not offered here.
    """
    variant = VARIANTS.get(name) if isinstance(name, str) else None
    if variant is None:
        why = f"; tau2-bench's {name!r} {_REFUSED[name]}" if isinstance(name, str) and name in _REFUSED else ""
        raise ConfigurationError(f"retrieval must be one of {tuple(VARIANTS)}, got {name!r:.80}{why}.")
    return variant


class Knowledge:
    """Documents and policies of a domain.

    Args:
        documents: the rows of the documents' files.
        prompts: text by name of the templates of policies, and of their components.
        source: where they come from, for errors.
    """

    def __init__(self, documents: object, prompts: Mapping[str, str], source: str) -> None:
        rows = items(Record({"id": text, "title": text, "content": text}))(documents, f"{source}, documents")
        self.documents = {row["id"]: Passage(row["id"], row["title"], row["content"]) for row in rows}
        self._prompts, self._source = prompts, source

    def policy(self, variant: Variant, required: Sequence[str] = ()) -> str:
        """The policy of a variant.

        Args:
            variant: names the template.
            required: ids or titles of the documents that a task needs, for a template that shows these.
        """
        policy = _COMPONENT.sub(lambda match: self._prompt(match.group(1)), self._prompt(variant.template))
        by_title = {document.title: document for document in self.documents.values()}
        documents = [by_title.get(name) or self.documents.get(name) for name in required]
        inlined = "\n\n---\n\n".join(f"## {document.title}\n\n{document.text}" for document in documents if document)
        return policy.replace("{{required_documents}}", inlined or "(No documents provided)")

    def _prompt(self, name: str) -> str:
        if name not in self._prompts:
            raise DatasetError(f"{self._source} has no prompt {name!r}, but {sorted(self._prompts)}.")
        return self._prompts[name]

    @functools.cached_property
    def retriever(self) -> BM25Retriever:
        """BM25 over all documents; built when the first search needs it."""
        from agent_r1_gym.retrieval.bm25 import BM25Retriever

        return BM25Retriever(list(self.documents.values()))

    @functools.cached_property
    def lines(self) -> Mapping[str, Sequence[str]]:
        """The lines of each document, by its id."""
        return {key: document.text.split("\n") for key, document in self.documents.items()}


class KnowledgeTool(Tool):
    """A search for documents, shown as tau2-bench shows them; base of the two.

    Args:
        world: the domain whose documents are searched.
    """

    def __init__(self, world: World, name: str, description: str, argument: str, meaning: str) -> None:
        properties = {argument: {"type": "string", "description": meaning}}
        parameters = {"type": "object", "properties": properties, "required": [argument], "additionalProperties": False}
        super().__init__(
            name, description, parameters, timeout=None, max_output_chars=MAX_OUTPUT_CHARS, deterministic=True
        )
        self._world = world  # not its documents: a pickle of an environment names the files

    @property
    def knowledge(self) -> Knowledge:
        """The documents."""
        assert self._world.knowledge is not None
        return self._world.knowledge

    @staticmethod
    def _format(hits: Sequence[tuple[Passage, float]], nothing: str) -> ToolOutcome:
        entries = (
            f"{rank}. {document.title}\n   ID: {document.id}\n   Score: {score:.4f}\n   Content: {document.text}\n"
            for rank, (document, score) in enumerate(hits, 1)
        )
        return ToolOutcome("\n".join(entries) or nothing)


class SearchTool(KnowledgeTool):
    """Finds documents by BM25."""

    def __init__(self, world: World) -> None:
        description = "Search the knowledge base for relevant documents."
        super().__init__(world, SEARCH, description, "query", "The search query to find relevant documents")

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Search for a query."""
        return self._format(self.knowledge.retriever.search(arguments["query"], _TOP_K), "No relevant documents found.")


class GrepTool(KnowledgeTool):
    """Finds documents by a pattern; those with most matches first."""

    def __init__(self, world: World) -> None:
        description = (
            "Search for a regex pattern in all knowledge base documents.\n\n"
            "Returns documents ranked by number of matches, with full content."
        )
        meaning = "The regex pattern to search for (e.g., 'credit.*card', 'fee|charge')"
        super().__init__(world, GREP, description, "pattern", meaning)

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Search for a pattern.

        Raises:
            ToolError: the pattern cannot be read.
        """
        pattern = arguments["pattern"]
        alternatives = list(_alternatives(pattern))
        counts = {key: _count(alternatives, lines) for key, lines in self.knowledge.lines.items()}
        best = sorted((key for key in counts if counts[key]), key=lambda key: -counts[key])[:_TOP_K]
        hits = [(self.knowledge.documents[key], float(counts[key])) for key in best]
        return self._format(hits, f"No matches found for pattern: {pattern}")


# --- patterns --------------------------------------------------------------------------------------------------------

# A pattern of a model must not stop the process: Python's `re` takes exponential time for some, and holds its lock.
# Alternatives of pieces between ".*" are searched line by line, each piece from where the one before it ended.
_BETWEEN = re.compile(r"(?<!\\)\.[*+]\??")
_ATOM = r"(?:\\[bBdDsSwW]|\\[^\w\s]|\[\^?(?:\w-\w|\\[dsw]|[^\[\]\\&~|-])+\]|[^\\()\[\]{}*+?|])"
_PIECE = re.compile(rf"(?:{_ATOM}\??)*(?:{_ATOM}[*+]\??)?(?:{_ATOM}\??)*")
_MAX_PATTERN_CHARS, _MAX_OPTIONAL = 200, 4


def _alternatives(pattern: str) -> Iterator[list[re.Pattern[str]]]:
    """Read a pattern: alternatives of pieces with anything between them."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ToolError(f"The pattern is longer than {_MAX_PATTERN_CHARS} characters.")
    for alternative in re.split(r"(?<!\\)\|", pattern):
        pieces = [piece for piece in _BETWEEN.split(alternative) if piece.strip()]
        for piece in pieces:
            if not _PIECE.fullmatch(piece) or piece.count("?") > _MAX_OPTIONAL:
                raise ToolError(
                    f"The pattern {pattern!r} is not supported: use words, '.', '.*', character classes, '?', one '+' "
                    "or '*' between two '.*', and alternatives such as 'fee|charge', no parentheses or braces."
                )
        try:
            compiled = [re.compile(piece, re.IGNORECASE) for piece in pieces]
        except re.error as error:
            raise ToolError(f"The pattern {pattern!r} cannot be read: {error}.") from error
        if compiled:
            yield compiled


def _count(alternatives: Sequence[Sequence[re.Pattern[str]]], lines: Sequence[str]) -> int:
    """Number of matches: all of a single piece, one a line of several."""
    return sum(
        len(pieces[0].findall(line)) if len(pieces) == 1 else _has_in_order(pieces, line)
        for line in lines
        for pieces in alternatives
    )


def _has_in_order(pieces: Sequence[re.Pattern[str]], line: str) -> bool:
    position = 0
    for piece in pieces:
        match = piece.search(line, position)
        if match is None:
            return False
        position = match.end()
    return True


TOOLS: Mapping[str, type[SearchTool] | type[GrepTool]] = {SEARCH: SearchTool, GREP: GrepTool}
"""The tools of variants, by name."""
