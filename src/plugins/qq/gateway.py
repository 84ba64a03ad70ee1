"""OneBot v11 events as messages of ours. The matcher only hands over: the agent loop never runs inside it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nonebot import get_driver, on
from nonebot.adapters import Bot as AnyBot
from nonebot.adapters.onebot.v11 import (
    Bot,
    Event,
    GroupMessageEvent,
    HeartbeatMetaEvent,
    Message,
    MessageEvent,
    MessageSegment,
    NotifyEvent,
    PrivateMessageEvent,
)

from kernel import At, Gateway, Handle, Image, Inbound, Other, Part, Reply, Role, Scene, SceneKind, Source, Text

from .accounts import Accounts

ANONYMOUS = "80000000"
"""The id that QQ gives to every anonymous speaker: it names nobody."""

LABELS = {"face": "表情", "mface": "表情", "record": "语音", "video": "视频", "file": "文件", "forward": "合并转发"}


@contextmanager
def listen(handle: Handle, accounts: Accounts) -> Iterator[None]:
    """Take in messages, heartbeats and connections while the plugin stands."""
    gateway, clock = handle.gateway, handle.clock

    async def take(bot: Bot, event: Event) -> None:
        match event:
            case MessageEvent():
                arrived = (event.model_extra or {}).get("qiwo_arrived", clock.now())
                inbound = inbound_of(event, gateway, accounts, arrived)
                if inbound is not None:
                    await gateway.submit(inbound)
            case HeartbeatMetaEvent():
                accounts.beat(bot.self_id, event.status.online)
            case NotifyEvent(sub_type="input_status", user_id=user) if (event.model_extra or {}).get("event_type") == 1:
                scene = Scene(SceneKind.PRIVATE, str(user))
                gateway.typing(Source("qq", bot.self_id, scene, str(user), Role.STRANGER))
            case _:
                pass

    async def connected(bot: AnyBot) -> None:
        await accounts.connected(bot.self_id, bot)

    async def disconnected(bot: AnyBot) -> None:
        await accounts.disconnected(bot.self_id, bot)

    with ExitStack() as undo:
        # One matcher for all events: each further one costs every event a task of its own.
        undo.callback(on(priority=10, block=False, handlers=[take]).destroy)
        driver = get_driver()
        driver.on_bot_connect(connected)
        driver.on_bot_disconnect(disconnected)
        yield


def inbound_of(event: MessageEvent, gateway: Gateway, accounts: Accounts, arrived: float) -> Inbound | None:
    """The message as ours; None for what our own accounts say."""
    account, user = str(event.self_id), str(event.user_id)
    if user == account or user in accounts:
        return None
    source = source_of(event, gateway)
    text = text_of(event.message).strip()
    quoted, foreign = quote_of(event)
    return Inbound(
        source=source,
        key=f"{account}/{source.scene}/{event.message_id}",
        text=f"{quoted}{text}" if quoted or text else "（只提到了你，没有写字）",
        arrived=arrived,
        message_id=str(event.message_id),
        parts=tuple(part_of(segment) for segment in event.original_message),
        foreign=foreign,
        addressed=event.to_me or not isinstance(event, GroupMessageEvent),
    )


def source_of(event: MessageEvent, gateway: Gateway) -> Source:
    """Who speaks, from the envelope alone."""
    user = str(event.user_id)
    name = event.sender.card or event.sender.nickname or ""
    stamp = str((event.model_extra or {}).get("qiwo_stamp", ""))
    role = role_of(event, user)
    if role is not Role.ANONYMOUS and gateway.is_operator(user, stamp):
        role = Role.OPERATOR
    return Source("qq", str(event.self_id), scene_of(event), user, role, name)


def scene_of(event: MessageEvent) -> Scene:
    """A private chat that was opened from a group is `temp`; a group id alone does not make a group."""
    if isinstance(event, GroupMessageEvent):
        return Scene(SceneKind.GROUP, str(event.group_id))
    return Scene(SceneKind.TEMP if event.sub_type == "group" else SceneKind.PRIVATE, str(event.user_id))


def role_of(event: MessageEvent, user: str) -> Role:
    if isinstance(event, PrivateMessageEvent):
        return Role.FRIEND if event.sub_type == "friend" else Role.STRANGER
    if user == ANONYMOUS or getattr(event, "anonymous", None) or event.sub_type == "anonymous":
        return Role.ANONYMOUS
    match event.sender.role:
        case "owner":
            return Role.OWNER
        case "admin":
            return Role.ADMIN
        case _:
            return Role.MEMBER


def part_of(segment: MessageSegment) -> Part:
    data = segment.data
    match segment.type:
        case "text":
            return Text(str(data.get("text", "")))
        case "at":
            return At(str(data.get("qq", "")))
        case "reply":
            return Reply(str(data.get("id", "")))
        case "image":
            return Image(str(data.get("url") or data.get("file") or ""))
        case kind:
            return Other(kind)


def text_of(message: Message) -> str:
    """What the model reads: text as it is, the rest by its name."""
    pieces = []
    for segment in message:
        match part_of(segment):
            case Text(text):
                pieces.append(text)
            case At(user):
                pieces.append(f"@{user} ")
            case Image():
                pieces.append("[图片]")
            case Other(kind):
                pieces.append(f"[{LABELS.get(kind, kind)}]")
            case Reply():
                pass
    return "".join(pieces)


def quote_of(event: MessageEvent) -> tuple[str, bool]:
    """The quoted message as a line before the question, and whether it holds another person's words."""
    if event.reply is None:
        return "", False
    author = str(event.reply.sender.user_id or "")
    text = text_of(event.reply.message).strip().replace("\n", " ")
    own = author in (str(event.user_id), str(event.self_id))
    return f"[引用 {author or '不明'} 的话：{text}]\n", not own
