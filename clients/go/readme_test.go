package ticketing

import (
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	must(t, err)
	return string(text)
}

// The README's example is the file, and what the README prints runs as printed.
func TestQuickstart(t *testing.T) {
	found := regexp.MustCompile("(?s)<!-- example: (\\S+) -->\n```go\n(.*?)```").FindStringSubmatch(readme(t))
	if found == nil {
		t.Fatal("the README has no example")
	}
	text, err := os.ReadFile(found[1])
	must(t, err)
	if string(text) != found[2] {
		t.Fatalf("the README does not have the text of %s", found[1])
	}
	// The copy is built in the module, so that it finds the package; the folder's name keeps it out of it.
	dir, err := os.MkdirTemp(".", "_quickstart")
	must(t, err)
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "main.go")
	must(t, os.WriteFile(file, []byte(found[2]), 0o600))
	run := exec.Command("go", "run", file)
	run.Env = append(os.Environ(), "TICKETING_URL="+sharedServer(t).url)
	output, err := run.CombinedOutput()
	if err != nil || !regexp.MustCompile(`^I hold orders/42 with token \d+\n$`).Match(output) {
		t.Fatalf("%v\n%s", err, output)
	}
}

func TestEveryFileIsFormatted(t *testing.T) {
	files := 0
	must(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		files++
		text, err := os.ReadFile(path)
		must(t, err)
		formatted, err := format.Source(text)
		must(t, err)
		if string(formatted) != string(text) {
			t.Errorf("%s: run gofmt -w", path)
		}
		return nil
	}))
	if files < 30 {
		t.Errorf("only %d files", files)
	}
}

// documentation is the package as go doc sees it.
func documentation(t *testing.T) *doc.Package {
	t.Helper()
	files := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	must(t, err)
	var parsed []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") && name != "clock_other.go" && name != "sockets_other.go" {
			file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
			must(t, err)
			parsed = append(parsed, file)
		}
	}
	pkg, err := doc.NewFromFiles(files, parsed, "ticketing")
	must(t, err)
	return pkg
}

func TestEveryPublicNameIsDocumented(t *testing.T) {
	pkg := documentation(t)
	functions := pkg.Funcs
	for _, one := range pkg.Types {
		if one.Doc == "" {
			t.Errorf("type %s has no comment", one.Name)
		}
		functions = append(append(functions, one.Funcs...), one.Methods...)
	}
	if len(functions) < 40 {
		t.Fatalf("only %d functions", len(functions))
	}
	for _, one := range functions {
		if one.Doc == "" {
			t.Errorf("%s %s has no comment", one.Recv, one.Name)
		}
	}
	for _, group := range append(pkg.Vars, pkg.Consts...) {
		if group.Doc == "" {
			t.Errorf("%v have no comment", group.Names)
		}
	}
}

func TestTheReadmeNamesOptionsAndErrors(t *testing.T) {
	text := readme(t)
	checked := 0
	for _, one := range documentation(t).Types {
		if one.Name != "Option" && one.Name != "AcquireOption" {
			continue
		}
		for _, option := range one.Funcs {
			checked++
			if !strings.Contains(text, "`"+option.Name) {
				t.Errorf("the README does not name the option %s", option.Name)
			}
		}
	}
	if checked < 16 {
		t.Errorf("only %d options", checked)
	}
	for kind := range sentinels {
		if !strings.Contains(text, "`"+string(kind)+"`") {
			t.Errorf("the README does not name the kind %s", kind)
		}
	}
}

func TestRequirementsAreThoseOfTheSpec(t *testing.T) {
	spec, err := os.ReadFile(filepath.Join("..", "..", "spec", "ticketing.toml"))
	must(t, err)
	named := 0
	must(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		must(t, err)
		for _, id := range regexp.MustCompile(`\bREQ(-[A-Z]+)+\b`).FindAllString(string(text), -1) {
			named++
			if !strings.Contains(string(spec), `id = "`+id+`"`) {
				t.Errorf("%s names %s, which the spec does not have", path, id)
			}
		}
		return nil
	}))
	if named < 15 {
		t.Errorf("only %d requirements are named", named)
	}
}
