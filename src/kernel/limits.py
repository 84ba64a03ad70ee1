"""What one turn may use up: pure counters. A limit reached is an outcome, not an exception."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel.conversation import Duplicate, Outcome, RateLimited
from kernel.tools import Risk, Tool


@dataclass(frozen=True, slots=True)
class Limits:
    """Per turn: model steps, messages sent by tools, and how often the very same call may run. Times in seconds."""

    steps: int = 12
    sends: int = 6
    same_call: int = 3
    tool_seconds: float = 60.0
    turn_seconds: float = 300.0


@dataclass(slots=True)
class Tally:
    """The counters of one turn; its owner is the turn's Run."""

    limits: Limits
    steps: int = 0
    sends: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    closing: bool = False
    """The step limit is reached: nothing may be called any more, the model only says its last sentence."""

    def step(self) -> bool:
        """Take one step; False when none is left, and from then on every call is refused."""
        if self.steps >= self.limits.steps:
            self.closing = True
            return False
        self.steps += 1
        return True

    def admit(self, tool: Tool, arguments: Mapping[str, Any]) -> Outcome | None:
        """Count a call, by its arguments as the model wrote them; the outcome when it may not run."""
        if self.closing:
            return RateLimited(f"{self.limits.steps} steps in this turn are used up; answer now, without tools")
        key = f"{tool.name} {json.dumps(arguments, sort_keys=True)}"
        if self.calls[key] >= self.limits.same_call:
            return Duplicate(self.calls[key])
        if tool.risk is Risk.SEND:
            if self.sends >= self.limits.sends:
                return RateLimited(f"{self.limits.sends} messages in this turn are sent; send no more")
            self.sends += 1
        self.calls[key] += 1
        return None

    def restart(self, steps: int) -> None:
        """Go on after so many steps that an earlier process took."""
        self.steps = min(steps, self.limits.steps)

    @property
    def left(self) -> dict[str, int]:
        return {"steps": self.limits.steps - self.steps, "sends": self.limits.sends - self.sends}
