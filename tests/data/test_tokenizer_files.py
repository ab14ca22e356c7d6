"""A folder gives the tokenizer that it holds, whatever its kind."""

import pytest

from lavagna.data import TOKENIZER_FILES, Tokenizer, WorldTokenizer, load_tokenizer


@pytest.mark.parametrize("tokenizer", [Tokenizer.bytes(), WorldTokenizer({1: b"a", 5: b"bc"})], ids=repr)
def test_a_folder_gives_back_the_tokenizer_saved_there(tokenizer, tmp_path):
    assert tokenizer.save(tmp_path).name in TOKENIZER_FILES
    loaded = load_tokenizer(tmp_path)
    assert loaded == tokenizer
    assert type(loaded) is type(tokenizer)


def test_a_vocabulary_is_found_under_the_name_it_is_published_by(tmp_path):
    WorldTokenizer({1: b"a"}).save(tmp_path / "rwkv_vocab_v20230424.txt")
    assert load_tokenizer(tmp_path) == WorldTokenizer({1: b"a"})


def test_of_two_that_rwkv_models_use_the_one_that_fits_the_model_is_taken(tmp_path):
    pile, world = Tokenizer.bytes(), WorldTokenizer({1: b"a", 299: b"b"})
    pile.save(tmp_path / "20B_tokenizer.json")
    assert load_tokenizer(tmp_path) == pile
    world.save(tmp_path)
    assert load_tokenizer(tmp_path) == load_tokenizer(tmp_path, rows=300) == world
    assert load_tokenizer(tmp_path, rows=256) == pile
    (tmp_path / "20B_tokenizer.json").unlink()
    assert load_tokenizer(tmp_path, rows=256) == world


def test_a_folder_without_one_gives_none(tmp_path):
    (tmp_path / "notes.txt").write_text("no vocabulary")
    assert load_tokenizer(tmp_path) is None


def test_a_damaged_one_is_not_passed_over(tmp_path):
    (tmp_path / "rwkv_vocab.txt").write_text("1 'a' 2\n")
    with pytest.raises(ValueError, match="line 1"):
        load_tokenizer(tmp_path)
