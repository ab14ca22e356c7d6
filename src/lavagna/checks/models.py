"""A whole model, trained or not, in every form and every cut, against its own steps in float64."""

import copy
from collections.abc import Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from lavagna.checks.row import Row, distance, row
from lavagna.layers import layer_class
from lavagna.models import LanguageModel

CUT = "cut in pieces"
STEPPED = "token by token"
# A model is layer upon layer, each of which adds its share of rounding.
SLACK = 5.0


def model_rows(model: LanguageModel, ids: Int[Tensor, "b t"], dtypes: tuple[torch.dtype, ...]) -> Iterator[Row]:
    """The logits of a text in every form, cut in uneven pieces, and token by token, all against the definition.

    The definition is the model in float64, called once a token in its recurrent form.
    """
    names = "+".join(dict.fromkeys(model.config.layers))
    forms = list(dict.fromkeys(form for name in model.config.layers for form in layer_class(name).forms))
    with torch.no_grad():
        wanted = _pieces(copy.deepcopy(model).double().eval(), ids, [1] * ids.shape[1], "recurrent", "torch")
        for dtype in dtypes:
            cast = copy.deepcopy(model).to(dtype).eval()
            for form in forms:
                came = _pieces(cast, ids, [ids.shape[1]], form, "torch")
                yield row(
                    (form, "torch"), f"model of {names}", dtype, "output", distance([came], [wanted]), slack=SLACK
                )
            for name, lengths in ((CUT, uneven(ids.shape[1])), (STEPPED, [1] * ids.shape[1])):
                came = _pieces(cast, ids, lengths, "auto", "auto")
                yield row((name, "auto"), f"model of {names}", dtype, "output", distance([came], [wanted]), slack=SLACK)


def uneven(length: int) -> list[int]:
    """Pieces of unlike sizes that make up a length.

    >>> uneven(20)
    [1, 7, 2, 10]
    """
    pieces, left = [], length
    for size in (1, 7, 2, length):
        if left:
            pieces.append(min(size, left))
            left -= pieces[-1]
    return pieces


def _pieces(model: LanguageModel, ids: Tensor, lengths: list[int], form: str, backend: str) -> Tensor:
    state, logits = None, []
    for piece in ids.split(lengths, 1):
        some, state = model(piece, state, form=form, backend=backend)
        logits.append(some)
    return torch.cat(logits, 1)
