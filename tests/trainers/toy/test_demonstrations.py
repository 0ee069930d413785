"""Demonstrations of the toy policy: what each habit does, and the notes of what was read."""

import itertools
import random
import re

import pytest

from agent_r1_gym.core.scoring import exact_match
from agent_r1_gym.envs.fiction_qa.dataset import fiction_dataset
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from tests.kit.samples import samples
from trainers.toy.demonstrations import NOTHING, Habits, demonstrate, demonstrations

CHAINS = ("1hop", "bridge", "3hop", "4hop")
TYPES = ("1hop", "bridge", "3hop", "comparison")


@pytest.fixture(scope="module")
def world():
    dataset = fiction_dataset(seed=4, entities=400, questions=80, style="compact", mix=dict.fromkeys(TYPES, 1.0))
    return FictionQAEnv(dataset=dataset, style="compact")


def play(env, habit, index):
    """Returns the messages of one demonstration, the answer in it, and whether it is right."""
    messages = demonstrate(env, index, habit=habit, rng=random.Random(index))
    answer = messages[-1].content.partition("<answer>")[2].removesuffix("</answer>")
    return messages, answer, exact_match(answer, env.dataset[index].answers) > 0


class TestDemonstrations:
    def test_the_full_chain_answers_every_question_with_one_search_a_hop(self, world):
        for index, question in enumerate(world.dataset):
            messages, _, right = play(world, "full_chain", index)
            assert right
            assert sum(message.role == "tool" for message in messages) == len(question.decomposition)

    def test_thoughts_restate_what_is_left(self, world):
        index = next(i for i, question in enumerate(world.dataset) if question.type == "3hop")
        question = world.dataset[index]
        messages, _, _ = play(world, "full_chain", index)
        said = [message.content for message in messages if message.role == "assistant"]
        third, second, first = question.prompt.split(" of ")[:3]
        found = [hop.answer for hop in question.decomposition]
        assert said[1].startswith(f"<think>{third} of {second} of {found[0]}</think><tool_call>")
        assert said[2].startswith(f"<think>{third} of {found[1]}</think><tool_call>")
        assert said[3] == f"<answer>{found[2]}</answer>" and first in question.decomposition[0].question

    def test_what_cannot_be_read_is_not_known(self):
        options = {"aliases": 0.5, "miss_rate": 0.3, "top_k": 3, "max_turns": 12}
        env = FictionQAEnv(style="compact", entities=400, mix=dict.fromkeys(CHAINS, 1.0), **options)
        retried = gave_up = 0
        for index, question in enumerate(env.dataset):
            messages, answer, right = play(env, "full_chain", index)
            replies = [message.content for message in messages if message.role == "tool"]
            calls = [message.content.partition("<tool_call>")[2] for message in messages if message.role == "assistant"]
            retried += any(call and call == again for call, again in itertools.pairwise(calls))
            names = [question.decomposition[0].title, *(hop.answer for hop in question.decomposition)]
            assert answer in names
            assert right == (answer == names[-1])
            if right:
                assert answer in replies[-1]
            else:
                gave_up += 1
                last = replies[-1].split("\n")
                assert not any(line.startswith(f"{answer} :") or f" or {answer} " in line for line in last)
        assert retried > 10
        assert 10 < gave_up < 100

    def test_comparisons_are_weighed_in_thought(self, world):
        for index, question in enumerate(world.dataset):
            if question.type == "comparison":
                messages, answer, right = play(world, "full_chain", index)
                thought = messages[-1].content.partition("</think>")[0].removeprefix("<think>")
                word, join = question.prompt.split()[0], "and" if question.metadata["comparison"] == "same" else "or"
                values = f" {join} ".join(hop.answer for hop in question.decomposition)
                assert right and thought.startswith(f"{word} {values}")
                if join == "or":
                    side = [hop.title for hop in question.decomposition].index(answer) + 1
                    assert thought == f"{word} {values} : #{side}"

    @pytest.mark.parametrize("habit", ["stops_early", "direct_answer", "retrieve_once"])
    def test_bad_habits_fail_at_chains_of_several_hops(self, world, habit):
        chains = [i for i, question in enumerate(world.dataset) if question.type in ("bridge", "3hop")]
        assert not any(play(world, habit, index)[2] for index in chains)

    def test_a_malformed_call_is_answered_by_an_error_and_repeated(self, world):
        malformed = 0
        for index in range(len(world.dataset)):
            messages, answer, _ = play(world, "malformed_call", index)
            errors = [i for i, message in enumerate(messages) if message.content.startswith("error ")]
            assert len(errors) <= 1 and answer
            malformed += len(errors)
            for error in errors:
                broken, repeated = messages[error - 1].content, messages[error + 1].content
                assert repeated.endswith('"}}\n</tool_call>') and repeated[:-15].startswith(broken[:-15])
        assert malformed == 60  # of 80; the second turn of the others, which was to have it, is the answer

    def test_one_search_for_the_whole_question_or_none(self, world):
        for habit in ("retrieve_once", "question_as_query"):
            messages, _, _ = play(world, habit, 3)
            assert world.dataset[3].prompt.removesuffix(" ?") in messages[1].content
        assert play(world, "question_as_query", 3)[2]
        assert [message.role for message in play(world, "direct_answer", 0)[0]] == ["user", "assistant"]

    def test_seed_decides_them_and_worlds_change(self):
        first, again, other = (list(itertools.islice(demonstrations(seed=s, per_world=4), 12)) for s in (1, 1, 2))
        assert first == again and first != other
        titles = [
            {message.content.partition(" : ")[0] for m in first[k : k + 4] for message in m if message.role == "tool"}
            for k in (0, 4, 8)
        ]
        assert not titles[0] & titles[1] and not titles[1] & titles[2]

    def test_habits_are_drawn_by_weight(self):
        rng = random.Random(0)
        habits = Habits(3, 1, 0, 0, 0, 0)
        drawn = [habits.draw(rng) for _ in range(2000)]
        assert set(drawn) == {"full_chain", "stops_early"}
        assert drawn.count("full_chain") == pytest.approx(1500, abs=80)


@pytest.fixture(scope="module")
def env() -> FictionQAEnv:
    options = {"aliases": 0.5, "miss_rate": 0.2, "top_k": 2, "max_turns": 12}
    return FictionQAEnv(style="compact", entities=400, mix=dict.fromkeys(CHAINS, 1.0), **options)


class TestNotes:
    def test_searches_that_miss_are_the_same_for_equal_seeds(self):
        options = {"miss_rate": 0.5, "max_turns": 12}
        first, again = (list(itertools.islice(demonstrations(seed=1, options=options), 40)) for _ in range(2))
        assert first == again and any(message.content == "nothing found" for messages in first for message in messages)

    @pytest.mark.slow
    @samples("habit", ["full_chain", "stops_early", "malformed_call", "question_as_query", "retrieve_once"])
    def test_what_was_read_is_said_first_and_nothing_else_changes(self, env, habit):
        noted = missing = 0
        for index in range(60):
            plain = demonstrate(env, index, habit=habit, rng=random.Random(index))
            with_notes = demonstrate(env, index, habit=habit, rng=random.Random(index), notes=True)
            reply = ""
            for before, after in zip(plain, with_notes, strict=True):
                if before.role == "tool":
                    reply = before.content
                read = re.match(r"<think>(\w+) of (\w+ \w+) : (\w+(?: \w+)?)( \. |</think>)", after.content)
                if read is None:
                    assert before == after
                    continue
                relation, name, value, _ = read.groups()
                assert after.content.endswith(before.content.removeprefix("<think>"))
                lines = [line for line in reply.split("\n") if line.startswith(f"{name} :") or f" or {name} " in line]
                noted, missing = noted + bool(lines), missing + (value == NOTHING)
                assert value == NOTHING if not lines else f" {relation} {value} " in lines[0]
                assert value == NOTHING or value in before.content
        assert noted > 40 and (missing > 5 or habit == "retrieve_once")
