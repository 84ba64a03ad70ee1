"""What is taken next: merging, steering, urgency and overflow as pure functions, and what holds for any mailbox."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernel.mailbox import PER_CHAT, PER_USER, Take, Wait, Waits, next_of, overflow, steering, urgency_of
from kernel.ports import Item, Reset
from kernel.source import At, ConversationId, Image, Inbound, Part, Role, Scene, SceneKind, Source, Text, Urgency

CHAT = ConversationId("qq/1/group/100")
PRIVATE = Scene(SceneKind.PRIVATE, "2")
GROUP = Scene(SceneKind.GROUP, "100")
BARE = (At("1"),)
PICTURE = (At("1"), Image("x"))
WORDS = (At("1"), Text(" hi"))


def said(
    key: str,
    user: str = "2",
    arrived: float = 100.0,
    *,
    role: Role = Role.MEMBER,
    scene: Scene = GROUP,
    parts: tuple[Part, ...] = WORDS,
    background: bool = False,
) -> Item:
    source = Source("qq", "1", scene, user, role)
    return Item(CHAT, key, Inbound(source, key, key, arrived, parts=parts, background=background))


def reset(key: str) -> Item:
    return Item(CHAT, key, Reset(Source("qq", "1", GROUP, "2", Role.ADMIN), key, 100.0))


def keys(items: tuple[Item, ...]) -> list[str]:
    return [item.key for item in items]


# -- merging -------------------------------------------------------------------------------------------------


def test_a_text_in_a_group_is_answered_at_once() -> None:
    """Nobody is kept waiting for words that are there."""
    assert next_of([said("a")], 100.0, Waits()) == Take((said("a"),))


def test_a_bare_mention_and_a_picture_wait_for_words() -> None:
    """Three seconds in a group; a private message waits a second and a half."""
    for parts in (BARE, PICTURE):
        item = said("a", parts=parts)
        assert next_of([item], 100.0, Waits()) == Wait((item,), 3.0)
        assert next_of([item], 101.0, Waits()) == Wait((item,), 2.0)
        assert next_of([item], 103.0, Waits()) == Take((item,))
    private = said("a", scene=PRIVATE)
    assert next_of([private], 100.5, Waits()) == Wait((private,), 1.0)


def test_quick_messages_of_one_sender_are_one_turn() -> None:
    """Each starts the wait anew, but the first never waits longer than the cap."""
    items = [said(str(at), arrived=100.0 + at, scene=PRIVATE) for at in range(5)]
    assert next_of(items, 104.0, Waits(), waited=4.0) == Wait(tuple(items), 1.5)
    assert next_of(items, 104.0, Waits(), waited=5.0) == Wait(tuple(items), 1.0)
    assert next_of(items, 104.0, Waits(), waited=6.0) == Take(tuple(items))


def test_whoever_is_typing_is_waited_for() -> None:
    """What QQ says of it counts like a message, within the cap."""
    item = said("a", scene=PRIVATE)
    assert next_of([item], 102.0, Waits()) == Take((item,))
    assert next_of([item], 102.0, Waits(), waited=2.0, typed=101.5) == Wait((item,), 1.0)


def test_only_adjacent_messages_of_an_equal_source_are_merged() -> None:
    """Another's word in between, another role, another kind of item: each ends the turn, and the wait."""
    mine, more = said("a", parts=BARE), said("b")
    promoted = said("b", role=Role.ADMIN)
    assert keys(next_of([mine, more], 100.0, Waits()).items) == ["a", "b"]
    assert next_of([mine, said("x", "3"), more], 100.0, Waits()) == Take((mine,))
    assert next_of([mine, promoted], 100.0, Waits()) == Take((mine,))


def test_a_window_of_zero_switches_merging_off() -> None:
    """Each message is a turn of its own."""
    off = Waits.all(0.0)
    assert off.off
    assert next_of([said("a", parts=BARE), said("b")], 100.0, off) == Take((said("a", parts=BARE),))


def test_one_number_sets_every_window() -> None:
    """Longer than the cap, it is the cap."""
    for parts, scene in ((WORDS, GROUP), (BARE, GROUP), (WORDS, PRIVATE)):
        item = said("a", parts=parts, scene=scene)
        assert next_of([item], 100.0, Waits.all(10.0)) == Wait((item,), 10.0)


@given(st.floats(-1e9, 1e9), st.floats(0, 6))
def test_a_wall_clock_that_jumps_makes_nobody_wait_longer(jump: float, waited: float) -> None:
    """Whatever the wall clock says, a wait is never longer than the window, nor goes past the cap."""
    match next_of([said("a", scene=PRIVATE)], 100.0 + jump, Waits(), waited=waited):
        case Wait(_, seconds):
            assert 0 < seconds <= min(1.5, 6.0 - waited)
        case Take():
            pass


# -- urgency -------------------------------------------------------------------------------------------------


def test_the_most_urgent_is_taken_first() -> None:
    """A reset before the operator before people before what nobody waits for; equals in order of arrival."""
    items = [
        said("background", background=True),
        said("member"),
        said("owner", "3", role=Role.OWNER),
        said("operator", "4", role=Role.OPERATOR),
        reset("reset"),
    ]
    order = []
    while items:
        taken = next_of(items, 100.0, Waits.all(0)).items
        order += keys(taken)
        items = [item for item in items if item not in taken]
    assert order == ["reset", "operator", "member", "owner", "background"]


def test_what_runs_in_the_background_is_not_raised_by_its_role() -> None:
    """An operator's timer is no operator's word."""
    assert urgency_of(said("a", role=Role.OPERATOR, background=True).event) is Urgency.BACKGROUND


# -- steering ------------------------------------------------------------------------------------------------


def test_who_steers() -> None:
    """The head of the mailbox, as long as it is the very source of the turn."""
    source = said("x").event.source
    mine, other, mine_again = said("a"), said("b", "3"), said("c")
    assert keys(steering([mine, other, mine_again], source)) == ["a"]
    assert keys(steering([other, mine], source)) == []
    assert keys(steering([mine, reset("r"), mine_again], source)) == ["a"]
    assert keys(steering([said("a", role=Role.ADMIN)], source)) == []
    assert keys(steering([mine], replace(source, scene=Scene(SceneKind.GROUP, "200")))) == []


# -- overflow ------------------------------------------------------------------------------------------------


def test_a_flood_costs_only_who_makes_it() -> None:
    """Of two hundred messages of one the newest go; nobody else's does."""
    flood = [said(f"f{number}") for number in range(200)]
    items = [*flood[:100], said("other", "3"), *flood[100:]]
    dropped = overflow(items)
    assert keys(dropped) == [f"f{number}" for number in range(PER_USER, 200)]


def test_background_goes_before_people() -> None:
    """When a chat holds too much, the oldest of what nobody waits for goes first, then the newest."""
    people = [said(f"p{number}", str(number)) for number in range(PER_CHAT)]
    jobs = [said(f"j{number}", f"job {number}", background=True) for number in range(3)]
    assert keys(overflow([*people, *jobs])) == ["j0", "j1", "j2"]
    assert keys(overflow([*jobs[:1], *people[1:], *jobs[1:]])) == ["j0", "j1"]
    assert keys(overflow([*people, said("late", "x")])) == ["late"]


def test_what_is_being_worked_on_stays() -> None:
    """It counts, but it cannot be dropped under the hands that hold it."""
    flood = [said(f"f{number}") for number in range(PER_USER + 2)]
    assert keys(overflow(flood, {f"f{PER_USER}"})) == [f"f{PER_USER + 1}"]


def test_a_reset_is_never_dropped() -> None:
    """However full the mailbox is."""
    items = [*(said(f"p{number}", str(number)) for number in range(PER_CHAT)), reset("r")]
    assert "r" not in keys(overflow(items))


ITEMS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from([Role.MEMBER, Role.OPERATOR]), st.booleans(), st.booleans()),
    max_size=150,
)


@given(ITEMS)
def test_what_stays_fits_and_keeps_its_order(raw: list[tuple[str, Role, bool, bool]]) -> None:
    """No user beyond his share, no chat beyond its own; nothing goes that did not have to."""
    items = [
        reset(str(at)) if is_reset else said(str(at), user, role=role, background=background)
        for at, (user, role, background, is_reset) in enumerate(raw)
    ]
    dropped = overflow(items)
    kept = [item for item in items if item not in dropped]
    messages = [item for item in kept if isinstance(item.event, Inbound)]
    assert len(set(keys(dropped))) == len(dropped)
    assert max(Counter(item.event.source.user for item in messages).values(), default=0) <= PER_USER
    assert len(messages) == 0 or len(kept) <= PER_CHAT
    assert overflow(kept) == ()
    if len(items) <= PER_USER:
        assert dropped == ()


@given(ITEMS, st.sampled_from([Waits(), Waits.all(0), Waits.all(2)]))
def test_a_turn_is_of_one_source(raw: list[tuple[str, Role, bool, bool]], waits: Waits) -> None:
    """Whatever waits: the next turn has one source, one stretch of the mailbox, and nothing more urgent is left."""
    items = [
        reset(str(at)) if is_reset else said(str(at), user, role=role, background=background)
        for at, (user, role, background, is_reset) in enumerate(raw)
    ]
    if not items:
        return
    taken = next_of(items, 100.0, waits).items
    start = items.index(taken[0])
    assert list(taken) == items[start : start + len(taken)]
    assert len({item.event.source for item in taken}) == 1
    assert urgency_of(taken[0].event) == max(urgency_of(item.event) for item in items)
    assert all(urgency_of(item.event) < urgency_of(taken[0].event) for item in items[:start])
