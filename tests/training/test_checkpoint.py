"""Checkpoints of a run."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lavagna.data import Splits
from lavagna.models import LanguageModel
from lavagna.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from lavagna.training.distributed import World
from lavagna.training.next_token import NextToken
from lavagna.training.trainer import Trainer


@pytest.fixture
def trainer(model_config, config, device):
    """A trainer that has made a few updates."""

    def build(updates=2, **settings) -> Trainer:
        tokens = np.random.default_rng(0).integers(256, size=2000)
        objective = NextToken(Splits(tokens, tokens, None), config, None)
        torch.manual_seed(0)
        trainer = Trainer(
            LanguageModel(replace(model_config, **settings)).to(device), config, objective, World(device)
        )  # fmt: skip
        for step in range(updates):
            trainer.update(step)
        return trainer

    return build


def save(folder, trainer, step=2, keep=2):
    return save_checkpoint(folder, step, trainer.model, trainer.optimizer, None, keep=keep)


def everything(trainer) -> dict[str, torch.Tensor]:
    moments = {
        f"{i} {kind}": value
        for i, state in enumerate(trainer.optimizer.state.values())
        for kind, value in state.items()
    }
    return {**trainer.model.state_dict(), **moments}


def test_parameters_and_moments_come_back_bit_for_bit_and_go_on_alike(trainer, tmp_path):
    first, second = trainer(), trainer(updates=0)
    load_checkpoint(save(tmp_path, first), second.model, second.optimizer)
    before, after = everything(first), everything(second)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert first.update(2) == second.update(2)
    assert first.update(3) == second.update(3)


def test_older_checkpoints_are_removed_once_the_new_one_is_there(trainer, tmp_path):
    once = trainer()
    for step in (5, 10, 100):
        save(tmp_path, once, step)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010", "step-00000100"]
    assert len(list(tmp_path.iterdir())) == 2


def test_what_a_kill_left_half_done_is_no_checkpoint_and_goes_with_the_next(trainer, tmp_path):
    (tmp_path / ".step-00000009.partial").mkdir()
    (tmp_path / ".step-00000009.partial" / "model.safetensors").write_bytes(b"half")
    assert list_checkpoints(tmp_path) == []
    save(tmp_path, trainer())
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_a_checkpoint_of_another_model_is_refused(trainer, tmp_path):
    saved = save(tmp_path, trainer())
    other = trainer(updates=0, d_model=32)
    with pytest.raises(ValueError, match=r"step-00000002 is of another model") as caught:
        load_checkpoint(saved, other.model, other.optimizer)
    assert "\n" not in str(caught.value)


def test_moments_of_another_version_are_refused(trainer, tmp_path):
    saved, once = save(tmp_path, trainer()), trainer(updates=0)
    file = saved / "optimizer.safetensors"
    save_file(load_file(file), file, {"format": "lavagna-training-0"})
    with pytest.raises(ValueError, match="holds lavagna-training-0, but lavagna-training-1 was wanted"):
        load_checkpoint(saved, once.model, once.optimizer)


def test_moments_that_do_not_fit_the_parameters_are_refused(trainer, tmp_path):
    saved, once = save(tmp_path, trainer()), trainer(updates=0)
    file = saved / "optimizer.safetensors"
    tensors = load_file(file)
    del tensors["norm.weight.exp_avg"]
    save_file(tensors, file, {"format": "lavagna-training-1"})
    with pytest.raises(ValueError, match=r"and the model differ in norm.weight.exp_avg\. Resume with the same model"):
        load_checkpoint(saved, once.model, once.optimizer)


@pytest.mark.parametrize("file", ["optimizer.safetensors", "model.safetensors"])
@pytest.mark.parametrize("damage", ["short", "absent"])
def test_a_damaged_file_is_named(trainer, tmp_path, file, damage):
    saved, once = save(tmp_path, trainer()), trainer(updates=0)
    content = (saved / file).read_bytes()
    (saved / file).unlink()
    if damage == "short":
        (saved / file).write_bytes(content[: len(content) // 2])
    with pytest.raises((ValueError, FileNotFoundError), match="step-00000002"):
        load_checkpoint(saved, once.model, once.optimizer)
