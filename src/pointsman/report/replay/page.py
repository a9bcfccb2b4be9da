"""x"""

from pointsman.report.replay.study import Study


def render_study(study: Study) -> str:
    """Page."""
    return "<!doctype html>"
