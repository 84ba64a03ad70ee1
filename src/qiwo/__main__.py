"""`qiwo` and `python -m qiwo`."""

import sys

from qiwo.cli import run


def main() -> None:
    """Run the command that the arguments name."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
