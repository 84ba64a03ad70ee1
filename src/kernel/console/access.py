"""Who may see a page: whoever opened the link that was printed at start. Host and Origin keep other sites out."""

import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from html import escape
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

Endpoint = Callable[[Request], Awaitable[Response]]

HEADERS = (
    ("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)

_PAGE = """<!doctype html>
<html lang="zh-CN">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
{head}
<title>企窝</title>
<link rel="icon" href="/playground/static/icon.svg">
<link rel="stylesheet" href="/playground/static/playground.css">
<body class="notice">
<h1>{title}</h1>
{body}
"""

_NO_LINK = """<p>请打开启动企窝的那个终端，找到这样一行，点开里面的链接：</p>
<p><code>http://127.0.0.1:{port}/?token=…</code></p>
<p>没有设置 <code>QIWO_CONSOLE_TOKEN</code> 时，每次启动都会换一个新的，旧链接和旧页面随之失效。</p>
<p lang="en">Open the link that was printed in the terminal where Qiwo was started. Each start makes a new one,
unless QIWO_CONSOLE_TOKEN is set.</p>"""


class Access:
    """Lets in by token, then by a cookie that is this process's own: those of an earlier start open nothing."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token
        self._port = port
        self._secret = secrets.token_urlsafe(32)
        # Cookies know no ports: another bot on this machine must not overwrite ours.
        self._cookie = f"qiwo_{port}"

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, for those who may; the headers on whatever is answered."""

        async def guarded(request: Request) -> Response:
            response = self._answer(request) or await endpoint(request)
            response.headers.update(dict(HEADERS))
            return response

        return guarded

    def _answer(self, request: Request) -> Response | None:
        """What is answered in the endpoint's place; None when it may be seen."""
        host = request.headers.get("host", "")
        if not self._ours(host):
            return _page(403, "这个地址不对", "<p>请用 127.0.0.1 或 localhost 打开。Not the address of this bot.</p>")
        if request.method not in ("GET", "HEAD") and request.headers.get("origin") != f"http://{host}":
            return _page(403, "请求来自别的网站", "<p>已拒绝。Sent from another site: refused.</p>")
        if request.method == "GET" and _same(request.query_params.get("token", ""), self._token):
            return self._welcome(request.url.path)
        if not _same(request.cookies.get(self._cookie, ""), self._secret):
            return _page(401, "需要启动时打印的链接", _NO_LINK.format(port=self._port))
        return None

    def _ours(self, host: str) -> bool:
        """`localhost` or an IP literal, with our port: any name may be made to lead here by whoever owns it."""
        try:
            address = urlsplit(f"//{host}")
            if (address.port or 80) != self._port:
                return False
            return address.hostname == "localhost" or bool(ip_address(address.hostname or ""))
        except ValueError:
            return False

    def _welcome(self, path: str) -> Response:
        """Hand the cookie out, and move on without the token. The page itself moves on: after a redirect a browser
        holds a strict cookie back when the link was on another site."""
        head = f'<meta http-equiv="refresh" content="0; url={escape(path)}">'
        response = _page(200, "欢迎", "<p>正在打开…</p>", head)
        response.set_cookie(self._cookie, self._secret, httponly=True, samesite="strict")
        return response


class WithoutQuery(logging.Filter):
    """Takes the queries out of the server's lines: a token may stand there."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(arg.partition("?")[0] if isinstance(arg, str) else arg for arg in record.args)
        return True


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())


def _page(status: int, title: str, body: str, head: str = "") -> Response:
    return HTMLResponse(_PAGE.format(title=title, body=body, head=head), status)
