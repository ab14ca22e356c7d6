"""`lavagna train`: runs, resuming, and bad input, which leaves nothing behind."""

import json
import shlex
import shutil
from itertools import count

import pytest
import torch

from cli.conftest import TINY, as_a_shell
from lavagna.cli.choices import LAYER, PRESET
from lavagna.cli.text_task import VOCABULARY
from lavagna.training import TrainConfig
from lavagna.training.next_token import next_token_loss
from lavagna.training.run import read_run


def losses(run) -> list[float]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def test_a_run_leaves_checkpoint_log_and_picture(run):
    assert (run / "checkpoints" / "step-00000004" / "model.safetensors").is_file()
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len(losses(run)) == 4


def test_a_resumed_run_needs_no_other_options_and_repeats_the_losses(lavagna, run, text, tmp_path):
    whole, parts = run, tmp_path / "parts"
    assert lavagna("train", "--data", text, "--out", parts, *TINY, "--save-every", 2).code == 0
    shutil.rmtree(parts / "checkpoints" / "step-00000004")
    assert lavagna("train", "--out", parts, "--resume").code == 0
    assert losses(parts) == losses(whole)


def test_the_same_command_with_resume_goes_on(lavagna, run, text, tmp_path):
    again = shutil.copytree(run, tmp_path / "again")
    longer = [*TINY, "--steps", 6]
    assert lavagna("train", "--data", text, "--out", again, *longer, "--resume").code == 0
    assert len(losses(again)) == 6


def test_options_reach_the_layers_of_a_hybrid(lavagna, text, tmp_path):
    options = ["--option", "gla.heads=2", "--option", "retention.heads=1"]
    words = [*TINY, "--layer", "retention,gla", "--depth", 2, *options]
    assert lavagna("train", "--data", text, "--out", tmp_path / "run", *words).code == 0
    model = read_run(tmp_path / "run").model
    assert model["layer"] == ["retention", "gla"]
    assert model["options"] == {"gla": {"heads": 2}, "retention": {"heads": 1}}


def test_a_bpe_is_learned_from_the_text(lavagna, text, tmp_path):
    words = ["--tokenizer", "bpe", "--vocab-size", "270", "--steps", "1"]
    assert lavagna("train", "--data", text, "--out", tmp_path / "run", *TINY, *words).code == 0
    assert read_run(tmp_path / "run").model["vocab_size"] == 270


def test_the_end_is_told_as_json(table, text, tmp_path):
    (row,) = table("train", "--data", text, "--out", tmp_path / "run", *TINY)
    assert row["step"] == 4 and row["validation_bits_per_byte"] > 0


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "empty"), (b"short", "context 16"), (b"a\0b" * 100, "binary"), (b"\xff" * 99, "UTF-8")]
)
def test_a_text_that_is_none_is_refused_and_nothing_is_left(refused, tmp_path, content, said):
    (tmp_path / "text").write_bytes(content)
    assert said in refused("train", "--data", tmp_path / "text", "--out", tmp_path / "run", *TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "no/such/folder"], "no/such/folder"),
        (["--layer", "nonsense"], "gated_delta_net"),
        (["--layer", "retention,nonsense", "--depth", "2"], "nonsense"),
        (["--option", "nonsense=1"], "nonsense"),
        (["--option", "heads"], "KEY=VALUE"),
        (["--option", "heads=3"], "16"),
        (["--layer", "s4d", "--option", "bidirectional=true"], "Use bidirectional=False, or a classifier"),
        (["--d-model", "0"], "d_model"),
        (["--steps", "0"], "steps"),
        (["--batch", "-1"], "batch"),
        (["--lr", "nan"], "lr"),
        (["--schedule", "nonsense"], "cosine"),
        (["--dtype", "float16"], "bfloat16"),
        (["--preset", "2m"], "1m"),
        (["--tokenizer", "words"], "bpe"),
        (["--tokenizer", "bpe", "--vocab-size", "3"], "257"),
        (["--vocab-size", "1000"], "--tokenizer bpe"),
        (["--validation", "2"], "validation"),
        (["--device", "nonsense"], "nonsense"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_is_left(refused, text, tmp_path, words, said):
    assert said in refused("train", "--data", text, "--out", tmp_path / "run", *TINY, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--classify", "nothere.npz"], "train: there is no file 'nothere.npz'"),
        (["--classify", "digits", "--data", "x"], "exclude each other"),
        (["--data", "no/such/folder"], "train: 'no/such/folder' does not exist"),
        (["--layer", "nonsense"], "unknown layer 'nonsense'"),
        (["--tokenizer", "words"], "bytes or bpe"),
        (["--steps", "0"], "train: steps came as 0"),
        ([], "--out is missing"),
        (["--resume"], "--out is missing"),
    ],
)
def test_without_a_folder_what_is_wrong_besides_is_said_first(refused, words, said):
    assert said in refused("train", *words)


def test_a_folder_that_holds_a_run_is_not_overwritten(refused, run, text):
    before = losses(run)
    assert "--resume" in refused("train", "--data", text, "--out", run, *TINY)
    assert losses(run) == before


def test_a_folder_of_other_things_keeps_them_when_a_text_is_refused(refused, tmp_path):
    (tmp_path / "text").write_bytes(b"")
    refused("train", "--data", tmp_path / "text", "--out", tmp_path, *TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_resuming_without_a_run_is_refused(refused, tmp_path):
    assert "no run" in refused("train", "--out", tmp_path / "run", "--resume")
    assert not list(tmp_path.iterdir())


def test_resuming_with_another_model_is_refused(refused, run):
    assert "d_model 16 (now 32)" in refused("train", "--out", run, "--resume", "--d-model", 32)


def test_a_run_of_another_version_is_refused(refused, run, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace("lavagna-run-1", "lavagna-run-99"))
    assert "lavagna-run-99" in refused("train", "--out", other, "--resume")


def test_a_loss_that_is_no_number_ends_the_run_at_a_named_step_with_the_last_good_checkpoint(
    lavagna, text, tmp_path, monkeypatch
):
    updates = count(1)

    def breaking(*inputs):
        third = torch.is_grad_enabled() and next(updates) == 3
        return next_token_loss(*inputs) * (float("nan") if third else 1)

    monkeypatch.setattr("lavagna.training.next_token.next_token_loss", breaking)
    done = lavagna("train", "--data", text, "--out", tmp_path / "run", *TINY, "--save-every", "1")
    assert done.code == 2
    last = done.err.splitlines()[-1]
    assert last.startswith("lavagna: train: ") and "at step 3" in last and "checkpoints/step-00000002" in last
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()


def test_a_full_disk_is_one_line_and_leaves_no_half_checkpoint(lavagna, text, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lavagna.training.checkpoint.save_file", full)
    done = lavagna("train", "--data", text, "--out", tmp_path / "run", *TINY)
    assert done.code == 2
    assert "No space left" in done.err.splitlines()[-1] and "Traceback" not in done.err
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_an_interrupted_run_says_how_to_go_on(lavagna, text, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("lavagna.training.trainer.Trainer.update", interrupted)
    out = tmp_path / "my run"
    done = lavagna("train", "--data", text, "--out", out, *TINY)
    assert done.code == 130
    command = done.err.splitlines()[-1].partition("Go on with: ")[2]
    monkeypatch.undo()
    assert shlex.split(command)[-3:] == ["--out", str(out), "--resume"]
    assert as_a_shell(command).returncode == 0


def test_the_command_that_a_run_ends_with_writes_text(lavagna, text, tmp_path):
    done = lavagna("train", "--data", text, "--out", tmp_path / "my run", *TINY)
    shown = as_a_shell(f"{done.out.splitlines()[-1].partition('Write text with it: ')[2]} --max-new-tokens 5")
    assert shown.returncode == 0 and shown.stdout


def test_a_folder_with_an_earlier_run_in_it_is_read_without_that_run(lavagna, text, tmp_path):
    shutil.copy(text, tmp_path)
    for name in ("first", "second"):
        done = lavagna("train", "--data", tmp_path, "--out", tmp_path / "runs" / name, *TINY)
        assert done.code == 0, done.err
    assert losses(tmp_path / "runs" / "first") == losses(tmp_path / "runs" / "second")


def test_the_help_says_what_is_taken_where_an_option_is_left_out(lavagna, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(lavagna("train", "--help").out.split())
    same = [
        "steps",
        "batch",
        "context",
        "lr",
        "schedule",
        "weight_decay",
        "clip",
        "seed",
        "dtype",
        "evaluate_every",
        "save_every",
        "keep",
    ]
    taken = {name: getattr(TrainConfig(), name) for name in same}
    taken |= {"layer": LAYER, "preset": PRESET, "data": "stdlib", "tokenizer": "bytes", "vocab_size": VOCABULARY}
    for name, value in taken.items():
        after = shown.partition(f"--{name.replace('_', '-')} ")[2].partition(" --")[0]
        assert f"[default: ({value})]" in after, name
