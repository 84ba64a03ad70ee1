"""The `qq` channel: our parts as OneBot segments. Text is always a text segment, never a string to be parsed."""

from collections.abc import Sequence
from typing import assert_never

from kernel import Action, At, Delivery, Gateway, Image, NotSent, Other, Part, Reply, Scene, SceneKind, Text

HELP = """output_send__qq sends one message.
text: plain text, shown as it is (no Markdown, no CQ codes).
at: QQ numbers to mention before the text, groups only.
reply_to: the id of a message to quote.
to: leave out for the chat you are in; group:ID or private:ID is another chat and needs permission."""


class QQChannel:
    """`kernel.ports.Channel` over the account that the turn came through."""

    name = "qq"
    carries = frozenset({"text", "at", "reply"})
    help = HELP

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def send(self, account: str, scene: Scene, parts: Sequence[Part]) -> Delivery:
        segments = [segment for part in parts if (segment := segment_of(part)) is not None]
        if not segments:
            return NotSent("the message is empty")
        return await self._gateway.call(account, action_for(scene, segments))


def action_for(scene: Scene, segments: list[dict[str, object]]) -> Action:
    match scene.kind:
        case SceneKind.GROUP:
            return Action("send_group_msg", {"group_id": int(scene.id), "message": segments})
        case SceneKind.PRIVATE | SceneKind.TEMP:
            return Action("send_private_msg", {"user_id": int(scene.id), "message": segments})
        case _:
            assert_never(scene.kind)


def segment_of(part: Part) -> dict[str, object] | None:
    """One part as OneBot v11 writes it; None for what the channel does not carry."""
    match part:
        case Text(text):
            return {"type": "text", "data": {"text": text}}
        case At(user):
            return {"type": "at", "data": {"qq": user}}
        case Reply(message_id):
            return {"type": "reply", "data": {"id": message_id}}
        case Image() | Other():
            return None
        case _:
            assert_never(part)
