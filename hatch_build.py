"""Compile the CPU kernels while the package is built; where that can't be, install without them and say so."""

import importlib.util
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).parent / "src" / "lavagna" / "kernels" / "cpu" / "build.py"


class KernelsHook(BuildHookInterface):
    """Puts the compiled libraries beside their sources, for a wheel and for an editable installation."""

    def initialize(self, version: str, build_data: dict) -> None:
        """Build the kernels, and make the wheel one of this platform if they are in it."""
        # By its path: importing it as part of the package would need torch, which need not be there yet.
        spec = importlib.util.spec_from_file_location("lavagna_build", BUILD)
        assert spec is not None and spec.loader is not None
        kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(kernels)
        try:
            kernels.build()
        except kernels.BuildError as error:
            self.app.display_warning(f"lavagna: installing without the CPU kernels, torch's forms serve: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = _tag()


def _tag() -> str:
    """Any Python 3 on this platform: the libraries use neither Python's interface nor torch's."""
    from packaging.tags import sys_tags

    return f"py3-none-{next(sys_tags()).platform}"
