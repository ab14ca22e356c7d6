"""How much memory a process took, for tests that hold a computation to a bound in a process of its own."""

import re
from pathlib import Path


def peak() -> int:
    """The most bytes that this process held at once; Linux only.

    Not getrusage's number, which begins at what the parent held: under a large parent nothing would ever be added.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])
