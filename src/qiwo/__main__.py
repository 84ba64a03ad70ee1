"""The command line: `qiwo` and `python -m qiwo`."""

import sys


def main() -> None:
    """Nothing to run yet: the bot starts with `uv run bot.py`; the commands come with what they are about."""
    sys.exit("Qiwo: start the bot with `uv run bot.py`.")


if __name__ == "__main__":
    main()
