"""Where a layer stands among the layers of its model: what RWKV starts from depends on it."""

from typing import NamedTuple

from lavagna.modules.options import whole


class Place(NamedTuple):
    """The layer `index`, counted from 0, of a model of `depth` layers."""

    index: int
    depth: int

    @property
    def rising(self) -> float:
        """0 at the first layer, 1 at the last; 0 where there is only one."""
        return self.index / max(self.depth - 1, 1)

    @property
    def falling(self) -> float:
        """1 at the first layer, 1 / depth at the last."""
        return 1 - self.index / self.depth


def place_of(call: str, layer_index: int, depth: int | None) -> Place:
    """The place that the options `layer_index` and `depth` name; without a depth the layer is the last.

    Raises ValueError where they are no whole numbers with 0 <= layer_index < depth.

    >>> place_of("layer", 0, None).falling, place_of("layer", 3, 4).falling
    (1.0, 0.25)
    """
    if not isinstance(layer_index, int) or isinstance(layer_index, bool) or layer_index < 0:
        raise ValueError(f"{call}: layer_index must be an int >= 0, but came as {layer_index!r}.")
    place = Place(layer_index, layer_index + 1 if depth is None else depth)
    whole(call, "depth", place.depth)
    if place.index >= place.depth:
        raise ValueError(f"{call}: layer_index must be below depth = {depth}, but came as {layer_index}.")
    return place
