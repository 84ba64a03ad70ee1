"""How the bot is: the facts, and /status in a few lines that fit a phone."""

from collections import Counter
from dataclasses import dataclass

from kernel.health import Row


@dataclass(frozen=True, slots=True)
class Status:
    """What /status, /readyz and /metrics are made from. `uptime` in seconds; `counts` since the start."""

    uptime: float
    model: str
    accounts: tuple[str, ...]
    running: int
    counts: Counter[str]
    mended_tools: tuple[str, ...]
    policy_problem: str
    model_problem: str
    """What the model failed with last, as a user is told it; empty since it last answered."""
    health: tuple[Row, ...]


MOST_LINES = 5
"""Of what rests, at most; the rest is a number."""


def status_text(status: Status, chat: str) -> str:
    """/status as it is told in a chat: what rests for everybody, and what rests there."""
    minutes, hours = int(status.uptime // 60), int(status.uptime // 3600)
    uptime = f"{hours} 小时 {minutes % 60} 分" if hours else f"{minutes} 分钟"
    answered = status.counts["answered"]
    lines = [
        f"企窝在线，已运行 {uptime}，模型 {status.model}",
        f"账号 {len(status.accounts)} 个已连接，正在回答 {status.running} 轮，已答 {answered} 轮",
    ]
    resting = [line for row in status.health if row.chat in ("", chat) and (line := _health_line(row))]
    lines += resting[:MOST_LINES]
    if len(resting) > MOST_LINES:
        lines.append(f"还有 {len(resting) - MOST_LINES} 项在休息")
    if status.model_problem:
        lines.append(f"⚠ {status.model_problem}")
    if status.policy_problem:
        lines.append("⚠ 策略文件有错，改好之前只有命令可用（哪一行见日志）")
    if status.counts["pairing_mended"]:
        times, tools = status.counts["pairing_mended"], "、".join(status.mended_tools)
        lines.append(f"⚠ 有 {times} 次请求在发出前修补过调用与结果的配对（{tools}），请告诉管理员")
    return "\n".join(lines)


def _health_line(row: Row) -> str:
    """One line for what rests; nothing for what is well."""
    name = f"{row.plugin}.{row.tool}" if row.tool else row.plugin
    where = "（只在这个聊天）" if row.chat else ""
    match row.state:
        case "quarantined":
            return f"熔断{where}：{name}，还有 {row.seconds:.0f} 秒（{row.error.partition(':')[0]}）"
        case "reloading" | "half_open":
            return f"恢复中{where}：{name}"
        case "disabled":
            return f"已停用{where}：{name}"
        case _:
            return ""
