"""What a test of Qiwo or of a plugin needs in place of the world. Public: a name in `__all__` is a promise."""

from kernel.testkit.app import BotProcess
from kernel.testkit.channel import Posted, RecordingChannel
from kernel.testkit.clock import FakeClock, settle
from kernel.testkit.log import Log
from kernel.testkit.model import BrokenRequest, ScriptedModel, calling
from kernel.testkit.qq import ApiCall, FakeQQ
from kernel.testkit.server import Answer, Fail, FakeModel, Hang, Raw, Say
from kernel.testkit.world import Group, Member, Sent, World

__all__ = [
    "Answer",
    "ApiCall",
    "BotProcess",
    "BrokenRequest",
    "Fail",
    "FakeClock",
    "FakeModel",
    "FakeQQ",
    "Group",
    "Hang",
    "Log",
    "Member",
    "Posted",
    "Raw",
    "RecordingChannel",
    "Say",
    "ScriptedModel",
    "Sent",
    "World",
    "calling",
    "settle",
]
