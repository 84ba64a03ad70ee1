"""NoneBot's OneBot v11 adapter, with its border made firm: the newest socket of an account is the one that counts."""

import asyncio
import hmac
import logging
from typing import Any

from nonebot.adapters import Event as AnyEvent
from nonebot.adapters.onebot.utils import get_auth_bearer
from nonebot.adapters.onebot.v11 import Adapter, Event
from nonebot.drivers import Driver, Request, Response, WebSocket

from kernel.adapters.embedded.clock import SystemClock

ARRIVED = "qiwo_arrived"
"""The field of an event that says when it came in, in wall seconds, before anything was looked up."""

GRACE = 1.0
"""Seconds that an older socket gets to end, before a new one of its account is let in."""

log = logging.getLogger("qiwo.onebot")


class OneBotAdapter(Adapter):
    """As NoneBot's own, except that a reconnect never has to wait for a socket that is half dead.

    The original refuses the second socket of an account (403) until the first is gone, which takes up to a minute
    after a cable was pulled, and a first that closes late takes the second's entry with it.
    """

    def __init__(self, driver: Driver, **kwargs: Any) -> None:  # noqa: ANN401 - NoneBot's own
        self._holders: dict[str, asyncio.Task[None]] = {}
        super().__init__(driver, **kwargs)

    async def _handle_ws(self, websocket: WebSocket) -> None:
        account = websocket.request.headers.get("x-self-id") or ""
        older = self._holders.get(account)
        if older is not None and self._check_access_token(websocket.request) is None:
            log.warning("account %s connected again: the newest connection speaks, the older one is closed", account)
            older.cancel()
            await asyncio.wait([older], timeout=GRACE)
        holder = asyncio.create_task(super()._handle_ws(websocket))
        if older is None or older.done():  # otherwise the new one is about to be refused
            self._holders[account] = holder
        try:
            await asyncio.wait([holder])
        finally:
            holder.cancel()
            if self._holders.get(account) is holder:
                del self._holders[account]
        if not holder.cancelled():
            holder.result()

    def _check_access_token(self, request: Request) -> Response | None:
        """In constant time, so that a wrong token does not tell how much of it is right."""
        wanted = self.onebot_config.onebot_access_token
        given = get_auth_bearer(request.headers.get("authorization")) or ""
        if not wanted or hmac.compare_digest(wanted.encode(), given.encode()):
            return None
        why = "its token is wrong" if given else "it sends no token"
        log.warning("a connection was refused: %s (ONEBOT_ACCESS_TOKEN)", why)
        return Response(403, content="Authorization Header is invalid" if given else "Missing Authorization Header")

    @classmethod
    def json_to_event(cls, json_data: Any) -> Event | None:  # noqa: ANN401 - JSON
        """Stamped with its arrival, and without the `data: null` that some implementations send."""
        if isinstance(json_data, dict) and "post_type" in json_data:
            json_data[ARRIVED] = SystemClock().now()
            if isinstance(json_data.get("message"), list):
                json_data["message"] = [whole(segment) for segment in json_data["message"]]
        event: AnyEvent | None = super().json_to_event(json_data)
        return event if isinstance(event, Event) else None


def whole(segment: object) -> object:
    """A segment that has data."""
    if isinstance(segment, dict) and segment.get("data") is None:
        return {**segment, "data": {}}
    return segment
