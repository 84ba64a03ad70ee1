"""Whom the bot listens to in a group without being mentioned again: who has just called it, and who sends a picture."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from kernel.ports import Clock
from kernel.source import Inbound, SceneKind, Source

PATIENCE = 60.0
"""Seconds that a bare mention waits for the sender's next line."""

REMEMBERED = 1000
"""Bare mentions that are remembered, the newest."""


class Attention:
    """Owns the bare mentions that wait for their words."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._called: OrderedDict[Source, float] = OrderedDict()

    def hear(self, inbound: Inbound, running: Iterable[Source]) -> Inbound | None:
        """The message as one to the bot, or None for a line to nobody.

        `running` are the sources of the turns in progress: a late picture of one of them belongs to his question.
        """
        source = inbound.source
        called = self._called.pop(source, None)
        if inbound.addressed:
            if source.scene.kind is SceneKind.GROUP and not inbound.has_words and not inbound.has_picture:
                self._remember(source)
            return inbound
        follows = called is not None and self._clock.monotonic() - called <= PATIENCE
        late = inbound.has_picture and not inbound.has_words and source in running
        return replace(inbound, addressed=True) if follows or late else None

    def _remember(self, source: Source) -> None:
        self._called[source] = self._clock.monotonic()
        if len(self._called) > REMEMBERED:
            self._called.popitem(last=False)
