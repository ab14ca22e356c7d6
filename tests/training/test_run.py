"""The folder of a run."""

import json
from dataclasses import replace

import pytest

from lavagna.training.run import Settings, open_run, read_run

DATA = {"train_tokens": 900, "validation_tokens": 100, "tokenizer": "abc"}


@pytest.fixture
def settings(model_config, config) -> Settings:
    return Settings(model_config.to_dict(), config, DATA)


def test_a_run_remembers_what_it_was_started_with(tmp_path, settings):
    open_run(tmp_path, settings, resume=False)
    assert read_run(tmp_path) == settings


def test_a_folder_with_a_run_is_not_started_in_again(tmp_path, settings):
    open_run(tmp_path, settings, resume=False)
    with pytest.raises(ValueError, match="already holds a run, 0 steps long. Resume it, or choose another folder"):
        open_run(tmp_path, settings, resume=False)


def test_resuming_where_there_is_nothing_starts(tmp_path, settings):
    assert open_run(tmp_path / "new", settings, resume=True).step == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s._replace(training=replace(s.training, lr=0.5)), "lr 0.01 (now 0.5)"),
        (lambda s: s._replace(training=replace(s.training, seed=3)), "seed 0 (now 3)"),
        (lambda s: s._replace(model=s.model | {"d_model": 99}), "d_model 16 (now 99)"),
        (lambda s: s._replace(data=DATA | {"train_tokens": 7}), "train_tokens 900 (now 7)"),
    ],
)
def test_resuming_with_other_settings_is_refused_and_says_which(tmp_path, settings, change, message):
    open_run(tmp_path, settings, resume=False)
    with pytest.raises(ValueError) as caught:
        open_run(tmp_path, change(settings), resume=True)
    assert f"was started with {message}. Resume with the same settings" in str(caught.value)
    assert read_run(tmp_path) == settings


def test_what_changes_no_computed_number_may_change(tmp_path, settings):
    open_run(tmp_path, settings, resume=False)
    now = replace(settings.training, steps=99, micro_batch=1, save_every=1, keep=9, evaluate_every=7)
    open_run(tmp_path, settings._replace(training=now), resume=True)
    assert read_run(tmp_path).training == now


def test_a_run_of_another_version_is_refused(tmp_path, settings):
    run = open_run(tmp_path, settings, resume=False)
    content = json.loads(run.config.read_text())
    run.config.write_text(json.dumps(content | {"format": "lavagna-run-0", "version": "0.0.1"}))
    with pytest.raises(ValueError, match=r"holds lavagna-run-0, written by lavagna 0.0.1, but lavagna-run-1"):
        open_run(tmp_path, settings, resume=True)


@pytest.mark.parametrize("content", ["", "[]", "not json"])
def test_a_damaged_config_is_refused(tmp_path, settings, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config.json is not the JSON of a run"):
        open_run(tmp_path, settings, resume=True)


def test_reading_where_there_is_no_run_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no run in"):
        read_run(tmp_path)
