"""Settings that every test shares: shape checks, hypothesis profiles, the device, the seed."""

import doctest
import inspect
import os
import sys
import zlib
from collections import defaultdict

import hypothesis
import jaxtyping
import pytest
import torch

# Before lavagna is imported anywhere, so that every annotated tensor of the package is checked in tests and only there.
jaxtyping.install_import_hook("lavagna", "shapes.check")

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=500, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


class TorchRandom:
    """torch's generator as hypothesis wants it, so that each drawn example starts from the same seed and replays."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_RANDOM = TorchRandom()
hypothesis.register_random(TORCH_RANDOM)


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", help="device that the tests put their tensors on")


def pytest_configure(config):
    # Set by some terminals and for workers; what is printed must not depend on who runs the tests.
    os.environ.pop("COLUMNS", None)
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)


# Of the options of layers each test tries every third, another third than the next test; of what it tries them with,
# each layer meets so many combinations; and the shapes inside the package are checked in every so-manieth test, because
# that takes longer than most tests. The exhaustive run leaves nothing out.
OPTIONS, COMBINATIONS, CHECKED = 3, 2, 4
THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Thin out what is run over all layers; every architecture as it is built by default runs through every test."""
    from sample_layers import OPTIONAL

    tried = defaultdict(list)
    for item in items:
        chosen = item.callspec.params if hasattr(item, "callspec") else {}
        option = chosen.get("variant")
        if option in OPTIONAL and (OPTIONAL.index(option) + drawn(item.originalname)) % OPTIONS:
            item.add_marker(pytest.mark.exhaustive)
        sampled = item.get_closest_marker("sampled")
        if sampled and drawn(item.nodeid) % sampled.args[0]:
            item.add_marker(pytest.mark.exhaustive)
        for axis in ("variant", "layer"):
            if axis in chosen:
                tried[item.nodeid.partition("[")[0], str(chosen[axis])].append(item)
    for some in tried.values():
        for item in sorted(some, key=lambda item: drawn(item.nodeid))[COMBINATIONS:]:
            item.add_marker(pytest.mark.exhaustive)


def drawn(name: str) -> int:
    """A number that stands for a name, the same in every run."""
    return zlib.crc32(name.encode())


def pytest_runtest_setup(item):
    """Check shapes or not; leave out the kernels of a CPU where tensors lie elsewhere."""
    kernel = hasattr(item, "callspec") and item.callspec.params.get("backend") == "cpu"
    if kernel and torch.device(item.config.getoption("--device")).type != "cpu":
        pytest.skip("the cpu backend reads the memory of a CPU")
    jaxtyping.config.update("jaxtyping_disable", not THOROUGH and drawn(item.nodeid) % CHECKED != 0)


@pytest.fixture(scope="session")
def device(request) -> torch.device:
    """The device named by --device."""
    return torch.device(request.config.getoption("--device"))


# Those by which transformers computes where they are installed, some of them on a GPU alone.
KERNELS = ("mamba_ssm", "causal_conv1d", "fla", "kernels", "flash_attn", "xlstm", "mlstm_kernels")


@pytest.fixture(scope="session")
def transformers():
    """The package, as it computes where none of its faster kernels is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in KERNELS:
            # What Python takes for a package that is not there.
            patch.setitem(sys.modules, name, None)
        package = pytest.importorskip("transformers")
        package.logging.set_verbosity_error()
        package.logging.disable_progress_bar()
        yield package


@pytest.fixture(autouse=True)
def seed():
    """Every test starts from the same random numbers, whatever ran before it."""
    torch.manual_seed(0)


# The checks above wrap each function, and doctest leaves out what was defined elsewhere: look under the wrapper.
_from_module = doctest.DocTestFinder._from_module
doctest.DocTestFinder._from_module = lambda self, module, found: _from_module(self, module, inspect.unwrap(found))
