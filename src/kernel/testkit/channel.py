"""A way out that leads nowhere and remembers everything."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kernel.ports import Delivery, Sent
from kernel.source import Part, Scene, Text
from kernel.testkit.log import Log


@dataclass(frozen=True, slots=True)
class Posted:
    """One message that was handed to a RecordingChannel."""

    account: str
    scene: Scene
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Text))


class RecordingChannel:
    """`kernel.ports.Channel`: delivers what the script says, then `Sent("1")`, `Sent("2")`, …

    An Event in the script holds the next send until it is set.
    """

    name = "test"
    carries = frozenset({"text", "at", "reply"})
    help = "Sends nowhere."

    def __init__(self, *script: Delivery | asyncio.Event) -> None:
        self.posted: Log[Posted] = Log()
        self._script = deque(script)

    async def send(self, account: str, scene: Scene, parts: Sequence[Part]) -> Delivery:
        self.posted.append(Posted(account, scene, tuple(parts)))
        receipt = str(len(self.posted))
        while self._script:
            step = self._script.popleft()
            if not isinstance(step, asyncio.Event):
                return step
            await step.wait()
        return Sent(receipt)
