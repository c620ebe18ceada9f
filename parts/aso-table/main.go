// Command aso-table reads the generated Go types of two pinned azure-service-operator modules and writes the
// facts crates/azure needs to turn an ASO-shaped object into an ARM request and back: per kind and version the
// ARM type, api-version, scope and owner, and per field the place in the ARM body and what sort of value it is.
// A kind and version that both modules have is the newer one's.
//
// It works on syntax trees alone, so nothing of the modules is compiled.
//
// kinds.json says where the structs of each kind are in structs.bin: one deflated piece a kind, read when the kind is
// first asked for.
//
//	go run . -out ../../crates/azure/src/resource/table
//	go run . -check ../../crates/azure/src/resource/table
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
)

const modulePath = "github.com/Azure/azure-service-operator/v2"

type module struct {
	Dir     string
	Version string
}

// folders are those of the modules that pin the versions, oldest first.
var folders = []string{".", "../aso-recordings"}

func pinned(folder string) (module, error) {
	var found module
	command := exec.Command("go", "mod", "download", "-json", modulePath)
	command.Dir = folder
	var failure bytes.Buffer
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return found, fmt.Errorf("downloading %s: %w\n%s", modulePath, err, failure.String())
	}
	err = json.Unmarshal(output, &found)
	return found, err
}

func (t *table) readModule(source module) error {
	t.Modules = append(t.Modules, source.Version)
	folders, err := filepath.Glob(filepath.Join(source.Dir, "api", "*", "v*"))
	if err != nil {
		return err
	}
	sort.Strings(folders)
	for _, folder := range folders {
		if info, err := os.Stat(folder); err != nil || !info.IsDir() {
			continue
		}
		group := filepath.Base(filepath.Dir(folder))
		if _, err := os.Stat(filepath.Join(folder, "arm")); err != nil {
			if err := t.readOthers(group, folder); err != nil {
				return fmt.Errorf("%s: %w", folder, err)
			}
			continue
		}
		if err := t.readVersion(group, folder); err != nil {
			return fmt.Errorf("%s: %w", folder, err)
		}
	}
	return nil
}

func run() error {
	out := flag.String("out", "", "write the table to this folder")
	check := flag.String("check", "", "fail if this folder does not hold what would be written")
	flag.Parse()
	if (*out == "") == (*check == "") {
		return fmt.Errorf("give exactly one of -out and -check")
	}

	table := newTable()
	for _, folder := range folders {
		source, err := pinned(folder)
		if err != nil {
			return err
		}
		if err := table.readModule(source); err != nil {
			return err
		}
	}
	if len(table.missing) > 0 {
		return fmt.Errorf("the modules have forms this reader does not know:\n%s", strings.Join(table.missing, "\n"))
	}
	files, err := table.render()
	if err != nil {
		return err
	}
	folder := *out
	if folder == "" {
		folder = *check
	}
	for name, content := range files {
		path := filepath.Join(folder, name)
		if *out != "" {
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return err
			}
			continue
		}
		committed, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(committed, content) {
			return fmt.Errorf("%s has drifted from %s %s: run `go run . -out %s`", path, modulePath, strings.Join(table.Modules, " and "), folder)
		}
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "aso-table:", err)
		os.Exit(1)
	}
}
