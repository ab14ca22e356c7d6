"""Where a layer stands."""

import pytest

from lavagna.modules.place import Place, place_of


def test_ratios_run_from_the_first_layer_to_the_last():
    places = [Place(index, 5) for index in range(5)]
    assert [place.rising for place in places] == [0, 0.25, 0.5, 0.75, 1]
    assert [round(place.falling, 9) for place in places] == [1, 0.8, 0.6, 0.4, 0.2]


def test_a_model_of_one_layer_divides_by_nothing():
    assert place_of("rwkv", 0, 1) == place_of("rwkv", 0, None) == Place(0, 1)
    assert Place(0, 1).rising == 0 and Place(0, 1).falling == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((2, 2), "layer_index must be below depth = 2, but came as 2"),
        ((0, 0), "depth must be an int >= 1"),
        ((-1, 2), "layer_index must be an int >= 0, but came as -1"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        place_of("rwkv", *given)
