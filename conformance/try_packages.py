"""Tries the installed packages: runs the README's example against the installed server.

Run by `nox -s packages` with the Python of an environment that holds nothing but the built wheels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.metadata import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = re.compile(r"<!-- example: (\S+) -->\n```python\n(.*?)```", re.DOTALL)


def example_of(page: Path) -> str:
    """The program printed in a page; an error if it differs from the file that it names."""
    found = EXAMPLE.search(page.read_text())
    if found is None:
        sys.exit(f"{page.name} has no example")
    name, text = found.groups()
    if (ROOT / name).read_text() != text:
        sys.exit(f"the example printed in {page.name} is not what {name} says")
    return text


def main() -> int:
    """Run the example; 0 if it printed a ticket."""
    import ticketing
    from ticketing_server.testing import ServerProcess

    for package in (ticketing,):
        where = Path(package.__file__ or "").resolve()
        if ROOT / "clients" in where.parents:
            sys.exit(f"{package.__name__} comes from the tree, not from its package: {where}")
    for name in ("ticketing-client", "ticketing-server"):
        if not any(file.name == "LICENSE" for file in files(name) or ()):
            sys.exit(f"the package {name} holds no LICENSE")
    with tempfile.TemporaryDirectory() as folder, ServerProcess() as server:
        program = Path(folder) / "example.py"
        program.write_text(example_of(ROOT / "README.md"))
        environment = os.environ | {"TICKETING_URL": server.url}
        ran = subprocess.run(
            [sys.executable, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
    print(ran.stdout, ran.stderr, sep="", end="")
    return 0 if re.fullmatch(r"I hold orders/42 with token [1-9]\d*\n", ran.stdout) else 1


if __name__ == "__main__":
    sys.exit(main())
