"""`agent-r1 audit`: exit status, files, resumption, and refusals."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.kit.commands import call

WORDS = ("-n", "2", "--rules", "interface", "ends")


def test_a_clean_environment_has_status_0_and_a_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(capsys, "audit", "FrozenLakeText", *WORDS, "--option", "max_turns=5")
    assert status == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    saved = json.loads((folder / "audit.json").read_text())
    assert (saved["env"], saved["options"], saved["exit_status"]) == ("FrozenLakeText", {"max_turns": 5}, 0)
    assert [rule["rule"] for rule in saved["rules"]] == ["interface", "ends"]
    assert saved["rules"][1]["measured"] == {"turns of an idle episode": 5, "limit": 5}
    page = (folder / "report.html").read_text()
    assert "Audit of FrozenLakeText" in page and "<script src" not in page
    assert f"runs/{folder.name}/audit.json" in out and "0 errors" in out


def test_an_environment_of_ones_own_with_an_error_has_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("audit", "tests.kit.faulty_envs:BudgetTerminates", *WORDS, "--out", str(tmp_path / "audit"))
    status, out, _ = call(capsys, *words)
    assert status == 1
    assert "ERROR ends: The limit of 8 turns" in out
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "from tests.kit.faulty_envs import BudgetTerminates" in page
    status, out, err = call(capsys, *words, "--json")
    assert status == 1 and json.loads(out)["errors"] == 1
    assert "2 finished rules" in err


def test_what_cannot_be_audited_has_status_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, message in (
        (("NoSuchEnvironment", *WORDS), "Unknown environment 'NoSuchEnvironment'"),
        (("FrozenLakeText", "--rules", "interfaces"), "Did you mean 'interface'"),
        (("FrozenLakeText", *WORDS[:2], "--memory-gib", "0"), "memory must be"),
        (("FrozenLakeText", "--oracle", "best", *WORDS), "Unknown policy 'best'"),
    ):
        status, _, err = call(capsys, "audit", *words, "--out", str(tmp_path / "none"))
        assert status == 2 and message in err, err
    assert not (tmp_path / "none" / "audit.json").exists()


def test_warnings_count_where_one_is_strict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("audit", "tests.kit.faulty_envs:GoesOn", "-n", "2", "--rules", "after_the_end", "--out", str(tmp_path))
    assert call(capsys, *words)[0] == 0
    status, out, _ = call(capsys, *words, "--strict", "--json")
    assert status == 1 and (json.loads(out)["exit_status"], json.loads(out)["strict"]) == (1, True)


def test_a_rule_or_an_oracle_that_raises_has_status_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_rules.py").write_text(
        "def halves(subject):\n    return 1 / 0\n\n\ndef lost(texts):\n    raise LookupError('no model')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("audit", "FrozenLakeText", "-n", "2", "--out", "audit")
    status, out, err = call(capsys, *words, "--rules", "own_rules:halves", "interface")
    assert status == 2 and "NOT RUN own_rules:halves: the rule raised ZeroDivisionError" in out, out
    assert "own_rules.py:2 in halves" in err and "the audit is not complete" in err
    assert "Traceback" in Path("audit/report.html").read_text()
    status, _, err = call(capsys, *words, "--rules", "interface", "--oracle", "own_rules:lost")
    assert status == 2 and "another audit (oracle='', not 'own_rules:lost')" in err
    status, _, err = call(capsys, *words[:-1], "other", "--rules", "interface", "--oracle", "own_rules:lost")
    assert status == 2 and "raised LookupError: no model. Correct the policy. own_rules.py:6 in lost" in err, err


def test_a_crash_names_its_place_and_its_turn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("tests.kit.faulty_envs:RaisesOnEmpty", "-n", "2", "--rules", "survives", "--out", str(tmp_path))
    status, out, _ = call(capsys, "audit", *words)
    assert status == 1 and "string index out of range" in out
    assert "in hint, turn '')" in out.partition("(faulty_envs.py:")[2], out


def test_a_folder_of_something_else_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call(capsys, "audit", "FrozenLakeText", *WORDS, "--out", str(tmp_path))
    status, _, err = call(capsys, "audit", "TaxiText", *WORDS, "--out", str(tmp_path))
    assert status == 2 and "another audit ('FrozenLakeText', not 'TaxiText')" in err
    status, _, err = call(capsys, "audit", "FrozenLakeText", *WORDS, "--seed", "5", "--out", str(tmp_path))
    assert status == 2 and "another audit (seed=0, not 5)" in err
    (tmp_path / "audit.json").write_text("[1, 2]")
    status, _, err = call(capsys, "audit", "FrozenLakeText", *WORDS, "--out", str(tmp_path))
    assert status == 2 and "is not the file of an audit" in err


def test_the_code_of_the_environment_runs_in_another_process(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger_env.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path('process').write_text(str(os.getpid()))\n"
        "from tests.kit.faulty_envs import Guess\n\n\n"
        "class Mine(Guess):\n"
        "    def __init__(self, *, max_turns=8):\n"
        "        self.max_turns = max_turns\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    words = ("stranger_env:Mine", *WORDS, "--option", "max_turns=3", "--import", "stranger_env", "--out", "audit")
    status, _, err = call(capsys, "audit", *words)
    assert status == 0, err
    assert int((tmp_path / "process").read_text()) != os.getpid() and "stranger_env" not in sys.modules
    saved = json.loads((tmp_path / "audit" / "audit.json").read_text())
    assert saved["rules"][1]["measured"] == {"turns of an idle episode": 3, "limit": 3}


def test_verdicts_of_other_code_are_not_used_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from tests.kit.faulty_envs import {0}\n\n\nclass Mine({0}):\n    pass\n"
    module = tmp_path / "changing_env.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    words = ("audit", "changing_env:Mine", *WORDS, "--out", "audit")
    module.write_text(code.format("Guess"))
    assert call(capsys, *words)[0] == 0
    status, _, err = call(capsys, *words)
    assert status == 0 and "2 finished rules of 20" in err
    module.write_text(code.format("BudgetTerminates"))
    status, out, err = call(capsys, *words)
    assert status == 1 and "ERROR ends" in out
    assert "changing_env.py has changed" in err and "finished rules" not in err
    saved = json.loads(Path("audit/audit.json").read_text())
    assert str(module) in saved["sources"] and len(saved["rules"]) == 2
    assert not [path for path in saved["sources"] if path.endswith("/typing.py")]
