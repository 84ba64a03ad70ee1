"""Values for the record's tests, written down in the order in which the kernel writes them."""

from dataclasses import replace

from kernel.conversation import Ending, Exchange, Ok, Outcome, Step, ToolCall, Turn, Usage
from kernel.ports import (
    Accepted,
    CallSettled,
    CallStarted,
    Item,
    Ledger,
    ReplyOpened,
    StepOpened,
    TurnClosed,
    TurnOpened,
)
from kernel.source import ConversationId, Inbound, Role, Scene, SceneKind, Source

CHAT = ConversationId("qq/1000/group/10001")
ALICE = Source("qq", "1000", Scene(SceneKind.GROUP, "10001"), "20002", Role.MEMBER, "小明")


def message(key: str, text: str = "今天天气怎么样？") -> Inbound:
    return Inbound(ALICE, key, text, arrived=1.5, message_id=key)


def item(key: str, chat: ConversationId = CHAT) -> Item:
    return Item(chat, key, message(key))


def turn(ident: str, *keys: str, chat: ConversationId = CHAT) -> Turn:
    """Just opened, with the messages of these keys."""
    return Turn(ident, chat, ALICE, tuple(message(key) for key in keys), opened=2.0)


def exchange(ident: str, name: str = "pin", outcome: Outcome | None = None) -> Exchange:
    """Settled when an outcome is given."""
    one = Exchange(ToolCall(ident, name, '{"a": 1}', {"a": 1}, f"wire {ident}"))
    if outcome is not None:
        one.settle(outcome)
    return one


def reply(ident: str, text: str = "晴") -> Exchange:
    return Exchange(ToolCall(ident, "reply", text, {"text": text}))


def step(number: int, *exchanges: Exchange, text: str = "") -> Step:
    return Step(number, text, exchanges, f"thought {number}", Usage(100 + number, 20, 3))


def record_turn(ledger: Ledger, ident: str, chat: ConversationId = CHAT) -> Turn:
    """A whole turn with one call and a reply; none of it is waited for. Its ids begin with `ident`."""
    key = f"{ident} key"
    now = turn(ident, key, chat=chat)
    ledger.append(Accepted(item(key, chat)))
    ledger.append(TurnOpened(now, (key,)))
    called, said = exchange(f"{ident} call"), reply(f"{ident} reply")
    now = replace(now, steps=(step(0, called), step(1, text="晴")), reply=said)
    ledger.append(StepOpened(ident, now.steps[0]))
    ledger.append(CallStarted(called.call.id, "floor", 3.0))
    called.settle(Ok("42"))
    ledger.append(CallSettled(called, 4.0))
    ledger.append(StepOpened(ident, now.steps[1]), ReplyOpened(ident, said, 5.0))
    said.settle(Ok("sent"))
    ledger.append(CallSettled(said, 6.0))
    now = replace(now.close(Ending.ANSWERED), weight=77)
    ledger.append(TurnClosed(now, 7.0))
    return now


Told = tuple[Turn, list[tuple[Step, list[object]]], object]


def told(one: Turn) -> Told:
    """Everything that a turn holds, so that two of them can be compared: exchanges have an identity, not a value."""
    steps = [(replace(step, exchanges=()), [_pair(done) for done in step.exchanges]) for step in one.steps]
    return replace(one, steps=(), reply=None), steps, one.reply and _pair(one.reply)


def _pair(done: Exchange) -> object:
    return done.call, done.outcome, done.text


def open_calls(one: Turn) -> list[str]:
    """The ids of the calls that have no result yet."""
    return [done.call.id for done in (*one.exchanges, *([one.reply] if one.reply else [])) if not done.settled]
