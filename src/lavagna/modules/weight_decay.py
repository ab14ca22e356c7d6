"""Which parameters weight decay leaves alone."""

from torch import nn


def exempt(*parameters: nn.Parameter | None) -> None:
    """Mark parameters with `no_weight_decay = True`: decays, biases and norms keep what they learned.

    Called by `reset_parameters`, because moving a module off the meta device makes new parameters without the mark.
    """
    for parameter in parameters:
        if parameter is not None:
            setattr(parameter, "no_weight_decay", True)  # noqa: B010
