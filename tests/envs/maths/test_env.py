"""GSM8K, SVAMP, Arithmetic and ReTool: who scores what, what a run of code may do, and what is refused."""

import importlib.util
import json
import pickle
import random
import re

import gymnasium
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.core.types import Task, Thought, ToolCall
from agent_r1_gym.data.official.gsm8k import reasons
from agent_r1_gym.envs.maths.latex_answers import MAX_ANSWER_CHARS, latex_match
from agent_r1_gym.envs.maths.problems import PROBLEM_TYPES
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from tests.kit.data import shared_file, write_jsonl
from tests.kit.samples import fuzz_actions
from tests.kit.sandboxes import needs

GSM8K, SVAMP, ARITHMETIC, RETOOL = (f"AgentR1/{name}-v0" for name in ("GSM8K", "SVAMP", "Arithmetic", "ReTool"))


def make(env_id, **options):
    return gymnasium.make(env_id, **options).unwrapped


def episode(env, script, index):
    """Plays a script; returns the last step and all outcomes."""
    _, info = env.reset(options={"task_index": index})
    ended, outcomes = False, []
    play = env.oracle if script == "oracle" else lambda *state: env.scripts[script](env, *state)
    while not ended:
        turn = play(env.task, env.transitions)
        _, reward, terminated, truncated, info = env.step(env.parser.format_turn(turn))
        outcomes += info["tool_outcomes"]
        ended = terminated or truncated
    return reward, info, outcomes


def share(env, script, episodes):
    return sum(episode(env, script, index)[0] for index in range(episodes)) / episodes


# --- who scores what -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_oracle_solves_the_first_thousand_of_gsm8k_by_its_annotations():
    env = make(GSM8K, dataset=str(shared_file("gsm8k_train_1000.jsonl")))
    turns = 0
    for index in range(1_000):
        reward, info, outcomes = episode(env, "oracle", index)
        assert (reward, info["end_reason"]) == (1.0, "answer")
        assert all(outcome.ok for outcome in outcomes)
        assert len(outcomes) == len(env.task.decomposition) == info["turn"] - 1
        turns += info["turn"]
    assert turns == 4_160


def test_the_oracle_of_gsm8k_thinks_in_the_words_of_the_solution():
    solution = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nShe sold 48+24 = <<48+24=72>>72 clips in two months."
    assert reasons(solution) == ["Natalia sold 48/2", "24 clips in May. She sold 48+24", "72 clips in two months."]
    env = make(GSM8K, dataset=str(shared_file("gsm8k_train_1000.jsonl")))
    thoughts = 0
    for index in range(50):
        env.reset(options={"task_index": index})
        solution, ended = env.task.metadata["solution"], False
        while not ended:
            turn = env.oracle(env.task, env.transitions)
            if isinstance(turn, Thought):
                thoughts += 1
                assert turn.text.split()[0] in solution and not turn.text.endswith("=")
            ended = any(env.step(env.parser.format_turn(turn))[2:4])
    assert thoughts > 100
    bare = make(GSM8K, dataset=str(shared_file("gsm8k_train_1000.jsonl")), system_prompt="")
    bare.reset(options={"task_index": 0})
    assert isinstance(bare.oracle(bare.task, ()), ToolCall)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        (GSM8K, {"dataset": "sample"}),
        (GSM8K, {"dataset": "sample", "tools": "python"}),
        (GSM8K, {"dataset": "sample", "tools": "both"}),
        (SVAMP, {"dataset": "sample"}),
        (ARITHMETIC, {}),
        (ARITHMETIC, {"tools": "python"}),
        (ARITHMETIC, {"tools": "both", "problem_types": ("primes", "power")}),
        (RETOOL, {}),
        (RETOOL, {"parser": "hermes"}),
        (RETOOL, {"parser": "openai", "difficulty": 5}),
    ],
)
@pytest.mark.slow
def test_the_oracle_computes_the_answer(env_id, options):
    if env_id == RETOOL or options.get("tools") in ("python", "both"):
        needs("strong")
    env = make(env_id, **options)
    for index in range(35):
        reward, info, outcomes = episode(env, "oracle", index)
        assert (reward, info["end_reason"]) == (1.0, "answer"), info["messages"]
        numbers = re.findall(r"-?[\d.]+", outcomes[-1].content)
        assert float(numbers[-1]) == float(env.task.answers[0])
    env.close()


@pytest.mark.parametrize(
    ("env_id", "options", "expected"),
    [
        (GSM8K, {"dataset": "sample"}, {"in_head": 0.14, "careless": 0.0, "quoter": 0.0, "beginner": 0.32}),
        (ARITHMETIC, {}, {"in_head": 0.02, "careless": 0.0, "quoter": 0.0, "beginner": 0.26}),
    ],
)
def test_scripts_score_as_documented(env_id, options, expected):
    env = make(env_id, **options)
    assert {script: share(env, script, min(400, len(env.tasks))) for script in expected} == pytest.approx(
        expected, abs=0.06
    )
    assert set(expected) == set(env.scripts)


def test_without_tools_the_computation_is_demonstrated_and_not_the_bare_number(tmp_path):
    """A model that only sees numbers learns to guess: it would lose as a control, whatever the tool is good for."""
    rows = [{"input": "Ed has 2 red and 6 blue bags of 4 nuts each. How many nuts?", "target": 32}]
    env = make(SVAMP, dataset=str(write_jsonl(tmp_path / "train.jsonl", rows)), tools="none")
    _, info = env.reset(options={"task_index": 0})
    assert info["messages"][0].content.startswith("Solve the problem step by step.")
    turn = env.oracle(env.task, ())
    assert turn == Thought("(2 + 6) * 4 = 32", "32")
    assert env.step(env.parser.format_turn(turn))[1] == 1.0
    programs = make(ARITHMETIC, tools="none", problem_types=["primes"])
    assert not programs.has_solution(programs.tasks[0])  # its way is a program, which cannot be written as a thought


def test_problems_without_a_solution_are_neither_demonstrations_nor_shots(tmp_path):
    """The oracle answers them, since it knows the number; a model would learn to guess."""
    rows = [{"input": f"Di has 2 rows of 2 trees and {n} cats. How many trees?", "target": 4} for n in range(5)]
    rows += [{"input": f"Cy has {n} cups and breaks 2. How many are left?", "target": n - 2} for n in range(7, 12)]
    env = make(SVAMP, dataset=str(write_jsonl(tmp_path / "train.jsonl", rows)))
    assert [env.has_solution(task) for task in env.tasks] == [False] * 5 + [True] * 5
    assert [episode(env, "oracle", index)[0] for index in range(10)] == [1.0] * 10
    shown = make(SVAMP, dataset=str(tmp_path / "train.jsonl"), shots=5)
    assert sorted(shot.task_id for shot in shown.shots) == ["5", "6", "7", "8", "9"]
    with pytest.raises(ConfigurationError, match="of 10 tasks it solved 5"):
        make(SVAMP, dataset=str(tmp_path / "train.jsonl"), shots=6)


@pytest.mark.slow
def test_scripts_of_retool_score_as_documented():
    needs("strong")
    env = make(RETOOL)
    scores = {script: share(env, script, 35) for script in env.scripts}
    assert scores == pytest.approx({"in_head": 0.02, "careless": 0.0, "quoter": 0.0, "beginner": 0.21}, abs=0.1)
    for script in ("careless", "quoter", "in_head"):
        assert scores[script] < 0.05
    env.close()


def test_an_oracle_without_enough_turns_fails_as_a_model_would():
    env = make(GSM8K, dataset="sample", max_turns=2)
    reward, info, outcomes = episode(env, "oracle", 0)
    assert (reward, len(outcomes), info["end_reason"]) == (0.0, 2, "max_turns")


@pytest.mark.parametrize(
    ("answer", "reward"), [("$1,024.00", 1.0), ("It is 1024.", 1.0), ("1024 or 7", 0.0), ("", 0.0)]
)
def test_numbers_are_compared_as_numbers(answer, reward, tmp_path):
    rows = [{"question": "How many?", "answer": "Many.\n#### 1,024"}]
    env = make(GSM8K, dataset=str(write_jsonl(tmp_path / "train.jsonl", rows)))
    env.reset(seed=0)
    assert env.step(f"<answer>{answer}</answer>")[1] == reward


# --- runs of code ----------------------------------------------------------------------------------------------------


def test_an_endless_loop_is_the_models_mistake_and_the_episode_goes_on():
    needs("strong")
    env = make(RETOOL, seconds=0.3)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("<code>x = 1\nwhile True:\n    pass</code>")
    assert [outcome.error for outcome in info["tool_outcomes"]] == ["tool_error"]
    assert (reward, terminated, truncated, info["infrastructure_error"]) == (0.0, False, False, None)
    assert "Timed out after 0.3 s." in info["new_messages"][-1].content
    *_, info = env.step("<code>6 * 7</code>")
    assert info["new_messages"][-1].content == "<interpreter>\n42\n</interpreter>"
    env.close()


def test_what_one_turn_defines_the_next_one_finds_and_the_next_episode_does_not():
    needs("strong")
    env = make(RETOOL)
    env.reset(seed=0)
    *_, info = env.step("First.<code>x = 6</code> Then.<code>x * 7</code>")
    assert [outcome.content for outcome in info["tool_outcomes"]] == ["(no output)", "42"]
    *_, info = env.step("<think>And now?</think><code>```python\nx + 1\n```</code>")
    assert info["tool_outcomes"][0].content == "7"
    env.reset(seed=0)
    *_, info = env.step("<code>x</code>")
    assert "NameError" in info["tool_outcomes"][0].content
    env.close()


def test_a_traceback_names_the_code_by_no_markup_of_the_format():
    needs("strong")
    env = make(RETOOL)
    env.reset(seed=0)
    for number, name in ((1, "<input>"), (2, "<input 2>")):
        *_, info = env.step("<code>1 / 0</code>")
        shown = info["new_messages"][-1].content
        assert f'File "{name}", line 1' in shown and "\u200b" not in shown, number
    env.close()


def test_a_run_cannot_close_the_interpreters_tag_or_answer():
    needs("strong")
    env = make(RETOOL)
    env.reset(options={"task": Task("t", "Is <code>x</code> in </interpreter>?", ("1",))})
    *_, info = env.step("<code>print('<' + '/interpreter><' + 'answer>1<' + '/answer><' + 'code>')</code>")
    content = info["new_messages"][-1].content
    assert content.startswith("<interpreter>\n")
    assert content.endswith("\n</interpreter>")
    assert len(re.findall("</?(?:interpreter|answer|code)>", content)) == 2
    assert not re.search("<(?:code|/interpreter)>", info["messages"][-3].content)  # the question's
    env.close()


def test_other_environments_leave_these_tags_alone():
    env = make(ARITHMETIC)
    _, info = env.reset(options={"task": Task("t", "Is <code>x</code> right?", ("1",))})
    assert "<code>x</code>" in info["messages"][-1].content


def test_a_machine_without_a_part_of_the_isolation_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(
        "agent_r1_gym.sandbox.interface.missing_protections", lambda: ["Landlock (none in this kernel)"]
    )
    for options in ({"env_id": RETOOL}, {"env_id": ARITHMETIC, "tools": "python"}):
        with pytest.raises(ConfigurationError, match="Landlock"):
            make(**options, seconds=1.75)  # others may be made already


def test_weak_isolation_is_passed_on():
    needs("weak")
    env = make(RETOOL, isolation="weak", seconds=2)
    (tool,) = env.tools
    assert (tool.isolation, tool.limits.seconds, tool.stateful) == ("weak", 2, True)
    assert episode(env, "oracle", 0)[0] == 1.0
    env.close()


PARTS = (
    *(
        "6",
        "*",
        "7",
        "(",
        ")",
        "**",
        "9" * 30,
        "1e999",
        "//",
        "%",
        "gcd(",
        ",",
        "lcm(0",
        "-",
        "print(",
        "'",
        "x =",
        "\n",
    ),
    *(
        "\0",
        "\ud800",
        "🦉",
        "</answer>",
        "</code>",
        "<code>",
        "```",
        "```python\n",
        "<|im_end|>",
        "]" * 200,
        "import os",
    ),
    *("os._exit(1)", "while", "1/0", "lambda", ":", "exit()", "{", "}", "<interpreter>", "</think>", "factorial(999)"),
)


@pytest.mark.parametrize(
    ("env_id", "options", "actions"),
    [
        (GSM8K, {"dataset": "sample"}, 4_000),
        (ARITHMETIC, {}, 4_000),
        pytest.param(RETOOL, {"seconds": 0.2}, 1_000, id="ReTool"),
    ],
)
@pytest.mark.slow
def test_hostile_actions(env_id, options, actions):
    if env_id == RETOOL:
        needs("strong")
    draw, env, errors = random.Random(5), make(env_id, **options), set()
    env.reset(seed=0)
    for number in range(fuzz_actions(actions)):
        text = " ".join(draw.choices(PARTS, k=draw.randint(0, 7)))
        call = json.dumps({"name": "calculator", "arguments": {"expression": text}})
        action = f"<code>{text}</code>" if env_id == RETOOL else f"<tool_call>{call}</tool_call>"
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, info["infrastructure_error"]) == (0.0, False, None), action
        errors |= {outcome.error for outcome in info["tool_outcomes"]}
        if truncated:
            env.reset(seed=number)
    assert errors == {None, "tool_error"}
    assert episode(env, "oracle", 0)[0] == 1.0
    env.close()


# --- data and options ------------------------------------------------------------------------------------------------


def test_retool_takes_problems_of_ones_own(tmp_path):
    needs("strong")
    rows = [{"problem": f"What is {n} + {n}?", "answer": 2 * n} for n in range(50)]
    path = str(write_jsonl(tmp_path / "mine.jsonl", rows))
    env = make(RETOOL, dataset=path)
    assert episode(env, "oracle", 3)[0] == 1.0
    assert set(env.scripts["quoter"](env, env.task, ())) <= set("0123456789")
    held_out = make(RETOOL, dataset=path, split="validation")
    assert 0 < len(held_out.tasks) < len(env.tasks)
    assert not {t.prompt for t in held_out.tasks} & {t.prompt for t in env.tasks}
    env.close()


@pytest.mark.parametrize("env_id", [GSM8K, SVAMP, ARITHMETIC, RETOOL])
@pytest.mark.slow
def test_it_pickles_and_a_split_is_held_out(env_id):
    if env_id == RETOOL:
        needs("strong")
    options = {"dataset": "sample"} if env_id in (GSM8K, SVAMP) else {}
    env = make(env_id, **options)
    again = pickle.loads(pickle.dumps(env))
    assert again.reset(seed=3)[0] == env.reset(seed=3)[0]
    held_out = make(env_id, **options, split=env.held_out_splits[0])
    assert not {task.prompt for task in held_out.tasks} & {task.prompt for task in env.tasks}


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (GSM8K, {"tools": "abacus"}, "tools"),
        (GSM8K, {"isolation": "weak"}, "are options of Python"),
        (GSM8K, {"scorer": "latex"}, "scorer"),
        (GSM8K, {"tasks": [Task("0", "a")]}, "sets 'tasks' itself"),
        (ARITHMETIC, {"dataset": "sample"}, "sets 'dataset' itself"),
        (ARITHMETIC, {"problem_types": ["primes"]}, "primes"),
        (ARITHMETIC, {"problem_types": []}, "problem_types.* is empty"),
        (ARITHMETIC, {"style": "compact"}, "no option 'style'"),
        (ARITHMETIC, {"difficulty": 9}, "difficulty must be one of 1, 2, 3, 4, 5"),
        (RETOOL, {"isolation": "none"}, "isolation"),
        (RETOOL, {"tools": "calculator"}, "sets 'tools' itself"),
        (RETOOL, {"dataset": "x.jsonl", "world_seed": 4}, "are options of the generator"),
        (RETOOL, {"seconds": 0}, "positive seconds"),
    ],
)
def test_wrong_options_are_refused(env_id, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(env_id, **{**({"dataset": "sample"} if env_id == GSM8K else {}), **options})


def test_with_the_calculator_all_kinds_are_asked_that_it_can_compute():
    types = {problem.type for problem in make(ARITHMETIC, questions=50).tasks}
    assert types == set(PROBLEM_TYPES) - {"primes", "digits", "nested"}


def test_a_call_that_the_calculator_rejects_is_a_tool_error():
    env = make(ARITHMETIC)
    env.reset(seed=0)
    call = json.dumps({"name": "calculator", "arguments": {"expression": "9 ** 9 ** 9"}})
    *_, info = env.step(f"<tool_call>{call}</tool_call>")
    assert (info["tool_outcomes"][0].error, info["infrastructure_error"]) == ("tool_error", None)


# --- answers in LaTeX ------------------------------------------------------------------------------------------------


def test_math_verify_is_asked_for_by_name_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="maths"):
        make(GSM8K, dataset="sample", scorer="math-verify")


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("72", r"\boxed{72}", 1.0),
        ("72", "72.0", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"$\sqrt{8}$", r"So $2\sqrt{2}$", 1.0),
        ("1+x^2", "x^2+1", 1.0),
        ("5", "7", 0.0),
        ("5", "", 0.0),
        ("5", "]]{{\\frac", 0.0),
        ("True", "print('True')", 0.0),
        ("72", "7" * (MAX_ANSWER_CHARS + 1), 0.0),
        ("72", "$9^{9^{9^{9}}}$", 0.0),
    ],
)
def test_answers_in_latex(gold, answer, score):
    pytest.importorskip("math_verify")
    needs("strong")
    assert latex_match(answer, [gold, "-1"]) == score


def test_an_environment_scores_latex():
    pytest.importorskip("math_verify")
    needs("strong")
    env = make(GSM8K, dataset="sample", scorer="math-verify")
    env.reset(options={"task": Task("t", "Half of one?", (r"\frac{1}{2}",))})
    assert env.step(r"<answer>\boxed{0.5}</answer>")[1] == 1.0


def test_without_tools_the_model_computes_in_its_head() -> None:
    """The same tasks are demonstrated as with the calculator, and no text speaks of tools."""
    env, with_tool = make(GSM8K, dataset="sample", tools="none"), make(GSM8K, dataset="sample")
    _, info = env.reset(seed=0)
    assert "tool" not in info["messages"][0].content
    assert [env.has_solution(task) for task in env.tasks[:20]] == [
        with_tool.has_solution(task) for task in env.tasks[:20]
    ]
    _, reward, terminated, _, info = env.step(env.parser.format_turn(env.oracle(env.task, ())))
    assert (reward, terminated) == (1.0, True)
    env.reset(seed=0)
    turn = env.scripts["careless"](env, env.task, ())
    assert env.step(env.parser.format_turn(turn))[1] == 0.0
    for made in (env, make(ARITHMETIC, tools="none", problem_types=["nested"])):
        made.reset(options={"task_index": 1})
        turn = made.oracle(made.task, ())
        assert isinstance(turn, Thought)
        assert turn.text == "; ".join(f"{step.question} = {step.answer}" for step in made.task.decomposition)
        assert turn.action == made.task.answers[0]
    bare = make(ARITHMETIC, tools="none", system_prompt="", plain_turn="answer")
    assert isinstance(bare.oracle(bare.tasks[0], ()), str)  # of a prompt without instructions
    for prompt in ({"system_prompt": "Be brief."}, {"raw_system_prompt": "Be brief."}):
        _, info = make(GSM8K, dataset="sample", tools="none", **prompt).reset(seed=0)
        assert info["messages"][0].content.startswith("Be brief.")
    with pytest.raises(ConfigurationError):
        make(GSM8K, dataset="sample", tools="none", seconds=2)
