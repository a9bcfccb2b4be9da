"""Links of Markdown documents, and whether they lead somewhere."""

import re
from pathlib import Path

MARKDOWN_FENCE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
MARKDOWN_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
MARKDOWN_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)


def links(document: Path) -> list[str]:
    """What a document links to in the project, outside its code blocks."""
    prose = MARKDOWN_FENCE.sub("", document.read_text())
    return [link for link in MARKDOWN_LINK.findall(prose) if not re.match(r"[a-z]+:", link)]


def leads_somewhere(document: Path, link: str) -> bool:
    """Whether there is what `link` names, seen from `document`: the file, and the heading in it."""
    target, _, anchor = link.partition("#")
    file = (document.parent / target).resolve() if target else document
    if not file.exists():
        return False
    return not anchor or file.suffix != ".md" or anchor in _anchors(file)


def _anchors(document: Path) -> list[str]:
    """The anchors of a document's headings, made as code hosts make them."""
    headings = MARKDOWN_HEADING.findall(MARKDOWN_FENCE.sub("", document.read_text()))
    return [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
