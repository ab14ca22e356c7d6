"""Every answer held to the definition: the recurrence, one step at a time, in float64.

Transitions are held to the dense matrices of the algebra, layers and models to their own steps in float64.
"""

from lavagna.checks.layers import layer_rows
from lavagna.checks.models import model_rows
from lavagna.checks.row import Row
from lavagna.checks.transitions import TRANSITIONS, transition_rows

__all__ = ["TRANSITIONS", "Row", "layer_rows", "model_rows", "transition_rows"]
