"""Constants compile in every language whose compiler is here, and have the spec's values."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ticketing_spec import load_spec
from ticketing_spec.constants import constants
from ticketing_spec.emitters.tables import TARGETS, VERSION3_TARGETS
from ticketing_spec.generate import REPOSITORY
from ticketing_spec.model import SPEC_DIR

SPEC = load_spec()
PATHS = {t.language: REPOSITORY / t.path for t in TARGETS}
TSC = SPEC_DIR / "tools" / "node_modules" / ".bin" / "tsc"


def tool(name: str, package: str = "") -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed{package}")
    return found


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("target", [*TARGETS, *VERSION3_TARGETS], ids=lambda t: t.path)
def test_file_names_say_that_they_are_generated(target: object) -> None:
    stem = Path(target.path).stem.lower().replace("_", "")
    assert stem.endswith("gen")


def test_names_are_unique() -> None:
    for spec in (SPEC, load_spec("version3")):
        names = [item.name for item in constants(spec)]
        assert sorted(set(names)) == sorted(names)


def test_python_has_every_value() -> None:
    for target in (*TARGETS[:2], *VERSION3_TARGETS):
        scope: dict[str, object] = {}
        exec((REPOSITORY / target.path).read_text(), scope)
        spec = load_spec("version3") if "v3" in target.path else SPEC
        assert scope["SPEC_DIGEST"] == spec.digest
        for item in constants(spec):
            assert scope[item.name] == item.value
        assert scope["CLIENT_BODY_BYTES"][0x41] == spec.frame("client", "acquire").body_bytes
        assert {code: row[0] for code, row in scope["ERRORS"].items()} == {
            e.code: e.name for e in spec.errors
        }
    assert len({(REPOSITORY / t.path).read_bytes() for t in TARGETS[:2]}) == 1


def test_go(tmp_path: Path) -> None:
    go = tool("go")
    shutil.copy(PATHS["go"], tmp_path)
    (tmp_path / "go.mod").write_text("module example.com/ticketing\n\ngo 1.21\n")
    (tmp_path / "values_test.go").write_text(
        "package wire\n\nimport \"testing\"\n\nfunc TestValues(t *testing.T) {\n"
        "\tif WaitMsForever != 4294967295 || OpAcquire != 'A' || GreetingMagic != \"TICKET\" ||\n"
        "\t\tclientBodyBounds[OpAcquire].high != 144 ||\n"
        '\t\tErrors[ErrorTakenOver].Name != "taken_over" {\n'
        '\t\tt.Fatal("wrong value")\n\t}\n}\n'
    )  # fmt: skip
    run([go, "vet", "."], tmp_path)
    run([go, "test", "."], tmp_path)
    assert run([tool("gofmt"), "-l", str(PATHS["go"])], tmp_path) == ""
    first = PATHS["go"].read_text().split("\n", 1)[0]
    assert re.match(r"^// Code generated .* DO NOT EDIT\.$", first)


def test_rust(tmp_path: Path) -> None:
    rustc = tool("rustc")
    (tmp_path / "main.rs").write_text(
        f'#[path = "{PATHS["rust"]}"]\nmod constants;\nuse constants::*;\nfn main() {{\n'
        "    assert_eq!(WAIT_MS_FOREVER, u32::MAX);\n    assert_eq!(OP_ACQUIRE, b'A');\n"
        '    assert_eq!(GREETING_MAGIC, b"TICKET");\n'
        "    assert_eq!(client_body_bytes(OP_ACQUIRE), Some((17, 144)));\n"
        '    assert_eq!(error(ERROR_TAKEN_OVER).unwrap().0, "taken_over");\n}\n'
    )
    run([rustc, "--edition", "2021", "-D", "warnings", "-o", "program", "main.rs"], tmp_path)
    run([str(tmp_path / "program")], tmp_path)


def test_javascript(tmp_path: Path) -> None:
    node = tool("node")
    if not TSC.exists():
        pytest.skip("tsc is missing: npm install --no-package-lock --prefix spec/tools")
    shutil.copy(PATHS["javascript"], tmp_path)
    (tmp_path / "package.json").write_text('{ "type": "module" }')
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--declaration"]
    run([str(TSC), *options, "constants_gen.ts"], tmp_path)
    (tmp_path / "values.js").write_text(
        "import * as c from './constants_gen.js';\nimport assert from 'node:assert';\n"
        "assert.equal(c.WAIT_MS_FOREVER, 4294967295);\nassert.equal(c.OP_ACQUIRE, 0x41);\n"
        "assert.equal(Buffer.from(c.GREETING_MAGIC).toString(), 'TICKET');\n"
        "assert.deepEqual(c.CLIENT_BODY_BYTES.get(c.OP_ACQUIRE), [17, 144]);\n"
        "assert.equal(c.ERRORS.get(c.ERROR_TAKEN_OVER).name, 'taken_over');\n"
    )
    run([node, "values.js"], tmp_path)


def test_java(tmp_path: Path) -> None:
    javac, java = tool("javac"), tool("java")
    folder = tmp_path / "io" / "github" / "ticketingproject"
    folder.mkdir(parents=True)
    shutil.copy(PATHS["java"], folder)
    (folder / "Values.java").write_text(
        "package io.github.ticketingproject;\n\nfinal class Values {\n"
        "    public static void main(String[] a) {\n"
        "        if (ConstantsGen.WAIT_MS_FOREVER != 4294967295L\n"
        "            || ConstantsGen.OP_ACQUIRE != 'A'\n"
        '            || !ConstantsGen.GREETING_MAGIC.equals("TICKET")\n'
        "            || ConstantsGen.CLIENT_BODY_BYTES.get(ConstantsGen.OP_ACQUIRE).high() != 144\n"
        "            || !ConstantsGen.ERRORS.get(ConstantsGen.ERROR_TAKEN_OVER).closes()) {\n"
        '            throw new AssertionError("wrong value");\n        }\n    }\n}\n'
    )
    sources = [str(p) for p in folder.glob("*.java")]
    run([javac, "-Xlint:all", "-Werror", "-d", "out", *sources], tmp_path)
    run([java, "-cp", "out", "io.github.ticketingproject.Values"], tmp_path)


def test_csharp(tmp_path: Path) -> None:
    dotnet = tool("dotnet")
    shutil.copy(PATHS["csharp"], tmp_path)
    (tmp_path / "nuget.config").write_text(
        "<configuration><packageSources><clear/></packageSources></configuration>"
    )
    (tmp_path / "constants.csproj").write_text(
        '<Project Sdk="Microsoft.NET.Sdk"><PropertyGroup>'
        "<TargetFramework>netstandard2.1</TargetFramework>"
        "<TreatWarningsAsErrors>true</TreatWarningsAsErrors></PropertyGroup></Project>"
    )
    run([dotnet, "build", "-p:UseSharedCompilation=false"], tmp_path)


def test_csharp_text_has_every_value() -> None:
    """Where no compiler is, the text is at least held against the spec's names and values."""
    text = PATHS["csharp"].read_text()
    assert text.count("{") == text.count("}")
    assert f'SpecDigest = "{SPEC.digest}"' in text
    assert "const uint WaitMsForever = 4294967295;" in text
    assert "const byte OpAcquire = (byte)'A';" in text
    assert text.count("/// <summary>") == text.count("</summary>")


def test_ruby(tmp_path: Path) -> None:
    ruby = tool("ruby")
    run([ruby, "-wc", str(PATHS["ruby"])], tmp_path)
    program = (
        "include Ticketing::Constants\n"
        "exit WAIT_MS_FOREVER == 4294967295 && OP_ACQUIRE == 'A'.ord && "
        "GREETING_MAGIC == 'TICKET' && GREETING_MAGIC.encoding == Encoding::BINARY && "
        "CLIENT_BODY_BYTES[OP_ACQUIRE] == [17, 144] && ERRORS[ERROR_TAKEN_OVER][0] == :taken_over"
    )
    run([ruby, "-w", "-r", str(PATHS["ruby"]), "-e", program], tmp_path)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c(tmp_path: Path, compiler: str) -> None:
    found = tool(compiler)
    (tmp_path / "main.c").write_text(
        f'#include "{PATHS["c"]}"\n#include <string.h>\n'
        "#define LOW(op, low, high) if (op == TICKETING_OP_ACQUIRE && high != 144) return 1;\n"
        "#define NAME(code, name, kind, closes, retry) \\\n"
        '    if (code == TICKETING_WIRE_ERROR_TAKEN_OVER && strcmp(name, "taken_over")) return 2;\n'
        "int main(void) {\n"
        "    if (TICKETING_WAIT_MS_FOREVER != 4294967295u) return 3;\n"
        '    if (memcmp(TICKETING_GREETING_MAGIC, "TICKET", TICKETING_GREETING_MAGIC_BYTES))\n'
        "        return 4;\n"
        "    TICKETING_CLIENT_BODY_BYTES(LOW)\n    TICKETING_WIRE_ERRORS(NAME)\n    return 0;\n}\n"
    )
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    run([found, *flags, "-o", "program", "main.c"], tmp_path)
    run([str(tmp_path / "program")], tmp_path)
