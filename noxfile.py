"""Everything that is run on this repository: `./nox -l` lists it, `./nox -s NAME` runs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.4"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "spec", "tests", "conformance"]

ROOT = Path(__file__).parent
TYPED = {
    "spec": "spec/src",
    "server": "server/src",
    "client": "clients/python/src",
    "harness": "conformance/src",
    "simulator": "server/sim",
}
PYTHON_TESTS = [
    "spec/tests",
    "server/tests",
    "clients/python/tests",
    "conformance/tests",
    "bench/tests",
]


def install(session: nox.Session, *extra: str) -> None:
    """Put the four Python packages, as they stand in the tree, into the session's environment."""
    parts = ("spec[test]", "server[fast,admin,test]", "clients/python[test]", "conformance")
    session.install(*(word for part in parts for word in ("-e", part)), *extra)


def workers() -> str:
    """How many pytest processes: one per core, as the tests are written for a loaded machine."""
    return str(min(os.cpu_count() or 1, 8))


@nox.session
def demo(session: nox.Session) -> None:
    """Start a server and let clients queue for one key, on the terminal; takes no arguments."""
    session.install("-e", "server[fast]", "-e", "clients/python")
    session.run("python", "clients/python/examples/demo.py", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests of all parts for the toolchains found; `-- PATH …` goes to pytest."""
    install(session)
    pytest = ("pytest", "-q", "-p", "no:cacheprovider")
    if session.posargs:
        session.run(*pytest, *session.posargs)
        return
    for part in PYTHON_TESTS:
        # A run per part: its tests see its own fixtures, and may be named like another part's.
        session.run(*pytest, "-n", workers(), part)
    session.run("python", "-m", "ticketing_conformance.tasks", "tests")


@nox.session
def conformance(session: nox.Session) -> None:
    """Drive every client against the reference server; `-- --help` lists the options."""
    install(session)
    session.run("python", "-m", "ticketing_conformance", *session.posargs)


@nox.session(name="cluster-demo")
def cluster_demo(session: nox.Session) -> None:
    """Kill leaders of three nodes while a queue goes on, on the terminal, for half a minute."""
    install(session)
    session.run("python", "-m", "ticketing_conformance.cluster.demo", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Run at full length what CI runs a part of (hours); `-- --only NAME`, `-- --help`."""
    install(session)
    session.run("python", "-m", "ticketing_conformance.soak", *session.posargs)


@nox.session
def sim(session: nox.Session) -> None:
    """Simulate clusters: CI's seeds, `-- --seed N`, `-- --seconds N`, or `-- --bugs`; `--help`."""
    install(session)
    env = {"PYTHONPATH": str(ROOT / "server" / "sim")}
    session.run("python", "-m", "ticketing_sim", *session.posargs, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, lint and types; `-- --fix` rewrites what can be rewritten."""
    stubs = ("jsonschema", "grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf")
    install(session, "ruff>=0.6,<1", "mypy>=1.10,<3", *(f"types-{name}" for name in stubs))
    if "--fix" in session.posargs:
        session.run("ruff", "check", "--fix", ".")
        session.run("ruff", "format", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    for part, sources in TYPED.items():
        session.log(f"mypy --strict: {part}")
        session.run("mypy", "--strict", sources)
    session.run("python", "-m", "ticketing_conformance.tasks", "lint")


@nox.session
def spec(session: nox.Session) -> None:
    """Check the spec and rewrite what is generated from it (with CI set: fail if it is stale)."""
    session.install("-e", "spec")
    for command in ("check", "diff", "generate"):
        session.run("python", "-m", "ticketing_spec", command)


@nox.session
def docs(session: nox.Session) -> None:
    """Check the links between the pages and build the Python API pages into docs/build."""
    session.install("-e", "server", "-e", "clients/python", "pdoc>=14,<17")
    session.run("python", "docs/check_links.py")
    session.run(
        "pdoc", "--output-directory", "docs/build/api", "ticketing", "ticketing_server.testing"
    )


@nox.session
def packages(session: nox.Session) -> None:
    """Build the packages that users install, then try the built ones."""
    session.install("build>=1,<2", "hatchling>=1.24,<2")
    out = ROOT / "packages"
    shutil.rmtree(out, ignore_errors=True)
    for part in ("server", "clients/python"):
        session.run(
            "python", "-m", "build", "--no-isolation", "--outdir", str(out), part, silent=True
        )
    environment = Path(session.create_tmp()) / "installed"
    session.run("python", "-m", "venv", "--clear", str(environment))
    python = str(environment / "bin" / "python")
    wheels = [str(wheel) for wheel in sorted(out.glob("*.whl"))]
    session.run(python, "-m", "pip", "install", "--quiet", *wheels, external=True)
    session.run(python, "conformance/try_packages.py", external=True)
    install(session)
    session.run("python", "-m", "ticketing_conformance.tasks", "packages")
    session.log(f"built: {', '.join(sorted(path.name for path in out.iterdir()))}")


@nox.session
def toolchains(session: nox.Session) -> None:
    """Install, on Debian and Ubuntu, the compilers and peers that tests use and are missing."""
    install(session)
    session.run("python", "-m", "ticketing_conformance.toolchains")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the server beside Redis and etcd; results go to bench/results; `-- --help`."""
    session.install("-e", "server[fast]", "-e", "clients/python")
    session.run("python", "bench/run.py", *session.posargs)
