"""Hold a compiled language model to the plain one at several lengths, the state carried on, and count its graphs.

A program of its own, since the shape checks that tests put around every function are not made to be compiled:
`python compiled.py LAYER BACKEND DYNAMIC DEVICE LENGTH...` prints the number of graphs; then twenty steps are compared.
"""

import sys

import torch
from torch._dynamo.utils import counters

import lavagna as lv


def difference(ours: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Largest absolute difference over largest absolute value, over several tensors."""
    pairs = [(a.double(), b.double()) for a, b in zip(ours, wanted, strict=True) if a.numel()]
    return max(((a - b).abs().max() / b.abs().max().clamp(min=1e-30)).item() for a, b in pairs)


def trained(call, model, ids, state):
    """Logits, state and gradients of one call."""
    model.zero_grad()
    logits, state = call(ids, state)
    logits.square().mean().backward()
    # A gradient that is zero but for rounding is compared as part of the whole, not with itself.
    return logits.detach(), state.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def graphs(layer: str, backend: str, dynamic: bool | None, device: str, lengths: list[int]) -> int:
    """Compare logits, states and gradients at every length, then twenty single steps; how many graphs it took."""
    config = lv.ModelConfig(layer=layer, d_model=32, depth=1, vocab_size=13)
    model = lv.LanguageModel(config).to(device)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    state = own = model.initial_state(2)
    for length in lengths:
        ids = torch.randint(13, (2, length), device=device)
        logits, state, gradient = trained(compiled, model, ids, state)
        wanted, own, right = trained(model, model, ids, own)
        apart = difference([logits, *state.tensors().values()], [wanted, *own.tensors().values()])
        assert apart < 1e-5 and difference([gradient], [right]) < 1e-4, (length, apart, difference([gradient], [right]))
    count = counters["stats"]["unique_graphs"]
    for _ in range(20 if lengths[-1] == 1 else 0):
        ids = torch.randint(13, (2, 1), device=device)
        (logits, state), (wanted, own) = compiled(ids, state), model(ids, own)
        state, own = state.detach(), own.detach()
        assert difference([logits.detach()], [wanted.detach()]) < 1e-5
    return count


if __name__ == "__main__":
    layer, backend, dynamic, device, *lengths = sys.argv[1:]
    torch.manual_seed(0)
    choice = {"auto": None, "yes": True, "no": False}[dynamic]
    print(graphs(layer, backend, choice, device, [int(length) for length in lengths]))
