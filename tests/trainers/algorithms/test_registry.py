"""Algorithms of a user's own module: found by name, checked, trained with, and found again by a resume."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close

from agent_r1_gym.errors import ConfigurationError
from tests.kit.credit_batches import batch, close
from tests.kit.pages import blocks
from tests.kit.plugins import site_packages
from tests.kit.samples import samples
from tests.kit.small_runs import make_args, make_trainer, play
from trainers.algorithms import advantages as registry
from trainers.algorithms.advantages import ESTIMATORS, estimate_credit, register_algorithm
from trainers.algorithms.credit import CreditOptions
from trainers.commands.command_line import read_options
from trainers.config import presets
from trainers.config.presets import ALGORITHMS

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


THEIRS = Path(__file__).parents[2] / "kit" / "own_algorithms.py"
TABLES: tuple[dict[str, Any], ...] = (presets._ALGORITHMS, registry._ESTIMATORS, registry._USED_OPTIONS)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`their_algorithms` in the current folder; what is registered is forgotten afterwards."""
    shutil.copy(THEIRS, tmp_path / "their_algorithms.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = [dict(table) for table in TABLES]
    for name in ("their_algorithms", "my_algorithms"):  # the docs' own test may have imported one
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("their_algorithms", "my_algorithms"):
        sys.modules.pop(name, None)
    for table, entries in zip(TABLES, before, strict=True):
        table.clear()
        table.update(entries)


def test_a_function_by_name_brings_its_preset(tmp_path: Path) -> None:
    args = make_args(tmp_path, algorithm="their_algorithms:median", num_generations=None)
    assert (args.loss_type, args.num_generations, args.epsilon_high, args.kl_placement) == ("dr_grpo", 2, 0.3, "loss")
    assert args.algorithm == "their_algorithms:median"
    chosen = make_args(tmp_path, algorithm="median", loss_type="grpo")
    assert (chosen.loss_type, chosen.epsilon_high) == ("grpo", 0.3)
    plain = make_args(tmp_path, algorithm="their_algorithms:plain", num_generations=None, per_device_train_batch_size=5)
    assert (plain.loss_type, plain.num_generations) == ("dapo", 5)


def test_an_installed_package_adds_an_algorithm_by_name(tmp_path: Path) -> None:
    names = {"their-median": "their_algorithms:median", "their-plain": "their_algorithms:plain"}
    faults = {"grpo": "their_algorithms:median", "their-gone": "their_algorithms:gone"}
    with site_packages(tmp_path / "site") as site:
        site.install("their-package", {presets.PLUGINS: names | faults}, {"their_algorithms": THEIRS.read_text()})
        args = make_args(tmp_path, algorithm="their-median", num_generations=None)
        assert (args.algorithm, args.loss_type, args.epsilon_high) == ("their-median", "dr_grpo", 0.3)
        plain = make_args(tmp_path, algorithm="their-plain", num_generations=None, per_device_train_batch_size=5)
        assert plain.preset.estimator == "their_algorithms:plain"
        inputs = batch(("0", [1.0]), ("0", [0.0]), ("0", [4.0]))
        advantages = estimate_credit(args.preset.estimator, inputs, CreditOptions()).advantages
        assert advantages.shape == (3, 1)
        with pytest.raises(ConfigurationError, match=r"their-gone of their-package 1\.2 cannot be imported"):
            make_args(tmp_path, algorithm="their-gone")
        with pytest.raises(ConfigurationError, match="Did you mean 'their-median'"):
            make_args(tmp_path, algorithm="their-meidan")
        with pytest.warns(UserWarning, match=r"'grpo' of their-package 1\.2 .* is ignored"):
            assert make_args(tmp_path, algorithm="grpo").preset.estimator == "grpo"


def test_groups_are_refilled_if_it_says_that_equal_returns_teach_nothing(tmp_path: Path) -> None:
    options = {"refill_groups": 2, "engine": "cached"}
    assert make_args(tmp_path, algorithm="their_algorithms:constant", **options).refill_groups == 2
    with pytest.raises(ConfigurationError, match="registered with return_based=True"):
        make_args(tmp_path, algorithm="their_algorithms:median", **options)


def test_a_preset_of_cispo_bounds_the_ratio_where_cispo_does(tmp_path: Path) -> None:
    """As TRL reads None, every ratio would be cut to 0.2."""
    for name, own in (("usual", {}), ("own", {"epsilon_high": 3.0})):
        register_algorithm(name, loss_type="cispo", **own)(lambda inputs, options: None)
    assert make_args(tmp_path, algorithm="usual").epsilon_high == 5.0
    assert make_args(tmp_path, algorithm="usual", epsilon_high=2.0).epsilon_high == 2.0
    assert make_args(tmp_path, algorithm="own").epsilon_high == 3.0
    assert make_args(tmp_path, algorithm="own", loss_type="dapo").epsilon_high is None


def test_the_algorithm_of_the_docs_computes_what_it_promises(tmp_path: Path) -> None:
    (page,) = blocks("docs/algorithms.md", "python")
    Path("my_algorithms.py").write_text(page.text)
    args = make_args(tmp_path, algorithm="my_algorithms:median")
    inputs = batch(("0.1", [0.5, 0.5]), ("0", [0.0]), ("00", [4.0]))
    advantages = estimate_credit(args.algorithm, inputs, CreditOptions()).advantages
    assert close(advantages, [[0.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [3.0, 3.0, 0.0]])


def test_command_line_and_file_take_it(tmp_path: Path) -> None:
    Path("run.yaml").write_text("algorithm: their_algorithms:median\n")
    for words in (["--algorithm", "their_algorithms:median"], ["--config", "run.yaml", "--import", "their_algorithms"]):
        sizes = ["--per_device_train_batch_size", "4"]
        args, _ = read_options([*words, *sizes, "--output_dir", str(tmp_path), "--use_cpu", "True"])
        assert (args.algorithm, args.loss_type) == ("their_algorithms:median", "dr_grpo")


@pytest.mark.slow
def test_it_is_trained_with_and_found_by_a_resume(tmp_path: Path) -> None:
    name = "their_algorithms:median"
    settings: dict[str, Any] = {"algorithm": name, "learning_rate": 1e-3, "save_strategy": "steps", "save_steps": 1}
    settings |= {"num_generations": 4, "logging_steps": 1}
    whole = make_trainer(tmp_path / "whole", play, **settings, max_steps=3)
    whole.train()
    assert any(logs.get("advantage/std", 0) > 0 for logs in whole.state.log_history)
    make_trainer(tmp_path / "run", play, **settings, max_steps=2).train()
    resumed = make_trainer(tmp_path / "run", play, **settings, max_steps=3)
    resumed.train(resume_from_checkpoint=True)
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    other = make_trainer(tmp_path / "run", play, **(settings | {"algorithm": "rloo", "loss_type": "dapo"}), max_steps=4)
    with pytest.raises(ConfigurationError, match=f"algorithm='{name}'; this run has algorithm='rloo'"):
        other.train(resume_from_checkpoint=True)


@samples(
    ("name", "message"),
    [
        ("grop", r"algorithm: got 'grop'\. Did you mean 'grpo'.* One of your own is MODULE:NAME"),
        ("their_algorithms:meidan", r"'their_algorithms:meidan' cannot be loaded as MODULE:NAME: .*meidan"),
        ("no_such_module:median", "'no_such_module:median' cannot be loaded as MODULE:NAME: No module named"),
        ("their_algorithms:not_callable", "'their_algorithms:not_callable' is int 3; expected a function"),
        (":median", "algorithm: got ':median'"),
    ],
)
def test_what_is_no_algorithm_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_args(tmp_path, algorithm=name)


@pytest.mark.slow
def test_a_function_that_returns_something_else_is_told_what_to_return(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, play, algorithm="their_algorithms:tensor")
    with pytest.raises(ConfigurationError, match=r"must return `Credit` .* of shape \(8, \d+\).*; got a Tensor"):
        trainer.train()


@pytest.mark.slow
def test_a_critic_and_states_come_where_they_are_needed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, play, algorithm="their_algorithms:own_gae", num_generations=1, logging_steps=1)
    before = [weight.clone() for weight in trainer.critic.parameters]
    trainer.train()
    assert any(not weight.equal(old) for weight, old in zip(trainer.critic.parameters, before, strict=True))
    assert "critic/explained_variance" in trainer.state.log_history[0]


def test_an_option_that_it_does_not_use_is_refused(tmp_path: Path) -> None:
    make_trainer(tmp_path, play, algorithm="their_algorithms:median", step_weight=0.5)
    with pytest.raises(ConfigurationError, match=r"lam=0\.5 has no effect on median, only on gagpo, ppo"):
        make_trainer(tmp_path, play, algorithm="their_algorithms:median", lam=0.5)


def test_registration_is_checked() -> None:
    with pytest.raises(ConfigurationError, match=r"preset of 'mine' sets 'bta'\. Did you mean 'beta'"):
        register_algorithm("mine", bta=1)(ESTIMATORS["grpo"])
    with pytest.raises(ConfigurationError, match=r"option 'scal'\. Did you mean 'scale'"):
        register_algorithm("mine", options=["scal"])
    with pytest.raises(ConfigurationError, match="There is an algorithm 'grpo' already"):
        register_algorithm("grpo", beta=1.0)(lambda inputs, options: None)
    with pytest.raises(ConfigurationError, match="a name has no colon"):
        register_algorithm("a:b")
    make_args(Path.cwd(), algorithm="their_algorithms:median")
    with pytest.raises(ConfigurationError, match="There is an algorithm 'median' already"):
        register_algorithm("median")(lambda inputs, options: None)
    with pytest.raises(ConfigurationError, match=r"preset of 'mine' needs 'value'\. Did you mean 'values'"):
        register_algorithm("mine", needs=["value"])(ESTIMATORS["grpo"])
    assert "mine" not in ALGORITHMS and "mine" not in ESTIMATORS


def test_registering_twice_is_no_mistake() -> None:
    """A notebook cell runs again; a module is reloaded."""

    def zero(inputs: Any, options: Any) -> Any:
        return ESTIMATORS["grpo"](inputs, options)

    for _ in range(2):
        register_algorithm("again", beta=0.0)(zero)
    assert ALGORITHMS["again"].settings["beta"] == 0.0
