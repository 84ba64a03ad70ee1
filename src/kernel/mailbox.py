"""What a drain takes next out of a mailbox: pure functions over what waits there, in order of arrival."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from kernel.ports import Event, Item
from kernel.source import Inbound, SceneKind, Source, Urgency

PER_USER = 10
"""Messages of one user that may wait in a chat; what is more is dropped, and said."""

PER_CHAT = 60
"""Messages that may wait in a chat."""

CAP = 6.0
"""Seconds that a sender's first message may wait for his further words."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait for more words of the same sender, in seconds after his last message.

    In a group a text is answered at once, but a bare mention or a picture is likely to be followed by words. `cap` is
    the longest that his first message waits. All 0: nothing is merged, and no message joins a running turn.
    """

    private: float = 1.5
    group: float = 0.0
    wordless: float = 3.0
    cap: float = CAP

    @classmethod
    def all(cls, seconds: float) -> "Waits":
        """One number for every kind of message."""
        return cls(seconds, seconds, seconds, max(CAP, seconds))

    @property
    def off(self) -> bool:
        return not (self.private or self.group or self.wordless)

    def after(self, inbound: Inbound) -> float:
        if inbound.source.scene.kind is not SceneKind.GROUP:
            return self.private
        return self.group if inbound.has_words else self.wordless


@dataclass(frozen=True, slots=True)
class Take:
    """Make these one turn, or carry this one thing out."""

    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Take `items` if nothing comes within so many seconds."""

    items: tuple[Item, ...]
    seconds: float


def urgency_of(event: Event) -> Urgency:
    """A reset goes before everything that waits, and so does a turn that was begun already."""
    return event.urgency if isinstance(event, Inbound) else Urgency.KERNEL


def next_of(items: Sequence[Item], now: float, waits: Waits, waited: float = 0.0, typed: float = 0.0) -> Take | Wait:
    """What the next turn is made of: the most urgent item, the earliest of its kind, with what its sender added.

    `items` are not empty. `now` and `typed`, when the sender was last seen typing, are wall seconds; `waited` is how
    long this has been put off already. A wall clock that jumps cannot make anything wait longer than the cap.
    """
    first = max(items, key=lambda item: urgency_of(item.event))
    batch = _adjacent(items, first) if not waits.off else (first,)
    last = batch[-1].event
    if not isinstance(last, Inbound) or items[-1] is not batch[-1]:
        return Take(batch)  # somebody else has spoken since: what comes now is no longer part of it
    window = waits.after(last)
    quiet = min(max(now - max(last.arrived, typed), 0.0), window)
    seconds = min(window - quiet, waits.cap - waited)
    return Wait(batch, seconds) if seconds > 0 else Take(batch)


def steering(items: Sequence[Item], source: Source) -> tuple[Item, ...]:
    """What may join a running turn of this source: his own messages, as long as nobody else's stands before them."""
    return tuple(takewhile(lambda item: _said_by(item, source), items))


def overflow(items: Sequence[Item], spare: Collection[str] = ()) -> tuple[Item, ...]:
    """What has to go because too much waits: a user's newest beyond his share, then the oldest background, then the
    newest of all. Keys in `spare` are being worked on: they count, and stay."""
    dropped: list[Item] = []
    kept: list[Item] = []
    shares: Counter[tuple[str, bool]] = Counter()
    for item in items:
        share = (item.event.source.user, isinstance(item.event, Inbound))
        shares[share] += 1
        over = isinstance(item.event, Inbound) and shares[share] > PER_USER and item.key not in spare
        (dropped if over else kept).append(item)
    loose = [item for item in kept if isinstance(item.event, Inbound) and item.key not in spare]
    background = [item for item in loose if urgency_of(item.event) is Urgency.BACKGROUND]
    people = [item for item in reversed(loose) if item not in background]
    return (*dropped, *(*background, *people)[: max(len(kept) - PER_CHAT, 0)])


def _adjacent(items: Sequence[Item], first: Item) -> tuple[Item, ...]:
    if not isinstance(first.event, Inbound):
        return (first,)
    return steering(items[items.index(first) :], first.event.source)


def _said_by(item: Item, source: Source) -> bool:
    return isinstance(item.event, Inbound) and item.event.source == source
