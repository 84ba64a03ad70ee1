"""A browser's part in the playground, without a browser: the printed link, the cookie, what is said, the stream."""

import json
import re
import time
from collections.abc import Generator
from contextlib import closing
from itertools import takewhile
from typing import Any, Self

import httpx

from kernel.testkit import BotProcess

ROUNDS = 15
"""Reports of the status, one a second, after which a line that was waited for will not come any more."""

Line = dict[str, Any]


def client_of(bot: BotProcess) -> httpx.Client:
    return httpx.Client(base_url=bot.url, trust_env=False, verify=False, timeout=10.0)


def link_in(bot: BotProcess) -> str:
    """The link that the bot prints once its page can be opened."""
    for _ in range(200):
        if found := re.search(rf"Open the playground: ({re.escape(bot.url)}/\?token=\S+)", bot.log):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"no link:\n{bot.log}")


class Page:
    """An open page, closed by `with`. Reads the stream in order; every line is handed over once."""

    def __init__(self, bot: BotProcess, link: str) -> None:
        self.client = client_of(bot)
        self.origin = bot.url
        assert self.client.get(link).status_code == 200
        self.lines = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lines.close()
        self.client.close()

    def post(self, **said: Any) -> httpx.Response:
        headers = {"Origin": self.origin}
        return self.client.post("/playground/say", json={"at": True, **said}, headers=headers)

    def say(self, user: int, text: str, chat: str = "private", **more: Any) -> None:
        response = self.post(user=user, text=text, chat=chat, **more)
        assert response.status_code == 204, response.text

    def answer(self, user: int, chat: str = "private") -> str:
        """The next thing that the bot says in that chat."""
        place = "group" if chat == "group" else f"private:{user}"
        return text_of(next(line for line in self.lines if line["bot"] and line["chat"] == place))

    def ask(self, user: int, text: str, chat: str = "private", **more: Any) -> str:
        self.say(user, text, chat, **more)
        return self.answer(user, chat)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/playground/status").json()
        return found

    def line(self, text: str) -> Line:
        """The next line with this in its text, whoever said it."""
        return next(line for line in self.lines if text in text_of(line))

    def _read(self) -> Generator[Line, None, None]:
        rounds = 0
        with closing(events(self.client)) as stream:
            for kind, data, _ in stream:
                if kind == "line":
                    rounds = 0
                    yield data
                else:
                    rounds += 1
                    assert rounds < ROUNDS, "nothing more is said"


def events(client: httpx.Client, after: str = "") -> Generator[tuple[str, Line, str], None, None]:
    """The stream's events: kind, data, id."""
    headers = {"Last-Event-ID": after} if after else {}
    with client.stream("GET", "/playground/events", headers=headers) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for row in stream.iter_lines():
            name, _, value = row.partition(": ")
            fields[name] = value
            if not row:
                yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
                fields = {}


def said_so_far(client: httpx.Client, after: str = "") -> dict[str, Line]:
    """What a page that is opened now gets to see at once, by its id in the stream."""
    with closing(events(client, after)) as stream:
        return {ident: data for _, data, ident in takewhile(lambda event: event[0] == "line", stream)}


def text_of(line: Line) -> str:
    return "".join(part["text"] for part in line["parts"])
