"""Tools of an OpenAPI service: a real process that the tests start, in plain Python, and FastAPI's own document."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym import Task, ToolEnv, ToolVectorEnv
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.tools.openapi import OpenApiTool, openapi_tools
from tests.kit.openapi_service import DOCUMENT, operation, parameter

SERVICE = Path(__file__).parents[1] / "kit" / "openapi_service.py"
TASKS = (Task("0", "Go.", ("x",)),)
SECRET = "secret-token-17"


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "servers": [{"url": "http://127.0.0.1:9"}], "paths": paths, **more}


def made(paths: dict[str, Any], **more: Any) -> dict[str, OpenApiTool]:
    return {tool.name: tool for tool in openapi_tools(document(paths, **more))}


def properties(tool: OpenApiTool) -> dict[str, Any]:
    return dict(tool.parameters["properties"])


def start() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen([sys.executable, "-S", str(SERVICE)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, f"http://127.0.0.1:{int(process.stdout.readline())}"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, address = start()
    yield address
    process.kill()
    process.communicate()


def playing(tools: list[OpenApiTool]) -> ToolEnv:
    env = ToolEnv(tasks=TASKS, tools=tools, max_turns=40)
    env.reset(seed=0)
    return env


@pytest.fixture
def env(url: str) -> Iterator[ToolEnv]:
    env = playing(openapi_tools(f"{url}/openapi.json", timeout=5, max_response_bytes=100_000))
    yield env
    env.close()


def call(name: str, /, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def outcome(env: ToolEnv, name: str, /, **arguments: Any) -> Any:
    (result,) = env.step(call(name, **arguments))[4]["tool_outcomes"]
    return result


# --- requests and answers --------------------------------------------------------------------------------------------


def test_arguments_go_where_the_document_says(env: ToolEnv) -> None:
    result = outcome(env, "getItem", name="a b/../ü", n=2, tags=["x", "y"], **{"X-Lang": "nb"})
    assert result.data["name"] == "a b/../ü"
    assert result.data["query"] == {"n": ["2"], "tags": ["x", "y"]}
    assert result.data["lang"] == "nb"
    assert json.loads(result.content) == result.data and ": " not in result.content


def test_the_members_of_a_body_are_arguments(env: ToolEnv) -> None:
    assert outcome(env, "addItem", name="nail", colour="red").data["body"] == {"name": "nail", "colour": "red"}
    assert outcome(env, "addItem", colour="green").error == "bad_arguments"
    assert outcome(env, "sum", body=[1, 2.5]).content == "3.5"
    assert outcome(env, "plant", value=1, children=[{"value": 2, "children": [{"value": 3}]}]).data["value"] == 1


def test_integers_and_json_parameters_are_sent_as_the_document_says(url: str) -> None:
    where = {"name": "where", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    get = operation("get", parameter("name", "path"), parameter("n", type="integer"), where)
    api = document(
        {"/item/{name}": {"$ref": "#/components/pathItems/item"}}, components={"pathItems": {"item": {"get": get}}}
    )
    env = playing(openapi_tools(api, server=url))
    query = outcome(env, "get", name="a", n=3.0, where={"b": 1}).data["query"]
    assert query == {"n": ["3"], "where": ['{"b": 1}']}
    env.close()


@pytest.mark.parametrize(
    ("where", "style", "sent"),
    [
        ("query", {}, {"R": ["100"], "G": ["200"]}),
        ("query", {"explode": False}, {"color": ["R,100,G,200"]}),
        ("query", {"style": "pipeDelimited", "explode": False}, {"color": ["R|100|G|200"]}),
        ("query", {"style": "deepObject"}, {"color[R]": ["100"], "color[G]": ["200"]}),
        ("path", {}, "R,100,G,200"),
        ("path", {"style": "simple", "explode": True}, "R=100,G=200"),
        ("header", {}, "R,100,G,200"),
        ("header", {"explode": True}, "R=100,G=200"),
    ],
)
def test_an_object_is_sent_in_the_style_of_its_parameter(url: str, where: str, style: Any, sent: Any) -> None:
    name = "X-Lang" if where == "header" else "name" if where == "path" else "color"
    declared = {**parameter(name, where, type="object"), "required": True, **style}
    path = "/item/{name}" if where == "path" else "/item/a"
    env = playing(openapi_tools(document({path: {"get": operation("get", declared)}}), server=url))
    result = outcome(env, "get", **{name: {"R": 100, "G": 200}})
    assert result.data[{"query": "query", "path": "name", "header": "lang"}[where]] == sent
    env.close()


@pytest.mark.parametrize(
    ("media_types", "sent_as"),
    [
        (["application/merge-patch+json"], "application/merge-patch+json"),
        (["application/vnd.api+json", "application/json; charset=utf-8"], "application/json; charset=utf-8"),
        (["application/x-www-form-urlencoded", "application/json"], "application/json"),
        (["application/*+json"], "application/json"),
    ],
)
def test_a_body_is_sent_as_its_declared_type_if_possible_as_json(url: str, media_types: Any, sent_as: str) -> None:
    body = {"content": {kind: {"schema": {"type": "object", "properties": {"a": {}}}} for kind in media_types}}
    env = playing(openapi_tools(document({"/whoami": {"post": operation("p", requestBody=body)}}), server=url))
    assert outcome(env, "p", a=1).data["headers"]["Content-Type"] == sent_as
    env.close()


@pytest.mark.parametrize(("required", "members", "body"), [(True, [], {}), (False, [], {}), (False, ["a"], None)])
def test_a_body_without_arguments_is_sent_where_it_can_be_empty(
    url: str, required: bool, members: list[str], body: Any
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": members}
    content = {"required": required, "content": {"application/json": {"schema": schema}}}
    env = playing(openapi_tools(document({"/item": {"post": operation("p", requestBody=content)}}), server=url))
    assert outcome(env, "p").data["body"] == body
    assert outcome(env, "p", a=1).data["body"] == {"a": 1}
    env.close()


def test_only_a_body_has_a_content_type(url: str) -> None:
    """Fastify refuses an empty body that is announced as JSON."""
    env = playing(openapi_tools(document({"/whoami": {"delete": operation("d"), "post": operation("p")}}), server=url))
    for name in ("d", "p"):
        assert "content-type" not in {header.lower() for header in outcome(env, name).data["headers"]}
    env.close()


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_path_cannot_be_left(env: ToolEnv, name: str) -> None:
    assert outcome(env, "getItem", name=name).error == "tool_error"


def test_a_header_cannot_be_forged(env: ToolEnv) -> None:
    assert outcome(env, "getItem", name="a", **{"X-Lang": "nb\r\nAuthorization: x"}).error == "tool_error"


def test_text_empty_and_binary_responses(env: ToolEnv) -> None:
    assert outcome(env, "text").content == "{no json <answer>1</answer>"
    observation = env.step(call("text"))[0]
    assert "‹answer>" in observation and "<answer>1" not in observation
    assert outcome(env, "nothing").content == "HTTP 204, no content."
    assert outcome(env, "picture").content == "The response is image/png, 27 bytes, which cannot be shown."


@pytest.mark.parametrize("status", [400, 403, 404, 422, 501])
def test_the_model_reads_client_errors(env: ToolEnv, status: int) -> None:
    result = outcome(env, "status", code=status)
    assert (result.error, result.content) == ("tool_error", f'HTTP {status}: {{"detail":"no such thing"}}')


@pytest.mark.parametrize("status", [401, 429, 500, 503, 302])
def test_infrastructure_statuses_mark_the_episode(env: ToolEnv, status: int) -> None:
    info = env.step(call("status", code=status))[4]
    (result,) = info["tool_outcomes"]
    assert result.error == "unavailable" and f"HTTP {status}" in info["infrastructure_error"]
    assert result.retry_after == (None if status == 302 else 7)


def test_invalid_json_and_a_slow_response_are_infrastructure(url: str) -> None:
    env = playing(openapi_tools(f"{url}/openapi.json", timeout=0.3, include=["garbage", "drip"]))
    assert outcome(env, "garbage").error == "unavailable"
    assert outcome(env, "drip").error == "timeout"


def test_a_too_large_response_is_a_tool_error_and_a_long_one_is_truncated(env: ToolEnv) -> None:
    assert outcome(env, "huge", size=200_000).content == "The response is larger than 100000 bytes; request less."
    assert outcome(env, "huge", size=50_000).content.endswith("characters in all]")


def test_a_service_that_dies_in_a_call_marks_the_episode() -> None:
    process, address = start()
    env = playing(openapi_tools(f"{address}/openapi.json", timeout=5))
    assert outcome(env, "die").error == "unavailable"
    process.communicate()
    assert outcome(env, "text").error == "unavailable"
    env.close()


def test_pretty_json(url: str) -> None:
    env = playing(openapi_tools(f"{url}/openapi.json", include=["addItem"], pretty=True))
    assert '\n  "name": null' in outcome(env, "addItem", name="nail").content


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
def test_credentials_reach_the_service_and_no_output(url: str, late: bool) -> None:
    headers, query = {"Authorization": f"Bearer {SECRET}"}, {"api_key": SECRET}
    tools = openapi_tools(
        f"{url}/openapi.json",
        include=["getItem", "whoami"],
        headers=(lambda: headers) if late else headers,
        query=(lambda: query) if late else query,
    )
    assert "api_key" not in properties(tools[0])
    env = playing(tools)
    login = outcome(env, "getItem", name="a")
    assert login.data["login"] == "[hidden]" and login.data["query"] == {"api_key": ["[hidden]"]}
    info = env.step(call("whoami"))[4]
    assert "[hidden]" in str(info)
    assert SECRET not in str(info) + repr(tools) + repr(tools[0].service) + str(env.tool_schemas)


def test_a_credential_that_cannot_be_sent_is_refused_and_never_shown(url: str) -> None:
    current = [f"Bearer {SECRET}\n"]
    for headers in ({"Authorization": current[0]}, lambda: {"Authorization": current[0]}):
        with pytest.raises(ConfigurationError, match="'Authorization' has a line break at its end") as refusal:
            openapi_tools(f"{url}/openapi.json", headers=headers)
        assert SECRET not in str(refusal.value)
    current[0] = f"Bearer {SECRET}"
    env = playing(openapi_tools(f"{url}/openapi.json", headers=lambda: {"Authorization": current[0]}))
    current[0] += "\r"  # a new token
    info = env.step(call("text"))[4]
    (result,) = info["tool_outcomes"]
    assert result.error == "unavailable" and "'Authorization' has a line break" in result.content
    assert SECRET not in str(info)
    env.close()


def test_a_dead_service_shows_no_credentials() -> None:
    tools = openapi_tools(DOCUMENT, server="http://127.0.0.1:9", include=["text"], query={"api_key": SECRET})
    result = outcome(playing(tools), "text")
    assert result.error == "unavailable" and SECRET not in result.content and "cannot be reached" in result.content


def test_only_allowed_hosts_are_used() -> None:
    foreign = document({"/x": {"get": operation("x")}}) | {"servers": [{"url": "https://user@api.example.com/v1"}]}
    with pytest.raises(ConfigurationError, match=r"'api.example.com' is not allowed: pass hosts="):
        openapi_tools(foreign)
    (tool,) = openapi_tools(foreign, hosts=["api.example.com"])
    assert tool.service.url == "https://api.example.com/v1"
    (tool,) = openapi_tools(foreign, server="http://10.0.0.1:80")
    assert tool.service.url == "http://10.0.0.1:80"


# --- environments ----------------------------------------------------------------------------------------------------


def test_many_environments_share_a_service_and_equal_gets_are_sent_once(url: str) -> None:
    tools = openapi_tools(f"{url}/openapi.json", include=["requests", "getItem"], deterministic=True)
    vector = ToolVectorEnv([ToolEnv(tasks=TASKS, tools=tools) for _ in range(16)])
    vector.reset(seed=0)
    infos = vector.step([call("requests")] * 16)[4]
    assert len({outcomes[0].content for outcomes in infos["tool_outcomes"]}) == 1
    infos = vector.step([call("getItem", name=str(i)) for i in range(16)])[4]
    assert [outcomes[0].data["name"] for outcomes in infos["tool_outcomes"]] == [str(i) for i in range(16)]
    vector.close()


def test_copies_and_pickles_send_requests(env: ToolEnv) -> None:
    assert outcome(env, "sum", body=[1]).content == "1"
    for double in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert outcome(double, "sum", body=[1, 2]).content == "3"
        double.close()


# --- schemas ---------------------------------------------------------------------------------------------------------


def test_references_are_inlined_and_recursive_schemas_cut() -> None:
    tools = {tool.name: tool for tool in openapi_tools(DOCUMENT, server="http://127.0.0.1:9")}
    assert properties(tools["addItem"]) == {
        "name": {"type": "string", "description": "what it is called"},
        "colour": {"enum": ["red", "blue"]},
    }
    again = properties(tools["plant"])["children"]["items"]
    assert again == {"type": "object", "description": "Node, as above"}


def test_openapi_3_0_becomes_json_schema() -> None:
    schema = {"type": "integer", "nullable": True, "minimum": 0, "exclusiveMinimum": True, "format": "int32"}
    (tool,) = openapi_tools(document({"/x": {"get": operation("x", parameter("n", **schema))}}) | {"openapi": "3.0.3"})
    assert properties(tool)["n"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    assert tool.check({"n": None}) is None and tool.check({"n": 1}) is None
    assert tool.check({"n": 0}) is not None


def test_invalid_tool_names_are_changed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"'shop.get/x' is 'shop_get_x'"):
        made({"/x": {"get": operation("shop.get/x")}})
    path = {"/x/{y}": {"get": {"parameters": [parameter("y", "path") | {"required": True}]}}}
    assert list(made(path)) == ["get_x_y"]  # without an operationId


def test_two_parameters_of_one_name_are_two_arguments() -> None:
    twice = operation("x", parameter("id", "path") | {"required": True}, parameter("id"), body=None)
    assert set(properties(made({"/x/{id}": {"get": twice}})["x"])) == {"id", "id_query"}


def test_fastapis_own_document(tmp_path: Path) -> None:
    fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
    pydantic = pytest.importorskip("pydantic")
    app = fastapi.FastAPI()
    point = pydantic.create_model("Point", x=(int, ...), y=(int | None, None))

    def measure(point: Any, unit: str = "m") -> str:
        """Measures."""
        return unit

    measure.__annotations__["point"] = point
    app.post("/measure")(measure)
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(app.openapi()))
    (tool,) = openapi_tools(path, server="http://127.0.0.1:9")
    assert (tool.name, tool.description) == ("measure_measure_post", "Measures.")
    assert tool.check({"x": 1, "y": None, "unit": "km"}) is None
    assert "x (integer)" in str(tool.check({}))


def test_a_document_in_yaml(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    path = tmp_path / "api.yaml"
    path.write_text(yaml.safe_dump(document({"/x": {"get": operation("x")}})))
    assert [tool.name for tool in openapi_tools(path)] == ["x"]


# --- what is refused -------------------------------------------------------------------------------------------------

UPLOAD = operation("upload") | {"requestBody": {"content": {"multipart/form-data": {"schema": {}}}}}
UNFIT = {
    "upload": (UPLOAD, "its body is multipart/form-data"),
    "remote": (operation("remote", body={"$ref": "other.yaml#/X"}), "another document"),
    "dangling": (operation("dangling", body={"$ref": "#/components/nothing"}), "does not exist"),
    "cookie": (operation("cookie", parameter("sid", "cookie") | {"required": True}), "needs the cookie"),
    "broken": (operation("broken", "no parameter"), "expected an object"),
    "matrix": (
        operation("matrix", {"name": "y", "in": "path", "required": True, "style": "matrix", "schema": {}}),
        "its parameter 'y' has the style matrix",
    ),
    "elsewhere": (operation("elsewhere") | {"servers": [{"url": "http://x"}]}, "its own server"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_be_a_tool_is_skipped_with_a_warning_or_refused(name: str) -> None:
    wrong, problem = UNFIT[name]
    api = document({"/x": {"post": wrong}, "/y": {"get": operation("good")}})
    with pytest.warns(UserWarning, match=f"skipped: '{name}': .*{problem}"):
        assert [tool.name for tool in openapi_tools(api)] == ["good"]
    with pytest.raises(ConfigurationError, match=problem):
        openapi_tools(api, include=[name])


def test_a_path_with_an_undeclared_parameter_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="its path needs 'y', which is not a parameter"):
        made({"/x/{y}": {"get": operation("x")}})


def test_a_schema_that_grows_without_end_is_refused() -> None:
    levels = {
        f"L{i}": {"type": "object", "properties": {side: {"$ref": f"#/components/schemas/L{i + 1}"} for side in "ab"}}
        for i in range(40)
    } | {"L40": {"type": "string"}}
    with pytest.raises(ConfigurationError, match="more than 5000 parts"):
        made({"/x": {"post": operation("x", body={"$ref": "#/components/schemas/L0"})}}, components={"schemas": levels})


LONG = "x" * 3_000_000


def in_yaml(*lines: str, schema: str = "{type: string}") -> str:
    """A document with one operation, whose parameter has a schema; first come lines that define anchors."""
    head = ["openapi: 3.1.0", "info: {title: x, version: '1'}", "servers: [{url: 'http://127.0.0.1:9'}]", *lines]
    parameter = f"{{name: a, in: query, schema: {schema}}}"
    return "\n".join([*head, f"paths: {{/x: {{get: {{operationId: f, parameters: [{parameter}], responses: {{}}}}}}}}"])


def doubled(first: str, level: str, levels: int) -> list[str]:
    return [f"x-0: &a0 {first}", *(f"x-{i}: &a{i} {level.format(f'*a{i - 1}')}" for i in range(1, levels))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (in_yaml(schema="&s {type: object, properties: {x: *s}}"), "refers to an object around itself"),
        (in_yaml(schema="{enum: &e [1, *e]}"), "refers to an object around itself"),
        (in_yaml("x-a: &a [*a]", schema="{default: *a}"), "refers to an object around itself|neither JSON nor YAML"),
        (in_yaml(*doubled("[x]", "[{0}, {0}, {0}, {0}]", 30), schema="{default: *a29}"), "aliases are expanded"),
        (in_yaml(*doubled("{k: v}", "{{a: {0}, b: {0}}}", 40), schema="*a39"), "aliases are expanded"),
        (in_yaml(*doubled("[x]", "[{0}]", 300), schema="{default: *a299}"), "nested more than 200 levels"),
        (in_yaml(f"x-d: &d {LONG}", schema="{enum: [*d, *d, *d, *d, *d, *d]}"), "aliases are expanded"),
        (in_yaml(f"x-d: &d {LONG}", schema="{description: *d}"), "more than 262,144 characters"),
        (in_yaml("x-0: &a0 {k: v}", *(f"x-{i}: &a{i} {{<<: *a{i - 1}, k{i}: v}}" for i in range(1, 2000))), "members"),
        (in_yaml(schema="{items: " * 90 + "{}" + "}" * 90), "nested more than 64 levels"),
        (in_yaml(schema="[" * 400 + "]" * 400), "nested more than 200 levels"),
    ],
)
def test_aliases_of_yaml_do_not_grow(tmp_path: Path, text: str, problem: str) -> None:
    pytest.importorskip("yaml", reason="pyyaml is not installed")
    (tmp_path / "api.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        openapi_tools(tmp_path / "api.yaml")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_references_to_a_long_text_do_not_grow() -> None:
    texts = {"Long": {"type": "string", "description": "x" * 100_000}}
    body = {"type": "object", "properties": {name: {"$ref": "#/components/schemas/Long"} for name in "abc"}}
    api = document({"/x": {"post": operation("x", body=body)}, "/y": {"get": operation("y")}})
    with pytest.warns(UserWarning, match="'x': the texts of its schema have more than 262,144 characters"):
        (tool,) = openapi_tools({**api, "components": {"schemas": texts}})
    assert tool.name == "y"


@pytest.mark.slow
def test_operations_and_parameters_are_counted_before_they_are_read() -> None:
    many = document({f"/{i}": {"get": operation(f"f{i}")} for i in range(2_001)})
    with pytest.raises(ConfigurationError, match="has 2001 operations; at most 2000 can be tools: pass include="):
        openapi_tools(many)
    assert [tool.name for tool in openapi_tools(many, include=["f7"])] == ["f7"]
    with pytest.raises(ConfigurationError, match="it has 501 parameters, more than 500"):
        made({"/x": {"get": operation("x", *(parameter(f"p{i}", "query") for i in range(501)))}})


def test_anchors_and_merges_of_ordinary_size_are_read(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="pyyaml is not installed")
    text = in_yaml("x-a: &a {type: string, description: An id.}", schema="{<<: *a, maxLength: 9}")
    (tmp_path / "api.yaml").write_text(text)
    (tool,) = openapi_tools(tmp_path / "api.yaml")
    assert tool.parameters["properties"]["a"] == {"type": "string", "description": "An id.", "maxLength": 9}


def test_circular_references_are_refused() -> None:
    circle = {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}
    with pytest.raises(ConfigurationError, match="cannot be tools"):
        made({"/x": {"post": operation("x", body={"$ref": "#/components/schemas/A"})}}, components={"schemas": circle})


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "is not an OpenAPI document"),
        ('{"swagger": "2.0"}', "Swagger 2.0; convert it"),
        ('{"openapi": "4.0"}', "must have 'openapi'"),
        ('{"openapi": "3.1.0", "paths": {}}', "names no server"),
        ("{" + " " * (16 * 2**20), "at most 16777216 are read"),
    ],
    ids=["broken", "list", "swagger", "version", "empty", "huge"],
)
def test_an_invalid_document_is_a_one_line_error(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "api.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        openapi_tools(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"include": ["nothing at all"]}, "There is no operation"),
        ({"tags": ["itms"]}, "Did you mean 'items'"),
        ({"include": "text"}, "must be a list of names"),
        ({"hosts": "x"}, "hosts must be a list"),
        ({"headers": {"a": 1}}, "headers must map names to strings"),
        ({"server": "ftp://x"}, "names no server"),
        ({"max_response_bytes": 0}, "max_response_bytes"),
        ({"timeout": 0}, "timeout must be positive"),
    ],
)
def test_invalid_options_are_one_line_errors(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        openapi_tools(DOCUMENT, **{"server": "http://127.0.0.1:9", **options})


def test_operations_are_selected_by_tag() -> None:
    tools = openapi_tools(DOCUMENT, server="http://127.0.0.1:9", tags=["write"])
    assert [tool.name for tool in tools] == ["addItem"]


def test_a_document_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        openapi_tools(tmp_path / "nothing.json")
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        openapi_tools("http://127.0.0.1:9/openapi.json")


def test_operations_of_equal_names_are_all_there() -> None:
    paths = {"/a/b": {"get": operation("")}, "/a_b": {"get": operation("")}}
    with pytest.warns(UserWarning, match="get /a_b"):
        tools = openapi_tools(document(paths))
    assert sorted(tool.operation.path for tool in tools) == ["/a/b", "/a_b"]
    assert len({tool.name for tool in tools}) == 2


@pytest.mark.parametrize(
    ("style", "value", "sent"),
    [
        ({}, ["x", 7], {"a": ["x", "7"]}),
        ({"explode": False}, ["x", 7], {"a": ["x,7"]}),
        ({"style": "pipeDelimited", "explode": False}, ["x", 7], {"a": ["x|7"]}),
        ({"style": "deepObject"}, {"from": 1, "to": None}, {"a[from]": ["1"]}),
        ({}, None, {}),  # an optional argument that the model left empty
    ],
)
def test_a_value_of_any_type_is_sent_in_the_style_of_its_parameter(url: str, style: Any, value: Any, sent: Any) -> None:
    declared = {"name": "a", "in": "query", "schema": {}, **style}
    env = playing(openapi_tools(document({"/item/x": {"get": operation("get", declared)}}), server=url))
    assert outcome(env, "get", a=value).data["query"] == sent
    env.close()


def test_tags_of_a_wrong_type_are_ignored() -> None:
    (tool,) = openapi_tools(document({"/a": {"get": {**operation("a"), "tags": 5}}}))
    assert tool.operation.path == "/a"
