"""Which turns of a transcript go into a request: whole ones, the newest first, the current one always."""

from collections.abc import Sequence

from kernel.conversation import Turn

MAX_TURNS = 40
"""However short they are: so that the cost of a reply does not grow with the chat."""


def weigh(turn: Turn) -> int:
    """Estimate a turn in tokens: three bytes of UTF-8 are about one token in any script."""
    size = _bytes(turn.question)
    for step in turn.steps:
        size += _bytes(step.text)
        for exchange in step.exchanges:
            call = exchange.call
            size += _bytes(call.name) + _bytes(call.raw) + _bytes(exchange.text) + 40
    if turn.reply is not None:
        size += _bytes(turn.reply.call.raw)
    return size // 3 + 20


def _bytes(text: str) -> int:
    return len(text.encode(errors="replace"))  # half a surrogate pair has no bytes, and is no reason to fail here


def fit(turns: Sequence[Turn], current: Turn, budget: int) -> tuple[Turn, ...]:
    """The newest closed turns that fit into `budget` tokens beside the current turn, which is never left out.

    A cut stands between turns, so no call is parted from its result. This is a view: the record keeps everything.
    """
    left = budget - weigh(current)
    kept: list[Turn] = []
    for turn in reversed(turns[-MAX_TURNS:]):
        left -= turn.weight
        if left < 0:
            break
        kept.append(turn)
    return (*reversed(kept), current)
