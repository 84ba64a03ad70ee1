"""/why: what became of the last turn, in five lines that fit a phone. Everything in them is from the record."""

from collections import Counter

from kernel.conversation import (
    Denied,
    Ending,
    Exchange,
    Failed,
    Interrupted,
    Ok,
    Outcome,
    Quarantined,
    Turn,
    Unconfirmed,
    kind_of,
)
from kernel.ports import Case

SHORT = 40
"""Characters of anything that somebody wrote."""

_ENDINGS = {
    Ending.ANSWERED: "已回答",
    Ending.SILENT: "没有要说的，所以没有发",
    Ending.STOPPED: "被停下",
    Ending.FAILED: "失败",
    Ending.REFUSED: "被拒绝",
    Ending.DROPPED: "没有处理",
    Ending.INTERRUPTED: "中断",
}


def why_text(case: Case) -> str:
    """Who asked what, what the model did, what its tools came to, what was delivered, how it ended."""
    turn = case.turn
    source = turn.source
    more = f"（共 {len(turn.heard)} 条）" if len(turn.heard) > 1 else ""
    lines = [
        f"最近一轮 {turn.id}：{source.user}（{source.role}）说「{short(turn.heard[0].text)}」{more}",
        _model_line(case),
        _tools_line(case),
        _delivery_line(turn.reply),
        _ending_line(turn),
    ]
    return "\n".join(lines)


def _model_line(case: Case) -> str:
    steps = case.turn.steps
    tokens = sum(step.usage.prompt + step.usage.completion for step in steps)
    took = "" if case.closed is None else f"，用时 {max(case.closed - case.turn.opened, 0):.1f} 秒"
    tainted = "；含有他人的文字，权限从严" if case.turn.tainted else ""
    return f"模型答了 {len(steps)} 次{took}" + (f"，{tokens} 个 token" if tokens else "") + tainted


def _tools_line(case: Case) -> str:
    if not case.turn.exchanges:
        return "工具：没有调用"
    told = Counter(_call(exchange, case.rules.get(exchange.call.id, "")) for exchange in case.turn.exchanges)
    return "工具：" + "；".join(text if times == 1 else f"{text} ×{times}" for text, times in told.items())


def _call(exchange: Exchange, rule: str) -> str:
    return f"{short(exchange.call.name)} {_word(exchange.outcome)}" + (f"（规则 {rule}）" if rule else "")


def _word(outcome: Outcome) -> str:
    match outcome:
        case Ok():
            return "成功"
        case Denied(rule, reason):
            return f"被拒（{rule}：{short(reason)}）"
        case Quarantined():
            return f"熔断中，没有运行（{short(outcome.why)}）"
        case _:
            return f"{_KINDS.get(kind_of(outcome), kind_of(outcome))}（{short(_reason(outcome))}）".replace("（）", "")


_KINDS = {
    "failed": "没有做成",
    "bad_arguments": "参数不对，没有运行",
    "unknown_tool": "没有这个工具",
    "rate_limited": "到了上限，没有运行",
    "duplicate": "重复太多次，没有运行",
    "timed_out": "超时",
    "crashed": "崩溃",
    "cancelled": "被取消",
    "interrupted": "中断，结果未知",
    "not_started": "重启前没有开始",
    "unconfirmed": "发出，但没有确认",
    "expired": "没有人批准",
}


def _reason(outcome: Outcome) -> str:
    return str(getattr(outcome, "reason", "") or getattr(outcome, "error", "") or getattr(outcome, "by", ""))


def _delivery_line(reply: Exchange | None) -> str:
    if reply is None:
        return "回答：没有发"
    match reply.outcome:
        case Ok():
            return "回答：已送达"
        case Unconfirmed(reason):
            return f"回答：发出，但没有确认（{short(reason)}），不会重发"
        case Failed(reason):
            return f"回答：没有送达（{short(reason)}）"
        case Interrupted():
            return "回答：不确定是否送达，不会重发"
        case other:
            return f"回答：{_word(other)}"


def _ending_line(turn: Turn) -> str:
    if turn.ending is None:
        return "结局：还在进行"
    return f"结局：{_ENDINGS[turn.ending]}" + (f"（{short(turn.reason)}）" if turn.reason else "")


def short(text: str) -> str:
    """One line of somebody's words, cut."""
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[:SHORT]}…"
