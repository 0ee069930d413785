"""What each finding turned out to be when a person looked at it: by library, rule and the words of the finding."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Judgement = Literal["confirmed", "by design", "false alarm"]
"""A finding is a fault of the environment, what its authors meant or what the task is made of, or one of the audit."""


class Review(NamedTuple):
    """A judgement of findings that have one cause.

    Attributes:
        library: whose environments it is about.
        rule: the rule that found it.
        names: regular expression that matches the whole names of the environments.
        words: regular expression that occurs in the finding.
        judgement: what it turned out to be.
        note: what was looked at, and why.
    """

    library: str
    rule: str
    names: str
    words: str
    judgement: Judgement
    note: str

    def covers(self, library: str, name: str, rule: str, message: str) -> bool:
        """Whether a finding is one of these."""
        return (
            (library, rule) == (self.library, self.rule)
            and re.fullmatch(self.names, name) is not None
            and re.search(self.words, message) is not None
        )


_RAISES = "the scorer raises at this answer, which ends a run that does not catch it"

REVIEWS: tuple[Review, ...] = (
    Review(
        "agent-r1-gym",
        "not_hackable",
        "BFCL",
        "solves 22%",
        "by design",
        "a task of irrelevance is solved by making no call, as on the leaderboard: report the categories apart",
    ),
    Review(
        "agent-r1-gym",
        "not_hackable",
        "Tau2(Airline|Retail)",
        "solves 12%",
        "by design",
        "tau2-bench has tasks that are solved by changing nothing (the policy forbids what the user asks for); the "
        "sample has one",
    ),
    Review(
        "gem-llm",
        "feedback",
        "game:.*",
        "ended the episode",
        "by design",
        "a turn without the format ends the game with GEM's `format_error_reward`",
    ),
    Review(
        "gem-llm",
        "survives",
        "game:(Crosswords|FifteenPuzzle)-v0-random",
        "reset raised",
        "confirmed",
        "the registered id cannot be made: its constructor does not take the None that the id passes",
    ),
    Review(
        "textarena",
        "survives",
        "(Countdown|Cryptarithm|Slitherlink|ThreeCardMonte)-v0",
        "the reward is '",
        "confirmed",
        "`set_invalid_move(reason, reward)` is called as (reward, reason): the second invalid move in a row ends the "
        "game with a text as its reward",
    ),
    Review("textarena", "quiet", "(LogicPuzzle|RushHour)-v0", "prints", "confirmed", "a `print` for debugging"),
    Review(
        "textarena",
        "not_hackable",
        "Set-v0",
        "`one_number`",
        "confirmed",
        "one card named three times counts as a set, again and again: 20 points in 20 turns",
    ),
    Review(
        "reasoning-gym",
        "executes_no_text",
        "binary_matrix|n_queens|spiral_matrix|string_insertion",
        "",
        "confirmed",
        "`score_answer` calls `eval` on the answer",
    ),
    Review(
        "reasoning-gym",
        "executes_no_text",
        "countdown|intermediate_integration|polynomial_multiplication|puzzle24|simple_integration",
        "",
        "confirmed",
        "`score_answer` calls sympy's `parse_expr` on the answer, which evaluates it as Python",
    ),
    Review(
        "reasoning-gym",
        "not_hackable",
        "complex_arithmetic|number_sorting",
        "(?i)`nan`",
        "confirmed",
        "`nan` gets the full score: its distance from the right number is not larger than the tolerance",
    ),
    Review(
        "reasoning-gym",
        "not_hackable",
        "puzzle24",
        "another task",
        "confirmed",
        "it never checks that the four given numbers are used: `6*4*1*1` solves every task",
    ),
    Review(
        "reasoning-gym",
        "not_hackable",
        "game_of_life_halting",
        "`(no_op|empty)`",
        "false alarm",
        "our adapter takes the last line where the tags are missing; reasoning-gym's own `extract_answer` finds none",
    ),
    *(
        Review(
            "reasoning-gym",
            rule,
            "game_of_life_halting",
            "",
            "confirmed",
            'the score is `bool(answer) == bool(solution)`, and every text that is not empty is true, also "False"',
        )
        for rule in ("not_hackable", "learnable")
    ),
    Review(
        "reasoning-gym",
        "hash_seeds",
        "isomorphic_strings|polynomial_multiplication|ransom_note",
        "",
        "confirmed",
        "20 tasks of one seed differ between processes with PYTHONHASHSEED=0, 1 and 2",
    ),
    Review(
        "reasoning-gym",
        "memory",
        "sokoban",
        "grows",
        "confirmed",
        "of each data set that is made, about 150 objects of the levels stay alive (34 kB, by `tracemalloc`)",
    ),
    Review("reasoning-gym", "quiet", "bf", "prints", "confirmed", "its compiler prints a dot for each pass"),
    Review(
        "reasoning-gym",
        "survives",
        "coin_flip",
        "within 30 s",
        "confirmed",
        "`Fraction(answer)` writes out the digits of `9.9e-99999999999`",
    ),
    Review(
        "reasoning-gym",
        "survives",
        "boxnet|calendar_arithmetic|coin_flip|game_of_life|prime_factorization",
        "The scorer raised",
        "confirmed",
        _RAISES,
    ),
)
