"""The short form of `bench/soak.py`: the real bot is killed under load, and the record, the effects and QQ agree."""

import asyncio
from pathlib import Path

from bench.soak import Soak


def test_nothing_is_lost_and_nothing_happens_twice_when_the_plug_is_pulled(tmp_path: Path) -> None:
    soak = Soak(tmp_path, kills=3, chats=8, seed=7)

    asyncio.run(soak.run())

    assert soak.faults() == []
    figures = soak.figures()
    assert figures["kills with SIGKILL"] == 3
    assert figures["effects that must not repeat"] > 50, "there was something to judge"
