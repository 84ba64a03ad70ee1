"""A kernel in this process for tests: fake clock, scripted model, recording channel, the record in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel.adapters.embedded.memory import MemoryLedger
from kernel.app import Kernel
from kernel.chats import Chats
from kernel.plugin import Plugin
from kernel.ports import Channel, Model
from kernel.settings import Settings
from kernel.source import Inbound, Role, Scene, SceneKind, Source
from kernel.testkit import FakeClock, RecordingChannel

NOWHERE = Path("/nonexistent")


@dataclass(frozen=True, slots=True)
class Parts:
    """A started kernel and everything around it."""

    kernel: Kernel
    clock: FakeClock
    model: Model
    channel: RecordingChannel
    ledger: MemoryLedger


async def started(
    model: Model,
    *plugins: Plugin,
    channel: RecordingChannel | None = None,
    ledger: MemoryLedger | None = None,
    chats: Chats | None = None,
    **settings: object,
) -> Parts:
    """Start a kernel with these plugins' tools and hooks; the channel's name is `test`; nothing is merged."""
    clock, ledger, channel = FakeClock(), ledger or MemoryLedger(), channel or RecordingChannel()
    values = {"data_dir": NOWHERE, "merge_window": 0, **settings}
    kernel = Kernel(
        Settings.model_validate(values),
        clock=clock,
        model=model,
        ledger=ledger,
        plugins=NOWHERE,
        chats=chats,
        tick=3600.0,
    )
    await kernel.start()
    add_channel(kernel, channel)
    for plugin in plugins:
        add_plugin(kernel, plugin)
    return Parts(kernel, clock, model, channel, ledger)


def add_channel(kernel: Kernel, channel: Channel) -> None:
    graph = kernel.graph
    graph.output.add(channel)
    for tool in graph.output.tools(channel, "test"):
        graph.toolbox.add(tool)
    graph.health.register("test", [tool.name for tool in graph.toolbox])


def add_plugin(kernel: Kernel, plugin: Plugin) -> None:
    graph = kernel.graph
    for tool in plugin.tools:
        graph.toolbox.add(tool)
    for hook in plugin.hooks:
        graph.stages.add(hook)
    graph.health.register(plugin.name, [tool.name for tool in plugin.tools])


def message(
    text: str,
    *,
    user: str = "20002",
    role: Role = Role.FRIEND,
    key: str = "",
    chat: str = "",
    kind: str = "private",
) -> Inbound:
    """A message to the bot; in a group when `chat` is given."""
    scene = Scene(SceneKind.GROUP, chat) if chat else Scene(SceneKind(kind), user)
    source = Source("test", "1000", scene, user, role, f"user {user}")
    return Inbound(source, key or f"key of {text}", text, arrived=0.0, message_id=text)


def texts(channel: RecordingChannel) -> Sequence[str]:
    return [posted.text for posted in channel.posted]
