"""First calls of an untrained model, by environment, tool style and number of shots: which prompts can it follow?

    python -m benchmarks.prompts --model FOLDER --data DATA                      the table of docs/prompts.md
    python -m benchmarks.prompts --model FOLDER --data DATA --feedback           what follows a turn that did not parse

DATA contains `word_problems`, the folder that `examples/smollm2/get_data.py` writes, and HotpotQA's questions; without
it, those rows are skipped. Decoding is greedy, by transformers alone, so that nothing of this project's engines takes
part. Rows go to `--out` as they are measured, and a repeated command skips those that are there.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.core.parsing import HermesParser
from agent_r1_gym.core.scoring import final_number
from agent_r1_gym.core.text import special_tokens
from agent_r1_gym.core.tool import execute_calls
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task, Thought, ToolCall
from agent_r1_gym.errors import ToolError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.support.json_data import read_json_lines
from agent_r1_gym.support.terminal import print_line
from agent_r1_gym.tools.calculator import calculator
from trainers.rollouts.chat_format import ChatFormat

PROMPTS = (("schema", 0), ("signature", 0), ("signature", 1), ("signature", 2))
"""Tool styles and numbers of shots that are compared."""


class Cell(NamedTuple):
    """An environment to ask in, and the one from whose training tasks the shots are drawn."""

    name: str
    env: str
    options: Mapping[str, Any]
    shots_from: Mapping[str, Any]


def cells(data: Path | None) -> Iterator[Cell]:
    """List the environments; those on real data only where the data are."""
    if data is not None:
        problems = {"dataset": str(data / "word_problems")}
        if Path(problems["dataset"]).is_dir():
            yield Cell("SVAMP", "SVAMP", {**problems, "split": "test"}, problems)
        hotpot = {"setting": "distractor"}
        yield Cell(
            "HotpotQA, 10 paragraphs",
            "HotpotQA",
            {"dataset": str(data / "hotpotqa_train_100.json"), **hotpot},
            {"dataset": str(data / "hotpotqa_train_easy_medium_200.json"), **hotpot},
        )
    for name in ("Text2SQL", "ServiceDesk", "FictionQA"):
        yield Cell(name, name, {"split": "test"}, {})


class Model:
    """A causal language model that decodes greedily."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.template = ChatFormat.load(folder, self.tokenizer).template
        self.markup = special_tokens(self.tokenizer)

    def text(self, messages: Sequence[Message]) -> str:
        """Render a chat up to the header of the next turn."""
        return self.template.text(messages)

    @torch.inference_mode()
    def complete(self, texts: Sequence[str], *, batch: int, new_tokens: int = 96) -> list[str]:
        """Write the next turn of each chat."""
        turns = []
        for start in range(0, len(texts), batch):
            inputs = self.tokenizer(
                texts[start : start + batch], return_tensors="pt", padding=True, add_special_tokens=False
            )
            output = self.model.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
            completions = output[:, inputs["input_ids"].shape[1] :]
            turns += self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        return turns


def is_right(env: ToolEnv, task: Task, call: ToolCall) -> bool:
    """Judge a first call.

    A computation must give the answer, a search must find a gold passage; any other call must be the oracle's.
    """
    if call.name == "calculator":
        try:
            result = final_number(calculator(**call.arguments))
        except ToolError:
            return False
        return result is not None and result == final_number(task.answers[0])
    if call.name == "search":
        (outcome,) = execute_calls(env.begin_step(env.parser.format_call(call)))
        gold = set(getattr(task, "supporting_titles", ()))
        return any(hit.passage.title in gold for hit in outcome.data or ())
    wanted = env.oracle(task, ())
    wanted = wanted.action if isinstance(wanted, Thought) else wanted
    return isinstance(wanted, ToolCall) and call.key == wanted.key


def make_env(model: Model, name: str, options: Mapping[str, Any]) -> ToolEnv:
    """Make an environment that breaks the model's special tokens in foreign text."""
    env = make_text_env(name, options, markup=model.markup).unwrapped
    assert isinstance(env, ToolEnv)
    return env


def first_calls(
    model: Model, cell: Cell, style: str, shots: int, questions: int, batch: int, *, draws: int = 1
) -> dict[str, Any]:
    """Ask for the first turn of `questions` tasks, and count valid and right calls.

    Args:
        model: the model.
        cell: the environment.
        style: tool style.
        shots: number of shots.
        questions: number of tasks.
        batch: prompts that are decoded together.
        draws: number of draws of the shots (`shots_seed`), of which the one with the most valid calls on half as many
            training tasks is taken.
    """
    options = {**cell.shots_from, "tool_style": style, "shots": shots}
    seed, on_training = 0, []
    if shots and draws > 1:
        for draw in range(draws):
            env = make_env(model, cell.env, {**options, "shots_seed": draw})
            on_training.append(_count(model, env, questions // 2, batch)["valid"])
        seed = on_training.index(max(on_training))
    drawn = make_env(model, cell.env, {**options, "shots_seed": seed}).shots if shots else ()
    test = {**cell.options, "tool_style": style, "shots": [shot.to_dict() for shot in drawn]}
    counts = _count(model, make_env(model, cell.env, test), questions, batch)
    chosen = {"shots_seed": seed, "valid_on_training": on_training} if on_training else {}
    row = {"env": cell.name, "style": style, "shots": shots, "draws": draws, "questions": questions}
    return {**row, **counts, **chosen}


def _count(model: Model, env: ToolEnv, questions: int, batch: int) -> dict[str, Any]:
    """Ask for the first turn of an environment's first tasks."""
    texts, counts = [], {"valid": 0, "right": 0, "answered": 0}
    for index in range(questions):
        _, info = env.reset(seed=index, options={"task_index": index})
        texts.append(model.text(info["messages"]))
    turns = model.complete(texts, batch=batch)
    for index, turn in enumerate(turns):
        env.reset(seed=index, options={"task_index": index})
        valid = env.begin_step(turn)
        parsed = env.parser.parse(turn)
        counts["valid"] += bool(valid)
        counts["right"] += bool(valid) and is_right(env, env.task, valid[0].call)
        counts["answered"] += parsed.answer is not None
    tokens = [len(model.tokenizer(text)["input_ids"]) for text in texts]
    return {**counts, "prompt_tokens": sum(tokens) / len(tokens), "example": turns[0][:200]}


REMINDERS = ("none", "call", "call and answer")
"""What the feedback on a turn that did not parse shows of the format."""


class _Reminding(HermesParser):
    """The format, with another reminder of it in the feedback."""

    def __init__(self, shows: str) -> None:
        super().__init__("signature")
        self._shows = shows

    def reminder(self, tools: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Show nothing, the call alone, or both forms."""
        return "" if self._shows == "none" else super().reminder(tools, answer=self._shows == "call and answer")


def later_turns(model: Model, cell: Cell, seed: int, *, reminder: str, questions: int, batch: int) -> dict[str, Any]:
    """Let the model play four turns, and count the later ones with a parsable call where the first did not parse."""
    env_options = {**cell.options, "tool_style": "signature", "max_turns": 8}
    envs = [make_env(model, cell.env, env_options) for _ in range(questions)]
    texts = {}
    for number, env in enumerate(envs):
        env.parser = _Reminding(reminder)
        _, info = env.reset(seed=1_000 * seed + number)
        texts[number] = model.text(info["messages"])
    counts = {"turns": 0, "calls": 0, "tags": 0, "repeated": 0}
    before = dict.fromkeys(texts, "")
    for turn_number in range(4):
        for number, turn in zip(tuple(texts), model.complete(list(texts.values()), batch=batch), strict=True):
            parsed = envs[number].parser.parse(turn)
            if turn_number:
                counts["turns"] += 1
                counts["calls"] += bool(parsed.calls) and not parsed.errors
                counts["tags"] += "<tool_call>" in turn
                counts["repeated"] += turn == before[number]
            before[number] = turn
            _, _, terminated, truncated, info = envs[number].step(turn)
            if terminated or truncated or not (parsed.errors or turn_number):  # only what follows a mistake counts
                del texts[number]
            else:
                texts[number] = model.text(info["messages"])
        if not texts:
            break
    return {"env": cell.name, "seed": seed, "reminder": reminder, **counts}


def main() -> None:
    """Measure what `--out` lacks, and print it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of an instruct model")
    parser.add_argument("--data", type=Path, help="folder of SVAMP, MAWPS and HotpotQA")
    parser.add_argument("--out", type=Path, default=Path("prompts.jsonl"), help="file of rows (default: prompts.jsonl)")
    parser.add_argument("--questions", type=int, default=40, help="tasks per row (default: 40)")
    parser.add_argument("--batch", type=int, default=20, help="prompts that are decoded together (default: 20)")
    parser.add_argument(
        "--draws", type=int, default=1, help="draws of the shots to choose from, on training tasks (default: 1)"
    )
    parser.add_argument("--only", default="", help="environments whose name begins with this")
    parser.add_argument("--feedback", action="store_true", help="measure the feedback instead of first calls")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for _, row in read_json_lines(options.out)] if options.out.is_file() else []
    done = {
        tuple(row[key] for key in ("env", "style", "shots", "draws", "seed", "reminder") if key in row) for row in rows
    }
    model = Model(options.model)
    wanted = [cell for cell in cells(options.data) if cell.name.startswith(options.only)]
    with options.out.open("a", encoding="utf-8") as file:
        for cell in wanted:
            keys: list[tuple[Any, ...]] = list(PROMPTS)
            if options.feedback:
                keys = list(itertools.product(range(3), REMINDERS))
            for first, second in keys:
                if (cell.name, first, second, *(() if options.feedback else (options.draws,))) in done:
                    continue
                if options.feedback:
                    row = later_turns(
                        model, cell, first, reminder=second, questions=options.questions, batch=options.batch
                    )
                else:
                    row = first_calls(model, cell, first, second, options.questions, options.batch, draws=options.draws)
                rows.append(row)
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                print_line(str({key: value for key, value in row.items() if key != "example"}))


if __name__ == "__main__":
    main()
