import re
import string
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core import scoring
from agent_r1_gym.core.scoring import SCORERS
from agent_r1_gym.errors import ConfigurationError
from tests.kit.cpu_time import cpu_below

WORDS = st.sampled_from(
    ["a", "an", "the", "yes", "no", "noanswer", "Paris", "new", "york", "U.S.", "the-cat", "é", "٣"]
)
PHRASES = st.lists(WORDS, max_size=6).map(" ".join)
TEXTS = PHRASES | st.text(max_size=40) | st.text(st.characters(), max_size=20)


# A literal transcription of the official rules, step by step, to compare against.


def official_normalize(text):
    text = text.lower()
    text = "".join(character for character in text if character not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return " ".join(text.split())


def official_hotpot(prediction, gold):
    prediction, gold = official_normalize(prediction), official_normalize(gold)
    for one in (prediction, gold):
        if one in ["yes", "no", "noanswer"] and prediction != gold:
            return 0, 0, 0
    left, right = prediction.split(), gold.split()
    same = sum((Counter(left) & Counter(right)).values())
    if same == 0:
        return 0, 0, 0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return (2 * precision * recall) / (precision + recall), precision, recall


def official_musique(prediction, gold):
    left, right = official_normalize(prediction).split(), official_normalize(gold).split()
    if not left or not right:
        return int(left == right)
    same = sum((Counter(left) & Counter(right)).values())
    if same == 0:
        return 0
    precision, recall = 1.0 * same / len(left), 1.0 * same / len(right)
    return (2 * precision * recall) / (precision + recall)


def test_normalize_answer_worked_by_hand():
    for text, normal in [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  A  man,\tan\nisland ", "man island"),
        ("U.S.", "us"),  # punctuation goes without leaving a space
        ("the-cat", "thecat"),  # ... and before articles, so this article is not a word any more
        ("a.n.", ""),  # "an" after punctuation, then an article
        ("anthem theatre", "anthem theatre"),  # whole words only
        ("thé the", "thé"),  # word boundaries are Unicode's
        ("Zürich—Genève", "zürich—genève"),  # only ASCII punctuation goes
        ("The The", ""),
        ("", ""),
    ]:
        assert scoring.normalize_answer(text) == normal


def test_hotpotqa_scores_worked_by_hand():
    for prediction, gold, em, f1, precision, recall in [
        # one of two predicted tokens, one of one gold: P 1/2, R 1, F1 = 2 * .5 * 1 / 1.5
        ("Paris, France", "Paris", 0.0, 2 / 3, 0.5, 1.0),
        # "barack obama" against "barack hussein obama": P 2/2, R 2/3, F1 = 2 * 2/3 / (5/3)
        ("Barack Obama", "the Barack Hussein Obama", 0.0, 0.8, 1.0, 2 / 3),
        # repeated tokens count as often as both sides have them: common 1 of 3 and of 1
        ("no way no how no", "no way", 0.0, 4 / 7, 0.4, 1.0),
        ("New York City", "city of new york", 0.0, 2 * 1 * 0.75 / 1.75, 1.0, 0.75),
        ("the answer is yes", "yes", 0.0, 0.0, 0.0, 0.0),  # HotpotQA's rule: yes against anything else is 0
        ("unknown", "no", 0.0, 0.0, 0.0, 0.0),
        ("no", "unknown", 0.0, 0.0, 0.0, 0.0),
        ("Yes.", "yes", 1.0, 1.0, 1.0, 1.0),
        ("the", "", 1.0, 0.0, 0.0, 0.0),  # both normalise to nothing: EM 1, HotpotQA's F1 0
    ]:
        assert scoring.exact_match(prediction, gold) == em
        assert scoring.f1_score(prediction, gold) == pytest.approx(f1)
        assert scoring.precision(prediction, gold) == pytest.approx(precision)
        assert scoring.recall(prediction, gold) == pytest.approx(recall)


def test_musique_scores_worked_by_hand():
    for prediction, golds, em, f1 in [
        ("the answer is yes", ["yes"], 0.0, 0.5),  # no yes/no rule: 1 of 3 tokens ("answer is yes"), 1 of 1
        ("the", [""], 1.0, 1.0),  # two empty sides agree
        ("", ["Paris"], 0.0, 0.0),
        ("Stanley Hall", ["G. Stanley Hall", "Stanley Hall"], 1.0, 1.0),  # the best over the aliases
        ("Hall", ["G. Stanley Hall", "Stanley Hall"], 0.0, 2 / 3),  # alias: P 1, R 1/2; answer: P 1, R 1/3
    ]:
        scorer = SCORERS["musique"]
        assert scorer.em(prediction, golds) == em
        assert scorer.f1(prediction, golds) == pytest.approx(f1)


def test_harmless_perturbations_stay_right():
    for perturbed in [
        "Eiffel Tower",
        "eiffel tower",
        "the Eiffel Tower",
        "Eiffel  Tower!",
        "  an EIFFEL\ntower ",
        '"Eiffel Tower"',
    ]:
        for name in ("hotpotqa", "2wikimultihopqa", "musique", "fiction"):
            assert SCORERS[name].em(perturbed, ("Eiffel Tower",)) == 1.0
            assert SCORERS[name].f1(perturbed, ("Eiffel Tower",)) == 1.0


def test_exact_match_is_exact():
    for wrong in ["Eiffel", "Eiffel Tower Paris", "EiffelTower", "Tower Eiffel", "", "Eiffél Tower"]:
        assert scoring.exact_match(wrong, ("Eiffel Tower",)) == 0.0


@given(TEXTS, TEXTS)
def test_agrees_with_the_official_rules(prediction, gold):
    assert scoring.normalize_answer(prediction) == official_normalize(prediction)
    assert scoring.exact_match(prediction, gold) == (official_normalize(prediction) == official_normalize(gold))
    assert scoring.token_scores(prediction, gold) == pytest.approx(official_hotpot(prediction, gold))
    assert scoring.musique_f1_score(prediction, gold) == pytest.approx(official_musique(prediction, gold))


@pytest.mark.slow
@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=4))
def test_each_metric_is_the_best_over_the_answers(prediction, golds):
    best = [max(scores) for scores in zip(*(official_hotpot(prediction, gold) for gold in golds), strict=True)]
    assert scoring.f1_score(prediction, golds) == pytest.approx(best[0])
    assert scoring.precision(prediction, golds) == pytest.approx(best[1])
    assert scoring.recall(prediction, iter(golds)) == pytest.approx(best[2])
    assert scoring.exact_match(prediction, golds) == max(scoring.exact_match(prediction, gold) for gold in golds)


@given(PHRASES, PHRASES)
def test_invariances(left, right):
    assert scoring.f1_score(left, right) == pytest.approx(scoring.f1_score(right, left))
    assert scoring.precision(left, right) == pytest.approx(scoring.recall(right, left))
    assert scoring.f1_score(left.upper(), right) == pytest.approx(scoring.f1_score(left, right))
    assert scoring.f1_score(f"the {left} , ", right) == pytest.approx(scoring.f1_score(left, right))
    assert scoring.exact_match(left, left) == 1.0


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
def test_every_scorer_stays_in_its_range(prediction, golds):
    for scorer in SCORERS.values():
        assert scorer.em(prediction, golds) in (0.0, 1.0)
        assert 0.0 <= scorer.f1(prediction, golds) <= 1.0


def test_sub_exact_match_has_the_blind_spot_that_exact_match_has_not():
    assert scoring.sub_exact_match("unknown", "no") == 1.0
    assert scoring.exact_match("unknown", "no") == 0.0
    assert scoring.sub_exact_match("It is the Eiffel Tower in Paris", ("eiffel tower",)) == 1.0
    assert scoring.sub_exact_match("anything", ("the",)) == 0.0
    assert scoring.sub_exact_match("an", ("the",)) == 0.0
    for answer, score in (
        ("The answer is (A).", 1.0),
        ("A", 1.0),
        ("banana", 0.0),
        ("the", 0.0),
        ("!", 0.0),
        ("", 0.0),
    ):
        assert scoring.sub_exact_match(answer, ("A",)) == score
    assert scoring.sub_exact_match("!", ("!",)) == 1.0


def test_final_number():
    for text, number in [
        ("Natalia sold 48/2 = <<48/2=24>>24 clips.\n#### 72", "72"),
        ("#### 1,234,567", "1234567"),
        ("#### 18 dollars for 3", "18"),  # after the marker the first number counts
        ("first #### 5 then #### 6", "6"),
        ("So 3 + 4 makes 7.", "7"),
        ("It costs $1,250.50.", "1250.50"),
        ("-5%", "-5"),
        ("-$5", "-5"),
        ("−7 degrees", "-7"),
        ("10-5", "5"),  # a minus between numbers subtracts
        ("1,2,3", "3"),  # a list, no thousands
        ("12,34", "34"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("5km", "5"),
        ("212 m2", "212"),
        ("212 m^2.", "212"),
        ("212 square m", "212"),
        ("3 km3 of water", "3"),
        ("12 in 3", "3"),
        ("1_000", "1000"),
        ("1\u202f000,5", "5"),
        ("1\u00a0234\u00a0567.5 coins", "1234567.5"),
        ("1 000", "1000"),
        ("The answer is $1 000 coins.", "1000"),
        ("-12 000", "-12000"),
        ("first 3, then 1 000", "0"),  # other numbers stand there: a space may part two
        ("1 2 300", "300"),
        ("12 3456", "3456"),
        ("10^3", "3"),  # nothing is computed
    ]:
        assert scoring.final_number(text) == scoring.Decimal(number)


def test_numeric_match():
    for prediction, gold, match in [
        ("The answer is 72.", "some reasoning\n#### 72", 1.0),
        ("72.0", "72", 1.0),
        ("$1,000", "#### 1000", 1.0),
        ("50%", "50", 1.0),
        ("72.001", "72", 0.0),
        ("720", "72", 0.0),
        ("-72", "72", 0.0),
        ("seventy-two", "72", 0.0),
        ("", "72", 0.0),
        ("72 ####", "72", 0.0),  # the marker promises a number and none comes
    ]:
        assert scoring.numeric_match(prediction, gold) == match


def test_plain_match():
    for prediction, gold, match in [
        *(("738", "738", 1.0), (" 738. ", "738", 1.0), ("738.0", "738", 1.0), ("$738", "738", 1.0)),
        *(("-738", "738", 0.0), ("7.38", "738", 0.0), ("7,38", "738", 0.0), ("739", "738", 0.0)),
        *(("1,000", "1000", 1.0), ("738 coins", "738", 0.0), ("", "738", 0.0)),
        *(("the Ada Brock", "Ada Brock", 1.0), ("hana 3", "hana 3", 1.0), ("gus 3", "3", 0.0)),
        *(("12", "1/2", 0.0), ("1 / 2.", "1/2", 1.0), ("C", "C++", 0.0), ("c++!", "C++", 1.0), ("x<0", "x > 0", 0.0)),
        *(("15 km", "1.5 km", 0.0), ("3\u20134", "3 - 4", 1.0), ("34", "3-4", 0.0), ("50 %", "50%", 1.0)),
        *(
            ("**Paris**", "Paris", 1.0),
            ("'The Hague'.", "Hague", 1.0),
            ("US", "U.S.", 1.0),
            ("Smith John", "Smith, John", 1.0),
        ),
        *(("1200 cents", "1,200 cents", 1.0), ("12,00 cents", "1,200 cents", 0.0), ("1030", "10:30", 0.0)),
    ]:
        assert scoring.plain_match(prediction, gold) == match
        assert scoring.plain_match(prediction, ("something else", gold)) == match


@given(st.integers(-(10**12), 10**12))
def test_numeric_match_of_any_integer_with_its_written_forms(number):
    for text in (f"{number}", f"{number:,}", f"so {number:,}.", f"#### {number}", f"{number}.00"):
        assert scoring.numeric_match(text, str(number)) == 1.0
        assert scoring.numeric_match(text, str(number + 1)) == 0.0


@pytest.mark.parametrize("size", [30_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_linear_time_and_safe_on_long_texts(size):
    for block in ["a", "the ", "1,111,", "1", "\ud800\0", "- ", "####", "1e", ".1", "1.1", "yes ", "\u0130"]:
        text = block * (size // len(block))
        with cpu_below(size / 100_000, block):
            for scorer in SCORERS.values():
                assert scorer.em(text, ("x",)) == 0.0
                scorer.f1(text, ("x",))


@pytest.mark.parametrize("scorer", ["plain", "qa"])
@pytest.mark.parametrize("gold", ["A", "B", "C", "D"])
def test_a_letter_of_a_multiple_choice_is_an_answer_like_any_other(scorer, gold):
    score = SCORERS[scorer]
    for right in (gold, gold.lower(), f"({gold})", f"{gold}.", f" **{gold}** ", f'"{gold}"'):
        assert (score.em(right, (gold,)), score.f1(right, (gold,))) == (1.0, 1.0), right
    for wrong in ("", " ", "the", "The the", "an", "!", "...", "**", *({"A", "B", "C", "D"} - {gold})):
        assert (score.em(wrong, (gold,)), score.f1(wrong, (gold,))) == (0.0, 0.0), wrong


def test_an_official_metric_empties_answers_as_the_official_script_does():
    for name in ("hotpotqa", "2wikimultihopqa", "musique"):
        assert [SCORERS[name].em(answer, ("A",)) for answer in ("A", "the", "!", "")] == [1.0] * 4
    assert SCORERS["hotpotqa"].f1("A", ("A",)) == 0.0


@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        *(
            ("A, B", "B"),
            ("A B", "B"),
            ("A and B", "B"),
            ("Vitamin A", "vitamin"),
            ("the", "The The"),
            ("The The", "the"),
        ),
        *(("10\u00b2", "102"), ("50%", "50"), ("-72!", "72"), ("!", "?"), ("", "!"), ("\u2026", "")),
    ],
)
def test_no_step_of_the_plain_normalisation_makes_two_answers_one(prediction, gold):
    assert scoring.plain_match(prediction, gold) == scoring.plain_match(gold, prediction) == 0.0


@pytest.mark.parametrize("scorer", ["plain", "qa"])
@pytest.mark.parametrize(
    ("prediction", "gold"),
    [
        *(
            ("東京。", "東京"),
            ("「雪国」", "雪国"),
            ("東京 駅", "東京駅"),
        ),
        *(
            ("Bjo\u0308rk", "Björk"),
            ("\uff4e\uff41\uff4d\uff45\uff01", "name"),
            ("\ufb01sh", "fish"),
            ("\uff76\uff9e\uff7d", "ガス"),
        ),
        *(
            ("كَتَب", "كتب"),
            ("हिन्दी।", "हिन्दी"),
        ),
        *(
            ("\u201cOslo\u201d", "Oslo"),
            ("\u00abOslo\u00bb", "Oslo"),
            ("Aix\u2014en", "Aix-en"),
            ("Jean\u2019s", "Jean's"),
        ),
    ],
)
def test_texts_that_read_the_same_are_one_answer_in_any_script(scorer, prediction, gold):
    score = SCORERS[scorer]
    assert score.em(prediction, gold) == score.f1(prediction, gold) == 1.0
    assert score.em(gold, prediction) == 1.0


def test_f1_counts_characters_where_words_have_no_spaces():
    for prediction, gold, f1 in [
        ("東京駅", "東京", 0.8),  # 2 of 3 characters, all of 2
        ("大阪", "東京", 0.0),
        ("서울은", "서울", 0.8),  # Korean, with a particle
        ("กรุง", "กร", 2 / 3),  # Thai: the vowel below is a character
        ("Expo 1970 大阪", "大阪", 2 / 3),
    ]:
        for name in ("plain", "qa"):
            assert SCORERS[name].f1(prediction, gold) == pytest.approx(f1)


SEPARATORS = [
    ",",
    "_",
    "'",
    "\u2019",
    "{,}",
    "\\,",
    "\\;",
    "\\ ",
    ",\\!",
    "~",
    "\u00a0",
    "\u2007",
    "\u2009",
    "\u202f",
    "\uff0c",
    "\u066c",
]
DIGITS = [
    "0123456789",
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19",
    "٠١٢٣٤٥٦٧٨٩",
]


@st.composite
def written_numbers(draw):
    """A number, and a way to write it that people use."""
    value = draw(st.integers(0, 10**12) | st.integers(0, 99_999))
    cents = draw(st.sampled_from(["", "", ".5", ".25", ".00"]))
    grouped = f"{value:,}"
    if draw(st.booleans()) and value >= 100_000:  # India groups by two
        head, tail = str(value)[:-3], str(value)[-3:]
        grouped = ",".join(
            [*(head[max(0, end - 2) : end] for end in range(len(head) % 2 or 2, len(head) + 1, 2)), tail]
        )
    text = grouped.replace(",", draw(st.sampled_from(SEPARATORS))) if draw(st.booleans()) else str(value)
    text = (text + cents).translate(str.maketrans("0123456789", draw(st.sampled_from(DIGITS))))
    sign = draw(st.sampled_from(["", "", "-", "\u2212", "\u2013", "\uff0d"]))
    money = draw(st.sampled_from(["", "", "$", "\u20ac", "\\$"]))
    number = scoring.Decimal(f"{value}{cents}")
    return (-number if sign else number), f"{sign}{money}{text}"


@given(written_numbers())
def test_a_number_is_read_in_every_way_that_people_write_it(number_and_text):
    number, text = number_and_text
    for sentence in (text, f"{text}.", f"It is {text} in all.", f"#### {text}", f"**{text}**"):
        assert scoring.final_number(sentence) == number, sentence
    assert scoring.plain_match(text, f"{number:f}") == scoring.plain_match(f"{number:f}", text) == 1.0
    assert scoring.plain_match(text, f"{number + 1:f}") == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1/2", "0.5"), ("\u00bd", "0.5"), ("2 1/2", "2.5"), ("2\u00bd", "2.5"), ("-3/4", "-0.75"), ("2/4", "0.5")),
        *(("\\frac{1}{2}", "0.5"), ("2\\dfrac{1}{2}", "2.5"), ("-\\frac{3}{4}", "-0.75"), ("\\frac34", "0.75")),
        *(
            ("1E+3", "1000"),
            ("2.5e-1", "0.25"),
            ("3 x 10^3", "3000"),
            ("3\u00d710\u00b3", "3000"),
            ("3\\times 10^{-1}", "0.3"),
        ),
        *(("1.000.000", "1000000"), ("1.000.000,5", "1000000.5"), ("1.000", "1"), ("+7", "7"), ("5 \u20ac", "5")),
    ],
)
def test_fractions_and_powers_of_ten_have_their_value(text, number):
    assert scoring.final_number(text) == scoring.Decimal(number)
    assert scoring.plain_match(text, number) == scoring.plain_match(number, text) == 1.0


def test_what_is_no_fraction_and_no_number_alone():
    for text, number in [
        ("3/4/2020", "2020"),
        ("1/0", "0"),
        ("24/7/365", "365"),
        ("10\u00b3", "3"),
        ("48/2 = 24", "24"),
    ]:
        assert scoring.final_number(text) == scoring.Decimal(number)
        assert scoring.number_alone(text) is None
    for text in ("", "-", "$", "1,2,3", "7.1.2", "5 km", "x5", "1e", "3-4", "10:30"):
        assert scoring.number_alone(text) is None
    assert scoring.number_alone("12.50 %") == scoring.number_alone("12.5 per cent") == "12.5%"


@given(TEXTS | written_numbers().map(lambda pair: pair[1]), TEXTS | written_numbers().map(lambda pair: pair[1]))
def test_a_scorer_accepts_what_shares_its_key(prediction, gold):
    for scorer in SCORERS.values():
        if not (scorer.name == "gsm8k" and scoring.final_number(gold) is None):
            assert scorer.em(prediction, (gold,)) == float(scorer.key(prediction) == scorer.key(gold)), scorer.name


def test_a_single_gold_text_is_one_answer_and_not_its_letters():
    assert scoring.exact_match("P", "Paris") == 0.0
    assert scoring.exact_match("Paris", "Paris") == 1.0


def test_no_gold_answer_is_refused():
    for scorer in SCORERS.values():
        with pytest.raises(ConfigurationError, match="no gold answer, which the scorer needs"):
            scorer.em("x", ())


@pytest.mark.parametrize(
    ("prediction", "gold", "f1"),
    [
        *(("738.0", "738", 1.0), ("-738", "738", 0.0), ("738 coins", "738", 0.0)),
        *(("the old C++ book", "C++", 0.5), ("the old C book", "C++", 0.0), ("no C++", "no", 0.0), ("No.", "no", 1.0)),
    ],
)
def test_plain_f1(prediction, gold, f1):
    """Of "old c++ book" one word of three is right, all of the gold answer: F1 1/2."""
    assert scoring.plain_f1_score(prediction, gold) == f1


@pytest.mark.parametrize(
    ("prediction", "gold", "score"),
    [
        ("(2, 4)", "(2,4)", 1.0),
        ("3,5,7", "3, 5, 7", 1.0),
        ("red,blue", "red, blue", 1.0),
        ("1-2", "1,-2", 0.0),
        ("1, -2", "1,-2", 1.0),
        ("1,234", "1234", 1.0),
        ("9,800,000 people", "9800000 people", 1.0),
    ],
)
def test_a_list_is_the_same_with_and_without_spaces(prediction: str, gold: str, score: float) -> None:
    assert scoring.plain_match(prediction, gold) == score
    if score:
        assert scoring.plain_f1_score(prediction, gold) == 1.0


def test_the_power_of_a_compound_unit_is_no_number() -> None:
    for text in ("9.8 m/s^2", "9.8 m/s\u00b2", "g is 9.8 km/h2"):
        assert scoring.numeric_match(text, "9.8") == 1.0
    assert scoring.numeric_match("9.8 / 2", "2") == 1.0
