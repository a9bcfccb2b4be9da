"""What every test may use."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Machines are slow at times, and a gate must not fail one day and pass the next: under CI the
# same examples are tried each time, elsewhere new ones.
settings.register_profile(
    "project",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Python prefers a compiled module to its source, even to a newer one."""
    sources = session.config.rootpath / "src"
    for library in sources.glob("pointsman/**/*.so"):
        source = library.with_name(library.name.partition(".")[0] + ".py")
        if not source.exists() or source.stat().st_mtime > library.stat().st_mtime:
            pytest.exit(f"{library.name} is not of its source: make compile, or interpreted", 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write scenario files as they play; review the diff"
    )


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collectors' intervals of seconds become hundredths, so that a test need not wait."""
    for place, seconds in (
        ("scraper.INTERVAL_S_IDLE_MIN", 0.02),
        ("scraper.INTERVAL_S_ERROR_MAX", 0.1),
        ("describer.RETRY_S_MIN", 0.01),
        ("describer.RETRY_S_MAX", 0.05),
        ("describer.TIMEOUT_S", 0.5),
        ("subscriber.REPLAY_PAUSE_S", 0.01),
    ):
        monkeypatch.setattr(f"pointsman.collectors.{place}", seconds)
