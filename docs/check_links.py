"""Checks that links between Markdown pages lead to files, and their anchors to headings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*$", re.MULTILINE)
MARK = re.compile(r'<a id="([^"]+)">')


def anchors(page: Path) -> set[str]:
    """The anchors that a forge makes from a page's headings, and those that the page sets."""
    prose = FENCE.sub("", page.read_text())
    found = set(MARK.findall(prose))
    for heading in HEADING.findall(prose):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return found


def broken_links(page: Path) -> list[str]:
    """One sentence for each link of a page that leads nowhere."""
    problems = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        destination = (page.parent / name).resolve() if name else page
        if not destination.exists():
            problems.append(f"{page.relative_to(ROOT)}: no file {name}")
        elif anchor and destination.suffix == ".md" and anchor not in anchors(destination):
            problems.append(
                f"{page.relative_to(ROOT)}: no heading #{anchor} in {name or page.name}"
            )
    return problems


def main() -> int:
    """Check every tracked page; print what is broken; 1 if anything is."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    problems = [problem for page in pages for problem in broken_links(page)]
    print("\n".join(problems) if problems else f"{len(pages)} pages, every link leads somewhere")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
