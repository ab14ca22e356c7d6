"""Which steps of a call are real, which sequence each belongs to, and how the call asked to be computed."""

from collections.abc import Callable

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition, identity
from lavagna.dispatch import FEW, Result, check_backend, recur
from lavagna.kernels import find_fused, missing
from lavagna.modules.joined import joined
from lavagna.packing import Rows, as_mask, as_offsets, masked_rows, packed_rows


class Steps:
    """The time axis of one call, checked: mask, packing, form and backend. Layers hand it to parts that look back.

    `rows` has each sequence's real steps as one compact row; it is None where every step is real and nothing is packed:
    the plain case, kept fast. `fresh` says that nothing stands behind the first step: every state is the initial one.
    """

    def __init__(
        self,
        call: str,
        x: Shaped[Tensor, "b t *rest"],
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
        fresh: bool = False,
    ) -> None:
        check_backend(call, backend)
        self.batch, self.length = x.shape[:2]
        self.device = x.device
        self.mask = None if mask is None else as_mask(call, mask, self.batch, self.length)
        self.offsets = None if cu_seqlens is None else as_offsets(call, cu_seqlens, self.batch, self.length)
        self.form, self.backend, self.fresh = form, backend, fresh
        # What an earlier layer of the same call handed on, (b, t, ...), and what goes on to the next: `Layer.hands_on`.
        self.handed: Tensor | None = None
        self.rows = self._compact()

    @property
    def sequences(self) -> int:
        """How many sequences, and so rows of state, the call has."""
        return self.batch if self.offsets is None else len(self.offsets) - 1

    @property
    def counts(self) -> Int[Tensor, " n"]:
        """Real steps of each sequence in this call, int64 (n,)."""
        if self.rows is not None:
            return self.rows.counts
        return torch.full((self.batch,), self.length, dtype=torch.int64, device=self.device)

    def by_rows(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        x: Shaped[Tensor, "b t *rest"],
        *states: Shaped[Tensor, "n *_"],
    ) -> tuple[Tensor, ...]:
        """`function(steps, counts, *states)`, which wants rows without holes, under any mask and packing.

        It is given each sequence's real steps (m, l, ...) as a row, how many of the l are real (zeros stand behind),
        and the sequence's row of every state; it returns steps (m, l, ...) and new states, which come back as
        (b, t, ...) and (n, ...). Packed sequences come in groups of like length: a long one doesn't fill up the short.
        """
        if self.rows is None or self.offsets is None:
            given = x if self.rows is None else self.rows.gather(x)
            y, *after = function(given, self.counts, *states)
            return y if self.rows is None else self.rows.scatter(y), *after
        groups = self.rows.alike() or [([], self.rows)]
        ys, afters = [], []
        for members, rows in groups:
            y, *after = function(rows.gather(x), rows.counts, *(state[members] for state in states))
            ys.append(rows.scatter(y))
            afters.append(after)
        back = torch.tensor([row for members, _ in groups for row in members], dtype=torch.int64, device=self.device)
        after = [torch.cat(parts).index_select(0, back.argsort()) for parts in zip(*afters, strict=True)]
        return torch.stack(ys).sum(0), *after

    def positions(self, tokens_seen: Int[Tensor, " n"]) -> Int[Tensor, "b t"]:
        """The place of each real step in its own sequence, counted from the first token ever seen; 0 where masked."""
        length = self.length if self.rows is None else self.rows.index.shape[1]
        place = tokens_seen[:, None] + torch.arange(length, device=self.device)
        return place if self.rows is None else self.rows.scatter(place)

    def before(
        self, x: Shaped[Tensor, "b t *rest"], last: Shaped[Tensor, "n *rest"]
    ) -> tuple[Shaped[Tensor, "b t *rest"], Shaped[Tensor, "n *rest"]]:
        """What each step's predecessor in its own sequence had, `last` at the first; and what the last step has."""
        earlier, after = self.by_rows(_shifted, x, last)
        return earlier, after

    def hide(self, x: Shaped[Tensor, "b t *rest"]) -> Shaped[Tensor, "b t *rest"]:
        """`x` with zeros at masked steps, whatever stood there, and zero gradient to it."""
        if self.mask is None:
            return x
        return x.masked_fill(~self.mask.reshape(*self.mask.shape, *(1,) * (x.ndim - 2)), 0)

    def reverse(self, x: Shaped[Tensor, "b t *rest"]) -> Shaped[Tensor, "b t *rest"]:
        """`x` with each sequence's real steps turned around; masked ones stay where they are. Its own inverse."""
        if self.rows is None:
            return x.flip(1)
        back = self.rows.counts[:, None] - 1 - torch.arange(self.rows.index.shape[1], device=self.device)
        source = self.rows.index.gather(1, back.clamp_min(0))
        place = torch.arange(self.batch * self.length + 1, device=self.device)
        # Steps that are not real all go to one place more than there are, which is cut off.
        target = torch.where(self.rows.real, self.rows.index, self.batch * self.length)
        place = place.index_copy(0, target.flatten(), source.flatten())[:-1]
        return x.reshape(self.batch * self.length, *x.shape[2:]).index_select(0, place).reshape(x.shape)

    def convolves(self, call: str) -> bool:
        """Whether a layer that has the form convolution takes it: asked for, or its own choice for more than few steps.

        Raises ValueError where it is asked for together with a kernel.
        """
        plain = self.backend in ("auto", "torch")
        if self.form == "convolution" and not plain:
            raise ValueError(f"{call}: {missing(self.backend, self.form)}")
        return self.form == "convolution" or (self.form == "auto" and plain and self.length > FEW)

    def fused(
        self, name: str, q: Shaped[Tensor, "..."], k: Shaped[Tensor, "..."], v: Shaped[Tensor, "..."]
    ) -> Callable[..., tuple[Tensor, ...]] | None:
        """What runs a layer's recurrence in one pass with what stands around it, or None: then `recur` says why.

        A form that was asked for is one of the recurrence's own.
        """
        if self.form != "auto" or self.backend == "torch":
            return None
        kernel = find_fused(self.device.type if self.backend == "auto" else self.backend, name)
        return None if kernel is None or kernel.lacks(identity(), q, k, v) else kernel.run

    def loop(self, call: str, x: Shaped[Tensor, "b t *_"]) -> Callable[..., tuple[Tensor, ...]] | None:
        """What runs the loop of a layer that has one of its own in one pass, found by the layer's name; None for torch.

        Raises ValueError where a kernel was asked for that is not there.
        """
        if self.backend == "torch":
            return None
        kernel = find_fused(self.device.type if self.backend == "auto" else self.backend, call)
        if kernel is None:
            self.need_torch(call)
            return None
        lack = kernel.lacks(identity(), x, x, x)
        if lack is not None and self.backend != "auto":
            raise ValueError(f"{call}: {lack}. Use backend='torch' or 'auto'.")
        return kernel.run if lack is None else None

    def recur(
        self,
        a: Transition,
        q: Shaped[Tensor, "b t h k"],
        k: Shaped[Tensor, "b t h k"],
        v: Shaped[Tensor, "b t hv v"],
        memory: Shaped[Tensor, "n hv v k"],
        *,
        read: str = "after",
        parts: int = 1,
    ) -> Result:
        """`lavagna.recur` over these steps, in the form and on the backend that the call asked for.

        With `parts` every step is that many steps of the recurrence, side by side on the time axis.
        """
        mask = self.mask if self.mask is None or parts == 1 else self.mask.repeat_interleave(parts, 1)
        offsets = None if self.offsets is None else [parts * i for i in self.offsets]
        options = {"form": self.form, "backend": self.backend, "read": read, "mask": mask, "cu_seqlens": offsets}
        output, last = recur(a, q, k, v, memory, **options)
        # What a single step reads before it writes knows nothing of its transition.
        return Result(joined(output, *a.parts.values()) if read == "before" else output, last)

    def need_torch(self, call: str) -> None:
        """Raises ValueError where a kernel was asked for, which a layer with a loop of its own doesn't have."""
        if self.backend not in ("auto", "torch"):
            raise ValueError(f"{call}: {missing(self.backend)}")

    def _compact(self) -> Rows | None:
        if self.offsets is not None:
            return packed_rows(self.offsets, self.mask, device=self.device)
        return None if self.mask is None else masked_rows(self.mask)


def _shifted(x: Tensor, counts: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    past = torch.cat([last.unsqueeze(1), x], 1)
    place = counts.reshape(-1, *(1,) * (x.ndim - 1)).expand(-1, 1, *x.shape[2:])
    return past[:, :-1], past.gather(1, place).squeeze(1)
