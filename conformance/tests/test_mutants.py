"""Seeded bugs: how they get into a module, and that each in the lists fits and is named right."""

import subprocess
import sys

import pytest
from ticketing_conformance.__main__ import parse_arguments
from ticketing_conformance.adapters import load_languages
from ticketing_conformance.mutants import LANGUAGE, SUITE_SIDE, all_mutants, choose
from ticketing_conformance.mutate import Mutant, check, load_mutants
from ticketing_conformance.requirements import spec_requirements
from ticketing_conformance.seeding import STALE_EXIT, Stale, module_file
from ticketing_conformance.tests_of import all_tests

MUTANTS_MIN = 40
ENTRY = """
[[mutant]]
id = "{id}"
about = "the greeting is rude"
module = "{module}"
find = "{find}"
replace = "{replace}"
case = "behaviour/some"
req = "REQ-ALIVE-ECHO"
"""
PROGRAM = "import polite.words\nprint(polite.words.GREETING)\n"


def mutant(**changes):
    fields = {
        "id": "m",
        "about": "a bug",
        "module": "polite.words",
        "find": "good",
        "replace": "bad",
        "case": "behaviour/some",
        "req": "REQ-ALIVE-ECHO",
    }
    return Mutant(**(fields | changes))


@pytest.fixture
def polite(tmp_path):
    """A package that says something, and a program that prints it."""
    package = tmp_path / "polite"
    package.mkdir()
    # The package imports the module by itself, as real ones do.
    (package / "__init__.py").write_text("from polite import words\n")
    (package / "words.py").write_text('GREETING = "good morning"\n')
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def run(folder, entry, *words):
    (folder / "list.toml").write_text(entry)
    return subprocess.run(
        [sys.executable, "-m", "ticketing_conformance.mutate", "list.toml", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def entry(**changes):
    fields = {"id": "rude", "module": "polite.words", "find": "good", "replace": "bad"}
    return ENTRY.format(**(fields | changes))


def test_a_text_is_replaced_once():
    assert mutant().patch.apply("a good day") == "a bad day"


@pytest.mark.parametrize("source", ["a day", "a good, good day"])
def test_a_text_that_is_not_there_once_is_stale(source):
    with pytest.raises(Stale, match="not once: 'good'"):
        mutant().patch.apply(source)


def test_a_program_runs_with_the_bug(polite):
    done = run(polite, entry(), "rude", "program.py")
    assert (done.stdout, done.returncode) == ("bad morning\n", 0)
    assert (polite / "polite" / "words.py").read_text() == 'GREETING = "good morning"\n'


def test_a_module_runs_with_the_bug(polite):
    done = run(polite, entry(), "rude", "-m", "program")
    assert (done.stdout, done.returncode) == ("bad morning\n", 0)


def test_a_stale_mutant_does_not_start(polite):
    done = run(polite, entry(find="evening"), "rude", "program.py")
    assert (done.stdout, done.returncode) == ("", STALE_EXIT)
    assert "mutant rude" in done.stderr
    assert "evening" in done.stderr


def test_an_unknown_mutant_does_not_start(polite):
    done = run(polite, entry(), "kind", "program.py")
    assert done.returncode == 2
    assert "no mutant kind" in done.stderr


@pytest.mark.parametrize(
    "text", [entry() + entry(), entry(replace="good")], ids=["doubled", "changes nothing"]
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, text):
    path = tmp_path / "list.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"list\.toml"):
        load_mutants(path)


def test_a_module_is_found_without_importing_its_package():
    assert module_file("ticketing._core.codec").name == "codec.py"
    assert module_file("ticketing._core").name == "__init__.py"
    with pytest.raises(Stale):
        module_file("ticketing.nothing")


def test_shares_are_spread_and_make_up_all():
    everything = list(range(25))
    assert choose(everything, (1, 1)) == everything
    assert choose(everything, (2, 10)) == [1, 11, 21]
    shares = [choose(everything, (number, 10)) for number in range(1, 11)]
    assert sorted(one for share in shares for one in share) == everything


@pytest.mark.parametrize("text", ["0/10", "11/10", "1", "1/0", "a/b"])
def test_a_share_that_makes_no_sense_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--mutants", "--share", text])
    assert "takes K/N" in capsys.readouterr().err


def test_a_share_goes_with_mutants(capsys):
    with pytest.raises(SystemExit):
        parse_arguments(["--share", "1/10"])
    assert "--share goes with --mutants" in capsys.readouterr().err


def test_no_mutant_is_stale():
    stale = []
    for seeded in all_mutants():
        try:
            check(seeded.mutant)
        except Stale as error:
            stale.append(str(error))
    assert not stale


def test_every_mutant_names_a_case_and_what_that_proves():
    mutants = [seeded.mutant for seeded in all_mutants() if seeded.side != SUITE_SIDE]
    tests = {(test.id, test.api): test for test in all_tests([load_languages()[LANGUAGE]])}
    known = {requirement.id for requirement in spec_requirements()}
    for one in mutants:
        test = tests.get((one.case, one.api))
        assert test is not None, f"{one.id}: there is no case {one.case}"
        assert one.req in known, f"{one.id}: there is no requirement {one.req}"
        assert not test.requirements or one.req in test.requirements, (
            f"{one.id}: {one.case} does not name {one.req}"
        )


def test_forty_requirements_are_proved():
    assert len({seeded.mutant.req for seeded in all_mutants()}) >= MUTANTS_MIN
