"""How the bot is, as the playground's page shows it: /status as JSON, in the words that people read."""

import math
from typing import Any

from kernel.breaker import Word
from kernel.console.people import PEOPLE
from kernel.health import Row
from kernel.status import Status

STATES = {
    Word.HEALTHY: "崩溃过",
    Word.QUARANTINED: "熔断",
    Word.RELOADING: "重新加载",
    Word.HALF_OPEN: "半开：放一次试试",
    Word.PROBATION: "观察期",
    Word.DISABLED: "已停用",
}


def facts_of(status: Status) -> dict[str, Any]:
    """`trouble` holds what crashed in one chat, and all that rests."""
    return {
        "model": status.model,
        "uptime": int(status.uptime),
        "running": status.running,
        "answered": status.counts["answered"],
        "policy_problem": status.policy_problem,
        "trouble": [_trouble(row) for row in status.health if _worth_telling(row)],
    }


def _worth_telling(row: Row) -> bool:
    return row.state is not Word.HEALTHY or (row.crashes > 0 and row.chat != "")


def _trouble(row: Row) -> dict[str, Any]:
    return {
        "what": row.tool or row.plugin,
        "chat": _chat(row.chat),
        "state": STATES[row.state],
        "open": row.state is Word.QUARANTINED and row.seconds > 0,
        "crashes": row.crashes,
        "limit": row.limit,
        "seconds": math.ceil(row.seconds),
    }


def _chat(key: str) -> str:
    """A chat of ours by its people's name for it; "" means everywhere."""
    if not key:
        return "所有聊天"
    _, _, kind, ident = (key.split("/") + [""] * 4)[:4]
    person = PEOPLE.get(int(ident)) if ident.isdecimal() else None
    return "群聊" if kind == "group" else f"{person.name if person else ident} 的私聊"
