"""The ways out, without a platform: where "here" is, what was sent already, what an argument may be."""

from typing import Any

import pytest
from tests.parts import message

from kernel.conversation import Denied, Exchange, Failed, Ok, Outcome, Step, ToolCall, Turn, Unconfirmed
from kernel.executor import same_scene
from kernel.fence import Fence
from kernel.output import Output, already_sent
from kernel.source import Scene, SceneKind, conversation_of
from kernel.stages import Stages
from kernel.testkit import FakeClock, RecordingChannel

GROUP = Scene(SceneKind.GROUP, "10001")
PRIVATE = Scene(SceneKind.PRIVATE, "20002")
TEMP = Scene(SceneKind.TEMP, "20002")


@pytest.mark.parametrize(
    ("target", "scene", "named", "here"),
    [
        ("group:10001", GROUP, "to", True),
        ("10001", GROUP, "to", True),
        (" 010001 ", GROUP, "group_id", True),
        ("0", GROUP, "to", False),
        ("group:10002", GROUP, "to", False),
        ("private:10001", GROUP, "to", False),
        ("10001", GROUP, "user_id", False),
        ("10001", Scene(SceneKind.PRIVATE, "10001"), "group_id", False),
        ("20002", PRIVATE, "user_id", True),
        ("private:20002", TEMP, "to", True),
        ("group:20002", TEMP, "to", False),
        ("9" * 5000, GROUP, "to", False),
        ("0" * 5000 + "10001", GROUP, "to", True),
        ("１０００１", GROUP, "to", False),
        ("²", GROUP, "to", False),
        ("group:group:10001", GROUP, "to", False),
        ("a", Scene(SceneKind.GROUP, "a"), "to", True),
    ],
)
def test_where_here_is(target: str, scene: Scene, named: str, here: bool) -> None:
    """By kind and number; a bare id is of the kind that its argument's name says; what cannot be read is elsewhere."""
    assert same_scene(target, scene, named) is here


@pytest.mark.parametrize(
    ("outcome", "arguments", "sent"),
    [
        (Ok("sent"), {"text": "only  once\n"}, True),
        (Ok("sent"), {"text": "only once", "to": "group:10001"}, True),
        (Ok("sent"), {"text": "only once", "to": "group:10002"}, False),
        (Ok("sent"), {"text": "only once more"}, False),
        (Unconfirmed("no answer"), {"text": "only once"}, True),
        (Denied("rule", "no"), {"text": "only once"}, False),
        (Failed("muted"), {"text": "only once"}, False),
    ],
)
def test_what_a_tool_sent_here_is_not_sent_again(outcome: Outcome, arguments: dict[str, Any], sent: bool) -> None:
    """White space aside; here is here whether it was named or not; what may have arrived counts as sent."""
    exchange = Exchange(ToolCall("c1", "output_send__test", "{}", arguments))
    exchange.settle(outcome)
    inbound = message("go", chat="10001")
    turn = Turn(
        "t1", conversation_of(inbound.source), inbound.source, (inbound,), 0.0, steps=(Step(1, "", (exchange,)),)
    )
    assert already_sent(turn, "only once") is sent


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"text": "x"}, True),
        ({"text": ""}, False),
        ({"text": "x", "to": "group:10001"}, True),
        ({"text": "x", "to": ""}, True),
        ({"text": "x", "to": "group:010001"}, False),
        ({"text": "x", "to": "group:１"}, False),
        ({"text": "x", "to": "group:1\n"}, False),
        ({"text": "x", "to": "temp:1"}, False),
        ({"text": "x", "at": ["20002"]}, True),
        ({"text": "x", "at": ["all"]}, False),
        ({"text": "x", "at": ["0"]}, False),
        ({"text": "x", "reply_to": "-2147483648"}, True),
        ({"text": "x", "reply_to": "1] [CQ:at,qq=all"}, False),
        ({"text": "x", "reply_to": "１"}, False),
        ({"text": "x", "more": 1}, False),
    ],
)
def test_what_a_send_takes(arguments: dict[str, Any], fits: bool) -> None:
    """Ids are ASCII digits that no leading zero hides; `all` is another power than mentioning one person."""
    clock = FakeClock()
    stages = Stages(Fence(clock), 5, fault=lambda fault: None, resting=lambda plugin: "")
    output = Output(stages, clock, lambda: "")
    send, _ = output.tools(RecordingChannel(), "test")
    try:
        send.validate(arguments)
    except ValueError:
        assert not fits
    else:
        assert fits
