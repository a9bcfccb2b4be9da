"""What the log is told while an agent's scheduler is away."""

from pointsman.agent.absence import REPEAT_S_MAX, Absence


def lines(
    absence: Absence, problem: str, until_s: int, *, every_s: int = 5
) -> list[tuple[int, str]]:
    attempts = ((at_s, absence.told(problem, float(at_s))) for at_s in range(0, until_s, every_s))
    return [(at_s, told) for at_s, told in attempts if told]


def test_the_same_is_said_again_and_ever_more_seldom() -> None:
    said = lines(Absence(), "refused", 1_000)
    assert said == [
        (0, "refused"),
        (30, "refused, for 30 s now"),
        (90, "refused, for 90 s now"),
        (210, "refused, for 210 s now"),
        (450, "refused, for 450 s now"),
        (930, "refused, for 930 s now"),
    ]


def test_a_weekend_is_some_dozens_of_lines_and_the_last_is_never_old() -> None:
    said = lines(Absence(), "refused", 48 * 3_600, every_s=60)
    assert 48 <= len(said) <= 60
    assert 48 * 3_600 - said[-1][0] <= REPEAT_S_MAX


def test_another_problem_is_said_at_once() -> None:
    absence = Absence()
    assert [absence.told(problem, 1.0) for problem in ("a", "a", "b", "a")] == ["a", "", "b", "a"]


def test_that_it_is_back_is_said_and_ends_it() -> None:
    absence = Absence()
    assert absence.over(0.0) == "connected"
    absence.told("refused", 10.0)
    assert absence.over(100.0) == "connected after 90 s"
    assert absence.told("refused", 200.0) == "refused"
