"""Exercises in comparing and in reading: right, never the same, with labels on what is to be learned only."""

import itertools
import random
import re

from agent_r1_gym.envs.fiction_qa.compact_style import COMPACT
from agent_r1_gym.envs.fiction_qa.questions import FictionCorpus
from agent_r1_gym.envs.fiction_qa.world import FictionWorld
from trainers.commands.demonstrations import IGNORE_INDEX
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy.exercises import COMPARISON_RESULTS, NOTHING, comparison_exercises, reading_exercises, reading_row
from trainers.toy.model import build_tokenizer

TOKENIZER = build_tokenizer()
EXERCISES = list(itertools.islice(reading_exercises(seed=3), 48))


def test_drills_compare_rightly_and_never_repeat_themselves() -> None:
    thoughts = [messages[1].content for messages in itertools.islice(comparison_exercises(seed=3), 40)]
    verdicts: list[str] = []
    for text in thoughts:
        for part in text.removeprefix("<think>").removesuffix("</think>").split(" . "):
            question, verdict = part.split(" : ")
            if match := re.fullmatch(r"(earlier|later) (\d+) or (\d+)", question):
                first_is_it = (int(match[2]) > int(match[3])) == (match[1] == "later")
                assert verdict == ("#1" if first_is_it else "#2")
            else:
                first, second = question.removeprefix("same ").split(" and ")
                assert verdict == ("yes" if first == second else "no")
            verdicts.append(verdict)
    assert set(verdicts) == set(COMPARISON_RESULTS)
    assert all(0.1 < verdicts.count(verdict) / len(verdicts) < 0.4 for verdict in COMPARISON_RESULTS)
    assert len(set(thoughts)) == 40
    assert thoughts == [messages[1].content for messages in itertools.islice(comparison_exercises(seed=3), 40)]


def notes_of(messages) -> list[tuple[str, str, str]]:
    """Returns the notes of an exercise as (relation, name, value)."""
    thought = messages[-1].content.removeprefix("<think>").removesuffix("</think>")
    return [re.fullmatch(r"(\w+) of (\w+ \w+) : ([\w ]+)", text).groups() for text in thought.split(" . ")]


def named(messages, name) -> list[str]:
    """Returns the passages of a reply that introduce somebody by `name`."""
    return [
        line for line in messages[1].content.split("\n") if re.match(rf"{name} : |\w+ \w+ : \w+ \w+ or {name} ", line)
    ]


class TestReadings:
    def test_whole_passages_are_shown_as_a_search_shows_them(self):
        shown = {
            line
            for messages in itertools.islice(reading_exercises(seed=5, shapes={(2, 5): 1.0}), 16)
            for line in messages[1].content.split("\n")
        }
        world = FictionWorld(
            COMPACT, seed=random.Random("readings/5").getrandbits(48), entities=200, split="train", aliases=0.5
        )
        assert shown <= {f"{passage.title} : {passage.text}" for passage in FictionCorpus(world)}

    def test_every_note_says_what_the_passage_of_that_name_states(self):
        for messages in EXERCISES:
            for relation, name, value in notes_of(messages):
                lines = named(messages, name)
                if value == NOTHING:
                    assert not lines and f" {name} " in messages[1].content
                else:
                    assert len(lines) == 1 and f" {relation} {value} " in lines[0]

    def test_a_relation_alone_does_not_tell_the_value(self):
        reported = asked = 0
        for messages in EXERCISES:
            for relation, _, value in notes_of(messages):
                values = set(re.findall(rf" {relation} ([\w ]+?) [.,]", messages[1].content))
                asked += value != NOTHING
                reported += value != NOTHING and values == {value}
        assert asked > 300 and reported < 0.4 * asked

    def test_names_are_titles_and_aliases_and_no_question_comes_twice(self):
        by_title = by_alias = 0
        for messages in EXERCISES:
            notes = notes_of(messages)
            read = [named(messages, name)[0].split(" : ")[0] == name for _, name, value in notes if value != NOTHING]
            by_title, by_alias = by_title + sum(read), by_alias + len(read) - sum(read)
            assert len({(relation, name) for relation, name, value in notes if value != NOTHING}) == len(read)
            assert messages[0].content == "{} of {} ?".format(*notes[0])
        assert by_title > by_alias > 60

    def test_shapes_are_drawn_by_weight_and_the_seed_decides(self):
        counts = [messages[1].content.count("\n") + 1 for messages in EXERCISES]
        assert set(counts) == {2, 3, 4, 6}
        for messages in itertools.islice(reading_exercises(seed=3, shapes={(1, 2): 1.0}), 4):
            assert "\n" not in messages[1].content
            assert sum(value != NOTHING for *_, value in notes_of(messages)) == 2
        assert (
            list(itertools.islice(reading_exercises(seed=3), 48))
            == EXERCISES
            != list(itertools.islice(reading_exercises(seed=4), 48))
        )

    def test_only_the_values_are_learned(self):
        chat = ChatFormat(TOKENIZER)
        for messages in EXERCISES[:8]:
            row = reading_row(chat, messages)
            learned = TOKENIZER.decode([label for label in row["labels"] if label != IGNORE_INDEX])
            assert learned == " ".join(value for *_, value in notes_of(messages))
