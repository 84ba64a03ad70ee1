"""The example: a whole plugin in one screen."""

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kernel import Plugin, ToolError

plugin = Plugin("clock")


@plugin.tool(risk="read", parallel=True, idempotent=True)
async def time_now(zone: str = "Asia/Shanghai") -> str:
    """Tell the date and time.

    Args:
        zone: IANA time zone name, such as Asia/Shanghai or Europe/Paris.
    """
    try:
        now = datetime.now(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        raise ToolError(f"there is no time zone {zone!r}") from None
    return now.strftime("%Y-%m-%d %H:%M:%S %A") + f" ({zone})"
