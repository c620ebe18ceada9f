// Command aso-table reads the generated Go types of the pinned azure-service-operator module and writes the
// facts crates/azure needs to turn an ASO-shaped object into an ARM request and back: per kind and version the
// ARM type, api-version, scope and owner, and per field the place in the ARM body and what sort of value it is.
//
// It works on syntax trees alone, so nothing of the module is compiled.
//
//	go run . -out ../../crates/azure/src/resource/table.json
//	go run . -check ../../crates/azure/src/resource/table.json
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

// groups are the folders under api/ whose kinds are served.
var groups = []string{
	"authorization",
	"containerservice",
	"kubernetesconfiguration",
	"managedidentity",
	"network",
	"resources",
}

type module struct {
	Dir     string
	Version string
}

func pinned() (module, error) {
	var found module
	command := exec.Command("go", "mod", "download", "-json", modulePath)
	var failure bytes.Buffer
	command.Stderr = &failure
	output, err := command.Output()
	if err != nil {
		return found, fmt.Errorf("downloading %s: %w\n%s", modulePath, err, failure.String())
	}
	err = json.Unmarshal(output, &found)
	return found, err
}

func run() error {
	out := flag.String("out", "", "write the table to this file")
	check := flag.String("check", "", "fail if this file is not what would be written")
	flag.Parse()
	if (*out == "") == (*check == "") {
		return fmt.Errorf("give exactly one of -out and -check")
	}

	source, err := pinned()
	if err != nil {
		return err
	}
	table := newTable(source.Version)
	for _, group := range groups {
		folders, err := filepath.Glob(filepath.Join(source.Dir, "api", group, "v1*"))
		if err != nil {
			return err
		}
		sort.Strings(folders)
		for _, folder := range folders {
			if err := table.readVersion(group, folder); err != nil {
				return fmt.Errorf("%s: %w", folder, err)
			}
		}
	}
	if len(table.missing) > 0 {
		return fmt.Errorf("the module has forms this reader does not know:\n%s", strings.Join(table.missing, "\n"))
	}
	rendered, err := table.render()
	if err != nil {
		return err
	}
	if *out != "" {
		return os.WriteFile(*out, rendered, 0o644)
	}
	committed, err := os.ReadFile(*check)
	if err != nil {
		return err
	}
	if !bytes.Equal(committed, rendered) {
		return fmt.Errorf("%s has drifted from %s %s: run `go run . -out %s`", *check, modulePath, source.Version, *check)
	}
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "aso-table:", err)
		os.Exit(1)
	}
}
