"""ScriptedModel, RecordingChannel and Log: the fakes that live in the test's own process."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from kernel.conversation import Ending, Exchange, Ok, Step, ToolCall, Turn
from kernel.errors import FaultKind, ModelFault
from kernel.ports import Channel, Chunk, Model, NotSent, Reply, Request, Sent
from kernel.source import At, ConversationId, Inbound, Role, Scene, SceneKind, Source, Text
from kernel.testkit import BrokenRequest, Log, RecordingChannel, ScriptedModel, calling, settle
from kernel.tools import Risk, tool_from

SCENE = Scene(SceneKind.GROUP, "20001")
SOURCE = Source("qq", "10000", SCENE, "10001", Role.MEMBER)


def turn_of(ident: str, *steps: Step, ending: Ending | None = None) -> Turn:
    inbound = Inbound(SOURCE, ident, f"question {ident}", 0.0)
    return Turn(ident, ConversationId("qq/10000/group/20001"), SOURCE, (inbound,), 0.0, False, steps, ending=ending)


def exchange_of(ident: str, *, settled: bool = True) -> Exchange:
    exchange = Exchange(ToolCall(ident, "time_now", "{}", {}))
    if settled:
        exchange.settle(Ok("noon"))
    return exchange


async def asked(model: Model, request: Request) -> list[Chunk | Reply]:
    return [piece async for piece in model.ask(request)]


# -- ScriptedModel -------------------------------------------------------------------------------------------

HELLO = Request("be kind", (turn_of("t1"),))


def test_the_script_is_said_in_order_and_every_request_is_kept() -> None:
    """Text streams first, then the whole reply; calls come parsed; what was asked is on record."""

    async def story() -> None:
        model = ScriptedModel(Reply("hi"), calling(("time_now", {"zone": "UTC"}), ("x", '{"half'), text="wait"))
        model.then(lambda request: Reply(request.system))
        assert await asked(model, HELLO) == [Chunk("hi"), Reply("hi")]
        chunk, reply = await asked(model, HELLO)
        assert chunk == Chunk("wait")
        assert isinstance(reply, Reply)
        assert reply.finish == "tool_calls"
        assert [(call.name, call.raw, call.arguments) for call in reply.calls] == [
            ("time_now", '{"zone": "UTC"}', {"zone": "UTC"}),
            ("x", '{"half', None),
        ]
        assert await asked(model, HELLO) == [Chunk("be kind"), Reply("be kind")]
        assert model.requests == [HELLO] * 3

    asyncio.run(story())


@pytest.mark.parametrize(("raw", "arguments"), [('{"a": 1}', {"a": 1}), ("[1]", None), ("", None)])
def test_raw_arguments_are_read_as_an_adapter_reads_them(raw: str, arguments: object) -> None:
    """Only a JSON object is arguments."""
    assert calling(("x", raw)).calls[0].arguments == arguments


def test_a_fault_is_raised_and_a_gate_holds_what_follows() -> None:
    """A ModelFault in the script is raised; an Event holds the next answer until it is set."""

    async def story() -> None:
        gate = asyncio.Event()
        model = ScriptedModel(ModelFault(FaultKind.SERVER, "down"), gate, Reply("at last"))
        with pytest.raises(ModelFault, match="down"):
            await asked(model, HELLO)
        held = asyncio.create_task(asked(model, HELLO))
        await model.requests.take(2)
        await settle()
        assert not held.done()
        gate.set()
        assert (await held)[-1] == Reply("at last")

    asyncio.run(story())


def test_an_empty_script_is_a_failure_and_not_a_silence() -> None:
    """A request that nobody foresaw fails with the question in its words."""
    with pytest.raises(BrokenRequest, match="question t1"):
        asyncio.run(asked(ScriptedModel(), HELLO))


def test_a_sound_history_is_answered() -> None:
    """Closed turns whose calls all have results, then the question: nothing to object to."""
    done = turn_of("t1", Step(0, "", (exchange_of("a"), exchange_of("b"))), Step(1, "so"), ending=Ending.ANSWERED)
    request = Request("", (done, turn_of("t2", Step(0, "", (exchange_of("c"),)))))
    assert asyncio.run(asked(ScriptedModel(Reply("fine")), request))[-1] == Reply("fine")


def _tool(name: str) -> Callable[[], str]:
    def function() -> str:
        """Do something."""
        return name

    return function


TOOL = tool_from(_tool("x"), plugin="p", name="x", risk=Risk.READ)
OPEN = Step(0, "", (exchange_of("a", settled=False),))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("", ()), "no current question"),
        (Request("", (replace(turn_of("t1"), inbounds=()),)), "no current question"),
        (Request("", (turn_of("t1", OPEN),)), r"call a \(time_now\) of turn t1 has no result"),
        (Request("", (turn_of("t1", OPEN, ending=Ending.ANSWERED), turn_of("t2"))), "has no result"),
        (Request("", (turn_of("t1"), turn_of("t2"))), "t1 is in the history and still open"),
        (Request("", (turn_of("t1", ending=Ending.ANSWERED), turn_of("t1"))), "turn t1 stands there 2 times"),
        (Request("", (turn_of("t1", Step(0, "", (exchange_of("a"), exchange_of("a")))),)), "call a stands there 2"),
        (Request("", (turn_of("t1", Step(1, "", (exchange_of("a"),))),)), "t1 is not whole"),
        (Request("", (turn_of("t1", Step(0, "", (exchange_of("a" * 65),))),)), "no length that servers take"),
        (Request("", (turn_of("t1", Step(0, "", (exchange_of(""),))),)), "no length that servers take"),
        (Request("", (turn_of("t1"),), (TOOL, TOOL)), "tool x stands there 2 times"),
        (Request("", (turn_of("t1"),), (replace(TOOL, name="发送"),)), "would make a server refuse"),
    ],
)
def test_a_broken_request_is_refused(request_: Request, words: str) -> None:
    """What a real server would answer 400 to, or a reader could not trust, never passes in silence."""
    with pytest.raises(BrokenRequest, match=words):
        asyncio.run(asked(ScriptedModel(Reply("never said")), request_))


def test_closing_is_noted() -> None:
    """A test can see that the kernel closed its model."""
    model = ScriptedModel()
    asyncio.run(model.close())
    assert model.closed


# -- RecordingChannel ----------------------------------------------------------------------------------------


def test_the_channel_remembers_and_delivers_as_scripted() -> None:
    """What was posted is kept with its text; deliveries come from the script, then one receipt after another."""

    async def story() -> None:
        channel = RecordingChannel(NotSent("muted"))
        port: Channel = channel
        assert await port.send("10000", SCENE, [At("10001"), Text("a"), Text("b")]) == NotSent("muted")
        assert await port.send("10000", SCENE, [Text("c")]) == Sent("2")
        assert [(posted.account, str(posted.scene), posted.text) for posted in channel.posted] == [
            ("10000", "group:20001", "ab"),
            ("10000", "group:20001", "c"),
        ]

    asyncio.run(story())


def test_an_event_holds_a_send_that_is_already_on_record() -> None:
    """While the gate is shut the message is posted and its delivery open."""

    async def story() -> None:
        gate = asyncio.Event()
        channel = RecordingChannel(gate, NotSent("late"))
        sending = asyncio.create_task(channel.send("10000", SCENE, [Text("x")]))
        await channel.posted.take()
        await settle()
        assert not sending.done()
        gate.set()
        assert await sending == NotSent("late")

    asyncio.run(story())


# -- Log -----------------------------------------------------------------------------------------------------


def test_each_entry_is_taken_once() -> None:
    """Two waits never see the same entry, the filter included, and the list itself keeps all."""

    async def story() -> None:
        log: Log[int] = Log()
        for number in (1, 2, 3, 4):
            log.append(number)
        assert await log.take(1, lambda number: number % 2 == 0) == [2]
        assert await log.take(3) == [1, 3, 4]
        assert log == [1, 2, 3, 4]
        with pytest.raises(TimeoutError, match=r"1 new ones wanted within 0 s, 0 came; all there is: \[1, 2, 3, 4\]"):
            await log.take(timeout=0)

    asyncio.run(story())


def test_a_waiter_is_woken_by_what_comes() -> None:
    """A take that came first gets what comes later, as soon as there is enough."""

    async def story() -> None:
        log: Log[str] = Log()
        waiting = asyncio.create_task(log.take(2))
        await settle()
        log.append("a")
        await settle()
        assert not waiting.done()
        log.append("b")
        assert await waiting == ["a", "b"]

    asyncio.run(story())
