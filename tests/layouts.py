"""Ways in which the same numbers lie in memory."""

import torch


def sliced(x):
    """Every second entry of each axis, from an odd place on."""
    wide = x.new_full([2 * n + 1 for n in x.shape], torch.nan)
    inner = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    return inner.copy_(x)


def turned(x):
    """The first axis lies side by side, the last far apart."""
    axes = range(x.ndim)[::-1]
    return x.permute(*axes).contiguous().permute(*axes)


def spread(x):
    """One entry of each axis but the last, for all of it."""
    return x[(slice(0, 1),) * (x.ndim - 1)].expand(x.shape)


def astray(x):
    """A dense tensor that begins in the middle of a number."""
    room = torch.zeros(x.numel() * x.element_size() + 1, dtype=torch.uint8)
    room[1:] = as_real(x).contiguous().flatten().view(torch.uint8)
    return torch.frombuffer(memoryview(room.numpy()), dtype=x.dtype, offset=1).view(x.shape)


def marked(x):
    """A tensor whose sign, or that of its imaginary part, is a mark and not in memory."""
    return x.conj_physical().conj() if x.is_complex() else torch.complex(torch.zeros_like(x), -x).conj().imag


LAYOUTS = (sliced, turned, spread, astray, marked)


def as_real(x):
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
