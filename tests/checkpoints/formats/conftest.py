"""What the tests of formats share: transformers without its optional kernels."""

import sys

import pytest

KERNELS = ("mamba_ssm", "causal_conv1d", "fla", "kernels", "mambapy", "flash_attn", "xlstm", "mlstm_kernels")


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
