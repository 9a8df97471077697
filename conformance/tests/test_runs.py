"""Whole runs of the harness over a small folder of its own, with adapters that have no client.

Each rule of the harness is broken once, and the run has to fail for it.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from ticketing_conformance.streams import the_spec

FAKE = Path(__file__).with_name("fake_adapter.py")
PASSES = "case passes\n  about It passes\n  req REQ-ALIVE-ECHO\n  ping -> ok echo=5\n"
SECONDS = 300


class Folder:
    """A folder like conformance/, and runs over it."""

    def __init__(self, path):
        self.path = path
        (path / "cases" / "behaviour").mkdir(parents=True)
        (path / "expectations").mkdir()
        (path / "pyproject.toml").write_text("")
        (path / "adapters.toml").write_text("")
        self.language("fake")

    def language(self, name, mode="good", probe="{python}"):
        with (self.path / "adapters.toml").open("a") as entries:
            entries.write(
                f'[{name}]\nlanguage = "Fake {name}"\nprobe = ["{probe}", "--version"]\n'
                f'command = ["{{python}}", "{FAKE}", "{mode}"]\nfeatures = ["sync"]\n'
                f'environment = {{ DIGEST = "{the_spec().digest}" }}\nhint = "install {name}"\n'
            )

    def cases(self, text):
        (self.path / "cases" / "behaviour" / "some.case").write_text(text)

    def expect(self, text, name="fake"):
        (self.path / "expectations" / f"{name}.txt").write_text(text)

    def run(self, *options):
        command = [sys.executable, "-m", "ticketing_conformance", "--suite", "behaviour"]
        environment = {**os.environ, "TICKETING_CONFORMANCE_DIR": str(self.path)}
        # This test may itself run in one of several workers, which the inner run is none of.
        environment = {k: v for k, v in environment.items() if not k.startswith("PYTEST_XDIST")}
        done = subprocess.run(
            [*command, *options],
            env=environment,
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


RULES = """
case unlisted-failure
  about x
  release ticket=t
case listed-failure
  about x
  release ticket=t
case listed-pass
  about x
  ping
case undeclared-skip
  about x
  needs fork
  ping
case declared-skip
  about x
  needs fork
  ping
case listed-skip-that-passes
  about x
  ping
case answer-of-fail
  about x
  extend ticket=t -> any
case passes
  about It passes
  req REQ-ALIVE-ECHO
  ping -> ok echo=5
"""
EXPECTATIONS = """
fail behaviour/listed-failure:*: everything is lost here
fail behaviour/listed-pass:*: it failed once
skip behaviour/declared-skip:sync: there is no fork
skip behaviour/listed-skip-that-passes:sync: there was no ping
fail behaviour/gone*: there was such a case
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory):
    """One run, with two workers, in which every rule of the expectations is broken."""
    folder = Folder(tmp_path_factory.mktemp("rules"))
    folder.cases(RULES)
    folder.expect(EXPECTATIONS)
    folder.expect("", "cobol")
    code, output = folder.run("-n2")
    return folder, code, output


@pytest.mark.parametrize(
    ("case", "outcome", "reason"),
    [
        ("unlisted-failure", "failed", "got err kind='lost'"),
        ("listed-failure", "passed", "everything is lost here"),
        ("listed-pass", "failed", "remove the line"),
        ("undeclared-skip", "failed", "without an entry"),
        ("declared-skip", "skipped", "there is no fork"),
        ("listed-skip-that-passes", "failed", "remove the line"),
        ("answer-of-fail", "failed", "oops"),
        ("passes", "passed", ""),
    ],
)
def test_results_are_judged(rules, case, outcome, reason):
    (result,) = (r for r in rules[0].report()["results"] if r["id"] == f"behaviour/{case}")
    assert result["outcome"] == outcome
    assert reason in result["reason"]


def test_faults_of_the_run_are_failures(rules):
    _, code, output = rules
    assert code == 1
    assert "stale: no case matches behaviour/gone*" in output
    assert "adapters.toml has no client cobol" in output
    assert "behaviour  2 passed, 5 failed, 1 skipped" in output
    assert last_line(output) == "2 passed, 7 failed, 1 skipped"


def test_the_report_has_every_form(rules):
    report = rules[0].path / "report"
    page = (report / "failure-behaviour_unlisted-failure-fake-sync.html").read_text()
    assert "--only fake --case &quot;behaviour/unlisted-failure&quot;" in page
    suites = ElementTree.parse(report / "junit.xml").getroot()
    assert [suite.get("failures") for suite in suites] == ["5", "2"]
    assert rules[0].report()["requirements"]["REQ-ALIVE-ECHO"] == ["behaviour/passes"]
    assert "failure-behaviour_unlisted-failure-fake-sync.html" in (
        (report / "index.html").read_text()
    )
    assert "`behaviour/unlisted-failure`" in (report / "report.md").read_text()


def test_a_green_run(folder):
    folder.cases(PASSES)
    code, output = folder.run("-n0")
    assert code == 0, output
    assert last_line(output) == "1 passed, 0 failed, 0 skipped"


def test_a_missing_toolchain_is_a_loud_skip_or_a_failure(folder):
    folder.cases(PASSES)
    folder.language("cobol", probe="/no/such/compiler")
    code, output = folder.run("-n0")
    assert code == 0, output
    assert "NOT TESTED: Fake cobol: /no/such/compiler" in output
    assert "install cobol" in output
    assert last_line(output) == "1 passed, 0 failed, 1 skipped"
    code, output = folder.run("-n0", "--require-all")
    assert code == 1
    assert last_line(output) == "1 passed, 1 failed, 0 skipped"


def test_skips_alone_are_no_success(folder):
    folder.cases("case forks\n  about x\n  needs fork\n  ping\n")
    folder.expect("skip behaviour/forks:sync: there is no fork")
    code, output = folder.run("-n0")
    assert (code, last_line(output)) == (1, "0 passed, 0 failed, 1 skipped")


def test_wrong_adapters_fail(folder):
    folder.cases(PASSES)
    for mode in ("digest", "features", "probe", "leak", "dead"):
        folder.language(mode, mode)
    code, output = folder.run("-n0")
    assert code == 1
    assert "built from spec 0000000000000000" in output
    assert "it has fork more" in output
    assert "an unknown verb must be unsupported" in output
    assert "threads=1" in output
    assert "last words" in output
    assert last_line(output) == "1 passed, 5 failed, 0 skipped"


def test_an_adapter_that_ends_badly_fails(folder):
    folder.cases(PASSES)
    folder.language("exit", "exit")
    code, output = folder.run("-n0", "--only", "exit")
    assert code == 1
    assert "ended with 3 after EOF" in output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("case x\n  about x\n  ping\n  end\n", "some.case:4"),
        ("case x\n  about x\n  req REQ-NOT-THERE\n  ping\n", "no requirement REQ-NOT-THERE"),
    ],
)
def test_a_case_that_can_not_be_read_stops_the_run(folder, text, why):
    folder.cases(text)
    code, output = folder.run("-n0")
    assert code == 2
    assert why in output


def test_selecting(folder):
    folder.cases(PASSES + "case fails\n  about x\n  release ticket=t\n")
    for pattern in ("behaviour/passes", "behaviour/pas*"):
        code, output = folder.run("--case", pattern)
        assert (code, last_line(output)) == (0, "1 passed, 0 failed, 0 skipped")
    code, output = folder.run("--case", "behaviour/nothing")
    assert code == 2
    assert "no case is called behaviour/nothing" in output
    code, output = folder.run("--only", "cobol")
    assert code == 2
    assert "--only takes one of fake" in output
