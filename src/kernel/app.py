"""The kernel: builds the whole graph once and holds all shared state. Nothing lives at module level."""

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from kernel import commands, words
from kernel.adapters.embedded.blobs import FileBlobs
from kernel.adapters.embedded.clock import SystemClock
from kernel.adapters.embedded.dispatch import EmbeddedDispatch
from kernel.adapters.embedded.ledger import SqliteLedger
from kernel.adapters.model.client import OpenAIModel
from kernel.adapters.model.demo import DemoModel
from kernel.adapters.model.wire import Mended
from kernel.agent import Agent
from kernel.attention import Attention
from kernel.chats import Chats
from kernel.errors import LedgerFault, Misuse
from kernel.executor import Door, Executor
from kernel.fence import Fence, contain_tasks
from kernel.health import Change, HealthRegistry
from kernel.host import PluginHost, Services
from kernel.limits import Limits
from kernel.media import by_reference
from kernel.output import Output
from kernel.ports import Action, Blobs, Clock, Delivery, Ledger, Model, Sender
from kernel.retention import Retention
from kernel.rulebook import Rulebook
from kernel.session import Sessions
from kernel.settings import UNNAMED, Settings
from kernel.source import Inbound, Source, conversation_of
from kernel.stages import HookFault, Stages
from kernel.status import Status, status_text
from kernel.toolbox import Toolbox

log = logging.getLogger("qiwo")

ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
"""Thirty-two signs that cannot be taken for one another when a user reads a code aloud."""

PLUGINS = Path(__file__).resolve().parent.parent / "plugins"
"""The plugins that come with Qiwo: the only ones that get a gateway."""

PLAYGROUND_OPERATOR = "10"
"""The user who is an operator in the playground, and only on a connection that knows the process's stamp."""

TICK = 5.0
"""Seconds between two looks at the deadlines of resting plugins that nobody calls."""


def mint() -> str:
    """A call or turn id: nine letters and digits, which fit every server's rule for tool call ids."""
    return "".join(ALPHABET[byte & 31] for byte in secrets.token_bytes(9))


@dataclass(frozen=True, slots=True)
class Graph:
    """Everything that a started kernel is made of."""

    ledger: Ledger
    blobs: Blobs
    rulebook: Rulebook
    health: HealthRegistry
    toolbox: Toolbox
    stages: Stages
    output: Output
    agent: Agent
    sessions: Sessions
    dispatch: EmbeddedDispatch
    attention: Attention
    chats: Chats
    commands: commands.Commands
    host: PluginHost


class Kernel:
    """Start, submit, stop. `clock`, `model` and `ledger` are given by tests only."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        model: Model | None = None,
        ledger: Ledger | None = None,
        plugins: Path = PLUGINS,
        chats: Chats | None = None,
        extra: Sequence[Path] = (),
        tick: float = TICK,
    ) -> None:
        """`extra` folders of plugins stand beside those of the settings."""
        self.settings = settings
        self.stamp = secrets.token_hex(16)
        """Proves to the gateway that an event comes from this process's own playground."""
        self._clock = clock or SystemClock()
        self._model = model or self._model_from(settings)
        self._ledger = ledger
        self._plugins = plugins
        self._chats = chats or Chats()
        self._tick_seconds = tick
        self._folders = (*settings.plugin_dirs, *extra)
        self._counts: Counter[str] = Counter()
        self._mended: Mended | None = None
        self._started = self._clock.monotonic()
        self._closing = False
        self._graph: Graph | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the record, load the plugins, begin to serve. Raises LedgerFault."""
        contain_tasks(asyncio.get_running_loop())
        graph = self._graph = self._build()
        self._own(self._tick(graph.health), "tick")
        await graph.host.start()  # first: a turn that an earlier process left open needs its tools
        self._own(graph.dispatch.serve(graph.sessions.drain), "dispatch")
        retention = Retention(self.settings.keeping, graph.ledger, graph.blobs, self._clock, graph.sessions.forget)
        self._own(retention.run(), "retention")

    async def submit(self, inbound: Inbound) -> None:
        """Take a message in and return at once. Commands bypass the queue; a line to nobody is dropped."""
        graph = self._graph
        if self._closing or graph is None:
            return
        chat = graph.chats.conversation(inbound.source)
        command = commands.parse(inbound.text, self.settings.command_start)
        if command is not None:
            self._own(graph.commands.run(command, inbound, chat), command.name)
            return
        running = [run.turn.source for run in graph.sessions.in_progress(chat)]
        heard = graph.attention.hear(inbound, running)
        if heard is not None:
            heard, files = by_reference(heard)
            if files:
                self._own(self._keep(graph.blobs, files), "keep")
            await graph.dispatch.accept(chat, heard)

    def close_door(self) -> None:
        """Take no more messages, and call off what runs: the first word of a shutdown. Callable from a signal."""
        if not self._closing:
            self._closing = True
            for task in self._tasks:
                task.cancel()

    async def stop(self) -> None:
        """End everything: turns (their calls recorded as cancelled), plugins, model, record."""
        self.close_door()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._graph is not None:
            await self._graph.host.stop()
            await self._model.close()
            await self._graph.ledger.close()

    # -- what others may see ---------------------------------------------------------------------------------

    def status(self) -> Status:
        """How the bot is, right now."""
        graph = self.graph
        return Status(
            uptime=self._clock.monotonic() - self._started,
            model=self._model.name,
            accounts=graph.dispatch.accounts,
            running=len(graph.sessions.runs()),
            counts=self._counts + graph.sessions.endings,
            mended_tools=self._mended.tools if self._mended else (),
            policy_problem=graph.rulebook.problem,
            model_problem=words.fault(fault.kind) if (fault := graph.agent.last_fault) else "",
            health=graph.health.report(),
        )

    async def missing(self) -> tuple[str, ...]:
        """What keeps the bot from being ready, in words; empty when it is."""
        lacks = [] if self._graph and self._graph.dispatch.accounts else ["no account is connected"]
        try:
            await self.graph.ledger.append()
        except (LedgerFault, Misuse) as fault:
            lacks.append(str(fault))
        return tuple(lacks)

    @property
    def graph(self) -> Graph:
        """Raises Misuse before `start`."""
        if self._graph is None:
            raise Misuse("the kernel is not started")
        return self._graph

    # -- the graph -------------------------------------------------------------------------------------------

    def _build(self) -> Graph:
        clock, settings = self._clock, self.settings
        ledger = self._ledger or SqliteLedger(settings.data_dir / "qiwo.db")
        rulebook = Rulebook(settings.data_dir / "policy.toml")
        fence, toolbox = Fence(clock), Toolbox()
        health = HealthRegistry(clock, jitter=random.random, on_change=self._health_changed, reload=self._reload)
        stages = Stages(fence, settings.hook_timeout, fault=self._hook_failed, resting=self._resting)
        output = Output(stages, clock, mint)
        door = Door(toolbox, rulebook.current, health, stages)
        blobs = FileBlobs(settings.data_dir)
        executor = Executor(door, fence, clock, blobs)
        waits = settings.waits
        tokens = settings.context_tokens
        agent = Agent(self._model, door, executor, output, clock, self._limits(), tokens, mint, steers=not waits.off)
        dispatch = EmbeddedDispatch(ledger, clock)
        sessions = Sessions(agent, output, ledger, clock, waits)
        does = commands.Commands(rulebook.current, dispatch, sessions, ledger, output, clock, self._status_text)
        services = Services(toolbox, stages, output, health, fence, clock, _Gateway(self), rulebook)
        host = PluginHost(services, self._plugins, self._folders)
        hears = Attention(clock)
        return Graph(
            ledger=ledger,
            blobs=blobs,
            rulebook=rulebook,
            health=health,
            toolbox=toolbox,
            stages=stages,
            output=output,
            agent=agent,
            sessions=sessions,
            dispatch=dispatch,
            attention=hears,
            chats=self._chats,
            commands=does,
            host=host,
        )

    def _model_from(self, settings: Settings) -> Model:
        if settings.demo:
            return DemoModel()
        key = settings.model_key.get_secret_value()
        return OpenAIModel(
            settings.model_url,
            key,
            settings.model or UNNAMED,
            timeout=settings.model_timeout,
            clock=self._clock,
            on_mend=self._pairing_mended,
        )

    def _limits(self) -> Limits:
        settings = self.settings
        return Limits(steps=settings.max_steps, tool_seconds=settings.tool_timeout, turn_seconds=settings.turn_timeout)

    def _own(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"kernel: {name}")
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("%s broke: %s", task.get_name(), error, exc_info=error)

    @staticmethod
    async def _keep(blobs: Blobs, files: Mapping[str, bytes]) -> None:
        """Beside the message, which must not lose its place in the order for them."""
        for place, data in files.items():
            try:
                await blobs.keep(place, data)
            except LedgerFault as fault:
                log.error("a picture of a message is lost: %s", fault)

    async def _tick(self, health: HealthRegistry) -> None:
        while True:
            await self._clock.sleep(self._tick_seconds)
            health.tick()

    # -- what the parts report -------------------------------------------------------------------------------

    def _reload(self, plugin: str, token: int) -> None:
        self.graph.host.reload_soon(plugin, token)

    def _resting(self, plugin: str) -> str:
        refusal = self.graph.health.look(plugin, "", "")
        return refusal.why if refusal else ""

    def _health_changed(self, change: Change) -> None:
        self._counts["health_changes"] += 1
        what = "/".join(part for part in (change.plugin, change.tool, change.chat) if part)
        why = getattr(change.after, "why", "")
        log.warning("health: %s: %s → %s %s", what, change.before.word, change.after.word, why and f"({why})")

    def _hook_failed(self, fault: HookFault) -> None:
        self._counts["hook_faults"] += 1
        hook = fault.hook
        log.error("plugin %s: %s hook %s at %s", hook.plugin, hook.stage, fault.error, fault.where)
        if not fault.skipped:
            self.graph.health.crashed(hook.plugin, f"hook:{hook.stage}", fault.error, fault.where, fatal=fault.stuck)

    def _pairing_mended(self, mended: Mended) -> None:
        """The alarm that must never ring: a request was about to go out with calls and results unpaired."""
        self._counts["pairing_mended"] += 1
        self._mended = mended
        log.critical("a request had to be mended before it was sent: %s (%s)", ", ".join(mended.tools), mended.detail)

    def _status_text(self, source: Source) -> str:
        return status_text(self.status(), conversation_of(source))


class _Gateway:
    """`kernel.ports.Gateway` of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def is_operator(self, user: str, stamp: str = "") -> bool:
        ours = stamp != "" and secrets.compare_digest(stamp.encode(), self._kernel.stamp.encode())
        return user in self._kernel.settings.superusers or (ours and user == PLAYGROUND_OPERATOR)

    async def submit(self, inbound: Inbound) -> None:
        await self._kernel.submit(inbound)

    def attach(self, account: str, sender: Sender) -> AbstractAsyncContextManager[None]:
        return self._kernel.graph.dispatch.attach(account, sender)

    def typing(self, source: Source) -> None:
        self._kernel.graph.sessions.typing(self._kernel.graph.chats.conversation(source))

    async def call(self, account: str, action: Action) -> Delivery:
        return await self._kernel.graph.dispatch.call(account, action)
