"""`python -m kernel.testkit.server`: the fake model in a process of its own, for benches and by hand."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from kernel.testkit.server import FakeModel


async def _serve(port: int, delay: float) -> None:
    async with FakeModel(port=port, delay=delay, record=False) as model:
        sys.stdout.write(f"{model.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m kernel.testkit.server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one; the address is printed")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    chosen = parser.parse_args(arguments)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(chosen.port, chosen.delay))


if __name__ == "__main__":
    main()
