"""The mixed suite takes whatever clients there are, and says which it could not take."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from ticketing_conformance.adapters import ROOT_DIR, load_languages
from ticketing_conformance.mixed import COLUMN, MEMBERS_MIN, seats
from ticketing_conformance.report import digests_of, identity_faults
from ticketing_conformance.results import Result
from ticketing_conformance.tests_of import file_tests

SECONDS = 300
PYTHON = load_languages()["python"]
CASE = """
case counts
  about All count
  needs contend
  server start
  file new as=f
  repeat m 1..{members}
    @{m} open as=c{m} url={s.url}
    @{m} contend client=c{m} key="a" lease_ms=120000 times=5 file={f.path} as=p detach=1
  end
  repeat m 1..{members}
    @{m} await as=p
  end
  file number {f.path} -> ok value={5 * members}
  file rising {f.path} -> ok count={5 * members}
"""


def test_one_client_alone_takes_all_seats():
    taken = seats([(PYTHON, "async")])
    assert list(taken) == [str(number) for number in range(1, MEMBERS_MIN + 1)]
    assert list(taken.values()) == [(PYTHON, "async")] * MEMBERS_MIN


def test_many_clients_have_one_seat_each():
    able = [(replace(PYTHON, name=f"client{number}"), "async") for number in range(9)]
    assert list(seats(able).values()) == able


def write(folder, name, text):
    path = folder / "cases" / "mixed" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_a_case_is_run_once_and_skipped_for_those_that_can_not_take_part(tmp_path):
    path = write(tmp_path, "some.case", CASE)
    lacking = replace(PYTHON, name="lacking", features=PYTHON.features - {"contend"})
    tests = file_tests(path, [PYTHON, lacking])
    assert [(test.column, set(test.missing)) for test in tests] == [
        (COLUMN, set()),
        ("lacking-async", {"contend"}),
        ("lacking-sync", {"contend"}),
    ]
    assert [test.column for test in file_tests(path, [lacking])] == [
        "lacking-async",
        "lacking-sync",
    ]


def identity_result(column, digest):
    return Result("identity/single-key", "identity", column, "passed", digest=digest)


def test_digests_that_differ_are_faults():
    same = [identity_result("a-async", "00"), identity_result("b-sync", "00")]
    assert identity_faults(digests_of(same)) == []
    (fault,) = identity_faults(digests_of([*same, identity_result("c-sync", "01")]))
    assert "identity/single-key" in fault
    assert "c-sync 01" in fault


@pytest.fixture
def hidden_go(tmp_path):
    """A run of the mixed suite over Python and a client in Go, which is not to be found."""
    features = ", ".join(f'"{feature}"' for feature in sorted(PYTHON.features))
    adapter = ROOT_DIR / "clients" / "python" / "adapter" / "main.py"
    (tmp_path / "adapters.toml").write_text(
        '[python]\nlanguage = "Python"\nprobe = ["{python}", "--version"]\n'
        f'command = ["{{python}}", "{adapter}"]\nfeatures = [{features}]\nhint = "-"\n'
        '[go]\nlanguage = "Go"\nprobe = ["go", "version"]\nbuild = [["go", "build"]]\n'
        'command = ["go"]\nfeatures = ["sync"]\nhint = "install Go"\n'
    )
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "expectations").mkdir()
    (tmp_path / "bin").mkdir()
    write(tmp_path, "some.case", CASE)

    def run(*options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
        environment["TICKETING_CONFORMANCE_DIR"] = str(tmp_path)
        environment["PATH"] = str(tmp_path / "bin")
        done = subprocess.run(
            [sys.executable, "-m", "ticketing_conformance", "--suite", "mixed", "-n0", *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_hidden_toolchain_is_told_and_fails_where_all_are_required(hidden_go):
    code, output = hidden_go()
    assert code == 0, output
    assert "NOT TESTED: Go: go version" in output
    assert output.strip().endswith("1 passed, 0 failed, 1 skipped")
    code, output = hidden_go("--require-all")
    assert code == 1
    assert "FAILED: missing toolchain: Go: go version" in output
    assert output.strip().endswith("1 passed, 1 failed, 0 skipped")
