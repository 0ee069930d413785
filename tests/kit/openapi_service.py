"""A small HTTP service with an OpenAPI document, in plain Python; a program that prints its port.

It serves its document at /openapi.json, and behaves as strangers do: it is busy, redirects, sends garbage, drips, dies.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import time
import urllib.parse
from typing import Any

NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
ITEM = {"$ref": "#/components/schemas/Item"}


def operation(name: str, *parameters: Any, body: Any = None, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"operationId": name, "summary": f"Does {name}.", "parameters": list(parameters), **more}
    if body is not None:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return made


def parameter(name: str, where: str = "query", **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": schema or {"type": "string"}}


DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "/"}],
    "paths": {
        "/item/{name}": {
            "parameters": [NAME],
            "get": operation(
                "getItem",
                parameter("n", type="integer"),
                parameter("tags", type="array", items={"type": "string"}),
                parameter("X-Lang", "header", type="string"),
                parameter("api_key", type="string"),
                tags=["items"],
            ),
        },
        "/item": {"post": operation("addItem", body=ITEM, tags=["items", "write"])},
        "/numbers": {"post": operation("sum", body={"type": "array", "items": {"type": "number"}})},
        "/tree": {"post": operation("plant", body={"$ref": "#/components/schemas/Node"})},
        "/status/{code}": {"get": operation("status", parameter("code", "path", type="integer") | {"required": True})},
        "/text": {"get": operation("text")},
        "/nothing": {"delete": operation("nothing")},
        "/garbage": {"get": operation("garbage")},
        "/picture": {"get": operation("picture")},
        "/huge": {"get": operation("huge", parameter("size", type="integer"))},
        "/drip": {"get": operation("drip")},
        "/die": {"get": operation("die")},
        "/whoami": {"get": operation("whoami")},
        "/requests": {"get": operation("requests")},
    },
    "components": {
        "schemas": {
            "Item": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer", "readOnly": True},
                    "name": {"type": "string", "description": "what it is called"},
                    "colour": {"$ref": "#/components/schemas/Colour"},
                },
                "required": ["id", "name"],
            },
            "Colour": {"enum": ["red", "blue"]},
            "Node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
                },
                "required": ["value"],
            },
        }
    },
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    requests = 0

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        Handler.requests += 1
        url = urllib.parse.urlsplit(self.path)
        parts, query = url.path.split("/")[1:], urllib.parse.parse_qs(url.query)
        size = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        if parts[0] == "item":
            lang, login = self.headers.get("X-Lang"), self.headers.get("Authorization")
            name = None if len(parts) == 1 else urllib.parse.unquote(parts[1])
            self.send(200, {"name": name, "query": query, "lang": lang, "login": login, "body": body})
        elif parts[0] == "status":
            extra = {"Retry-After": "7", "Location": "http://127.0.0.1:9/elsewhere"}
            self.send(int(parts[1]), {"detail": "no such thing"}, **extra)
        elif parts[0] == "openapi.json":
            self.send(200, DOCUMENT)
        elif parts[0] == "die":
            os._exit(3)
        elif parts[0] == "drip":
            self.drip()
        else:
            self.answer_otherwise(parts[0], query, body)

    def answer_otherwise(self, name: str, query: dict[str, list[str]], body: Any) -> None:
        if name == "nothing":
            self.send(204, None)
        elif name == "whoami":
            self.send(200, {"headers": dict(self.headers), "path": self.path})
        elif name == "huge":
            self.raw(200, b'"' + b"x" * int(query["size"][0]) + b'"', "application/json")
        elif name in ("text", "garbage", "picture"):
            kinds = {"text": "text/plain", "garbage": "application/json", "picture": "image/png"}
            self.raw(200, b"{no json <answer>1</answer>", kinds[name])
        else:
            answers = {"numbers": lambda: sum(body), "tree": lambda: body, "requests": lambda: Handler.requests}
            self.send(200, answers[name]())

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000")
        self.end_headers()
        try:
            for _ in range(1000):
                self.wfile.write(b" ")
                time.sleep(0.05)
        except OSError:
            return

    def send(self, status: int, answer: Any, **headers: str) -> None:
        self.raw(status, b"" if answer is None else json.dumps(answer).encode(), "application/json", **headers)

    def raw(self, status: int, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer.request_queue_size = 128  # five are too few for many episodes at once
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    sys.exit(server.serve_forever())
