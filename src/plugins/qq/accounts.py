"""The QQ accounts that are connected: one sender each, and what is known of their health."""

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import nonebot
from nonebot.adapters.onebot.v11 import ActionFailed, ApiNotAvailable, Bot, NetworkError

from kernel import Action, Clock, Delivery, Gateway, NotSent, SendUnknown, Sent

RECENT = 10
"""Outcomes of sends that are remembered for qq_call_state."""

CERTAIN = frozenset({1400, 1403, 1404})
"""OneBot v11 codes that say the action was not even tried: bad parameters, bad token, unknown action."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished API call."""

    action: str
    delivery: Delivery
    seconds: float


@dataclass(slots=True, eq=False)
class Account:
    """One connection of one account; a reconnect makes a new one."""

    id: str
    socket: object
    """Tells this connection from a later one of the same account; nothing else is done with it."""
    gone: asyncio.Future[None]
    attached: AsyncExitStack = field(default_factory=AsyncExitStack)
    online: bool | None = None
    heartbeat: float | None = None
    in_flight: int = 0
    recent: deque[Attempt] = field(default_factory=lambda: deque(maxlen=RECENT))


class Accounts:
    """Owns the connections. Keeps ids, never a Bot: a Bot may belong to a socket that is closing."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._gateway: Gateway | None = None
        self._clock: Clock | None = None

    def open(self, gateway: Gateway, clock: Clock) -> None:
        self._gateway, self._clock = gateway, clock

    async def close(self) -> None:
        for account in tuple(self._accounts):
            await self.disconnected(account)
        self._gateway = None

    def get(self, account: str) -> Account | None:
        return self._accounts.get(account)

    def __contains__(self, account: str) -> bool:
        return account in self._accounts

    async def connected(self, account: str, socket: object) -> None:
        await self.disconnected(account)
        if self._gateway is None:
            return
        one = self._accounts[account] = Account(account, socket, asyncio.get_running_loop().create_future())
        await one.attached.enter_async_context(self._gateway.attach(account, lambda action: self._perform(one, action)))

    async def disconnected(self, account: str, socket: object = None) -> None:
        """An older connection that ends late takes nothing from the newer one."""
        one = self._accounts.get(account)
        if one is not None and socket in (None, one.socket):
            del self._accounts[account]
            if not one.gone.done():
                one.gone.set_result(None)
            await one.attached.aclose()

    def beat(self, account: str, online: bool | None) -> None:
        """A heartbeat came; the socket can be up while QQ itself is offline."""
        one = self._accounts.get(account)
        if one is not None and self._clock is not None:
            one.online, one.heartbeat = online, self._clock.monotonic()

    def heartbeat_age(self, account: str) -> float | None:
        """Seconds since the last heartbeat."""
        one = self._accounts.get(account)
        if one is None or one.heartbeat is None or self._clock is None:
            return None
        return round(self._clock.monotonic() - one.heartbeat, 1)

    async def _perform(self, account: Account, action: Action) -> Delivery:
        bot = nonebot.get_bots().get(account.id)
        if not isinstance(bot, Bot) or self._clock is None:
            return NotSent(f"account {account.id} is not connected")
        started = self._clock.monotonic()
        account.in_flight += 1
        try:
            delivery = await self._race(bot, account, action)
        finally:
            account.in_flight -= 1
        account.recent.append(Attempt(action.name, delivery, self._clock.monotonic() - started))
        return delivery

    async def _race(self, bot: Bot, account: Account, action: Action) -> Delivery:
        """A socket that closes ends the wait at once; the adapter alone would wait for its whole timeout."""
        call = asyncio.ensure_future(bot.call_api(action.name, **action.params))
        try:
            await asyncio.wait({call, account.gone}, return_when=asyncio.FIRST_COMPLETED)
            return delivery_of(call) if call.done() else SendUnknown("the connection closed while it was being sent")
        finally:
            call.cancel()


def delivery_of(call: "asyncio.Future[object]") -> Delivery:
    """What a finished API call proves. `failed` is not `not sent`: NapCat says 1200 of delivered messages too."""
    try:
        answer = call.result()
    except ActionFailed as failed:
        info = failed.info
        said = str(info.get("wording") or info.get("message") or info.get("msg") or "failed")
        doubtful = "timeout" in said.lower() or "超时" in said
        reason = f"retcode {info.get('retcode')}: {said[:200]}"
        certain = info.get("retcode") in CERTAIN or not doubtful
        return NotSent(reason) if certain else SendUnknown(reason)
    except ApiNotAvailable:
        return NotSent("the account is not connected")
    except NetworkError as error:
        return SendUnknown(str(error) or "no answer")
    if isinstance(answer, dict) and answer.get("message_id") is not None:
        return Sent(str(answer["message_id"]))
    return SendUnknown("accepted, but not confirmed") if answer is None else Sent()
