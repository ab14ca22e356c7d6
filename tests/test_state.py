"""States: immutable, batch first, whole on disk."""

import copy
import io
import pickle

import pytest
import torch

import lavagna as lv
from lavagna.state import ModelState, State


def layer_state(kind: str = "delta_net") -> State:
    tensors = {"memory": torch.randn(3, 2, 4, 5), "window": torch.randn(3, 3, 8).bfloat16()}
    return State(kind, tensors | {"tokens_seen": torch.tensor([4, 5, 6])})


@pytest.fixture(params=["layer", "model"])
def state(request) -> State | ModelState:
    return layer_state() if request.param == "layer" else ModelState([layer_state(), layer_state("mamba2")])


def equal(one, other) -> bool:
    mine, theirs = one.tensors(), other.tensors()
    return mine.keys() == theirs.keys() and all(
        torch.equal(mine[name], theirs[name]) and mine[name].dtype == theirs[name].dtype for name in mine
    )


def test_saved_and_read_back_bit_for_bit(state, tmp_path):
    path = tmp_path / "a state é.safetensors"
    state.save(path)
    again = lv.load_state(path)
    assert type(again) is type(state) and equal(again, state) and again._kinds() == state._kinds()
    assert list(again.tensors()) == list(state.tensors())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_state_that_is_cut_short_or_foreign_is_refused(state, tmp_path):
    path = tmp_path / "state"
    state.save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        lv.load_state(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="no lavagna state"):
        lv.load_state(path)
    with pytest.raises(FileNotFoundError):
        lv.load_state(tmp_path / "absent")


def test_a_state_makes_its_folder_and_is_refused_below_a_file(state, tmp_path):
    state.save(tmp_path / "new" / "state")
    assert equal(lv.load_state(tmp_path / "new" / "state"), state)
    with pytest.raises(OSError, match="state"):
        state.save(tmp_path / "new" / "state" / "below")


def test_selected_rows_share_nothing(state):
    rows = state.select([2, 0, 0])
    assert all(torch.equal(rows.tensors()[name], x[[2, 0, 0]]) for name, x in state.tensors().items())
    name = next(iter(rows.tensors()))
    rows.tensors()[name][1] += 1
    assert not torch.equal(rows.tensors()[name][1], rows.tensors()[name][2])
    assert equal(state.select(torch.tensor([0, 1, 2])), state)
    assert equal(state.select(torch.tensor([True, False, True])), state.select([0, 2]))


def test_clone_shares_no_storage_and_detach_no_graph(state):
    name = next(iter(state.tensors()))
    live = state.replace(**{name: state.tensors()[name].clone().requires_grad_()})
    assert live.clone().tensors()[name].requires_grad
    assert not live.detach().tensors()[name].requires_grad
    copy = state.clone()
    copy.tensors()[name].fill_(0)
    assert state.tensors()[name].any()


def _through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), _through_torch])
def test_copied_and_pickled_as_any_value(copied, state):
    again = copied(state)
    assert type(again) is type(state) and equal(again, state) and again._kinds() == state._kinds()


def test_a_cast_leaves_counts_alone(state):
    cast = state.to(torch.float64)
    assert cast.tokens_seen.dtype == torch.int64
    assert all(x.dtype == torch.float64 for name, x in cast.tensors().items() if "tokens_seen" not in name)


def test_nothing_can_be_assigned_and_unknown_names_are_refused(state):
    with pytest.raises(AttributeError, match="immutable"):
        state.tokens_seen = torch.zeros(3)
    with pytest.raises(AttributeError, match="immutable"):
        state.memory = torch.zeros(3)
    with pytest.raises(AttributeError, match="immutable"):
        del state.kind
    with pytest.raises(ValueError, match="no colour; it has"):
        state.replace(colour=torch.zeros(3))


def test_attributes_are_the_tensors():
    state = layer_state()
    assert torch.equal(state.memory, state.tensors()["memory"])
    with pytest.raises(AttributeError, match="the state of delta_net has no 'colour'; it has memory"):
        _ = state.colour


def test_bytes_are_counted(state):
    assert state.nbytes == sum(x.numel() * x.element_size() for x in state.tensors().values())


def test_a_saved_state_can_be_read_by_whoever_may_read_other_files(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"")
    layer_state().save(tmp_path / "state")
    assert (tmp_path / "state").stat().st_mode == other.stat().st_mode
