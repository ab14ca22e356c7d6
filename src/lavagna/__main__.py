"""`python -m lavagna` is the command `lavagna`."""

import sys

from lavagna.cli import main

if __name__ == "__main__":
    sys.exit(main())
