"""Training from the first update to the last."""

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lavagna import checkpoints
from lavagna.data import Tokenizer
from lavagna.models import LanguageModel, ModelConfig
from lavagna.training import NonFiniteLossError, train
from lavagna.training.log import read_log

TOKENIZER = Tokenizer.bytes()
CLOCKS = ("seconds", "tokens_per_second")


@pytest.fixture
def go(texts, model_config, config, tmp_path, device):
    """Train into a folder of the test's, with some settings changed."""

    def train_in(name: str, model=model_config, resume=False, texts=texts, seconds=None, device=device, **settings):
        changed = replace(config, **settings)
        options = {"resume": resume, "device": device, "seconds": seconds, "quiet": True}
        return train(model, changed, texts, TOKENIZER, tmp_path / name, **options)

    return train_in


def losses(result, name="loss") -> list[float]:
    return [record[name] for record in read_log(result.folder / "log.jsonl") if name in record]


def test_the_same_seed_gives_the_same_losses_bit_for_bit(go):
    assert losses(go("first")) == losses(go("second"))


def test_another_seed_gives_others(go):
    assert losses(go("first")) != losses(go("second", seed=1))


def test_the_loss_falls_far_below_that_of_single_characters(go, texts):
    result = go("run", steps=80, batch=8, context=32, lr=2e-2, evaluate_every=80, save_every=80)
    shares = np.bincount(texts.validation.ids) / len(texts.validation)
    entropy = -sum(share * np.log(share) for share in shares if share)
    assert result.validation_loss < 0.8 * entropy


def test_a_batch_in_portions_learns_as_the_whole_batch_does(go):
    whole, portions = go("whole"), go("portions", micro_batch=3)
    assert losses(portions) == pytest.approx(losses(whole), abs=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_activations_change_no_bit(go, dtype):
    kept, recomputed = go("kept", dtype=dtype), go("recomputed", dtype=dtype, checkpointing=True)
    assert losses(recomputed) == losses(kept)
    assert losses(recomputed, "grad_norm") == losses(kept, "grad_norm")


def test_autocast_learns_nearly_the_same_and_keeps_parameters_in_float32(go):
    single, half = go("single"), go("half", dtype="bfloat16")
    assert losses(half) != losses(single)
    assert losses(half) == pytest.approx(losses(single), rel=0.02)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}


def test_a_model_is_trained_in_place_from_where_it_stands(go, model_config, device):
    model = LanguageModel(model_config).to(device)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = go("run", model=model, lr=1e-6)
    assert result.model is model
    for name, tensor in model.state_dict().items():
        assert not torch.equal(tensor, before[name])
        torch.testing.assert_close(tensor, before[name], atol=1e-4, rtol=0)


def test_training_leaves_the_callers_random_numbers_alone(go):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    go("run")
    assert torch.equal(torch.rand(3), expected)


def test_the_checkpoint_is_the_model_that_training_returned(go):
    result = go("run")
    loaded, tokenizer = checkpoints.load(result.checkpoint, device=result.model.embedding.weight.device)
    ids = torch.tensor([TOKENIZER.encode("12 times 12 is ")], device=result.model.embedding.weight.device)
    assert torch.equal(loaded(ids).logits, result.model(ids).logits)
    assert tokenizer == TOKENIZER


def test_as_many_checkpoints_are_kept_as_were_asked_for_and_the_newest(go):
    result = go("run", save_every=2, keep=3)
    kept = sorted(path.name for path in (result.folder / "checkpoints").iterdir())
    assert kept == ["step-00000008", "step-00000010", "step-00000012"]


def test_a_finished_run_resumes_to_what_it_ended_with(go):
    first = go("run")
    again = go("run", resume=True)
    assert again._replace(model=None) == first._replace(model=None)


def test_a_run_can_be_prolonged(go):
    go("run", steps=6)
    assert losses(go("run", steps=12, resume=True)) == losses(go("whole"))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_training_names_the_step_and_keeps_the_last_checkpoint(go, texts, bad, tmp_path):
    model = LanguageModel(ModelConfig(layer="linear_attention", d_model=16, depth=1, vocab_size=256))
    calls = []

    def spoil(module, arguments, output):
        if module.training:
            calls.append(1)
        return output._replace(logits=output.logits * bad) if len(calls) == 8 and module.training else output

    model.register_forward_hook(spoil)
    with pytest.raises(NonFiniteLossError) as caught:
        go("run", model=model)
    kept = tmp_path / "run" / "checkpoints" / "step-00000006"
    assert "the loss is nan at step 8; training stopped" in str(caught.value)
    assert f"the last good checkpoint is {kept}" in str(caught.value) and "\n" not in str(caught.value)
    assert all(tensor.isfinite().all() for tensor in checkpoints.load(kept)[0].state_dict().values())
    assert read_log(tmp_path / "run" / "log.jsonl")[-1]["step"] == 7


def test_parameters_that_give_no_number_are_never_saved(go, tmp_path):
    with pytest.raises(NonFiniteLossError, match=r"(loss|norm) is (nan|inf) at step"):
        go("run", lr=1e30, clip=1e30, save_every=1, keep=20)
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        logits = checkpoints.load(checkpoint)[0](torch.tensor([[7, 8, 9]])).logits
        assert logits.isfinite().all(), checkpoint


def test_a_validation_part_of_one_token_is_passed_over(go, texts):
    class OneToken:
        vocab_size, bytes_per_token = 256, 1.0

        def __len__(self):
            return 1

        def __getitem__(self, index):
            return texts.validation[index]

    result = go("run", texts=texts._replace(validation=OneToken()))
    assert result.validation_loss is None and result.loss is not None


def test_a_run_that_is_out_of_time_ends_with_a_checkpoint_to_go_on_from(go):
    ended = go("run", seconds=0.0)
    assert ended.step == 1 and ended.checkpoint.is_dir() and ended.validation_loss is not None
    assert losses(go("run", resume=True)) == losses(go("whole"))


def test_a_vocabulary_beyond_the_models_is_refused(go):
    small = ModelConfig(layer="linear_attention", d_model=16, depth=1, vocab_size=100)
    with pytest.raises(ValueError, match="a vocabulary of 256, but the model's is 100"):
        go("run", model=small)


def test_a_text_shorter_than_the_context_is_refused_before_anything_is_written(go, tmp_path):
    with pytest.raises(ValueError, match=r"the text has \d+ tokens, but context 1000000 needs 1000001"):
        go("run", context=1_000_000)
    assert not (tmp_path / "run").exists()


FULL = """
import sys, resource
from dataclasses import replace
from training.program import CONFIG, go
text, folder = sys.argv[1:]
go(text, folder, replace(CONFIG, steps=3))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    go(text, folder, replace(CONFIG, steps=6))
except OSError as error:
    print(error)
"""


def test_a_full_disk_is_one_line_and_the_earlier_checkpoint_stays_to_be_resumed_from(go, text_folder, tmp_path):
    source, tests = Path(__file__).parents[2] / "src", Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{tests}"}
    # Losses are the same to the bit only where they are computed alike: there, as here below, by so many threads.
    environment |= {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    folder = tmp_path / "run"
    command = [sys.executable, "-c", FULL, str(text_folder), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert done.stdout.startswith(f"train: could not write {folder}/checkpoints/step-00000006 (")
    assert os.strerror(errno.EFBIG) in done.stdout and "step-00000003 is kept" in done.stdout
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000003"]
    assert losses(go("run", resume=True, device="cpu")) == losses(go("whole", device="cpu"))
