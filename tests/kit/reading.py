"""Reads a page as its viewer does."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

_CHUNK = re.compile(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>')


def chunks(page: str) -> dict[str, Any]:
    return {name: json.loads(zlib.decompress(base64.b64decode(data))) for name, data in _CHUNK.findall(page)}


def sides(page: str) -> list[Any]:
    """The episodes of a page, their lines put back."""
    packed = chunks(page)
    lines = [line for number in range(len(packed["index"]["textStarts"])) for line in packed[f"texts-{number}"]]
    items = [item for name, chunk in packed.items() if name.startswith("items-") for item in chunk]
    for item in items:
        for side in item:
            for block in side[2]:
                block[2] = "\n".join(lines[number] for number in block[2])
    return items


class Tags(HTMLParser):
    """Collects the tags of a page and the scripts that a browser would run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.running = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.running += tag == "script" and ("type", "text/plain") not in attrs
