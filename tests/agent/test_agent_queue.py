"""Who is next in front of an engine."""

from hypothesis import given
from hypothesis import strategies as st

from pointsman.agent.queue import LONG_EVERY, FrontQueue, Lane, Ticket, lane_of


def full(waiting_max: int = 100) -> tuple[FrontQueue, Ticket]:
    """A queue whose engine runs one request, which is all that it can."""
    queue = FrontQueue(1, waiting_max)
    assert queue.enter(0, Lane.SHORT) is not None
    running = queue.next()
    assert running is not None
    return queue, running


def enter(queue: FrontQueue, priority: int, lane: Lane) -> Ticket:
    ticket = queue.enter(priority, lane)
    assert ticket is not None
    return ticket


def order(queue: FrontQueue, running: Ticket) -> list[Ticket]:
    """In which order those that wait begin, one by one."""
    begun: list[Ticket] = []
    while True:
        queue.leave(running)
        following = queue.next()
        if following is None:
            return begun
        begun.append(following)
        running = following


def test_who_finds_room_begins_at_once() -> None:
    queue = FrontQueue(2, 0)
    for _ in range(2):
        ticket = enter(queue, 0, Lane.SHORT)
        assert queue.next() is ticket
    assert queue.enter(0, Lane.SHORT) is None, "no room, and none to wait in"


def test_the_more_urgent_goes_first_and_equals_in_order() -> None:
    queue, running = full()
    low, first, second, high = (enter(queue, p, Lane.SHORT) for p in (-10, 0, 0, 10))
    assert order(queue, running) == [high, first, second, low]


def test_short_ones_pass_a_long_one_but_not_for_ever() -> None:
    queue, running = full()
    long = enter(queue, 0, Lane.LONG)
    short = [enter(queue, 0, Lane.SHORT) for _ in range(2 * LONG_EVERY)]
    began = order(queue, running)
    assert 0 < began.index(long) <= LONG_EVERY
    assert [ticket for ticket in began if ticket is not long] == short


def test_a_length_has_a_lane() -> None:
    assert (lane_of(1_000), lane_of(100_000)) == (Lane.SHORT, Lane.LONG)


def test_the_wait_is_foretold_from_what_the_last_ones_took() -> None:
    queue, running = full()
    assert queue.expected_wait_s() == 0.0, "nothing is known yet"
    queue.leave(running, service_s=3.0)
    assert queue.expected_wait_s() == 0.0, "there is room"
    enter(queue, 0, Lane.SHORT)
    queue.next()
    enter(queue, 0, Lane.SHORT)
    assert queue.expected_wait_s() == 6.0


def test_what_waits_in_the_engine_lowers_the_bound_and_nothing_raises_it_again() -> None:
    queue = FrontQueue(8, 10)
    queue.adapt(running=3, waiting=5, running_max=8)
    assert queue.running_max == 3
    seen = []
    for _ in range(6):
        queue.adapt(running=3, waiting=0, running_max=8)
        seen.append(queue.running_max)
    assert seen == [4, 5, 6, 7, 8, 8]
    queue.adapt(running=0, waiting=1, running_max=8)
    assert queue.running_max == 1, "or nothing would ever begin"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.booleans()), max_size=60))
def test_every_place_is_given_back_once(steps: list[tuple[int, int, bool]]) -> None:
    queue = FrontQueue(2, 5)
    tickets: list[Ticket] = []
    for what, priority, is_long in steps:
        if what < 2:
            ticket = queue.enter(priority, Lane.LONG if is_long else Lane.SHORT)
            tickets += [ticket] if ticket is not None else []
        elif tickets:
            queue.leave(tickets.pop(priority % len(tickets)))
        while queue.next() is not None:
            pass
        queue.check()
    for ticket in tickets:
        queue.leave(ticket)
        queue.leave(ticket)
        queue.check()
    while queue.next() is not None:
        queue.check()
    assert queue.waiting == 0
