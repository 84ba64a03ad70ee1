"""What `qq_call_state` tells: read-only facts about the call, none of them from text."""

from typing import assert_never

from kernel import Context, Delivery, NotSent, SendUnknown, Sent

from .accounts import Account, Accounts


def call_state(context: Context, accounts: Accounts) -> dict[str, object]:
    """A JSON object; times in seconds. `voice_call` is null: no OneBot implementation offers that state."""
    source, facts = context.source, context.facts()
    account = accounts.get(source.account)
    return {
        "asker": {"user": source.user, "role": source.role, "scene": str(source.scene)},
        "account": _account(source.account, account, accounts),
        "sends": {
            "in_flight": account.in_flight if account else 0,
            "recent": [
                {"action": one.action, "outcome": word_of(one.delivery), "seconds": round(one.seconds, 3)}
                for one in (account.recent if account else ())
            ],
        },
        "limits_left": dict(facts.limits_left),
        "denied_tools": dict(facts.denied),
        "quarantined_tools": dict(facts.quarantined),
        "voice_call": None,
    }


def _account(ident: str, account: Account | None, accounts: Accounts) -> dict[str, object]:
    return {
        "id": ident,
        "connected": account is not None,
        "online": account.online if account else False,
        "heartbeat_age": accounts.heartbeat_age(ident),
    }


def word_of(delivery: Delivery) -> str:
    match delivery:
        case Sent():
            return "sent"
        case NotSent(reason):
            return f"failed: {reason}"
        case SendUnknown(reason):
            return f"unknown: {reason}"
        case _:
            assert_never(delivery)
