"""Faults that a stranger planted into an environment of his own, and that the audit once missed."""

from __future__ import annotations

import datetime
from typing import Any

from tests.kit.faulty_envs import DEFECTS, MACHINES, ListedRepairs, MuteRepairs, OneAnswer, Repairs, StrictRepairs


class PaysTheRightTurnAfterTheEnd(Repairs):
    """Carries out steps after the end, and pays the right one."""

    def step(self, action: str) -> Any:
        self.running = True
        return super().step(action)


class PaysAnyoneAfterTheEnd(OneAnswer):
    """Has no oracle; pays a right answer again and again."""

    oracle = None  # type: ignore[assignment]

    def step(self, action: str) -> Any:
        return "", float("nan" in action), True, False, {}


class Undescribed(MuteRepairs):
    """Does not say which commands it has."""

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        return super().reset(**options)[0].partition(". ")[0], self.info()


class StrictUndescribed(StrictRepairs):
    """Does not say so either, and ends at the first turn that it does not understand."""

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        return super().reset(**options)[0].partition(". ")[0], self.info()


class RaisesOnWhatItUnderstands(Undescribed):
    """Raises at each turn in which it finds a machine."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        if any(machine in action for machine in MACHINES):
            raise ZeroDivisionError("no inspections yet")
        return super().carry_out(action)


class SubstringAnswer(OneAnswer):
    """Takes an empty answer for a part of the right one."""

    def step(self, action: str) -> Any:
        return ("Correct." if action in self.city else "Wrong."), float(action in self.city), True, False, {}


class TellsTheTime(ListedRepairs):
    """Shows the time of day with each inspection."""

    def inspect(self, machine: str) -> str:
        return f"{datetime.datetime.now():%H:%M:%S} {super().inspect(machine)}"


class PaysEachListedInspection(ListedRepairs):
    """Pays each sight of the defect, and says what is solved."""

    def credit(self, shows_defect: bool) -> float:
        return 0.4 * shows_defect

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated, truncated, {**info, "is_success": terminated and reward >= 1.0}


class PaysEachSpelling(Repairs):
    """Pays the sight of the defect once for each spelling of the command."""

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        self.paid: set[str] = set()
        return super().reset(**options)

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        self.seen = action in self.paid
        self.paid.add(action)
        return super().carry_out(action.lower())

    def credit(self, shows_defect: bool) -> float:
        return 0.4 * (shows_defect and not self.seen)


class TakesLists(Repairs):
    """Looks for machine and defect inside the arguments."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        match action.split():
            case ["repair", machines, defects] if self.chain[-1] in machines and self.defect in defects:
                action = f"repair {self.chain[-1]} {self.defect}"
        return super().carry_out(action)


class TellsInDebugInfo(Repairs):
    """Has the broken machine in its info, under a name that says nothing."""

    def info(self) -> dict[str, Any]:
        return {"debug": {"path": [self.chain[-1]]}}


class TellsInReplies(Repairs):
    """Says what it expected where a repair names no machine."""

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        match action.split():
            case ["repair", machine, _] if machine not in MACHINES:
                return f"Invalid: {machine} is no machine (expected {self.chain[-1]}).", 0.0, None
        return super().carry_out(action)


class KeepsReadings(ListedRepairs):
    """Keeps what an inspection has shown, also for the next order."""

    def __init__(self) -> None:
        self.readings: dict[str, str] = {}

    def info(self) -> dict[str, Any]:
        words = [f"repair {machine} {defect} {n}" for machine in MACHINES for defect in DEFECTS for n in range(5)]
        return {"actions": [*super().info()["actions"], *words]}

    def inspect(self, machine: str) -> str:
        return self.readings.setdefault(machine, super().inspect(machine))

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        return super().carry_out(" ".join(action.split()[:3]))


class SharesNotes(ListedRepairs):
    """Keeps the notes of all instances in one list, and lists no action that writes one."""

    notes: list[str] = []  # noqa: RUF012 - the fault

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        text, info = super().reset(**options)
        return f"{text}\nnote TEXT\nnotes", info

    def info(self) -> dict[str, Any]:
        return {"actions": [*super().info()["actions"], "notes"]}

    def carry_out(self, action: str) -> tuple[str, float, bool | None]:
        match action.split():
            case ["note", *words]:
                self.notes.append(" ".join(words))
                return "Noted.", 0.0, None
            case ["notes"]:
                return "; ".join(self.notes[-3:]) or "None.", 0.0, None
        return super().carry_out(action)


FAULTS: dict[type, str] = {
    **dict.fromkeys((PaysTheRightTurnAfterTheEnd, PaysAnyoneAfterTheEnd), "after_the_end"),
    TakesLists: "not_hackable",
    **dict.fromkeys((PaysEachSpelling, PaysEachListedInspection), "reward_order"),
    **dict.fromkeys((TellsInDebugInfo, TellsInReplies), "gold_in_info"),
    KeepsReadings: "independent_episodes",
    SharesNotes: "independent_instances",
    TellsTheTime: "clocks",
    RaisesOnWhatItUnderstands: "survives",
}
"""Faults, and the rule that has to find each."""
