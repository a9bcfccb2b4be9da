"""How often an agent speaks: less often where nobody seems to hear it."""

from pointsman.agent.pace import LOST_S, Pace


def test_it_keeps_its_interval_while_it_is_acknowledged() -> None:
    pace = Pace(0.5, 2.0)
    for beat in range(5):
        seq = pace.send(beat * 0.5)
        pace.acknowledged(seq, beat * 0.5 + 0.01)
    assert (pace.seq, pace.interval_s, pace.is_troubled) == (5, 0.5, False)


def test_it_slows_down_without_acknowledgements_and_recovers_with_them() -> None:
    pace, now_s, seen = Pace(0.5, 2.0), 0.0, []
    for _ in range(4):
        pace.send(now_s)
        seen.append(pace.interval_s)
        now_s += pace.interval_s
    assert seen == [0.5, 1.0, 2.0, 2.0]
    assert pace.is_troubled
    for _ in range(2):
        seq = pace.send(now_s)
        pace.acknowledged(seq, now_s + 0.1)
        now_s += pace.interval_s
    assert pace.interval_s == 0.5


def test_a_late_acknowledgement_is_no_sign_of_recovery() -> None:
    pace = Pace(0.5, 2.0)
    pace.send(0.0)
    pace.send(0.5)
    pace.acknowledged(1, 0.9)
    assert pace.interval_s == 1.0


def test_early_heartbeats_in_a_row_are_no_trouble() -> None:
    """Answers take a round trip; a busy cache sends several within it."""
    pace = Pace(0.5, 2.0)
    for now_s in (0.0, 0.1, 0.2, 0.3):
        pace.send(now_s)
    assert not pace.is_troubled


def test_silence_is_an_end() -> None:
    pace = Pace(0.5, 2.0)
    assert not pace.is_lost(100.0)
    pace.send(0.0)
    assert not pace.is_lost(LOST_S - 0.1)
    assert pace.is_lost(LOST_S)
    pace.acknowledged(1, LOST_S)
    assert not pace.is_lost(LOST_S)
