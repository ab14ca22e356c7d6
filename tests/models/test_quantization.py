"""A model with 8-bit weights is the model whose weights were rounded, by every path."""

import pytest
import torch

import lavagna as lv
from lavagna.generation import captured
from lavagna.kernels.cpu.library import library
from lavagna.models.quantization import rounded
from lavagna.modules.eight_bit import EightBit
from lavagna.modules.linear import Linear

pytest.importorskip("torchao", reason="torchao, which quantizes, is not installed")

VOCAB = 37


def build(layer="gated_delta_net", dtype=torch.float32, **changed):
    config = lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": 2, "vocab_size": VOCAB} | changed))
    return lv.LanguageModel(config).to(dtype).eval()


def of_full_width(eight_bit):
    return eight_bit.integers * eight_bit.scale[:, None]


def widened(quantized, model):
    """The model with the weights that the 8-bit ones stand for."""
    twin = lv.LanguageModel(model.config).to(next(model.parameters()).dtype).eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, part in quantized.named_modules():
            if isinstance(part, Linear) and part.eight_bit is not None:
                twin.get_submodule(name).weight.copy_(of_full_width(part.eight_bit))
    if model.config.tie_embeddings:
        head = torch.nn.Linear(1, 1, bias=False)
        head.weight = torch.nn.Parameter(of_full_width(quantized.head.eight_bit).to(model.embedding.weight))
        twin.head = head
    return twin


@torch.no_grad()
@pytest.mark.parametrize("layer", lv.layers.names())
def test_it_computes_with_the_rounded_weights_of_every_layer(layer):
    model, ids = build(layer), torch.randint(VOCAB, (1, 9))
    quantized = lv.quantize(model)
    right = widened(quantized, model)
    assert any(isinstance(part, EightBit) for part in quantized.modules())
    whole, state = quantized(ids)
    exact, after = right(ids)
    assert torch.allclose(whole, exact, rtol=1e-4, atol=1e-4)
    # One row goes another way than many.
    assert torch.allclose(quantized(ids[:, :1], state).logits, right(ids[:, :1], after).logits, rtol=1e-3, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float64, 1e-6)], ids=str)
def test_activations_keep_their_dtype(dtype, tolerance):
    model, ids = build(dtype=dtype), torch.randint(VOCAB, (2, 9))
    quantized = lv.quantize(model)
    logits, _ = quantized(ids)
    assert logits.dtype == dtype
    assert (logits - widened(quantized, model)(ids).logits).abs().max() < tolerance


@pytest.mark.skipif(library().functions is None, reason="there are no kernels to capture")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layer", ["mamba2", "mamba", "rwkv7", "gla", "gated_delta_net", "retention"])
def test_greedy_text_of_a_captured_step_is_the_plain_paths(layer, dtype, monkeypatch):
    model, ids, runs = lv.quantize(build(layer, dtype)), torch.randint(VOCAB, (1, 5)), []
    for worth in (1, 1000):
        monkeypatch.setattr(captured, "WORTH", worth)
        runs.append(lv.generate(model, ids, max_new_tokens=20, temperature=0).ids)
    assert torch.equal(*runs)


def test_a_weight_is_off_by_half_a_scale_at_most():
    weight = torch.randn(7, 50)
    weight[3] = 0
    integers, scale = rounded(weight)
    assert integers.dtype == torch.int8 and scale.shape == (7,)
    off = (integers * scale[:, None] - weight).abs()
    # The largest of a row may be cut at 127.
    assert (off <= 0.5001 * scale[:, None]).all() and (scale[:, None] * 127.6 >= weight.abs()).all()
    assert not integers[3].any()


def test_the_given_model_stays_and_the_copy_shares_nothing_with_it():
    model = build("mamba2")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    quantized = lv.quantize(model)
    for x in (*quantized.parameters(), *quantized.buffers()):
        with torch.no_grad():
            x.zero_()
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    again = lv.quantize(lv.quantize(model))
    ids = torch.randint(VOCAB, (1, 5))
    assert torch.equal(again(ids).logits, lv.quantize(model)(ids).logits)


def test_decays_and_gates_keep_their_width():
    quantized = lv.quantize(build("gated_delta_net"))
    whole = {name for name, part in quantized.named_modules() if isinstance(part, Linear) and part.eight_bit is None}
    assert whole and all(not quantized.get_submodule(name).quantizable for name in whole)


def test_gradients_flow_to_what_is_given():
    x = torch.randn(3, 8, requires_grad=True)
    part = EightBit(torch.randint(-127, 128, (5, 8), dtype=torch.int8), torch.rand(5))
    for rows in (1, 3):
        (gradient,) = torch.autograd.grad(part(x[:rows].repeat(3, 1)[: 9 // rows]).sum(), x)
        assert gradient.abs().sum() > 0


def test_it_can_not_be_trained_in_silence():
    quantized = lv.quantize(build())
    assert not any(x.requires_grad for x in quantized.parameters())
    with pytest.raises(RuntimeError, match="does not require grad"):
        quantized(torch.tensor([[1, 2]])).logits.sum().backward()


def test_it_is_not_saved_and_wrong_calls_say_why(tmp_path):
    model = build()
    with pytest.raises(ValueError, match="8 bits"):
        lv.save(lv.quantize(model), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="bits must be 8"):
        lv.quantize(model, bits=4)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 1e300])
@pytest.mark.parametrize("which", ["blocks.1.mixer.out.weight", "embedding.weight"])
def test_numbers_that_8_bits_do_not_have_are_refused_with_the_name_of_their_parameter(which, number):
    model = build(dtype=torch.float64, tie_embeddings=True)
    with torch.no_grad():
        model.get_parameter(which)[1, 2] = number
    with pytest.raises(ValueError, match=f"no NaN or infinity, which {which} would hold"):
        lv.quantize(model)


@pytest.mark.parametrize("layer", lv.layers.names())
def test_it_is_not_reset_and_nothing_of_it_changes(layer):
    quantized = lv.quantize(build(layer))
    before = {name: x.clone() for name, x in quantized.state_dict().items()}
    with pytest.raises(ValueError, match="weights in 8 bits can't be set anew"):
        quantized.reset_parameters()
    assert all(torch.equal(x, before[name]) for name, x in quantized.state_dict().items())
    mixer = quantized.blocks[0].mixer
    if any(isinstance(part, EightBit) for part in mixer.modules()):
        with pytest.raises(ValueError, match="weights in 8 bits can't be set anew"):
            mixer.reset_parameters()


@pytest.mark.parametrize("steps", [1, 6])
@pytest.mark.parametrize("layer", ["gated_delta_net", "mamba", "rwkv7", "slstm", "s4"])
def test_torch_func_differentiates_and_maps_it_as_the_rounded_model(layer, steps):
    model = build(layer)
    quantized, x = lv.quantize(model), torch.randn(3, 1, steps, 32)
    results = []
    for one in (quantized, widened(quantized, model)):
        weights = {"norm.weight": one.norm.weight.detach()}

        def loss(weights, x, one=one):
            out, _ = torch.func.functional_call(one.blocks[0].mixer, {}, (x,))
            return torch.func.functional_call(one.norm, {"weight": weights["norm.weight"]}, (out,)).square().sum()

        grad, to_x = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, 0))(weights, x)
        _, along = torch.func.jvp(lambda x, one=one: one.blocks[0].mixer(x).y, (x[0],), (x[1],))
        results.append([grad["norm.weight"], to_x, along])
    for ours, right in zip(*results, strict=True):
        assert torch.allclose(ours, right, rtol=1e-3, atol=1e-3 * right.abs().max().item())
