"""The plugin author's surface, and nothing else: a name in `__all__` is a promise, and a test holds the list."""

from kernel.conversation import Denied, Failed, Ok, Outcome, ToolCall
from kernel.errors import PluginFault, ToolError
from kernel.media import Media
from kernel.plugin import Handle, Plugin
from kernel.ports import Action, Channel, Clock, Delivery, Gateway, NotSent, SendUnknown, Sent
from kernel.source import At, Image, Inbound, Other, Part, Reply, Role, Scene, SceneKind, Source, Text
from kernel.stages import After, Answer, Before, Closed, Input, Outgoing, Proceed, Prompt, Refuse, Respond, Stage
from kernel.tools import Context, Risk

__all__ = [
    "Action",
    "After",
    "Answer",
    "At",
    "Before",
    "Channel",
    "Clock",
    "Closed",
    "Context",
    "Delivery",
    "Denied",
    "Failed",
    "Gateway",
    "Handle",
    "Image",
    "Inbound",
    "Input",
    "Media",
    "NotSent",
    "Ok",
    "Other",
    "Outcome",
    "Outgoing",
    "Part",
    "Plugin",
    "PluginFault",
    "Proceed",
    "Prompt",
    "Refuse",
    "Reply",
    "Respond",
    "Risk",
    "Role",
    "Scene",
    "SceneKind",
    "SendUnknown",
    "Sent",
    "Source",
    "Stage",
    "Text",
    "ToolCall",
    "ToolError",
]
