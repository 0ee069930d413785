"""reasoning-gym: its generated puzzles with their own scoring."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.integrations.base import IsolatedRNG, check_name, library, scorer_error
from agent_r1_gym.wrappers.game import ResetReturn, TextGame

_EXAMPLES = ("example_answer", "example_correct_answer", "possible_answer")
"""Where data sets that accept several answers keep one."""


class ReasoningGymEnv(TextGame):
    """reasoning-gym: a generated puzzle of arithmetic, logic, algebra or games, answered in one turn.

    ## Description
    One of the generators of reasoning-gym, with its own scoring.

    ## Tools
    None: an action is the answer.

    ## Action Space
    `UnicodeText(65536)`: the text between the last `<answer>` and `</answer>` is scored by the generator; without them,
    the last line that is not empty, or as many last lines as the solution has, whichever scores higher.

    ## Observation Space
    `UnicodeText(65536)`: the question and how to answer it.

    ## Starting State
    The question that the generator makes of the reset's seed.

    ## Rewards
    ### Outcome
    The generator's score of the answer, 0 to 1; many give a little for an answer that only contains the right one. 0 if
    its scorer raises.
    ### Process
    None.

    ## Episode End
    ### Termination
    After one turn.
    ### Truncation
    Never: the first turn ends the episode, so that `max_turns`, which every game takes, has no effect.

    ## Information
    `info` (dict): at the end `answer` (what was scored), and `scorer_error` if the scorer raised. No `actions` (answers
    are open).

    ## Arguments
    `dataset="chain_sum"` (name of a generator), `config=None` (arguments of its configuration), `max_turns=1`.

    ## References
    Stojanovski et al. 2025 (arXiv 2505.24760); https://github.com/open-thought/reasoning-gym. `pip install
    reasoning-gym`; tested: 0.1.

    ## Version History
    v0: first release.
    """

    library: ClassVar[str] = "reasoning_gym"

    def __init__(
        self, *, dataset: str = "chain_sum", config: Mapping[str, Any] | None = None, max_turns: int | None = 1
    ) -> None:
        super().__init__(self._open, self._play, max_turns=max_turns, oracle=self._oracle_action)
        gym = library("reasoning_gym", package="reasoning-gym", tested_version="0.1")
        check_name("dataset of reasoning-gym", dataset, gym.factory.DATASETS)
        self._dataset, self._config = dataset, dict(config or {})
        self._random = IsolatedRNG()
        self._questions: Any = None
        self._question: dict[str, Any] = {}

    def _open(self, seed: int) -> ResetReturn:
        import reasoning_gym

        with self._random(seed):
            self._questions = reasoning_gym.create_dataset(self._dataset, seed=seed, size=1, **self._config)
            self._question = self._questions[0]
        return f"{self._question['question']}\n\nWrite the final answer between <answer> and </answer>."

    def _play(self, action: str) -> tuple[Any, ...]:
        info: dict[str, Any] = {}
        scores = {answer: self._score(answer, info) for answer in self._readings(action)}
        answer = max(scores, key=scores.__getitem__)
        return "The episode is over.", scores[answer], True, {"answer": answer, **info}

    def _readings(self, action: str) -> list[str]:
        """What may be the answer in a turn."""
        tagged, closed, _ = action.rpartition("<answer>")[2].partition("</answer>")
        if "<answer>" in action and (tagged or closed):  # an empty answer between both tags is one
            return [tagged.strip()]
        lines, solution = action.strip().splitlines() or [""], str(self._question.get("answer") or "")
        return ["\n".join(lines[-count:]).strip() for count in (1, len(solution.strip().splitlines()) or 1)]

    def _score(self, answer: str, info: dict[str, Any]) -> Any:
        """Scores an answer; that the scorer raised is added to `info`."""
        try:
            with self._random():
                return self._questions.score_answer(answer, self._question)
        except (Exception, SystemExit) as error:  # the scorers of some generators raise at odd answers, or execute them
            info |= scorer_error(type(self).__name__, self._dataset, error)
            return 0.0

    def _oracle_action(self) -> str | None:
        answer, metadata = self._question.get("answer"), self._question.get("metadata") or {}
        if answer is None:  # any of several answers is right, and one is given
            answer = next((metadata[name] for name in _EXAMPLES if metadata.get(name) is not None), None)
        if answer is None:
            return None
        return f"<answer>{answer if isinstance(answer, str) else json.dumps(answer)}</answer>"
