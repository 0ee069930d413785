"""The natural style: an encyclopedia in varied English. Schema, names, sentences and questions, as data.

In this order: names made of syllables and words; kinds, relations and values; sentences of passages; wordings of
questions; and the style that combines them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache, partial
from string import Formatter
from typing import NamedTuple

from agent_r1_gym.envs.fiction_qa.world import Entity, EntityKind, FictionStyle, FictionWorld, NameSpace, words

# --- names ------------------------------------------------------------------------------------------------------------

_OPENINGS = tuple(
    onset + vowel for onset in words("b br c d dr f g gr h j k kr l m n p r s st t tr v w z") for vowel in "aeiou"
)
_MIDDLES = tuple(onset + vowel for onset in words("b d f k l m n r s t v th sh ld nd rn") for vowel in "aeiou")
_WOMEN = words(
    """
    Ada Adele Agnes Alma Amara Anika Astrid Beatrix Berta Carla Clara Cora Dagmar Delia Dora Edith Elena Ella Elsa Emma
    Enid Esther Eva Fiona Flora Frida Gerda Greta Hanna Hedda Helena Hilda Ida Ines Ingrid Irene Iris Jana Judith Karin
    Katya Klara Laura Leah Leona Lidia Lotte Magda Marta Matilda Mira Nadia Naomi Nora Olga Paula Petra Regina Rosa Ruth
    Selma Sonia Stella Tamara Tilda Ursula Vera Wilma Xenia Yara Zelda
    """
)
_MEN = words(
    """
    Abel Alan Albert Amos Anders Anselm Anton August Aurel Benno Bruno Casper Cecil Claude Cyril Dario Edgar Elias Emil
    Erik Felix Gideon Gustav Hector Henrik Hugo Igor Isaac Ivan Jasper Joel Jonas Julian Karl Konrad Laszlo Leo Linus
    Lucas Marcel Maxim Milan Nico Olaf Oscar Otto Quentin Rafael Rufus Silas Theo Viktor Zoltan Ansgar Basil Bertram
    Clemens Conrad Dominic Ferdinand Florian Godfrey Hubert Ignatius Jerome Leander Magnus Ruben Sebastian Valentin
    Walter
    """
)
_FIRST_NAMES = _WOMEN + _MEN
_SURNAMES = words("vic nen ssen mann wick ton ley kov dal ris more well ner ckett dez vers lin sky strom ghan")
_TOWNS = words(
    "burg ville ford haven holm stad mouth field port dorf wyck bridge minster dale grad stead bury worth gate moor "
    "ham cester vik combe"
)
_COUNTRIES = words("landia vania thia dor mark rland gard xia thria zmar wyn quia")
_COMPANIES = words(
    "Group|Holdings|Brothers|Industries|Company|Partners|& Sons|Enterprises|Works|Associates|Limited|Union|"
    "Consolidated|International|Concern|Corporation",
    separator="|",
)
_ADJECTIVES = words(
    """
    Silent Golden Broken Distant Hidden Last Crimson Paper Winter Hollow Patient Burning Forgotten Glass Iron Quiet
    Restless Second Stolen Velvet Wandering White Bitter Blue Borrowed Brass Careful Clever Copper Crooked Drowned
    Empty Faithful False Foreign Frozen Gentle Green Grey Honest Idle Invisible Ivory Late Lonely Lost Narrow Nameless
    Northern Painted Pale Perfect Proud Red Reluctant Sleeping Southern Sudden Unfinished Vanishing Weary Wooden
    Yellow Young
    """
)
_NOUNS = words(
    """
    Harbour Orchard Lantern Mirror Compass Garden Letter Bridge Clock Tower Island Window Journey Voyage Station Piano
    Gardener Captain Stranger Daughter Widow Tailor Soldier Baker Painter Doctor Neighbour Pilgrim Sailor Hunter Guest
    Inheritance Promise Secret Shadow Portrait Map Key Door Staircase Candle Feather Anchor Bell Carpet Chapel Crown
    Curtain Desert Dream Echo Ferry Fountain Glacier Horizon House Kingdom Labyrinth Library Lighthouse Market Meadow
    Melody Monument Mountain Museum Night Oracle Palace Parade Prophecy Railway Return River Road Rose Season Sparrow
    Theatre Violin
    """
)
_TAILS = words(
    """
    Ash Amber Autumn Bread Bronze Chalk Clay Coal Dust Ember Flint Fog Frost Gold Grass Hail Honey Ink Ivy Jade Lace
    Lead Lilac Linen Marble Midnight Mist Moss Myrrh Oak Oats Pearl Pepper Pine Quartz Rain Rust Saffron Salt Sand
    Silk Silver Slate Smoke Snow Soot Spring Steam Stone Straw Sugar Tar Thorns Thunder Tin Twilight Velour Wax Wheat
    Willow Wind Wine Wool
    """
)


# Sizes of the digits of a name: the opening and last syllable, an optional middle syllable, the tail of a work.
_STEM = (len(_OPENINGS), len(_MIDDLES))
_LONGER = (1, 1 + len(_MIDDLES))
_WORK_TAILS = (1, 1 + len(_TAILS), 1 + len(_TAILS) + _STEM[0] * _STEM[1])


def _stem(middle: int, opening: int, closing: int) -> str:
    """Two or (middle > 0) three open syllables: consonants and one vowel each, so that no two stems are equal."""
    return (_OPENINGS[opening] + (_MIDDLES[middle - 1] if middle else "") + _MIDDLES[closing]).capitalize()


def _spell_person(digits: Sequence[int]) -> str:
    middle, first, opening, closing, ending = digits
    return f"{_FIRST_NAMES[first]} {_stem(middle, opening, closing)}{_SURNAMES[ending]}"


def _spell_work(digits: Sequence[int]) -> str:
    tail, adjective, noun = digits
    name = f"The {_ADJECTIVES[adjective]} {_NOUNS[noun]}"
    if tail == 0:
        return name
    if tail <= len(_TAILS):
        return f"{name} of {_TAILS[tail - 1]}"
    return f"{name} of {_stem(0, *divmod(tail - len(_TAILS) - 1, len(_MIDDLES)))}"


def _with_ending(endings: Sequence[str], between: str, digits: Sequence[int]) -> str:
    return f"{_stem(*digits[:3])}{between}{endings[digits[3]]}"


def _ending_in(endings: Sequence[str], between: str = "") -> NameSpace:
    """The names that consist of a stem and an ending."""
    return NameSpace(_LONGER, (*_STEM, len(endings)), partial(_with_ending, endings, between))


# --- kinds, relations and values --------------------------------------------------------------------------------------


def _list(text: str) -> tuple[str, ...]:
    return words(text, ", ")


_KINDS = {
    "work": EntityKind(21, "work"),
    "person": EntityKind(26, "person"),
    "elder": EntityKind(12, "person"),
    "company": EntityKind(10, "company"),
    "press": EntityKind(4, "press"),
    "university": EntityKind(4, "school"),
    "city": EntityKind(12, "town"),
    "country": EntityKind(4, "country"),
    "capital": EntityKind(4, "town"),
    "waterway": EntityKind(3, "river"),
}
_RELATIONS = {
    "work": {"author": "person", "publisher": "press", "setting": "city", "release": "releases", "genre": "genres"},
    "person": {
        "birthplace": "city",
        "birthyear": "births",
        "occupation": "occupations",
        "spouse": "person",
        "university": "university",
        "teacher": "elder",
        "employer": "company",
    },
    "elder": {
        "birthplace": "city",
        "birthyear": "elder births",
        "occupation": "occupations",
        "spouse": "elder",
        "university": "university",
    },
    "company": {
        "founder": "elder",
        "headquarters": "city",
        "foundation": "foundations",
        "industry": "industries",
    },
    "press": {"founder": "elder", "headquarters": "city", "foundation": "foundations"},
    "university": {"campus": "city", "foundation": "old foundations", "colours": "colours"},
    "city": {"country": "country", "river": "waterway", "population": "populations", "product": "products"},
    "country": {"capital": "capital", "currency": "currencies", "language": "languages"},
    "capital": {"river": "waterway", "population": "populations", "foundation": "old foundations"},
    "waterway": {"length": "lengths", "sea": "seas", "source": "mountains"},
}
_VALUES = {
    "elder births": tuple(map(str, range(1826, 1851))),
    "foundations": tuple(map(str, range(1870, 1894))),
    "births": tuple(map(str, range(1868, 1896))),
    "releases": tuple(map(str, range(1916, 1940))),
    "old foundations": tuple(map(str, range(1190, 1690))),
    "populations": tuple(f"{12_000 + 137 * step:,}" for step in range(2_000)),
    "lengths": tuple(f"{40 + step} km" for step in range(900)),
    "genres": _list(
        "adventure novel, detective novel, ghost story, historical novel, comedy, tragedy, satire, verse epic, "
        "memoir, travelogue, collection of essays, epistolary novel"
    ),
    "occupations": _list(
        "architect, astronomer, botanist, chemist, composer, engineer, geologist, historian, journalist, judge, "
        "mathematician, painter, physician, playwright, surveyor, watchmaker"
    ),
    "industries": _list(
        "shipbuilding, glassmaking, brewing, mining, insurance, textiles, printing machinery, papermaking, "
        "steelmaking, banking, chocolate making, clockmaking, ceramics, telegraphy, furniture making, tanning"
    ),
    "products": _list(
        "cheese, lace, honey, pottery, olive oil, carpets, cider, violins, amber jewellery, smoked fish, candles, "
        "silk, walnuts, saffron, knives, bells"
    ),
    "currencies": _list(
        "crown, taler, florin, ducat, lira, mark, real, guilder, dinar, shilling, kuna, zloty, peso, talent, obol, "
        "groat, stater, denar, livre, sequin"
    ),
    "languages": _list(
        "Averic, Tolmish, Corinese, Duvanian, Elmish, Farsic, Gothric, Hesperic, Ilvian, Jorvian, Keltric, Lodian, "
        "Morvish, Nordean, Ostrian, Pelasian, Quenic, Rhodic, Sorvian, Thessian"
    ),
    "colours": tuple(
        f"{first} and {second}"
        for first in _list("black, crimson, green, navy blue, purple, scarlet")
        for second in _list("white, silver, gold, grey, ivory")
    ),
    "seas": _list(
        "Amber Sea, Sea of Glass, Gulf of Herons, Northern Strait, Quiet Bay, Sea of Reeds, Iron Gulf, Long Sound"
    ),
    "mountains": _list(
        "Amber Hills, Wolf Mountains, Stone Teeth, Grey Range, Cloud Peaks, Cold Heights, Eagle Ridge, Salt Hills, "
        "Thunder Mountains, White Moors"
    ),
}
_NAMES = {
    "work": NameSpace(_WORK_TAILS, (len(_ADJECTIVES), len(_NOUNS)), _spell_work),
    "person": NameSpace(_LONGER, (len(_FIRST_NAMES), *_STEM, len(_SURNAMES)), _spell_person),
    "company": _ending_in(_COMPANIES, " "),
    "press": _ending_in(("Press", "Books", "Publishing", "Editions"), " "),
    "school": _ending_in(("University", "College", "Academy", "Institute"), " "),
    "town": _ending_in(_TOWNS),
    "country": _ending_in(_COUNTRIES),
    "river": NameSpace(_LONGER, _STEM, lambda digits: f"{_stem(*digits)} River"),
}

# --- sentences of passages --------------------------------------------------------------------------------------------

MONTHS = words("January February March April May June July August September October November December")

LAYOUTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "person": (
        ("person: origin", "person: studies", "person: career", "person: marriage"),
        ("person: origin", "person: marriage", "person: studies", "person: career"),
        ("person: origin", "person: studies", "person: life"),
        ("person: origin", "person: life", "person: studies"),
    ),
    "elder": (
        ("person: origin", "elder: studies", "person: marriage"),
        ("person: origin", "person: marriage", "elder: studies"),
        ("person: origin", "elder: life"),
    ),
    "work": (
        ("work: subject", "work: setting", "work: publication"),
        ("work: subject", "work: publication", "work: setting"),
        ("work: subject", "work: place and publication"),
    ),
    "company": (("company: subject", "history"), ("company: subject", "history: founder", "history: year")),
    "press": (("press: subject", "history"), ("press: subject", "history: founder", "history: year")),
    "university": (("university: subject", "university: colours"),),
    "city": (
        ("city: subject", "city: river and product", "city: population"),
        ("city: subject", "city: population", "city: river and product"),
        ("city: subject", "city: river", "city: population", "city: product"),
    ),
    "country": (
        ("country: subject", "country: money and speech"),
        ("country: subject", "country: speech", "country: money"),
    ),
    "capital": (
        ("capital: subject", "capital: age", "city: population"),
        ("capital: subject", "city: population", "capital: age"),
    ),
    "waterway": (("waterway: subject", "waterway: length"), ("waterway: length first", "waterway: course")),
}
"""Maps each kind to the possible orders of the parts of its passage."""


def _blocks(text: str) -> dict[str, list[str]]:
    """Maps each line at the margin to the indented lines below it."""
    blocks: dict[str, list[str]] = {}
    below: list[str] = []
    for line in text.strip().splitlines():
        if line.startswith(" "):
            below.append(line.strip())
        else:
            below = blocks[line] = []
    return blocks


SENTENCES = _blocks("""
person: origin
    {name} (born {day} {birthyear}) was {a_occupation} from {birthplace}.
    {name} was {a_occupation}, born in {birthplace} on {day} {birthyear}.
    Born in {birthplace} on {day} {birthyear}, {name} made a living as {a_occupation}.
    {name}, {a_occupation} by profession, was born on {day} {birthyear} in {birthplace}.
person: studies
    {He} studied under {teacher} at {university}.
    {short} was educated at {university}, where {he} was taught by {teacher}.
    A graduate of {university}, {he} was a student of {teacher}.
    At {university}, {he} attended the lectures of {teacher}, {his} teacher for many years.
person: career
    {He} spent most of {his} career at {employer}.
    For many years {he} was employed by {employer}.
    {short} worked for {employer} until {his} retirement.
    {He} joined {employer} as an adviser and stayed there for decades.
person: marriage
    {He} was married to {spouse}.
    {His} spouse was {spouse}.
    {short} married {spouse}, whom {he} had met while travelling.
    {short} and {spouse} were a married couple.
person: life
    {He} worked for {employer} and was married to {spouse}.
    While employed by {employer}, {he} married {spouse}.
    {short}, who was married to {spouse}, spent most of {his} career at {employer}.
elder: studies
    {He} studied at {university}.
    {short} was educated at {university}.
    {He} graduated from {university} with distinction.
    {His} years as a student were spent at {university}.
elder: life
    {He} studied at {university} and was married to {spouse}.
    {short}, a graduate of {university}, was married to {spouse}.
    After {his} studies at {university}, {he} married {spouse}.
work: subject
    {name} is {a_genre} by {author}.
    {name} is {a_genre} written by {author}.
    Written by {author}, {name} is {a_genre}.
    {name}, {a_genre}, is the best-known work of {author}.
work: setting
    It is set in {setting}.
    The story takes place in {setting}.
    Most of its scenes are set in {setting}.
work: publication
    It was first published in {release} by {publisher}.
    {publisher} published it in {release}.
    The first edition was issued by {publisher} in {release}.
    Its publisher was {publisher}, which brought it out in {release}.
work: place and publication
    Set in {setting}, it was first published in {release} by {publisher}.
    It takes place in {setting} and was published by {publisher} in {release}.
    The book, set in {setting}, was brought out by {publisher} in {release}.
company: subject
    {name} is a company in {industry} with headquarters in {headquarters}.
    {name} is based in {headquarters} and active in {industry}.
    Based in {headquarters}, {name} is a firm known for its role in {industry}.
press: subject
    {name} is a publishing house based in {headquarters}.
    {name} is a publisher with headquarters in {headquarters}.
    Based in {headquarters}, {name} is a publisher of books and periodicals.
history
    It was founded in {foundation} by {founder}.
    {founder} founded it in {foundation}.
    Established in {foundation}, it owes its existence to {founder}, its founder.
history: founder
    It was founded by {founder}.
    Its founder was {founder}.
    {founder} set it up with borrowed money.
history: year
    The year of its foundation was {foundation}.
    It opened its doors in {foundation}.
    It has existed since {foundation}.
university: subject
    {name} is an institution of higher learning in {campus}, founded in {foundation}.
    Founded in {foundation}, {name} is located in {campus}.
    {name} was founded in {foundation} in {campus}, where it is still located.
university: colours
    Its official colours are {colours}.
    Students wear its colours, {colours}, on feast days.
    The coat of arms shows its official colours: {colours}.
city: subject
    {name} is a city in {country}.
    {name} is a town in the east of {country}.
    {name} is one of the older cities of {country}.
    Situated in {country}, {name} is a regional centre.
city: river and product
    It lies on the {river} and is known for its {product}.
    The {river} flows through it, and its {product} can be bought all over the country.
    Standing on the {river}, it is best known for its {product}.
city: river
    The {river} flows through it.
    It stands on the {river}.
    It lies on the banks of the {river}.
city: product
    It is best known for its {product}.
    Visitors come for its {product}.
    Its {product} can be bought all over the country.
city: population
    It has a population of {population}.
    At the last census, {population} people lived there.
    Its population is {population}.
country: subject
    {name} is a country whose capital is {capital}.
    {name} is a country governed from its capital, {capital}.
    {name} is a republic; its capital is {capital}.
    {name} is a kingdom with its capital at {capital}.
country: money and speech
    Its currency is the {currency}, and its official language is {language}.
    The official language is {language}, and people pay with the {currency}.
    {language} is the official language, and the {currency} is the currency.
country: money
    Its currency is the {currency}.
    The currency in use is the {currency}.
    Prices are given in the national currency, the {currency}.
country: speech
    The official language is {language}.
    {language} is its official language.
    Most people speak {language}, the official language.
capital: subject
    {name} is a national capital on the {river}.
    {name} is a capital city through which the {river} flows.
    Lying on the {river}, {name} is a seat of government.
capital: age
    It was founded in {foundation}.
    Its history began in {foundation}, when it was founded.
    Chronicles give {foundation} as the year of its foundation.
waterway: subject
    The {name} rises in the {source} and flows into the {sea}.
    The {name} is a river that flows from the {source} to the {sea}.
    From its source in the {source}, the {name} runs down to the {sea}.
waterway: length
    It is {length} long.
    Its length is {length}.
    From source to mouth it measures {length}.
waterway: length first
    The {name} is a river with a length of {length}.
    The {name} is a river {length} long.
waterway: course
    It rises in the {source} and flows into the {sea}.
    Its source lies in the {source}, its mouth at the {sea}.
    It comes down from the {source} and ends in the {sea}.
""")
"""Maps each part of a passage to its wordings, which all state the same relations."""


# --- wordings of questions --------------------------------------------------------------------------------------------


class Phrase(NamedTuple):
    """The wordings of questions about one relation.

    Attributes:
        ask: questions for the target of {x}.
        noun: descriptions of the target of {x}; empty if the target is a value, where a chain ends.
        same: yes/no questions about {a} and {b}.
        lower: questions for the earlier or smaller of {a} and {b}.
        higher: questions for the later or larger.
    """

    ask: tuple[str, ...]
    noun: tuple[str, ...] = ()
    same: tuple[str, ...] = ()
    lower: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()


def _phrase(lines: Sequence[str]) -> Phrase:
    """Parses "field: wording / wording ..." lines."""
    fields = (line.split(": ") for line in lines)
    return Phrase(**{field: tuple(wordings.split(" / ")) for field, wordings in fields})


PHRASES = {
    relation: _phrase(lines)
    for relation, lines in _blocks("""
author
    ask: Who wrote {x}? / Who is the author of {x}? / By whom was {x} written?
    noun: the author of {x} / the person who wrote {x} / the writer of {x}
    same: Were {a} and {b} written by the same person? / Do {a} and {b} have the same author?
publisher
    ask: Who published {x}? / Which publishing house brought out {x}? / What is the publisher of {x}?
    noun: the publisher of {x} / the publishing house that issued {x} / the press that brought out {x}
    same: Were {a} and {b} brought out by the same publisher? / Do {a} and {b} have the same publisher?
setting
    ask: In which city is {x} set? / Where does {x} take place? / What city is the setting of {x}?
    noun: the city in which {x} is set / the setting of {x} / the city where {x} takes place
    same: Are {a} and {b} set in the same city? / Do {a} and {b} take place in the same city?
release
    ask: In what year was {x} first published? / When did {x} first appear in print? / When was {x} published?
    lower: Which was published first, {a} or {b}? / Which work appeared earlier, {a} or {b}?
    higher: Which was published later, {a} or {b}? / Which is the more recent work, {a} or {b}?
genre
    ask: What kind of work is {x}? / To which genre does {x} belong? / What is the genre of {x}?
    same: Do {a} and {b} belong to the same genre? / Are {a} and {b} works of the same kind?
birthplace
    ask: Where was {x} born? / What is the birthplace of {x}? / Which city is the birthplace of {x}?
    noun: the city where {x} was born / the birthplace of {x} / the native city of {x}
    same: Were {a} and {b} born in the same city? / Do {a} and {b} have the same birthplace?
birthyear
    ask: In what year was {x} born? / When was {x} born? / What is the birth year of {x}?
    lower: Who was born first, {a} or {b}? / Who was older, {a} or {b}?
    higher: Who was born later, {a} or {b}? / Who was younger, {a} or {b}?
occupation
    ask: What was the occupation of {x}? / What did {x} do for a living? / What was the profession of {x}?
    same: Did {a} and {b} have the same occupation? / Were {a} and {b} of the same profession?
spouse
    ask: To whom was {x} married? / Who was the spouse of {x}? / Who was married to {x}?
    noun: the spouse of {x} / the person married to {x} / the person who married {x}
university
    ask: Where did {x} study? / Which institution educated {x}? / What was the alma mater of {x}?
    noun: the institution where {x} studied / the alma mater of {x} / the institution that educated {x}
    same: Did {a} and {b} study at the same institution? / Were {a} and {b} educated at the same institution?
teacher
    ask: Who taught {x}? / Who was the teacher of {x}? / Under whom did {x} study?
    noun: the teacher of {x} / the person who taught {x} / the teacher who instructed {x}
    same: Were {a} and {b} taught by the same person? / Did {a} and {b} have the same teacher?
employer
    ask: Which company employed {x}? / For which company did {x} work? / Who was the employer of {x}?
    noun: the company that employed {x} / the employer of {x} / the company where {x} worked
    same: Did {a} and {b} work for the same company? / Were {a} and {b} employed by the same company?
founder
    ask: Who founded {x}? / Who was the founder of {x}? / By whom was {x} founded?
    noun: the founder of {x} / the person who founded {x} / the person who established {x}
    same: Were {a} and {b} founded by the same person? / Do {a} and {b} have the same founder?
headquarters
    ask: In which city is {x} based? / Where is {x} based? / In which city are the headquarters of {x}?
    noun: the city where {x} is based / the home city of {x} / the city that houses the headquarters of {x}
    same: Are {a} and {b} based in the same city? / Do {a} and {b} have their headquarters in the same city?
foundation
    ask: In what year was {x} founded? / When was {x} founded? / What is the founding year of {x}?
    lower: Which was founded first, {a} or {b}? / Which is older, {a} or {b}?
    higher: Which was founded later, {a} or {b}? / Which is younger, {a} or {b}?
industry
    ask: In which industry is {x} active? / What is the industry of {x}? / What industry is {x} in?
    same: Are {a} and {b} active in the same industry? / Do {a} and {b} belong to the same industry?
campus
    ask: In which city is {x} located? / Where is {x} located? / Which city is the seat of {x}?
    noun: the city where {x} is located / the seat of {x} / the city that is home to {x}
    same: Are {a} and {b} located in the same city? / Do {a} and {b} have their seat in the same city?
colours
    ask: What are the official colours of {x}? / Which colours are the official ones of {x}?
    same: Do {a} and {b} have the same official colours? / Are the official colours of {a} and {b} the same?
country
    ask: In which country is {x}? / To which country does {x} belong? / Which country contains {x}?
    noun: the country where {x} lies / the country that contains {x} / the country of {x}
    same: Are {a} and {b} in the same country? / Do {a} and {b} belong to the same country?
river
    ask: Which river flows through {x}? / On which river does {x} lie? / What is the river of {x}?
    noun: the river that flows through {x} / the river that passes {x} / the river of {x}
    same: Do {a} and {b} lie on the same river? / Does the same river flow through {a} and {b}?
population
    ask: What is the population of {x}? / How many people live in {x}? / How many inhabitants does {x} have?
    lower: Which has fewer inhabitants, {a} or {b}? / Which has the smaller population, {a} or {b}?
    higher: Which has more inhabitants, {a} or {b}? / Which has the larger population, {a} or {b}?
product
    ask: For which product is {x} known? / What is {x} best known for? / Which local product is typical of {x}?
    same: Are {a} and {b} known for the same product? / Is the same product the pride of {a} and {b}?
capital
    ask: What is the capital of {x}? / Which city is the capital of {x}? / From which city is {x} governed?
    noun: the capital of {x} / the capital city of {x} / the city that is the capital of {x}
currency
    ask: What is the currency of {x}? / Which currency is used in {x}? / With which currency do people pay in {x}?
    same: Do {a} and {b} use a currency of the same name? / Is the currency of {a} called the same as that of {b}?
language
    ask: What is the official language of {x}? / Which language is official in {x}?
    same: Do {a} and {b} have the same official language? / Is the same language official in {a} and {b}?
length
    ask: How long is {x}? / What is the length of {x}?
    lower: Which river is shorter, {a} or {b}? / Of {a} and {b}, which is the shorter river?
    higher: Which river is longer, {a} or {b}? / Of {a} and {b}, which is the longer river?
sea
    ask: Into which body of water does {x} flow? / Where does {x} end? / At which body of water is the mouth of {x}?
    same: Do {a} and {b} flow into the same body of water?
source
    ask: In which mountains does {x} rise? / Where does {x} rise? / Where is the source of {x}?
    same: Do {a} and {b} rise in the same mountains?
""").items()
}


# --- the style --------------------------------------------------------------------------------------------------------


class NaturalStyle(FictionStyle):
    """An encyclopedia in varied English. The years are plausible: teachers are older, founders were grown up."""

    name = "natural"
    kinds = _KINDS
    relations = _RELATIONS
    values = _VALUES
    names = _NAMES
    ordered = frozenset(relation for relation, phrase in PHRASES.items() if phrase.lower)
    shared = frozenset(relation for relation, phrase in PHRASES.items() if phrase.same)

    def sentences(self, world: FictionWorld, entity: Entity) -> list[str]:
        """Writes the sentences of one layout of the kind, each in one of its wordings."""
        noise, layout = _layout(world, entity)
        fields = self._fields(world, entity, noise)
        sentences = []
        for part in layout:
            noise, choice = divmod(noise, len(SENTENCES[part]))
            sentences.append(SENTENCES[part][choice].format_map(fields))
        return sentences

    def sentence_index(self, world: FictionWorld, entity: Entity, relation: str) -> int:
        """Index of the sentence that states a relation."""
        return _sentence_indices(_layout(world, entity)[1])[relation]

    def add_alias(self, sentences: list[str], title: str, alias: str) -> list[str]:
        """Appends a sentence."""
        return [*sentences, f"{title} is also known as {alias}."]

    def mention(self, world: FictionWorld, entity: Entity) -> str:
        """The title; rivers get an article."""
        title = world.title(entity)
        return f"the {title}" if entity.kind == "waterway" else title

    def ask(self, relation: str, subject: str, rng: random.Random) -> str:
        """One of several wordings."""
        return rng.choice(_fitting(PHRASES[relation].ask, subject)).format(x=subject)

    def describe(self, relation: str, subject: str, rng: random.Random) -> str:
        """One of several descriptions."""
        return rng.choice(_fitting(PHRASES[relation].noun, subject)).format(x=subject)

    def ask_order(self, relation: str, rng: random.Random) -> tuple[str, bool]:
        """One of several wordings, for the lower or the higher of two."""
        higher = rng.random() < 0.5
        phrase = PHRASES[relation]
        return rng.choice(phrase.higher if higher else phrase.lower), higher

    def ask_same(self, relation: str, rng: random.Random) -> str:
        """One of several wordings."""
        return rng.choice(PHRASES[relation].same)

    def _fields(self, world: FictionWorld, entity: Entity, noise: int) -> dict[str, str]:
        fields = {relation: world.target_text(entity, relation) for relation in self.relations[entity.kind]}
        fields["name"] = world.title(entity)
        for relation in ("occupation", "genre"):
            if relation in fields:
                fields[f"a_{relation}"] = ("an " if fields[relation][0] in "aeiou" else "a ") + fields[relation]
        if "spouse" in fields:
            first_name, fields["short"] = fields["name"].split()
            fields["day"] = f"{noise % 28 + 1} {MONTHS[noise // 28 % len(MONTHS)]}"
            pronouns = ("he", "his", "him") if first_name in _MEN else ("she", "her", "her")
            fields |= zip(("he", "his", "him"), pronouns, strict=True)
            fields["He"], fields["His"] = fields["he"].capitalize(), fields["his"].capitalize()
        return fields


_LONG_SUBJECT = 6  # words


def _fitting(wordings: Sequence[str], subject: str) -> Sequence[str]:
    """The readable wordings: a long subject should come last."""
    if subject.count(" ") < _LONG_SUBJECT:
        return wordings
    return [wording for wording in wordings if wording.rstrip("?").endswith("{x}")]


def _layout(world: FictionWorld, entity: Entity) -> tuple[int, tuple[str, ...]]:
    """The parts of an entity's passage, and the random bits that remain."""
    layouts = LAYOUTS[entity.kind]
    noise, choice = divmod(world.noise(entity), len(layouts))
    return noise, layouts[choice]


@lru_cache(64)
def _sentence_indices(layout: tuple[str, ...]) -> dict[str, int]:
    """Maps each relation to the index of the sentence that states it, whatever its wording."""
    parts = [{field for _, field, _, _ in Formatter().parse(SENTENCES[part][0]) if field} for part in layout]
    return {field.removeprefix("a_"): index for index, names in enumerate(parts) for field in names}


NATURAL = NaturalStyle()
