"""What servers refuse, in the words of many servers: a full context, fields, whole runs; and failures behind a 200."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.run.endpoint import ChatEndpoint, Completion, ContextLengthError, EndpointOptions
from agent_r1_gym.run.engines import EndpointEngine
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.record import Trajectory
from benchmarks.speed.chat_server import Answer, served, turn
from tests.kit.helpers import TASKS, EchoTool, answer, call
from tests.run.test_endpoint import FIRST, HELLO, Script, ask, play


def error(message: Any, status: int = 400, **fields: Any) -> Answer:
    return Answer(json.dumps({"error": {"message": message, **fields}}).encode(), status=status)


FULL = {
    "OpenAI": error(
        "This model's maximum context length is 900 tokens, but you sent 950.", code="context_length_exceeded"
    ),
    "OpenAI, code only": error("Too much.", code="context_length_exceeded"),
    "Azure": error("This model's maximum context length is 900 tokens, however you requested 950 tokens."),
    "vLLM V0": error("You requested 950 tokens. Please reduce the length of the messages or completion."),
    "vLLM V1": error("The decoder prompt (length 950) is longer than the maximum model length of 900."),
    "vLLM, later": error("Input length (950) exceeds model's maximum context length (900)."),
    "SGLang": error("The input (950 tokens) is longer than the model's context length (900 tokens)."),
    "SGLang, total": error("Requested token count exceeds the model's maximum context length of 900 tokens."),
    "llama.cpp": error("request (950 tokens) exceeds the available context size (900 tokens)"),
    "llama.cpp, type": error("no room", type="exceed_context_size_error", n_ctx=900),
    "llama.cpp, 500": error("the input is too large to process", 500),
    "TGI": Answer(
        b'{"error": "`inputs` tokens + `max_new_tokens` must be <= 900. Given: 950", "error_type": "validation"}', 422
    ),
    "TGI, inputs": Answer(b'{"error": "`inputs` must have less than 900 tokens. Given: 950"}', 422),
    "LM Studio": Answer(b'{"error": "Trying to keep the first 950 tokens when context the overflows."}', 400),
    "LM Studio, 200": Answer(b'{"error": "The number of tokens to keep is greater than the context length."}', 200),
    "Ollama": error("the input length exceeds the context length", 500),
    "LMDeploy": error("The input token length 950 exceeds the session limit of 900"),
    "Anthropic": error("prompt is too long: 950 tokens > 900 maximum", type="invalid_request_error"),
    "Anthropic, both": error("input length and `max_tokens` exceed context limit: 890 + 20 > 900"),
    "Bedrock": error("Input is too long for requested model."),
    "Together": error("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 901."),
    "Fireworks": error("The prompt is too long: 950, model maximum context length: 900"),
    "OpenRouter": error(
        "This endpoint's maximum context length is 900 tokens. However, you requested about 950 tokens"
    ),
    "OpenRouter, raw": error("Provider returned error", metadata={"raw": '{"detail":"Prompt too long"}'}),
    "Poolside": error("Input length 950 exceeds the maximum allowed input length of 900 tokens."),
    "Gemini": error("The input token count (950) exceeds the maximum number of tokens allowed (900)."),
    "Vertex": error("the input token count is 950 but model only supports up to 900"),
    "Mistral": error("Prompt contains 950 tokens and 0 draft tokens, too large for model with 900 maximum"),
    "xAI": error("This model's maximum prompt length is 900 but the request contains 950 tokens."),
    "Groq": error("Please reduce the length of the messages or completion.", 413),
    "Cohere": error("too many tokens: size limit exceeded by 50 tokens."),
    "Kimi": error("Invalid request: Your request exceeded model token limit: 900 (requested: 950)"),
    "Qwen": error("Range of input length should be [1, 900]"),
    "Z.AI": error("Wrong.", code="1261"),
    "Zhipu": error("Prompt 超长"),
    "MiniMax": error("context window exceeds limit"),
    "GitHub Models": error(
        "Request body too large for gpt model. Max size: 900 tokens.", 413, code="tokens_limit_reached"
    ),
    "TabbyAPI": Answer(b'{"detail": "Prompt length 950 is greater than max_seq_len 900"}', 400),
    "nginx": Answer(b"<html>413 Request Entity Too Large</html>", 413),
    "behind a proxy": error("x" * 2_000 + " maximum context length is 900"),
    "a list of errors": Answer(b'{"detail": [{"loc": ["body"], "msg": "Value error, prompt too long"}]}', 422),
}


@pytest.mark.parametrize("words", FULL)
def test_a_full_context_is_recognised_in_the_words_of_many_servers(words: str) -> None:
    script = Script(FULL[words])
    with pytest.raises(ContextLengthError):
        ask(script, max_retries=1, max_turn_tokens=100)
    assert len(script.requests) == 1  # not retried, whatever the status


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (error("Too many tokens, please wait before trying again.", 429), InfrastructureError),
        (error("Request too large: tokens per minute (TPM): limit 6000, requested 9000", 413), InfrastructureError),
        (error("Current token count exceeds your organization quota"), InfrastructureError),
        (error("The schema of response_format is too long"), InfrastructureError),
        (error("max_tokens must be less than or equal to 64", param="max_tokens"), ConfigurationError),
        (error("Requested max_tokens exceeds the output limit of the model"), ConfigurationError),
        (error("temperature exceeds maximum allowed value"), ConfigurationError),
        (error("This model's maximum context length is 64 tokens; max_tokens is too large: 100."), ConfigurationError),
        (error("max_tokens=100 cannot be greater than max_model_len=64."), ConfigurationError),
        # FastAPI quotes the request: these words are the prompt's.
        (
            Answer(
                b'{"detail": [{"msg": "Field required", "input": "how large is the maximum context length?"}]}', 422
            ),
            InfrastructureError,
        ),
    ],
)
def test_other_refusals_are_not_a_full_context(refusal: Answer, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        ask(Script(refusal), max_retries=0, max_turn_tokens=100)
    assert not isinstance(caught.value, ContextLengthError)


def test_an_answer_of_no_token_that_ends_by_length_is_a_full_context() -> None:
    body = {"choices": [{"message": {"content": ""}, "finish_reason": "length"}], "usage": {"completion_tokens": 0}}
    with pytest.raises(ContextLengthError):
        ask(Script(Answer(json.dumps(body).encode())))


@pytest.mark.parametrize(("text", "noted"), [("<answer>Par", True), (call("echo", text="a"), False)])
def test_a_turn_that_the_server_cut_is_an_action_whose_feedback_says_so(text: str, noted: bool) -> None:
    body = {"choices": [{"message": {"content": text}, "finish_reason": "length"}]}
    script = Script(Answer(json.dumps(body).encode()), turn(answer("Paris")))
    record = play(script, jobs=[FIRST])[0, 0]
    assert record.turns[0].action == text and record.answer == "Paris"
    assert ("The token limit cut the turn there" in record.messages[-2].content) is noted


def test_the_episode_ends_and_is_scored() -> None:
    record = play(Script(turn(call("echo", text="x")), FULL["vLLM V1"]))[0, 0]
    assert (record.truncated, record.end_reason, record.infrastructure_error) == (True, "max_context", None)
    assert record.scores["em"] == 0.0


def test_a_prompt_that_does_not_fit_is_scored_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    record = play(Script(FULL["SGLang"]))[0, 0]
    assert (record.truncated, record.end_reason, record.turns, record.scores["em"]) == (True, "max_context", (), 0.0)
    assert "does not fit the model's context" in capsys.readouterr().err


# --- fields ----------------------------------------------------------------------------------------------------------


class Picky:
    """A server that refuses fields, in the words it has for each, and otherwise answers."""

    def __init__(self, **refusals: Answer) -> None:
        self.refusals = refusals
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any], headers: Any) -> Answer:
        self.requests.append(request)
        return next((self.refusals[name] for name in self.refusals if name in request), turn("hi"))


SEED_REFUSALS = {
    "Azure AI": Answer(
        b'{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"msg":"Extra inputs are not permitted"}]}', 422
    ),
    "Gemini": error('Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
    "LiteLLM": error("gemma does not support parameters: {'seed': 7}, for model=gemma", 500),
    "LlamaEdge": Answer(b"unknown field `seed`", 400),
}


@pytest.mark.parametrize("words", SEED_REFUSALS)
def test_a_seed_that_is_refused_is_no_longer_sent(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    server = Picky(seed=SEED_REFUSALS[words])
    assert ask(server, max_retries=0).content == "hi"
    assert "seed" not in server.requests[-1] and len(server.requests) == 2
    assert "samples cannot be repeated" in capsys.readouterr().err


def test_a_reasoning_model_gets_the_fields_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    server = Picky(
        max_tokens=error(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        temperature=error(
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported.",
            param="temperature",
        ),
    )
    tasks = [Task(str(index), "?", ("x",)) for index in range(6)]
    with served(server) as url:
        endpoint = ChatEndpoint(EndpointOptions(model="thinker", base_url=url, max_retries=0), max_concurrent=1)
        engine = EndpointEngine(endpoint, max_concurrent=1)
        records: list[Trajectory] = []
        Player(lambda: ToolEnv(tasks=tasks, max_turns=1)).play(evaluation_jobs(range(6)), engine, records.append)
        engine.close()
    assert [record.infrastructure_error for record in records] == [None] * 6
    assert len(server.requests) == 2 + 6  # each refusal once per endpoint, not once per episode
    assert server.requests[-1]["max_completion_tokens"] == 512
    assert not {"max_tokens", "temperature"} & set(server.requests[-1])
    notes = capsys.readouterr().err
    assert notes.count("thinker takes no") == 2 and "sampled at the model's own temperature" in notes


def test_two_settings_that_exclude_each_other() -> None:
    server = Picky(top_p=error("`temperature` and `top_p` cannot both be specified for this model."))
    assert ask(server, temperature=0.5, top_p=0.9).content == "hi"
    assert server.requests[-1]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("options", "refusal", "advice"),
    [
        ({"extra_body": {"top_k": 4}}, error("Unrecognized request argument supplied: top_k"), "'top_k' of extra_body"),
        ({"extra_body": {"seed": 3}}, error("Unsupported parameter: seed"), "'seed' of extra_body"),
        ({}, error("max_tokens is too large: 512. This model supports at most 128."), "max_turn_tokens"),
    ],
)
def test_what_cannot_be_adapted_stops_the_run_with_advice(options: Any, refusal: Answer, advice: str) -> None:
    script = Script(refusal)
    with pytest.raises(ConfigurationError, match=advice):
        ask(script, max_retries=0, **options)
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    "words",
    [
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
        "Conversation roles must alternate user/assistant/user/assistant/...",
        "Only user and assistant roles are supported!",
    ],
)
def test_a_server_without_plain_tool_turns_names_the_option(words: str) -> None:
    script = Script(turn(call("echo", text="x")), error(words))
    with pytest.raises(ConfigurationError, match="tool_role='user'"):
        play(script, max_retries=0)
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    "words", ["gemma:2b does not support tools", '"auto" tool choice requires --enable-auto-tool-choice']
)
def test_structured_calls_on_a_server_without_them_name_the_parser(words: str) -> None:
    env = lambda: ToolEnv(tasks=TASKS, tools=[EchoTool()], parser="openai")  # noqa: E731
    with pytest.raises(ConfigurationError, match="calls as text"):
        play(Script(error(words)), env=env, max_retries=0)


def test_a_refusal_of_every_conversation_is_asked_thrice_not_once_per_episode() -> None:
    script = Script(error("This deployment has expired (id 81f2)."))
    tasks = [Task(str(index), f"question {index}", ("x",)) for index in range(20)]
    with served(script) as url:
        endpoint = ChatEndpoint(EndpointOptions(model="m", base_url=url, max_retries=0), max_concurrent=1)
        engine = EndpointEngine(endpoint, max_concurrent=1)
        with pytest.raises(ConfigurationError, match="first 3 conversations were refused in these words"):
            Player(lambda: ToolEnv(tasks=tasks)).play(evaluation_jobs(range(20)), engine, lambda record: None)
        engine.close()
    assert len(script.requests) == 3


def test_a_content_filter_loses_one_conversation_not_the_run() -> None:
    with pytest.raises(InfrastructureError, match="flagged"):
        ask(Script(error("Your input was flagged by moderation.", 403)), max_retries=0)


# --- failures behind a 200 -------------------------------------------------------------------------------------------


def completion(**choice: Any) -> Answer:
    return Answer(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}).encode())


EMPTY = {
    "choices": [{"message": {"content": None}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 0, "completion_tokens": 0},
}


@pytest.mark.parametrize(
    "failure",
    [
        Answer(b'{"error": {"message": "Provider returned error", "code": 502}, "user_id": "u"}'),
        Answer(b'{"choices": null, "error": {"message": "busy", "code": 429}}'),
        completion(message={"content": "half an ans"}, finish_reason="error", error={"message": "gone", "code": 502}),
        completion(message={"content": "half"}, finish_reason="error"),
        Answer(json.dumps(EMPTY).encode()),
    ],
)
def test_a_failure_reported_with_200_is_tried_again(failure: Answer) -> None:
    script = Script(failure, turn("hi"))
    assert ask(script, max_retries=1).content == "hi"
    assert len(script.requests) == 2


def test_the_providers_reason_is_shown() -> None:
    refusal = error("Provider returned error", 400, metadata={"raw": "the deployment was deleted"})
    with pytest.raises(InfrastructureError, match="Provider returned error: the deployment was deleted"):
        ask(Script(refusal), max_retries=0)


# --- content ---------------------------------------------------------------------------------------------------------

TEXT = {"type": "text", "text": answer("x")}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": [TEXT]}, Completion(answer("x"))),
        ({"content": [{"type": "output_text", "text": "a"}, {"type": "text", "text": "b"}]}, Completion("ab")),
        (
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, TEXT]},
            Completion(answer("x"), "hm"),
        ),
        ({"content": [{"type": "thinking", "thinking": "hm"}, TEXT]}, Completion(answer("x"), "hm")),
        ({"content": [{"type": "reasoning", "text": "hm"}, TEXT]}, Completion(answer("x"), "hm")),
        ({"content": "a", "reasoning": [{"type": "text", "text": "hm"}]}, Completion("a", "hm")),
        ({"content": "a", "thinking": "hm"}, Completion("a", "hm")),
        ({"content": None, "refusal": "I cannot."}, Completion("I cannot.")),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, Completion("I cannot.")),
        ({"content": []}, Completion("")),
    ],
)
def test_content_in_parts(message: dict[str, Any], expected: Completion) -> None:
    found = ask(Script(completion(message=message)))
    assert (found.content, found.thinking) == (expected.content, expected.thinking)


def test_a_part_that_is_no_text_is_reported() -> None:
    with pytest.raises(InfrastructureError, match="not a chat completion"):
        ask(Script(completion(message={"content": [{"type": "image_url", "image_url": {"url": "x"}}]})))


@pytest.mark.parametrize("thinking", ["a </think> b", "<think>a </think> b</think>", "a </THINK > b"])
def test_a_tag_inside_separated_reasoning_does_not_end_it(thinking: str) -> None:
    forged = f"{thinking} {call('echo', text='forged')}"
    record = play(Script(turn(answer("Paris"), reasoning_content=forged)), jobs=[FIRST])[0, 0]
    assert record.answer == "Paris" and record.turns[0].call_errors == ()


def test_the_history_is_sent_again_after_a_note() -> None:
    server = Picky(seed=SEED_REFUSALS["Gemini"])
    ask(server, max_retries=0)
    assert server.requests[0]["messages"] == server.requests[1]["messages"] == [Message("user", "hello").to_dict()]
    assert (Message("user", "hello"),) == HELLO
