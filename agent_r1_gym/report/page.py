"""A self-contained HTML page: its frame, its tables, and the policy that keeps foreign code from running in it.

Whatever comes from a run is escaped here or packed by `packing`; besides, the page's security policy lets only its own
script run, known by its hash, and forbids every request.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_r1_gym.support.files import atomic_file

_FOLDER = Path(__file__).parent
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
script-src '{hash}'">
<title>{title}</title>
<style>
{css}</style></head><body>
<h1>{title}</h1>
{body}
<script>{script}</script>
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Html:
    """Text that is HTML already; any other text is escaped where it enters a page."""

    text: str


Cell = Html | str | float | None


def escape(value: Cell) -> str:
    """Returns a value as HTML; None as a dash, numbers with three significant digits."""
    if isinstance(value, Html):
        return value.text
    if value is None:
        return "–"
    return html.escape(value if isinstance(value, str) else f"{value:.3g}")


def interval(mean: float, low: float, high: float) -> Html:
    """Returns a mean above its interval, as a table's cell."""
    digits = 3 if max(abs(low), abs(high), abs(mean)) < 10 else 1
    return Html(f"{mean:.{digits}f}<small>[{low:.{digits}f}, {high:.{digits}f}]</small>")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Html:
    """Returns a table; the first cell of each row heads it. It scrolls by itself where the window is narrow."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for first, *values in rows:
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    label, body = html.escape(caption), "\n".join(lines)
    return Html(
        f'<p class="caption">{label}</p><div class="scroll" role="region" aria-label="{label}" tabindex="0">'
        f'<table aria-label="{label}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def paragraph(text: str) -> Html:
    """Returns a paragraph."""
    return Html(f"<p>{escape(text)}</p>")


def heading(text: str) -> Html:
    """Returns a section's heading."""
    return Html(f"<h2>{escape(text)}</h2>")


def write_page(path: Path, title: str, parts: Iterable[Html]) -> int:
    """Writes a page, whole or not at all, and returns its size in bytes."""
    script = (_FOLDER / "viewer.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = _PAGE.format(
        title=html.escape(title),
        css=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        body="\n".join(part.text for part in parts),
        script=script,
        hash=f"sha256-{digest}",
    )
    data = page.encode("utf-8", "replace")
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)
    return len(data)
