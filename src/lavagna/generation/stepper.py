"""Steps of a model that follow one another, each by the quickest way that gives the model's own numbers."""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lavagna.generation.captured import Captured, capture
from lavagna.models import LanguageModel
from lavagna.state import ModelState


class Stepper:
    """The model, a step at a time from a state on: a captured step where one pays, else the model's own call.

    The first step is the model's own, which says what is wrong with ids and state; the second is captured where about
    `steps` of them are to come, on a CPU and for up to four rows. `watch` looks before each step whether the weights
    have changed, for callers who let other code run between steps, and then captures anew, as where caches are full.
    """

    def __init__(self, model: LanguageModel, state: ModelState, steps: int, *, watch: bool = False) -> None:
        self._model, self._state, self._left, self._watch = model, state, steps, watch
        self._captured: Captured | None = None
        self._begun, self._capturable = False, True

    def __call__(self, ids: Int[Tensor, "b 1"], mask: Bool[Tensor, "b 1"] | None = None) -> Float[Tensor, "b 1 rows"]:
        """Logits of the ids after these, which may lie in a buffer that the next step writes to."""
        self._left -= 1
        if self._captured is not None:
            if mask is None and self._captured.left and (not self._watch or self._captured.current):
                return self._captured(ids)
            self._state, self._captured = self._captured.state, None
        if self._begun and self._capturable and mask is None:
            self._captured = capture(self._model, ids, self._state, self._left + 1)
            self._capturable = self._captured is not None
            if self._captured is not None:
                return self._captured.logits
        logits, self._state = self._model(ids, self._state, mask=mask)
        self._begun = True
        return logits

    @property
    def state(self) -> ModelState:
        """The state after the last step."""
        return self._state if self._captured is None else self._captured.state
