"""The mailbox as a property: whatever comes, is stopped, fails or is restarted, nothing is lost, doubled or mixed up.

Random people talk in one group while models hang, fail and call tools, operators interrupt, chats are stopped and
reset, clocks jump and processes end. Then everything is let go, and the record is asked what became of each message.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.parts import Parts, message, started

from kernel.adapters.embedded.memory import MemoryLedger
from kernel.errors import FaultKind, ModelFault
from kernel.plugin import Plugin
from kernel.ports import Action, Chunk, Delivery, NotSent, Reply, Request, RequestedCall
from kernel.source import At, Role, Text
from kernel.testkit import settle
from kernel.testkit.model import faults_of


@dataclass(frozen=True)
class Say:
    user: str
    role: Role
    bare: bool


@dataclass(frozen=True)
class Command:
    text: str


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Jump:
    seconds: float


@dataclass(frozen=True)
class Restart:
    pass


@dataclass(frozen=True)
class Release:
    """One request that hangs is answered."""


PEOPLE = st.sampled_from([("1", Role.OPERATOR), ("2", Role.MEMBER), ("3", Role.MEMBER), ("4", Role.ADMIN)])
MOVES = st.one_of(
    st.builds(lambda who, bare: Say(*who, bare), PEOPLE, st.booleans()),
    st.builds(lambda who: Say(*who, False), PEOPLE),
    st.sampled_from(["/stop", "/reset"]).map(Command),
    st.sampled_from([0.0, 0.5, 2.0, 4.0, 40.0]).map(Wait),
    st.sampled_from([-5000.0, 300.0]).map(Jump),
    st.just(Restart()),
    st.just(Release()),
)
ANSWERS = st.lists(st.sampled_from(["say", "say", "hang", "call", "fail", "nothing"]), max_size=12)
WINDOWS = st.sampled_from([None, 0, 2.0])


class Kept(MemoryLedger):
    async def close(self) -> None:
        """Left open for the next process."""


class Moody:
    """A model that does what the list says, and from then on answers; it refuses what a real server would."""

    name = "moody"

    def __init__(self, moods: list[str]) -> None:
        self.moods = moods
        self.hanging: list[asyncio.Event] = []
        self.broken: list[str] = []

    async def ask(self, request: Request) -> AsyncGenerator[Chunk | Reply, None]:
        self.broken += faults_of(request)
        mood = self.moods.pop(0) if self.moods else "say"
        if mood == "hang":
            gate = asyncio.Event()
            self.hanging.append(gate)
            await gate.wait()
        if mood == "fail":
            raise ModelFault(FaultKind.SERVER, "as it likes")
        calls = (RequestedCall("work", "{}", {}),) if mood == "call" and request.tools else ()
        yield Reply("" if mood == "nothing" else "said", calls)

    async def close(self) -> None:
        pass


def tools() -> Plugin:
    plugin = Plugin("tools")

    @plugin.tool(risk="write")
    async def work() -> str:
        """Work for a while."""
        await asyncio.sleep(0)
        return "worked"

    return plugin


async def mute(action: Action) -> Delivery:
    return NotSent("nobody listens")


class World:
    """A record, the process that is on it, and what was said so far."""

    def __init__(self, moods: list[str], window: float | None) -> None:
        self.ledger = Kept()
        self.model = Moody(moods)
        self.window = window
        self.said: dict[str, Say] = {}
        self.wall = 0.0
        self.parts: Parts

    async def start(self) -> None:
        self.parts = await started(self.model, tools(), ledger=self.ledger, merge_window=self.window)
        self.parts.clock.jump_wall(self.wall)
        await self.parts.kernel.graph.dispatch.attach("1000", mute).__aenter__()
        await settle()

    async def move(self, move: object) -> None:
        match move:
            case Say(user, role, bare):
                key = f"m{len(self.said):03}"
                self.said[key] = move
                inbound = message(key, user=user, role=role, chat="100", key=key)
                parts = (At("1000"),) if bare else (At("1000"), Text(key))
                await self.parts.kernel.submit(replace(inbound, parts=parts, arrived=self.parts.clock.now()))
            case Command(text):
                inbound = message(text, user="1", role=Role.OPERATOR, chat="100", key=f"c{len(self.said)}{text}")
                await self.parts.kernel.submit(inbound)
            case Wait(seconds):
                await self.parts.clock.advance(seconds)
            case Jump(seconds):
                self.parts.clock.jump_wall(seconds)
            case Restart():
                self.wall += self.parts.clock.monotonic()
                await self.parts.kernel.stop()
                await self.start()
            case Release():
                if self.model.hanging:
                    self.model.hanging.pop(0).set()
        await settle()

    async def let_go(self) -> None:
        """Until nothing moves any more."""
        self.model.moods.clear()
        for _ in range(60):
            for gate in self.model.hanging:
                gate.set()
            self.model.hanging.clear()
            await self.parts.clock.advance(7.0)
            await settle()
            waiting = self.ledger.db.execute("SELECT count(*) FROM inbox WHERE taken IS NULL").fetchone()
            if waiting == (0,) and not self.parts.kernel.graph.sessions.runs():
                break

    def check(self) -> None:
        db = self.ledger.db
        assert self.model.broken == []
        turns = db.execute("SELECT id, source, inbounds, ending FROM turns ORDER BY seq").fetchall()
        assert all(ending is not None for *_, ending in turns)
        joined = {ident: [] for ident, *_ in turns}
        for ident, inbound in db.execute("SELECT turn, inbound FROM joined ORDER BY turn, step, place"):
            joined[ident].append(json.loads(inbound))
        told: list[str] = []
        for ident, source, inbounds, ending in turns:
            heard = [*json.loads(inbounds), *joined[ident]]
            keys = [one["key"] for one in heard]
            assert {self.said[key].user for key in keys} == {json.loads(source)["user"]}
            assert {self.said[key].role for key in keys} == {json.loads(source)["role"]}
            told += keys if ending != "dropped" else []
        everything = [key for _, _, inbounds, _ in turns for key in [one["key"] for one in json.loads(inbounds)]]
        everything += [one["key"] for found in joined.values() for one in found]
        assert Counter(everything) == Counter(list(self.said))
        for user in "1234":
            own = [key for key in told if self.said[key].user == user]
            assert own == sorted(own)
        assert db.execute("SELECT count(*) FROM calls WHERE settled IS NULL").fetchone() == (0,)
        assert db.execute("SELECT count(*) FROM inbox WHERE taken IS NULL").fetchone() == (0,)


@given(st.lists(MOVES, max_size=40), ANSWERS, WINDOWS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_doubled_or_mixed_up(moves: list[object], moods: list[str], window: float | None) -> None:
    """Each message is in exactly one turn, with nobody else's; each turn ends once; each person is heard in order."""

    async def play() -> None:
        world = World(list(moods), window)
        await world.start()
        for move in moves:
            await world.move(move)
        await world.let_go()
        await world.parts.kernel.stop()
        world.check()

    asyncio.run(play())
