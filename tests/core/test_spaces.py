import copy
import multiprocessing
import pickle

import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Text
from gymnasium.spaces.utils import flatdim, flatten, flatten_space, unflatten
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.spaces import UnicodeText, is_encodable
from tests.kit.cpu_time import cpu_below

SPACE = UnicodeText(50)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


class TestMembership:
    @given(UNICODE)
    def test_any_unicode_up_to_the_length(self, text):
        assert text in SPACE

    def test_refuses_all_else(self):
        for value in ["x" * 51, "é" * 51, "\ud800", "a\udfffb", b"bytes", 5, None, ["a"], np.array("a")]:
            assert value not in SPACE

    def test_takes_text_subclasses_and_the_empty_text(self):
        assert "" in SPACE
        assert np.str_("é") in SPACE

    @given(st.text(st.characters(), max_size=60))
    def test_members_are_exactly_the_encodable_texts_in_length(self, text):
        assert (text in SPACE) == (is_encodable(text) and len(text) <= 50)

    @pytest.mark.parametrize("text", ["x" * 20_000, "é中🙂" * 6_666])
    def test_is_fast(self, text):
        space = UnicodeText(65_536)
        with cpu_below(0.02):  # .004 is usual; to look at each character, as Gymnasium's `Text` does, takes .2
            assert all(text in space for _ in range(100))

    @pytest.mark.parametrize("length", [0, -3])
    def test_needs_a_positive_length(self, length):
        with pytest.raises(ValueError, match="at least 1 character"):
            UnicodeText(length)


class TestSampling:
    def test_samples_are_members_and_follow_the_seed(self):
        ours, theirs = UnicodeText(50, seed=3), UnicodeText(50, seed=3)
        samples = [ours.sample() for _ in range(200)]
        assert all(sample in SPACE for sample in samples)
        assert samples == [theirs.sample() for _ in range(200)]
        assert not all(sample.isascii() for sample in samples)

    def test_short_spaces_give_short_samples(self):
        space = UnicodeText(2, seed=0)
        assert {len(space.sample()) for _ in range(100)} == {0, 1, 2}

    def test_masks_of_gymnasium_work(self):
        mask = np.zeros(len(SPACE.character_list), dtype=np.int8)
        mask[SPACE.character_index("é")] = 1
        assert UnicodeText(50, seed=0).sample(mask=(3, mask)) == "ééé"

    def test_seeding_returns_to_the_start(self):
        space = UnicodeText(50)
        space.seed(5)
        first = [space.sample() for _ in range(5)]
        space.seed(5)
        assert first == [space.sample() for _ in range(5)]


class TestIdentity:
    def test_equality_is_by_length(self):
        assert UnicodeText(5) == UnicodeText(5, seed=1)
        assert UnicodeText(5) != UnicodeText(6)
        assert UnicodeText(5) != Text(5)
        assert isinstance(SPACE, Text)

    def test_copies_and_pickles_go_on_alike(self):
        space = UnicodeText(50, seed=3)
        space.sample()
        twins = [copy.deepcopy(space), pickle.loads(pickle.dumps(space))]
        expected = [space.sample() for _ in range(5)]
        for twin in twins:
            assert twin == space
            assert [twin.sample() for _ in range(5)] == expected

    def test_the_alphabet_is_shared(self):
        assert UnicodeText(5).character_set is UnicodeText(9).character_set

    def test_jsonable_round_trip(self):
        samples = [SPACE.sample() for _ in range(3)]
        assert SPACE.from_jsonable(SPACE.to_jsonable(samples)) == samples


class TestBatches:
    def test_batches_to_a_tuple_of_independent_spaces(self):
        batched = batch_space(UnicodeText(50, seed=3), 4)
        assert batched == batch_space(SPACE, 4)
        sample = batched.sample()
        assert sample in batched
        assert len(set(sample)) > 1
        assert tuple(iterate(batched, sample)) == sample

    def test_batching_leaves_the_generator_alone(self):
        space, twin = UnicodeText(50, seed=3), UnicodeText(50, seed=3)
        first, second = batch_space(space, 2), batch_space(twin, 2)
        assert first.sample() == second.sample()
        assert space.sample() == UnicodeText(50, seed=3).sample()

    def test_concatenate_and_empty_array(self):
        assert create_empty_array(SPACE, 3) == ("", "", "")
        assert concatenate(SPACE, ["a", "é"], create_empty_array(SPACE, 2)) == ("a", "é")


class TestSharedMemory:
    @given(st.lists(UNICODE, min_size=1, max_size=4))
    def test_round_trip_of_any_unicode(self, texts):
        memory = create_shared_memory(SPACE, len(texts))
        for index, text in enumerate(texts):
            write_to_shared_memory(SPACE, index, text, memory)
        assert read_from_shared_memory(SPACE, memory, len(texts)) == tuple(texts)

    def test_longest_texts_do_not_touch_their_neighbours(self):
        memory = create_shared_memory(SPACE, 3)
        for index, text in enumerate(["a", "🙂" * 50, "b"]):
            write_to_shared_memory(SPACE, index, text, memory)
        assert read_from_shared_memory(SPACE, memory, 3) == ("a", "🙂" * 50, "b")

    def test_a_short_text_replaces_a_long_one(self):
        memory = create_shared_memory(SPACE, 1)
        for text in ("🙂" * 50, "x", ""):
            write_to_shared_memory(SPACE, 0, text, memory)
            assert read_from_shared_memory(SPACE, memory, 1) == (text,)

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_between_processes(self, method):
        context = multiprocessing.get_context(method)
        memory = create_shared_memory(SPACE, 2, ctx=context)
        process = context.Process(target=write_to_shared_memory, args=(SPACE, 1, "é中🙂", memory))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        assert read_from_shared_memory(SPACE, memory, 2) == ("", "é中🙂")

    def test_inside_a_dict_space(self):
        space = Dict(text=SPACE, number=Discrete(3))
        memory = create_shared_memory(space, 2)
        write_to_shared_memory(space, 1, {"text": "é", "number": 2}, memory)
        assert read_from_shared_memory(space, memory, 2)["text"] == ("", "é")

    def test_what_was_read_follows_later_writes_and_deep_copies_do_not(self):
        """AsyncVectorEnv reads once, at its construction, and returns deep copies of what it got."""
        memory = create_shared_memory(SPACE, 2)
        view = read_from_shared_memory(SPACE, memory, 2)
        before = copy.deepcopy(view)
        write_to_shared_memory(SPACE, 0, "é", memory)
        assert view == ("é", "")
        assert before == ("", "")
        assert type(before) is tuple

    def test_a_text_that_is_too_long_cannot_overwrite_its_neighbour(self):
        memory = create_shared_memory(SPACE, 2)
        write_to_shared_memory(SPACE, 1, "neighbour", memory)
        with pytest.raises(ValueError, match="51 characters"):
            write_to_shared_memory(SPACE, 0, "x" * 51, memory)
        assert read_from_shared_memory(SPACE, memory, 2) == ("", "neighbour")


def test_a_text_is_left_alone_where_spaces_are_flattened():
    space = Dict(text=SPACE, number=Discrete(2))
    assert not SPACE.is_np_flattenable
    assert flatten_space(space)["text"] is SPACE
    assert flatten(space, {"text": "a;é", "number": 1})["text"] == "a;é"
    assert unflatten(SPACE, "a;é") == "a;é"
    with pytest.raises(ValueError, match="TokenObservation"):
        flatdim(SPACE)
