"""The commands about the record: `qiwo export`, `qiwo backup`, `qiwo restore`."""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernel.adapters.embedded.backup import RECORD, back_up, restore
from kernel.adapters.embedded.clock import SystemClock
from kernel.adapters.embedded.export import export
from kernel.errors import KernelError
from kernel.settings import Settings


def run(arguments: Sequence[str]) -> int:
    """The exit status: 0, or 1 with one sentence on stderr; 2 for a command that does not exist."""
    asked = parser().parse_args(arguments)
    try:
        data = Settings.load(os.environ, Path.cwd()).data_dir
        match asked.command:
            case "export":
                _export(data, asked.chat, asked.out)
            case "backup":
                to = asked.file or Path(f"qiwo-{_stamp()}.tar.gz")
                back_up(data, to, with_secrets=asked.secrets)
                print(f"{to}: {data}, " + ("with" if asked.secrets else "without") + " its secrets")
            case _:
                aside = restore(data, asked.file)
                print(f"{data} is restored" + (f"; what was there is in {aside}" if aside else ""))
    except KernelError as error:
        print(f"qiwo: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `qiwo export | head` has read enough
        sys.stdout = None  # or its last flush would complain
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="qiwo", description="The bot itself starts with `uv run bot.py`.")
    commands = whole.add_subparsers(dest="command", required=True)
    one = commands.add_parser("export", help="the record as JSON lines, one a turn; the bot may run")
    one.add_argument("--chat", default="", help="only this one, such as qq/1000/group/10001")
    one.add_argument("--out", type=Path, help="a new file; without it, stdout")
    one = commands.add_parser("backup", help="the data folder as one archive; the bot may run")
    one.add_argument("--secrets", action="store_true", help="with the tokens that were made for you")
    one.add_argument("file", type=Path, nargs="?", help="a new .tar.gz; without it, one named after the time")
    one = commands.add_parser("restore", help="put a backup back; the bot must not run")
    one.add_argument("file", type=Path, help="what `qiwo backup` wrote")
    return whole


def _export(data: Path, chat: str, out: Path | None) -> None:
    lines = export(data / RECORD, chat)
    if out is None:
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]  # whatever the terminal's own is
        for line in lines:
            print(line)
        return
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise KernelError(f"{out} cannot be written ({error.strerror}): choose another file") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except (KernelError, OSError):
        out.unlink()  # half of it would look like the whole
        raise
    print(f"{out} is written")


def _stamp() -> str:
    return datetime.fromtimestamp(SystemClock().now(), UTC).strftime("%Y%m%d-%H%M%S")
