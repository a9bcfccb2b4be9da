"""How often an agent speaks: less often where nobody seems to hear it."""

from pointsman.agent.rhythm import LOST_S, Rhythm


def test_it_keeps_its_interval_while_it_is_acknowledged() -> None:
    rhythm = Rhythm(0.5, 2.0)
    for beat in range(5):
        seq = rhythm.send(beat * 0.5)
        rhythm.acknowledged(seq, beat * 0.5 + 0.01)
    assert (rhythm.seq, rhythm.interval_s, rhythm.is_troubled) == (5, 0.5, False)


def test_it_slows_down_without_acknowledgements_and_recovers_with_them() -> None:
    rhythm, now_s, seen = Rhythm(0.5, 2.0), 0.0, []
    for _ in range(4):
        rhythm.send(now_s)
        seen.append(rhythm.interval_s)
        now_s += rhythm.interval_s
    assert seen == [0.5, 1.0, 2.0, 2.0]
    assert rhythm.is_troubled
    for _ in range(2):
        seq = rhythm.send(now_s)
        rhythm.acknowledged(seq, now_s + 0.1)
        now_s += rhythm.interval_s
    assert rhythm.interval_s == 0.5


def test_a_late_acknowledgement_is_no_sign_of_recovery() -> None:
    rhythm = Rhythm(0.5, 2.0)
    rhythm.send(0.0)
    rhythm.send(0.5)
    rhythm.acknowledged(1, 0.9)
    assert rhythm.interval_s == 1.0


def test_early_heartbeats_in_a_row_are_no_trouble() -> None:
    """Answers take a round trip; a busy cache sends several within it."""
    rhythm = Rhythm(0.5, 2.0)
    for now_s in (0.0, 0.1, 0.2, 0.3):
        rhythm.send(now_s)
    assert not rhythm.is_troubled


def test_silence_is_an_end() -> None:
    rhythm = Rhythm(0.5, 2.0)
    assert not rhythm.is_lost(100.0)
    rhythm.send(0.0)
    assert not rhythm.is_lost(LOST_S - 0.1)
    assert rhythm.is_lost(LOST_S)
    rhythm.acknowledged(1, LOST_S)
    assert not rhythm.is_lost(LOST_S)
