from __future__ import annotations

import logging
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval.bm25 import BM25Retriever, analyse, analyse_query
from tests.kit.cpu_time import cpu_below
from tests.kit.data import BAD_QUERIES


def _ids(hits):
    return [hit.passage.id for hit in hits]


def test_terms_are_lower_case_stems_without_stop_words_and_keep_single_characters():
    assert analyse("The Kings of Henry V's Élan, 2 films") == ["king", "henri", "v", "s", "élan", "2", "film"]


SCRIPTS = {
    "zh": ("唐诗", "李白是唐代的诗人。"),
    "ja": ("富士山", "富士山は日本で一番高い山です。ガラス"),
    "ko": ("한강", "한강은 서울을 지나는 강이다"),
    "th": ("แม่น้ำ", "แม่น้ำเจ้าพระยาไหลผ่านกรุงเทพ"),
    "hi": ("नदी", "गंगा एक नदी है।"),
    "ar": ("نهر", "النِّيلُ نَهْرٌ طوــيل"),
    "sv": ("Björk", "Björk \u00e4r en sångerska"),
    "code": ("names", "user_id and file_name"),
}


@pytest.fixture(scope="module")
def scripts():
    return BM25Retriever([Passage(name, title, text) for name, (title, text) in SCRIPTS.items()])


@pytest.mark.parametrize(
    ("query", "found"),
    [
        *(("诗人", "zh"), ("李白", "zh"), ("唐代的", "zh"), ("诗", "zh")),
        *(("一番高い", "ja"), ("\uff76\uff9e\uff97\uff7d", "ja"), ("\u30ab\u3099\u30e9\u30b9", "ja"), ("山", "ja")),
        *(("서울", "ko"), ("\u110b\u1161\u11bc 지나는", "ko"), ("กรุงเทพ", "th")),
        *(("नदी", "hi"), ("गंगा", "hi"), ("نهر", "ar"), ("طويل", "ar")),
        *(
            ("bjo\u0308rk", "sv"),
            ("Bjork", "sv"),
            ("\uff22\uff4aö\uff52\uff4b", "sv"),
            ("user id", "code"),
            ("file", "code"),
        ),
    ],
)
def test_words_of_every_script_are_found(scripts, query, found):
    assert _ids(scripts.search(query, 3))[:1] == [found]


@pytest.mark.parametrize("query", ["李诗", "न", "ن", "เเ", "한국", "bjurk"])
def test_parts_of_words_that_are_no_neighbours_are_not_found(scripts, query):
    assert scripts.search(query, 3) == []


def test_accents_make_a_difference_where_both_spellings_exist():
    retriever = BM25Retriever([Passage("a", "", "resume the work"), Passage("b", "", "send a résumé")])
    assert _ids(retriever.search("résumé", 2)) == ["b"]
    assert _ids(retriever.search("resume", 2)) == ["a"]
    assert _ids(BM25Retriever([Passage("a", "", "cafe")]).search("café", 1)) == ["a"]
    kana = BM25Retriever([Passage("a", "", "かき")])
    assert kana.search("がき", 1) == []  # a voicing mark is not an accent


def test_a_title_of_stop_words_is_found_by_itself():
    passages = [
        Passage("a", "It", "A novel about a clown."),
        Passage("b", "To Be", ""),
        Passage("c", "", "It is the clown."),
    ]
    retriever = BM25Retriever(passages)
    assert _ids(retriever.search("It", 3)) == ["a"]
    assert _ids(retriever.search("the clown", 3)) == ["c", "a"]
    assert _ids(retriever.search("to be", 3)) == ["b"]


def test_an_index_with_older_terms_is_not_used_and_named(passages, tmp_path, caplog):
    current = BM25Retriever.cache_path(tmp_path, fingerprint="f")
    older = current.with_name(current.name[:-1] + "1")
    older.mkdir()
    with caplog.at_level(logging.WARNING):
        BM25Retriever(passages, cache_dir=tmp_path, fingerprint="f")
        BM25Retriever(passages, cache_dir=tmp_path, fingerprint="f")
    (message,) = [record.getMessage() for record in caplog.records]
    assert str(older) in message
    assert "older version" in message
    assert current.exists()


def test_scores_follow_the_formula():
    passages = [Passage("a", "", "red red fox"), Passage("b", "", "red"), Passage("c", "", "blue bird sings")]
    hits = BM25Retriever(passages, k1=0.9, b=0.4).search("red fox", 5)
    average = (3 + 1 + 3) / 3

    def term(frequency, holders, length):
        idf = math.log(1 + (3 - holders + 0.5) / (holders + 0.5))
        return idf * frequency / (frequency + 0.9 * (1 - 0.4 + 0.4 * length / average))

    assert _ids(hits) == ["a", "b"]
    assert hits[0].score == pytest.approx(term(2, 2, 3) + term(1, 1, 3), rel=1e-5)
    assert hits[1].score == pytest.approx(term(1, 2, 1), rel=1e-5)


def test_titles_are_searched_too(passages):
    assert _ids(BM25Retriever(passages).search("Henry V", 2))[0] == "a"


def test_equal_scores_are_in_corpus_order_for_every_k():
    passages = [Passage(str(number), "", "same words" if number % 3 else "other") for number in range(200)]
    expected = [str(number) for number in range(200) if number % 3]
    retriever = BM25Retriever(passages)
    for k in (1, 2, 7, 133, 134, 199, 200, 10_000):
        assert _ids(retriever.search("same words", k)) == expected[:k]


def test_a_query_without_known_terms_finds_nothing(passages):
    for kind in ("empty", "blank", "no known term", "stop words"):
        assert BM25Retriever(passages).search(BAD_QUERIES[kind], 3) == []


def test_repeated_queries_get_their_own_answers(passages):
    retriever = BM25Retriever(passages)
    assert retriever.search_batch(["king", "Paris", "king"], 2)[0::2] == [retriever.search("king", 2)] * 2


def test_parameters_are_checked(passages):
    for options in ({"k1": -1}, {"b": 1.5}, {"b": -0.1}):
        with pytest.raises(ConfigurationError, match="k1 >= 0 and 0 <= b <= 1"):
            BM25Retriever(passages, **options)


def test_a_corpus_without_terms_finds_nothing(tmp_path):
    for fingerprint, passage in (("e", Passage("a", "", "")), ("f", Passage("a", "The", "of and"))):
        assert BM25Retriever([passage]).search("king", 3) == []
        for _ in range(2):
            assert BM25Retriever([passage], cache_dir=tmp_path, fingerprint=fingerprint).search("king", 3) == []


def test_the_cache_distinguishes_settings(passages, tmp_path):
    BM25Retriever(passages, cache_dir=tmp_path, fingerprint="f")
    flat = BM25Retriever(passages, cache_dir=tmp_path, fingerprint="f", b=0.0)
    assert flat.search("king", 1) == BM25Retriever(passages, b=0.0).search("king", 1)


def test_a_pickle_whose_cache_is_gone_is_an_error(passages, tmp_path):
    retriever = BM25Retriever(passages, cache_dir=tmp_path / "cache", fingerprint="f")
    pickled = pickle.dumps(retriever)
    assert len(pickled) < 1000
    (tmp_path / "cache").rename(tmp_path / "moved")
    with pytest.raises(pickle.UnpicklingError, match="gone or damaged"):
        pickle.loads(pickled)


def test_building_writes_nothing_to_the_terminal_or_the_log(passages, capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        BM25Retriever(passages).search("", 1)
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.name.startswith("bm25s")] == []


@given(st.text(max_size=200))
def test_any_text_can_be_indexed_and_searched(text):
    hits = BM25Retriever([Passage("a", text, text), Passage("b", "", "king")]).search(text, 2)
    assert all(hit.score > 0 for hit in hits)
    assert bool(hits) == bool(analyse_query(" ".join(text.split())))


def test_a_question_of_its_own_paragraphs_is_served_in_milliseconds(real_corpus):
    paragraphs = [real_corpus.passages[start : start + 10] for start in range(0, 1000, 10)]
    BM25Retriever(paragraphs[0]).search("warm up", 5)
    # A tenth of these is usual.
    with cpu_below(0.010 * len(paragraphs)):
        retrievers = [BM25Retriever(own) for own in paragraphs]
    with cpu_below(0.002 * len(paragraphs)):
        for retriever, question in zip(retrievers, real_corpus.questions, strict=False):
            retriever.search(question, 5)
