"""What a model reads before and after its turns: tool styles, reminders of the format, plain turns, conversations."""

import json

import pytest

from agent_r1_gym import ConfigurationError, Task, Tool, ToolEnv, load_tasks, tool
from agent_r1_gym.core.parsing import TOOL_STYLES, HermesParser, make_parser
from agent_r1_gym.core.parsing.base import example_call, signature
from agent_r1_gym.core.parsing.plain_turn import plain_answer
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import DatasetError


@tool(timeout=None)
def next_ferry(origin: str, destination: str, after: str = "00:00") -> str:
    """Find the next ferry.

    Args:
        origin: port where it leaves
        destination: port where it arrives
        after: earliest time
    """
    return "12:10"


class Typed(Tool):
    """Takes what its schema allows."""

    def __init__(self, parameters):
        super().__init__("typed", "Takes a value.", parameters, timeout=None)

    def execute(self, arguments):
        return "done"


def make(**options):
    return ToolEnv(**{"tasks": [Task("t", "When?", ("12:10",))], "tools": [next_ferry], **options})


class TestToolStyles:
    def test_a_signature_has_types_defaults_and_descriptions_and_a_call_that_parses(self):
        text = make(tool_style="signature").system_text(make_parser("hermes", "signature"))
        assert (
            "- next_ferry(origin: string, destination: string, after: string (optional)): Find the next ferry." in text
        )
        assert "    origin: port where it leaves" in text
        example = text[text.index("<tool_call>") : text.index("</tool_call>") + len("</tool_call>")]
        (call,) = HermesParser().parse(example).calls
        assert set(call.arguments) == {"origin", "destination"}

    def test_the_example_call_is_one_that_the_tool_accepts(self):
        nested = {"type": "object", "properties": {"x": {"const": "v1"}}, "required": ["x"]}
        for schema, expected in [
            ({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}, 1),
            ({"oneOf": [{"type": "null"}, {"enum": ["a", "b"]}]}, "a"),
            ({"type": ["null", "boolean"]}, True),
            ({"const": 5}, 5),
            (True, "your value"),
            (nested, {"x": "v1"}),
            ({"type": "integer", "minimum": 3}, 3),
            ({"type": "integer", "exclusiveMinimum": 3}, 4),
            ({"type": "integer", "maximum": 0}, 0),
            ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
            ({"type": "number", "minimum": 0, "maximum": 1}, 1),
            ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
            ({"type": "number", "minimum": 2.5}, 2.5),
            ({"type": "string", "minLength": 12}, "your value.."),
            ({"type": "string", "maxLength": 4}, "your"),
            ({"type": "array", "items": {"type": "integer", "minimum": 2}, "minItems": 2}, [2, 2]),
            ({"type": "array", "items": [{"type": "integer"}, {"type": "null"}]}, [1, None]),
        ]:
            parameters = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
            typed = Typed(parameters)
            call = example_call(typed.schema)
            assert call.arguments == {"value": expected}, schema
            assert typed.check(call.arguments) is None, schema

    def test_further_lines_of_a_description_are_indented(self):
        """A small model reads a line at the margin as the next part of the prompt."""
        function = {"name": "look", "description": "Look.\n\nSlow at night.", "parameters": {"properties": {"at": {}}}}
        assert signature({"function": function}) == "- look(at: any (optional)): Look.\n    Slow at night."

    def test_native_lists_nothing_and_schema_lists_json(self):
        texts = {style: make(tool_style=style).reset()[0] for style in TOOL_STYLES[:2]}
        assert "next_ferry" not in make(parser="native", tool_style="native").reset()[0]
        assert '"properties"' in texts["schema"]
        assert len(texts["signature"]) < len(texts["schema"])

    def test_a_style_that_the_format_does_not_support_is_refused(self):
        for parser, style in [
            ("search-r1", "schema"),
            ("openai", "signature"),
            ("hermes", "yaml"),
            ("hermes", "native"),
        ]:
            with pytest.raises(ConfigurationError, match="tool_style"):
                make_parser(parser, style)
        with pytest.raises(ConfigurationError, match="Parser object"):
            make_parser(HermesParser(), "signature")
        assert make_parser(HermesParser("signature"), "signature").tool_style == "signature"


class TestFeedback:
    @pytest.mark.parametrize("turn", ["It leaves at noon.", "<tool_call>{</tool_call>", "<think>hm", "<answer>12:10"])
    def test_it_shows_the_format_in_its_own_tags_with_the_tools(self, turn):
        env = make()
        env.reset()
        feedback = env.step(turn)[4]["new_messages"][-1].content
        assert "(next_ferry)" in feedback
        example = feedback[feedback.rindex("<tool_call>") : feedback.rindex("</tool_call>") + len("</tool_call>")]
        assert env.parser.parse(example).calls[0].name == "next_ferry"
        assert feedback.endswith("<answer>your answer</answer>") == turn.startswith("<answer>")

    def test_what_it_quotes_of_the_model_is_broken(self):
        env = make()
        env.reset()
        feedback = env.step('<tool_call>{"name": <|im_end|><answer>x</tool_call>')[4]["new_messages"][-1].content
        assert "<|im_end|>" not in feedback
        assert "‹answer>x" in feedback

    def test_short_feedback_has_codes_alone(self):
        env = make(feedback="short")
        env.reset()
        assert env.step("hm")[4]["new_messages"][-1].content == "error no_action"

    def test_arguments_under_another_key_never_run_a_call_without_them(self):
        calls = []

        @tool(timeout=None)
        def erase(folder: str = "/") -> str:
            """Erase a folder."""
            calls.append(folder)
            return "done"

        for parser, turns in {
            "hermes": [
                '<tool_call>{"name": "erase", "parameters": {"folder": "/old"}}</tool_call>',
                '<tool_call>{"name": "erase", "folder": "/old"}</tool_call>',
            ],
            "openai": [
                '{"tool_calls": [{"function": {"name": "erase", "args": {"folder": "/old"}}}]}',
                '{"tool_calls": [{"function": {"name": "erase"}, "arguments": {"folder": "/old"}}]}',
            ],
        }.items():
            for turn in turns:
                env = make(tools=[erase], parser=parser)
                env.reset()
                info = env.step(turn)[4]
                assert [error.code for error in info["parse_errors"]] == ["unknown_keys"]
        assert calls == []


class TestPlainTurns:
    @pytest.mark.parametrize(
        ("extractor", "text", "expected"),
        [
            ("text", " Paris \n", "Paris"),
            ("text", "<think>no</think>Paris", "Paris"),
            ("number", "3 boats, so 1,200 in all.", "1200"),
            ("number", "None.", None),
            ("boxed", r"So \boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
            ("boxed", r"\boxed{1", None),
            ("phrase", "I think. The answer is: **42**.", "42"),
            ("phrase", "Final answer: 3.5 km\nDone", "3.5 km"),
            ("phrase", "No idea.", None),
            ("phrase", "The answer is St. Louis.", "St. Louis"),
            ("phrase", "So the answer is J. K. Rowling.", "J. K. Rowling"),
            ("phrase", "The answer is:\n\n42\nDone", "42"),
            ("phrase", "The answer is 42. because I said so", "42"),
            ("phrase", "The answer is Paris. It is a city.", "Paris"),
            ("phrase", "The answer is yes! Really.", "yes"),
            ("phrase", "The answer is no. It is not.", "no"),
            ("phrase", "The answer is 5 ft. That is all.", "5 ft"),
            ("phrase", "The answer is Mr. Smith of Acme Inc. Only he.", "Mr. Smith of Acme Inc. Only he"),
            ("phrase", "The answer is f(x). Then", "f(x)"),
            ("phrase", "The answer isn't Rome.", None),
            ("phrase", "The answer is Rome. The answer isn't Paris.", "Rome"),
        ],
    )
    def test_extractors(self, extractor, text, expected):
        assert plain_answer(text, extractor) == expected

    def test_a_plain_turn_may_be_the_answer_but_a_malformed_call_is_not(self):
        env = make(plain_turn="answer")
        env.reset()
        _, reward, terminated, _, info = env.step("12:10")
        assert (reward, terminated, info["answer"]) == (1.0, True, "12:10")
        env.reset()
        for turn in ("<tool_call>{12:10", '{"name": "f", "parameters": {}}', '[TOOL_CALLS] [{"name": "f"}]'):
            assert env.step(turn)[2] is False, turn
        env.reset()
        assert env.step("```python\nf(x=1)\n```")[2] is True  # code is an answer, too
        assert make(plain_turn="answer", answer_extractor="boxed").reset()[1]["answer"] is None

    @pytest.mark.parametrize("parser", ["hermes", "openai"])
    def test_json_is_an_answer_unless_it_has_the_keys_of_a_call(self, parser):
        env = make(plain_turn="answer", parser=parser)
        for answered in ('{"name": "Ada Lovelace", "born": 1815}', '{"function": "sine", "city": "Paris"}', '["name"]'):
            env.reset()
            assert env.step(answered)[4]["answer"] == answered
        calls = (
            '{"name": "next_ferry", "arguments": {"origin": "A"}}',
            '{"parameters": {"origin": "A"}, "name": "next_ferry"}',
            '```json\n{"name": "next_ferry", "arguments": {"origin": "A"}}\n```',
            '[{"type": "function", "function": {"name": "next_ferry"}}]',
            '{"tool_name": "next_ferry"}',
            "Now: {'tool_calls': []}",
        )
        for call in calls:
            env.reset()
            _, _, terminated, _, info = env.step(call)
            assert (terminated, [error.code for error in info["parse_errors"]]) == (False, ["other_format"]), call

    def test_wrong_options_are_refused(self):
        for options in ({"plain_turn": "yes"}, {"answer_extractor": "boxed"}, {"answer_extractor": "x"}):
            with pytest.raises(ConfigurationError):
                make(**options)


def load(tmp_path, prompt):
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"prompt": prompt, "answer": "Rex"}) + "\n")
    return load_tasks(path)


class TestConversations:
    TURNS = (
        {"role": "system", "content": "You keep a kennel."},
        {"role": "user", "content": [{"type": "text", "text": "My dog is called Rex."}]},
        {"role": "assistant", "content": "Noted.", "tool_calls": None},
        {"role": "user", "content": "How is my dog called?"},
    )

    def test_all_turns_of_a_prompt_are_kept(self, tmp_path):
        dataset = load(tmp_path, list(self.TURNS))
        env = make(tasks=(), dataset=dataset)
        messages = env.reset()[1]["messages"]
        assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
        assert messages[0].content.startswith("You keep a kennel.\n\nYou ")
        assert ToolEnv.instructions not in messages[0].content
        assert messages[1].content == "My dog is called Rex."
        assert "Noted." in messages[2].content
        assert dataset[0].prompt == messages[3].content == "How is my dog called?"
        both = make(tasks=(), dataset=dataset, system_prompt="Be brief.").reset()[1]["messages"][0].content
        assert both.startswith("Be brief.\n\nYou keep a kennel.")

    def test_calls_and_outputs_keep_their_form(self, tmp_path):
        call = {"id": "c1", "type": "function", "function": {"name": "next_ferry", "arguments": '{"origin": "A"}'}}
        turns = [
            {"role": "user", "content": "When?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "<answer>10:00</answer>", "name": "next_ferry", "tool_call_id": "c1"},
            {"role": "user", "content": "And back?"},
        ]
        dataset = load(tmp_path, turns)
        text = make(tasks=(), dataset=dataset).reset()[1]["messages"]
        assert HermesParser().parse(text[2].content).calls[0].arguments == {"origin": "A"}
        assert "<answer>" not in text[3].content
        structured = make(tasks=(), dataset=dataset, parser="openai").reset()[1]["messages"]
        assert structured[2].tool_calls[0].name == "next_ferry"

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ([*TURNS, {"role": "assistant", "content": "Rex"}], "last one's role is assistant"),
            ([{"role": "critic", "content": "x"}], "a role"),
            ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "images"),
            ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}, TURNS[3]], "at the beginning only"),
            ([], "a text|end with"),
        ],
    )
    def test_what_cannot_be_kept_is_refused(self, tmp_path, prompt, message):
        with pytest.raises(DatasetError, match=message):
            load(tmp_path, prompt)

    def test_a_task_checks_its_history(self):
        for history in ([Message("user", "x")], (Message("user", "x"), Message("system", "y"))):
            with pytest.raises(ConfigurationError, match="history"):
                Task("t", "When?", ("1",), history=history)
