"""Who lives in the playground, and what is said there as the page shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from kernel.app import PLAYGROUND_OPERATOR
from kernel.testkit import World
from kernel.testkit.segments import Segment, data_of, segments_of, text_of
from kernel.testkit.world import Event

ACCOUNT = 1
"""The bot's account here. Real QQ numbers have five digits at least: nobody can be mistaken for one of us."""

GROUP = 100


@dataclass(frozen=True, slots=True)
class Person:
    """`member` is the role in the group ("" outside of it), `private` what a private chat with the bot is."""

    id: int
    name: str
    badge: str
    member: str
    private: Literal["friend", "temp", "stranger"]


PEOPLE: Mapping[int, Person] = MappingProxyType(
    {
        person.id: person
        for person in (
            Person(int(PLAYGROUND_OPERATOR), "站长", "超级用户", "member", "friend"),
            Person(11, "老周", "群主", "owner", "temp"),
            Person(12, "小林", "管理员", "admin", "temp"),
            Person(13, "小明", "群成员", "member", "temp"),
            Person(14, "小红", "群成员", "member", "temp"),
            Person(15, "阿宁", "好友", "", "friend"),
            Person(16, "路人", "陌生人", "", "stranger"),
        )
    }
)


def new_world() -> World:
    """Everybody in his place, and nothing said yet."""
    world = World(ACCOUNT)
    world.add_group(GROUP, "企窝体验群")
    for person in PEOPLE.values():
        if person.member:
            world.add_member(GROUP, person.id, role=person.member, nickname=person.name)
        if person.private == "friend":
            world.add_friend(person.id, person.name)
        if person.private == "stranger":
            world.add_stranger(person.id, person.name)
    return world


def chat_of(event: Event) -> str:
    """`group`, or `private:` and the human in it."""
    if event["message_type"] == "group":
        return "group"
    bot = event["user_id"] == event["self_id"]
    return f"private:{event['target_id' if bot else 'user_id']}"


def line_of(event: Event, world: World) -> dict[str, Any]:
    """A message as the page shows it."""
    person = PEOPLE.get(event["user_id"])
    segments = segments_of(event["message"])
    return {
        "id": event["message_id"],
        "chat": chat_of(event),
        "bot": person is None,
        "name": _name(event["user_id"], world),
        "badge": person.badge if person else "机器人",
        "time": event["time"],
        "quote": _quote(segments, world),
        "parts": [part for segment in segments if (part := _part(segment, world))],
    }


def _part(segment: Segment, world: World) -> dict[str, str] | None:
    match segment["type"]:
        case "text":
            return {"kind": "text", "text": text_of([segment])}
        case "at":
            return {"kind": "at", "text": f"@{_name(int(data_of(segment)['qq']), world)}"}
        case "reply":
            return None
        case kind:
            return {"kind": "other", "text": f"[{kind}]"}


def _quote(segments: Sequence[Segment], world: World) -> dict[str, str] | None:
    """Who and what the message quotes, if anything that is still known."""
    quoted = (world.messages.get(int(data_of(one)["id"])) for one in segments if one["type"] == "reply")
    event = next(quoted, None)
    if event is None:
        return None
    return {"name": _name(event["user_id"], world), "text": text_of(segments_of(event["message"])).strip()}


def _name(user: int, world: World) -> str:
    return world.nickname_of(user) or str(user)
