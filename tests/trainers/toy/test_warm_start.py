import pytest
import torch

from trainers.toy import warm_start
from trainers.toy.model import build_model, build_tokenizer

TOKENIZER = build_tokenizer()


class TestWarmStart:
    @pytest.mark.slow
    def test_loss_falls_and_equal_seeds_give_equal_weights(self):
        models = []
        for seed in (0, 0, 1):
            model = build_model(TOKENIZER)
            log = warm_start.warm_start(model, TOKENIZER, seed=seed, steps=16, logging_steps=8, progress=False)
            losses = [row["loss"] for row in log if "loss" in row]
            assert losses[-1] < 0.8 * losses[0]
            models.append(model.state_dict())
        assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
        assert not all(torch.equal(models[0][name], models[2][name]) for name in models[0])

    @pytest.mark.slow
    def test_the_reading_recipe_learns_exercises_then_demonstrations_with_notes(self):
        model = build_model(TOKENIZER, size="0.5M")
        recipe = {**warm_start.READING, "steps": 20, "exercise_steps": 4}
        log = warm_start.warm_start(model, TOKENIZER, batch_size=8, logging_steps=4, progress=False, **recipe)
        losses = [row["loss"] for row in log if "loss" in row]
        assert losses[-1] < 0.9 * losses[0]

    @pytest.mark.parametrize("recipe", warm_start.RECIPES)
    @pytest.mark.slow
    def test_the_command_writes_a_model_that_loads(self, tmp_path, capsys, recipe):
        warm_start.main(["--out", str(tmp_path / "tiny"), "--recipe", recipe, "--steps", "2", "--batch-size", "2"])
        for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
            assert (tmp_path / "tiny" / name).is_file()
        assert "parameters" in capsys.readouterr().out
