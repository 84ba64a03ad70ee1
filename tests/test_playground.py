"""The playground through the real app: who gets in, who speaks with what right, what the page is told."""

import asyncio
import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.page import Page, client_of, link_in, said_so_far, text_of
from tests.stage import ROOT

from kernel.adapters.model.demo import PROMPTS
from kernel.console.access import Access
from kernel.console.people import PEOPLE
from kernel.console.playground import EXPECT, address_of
from kernel.settings import Settings
from kernel.testkit import BotProcess, FakeQQ

CLOCK, STATE, TWO, CRASH, SLOW = (text for _, text in PROMPTS)
OPERATOR, OWNER, ADMIN, MEMBER, OTHER, FRIEND, STRANGER = PEOPLE


@pytest.fixture(scope="module")
def bot() -> Iterator[BotProcess]:
    """With no configuration at all."""
    with BotProcess(ROOT) as one:
        yield one


@pytest.fixture(scope="module")
def page(bot: BotProcess) -> Iterator[Page]:
    with Page(bot, link_in(bot)) as one:
        yield one


# -- who gets in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/playground", "/playground/events", "/playground/status", "/?token=wrong", "/?token="]
)
def test_without_the_link_there_is_only_the_word_where_to_find_it(bot: BotProcess, path: str) -> None:
    """401, a page that names the terminal and the link's form, and nothing else."""
    with client_of(bot) as client:
        response = client.get(path)
    assert response.status_code == 401
    assert f"http://127.0.0.1:{bot.port}/?token=…" in response.text
    assert "终端" in response.text
    assert "set-cookie" not in response.headers


def test_without_the_cookie_nobody_speaks(bot: BotProcess) -> None:
    """A POST from the right origin is refused without the cookie."""
    with client_of(bot) as client:
        response = client.post(
            "/playground/say",
            json={"user": OPERATOR, "chat": "private", "text": STATE},
            headers={"Origin": bot.url},
        )
    assert response.status_code == 401


def test_the_link_gives_a_cookie_and_moves_on_without_the_token(bot: BotProcess, page: Page) -> None:
    """HttpOnly, SameSite=Strict, not the token, named by the port; the token opens no page by itself."""
    link = link_in(bot)
    token = link.rpartition("=")[2]
    with client_of(bot) as client:
        welcome = client.get(link)
        cookie = welcome.headers["set-cookie"]
        assert cookie.startswith(f"qiwo_{bot.port}=")
        assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
        assert token not in cookie
        assert 'content="0; url=/"' in welcome.text
        assert token not in welcome.text
        home = client.get("/")
        assert (home.status_code, home.headers["location"]) == (303, "/playground")


@pytest.mark.parametrize(
    "host", ["evil.example:{port}", "localhost.evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "", ":{port}"]
)
def test_another_host_is_refused_even_with_the_cookie(page: Page, bot: BotProcess, host: str) -> None:
    """Against DNS rebinding: only localhost or an address, with our port."""
    response = page.client.get("/playground/status", headers={"Host": host.format(port=bot.port)})
    assert response.status_code == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}", "192.168.1.5:{port}"])
def test_localhost_and_addresses_are_let_in(page: Page, bot: BotProcess, host: str) -> None:
    """However this machine is called by number."""
    response = page.client.get("/playground/status", headers={"Host": host.format(port=bot.port)})
    assert response.status_code == 200


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 401), ("127.0.0.1:80", 401), ("127.0.0.1:8080", 403)])
def test_port_80_is_left_out_by_browsers(host: str, status: int) -> None:
    """A Host without a port means port 80."""

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("in")

    async def ask() -> httpx.Response:
        app = Starlette()
        app.add_route("/", Access("token", 80).guard(endpoint))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get("http://127.0.0.1/", headers={"Host": host})

    assert asyncio.run(ask()).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://{host}", None])
def test_a_post_from_another_site_is_refused(page: Page, bot: BotProcess, origin: str | None) -> None:
    """The cookie alone is no proof that our page speaks; what was refused is not said."""
    headers = {"Origin": origin.format(host=f"127.0.0.1:{bot.port}")} if origin else {}
    said = {"user": MEMBER, "chat": "group", "text": f"from {origin}"}
    response = page.client.post("/playground/say", json=said, headers=headers)
    assert response.status_code == 403
    page.say(MEMBER, f"after {origin}", "group", at=False)
    with client_of(bot) as client:
        client.cookies = page.client.cookies
        texts = [text_of(line) for line in said_so_far(client).values()]
    assert f"from {origin}" not in texts
    assert f"after {origin}" in texts


def test_an_earlier_start_s_cookie_opens_nothing_and_a_chosen_token_is_not_printed(tmp_path: Path) -> None:
    """The cookie is the process's own: the same port and the same token do not revive it."""
    env = {"QIWO_CONSOLE_TOKEN": "chosen-by-the-operator"}
    with BotProcess(ROOT, env=env, data=tmp_path) as bot:
        link = f"{bot.url}/?token=chosen-by-the-operator"
        with client_of(bot) as client:
            client.get(link)
            assert client.get("/playground").status_code == 200
            bot.stop()
            bot.start()
            assert client.get("/playground").status_code == 401
            client.get(link)
            assert client.get("/playground").status_code == 200
        assert link_in(bot).endswith("（QIWO_CONSOLE_TOKEN）")
        assert "chosen-by-the-operator" not in bot.log


def test_every_answer_carries_the_policy_and_no_page_needs_more(bot: BotProcess, page: Page) -> None:
    """CSP on pages, errors and streams; nothing inline, nothing from elsewhere."""
    with client_of(bot) as stranger:
        answers = [page.client.get("/playground"), stranger.get("/"), stranger.get(link_in(bot)), page.post()]
    for answer in answers:
        assert answer.headers["content-security-policy"].startswith("default-src 'self'; ")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"<style|style=|<script(?! src=)|\bon\w+=|(src|href)=\"(?!/)", answer.text)
    for name in set(re.findall(r'"(/playground/static/[^"]+)"', answers[0].text)):
        assert page.client.get(name).status_code == 200


def test_the_token_is_printed_once_and_never_logged(bot: BotProcess, page: Page) -> None:
    """The server's access lines lose their queries, whatever the token's spelling there."""
    link = link_in(bot)
    token = link.rpartition("=")[2]
    for path in (link, f"/playground?token={token}", f"/?%74oken={token}", f"/nowhere?token={token}"):
        page.client.get(path)
    page.client.get("/playground/status")
    assert '"GET /nowhere HTTP/1.1" 404' in bot.log
    assert bot.log.count(token) == 1


# -- who speaks ----------------------------------------------------------------------------------------------


def test_a_member_gets_an_answer_over_the_stream(page: Page) -> None:
    """An allowed call: the question with who, badge and mention, then the bot's reply."""
    page.say(MEMBER, CLOCK, "group")
    question = page.line(CLOCK)
    assert (question["name"], question["badge"], question["chat"]) == ("小明", "群成员", "group")
    assert question["parts"][0] == {"kind": "at", "text": "@企窝"}
    answer = page.answer(MEMBER, "group")
    assert "time_now 的结果是「20" in answer


def test_without_a_mention_a_group_is_not_answered(page: Page) -> None:
    """Only the second question reaches the model."""
    page.say(MEMBER, STATE, "group", at=False)
    assert "time_now" in page.ask(MEMBER, CLOCK, "group")


@pytest.mark.parametrize(
    ("user", "chat", "role"),
    [
        (OPERATOR, "group", "operator"),
        (OPERATOR, "private", "operator"),
        (OWNER, "group", "owner"),
        (ADMIN, "group", "admin"),
        (MEMBER, "group", "member"),
        (OTHER, "group", "member"),
        (OWNER, "private", "stranger"),
        (FRIEND, "private", "friend"),
        (STRANGER, "private", "stranger"),
    ],
)
def test_what_is_denied_to_others_is_allowed_to_the_operator(page: Page, user: int, chat: str, role: str) -> None:
    """Everybody has the role that the page shows; qq_call_state is the operator's alone."""
    answer = page.ask(user, STATE, chat)
    if role == "operator":
        assert '"role": "operator"' in answer
    else:
        assert "qq_call_state 被拒绝，没有运行：" in answer


def test_each_speaks_in_his_own_role(page: Page, bot: BotProcess) -> None:
    """Private chats come in as what they are: a friend's, a stranger's, a temp one without the group's role."""
    for user in (FRIEND, STRANGER, ADMIN):
        page.ask(user, CLOCK)
    seen = sources(bot)
    assert seen[str(FRIEND)] == ("friend", f"private:{FRIEND}")
    assert seen[str(STRANGER)] == ("stranger", f"private:{STRANGER}")
    assert seen[str(ADMIN)] == ("stranger", f"temp:{ADMIN}")


@pytest.mark.parametrize("stamp", [None, {"qiwo_stamp": "0" * 32}, {"qiwo_stamp": ""}])
def test_the_operator_s_number_alone_is_no_operator(bot: BotProcess, stamp: dict[str, str] | None) -> None:
    """Who connects by himself and says that he is user 10 does not know the process's stamp."""

    async def scene() -> str:
        async with FakeQQ(bot.onebot, account=20000, stamp=stamp) as qq:
            await qq.private_says(OPERATOR, STATE)
            [sent] = await qq.wait_sent()
            return sent.text

    assert "qq_call_state 被拒绝" in asyncio.run(scene())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"user": 99, "chat": "private", "text": "x"}, "没有这个人"),
        ({"user": FRIEND, "chat": "group", "text": "x"}, "不在群里"),
        ({"user": MEMBER, "chat": "group", "text": "  "}, "空的，或者太长"),
        ({"user": MEMBER, "chat": "group", "text": "x" * 2001}, "空的，或者太长"),
        ({"user": MEMBER, "chat": "elsewhere", "text": "x"}, "发不出去"),
    ],
)
def test_what_cannot_be_said_is_told(page: Page, said: dict[str, object], words: str) -> None:
    """422 with one sentence for the page to show."""
    response = page.post(**said)
    assert response.status_code == 422
    assert words in response.json()["error"]


# -- what the demo shows -------------------------------------------------------------------------------------


def test_two_calls_in_one_step_both_have_their_result(page: Page) -> None:
    """First the message that the tool sends, then the answer with both results."""
    assert page.ask(OTHER, TWO).endswith("这一句由 output_send__qq 发出。")
    answer = page.answer(OTHER)
    assert "time_now 的结果是「20" in answer
    assert "output_send__qq 的结果是「sent」" in answer


def test_three_crashes_and_the_next_is_refused_with_the_seconds(page: Page) -> None:
    """The bot goes on; the fourth is quarantined at once, in words and on the panel, in this chat only."""
    for crash in range(3):
        assert "crash_now 崩溃了" in page.ask(FRIEND, CRASH)
        [trouble] = page.status()["trouble"]
        assert (trouble["crashes"], trouble["limit"]) == ((crash + 1) % 3, 3)
    refused = re.search(r"crash_now 正在熔断，这次没有运行，还要等 (\d+) 秒", page.ask(FRIEND, CRASH))
    assert refused
    assert 20 <= int(refused[1]) <= 33
    [trouble] = page.status()["trouble"]
    assert (trouble["what"], trouble["chat"], trouble["state"]) == ("crash_now", "阿宁 的私聊", "熔断")
    assert trouble["open"] is True
    assert 20 <= trouble["seconds"] <= 33
    assert "熔断（只在这个聊天）：demo.crash_now，还有" in page.ask(FRIEND, "/status")
    assert "crash_now 崩溃了" in page.ask(OWNER, CRASH)


def test_stop_ends_the_slow_tool(page: Page) -> None:
    """While it runs the panel counts it; /stop is answered at once, and nothing runs any more."""
    page.say(ADMIN, SLOW)
    wait_for(lambda: page.status()["running"] == 1)
    begun = time.monotonic()
    assert page.ask(ADMIN, "/stop") == "已停下。"
    wait_for(lambda: page.status()["running"] == 0)
    assert time.monotonic() - begun < 10


def test_a_quote_is_shown_and_wakes_the_bot(page: Page) -> None:
    """Answering one of the bot's messages needs no mention; the page shows what is quoted."""
    page.say(MEMBER, "/help", "group")
    quoted = page.line("可以用的命令")
    page.say(MEMBER, f"{CLOCK} 答这条", "group", at=False, quote=quoted["id"])
    line = page.line("答这条")
    assert line["quote"]["name"] == "企窝"
    assert line["quote"]["text"] == text_of(quoted)
    assert "time_now" in page.answer(MEMBER, "group")


def test_a_stream_that_comes_back_goes_on_where_it_was(page: Page, bot: BotProcess) -> None:
    """Last-Event-ID: only what was said since; without it, all."""
    page.ask(MEMBER, CLOCK, "group")
    with client_of(bot) as client:
        client.cookies = page.client.cookies
        idents = list(said_so_far(client))
        assert len(idents) >= 2
        assert list(said_so_far(client, idents[-2])) == idents[-1:]


def test_the_page_offers_every_person_and_prompt_with_what_to_expect(page: Page) -> None:
    """Names, badges, prompts, expectations, commands: all there, and nobody says 隔离."""
    text = page.client.get("/playground").text
    for person in PEOPLE.values():
        assert f'value="{person.id}" data-name="{person.name}"' in text
        assert f'<b class="badge">{person.badge}</b>' in text
    for (label, said), expect in zip(PROMPTS, EXPECT, strict=True):
        assert label in text
        assert f'data-say="{said}"' in text
        assert expect in text
    assert 'data-say="/stop"' in text
    assert "隔离" not in text


# -- whether it is there, and its end ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", [{"QIWO_MODEL_URL": "http://127.0.0.1:9/v1"}, {"HOST": "0.0.0.0"}], ids=["model", "open bind"]
)
def test_it_is_not_there_unless_somebody_tries_things_out(env: dict[str, str]) -> None:
    """A model is set, or others could connect: no page at all."""
    with BotProcess(ROOT, env=env) as bot, client_of(bot) as client:
        for path in ("/", "/playground", "/playground/events", "/playground/static/playground.css"):
            assert client.get(path).status_code == 404


def test_switched_off_its_plugin_is_not_there_either() -> None:
    """No page, and the tools that misbehave do not exist, although the demo model answers."""

    async def scene(bot: BotProcess) -> str:
        async with FakeQQ(bot.onebot) as qq:
            await qq.private_says(20002, CRASH)
            [sent] = await qq.wait_sent()
            return sent.text

    with BotProcess(ROOT, env={"QIWO_PLAYGROUND": "off"}) as bot, client_of(bot) as client:
        assert client.get("/").status_code == 404
        assert "unknown tool: crash_now" in asyncio.run(scene(bot))


def test_it_can_be_asked_for_on_an_open_bind() -> None:
    """Then its own account presents the token that was made there."""
    env = {"HOST": "0.0.0.0", "QIWO_PLAYGROUND": "on"}
    with BotProcess(ROOT, env=env) as bot, Page(bot, link_in(bot)) as page:
        assert "time_now" in page.ask(MEMBER, CLOCK)


def test_a_signal_ends_it_at_once_with_a_page_open() -> None:
    """SIGTERM with an open stream: out in under 3 s, because the stream ends and not because it is cut."""
    with BotProcess(ROOT) as bot, Page(bot, link_in(bot)) as page:
        page.say(STRANGER, SLOW)
        page.line(SLOW)
        reader = threading.Thread(target=lambda: list(page.lines))
        reader.start()
        wait_for(lambda: page.status()["running"] == 1)
        begun = time.monotonic()
        bot.terminate()
        bot.wait()
        assert time.monotonic() - begun < 3.0
        reader.join(5)
        assert not reader.is_alive()
        assert "exceeded" not in bot.log
        assert "Traceback" not in bot.log


def test_a_taken_port_is_one_sentence(bot: BotProcess) -> None:
    """Before anything is started, and no traceback."""
    with (
        pytest.raises(RuntimeError, match=rf"ended with 2:\nQiwo: port {bot.port} on 127.0.0.1 cannot be used") as told,
        BotProcess(ROOT, env={"PORT": str(bot.port)}),
    ):
        pytest.fail("it never stood")
    assert "Traceback" not in str(told.value)
    assert len(str(told.value).strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1:8080"),
        ("0.0.0.0", "127.0.0.1:8080"),
        ("::", "[::1]:8080"),
        ("192.168.1.5", "192.168.1.5:8080"),
    ],
)
def test_where_it_connects_to(host: str, address: str) -> None:
    """An open bind is reached by the loopback; IPv6 stands in brackets."""
    assert address_of(Settings(host=host)) == address


# -- helpers -------------------------------------------------------------------------------------------------


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(200):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it never came")


def sources(bot: BotProcess) -> dict[str, tuple[str, str]]:
    """Of each user's last turn on record: role and scene."""
    with closing(sqlite3.connect(f"file:{bot.data / 'qiwo.db'}?mode=ro", uri=True)) as db:
        rows = [json.loads(source) for (source,) in db.execute("SELECT source FROM turns ORDER BY seq")]
    return {row["user"]: (row["role"], f"{row['scene']['kind']}:{row['scene']['id']}") for row in rows}
