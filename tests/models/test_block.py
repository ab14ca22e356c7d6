"""What stands around a mixer: norms before or behind, feed-forward nets that remember, what a layer hands on."""

import pytest
import torch

import lavagna as lv
from lavagna.layers import Layer, registry
from lavagna.layers.layer import Layer as Base
from lavagna.models.block import Block
from lavagna.modules import feed_forward, mlp
from lavagna.modules.feed_forward import FeedForward
from lavagna.modules.linear import Linear

VOCAB = 13


class Difference(FeedForward):
    """A net that sees each step's predecessor."""

    def __init__(self, d_model, hidden, *, layer_index, depth):
        super().__init__()
        self.place = (layer_index, depth)
        self.inside, self.down = Linear(d_model, hidden), Linear(hidden, d_model)

    def reset_parameters(self):
        self.inside.reset_parameters()
        self.down.reset_parameters()

    def initial_tensors(self, batch, device, dtype):
        return {"shift": torch.zeros(batch, self.down.weight.shape[0], device=device, dtype=dtype)}

    def forward(self, x, tensors, steps):
        before, last = steps.before(x, tensors["shift"].to(x.dtype))
        return self.down(torch.tanh(self.inside(x - before))), {"shift": last}


class Handing(Base):
    """A layer that adds what the first of its kind saw."""

    name = "handing"
    hands_on = True

    def __init__(self, d_model, *, value_residual=False):
        super().__init__(d_model)
        self.value_residual = value_residual
        self.out = Linear(d_model, d_model)
        self.reset_parameters()

    def initial_tensors(self, batch, device, dtype):
        return {"memory": torch.zeros(batch, 1, 1, 1, device=device, dtype=dtype)}

    def mix(self, x, state, steps):
        if steps.handed is None:
            steps.handed = x
        return self.out(x + steps.handed), {"memory": state.memory}


@pytest.fixture
def difference(monkeypatch):
    monkeypatch.setattr(mlp, "Difference", Difference, raising=False)
    monkeypatch.setitem(feed_forward.FEED_FORWARDS, "difference", "mlp:Difference")
    monkeypatch.setitem(lv.models.surroundings.CHOICES, "mlp", ("difference", None))


@pytest.fixture
def handing(monkeypatch):
    monkeypatch.setitem(registry.LAYERS, "handing", Handing)


def build(layer="gla", depth=2, **changed):
    return lv.LanguageModel(lv.ModelConfig(layer, 32, depth, vocab_size=VOCAB, **changed)).double()


def far(x, y):
    return (x - y).abs().max().item()


def test_a_net_that_remembers_is_exact_under_cuts_masks_and_packing(difference, device):
    model = build(block={"mlp": "difference", "mlp_width": 24}).to(device)
    ids = torch.randint(VOCAB, (2, 11), device=device)
    logits, state = model(ids)
    assert state.tensors()["1.mlp_shift"].shape == (2, 32)
    first, middle = model(ids[:, :4])
    second, last = model(ids[:, 4:], middle)
    assert far(torch.cat([first, second], 1), logits) < 1e-12
    assert all(far(last.tensors()[name].double(), x.double()) < 1e-12 for name, x in state.tensors().items())
    mask = torch.ones(2, 14, dtype=torch.bool, device=device)
    mask[:, [0, 5, 13]] = False
    padded = torch.full((2, 14), 3, device=device)
    padded[mask] = ids.flatten()
    masked, after = model(padded, mask=mask)
    assert far(masked[mask], logits.flatten(0, 1)) < 1e-12
    assert all(far(after.tensors()[name].double(), x.double()) < 1e-12 for name, x in state.tensors().items())
    packed, rows = model(ids.reshape(1, -1), cu_seqlens=[0, 11, 22])
    assert far(packed.view_as(logits), logits) < 1e-12
    assert all(far(rows.tensors()[name].double(), x.double()) < 1e-12 for name, x in state.tensors().items())


def test_a_state_without_the_net_s_part_is_refused(difference):
    model, other = build(block={"mlp": "difference"}), build()
    with pytest.raises(ValueError, match=r"gla: for its feed-forward net .*'mlp_shift': \(32,\).* but came with {}"):
        model(torch.zeros(1, 3, dtype=torch.int64), other.initial_state(1))


def test_a_net_knows_its_place(difference):
    assert [block.mlp.place for block in build(block={"mlp": "difference"}, depth=3).blocks] == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_first_layer_of_a_kind_hands_on_to_the_later_ones(handing, checkpointing):
    model, ids = build(["gla", "handing"], 4), torch.randint(VOCAB, (1, 5))
    assert [block.mixer.value_residual for block in model.blocks if block.mixer.name == "handing"] == [False, True]
    model.checkpointing = checkpointing
    seen = []
    for block in model.blocks:
        block.mixer_norm.register_forward_hook(lambda module, given, normed: seen.append(normed))
    model.blocks[3].mixer.out.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    logits, _ = model(ids)
    assert torch.equal(seen[4], seen[3] + seen[1])
    # From the last block back to what the second one was given, along no other path than the handed one.
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_alone_such_a_layer_is_a_first_one(handing):
    layer, x = lv.layers.build("handing", 32), torch.randn(1, 3, 32)
    assert torch.equal(layer(x).y, layer.out(2 * x)) and isinstance(layer, Layer)


def test_norms_stand_before_or_behind_the_halves():
    config = lv.ModelConfig("gla", 32, 1, vocab_size=VOCAB, block={"norm": "layer", "norm_place": "post"})
    block, x = lv.LanguageModel(config).blocks[0], torch.randn(2, 5, 32)
    with torch.no_grad():
        for norm in (block.mixer_norm, block.mlp_norm):
            norm.weight.uniform_(0.5, 2)
            norm.bias.normal_()
    wanted = x + block.mixer_norm(block.mixer(x).y)
    gate, up = block.mlp.gate_up(wanted).chunk(2, -1)
    wanted = wanted + block.mlp_norm(block.mlp.down(torch.nn.functional.silu(gate) * up))
    assert far(block(x).x, wanted) < 1e-6


def test_what_is_chosen_by_layer_reaches_only_its_blocks():
    chosen = {"gla": {"norm": "zero_centered_rms", "mlp_width": 50}, "mamba2": {"mlp": "geglu"}}
    model = build(["gla", "mamba2", "delta_net"], 3, block=chosen)
    around = [block.around for block in model.blocks]
    assert [x.norm for x in around] == ["zero_centered_rms", "rms", "rms"]
    # mamba2's paper has no net, so it has no width either: the usual one is taken.
    assert [(x.mlp, x.mlp_width) for x in around] == [("swiglu", 50), ("geglu", 96), ("swiglu", 96)]
    assert build("mamba2").blocks[0].mlp is None and build("mamba2", mlp_factor=1).blocks[0].around.mlp_width == 32
    assert build("gla", block={"mlp": None}).blocks[0].mlp is None
    assert build("gla", mlp_factor=0).blocks[0].mlp is None


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"norms": "rms"}, "block has no norms; it has norm, norm_place, mlp, mlp_width"),
        ({"norm": "batch"}, "norm must be one of rms, layer, zero_centered_rms, but came as 'batch'"),
        ({"norm_place": "middle"}, "norm_place must be one of pre, post"),
        ({"mlp": "relu"}, "mlp must be one of swiglu"),
        ({"mlp_width": 0}, "mlp_width must be an int >= 1, but came as 0"),
    ],
    ids=str,
)
def test_a_choice_that_no_block_can_have_is_refused(wrong, said):
    with pytest.raises(ValueError, match=f"ModelConfig: .*{said}"):
        lv.ModelConfig("gla", 32, 2, vocab_size=VOCAB, block=wrong)


@pytest.mark.parametrize(
    "layer, block, factor, said",
    [
        ("gla", {"mlp": None, "mlp_width": 24}, None, "mlp_width is 24, but mlp is None. Leave out mlp_width"),
        ("mamba2", {"mlp_width": 24}, None, "mlp_width is 24, but that of mamba2 has no net unless mlp names one"),
        (["gla", "gla"], {"gla": {"mlp": None, "mlp_width": 24}}, 2, "mlp_width is 24, but mlp is None"),
        ("gla", {"mlp": "geglu"}, 0, "mlp is 'geglu', but mlp_factor=0 leaves it no width. Give mlp_width"),
    ],
    ids=str,
)
def test_a_width_without_a_net_and_a_net_without_a_width_are_refused(layer, block, factor, said):
    with pytest.raises(ValueError, match=f"ModelConfig: block: {said}"):
        lv.ModelConfig(layer, 32, 2, vocab_size=VOCAB, block=block, mlp_factor=factor)


def test_a_width_that_is_chosen_stands_against_a_factor():
    assert build("gla", mlp_factor=0, block={"mlp": "geglu", "mlp_width": 24}).blocks[0].around[2:] == ("geglu", 24)
    assert build("mamba2", mlp_factor=2, block={"mlp_width": 24}).blocks[0].around[2:] == ("swiglu", 24)


def test_every_option_of_the_ends_does_what_it_says(device):
    options = {"embedding_norm": True, "embedding_scale": 3.0, "logit_cap": 2.0, "head_bias": True}
    for tied in (True, False):
        model = build(tie_embeddings=tied, **options).to(device)
        with torch.no_grad():
            model.head.bias.normal_()
            model.embedding_norm.weight.uniform_(0.5, 2)
        ids = torch.randint(VOCAB, (2, 6), device=device)
        x = 3 * model.embedding.weight[ids]
        x = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * model.embedding_norm.weight
        for block in model.blocks:
            x = block(x).x
        logits = model.norm(x) @ model.head.weight.T + model.head.bias
        assert far(model(ids).logits, 2 * torch.tanh(logits / 2)) < 1e-12


def test_one_block_alone_starts_from_its_own_initial_state():
    block = build().blocks[0]
    assert isinstance(block, Block)
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    assert torch.equal(block(x).x, block(x, block.initial_state(2)).x)
