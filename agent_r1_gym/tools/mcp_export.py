"""An environment's tools as an MCP server for other agents: only the tools, never its reset, answers or rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from agent_r1_gym.core.tool import PendingCall, Tool, execute_calls
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.support.concurrency import WorkerThread
from agent_r1_gym.support.http_server import guarded_requests, run_app
from agent_r1_gym.support.packages import check_package, installed_version

_REQUEST_TIMEOUT = 10.0
"""Seconds for the head of a request, and again for its body."""
_MAX_BODY_BYTES = 2**20


class ServedTools:
    """The tools of one episode. Everything that uses the environment runs in one thread, to which a tool may be bound.

    Args:
        make: creates the environment.
        task: index of the task.
    """

    def __init__(self, make: Callable[[], ToolEnv], task: int) -> None:
        self._thread, (self._env, self.tools) = WorkerThread.create(lambda: self._open(make, task))

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Call a tool; its output, and whether it succeeded. One call at a time."""
        return self._thread.call(self._call, name, dict(arguments))

    def close(self) -> None:
        """Close the environment."""
        self._thread.call(self._env.close)
        self._thread.end()

    @staticmethod
    def _open(make: Callable[[], ToolEnv], task: int) -> tuple[ToolEnv, dict[str, Tool]]:
        env = make()
        env.reset(seed=0, options={"task_index": task})
        offered = {schema["function"]["name"] for schema in env.tool_schemas}  # without the user, for example
        return env, {tool.name: tool for tool in env.episode_tools if tool.name in offered}

    def _call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        tool = self.tools.get(name)
        if tool is None:
            return f"There is no tool {name!r}.", False
        if problem := tool.check(arguments):
            return problem, False
        (outcome,) = execute_calls([PendingCall(tool, ToolCall(name, arguments))])
        return outcome.content, outcome.ok


def serve_stdio(served_tools: ServedTools) -> None:
    """Serve one client over stdin and stdout, until it closes them.

    Raises:
        MissingDependencyError: the package `mcp` is not installed, or in another version.
    """
    server = _server(served_tools)
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def serve_http(served_tools: ServedTools, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve clients over streamable HTTP on 127.0.0.1, until Ctrl-C or SIGTERM; all share the episode.

    There are no sessions: tools have no state per client, and sessions that clients leave open would pile up.

    Args:
        served_tools: the tools to serve.
        port: 0 for a free one.
        on_ready: called with the URL.

    Raises:
        ConfigurationError: the port is taken.
        MissingDependencyError: the package `mcp` is not installed, or in another version.
    """
    app = guarded_requests(
        _server(served_tools).streamable_http_app(host="127.0.0.1", stateless_http=True),
        error_body=_error_body,
        hosts=None,
        max_bytes=_MAX_BODY_BYTES,
        timeout=_REQUEST_TIMEOUT,
    )
    run_app(
        app,
        "127.0.0.1",
        port=port,
        request_timeout=_REQUEST_TIMEOUT,
        lifespan="on",
        on_ready=lambda url: on_ready(f"{url}/mcp"),
    )


def _error_body(_status: int, message: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": message}}).encode()


def _server(served_tools: ServedTools) -> Any:
    check_package("mcp", 2, extra="mcp", purpose="Tools served by MCP")
    import anyio.to_thread
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent
    from mcp.types import Tool as Described

    tools = [
        Described(name=tool.name, description=tool.description, input_schema=dict(tool.parameters))
        for tool in served_tools.tools.values()
    ]

    async def list_tools(_context: Any, _parameters: Any) -> Any:
        return ListToolsResult(tools=tools)

    async def call_tool(_context: Any, parameters: Any) -> Any:
        text, ok = await anyio.to_thread.run_sync(served_tools.call, parameters.name, parameters.arguments or {})
        return CallToolResult(content=[TextContent(text=text)], is_error=not ok)

    version = installed_version("agent-r1-gym") or ""
    return Server("agent-r1-gym", version=version, on_list_tools=list_tools, on_call_tool=call_tool)
