"""The QQ gateway: OneBot v11 events in, the `qq` channel out, and what a model may know of the call it is in."""

from collections.abc import AsyncGenerator

from kernel import Context, Handle, Plugin

from .accounts import Accounts
from .channel import QQChannel
from .gateway import listen
from .state import call_state

plugin = Plugin("qq", reloads=False)
accounts = Accounts()


@plugin.setup
async def open_gateway(handle: Handle) -> AsyncGenerator[None, None]:
    accounts.open(handle.gateway, handle.clock)
    handle.add_channel(QQChannel(handle.gateway))
    with listen(handle, accounts):
        yield
    await accounts.close()


@plugin.tool(risk="read", parallel=True, idempotent=True)
async def qq_call_state(context: Context) -> dict[str, object]:
    """Tell the state of this call: who asks and in what role, the account, recent sends, limits, closed tools."""
    return call_state(context, accounts)
