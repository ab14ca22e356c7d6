"""Where it is fast: compiled kernels behind the signature of forms. A missing one is never a missing feature."""

from lavagna.kernels.table import Kernel, describe, find, find_fused, missing, serves

__all__ = ["Kernel", "describe", "find", "find_fused", "missing", "serves"]
