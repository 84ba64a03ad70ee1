"""The kernel's own commands: they bypass the queue, and have permissions like everything else."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernel import words
from kernel.errors import LedgerFault
from kernel.output import Output
from kernel.policy import Act, Decision, Policy, Verdict
from kernel.ports import Clock, Dispatch, Ledger, Reset
from kernel.session import Sessions
from kernel.source import ConversationId, Inbound, SceneKind, Source, conversation_of
from kernel.why import why_text


@dataclass(frozen=True, slots=True)
class Command:
    """Its name, what else it may be called, and one line of help."""

    name: str
    aliases: tuple[str, ...]
    help: str


HELP = Command("/help", ("/帮助",), "看看能做什么")
STATUS = Command("/status", ("/状态",), "机器人现在怎么样")
STOP = Command("/stop", ("/停止",), "停下正在进行的回答")
RESET = Command("/reset", ("/重置", "/new"), "开始新的对话，旧记录保留")
WHY = Command("/why", ("/为什么",), "上一轮做了什么，为什么")
ALL = (HELP, STATUS, STOP, RESET, WHY)


SEEN = 1000
"""Keys of commands that are remembered."""


def parse(text: str, prefixes: Sequence[str]) -> Command | None:
    """The command that a line is, or None. A full-width slash is a slash; names are written with `/` here."""
    words = text.strip().replace("／", "/", 1).split(maxsplit=1)
    if not words:
        return None
    said = {f"/{words[0].lower().removeprefix(prefix)}" for prefix in prefixes if words[0].startswith(prefix)}
    return next((command for command in ALL if said & {command.name, *command.aliases}), None)


class Commands:
    """Carries commands out; `status` tells what /status says."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        dispatch: Dispatch,
        sessions: Sessions,
        ledger: Ledger,
        output: Output,
        clock: Clock,
        status: Callable[[Source], str],
    ) -> None:
        self._policy = policy
        self._dispatch = dispatch
        self._sessions = sessions
        self._ledger = ledger
        self._output = output
        self._clock = clock
        self._status = status
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def run(self, command: Command, inbound: Inbound, chat: ConversationId) -> None:
        """Do it if the policy lets this source, and answer in one message. What comes twice is done once."""
        if inbound.key in self._seen:
            return
        self._seen[inbound.key] = None
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)
        source = inbound.source
        verdict = self._verdict(command, source, own=self._own(command, source, chat))
        if verdict.decision is not Decision.ALLOW:
            await self._output.say(source, f"{command.name}：{verdict.sentence}")
            return
        answer = await self._carry_out(command, inbound, chat)
        if answer:
            await self._output.say(source, answer)

    def _verdict(self, command: Command, source: Source, *, own: bool) -> Verdict:
        return self._policy().decide(source, Act.command(command.name, own=own))

    def _own(self, command: Command, source: Source, chat: ConversationId) -> bool:
        """Whether it touches only what is the asker's own: his turn, or a conversation with nobody else in it."""
        if command is STOP:
            return all(run.turn.source.user == source.user for run in self._sessions.in_progress(chat))
        if command is WHY:
            return True  # whose turn is told depends on who asks
        return source.scene.kind is not SceneKind.GROUP or chat != conversation_of(source)

    async def _carry_out(self, command: Command, inbound: Inbound, chat: ConversationId) -> str:
        if command is STOP:
            return "已停下。" if await self._dispatch.cancel(chat, "stop") else "现在没有在进行的回答。"
        if command is RESET:
            await self._dispatch.cancel(chat, "reset")
            await self._dispatch.accept(chat, Reset(inbound.source, inbound.key, self._clock.now()))
            return ""  # the session says so itself, once it is done
        if command is WHY:
            return await self._why(inbound.source, chat)
        return self._status(inbound.source) if command is STATUS else help_text()

    async def _why(self, source: Source, chat: ConversationId) -> str:
        """The chat's last turn for those who may ask about anybody's, else the asker's own last one."""
        anybody = self._verdict(WHY, source, own=False).decision is Decision.ALLOW
        try:
            case = await self._ledger.newest(chat, "" if anybody else source.user)
        except LedgerFault:
            return words.UNREADABLE
        return why_text(case) if case else words.NOTHING_YET


def help_text() -> str:
    lines = ["直接说话就行，群里要 @我。可以用的命令："]
    lines += [f"{command.name}（{command.aliases[0]}）：{command.help}" for command in ALL]
    return "\n".join(lines)
