"""Hold compiled calls of the recurrence to eager ones, and count the graphs they take.

A program of its own, since the shape checks that tests put around every function are not made to be compiled:
`python compiled.py NAME BACKEND DYNAMIC DEVICE LENGTH...` prints the number of graphs.
"""

import sys

import torch
import torch._dynamo.testing

import lavagna as lv
from transitions import Sizes, call, difference

BUILD = {
    "scalar": lambda log_decay, key, beta: lv.scalar(log_decay[..., :1]),
    "diagonal": lambda log_decay, key, beta: lv.diagonal(log_decay),
    "gated householder": lambda log_decay, key, beta: lv.gated_householder(log_decay[..., :1], key, beta),
}


def graphs(name: str, backend: str, dynamic: bool | None, device: torch.device, lengths: list[int]) -> int:
    """Compare values, states and gradients at every length, compiled against eager; return how many graphs it took."""
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)

    def run(log_decay, key, beta, q, v, state):
        return tuple(lv.recur(BUILD[name](log_decay, key, beta), q, key, v, state))

    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=dynamic)
    for t in lengths:
        some = call("gated householder, diagonal", Sizes(t=t, k=8, v=8), device=device, dtype=torch.float32)
        inputs = [some.a.log_decay, some.k, some.a.beta, some.q, some.v, some.state]
        for x in inputs:
            x.requires_grad_()
        results = []
        for function in (compiled, run):
            out, state = function(*inputs)
            loss = (out * out).sum() + (state * state).sum()
            results.append([out, state, *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)])
        for one, other in zip(*results, strict=True):
            assert difference(one, other) < 1e-5, (name, t, difference(one, other))
    return counter.frame_count


if __name__ == "__main__":
    name, backend, dynamic, device, *lengths = sys.argv[1:]
    torch.manual_seed(0)
    print(graphs(name, backend, {"auto": None, "yes": True}[dynamic], torch.device(device), [int(t) for t in lengths]))
