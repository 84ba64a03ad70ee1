"""The ways out: a channel becomes two tools, and the final answer leaves by the same function."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from kernel.conversation import Cancelled, Ending, Exchange, Failed, Ok, Outcome, ToolCall, Turn, Unconfirmed
from kernel.errors import PluginFault
from kernel.executor import Run, same_scene
from kernel.ports import CallSettled, Channel, Clock, Delivery, NotSent, ReplyOpened, SendUnknown, Sent
from kernel.source import At, Part, Reply, Scene, SceneKind, Source, Text
from kernel.stages import Outgoing, Stages
from kernel.tools import NAME, Context, Risk, Tool, schema_of

LONGEST_NAME = 46
"""Of a channel: `output_send__NAME_help` must still be a tool's name of at most 64."""


class Output:
    """Owns the channels by name; the platform of a source is the name of its channel."""

    def __init__(self, stages: Stages, clock: Clock, mint: Callable[[], str]) -> None:
        self._stages = stages
        self._clock = clock
        self._mint = mint
        self._channels: dict[str, Channel] = {}

    def add(self, channel: Channel) -> Callable[[], None]:
        """Raises PluginFault for a bad or doubled name; the result takes the channel out again."""
        if len(channel.name) > LONGEST_NAME or not NAME.fullmatch(channel.name):
            raise PluginFault(f"channel name {channel.name!r} must match [A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
        if channel.name in self._channels:
            raise PluginFault(f"channel {channel.name!r} exists already")
        self._channels[channel.name] = channel

        def undo() -> None:
            self._channels.pop(channel.name, None)

        return undo

    async def send(self, channel: str, account: str, scene: Scene, parts: Sequence[Part]) -> Outcome:
        """The one function by which anything leaves. A receipt says no more than that it was sent."""
        way = self._channels.get(channel)
        if way is None:
            return Failed(f"no channel {channel!r} is connected")
        return outcome_of(await way.send(account, scene, parts))

    async def say(self, source: Source, text: str) -> Outcome:
        """A kernel's own reply (`/status`) to where the source stands."""
        return await self.send(source.platform, source.account, source.scene, (Text(text),))

    async def reply(self, run: Run, text: str) -> Ending:
        """Send the final text, with its intent on disk before and its delivery after; not what a tool already sent.

        Raises LedgerFault before anything is sent.
        """
        seen = await self._stages.before_output(Outgoing(run.turn.source, text))
        if not seen.text.strip():
            return Ending.SILENT
        if already_sent(run.turn, seen.text):
            return Ending.ANSWERED
        exchange = Exchange(ToolCall(self._mint(), "reply", seen.text, {"text": seen.text}))
        run.turn = replace(run.turn, reply=exchange)
        outcome: Outcome = Cancelled(run.claim.cancelled or "the turn ended")
        try:
            await run.claim.commit(ReplyOpened(run.turn.id, exchange, self._clock.now()))
            run.claim.check()
            outcome = Cancelled(run.claim.cancelled or "the turn ended", started=True)
            outcome = await self.say(run.turn.source, seen.text)
        finally:
            exchange.settle(outcome)
            run.claim.commit(CallSettled(exchange, self._clock.now()))
        return Ending.ANSWERED if isinstance(outcome, Ok | Unconfirmed) else Ending.FAILED

    def tools(self, channel: Channel, plugin: str) -> tuple[Tool, Tool]:
        """`output_send__NAME` takes just the parts that the channel carries; `…_help` tells the format."""
        name = f"output_send__{channel.name}"
        send = Tool(
            name=name,
            plugin=plugin,
            description=(
                f"Send one message through {channel.name}, by default to the chat you are in. Your final answer is "
                f"sent there anyway: use this only for further messages. {name}_help tells the format."
            ),
            parameters={},
            function=partial(self._tool_send, channel.name),
            arguments=_arguments(channel.carries),
            context_name="context",
            risk=Risk.SEND,
            parallel=True,
            target="to",
            lane=name,
        )
        describe = Tool(
            name=f"{name}_help",
            plugin=plugin,
            description=f"Tell what {name} can send and how.",
            parameters={},
            function=partial(_help, channel),
            arguments=create_model("nothing", __config__=ConfigDict(extra="forbid")),
            context_name=None,
            risk=Risk.READ,
            parallel=True,
            idempotent=True,
        )
        return _with_schema(send), _with_schema(describe)

    async def _tool_send(
        self, channel: str, context: Context, text: str, to: str = "", at: Sequence[str] = (), reply_to: str = ""
    ) -> Outcome:
        scene = scene_from(to) if to else context.source.scene
        parts: list[Part] = [Reply(reply_to)] if reply_to else []
        parts += [At(user) for user in at]
        return await self.send(channel, context.source.account, scene, (*parts, Text(text)))


async def _help(channel: Channel) -> str:
    return channel.help


def _arguments(carries: frozenset[str]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        "text": (str, Field(min_length=1, description="Plain text.")),
        "to": (
            str,
            Field(
                "", pattern=r"^((group|private):[1-9][0-9]{0,19})?$", description="Another chat: group:ID, private:ID."
            ),
        ),
    }
    if "at" in carries:
        # Digits only: `all` is another power than mentioning one person.
        user = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,19}$")]
        fields["at"] = (list[user], Field([], description="User ids to mention before the text."))
    if "reply" in carries:
        fields["reply_to"] = (
            str,
            Field("", pattern=r"^(-?[0-9]{1,20})?$", description="The id of a message to quote."),
        )
    return create_model("output_send", __config__=ConfigDict(extra="forbid"), **fields)


def _with_schema(tool: Tool) -> Tool:
    return replace(tool, parameters=schema_of(tool.arguments))


def scene_from(target: str) -> Scene:
    """`group:10001` as a scene. Raises ValueError."""
    kind, _, ident = target.partition(":")
    return Scene(SceneKind(kind), str(int(ident)))


def outcome_of(delivery: Delivery) -> Outcome:
    match delivery:
        case Sent():
            return Ok("sent")
        case NotSent(reason):
            return Failed(f"not sent: {reason}")
        case SendUnknown(reason):
            return Unconfirmed(reason)


def already_sent(turn: Turn, text: str) -> bool:
    """Whether a tool sent this very text to the chat that asked, in this turn (white space aside)."""
    wanted = "".join(text.split())
    scene = turn.source.scene
    for step in turn.steps:
        for exchange in step.exchanges:
            arguments = exchange.call.arguments or {}
            to = str(arguments.get("to") or scene)
            here = exchange.call.name.startswith("output_send__") and same_scene(to, scene)
            said = "".join(str(arguments.get("text", "")).split())
            if here and said == wanted and isinstance(exchange.outcome, Ok | Unconfirmed):
                return True
    return False
