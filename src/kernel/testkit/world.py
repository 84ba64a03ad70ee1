"""The small world that a fake QQ lives in: people, groups, and what has been said. No sockets here."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from kernel.adapters.embedded.clock import SystemClock
from kernel.ports import Clock
from kernel.testkit.log import Log
from kernel.testkit.segments import Segment, cq_of, text_of

Event = dict[str, Any]
"""A OneBot v11 event, in NapCat's shape."""

RANK = {"member": 0, "admin": 1, "owner": 2}
REMEMBERED = 5_000
"""Messages that NapCat can still find by their id."""
UNKNOWN_GROUP = 284840486
"""What NapCat puts in a temp message when it cannot tell the group."""


@dataclass(frozen=True, slots=True)
class Member:
    """A person in a group. `muted_until` is wall seconds."""

    user: int
    nickname: str
    card: str = ""
    role: str = "member"
    title: str = ""
    muted_until: float = 0.0


@dataclass(slots=True, eq=False)
class Group:
    """A group as the bot's account sees it; the bot is a member."""

    id: int
    name: str
    members: dict[int, Member] = field(default_factory=dict)
    muted: bool = False


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the bot sent. `at` is seconds of the world's monotonic clock."""

    chat: str
    group: int | None
    user: int | None
    segments: tuple[Segment, ...]
    text: str
    message_id: int
    at: float


class World:
    """Whoever speaks or is named first is created on the way, as a plain member, friend or stranger."""

    def __init__(self, account: int = 10000, *, nickname: str = "企窝", clock: Clock | None = None) -> None:
        self.account = account
        self.nickname = nickname
        self.online = True
        self.clock: Clock = clock or SystemClock()
        self.groups: dict[int, Group] = {}
        self.friends: dict[int, str] = {}
        self.strangers: dict[int, str] = {}
        self.messages: dict[int, Event] = {}
        self.forwards: dict[str, list[Event]] = {}
        self.sent: Log[Sent] = Log()
        # A bot that restarts with its record must not take a new world's messages for old ones.
        self._ids = count(secrets.randbelow(2**30) + 1)

    # -- people ----------------------------------------------------------------------------------------------

    def add_group(self, group: int, name: str = "", *, bot_role: str = "member") -> Group:
        """Found the group, with the bot in it, or give the bot another role in it."""
        found = self.groups.setdefault(group, Group(group, name or f"群{group}"))
        self.add_member(group, self.account, role=bot_role, nickname=self.nickname)
        return found

    def add_member(self, group: int, user: int, *, role: str = "member", nickname: str = "", card: str = "") -> Member:
        """Put a person in a group, or change him there."""
        if role not in RANK:
            raise ValueError(f"role {role!r} is none of {', '.join(RANK)}")
        if group not in self.groups:
            self.add_group(group)
        member = Member(user, nickname or f"用户{user}", card, role)
        self.groups[group].members[user] = member
        return member

    def change_member(self, group: int, user: int, **changes: Any) -> None:  # noqa: ANN401 - fields of Member
        members = self.groups[group].members
        members[user] = replace(members[user], **changes)

    def add_friend(self, user: int, nickname: str = "") -> None:
        self.friends[user] = nickname or f"用户{user}"

    def add_stranger(self, user: int, nickname: str = "") -> None:
        self.strangers[user] = nickname or f"用户{user}"

    def nickname_of(self, user: int) -> str | None:
        """None for somebody whom nobody here knows."""
        if user == self.account:
            return self.nickname
        members = (group.members[user].nickname for group in self.groups.values() if user in group.members)
        return self.friends.get(user) or self.strangers.get(user) or next(members, None)

    # -- what is said ----------------------------------------------------------------------------------------

    def group_message(self, group: int, user: int, segments: Sequence[Segment], *, role: str | None = None) -> Event:
        """Somebody speaks in a group. `role` is a newcomer's role; for a known member, what the event claims."""
        if group not in self.groups or user not in self.groups[group].members:
            self.add_member(group, user, role=role or "member")
        member = self.groups[group].members[user]
        sender = {"user_id": user, "nickname": member.nickname, "card": member.card, "role": role or member.role}
        place = {"group_id": group, "group_name": self.groups[group].name}
        return self._message("group", "normal", user, sender, segments, place)

    def friend_message(self, user: int, segments: Sequence[Segment]) -> Event:
        if user not in self.friends:
            self.add_friend(user)
        sender = {"user_id": user, "nickname": self.friends[user], "card": ""}
        return self._message("private", "friend", user, sender, segments, {"target_id": self.account})

    def temp_message(self, user: int, segments: Sequence[Segment], group: int | None = None) -> Event:
        """A private chat opened from a group, by somebody who is no friend."""
        if self.nickname_of(user) is None:
            self.add_stranger(user)
        place = {"target_id": self.account, "group_id": group or UNKNOWN_GROUP, "temp_source": 0}
        return self._message("private", "group", user, {"user_id": user, "nickname": "temp"}, segments, place)

    def stranger_message(self, user: int, segments: Sequence[Segment]) -> Event:
        """A private chat with somebody who is neither a friend nor from a group."""
        if self.nickname_of(user) is None:
            self.add_stranger(user)
        sender = {"user_id": user, "nickname": self.nickname_of(user), "card": ""}
        return self._message("private", "other", user, sender, segments, {"target_id": self.account})

    def say(self, segments: Sequence[Segment], *, group: int | None = None, user: int | None = None) -> Sent:
        """The bot speaks, in a group or to a user."""
        if group is not None:
            event = self.group_message(group, self.account, segments)
        else:
            sender = {"user_id": self.account, "nickname": self.nickname, "card": ""}
            event = self._message("private", "friend", self.account, sender, segments, {"target_id": user})
        event |= {"post_type": "message_sent", "message_sent_type": "self", "target_id": group or user}
        chat = f"private:{user}" if group is None else f"group:{group}"
        text = text_of(segments)
        sent = Sent(chat, group, user, tuple(segments), text, event["message_id"], self.clock.monotonic())
        self.sent.append(sent)
        return sent

    def event(self, post_type: str, **fields: Any) -> Event:  # noqa: ANN401 - JSON
        """An event of any kind, with its envelope."""
        envelope = {"time": int(self.clock.now()), "self_id": self.account, "post_type": post_type}
        return {**envelope, **fields}

    def _message(
        self,
        kind: str,
        sub_type: str,
        user: int,
        sender: Event,
        segments: Sequence[Segment],
        place: Event,
    ) -> Event:
        number = next(self._ids)
        self.messages[number] = self.event(
            "message",
            user_id=user,
            message_id=number,
            message_seq=number,
            real_id=number,
            real_seq=str(number),
            message_type=kind,
            sender=sender,
            raw_message=cq_of(segments),
            font=14,
            sub_type=sub_type,
            message=list(segments),
            message_format="array",
            **place,
        )
        if len(self.messages) > REMEMBERED:
            del self.messages[next(iter(self.messages))]
        return self.messages[number]
