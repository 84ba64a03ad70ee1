"""FakeQQ: NapCat's manners on a real WebSocket, and a small world that API calls change."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request, Response

from kernel.testkit import FakeClock, FakeQQ, Log, Member, World, settle
from kernel.testkit.segments import cq_of, segments_of
from kernel.testkit.world import REMEMBERED

SAMPLES = Path(__file__).parent / "data" / "onebot"
GROUP, ANN, BOB = 20001, 10001, 10002

Json = dict[str, Any]


class Bot:
    """The smallest bot there is: takes events, calls the API, and hears what comes back."""

    def __init__(self) -> None:
        self.url = ""
        self.headers: Mapping[str, str] = {}
        self.events: Log[Json] = Log()
        self.answers: Log[Json] = Log()
        self.socket: ServerConnection | None = None
        self._echoes = count()

    async def serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.socket, self.headers = socket, socket.request.headers
        async for frame in socket:
            payload = json.loads(frame)
            (self.events if "post_type" in payload else self.answers).append(payload)

    async def event(self, post_type: str = "message") -> Json:
        [event] = await self.events.take(1, lambda event: event["post_type"] == post_type)
        return event

    async def frame(self, frame: str) -> None:
        assert self.socket is not None
        await self.socket.send(frame)

    async def ask(self, action: str, **params: Any) -> int:
        echo = next(self._echoes)
        await self.frame(json.dumps({"action": action, "params": params, "echo": echo}))
        return echo

    async def call(self, action: str, **params: Any) -> Json:
        return await self.answered(await self.ask(action, **params))

    async def answered(self, echo: object) -> Json:
        [answer] = await self.answers.take(1, lambda answer: answer.get("echo") == echo)
        return answer


@asynccontextmanager
async def bot_alone() -> AsyncIterator[Bot]:
    bot = Bot()
    async with serve(bot.serve, "127.0.0.1", 0) as server:
        bot.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/onebot/v11/ws"
        yield bot


@asynccontextmanager
async def pair(world: World | None = None, **options: Any) -> AsyncIterator[tuple[Bot, FakeQQ]]:
    async with bot_alone() as bot, FakeQQ(bot.url, world=world, **options) as qq:
        await bot.event("meta_event")
        yield bot, qq


def shape(value: object) -> object:
    """Names and types, so that two events can be compared without their values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def sample(name: str) -> Json:
    found: Json = json.loads((SAMPLES / f"{name}.json").read_text(encoding="utf-8"))
    return found


def text(words: str) -> Json:
    return {"type": "text", "data": {"text": words}}


# -- connecting ----------------------------------------------------------------------------------------------


def test_the_handshake_is_napcats() -> None:
    """Account, role, agent and token stand in the headers; the first event says that the line is up."""

    async def story() -> None:
        async with bot_alone() as bot, FakeQQ(bot.url, account=12345, token="s3cret") as qq:
            event = await bot.event("meta_event")
            assert bot.headers["X-Self-ID"] == "12345"
            assert bot.headers["X-Client-Role"] == "Universal"
            assert bot.headers["User-Agent"] == "OneBot/11"
            assert bot.headers["Authorization"] == "Bearer s3cret"
            assert shape(event) == shape(sample("ev_meta_connect"))
            assert (event["meta_event_type"], event["sub_type"], event["self_id"]) == (
                "lifecycle",
                "connect",
                12345,
            )
            assert qq.connected

    asyncio.run(story())


def test_without_a_token_none_is_sent() -> None:
    """No token, no header."""

    async def story() -> None:
        async with pair() as (bot, _):
            assert "Authorization" not in bot.headers

    asyncio.run(story())


def test_a_bot_that_refuses_is_heard() -> None:
    """A 403 at the door is an exception with its status, as a test of tokens needs it."""

    def refuse(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(HTTPStatus.FORBIDDEN, "no")

    async def story() -> None:
        async with serve(Bot().serve, "127.0.0.1", 0, process_request=refuse) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            with pytest.raises(InvalidStatus, match="403"):
                await FakeQQ(f"ws://127.0.0.1:{port}").connect()

    asyncio.run(story())


def test_a_dropped_line_can_be_taken_up_again() -> None:
    """`drop` cuts without goodbye; `connect` comes back to the same world, which remembers what was said."""

    async def story() -> None:
        async with pair() as (bot, qq):
            number = await qq.private_says(ANN, "before")
            await bot.event()
            qq.drop()
            await qq.wait_closed()
            assert not qq.connected
            await qq.connect()
            await bot.event("meta_event")
            assert (await bot.call("get_msg", message_id=number))["data"]["raw_message"] == "before"

    asyncio.run(story())


def test_a_bot_that_hangs_up_is_noticed() -> None:
    """The end of the line is seen when the bot closes it."""

    async def story() -> None:
        async with pair() as (bot, qq):
            assert bot.socket is not None
            await bot.socket.close()
            await qq.wait_closed()
            assert not qq.connected

    asyncio.run(story())


def test_two_connections_of_one_account_share_a_world() -> None:
    """What the bot sends over either is in one world; the calls show which line carried it."""

    async def story() -> None:
        async with pair() as (bot, qq), bot_alone() as other, FakeQQ(other.url, world=qq.world) as second:
            await qq.group_says(GROUP, ANN, "hi")
            await other.event("meta_event")
            await other.call("send_group_msg", group_id=GROUP, message="by the second")
            assert [sent.text for sent in qq.sent] == ["by the second"]
            assert [call.action for call in second.calls] == ["send_group_msg"]
            assert qq.calls == []
            assert other.headers["X-Self-ID"] == bot.headers["X-Self-ID"]

    asyncio.run(story())


def test_two_worlds_do_not_share_ids() -> None:
    """A bot with a record must not take a new world's first message for one it has seen."""
    assert World().friend_message(ANN, [])["message_id"] != World().friend_message(ANN, [])["message_id"]


def test_the_stamp_is_on_every_event() -> None:
    """Extra fields are added to messages, notices and meta events alike."""

    async def story() -> None:
        async with bot_alone() as bot, FakeQQ(bot.url, stamp={"qiwo_stamp": "x"}) as qq:
            await qq.group_says(GROUP, ANN, "hi")
            await qq.notice({"notice_type": "group_increase"})
            await qq.heartbeat()
            await qq.raw_event({"post_type": "request"})
            events = await bot.events.take(5)
            assert [event["qiwo_stamp"] for event in events] == ["x"] * 5

    asyncio.run(story())


# -- events --------------------------------------------------------------------------------------------------


def test_a_group_message_has_napcats_shape() -> None:
    """The event equals the samples in names and types, and says who, where and in what role."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_member(GROUP, ANN, role="admin", nickname="Ann", card="Boss")
            number = await qq.group_says(GROUP, ANN, "status?")
            event = await bot.event()
            assert shape(event) == shape(sample("ev_group_at_str"))
            assert event["message"] == [{"type": "at", "data": {"qq": "10000"}}, text(" status?")]
            assert event["raw_message"] == "[CQ:at,qq=10000] status?"
            assert event["sender"] == {"user_id": ANN, "nickname": "Ann", "card": "Boss", "role": "admin"}
            assert (event["group_id"], event["user_id"], event["message_id"]) == (GROUP, ANN, number)
            await qq.group_says(GROUP, ANN, "hi", at_bot=False)
            assert shape(await bot.event()) == shape(sample("ev_group_text_napcat"))

    asyncio.run(story())


def test_a_private_message_has_napcats_shape() -> None:
    """Friends and temp chats differ as they do in life; a temp chat carries its group, or the stand-in."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.private_says(ANN, "hi")
            await qq.private_says(BOB, "hi", kind="temp", group=GROUP)
            await qq.private_says(BOB, "hi", kind="temp")
            friend, temp, nowhere = [await bot.event() for _ in range(3)]
            assert shape(friend) == shape(sample("ev_private_friend"))
            assert shape(temp) == shape(sample("ev_private_temp"))
            assert (friend["sub_type"], temp["sub_type"]) == ("friend", "group")
            assert temp["group_id"] == GROUP
            assert nowhere["group_id"] == sample("ev_private_temp_fallback_group")["group_id"]
            assert list(qq.world.friends) == [ANN]

    asyncio.run(story())


def test_what_people_type_is_never_a_code() -> None:
    """Text stays text, and its CQ form is escaped; segments go out as they are."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.private_says(ANN, "[CQ:at,qq=all] & co")
            event = await bot.event()
            assert event["message"] == [text("[CQ:at,qq=all] & co")]
            assert event["raw_message"] == "&#91;CQ:at,qq=all&#93; &amp; co"
            face = {"type": "face", "data": {"id": "1"}}
            await qq.group_says(GROUP, ANN, [face])
            assert (await bot.event())["message"] == [{"type": "at", "data": {"qq": "10000"}}, face]

    asyncio.run(story())


def test_a_role_is_the_newcomers_own_and_a_known_members_claim() -> None:
    """`role` makes a newcomer what he is; for a member whom the world knows, only this event says it."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.group_says(GROUP, ANN, "hi", role="admin")
            await qq.group_says(GROUP, ANN, "hi", role="owner")
            assert [(await bot.event())["sender"]["role"] for _ in range(2)] == ["admin", "owner"]
            assert qq.world.groups[GROUP].members[ANN].role == "admin"
            with pytest.raises(ValueError, match="role 'boss'"):
                await qq.group_says(GROUP, BOB, "hi", role="boss")

    asyncio.run(story())


def test_heartbeats_come_when_asked_for() -> None:
    """A heartbeat has the sample's shape; one that says offline changes get_status too."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.heartbeat(online=False, interval=5000)
            event = await bot.event("meta_event")
            assert shape(event) == shape(sample("ev_meta_heartbeat_offline"))
            assert (event["status"]["online"], event["interval"]) == (False, 5000)
            assert (await bot.call("get_status"))["data"]["online"] is False

    asyncio.run(story())


def test_any_event_and_any_frame_can_be_sent() -> None:
    """Samples go out as they are; a notice gets its envelope; what is no JSON goes out too."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.raw_event(sample("ev_group_segment_null_data"))
            assert await bot.event() == sample("ev_group_segment_null_data")
            await qq.notice({"notice_type": "group_ban", "group_id": GROUP, "duration": 600})
            event = await bot.event("notice")
            assert (event["self_id"], event["duration"], type(event["time"])) == (10000, 600, int)
            await qq.raw_frame("{oops")
            await qq.wait_closed()

    asyncio.run(story())


# -- the API -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("echo", ["1", 7, {"seq": 1}, ["a"], None, True, ""])
def test_the_echo_comes_back_untouched(echo: object) -> None:
    """Any JSON value is an echo."""

    async def story() -> None:
        async with pair() as (bot, _):
            await bot.frame(json.dumps({"action": "get_login_info", "echo": echo}))
            [answer] = await bot.answers.take()
            assert answer["echo"] == echo
            assert type(answer["echo"]) is type(echo)

    asyncio.run(story())


def test_no_echo_is_no_echo() -> None:
    """What was not sent does not come back."""

    async def story() -> None:
        async with pair() as (bot, _):
            await bot.frame('{"action": "get_login_info"}')
            [answer] = await bot.answers.take()
            assert "echo" not in answer

    asyncio.run(story())


def test_answers_have_the_shapes_of_the_samples() -> None:
    """Each answer equals its sample in names and types (the echo aside)."""

    async def story() -> None:
        async with pair() as (bot, qq):
            number = await qq.group_says(GROUP, ANN, "earlier", at_bot=False)
            for name, action, params in (
                ("api_login_info", "get_login_info", {}),
                ("api_status", "get_status", {}),
                ("api_send_ok", "send_group_msg", {"group_id": GROUP, "message": "x"}),
                ("api_send_forward_ok", "send_group_forward_msg", {"group_id": GROUP, "messages": [node("x")]}),
                ("api_get_msg_napcat", "get_msg", {"message_id": number}),
                ("api_member_info", "get_group_member_info", {"group_id": GROUP, "user_id": ANN}),
                ("api_failed_business", "get_msg", {"message_id": 1}),
                ("api_failed_param", "send_group_msg", {"message": "x"}),
                ("api_failed_unsupported", "x", {}),
            ):
                answer, wanted = await bot.call(action, **params), sample(name)
                assert shape(answer) == shape({**wanted, "echo": 1, "stream": ""}), name
                assert (answer["status"], answer["retcode"]) == (wanted["status"], wanted["retcode"]), name

    asyncio.run(story())


def test_what_the_bot_sends_is_on_record_in_order() -> None:
    """Each message is kept with chat, text and id, whichever of the actions sent it; get_msg finds it."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.group_says(GROUP, ANN, "hi")
            await qq.private_says(ANN, "hi")
            mention = {"type": "at", "data": {"qq": str(ANN)}}
            await bot.call("send_group_msg", group_id=str(GROUP), message=[mention, text(" one")])
            await bot.call("send_private_msg", user_id=ANN, message=text("two"))
            await bot.call("send_msg", message_type="group", group_id=GROUP, user_id=ANN, message="three")
            answer = await bot.call("send_msg", message_type="private", group_id=GROUP, user_id=ANN, message="four")
            assert [(sent.chat, sent.text) for sent in qq.sent] == [
                ("group:20001", " one"),
                ("private:10001", "two"),
                ("group:20001", "three"),
                ("private:10001", "four"),
            ]
            assert (qq.sent[0].segments[0], qq.sent[0].group, qq.sent[1].user) == (mention, GROUP, ANN)
            assert [sent.at for sent in qq.sent] == sorted(sent.at for sent in qq.sent)
            assert answer["data"]["message_id"] == qq.sent[3].message_id
            found = await bot.call("get_msg", message_id=qq.sent[0].message_id)
            assert (found["data"]["post_type"], found["data"]["user_id"]) == ("message_sent", 10000)

    asyncio.run(story())


def test_waiting_gives_each_message_once_and_by_chat() -> None:
    """`wait_sent` hands over what is new, filtered by chat; one that never comes is a TimeoutError."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.group_says(GROUP, ANN, "hi")
            await qq.private_says(ANN, "hi")
            waiting = asyncio.create_task(qq.wait_sent(2, to="group:20001"))
            await bot.call("send_group_msg", group_id=GROUP, message="a")
            await bot.call("send_private_msg", user_id=ANN, message="b")
            assert not waiting.done()
            await bot.call("send_group_msg", group_id=GROUP, message="c")
            assert [sent.text for sent in await waiting] == ["a", "c"]
            assert [sent.text for sent in await qq.wait_sent()] == ["b"]
            with pytest.raises(TimeoutError, match="1 new ones wanted"):
                await qq.wait_sent(timeout=0)

    asyncio.run(story())


def test_calls_are_on_record_and_can_be_waited_for() -> None:
    """Every API call is kept, also the ones that fail; `wait_call` finds its action only."""

    async def story() -> None:
        async with pair() as (bot, qq):
            waiting = asyncio.create_task(qq.wait_call("set_group_ban"))
            await bot.call("get_status")
            await bot.call("set_group_ban", group_id=1, user_id=2)
            assert (await waiting).params == {"group_id": 1, "user_id": 2}
            assert [call.action for call in qq.calls] == ["get_status", "set_group_ban"]

    asyncio.run(story())


def test_a_string_is_parsed_for_codes_as_napcat_parses_it() -> None:
    """A raw string can mention everybody, which is why the bot must send segments; auto_escape says it is text."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.private_says(ANN, "hi")
            raw = "a&amp;b[CQ:at,qq=all][CQ:share,url=http://x?a=1&#44;2,title=&#91;t&#93;] c"
            await bot.call("send_private_msg", user_id=ANN, message=raw)
            await bot.call("send_private_msg", user_id=ANN, message=raw, auto_escape=True)
            coded, plain = qq.sent
            assert coded.segments == (
                text("a&b"),
                {"type": "at", "data": {"qq": "all"}},
                {"type": "share", "data": {"url": "http://x?a=1,2", "title": "[t]"}},
                text(" c"),
            )
            assert plain.text == raw

    asyncio.run(story())


@pytest.mark.parametrize("data", [None, "x", 7])
def test_a_segment_without_data_breaks_nothing(data: object) -> None:
    """Null where an object belongs is passed on as it is, and reads as nothing."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await qq.private_says(ANN, [{"type": "text", "data": data}])
            assert (await bot.event())["raw_message"] == ""
            await bot.call("send_private_msg", user_id=ANN, message=[{"type": "shake", "data": data}])
            assert (qq.sent[0].text, qq.sent[0].segments) == ("", ({"type": "shake", "data": data},))

    asyncio.run(story())


def test_the_cq_form_says_the_same_as_the_segments() -> None:
    """Written as a CQ string and read again, a message is itself."""
    segments = [text("[a] & b, c"), {"type": "image", "data": {"file": "a,b&[1].png", "url": "http://x?y=1"}}]
    assert segments_of(cq_of(segments)) == segments


def node(words: str, user: int = 10000) -> Json:
    return {"type": "node", "data": {"user_id": user, "nickname": "企窝", "content": [text(words)]}}


def test_a_forward_card_is_one_message_with_all_of_its_text() -> None:
    """The text of a card is that of its nodes, in order; get_forward_msg opens it, by either id."""

    async def story() -> None:
        async with pair() as (bot, qq):
            quoted = await qq.group_says(GROUP, ANN, "asked", at_bot=False)
            by_id = {"type": "node", "data": {"id": str(quoted)}}
            first = await bot.call("send_group_forward_msg", group_id=GROUP, messages=[node("one"), node("two")])
            second = await bot.call("send_group_msg", group_id=GROUP, message=[by_id, node("three", BOB)])
            await qq.private_says(ANN, "hi")
            await bot.call("send_private_forward_msg", user_id=ANN, messages=[node("four")])
            assert [sent.text for sent in qq.sent] == ["one\ntwo\n", "asked\nthree\n", "four\n"]
            opened = await bot.call("get_forward_msg", id=first["data"]["res_id"])
            assert [message["message"] for message in opened["data"]["messages"]] == [[text("one")], [text("two")]]
            opened = await bot.call("get_forward_msg", message_id=second["data"]["message_id"])
            assert [message["user_id"] for message in opened["data"]["messages"]] == [ANN, BOB]
            card = await bot.call("get_msg", message_id=first["data"]["message_id"])
            assert card["data"]["message"] == [{"type": "forward", "data": {"id": first["data"]["res_id"]}}]

    asyncio.run(story())


BROKEN: dict[str, tuple[str, Json, int]] = {
    "unknown action": ("get_everything", {}, 1404),
    "no group": ("send_group_msg", {"message": "x"}, 1400),
    "no message": ("send_group_msg", {"group_id": GROUP}, 1400),
    "no user": ("send_private_msg", {"message": "x"}, 1400),
    "group is no number": ("send_group_msg", {"group_id": "our group", "message": "x"}, 1400),
    "group is empty": ("send_group_msg", {"group_id": "", "message": "x"}, 1400),
    "group is a list": ("send_group_msg", {"group_id": [], "message": "x"}, 1400),
    "message is a number": ("send_group_msg", {"group_id": GROUP, "message": 7}, 1400),
    "segment without type": ("send_group_msg", {"group_id": GROUP, "message": [{"data": {}}]}, 1400),
    "segment is a string": ("send_group_msg", {"group_id": GROUP, "message": ["x"]}, 1400),
    "node without content": ("send_group_forward_msg", {"group_id": GROUP, "messages": [{"type": "node"}]}, 1400),
    "nobody's node": (
        "send_group_forward_msg",
        {"group_id": GROUP, "messages": [{"type": "node", "data": {"user_id": "x", "content": "y"}}]},
        1400,
    ),
    "node of an unknown message": (
        "send_group_forward_msg",
        {"group_id": GROUP, "messages": [{"type": "node", "data": {"id": "1"}}]},
        1200,
    ),
    "no nodes": ("send_group_forward_msg", {"group_id": GROUP}, 1400),
    "empty message": ("send_group_msg", {"group_id": GROUP, "message": []}, 1200),
    "unknown group": ("send_group_msg", {"group_id": 1, "message": "x"}, 1200),
    "unknown person": ("send_private_msg", {"user_id": 1, "message": "x"}, 1200),
    "unknown message": ("get_msg", {"message_id": 1}, 1200),
    "unknown card": ("get_forward_msg", {"id": "x"}, 1200),
    "unknown member": ("get_group_member_info", {"group_id": GROUP, "user_id": 1}, 1200),
    "unknown stranger": ("get_stranger_info", {"user_id": 1}, 1200),
    "duration is a word": ("set_group_ban", {"group_id": GROUP, "user_id": ANN, "duration": "long"}, 1400),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_call_is_refused_and_changes_nothing(case: str) -> None:
    """The code tells parameters (1400), the deed (1200) and the unknown (1404) apart; nothing is sent."""
    action, params, retcode = BROKEN[case]

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_group(GROUP, bot_role="admin")
            qq.world.add_member(GROUP, ANN)
            answer = await bot.call(action, **params)
            assert (answer["status"], answer["retcode"], answer["data"]) == ("failed", retcode, None)
            assert answer["wording"] == answer["message"] != ""
            assert qq.sent == []
            assert qq.connected

    asyncio.run(story())


@pytest.mark.parametrize("frame", ["{", "[]", "7", '"x"'])
def test_a_frame_that_is_no_call_is_answered(frame: str) -> None:
    """What is no JSON object gets 1400, and the line stays."""

    async def story() -> None:
        async with pair() as (bot, qq):
            await bot.frame(frame)
            [answer] = await bot.answers.take()
            assert answer["retcode"] == 1400
            await bot.frame('{"action": "send_msg", "params": ["no", "object"], "echo": "e"}')
            assert (await bot.answered("e"))["retcode"] == 1400
            assert qq.connected

    asyncio.run(story())


def test_the_world_can_be_looked_at() -> None:
    """Lists and infos tell what the world holds."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_group(GROUP, "Test group", bot_role="owner")
            qq.world.add_member(GROUP, ANN, nickname="Ann", role="admin")
            qq.world.add_friend(BOB, "Bob")
            qq.world.add_stranger(777, "Sam")
            [group] = (await bot.call("get_group_list"))["data"]
            assert (group["group_id"], group["group_name"], group["member_count"]) == (GROUP, "Test group", 2)
            assert (await bot.call("get_group_info", group_id=GROUP))["data"] == group
            members = (await bot.call("get_group_member_list", group_id=GROUP))["data"]
            assert [(member["user_id"], member["role"]) for member in members] == [(10000, "owner"), (ANN, "admin")]
            [friend] = (await bot.call("get_friend_list"))["data"]
            assert (friend["user_id"], friend["nickname"]) == (BOB, "Bob")
            for user, nickname in ((777, "Sam"), (ANN, "Ann"), (BOB, "Bob"), (10000, "企窝")):
                assert (await bot.call("get_stranger_info", user_id=user))["data"]["nickname"] == nickname
            assert (await bot.call("get_version_info"))["data"]["protocol_version"] == "v11"
            for action in ("can_send_image", "can_send_record"):
                assert (await bot.call(action))["data"] == {"yes": True}
            assert (await bot.call("send_like", user_id=ANN, times=10))["retcode"] == 0

    asyncio.run(story())


def _member(world: World, user: int = ANN) -> Member | None:
    return world.groups[GROUP].members.get(user)


DEEDS: dict[str, tuple[str, Json, Callable[[World], object], object]] = {
    "kick": ("set_group_kick", {"user_id": ANN}, _member, None),
    "promote": ("set_group_admin", {"user_id": ANN}, lambda w: w.groups[GROUP].members[ANN].role, "admin"),
    "title": (
        "set_group_special_title",
        {"user_id": ANN, "special_title": "VIP"},
        lambda w: w.groups[GROUP].members[ANN].title,
        "VIP",
    ),
    "card": (
        "set_group_card",
        {"user_id": ANN, "card": "Boss"},
        lambda w: w.groups[GROUP].members[ANN].card,
        "Boss",
    ),
    "name": ("set_group_name", {"group_name": "New"}, lambda w: w.groups[GROUP].name, "New"),
    "mute": (
        "set_group_ban",
        {"user_id": ANN, "duration": 60},
        lambda w: w.groups[GROUP].members[ANN].muted_until,
        1060.0,
    ),
    "mute all": ("set_group_whole_ban", {"enable": True}, lambda w: w.groups[GROUP].muted, True),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_an_owner_may_and_a_member_may_not(deed: str) -> None:
    """Each deed changes the world when the bot has the power, and is refused without a change when it has not."""
    action, params, look, after = DEEDS[deed]

    async def story() -> None:
        async with pair(World(clock=FakeClock(now=1000))) as (bot, qq):
            qq.world.add_group(GROUP, bot_role="member")
            qq.world.add_member(GROUP, ANN)
            before = look(qq.world)
            answer = await bot.call(action, group_id=GROUP, **params)
            assert (answer["retcode"], answer["wording"]) == (1200, "权限不足")
            assert look(qq.world) == before != after
            qq.world.add_group(GROUP, bot_role="owner")
            assert (await bot.call(action, group_id=GROUP, **params))["retcode"] == 0
            assert look(qq.world) == after

    asyncio.run(story())


def test_an_admin_has_no_power_over_his_equals() -> None:
    """The bot as admin can neither mute an admin nor make one; its own card it may always change."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_group(GROUP, bot_role="admin")
            qq.world.add_member(GROUP, ANN, role="admin")
            qq.world.add_member(GROUP, BOB)
            assert (await bot.call("set_group_ban", group_id=GROUP, user_id=ANN))["retcode"] == 1200
            assert (await bot.call("set_group_admin", group_id=GROUP, user_id=BOB))["retcode"] == 1200
            assert (await bot.call("set_group_special_title", group_id=GROUP, user_id=BOB))["retcode"] == 1200
            assert (await bot.call("set_group_ban", group_id=GROUP, user_id=BOB))["retcode"] == 0
            qq.world.add_group(GROUP, bot_role="member")
            assert (await bot.call("set_group_card", group_id=GROUP, user_id=10000, card="me"))["retcode"] == 0
            await bot.call("set_group_leave", group_id=GROUP)
            assert qq.world.groups == {}

    asyncio.run(story())


def test_an_owner_takes_back_what_he_gave() -> None:
    """`enable: false` demotes and lifts the mute of all, in whatever form it is written; 0 seconds lift a ban."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_group(GROUP, bot_role="owner").muted = True
            qq.world.add_member(GROUP, ANN, role="admin")
            await bot.call("set_group_admin", group_id=GROUP, user_id=ANN, enable=False)
            await bot.call("set_group_whole_ban", group_id=GROUP, enable="false")
            assert qq.world.groups[GROUP].members[ANN].role == "member"
            assert not qq.world.groups[GROUP].muted
            await bot.call("set_group_ban", group_id=GROUP, user_id=ANN, duration=0)
            assert qq.world.groups[GROUP].members[ANN].muted_until == 0.0

    asyncio.run(story())


def test_a_muted_bot_cannot_send_until_its_time_is_up() -> None:
    """Muted, alone or with all, a send fails; when the mute runs out or the bot is admin, it goes through."""

    async def story() -> None:
        clock = FakeClock()
        async with pair(World(clock=clock)) as (bot, qq):
            group = qq.world.add_group(GROUP)
            qq.world.change_member(GROUP, 10000, muted_until=clock.now() + 60)
            assert (await bot.call("send_group_msg", group_id=GROUP, message="x"))["retcode"] == 1200
            await clock.advance(60)
            assert (await bot.call("send_group_msg", group_id=GROUP, message="x"))["retcode"] == 0
            group.muted = True
            assert (await bot.call("send_group_msg", group_id=GROUP, message="x"))["retcode"] == 1200
            qq.world.add_group(GROUP, bot_role="admin")
            assert (await bot.call("send_group_msg", group_id=GROUP, message="x"))["retcode"] == 0

    asyncio.run(story())


def test_a_message_can_be_taken_back() -> None:
    """The bot's own always, a member's by an admin; then it cannot be found; a private one of others never."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_group(GROUP, bot_role="member")
            theirs = await qq.group_says(GROUP, ANN, "spam")
            private = await qq.private_says(ANN, "hi")
            own = (await bot.call("send_group_msg", group_id=GROUP, message="x"))["data"]["message_id"]
            assert (await bot.call("delete_msg", message_id=theirs))["retcode"] == 1200
            assert (await bot.call("delete_msg", message_id=private))["retcode"] == 1200
            assert (await bot.call("delete_msg", message_id=own))["retcode"] == 0
            assert (await bot.call("get_msg", message_id=own))["retcode"] == 1200
            qq.world.add_group(GROUP, bot_role="admin")
            assert (await bot.call("delete_msg", message_id=theirs))["retcode"] == 0
            assert list(qq.world.messages) == [private]

    asyncio.run(story())


def test_old_messages_are_forgotten() -> None:
    """As with NapCat, only so many can still be found by their id."""
    world = World()
    first = world.friend_message(ANN, [])["message_id"]
    for _ in range(REMEMBERED):
        last = world.friend_message(ANN, [])["message_id"]
    assert len(world.messages) == REMEMBERED
    assert (first in world.messages, last in world.messages) == (False, True)


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_a_scripted_answer_counts_once_or_always() -> None:
    """Once: the next call only, and nothing is sent. Always: every call. `delivered`: it failed, and arrived."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_friend(ANN)
            qq.answer("send_private_msg", retcode=1200, wording="EventChecker Failed")
            qq.answer("send_private_msg", retcode=1200, wording="Timeout", delivered=True)
            failed, lost, good = [await bot.call("send_private_msg", user_id=ANN, message=f"m{at}") for at in range(3)]
            assert (failed["status"], failed["retcode"], failed["wording"]) == (
                "failed",
                1200,
                "EventChecker Failed",
            )
            assert (lost["retcode"], lost["wording"]) == (1200, "Timeout")
            assert good["retcode"] == 0
            assert [sent.text for sent in qq.sent] == ["m1", "m2"]
            qq.answer("get_status", data={"online": True, "odd": 1}, always=True)
            for _ in range(2):
                assert (await bot.call("get_status"))["data"] == {"online": True, "odd": 1}

    asyncio.run(story())


def test_an_async_answer_has_the_samples_form() -> None:
    """`status: async` says neither sent nor failed."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_friend(ANN)
            qq.answer("send_private_msg", status="async", retcode=1, delivered=True)
            answer = await bot.call("send_private_msg", user_id=ANN, message="x")
            wanted = sample("api_async")
            assert {name: answer[name] for name in wanted} == {**wanted, "echo": answer["echo"]}
            assert len(qq.sent) == 1

    asyncio.run(story())


def test_a_held_call_is_done_but_not_answered() -> None:
    """While one action is held others are answered; set the event, and the answers come; then it is over."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_friend(ANN)
            hold = qq.hold("send_private_msg")
            first = await bot.ask("send_private_msg", user_id=ANN, message="a")
            assert (await bot.call("get_status"))["retcode"] == 0
            assert [sent.text for sent in await qq.wait_sent()] == ["a"]
            assert len(bot.answers) == 1
            hold.set()
            assert (await bot.answered(first))["data"]["message_id"] == qq.sent[0].message_id
            assert (await bot.call("send_private_msg", user_id=ANN, message="b"))["retcode"] == 0
            qq.hold("send_private_msg")
            await bot.ask("send_private_msg", user_id=ANN, message="c")
            assert (await bot.call("get_status"))["retcode"] == 0
            assert len(bot.answers) == 4

    asyncio.run(story())


def test_a_delayed_answer_waits_for_the_worlds_clock() -> None:
    """The answer comes when the world's time has come, and others do not wait for it."""

    async def story() -> None:
        clock = FakeClock()
        async with pair(World(clock=clock)) as (bot, qq):
            qq.delay("get_login_info", 30)
            late = await bot.ask("get_login_info")
            assert (await bot.call("get_status"))["retcode"] == 0
            await clock.advance(29)
            assert (await bot.call("get_status"))["retcode"] == 0
            assert all(answer["echo"] != late for answer in bot.answers)
            await clock.advance(1)
            assert (await bot.answered(late))["retcode"] == 0
            qq.delay("get_login_info", 0)
            assert (await bot.call("get_login_info"))["retcode"] == 0

    asyncio.run(story())


def test_a_line_cut_in_the_middle_of_a_send() -> None:
    """The message is sent, its answer never comes, and releasing it later harms nobody."""

    async def story() -> None:
        async with pair() as (bot, qq):
            qq.world.add_friend(ANN)
            hold = qq.hold("send_private_msg")
            await bot.ask("send_private_msg", user_id=ANN, message="a")
            await qq.wait_sent()
            qq.drop()
            await qq.wait_closed()
            complaints: list[Json] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
            hold.set()
            await settle()
            gc.collect()
            await qq.connect()
            assert (await bot.event("meta_event"))["sub_type"] == "connect"
            assert bot.answers == complaints == []

    asyncio.run(story())


def test_a_fault_of_the_fake_itself_is_not_lost() -> None:
    """If the world breaks, the line closes and the test hears of it at the end."""

    async def story() -> None:
        async with pair() as (bot, qq):
            del qq.world.add_group(GROUP).members[10000]
            await bot.ask("send_group_msg", group_id=GROUP, message="x")
            await qq.wait_closed()

    with pytest.raises(KeyError, match="10000"):
        asyncio.run(story())
