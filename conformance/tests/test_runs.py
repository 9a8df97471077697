"""Whole runs of the harness over a small folder of its own, with an adapter that has no client.

Each rule of the harness is broken once, and the run has to fail for it.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_adapter.py")
PASSES = "case passes\n  about It passes\n  req REQ-ALIVE-ECHO\n  ping -> ok echo=5\n"
FAILS = "case fails\n  about It fails\n  release ticket=t -> ok\n"
NEEDS_FORK = "case forks\n  about It needs more than there is\n  needs fork\n  ping\n"
SECONDS = 120


class Folder:
    """A folder like conformance/, and runs over it."""

    def __init__(self, path):
        self.path = path
        (path / "cases" / "behaviour").mkdir(parents=True)
        (path / "expectations").mkdir()
        (path / "pyproject.toml").write_text("")
        self.language()

    def language(self, mode="good", probe="{python}"):
        (self.path / "adapters.toml").write_text(
            f'[fake]\nlanguage = "Fake"\nprobe = ["{probe}", "--version"]\n'
            f'command = ["{{python}}", "{FAKE}", "{mode}"]\n'
            'features = ["sync"]\nhint = "install the fake"\n'
        )

    def cases(self, *texts):
        (self.path / "cases" / "behaviour" / "some.case").write_text("\n".join(texts))

    def expect(self, text):
        (self.path / "expectations" / "fake.txt").write_text(text)

    def run(self, *options, **environment):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ticketing_conformance",
                "--suite",
                "behaviour",
                "-n0",
                *options,
            ],
            env={
                **os.environ,
                "TICKETING_CONFORMANCE_DIR": str(self.path),
                # This test may itself be one of several workers.
                "PYTEST_XDIST_WORKER": "",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def report(self):
        return json.loads((self.path / "report" / "report.json").read_text())


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def last_line(output):
    return output.strip().splitlines()[-1]


def test_a_green_run(folder):
    folder.cases(PASSES)
    code, output = folder.run()
    assert code == 0, output
    assert last_line(output) == "1 passed, 0 failed, 0 skipped"
    assert "behaviour  1 passed" in output
    report = folder.report()
    assert report["counts"] == {"passed": 1, "failed": 0, "skipped": 0}
    assert report["requirements"]["REQ-ALIVE-ECHO"] == ["behaviour/passes"]
    assert "REQ-ALIVE-ECHO" in (folder.path / "report" / "index.html").read_text()
    assert "REQ-ALIVE-ECHO" not in (folder.path / "report" / "report.md").read_text()


def test_an_unlisted_failure_fails_and_has_a_page(folder):
    folder.cases(PASSES, FAILS)
    code, output = folder.run()
    assert code == 1
    assert "got err kind='lost'" in output
    assert "expected ok" in output
    assert last_line(output) == "1 passed, 1 failed, 0 skipped"
    page = (folder.path / "report" / "failure-behaviour_fails-fake-sync.html").read_text()
    assert "--only fake --case &quot;behaviour/fails&quot;" in page
    tree = ElementTree.parse(folder.path / "report" / "junit.xml")
    (suite,) = tree.getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_a_listed_failure_passes(folder):
    folder.cases(FAILS)
    folder.expect("fail behaviour/fails*: the fake has lost everything")
    code, output = folder.run()
    assert code == 0, output


def test_a_listed_pass_fails(folder):
    folder.cases(PASSES)
    folder.expect("fail behaviour/passes*: once it did")
    code, output = folder.run()
    assert code == 1
    assert "remove the line" in output


def test_an_undeclared_skip_fails(folder):
    folder.cases(PASSES, NEEDS_FORK)
    code, output = folder.run()
    assert code == 1
    assert "skipped without an entry in the expectations: the client lacks fork" in output


def test_a_declared_skip_is_counted(folder):
    folder.cases(PASSES, NEEDS_FORK)
    folder.expect("skip feature:fork: the fake can't")
    assert folder.run()[0] == 1, "a feature line names no suite, so it is stale only in full runs"


def test_a_declared_skip_by_its_case(folder):
    folder.cases(PASSES, NEEDS_FORK)
    folder.expect("skip behaviour/forks*: the fake can't")
    code, output = folder.run()
    assert code == 0, output
    assert last_line(output) == "1 passed, 0 failed, 1 skipped"


def test_skips_alone_are_no_success(folder):
    folder.cases(NEEDS_FORK)
    folder.expect("skip behaviour/forks*: the fake can't")
    assert folder.run()[0] == 1


def test_a_stale_line_fails(folder):
    folder.cases(PASSES)
    folder.expect("fail behaviour/gone*: there was such a case")
    code, output = folder.run()
    assert code == 1
    assert "stale: no case matches behaviour/gone*" in output


def test_expectations_of_nobody_fail(folder):
    folder.cases(PASSES)
    (folder.path / "expectations" / "cobol.txt").write_text("")
    code, output = folder.run()
    assert code == 1
    assert "no client cobol" in output


def test_a_missing_toolchain_is_a_loud_skip_or_a_failure(folder):
    folder.cases(PASSES)
    folder.language(probe="/no/such/compiler")
    code, output = folder.run()
    assert code == 1, "nothing passed"
    assert "NOT TESTED: Fake: /no/such/compiler" in output
    assert "install the fake" in output
    assert last_line(output) == "0 passed, 0 failed, 1 skipped"
    code, output = folder.run("--require-all")
    assert code == 1
    assert last_line(output) == "0 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("digest", "built from spec 0000000000000000"),
        ("features", "it has fork more"),
        ("probe", "an unknown verb must be unsupported"),
    ],
)
def test_a_wrong_hello_fails(folder, mode, why):
    folder.cases(PASSES)
    folder.language(mode)
    code, output = folder.run()
    assert code == 1
    assert why in output


@pytest.mark.parametrize(
    ("mode", "why"), [("leak", "threads=1"), ("dead", "last words"), ("exit", "ended with 3")]
)
def test_an_adapter_that_misbehaves_fails(folder, mode, why):
    folder.cases(PASSES)
    folder.language(mode)
    code, output = folder.run()
    assert code != 0
    assert why in output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("case x\n  about x\n  acquire key=\n  end\n", "some.case:4"),
        ("case x\n  about x\n  req REQ-NOT-THERE\n  ping\n", "no requirement REQ-NOT-THERE"),
    ],
)
def test_a_case_that_can_not_be_read_fails(folder, text, why):
    folder.cases(text)
    code, output = folder.run()
    assert code != 0
    assert why in output


def test_an_answer_of_fail_is_never_expected(folder):
    folder.cases("case x\n  about x\n  extend ticket=t -> any\n")
    code, output = folder.run()
    assert code == 1
    assert "oops" in output


def test_selecting_cases(folder):
    folder.cases(PASSES, FAILS)
    code, output = folder.run("--case", "behaviour/passes")
    assert (code, last_line(output)) == (0, "1 passed, 0 failed, 0 skipped")
    code, output = folder.run("--case", "behaviour/pas*")
    assert (code, last_line(output)) == (0, "1 passed, 0 failed, 0 skipped")
    code, output = folder.run("--case", "behaviour/nothing")
    assert code == 2
    assert "no case is called behaviour/nothing" in output
    code, output = folder.run("--only", "cobol")
    assert code == 2
    assert "--only takes one of fake" in output


def test_workers_give_the_same_counts(folder):
    folder.cases(PASSES, FAILS, NEEDS_FORK)
    folder.expect("skip behaviour/forks*: the fake can't")
    code, output = folder.run("-n2")
    assert code == 1
    assert last_line(output) == "1 passed, 1 failed, 1 skipped"
