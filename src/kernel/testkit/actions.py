"""What NapCat answers to an API call, and what the call changes in the world."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel.testkit.segments import Segment, cq_of, data_of, segments_of
from kernel.testkit.world import RANK, Group, Member, Sent, World

Params = Mapping[str, Any]

NO_EFFECT = frozenset(
    {
        "clean_cache",
        "delete_essence_msg",
        "friend_poke",
        "group_poke",
        "mark_group_msg_as_read",
        "mark_msg_as_read",
        "mark_private_msg_as_read",
        "send_like",
        "send_poke",
        "set_essence_msg",
        "set_friend_add_request",
        "set_group_add_request",
        "set_group_remark",
        "set_input_status",
        "set_msg_emoji_like",
        "set_online_status",
    }
)
"""Accepted without a trace in the world: the call itself is what a test looks at."""

WORST = 1200
"""NapCat's code for anything that went wrong while it was done."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to an API call, but for its echo."""

    status: str = "ok"
    retcode: int = 0
    data: Any = None
    wording: str = ""


class Refused(Exception):
    """Ends an action with an answer that says no."""

    def __init__(self, retcode: int, wording: str) -> None:
        super().__init__(wording)
        self.result = Result("failed", retcode, None, wording)


class Actions:
    """The API of one account, over its world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._table: dict[str, Callable[[Params], Any]] = {
            "can_send_image": lambda _: {"yes": True},
            "can_send_record": lambda _: {"yes": True},
            "delete_msg": self._delete_msg,
            "get_forward_msg": self._forward_msg,
            "get_friend_list": self._friend_list,
            "get_group_info": lambda params: _group_info(self._group(params)),
            "get_group_list": lambda _: [_group_info(group) for group in world.groups.values()],
            "get_group_member_info": lambda params: _member_info(*self._member(params)),
            "get_group_member_list": self._member_list,
            "get_login_info": lambda _: {"user_id": world.account, "nickname": world.nickname},
            "get_msg": lambda params: {**self._message(params), "emoji_likes_list": []},
            "get_status": lambda _: {"online": world.online, "good": True, "stat": {}},
            "get_stranger_info": self._stranger_info,
            "get_version_info": lambda _: VERSION,
            "send_forward_msg": self._send_forward,
            "send_group_forward_msg": self._send_forward,
            "send_group_msg": self._send,
            "send_msg": self._send,
            "send_private_forward_msg": self._send_forward,
            "send_private_msg": self._send,
            "set_group_admin": self._set_admin,
            "set_group_ban": self._ban,
            "set_group_card": self._set_card,
            "set_group_kick": self._kick,
            "set_group_leave": lambda params: self._leave(self._group(params)),
            "set_group_name": self._set_name,
            "set_group_special_title": self._set_title,
            "set_group_whole_ban": self._whole_ban,
        }

    def perform(self, action: str, params: Params) -> Result:
        """Do it, and say what NapCat would say."""
        if action in NO_EFFECT:
            return Result()
        if action not in self._table:
            return Result("failed", 1404, None, f"不支持的API {action}")
        try:
            return Result(data=self._table[action](params))
        except Refused as refused:
            return refused.result

    # -- speaking --------------------------------------------------------------------------------------------

    def _send(self, params: Params) -> Any:  # noqa: ANN401 - JSON
        segments = _segments(params, "message", plain=params.get("auto_escape") is True)
        if any(segment["type"] == "node" for segment in segments):
            return self._send_forward({**params, "messages": segments})
        if not segments:
            raise Refused(WORST, "消息体无法解析, 请检查是否发送了不支持的消息类型")
        return {"message_id": self._say(params, segments).message_id}

    def _send_forward(self, params: Params) -> Any:  # noqa: ANN401 - JSON
        nodes = [self._node(data_of(segment)) for segment in _segments(params, "messages")]
        sent = self._say(params, [{"type": "node", "data": node} for node in nodes])
        ident = f"r-{sent.message_id}"
        card = [{"type": "forward", "data": {"id": ident}}]
        event = self._world.messages[sent.message_id]
        event.update(message=card, raw_message=cq_of(card))
        self._world.forwards[ident] = [_forwarded(event, node) for node in nodes]
        return {"message_id": sent.message_id, "res_id": ident, "forward_id": ident}

    def _node(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """One message of a card, as its reader sees it: a known one by its id, or a made-up one."""
        if "id" in data:
            known = self._message({"message_id": data["id"]})
            return {**known["sender"], "content": known["message"]}
        account = self._world.account
        user = _number({"user_id": data.get("user_id") or data.get("uin") or account}, "user_id")
        nickname = str(data.get("nickname") or data.get("name") or user)
        return {"user_id": user, "nickname": nickname, "content": _segments(data, "content")}

    def _say(self, params: Params, segments: Sequence[Segment]) -> Sent:
        """To the group if one is named, unless the message is declared private."""
        if params.get("group_id") is not None and params.get("message_type") != "private":
            group = self._group(params)
            own = group.members[self._world.account]
            if self._muted(own) or (group.muted and RANK[own.role] < RANK["admin"]):
                raise Refused(WORST, "发送失败, 你已被禁言")
            return self._world.say(segments, group=group.id)
        user = _number(params, "user_id")
        if self._world.nickname_of(user) is None:
            raise Refused(WORST, "无法获取用户信息")
        return self._world.say(segments, user=user)

    def _delete_msg(self, params: Params) -> None:
        message = self._message(params)
        if message["user_id"] != self._world.account:
            if "group_id" not in message:
                raise Refused(WORST, "只能撤回自己的消息")
            self._over(message)
        del self._world.messages[message["message_id"]]

    # -- looking ---------------------------------------------------------------------------------------------

    def _message(self, params: Params) -> dict[str, Any]:
        message = self._world.messages.get(_number(params, "message_id"))
        if message is None:
            raise Refused(WORST, "消息不存在")
        return message

    def _forward_msg(self, params: Params) -> Any:  # noqa: ANN401 - JSON
        ident = str(params.get("id") or params.get("message_id") or "")
        messages = self._world.forwards.get(ident) or self._world.forwards.get(f"r-{ident}")
        if messages is None:
            raise Refused(WORST, "找不到相关的聊天记录")
        return {"messages": messages}

    def _friend_list(self, _: Params) -> Any:  # noqa: ANN401 - JSON
        friends = self._world.friends.items()
        return [{"user_id": user, "nickname": nickname, "remark": ""} for user, nickname in friends]

    def _member_list(self, params: Params) -> Any:  # noqa: ANN401 - JSON
        group = self._group(params)
        return [_member_info(group, member) for member in group.members.values()]

    def _stranger_info(self, params: Params) -> Any:  # noqa: ANN401 - JSON
        user = _number(params, "user_id")
        nickname = self._world.nickname_of(user)
        if nickname is None:
            raise Refused(WORST, "无法获取用户信息")
        return {"user_id": user, "nickname": nickname, "sex": "unknown", "age": 0, "qid": "", "level": 0}

    # -- moderating ------------------------------------------------------------------------------------------

    def _ban(self, params: Params) -> None:
        group, member = self._over(params)
        seconds = _number({"duration": 1800, **params}, "duration")
        until = self._world.clock.now() + seconds if seconds > 0 else 0.0
        self._world.change_member(group.id, member.user, muted_until=until)

    def _whole_ban(self, params: Params) -> None:
        self._led(params).muted = _flag(params, "enable")

    def _kick(self, params: Params) -> None:
        group, member = self._over(params)
        del group.members[member.user]

    def _set_admin(self, params: Params) -> None:
        group, member = self._over(params, "owner")
        role = "admin" if _flag(params, "enable") else "member"
        self._world.change_member(group.id, member.user, role=role)

    def _set_title(self, params: Params) -> None:
        group = self._led(params, "owner")
        title = str(params.get("special_title") or "")
        self._world.change_member(group.id, self._member(params)[1].user, title=title)

    def _set_card(self, params: Params) -> None:
        group, member = self._member(params)
        if member.user != self._world.account:
            self._led(params)
        self._world.change_member(group.id, member.user, card=str(params.get("card") or ""))

    def _set_name(self, params: Params) -> None:
        self._led(params).name = str(params.get("group_name") or "")

    def _leave(self, group: Group) -> None:
        del self._world.groups[group.id]

    # -- who and where ---------------------------------------------------------------------------------------

    def _group(self, params: Params) -> Group:
        group = self._world.groups.get(_number(params, "group_id"))
        if group is None:
            raise Refused(WORST, f"群{params['group_id']}不存在")
        return group

    def _member(self, params: Params) -> tuple[Group, Member]:
        group = self._group(params)
        member = group.members.get(_number(params, "user_id"))
        if member is None:
            raise Refused(WORST, f"群({group.id})成员{params['user_id']}不存在")
        return group, member

    def _led(self, params: Params, needs: str = "admin") -> Group:
        """The group, if the bot has the power there."""
        group = self._group(params)
        if RANK[group.members[self._world.account].role] < RANK[needs]:
            raise Refused(WORST, "权限不足")
        return group

    def _over(self, params: Params, needs: str = "admin") -> tuple[Group, Member]:
        """The member, if the bot has power over him."""
        group = self._led(params, needs)
        _, member = self._member(params)
        if RANK[member.role] >= RANK[group.members[self._world.account].role]:
            raise Refused(WORST, "权限不足")
        return group, member

    def _muted(self, member: Member) -> bool:
        return member.muted_until > self._world.clock.now()


VERSION = {"app_name": "NapCat.Onebot", "app_version": "4.9.0", "protocol_version": "v11"}


def _number(params: Params, name: str) -> int:
    """A whole number, such as an id, or its digits."""
    value = params.get(name)
    if value is None:
        raise _required(name)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise Refused(1400, f"Key: {name}, Message: Expected number") from None


def _segments(params: Params, name: str, *, plain: bool = False) -> list[Segment]:
    value = params.get(name)
    if value is None:
        raise _required(name)
    if not isinstance(value, str | list | dict):
        raise Refused(1400, f"Key: {name}, Message: Expected array")
    segments = segments_of(value, plain=plain)
    if not all(isinstance(segment, dict) and isinstance(segment.get("type"), str) for segment in segments):
        raise Refused(1400, f"Key: {name}, Message: Expected union value")
    return segments


def _flag(params: Params, name: str) -> bool:
    return params.get(name, True) not in (False, "false", 0)


def _required(name: str) -> Refused:
    return Refused(1400, f"Key: {name}, Message: Required property")


def _forwarded(event: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    sender = {"user_id": node["user_id"], "nickname": node["nickname"], "card": ""}
    message = {"message": node["content"], "raw_message": cq_of(node["content"])}
    return {**event, **message, "post_type": "message", "user_id": node["user_id"], "sender": sender}


def _group_info(group: Group) -> dict[str, Any]:
    return {
        "group_all_shut": -1 if group.muted else 0,
        "group_remark": "",
        "group_id": group.id,
        "group_name": group.name,
        "member_count": len(group.members),
        "max_member_count": 200,
    }


def _member_info(group: Group, member: Member) -> dict[str, Any]:
    return {
        "group_id": group.id,
        "user_id": member.user,
        "nickname": member.nickname,
        "card": member.card,
        "sex": "unknown",
        "age": 0,
        "area": "",
        "level": "1",
        "qq_level": 0,
        "join_time": 0,
        "last_sent_time": 0,
        "title": member.title,
        "title_expire_time": 0,
        "unfriendly": False,
        "card_changeable": True,
        "is_robot": False,
        "shut_up_timestamp": int(member.muted_until),
        "role": member.role,
    }
