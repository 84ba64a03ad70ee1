"""Who speaks, where, in what role, through which account: read from the event's envelope, never from text."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

ConversationId = NewType("ConversationId", str)
"""The key of one mailbox and one record: `qq/1000/group/10001`, with `/user/20002` when members are kept
apart, later `agent:ID`. It orders work; it never carries rights."""


class Role(StrEnum):
    """The speaker's power in this scene, as the platform vouches for it."""

    OPERATOR = "operator"
    OWNER = "owner"
    ADMIN = "admin"
    MEMBER = "member"
    FRIEND = "friend"
    STRANGER = "stranger"
    ANONYMOUS = "anonymous"
    BOT = "bot"

    @property
    def rank(self) -> int:
        """Higher may do more. Member and friend are equal: each is the plain guest of his own scene."""
        return _RANK[self]


_RANK = {
    Role.OPERATOR: 5,
    Role.OWNER: 4,
    Role.ADMIN: 3,
    Role.MEMBER: 2,
    Role.FRIEND: 2,
    Role.STRANGER: 1,
    Role.ANONYMOUS: 0,
    Role.BOT: 0,
}


def least(roles: Iterable[Role]) -> Role:
    """The least privileged of several roles; of none, anonymous: nobody vouched for anything."""
    return min(roles, key=lambda role: role.rank, default=Role.ANONYMOUS)


class SceneKind(StrEnum):
    """A `temp` scene is a private chat opened from a group: group powers do not reach into it."""

    GROUP = "group"
    PRIVATE = "private"
    TEMP = "temp"


@dataclass(frozen=True, slots=True)
class Scene:
    """A place to speak in. `id` is the group's id, or the peer's in a private or temp chat; decimal, no zeros."""

    kind: SceneKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


@dataclass(frozen=True, slots=True)
class Source:
    """The subject of a turn, frozen for its whole life. `name` is the speaker's own invention: no evidence."""

    platform: str
    account: str
    scene: Scene
    user: str
    role: Role
    name: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text; never parsed for codes."""

    text: str


@dataclass(frozen=True, slots=True)
class At:
    """A mention of one user by id, or of `all`."""

    user: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A quote of an earlier message by its id."""

    message_id: str


@dataclass(frozen=True, slots=True)
class Image:
    """A picture by reference."""

    ref: str


@dataclass(frozen=True, slots=True)
class Other:
    """Anything else that a platform can send, by its kind: kept so that nothing is lost without a word."""

    kind: str


Part = Text | At | Reply | Image | Other
"""One piece of a message, going in or out."""


class Urgency(IntEnum):
    """What may interrupt what: only the strictly higher. Undeclared is lowest."""

    BACKGROUND = 0
    MESSAGE = 1
    OPERATOR = 2
    KERNEL = 3


@dataclass(frozen=True, slots=True)
class Inbound:
    """One message to the bot.

    `key` is equal for two deliveries of the same message (account, scene, message id). `arrived` is wall-clock
    seconds, stamped before any look-up. `text` is what the model reads, `parts` the message as it came.
    `foreign` says that the text carries words of others (a quote, a forwarded record); `addressed` is False for a
    line that only may be a command, or that follows a bare mention. `background` is for what no person waits for.
    """

    source: Source
    key: str
    text: str
    arrived: float
    message_id: str = ""
    parts: tuple[Part, ...] = ()
    foreign: bool = False
    addressed: bool = True
    background: bool = False

    @property
    def urgency(self) -> Urgency:
        if self.background:
            return Urgency.BACKGROUND
        return Urgency.OPERATOR if self.source.role is Role.OPERATOR else Urgency.MESSAGE

    @property
    def has_words(self) -> bool:
        """False for a bare mention, and for pictures alone: the words are likely to follow."""
        if not self.parts:
            return True
        return any(isinstance(part, Other) or (isinstance(part, Text) and part.text.strip()) for part in self.parts)

    @property
    def has_picture(self) -> bool:
        return any(isinstance(part, Image) for part in self.parts)


def conversation_of(source: Source, *, apart: bool = False) -> ConversationId:
    """The conversation that a source belongs to; `apart` keeps the members of a group from each other's thread."""
    key = f"{source.platform}/{source.account}/{source.scene.kind}/{source.scene.id}"
    return ConversationId(f"{key}/user/{source.user}" if apart else key)
