package main

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// The table's form. The structs of a kind are shared by its versions: two that read the same are one entry.
type table struct {
	Modules []string                    `json:"modules"`
	Kinds   map[string]map[string]*kind `json:"kinds"`  // group -> kind
	Others  map[string][]string         `json:"others"` // group -> kinds that are not of Resource Manager

	missing []string
}

type kind struct {
	Type     string              `json:"type"`
	Scope    string              `json:"scope"`
	Owner    string              `json:"owner,omitempty"` // group/Kind; empty: any resource
	Name     string              `json:"name,omitempty"`  // a name that cannot be chosen
	Versions map[string]*version `json:"versions"`
	// Where its structs are in structs.bin, and how many there are.
	At     int `json:"at"`
	Size   int `json:"size"`
	Length int `json:"structs"`

	structs []json.RawMessage
	index   map[string]int
}

type version struct {
	API    string `json:"api"`
	Spec   int    `json:"spec"`
	Status int    `json:"status"`
}

func newTable() *table {
	return &table{Kinds: map[string]map[string]*kind{}, Others: map[string][]string{}}
}

// readOthers notes the kinds of a version that has no ARM types.
func (t *table) readOthers(group, folder string) error {
	outer, err := parse(folder)
	if err != nil {
		return err
	}
	groupName := group + ".azure.com"
	for _, name := range sorted(outer.types) {
		if outer.types[name+"List"] != nil && !slices.Contains(t.Others[groupName], name) {
			t.Others[groupName] = append(t.Others[groupName], name)
		}
	}
	return nil
}

var scopes = map[string]string{
	"ResourceScopeResourceGroup": "resourceGroup",
	"ResourceScopeLocation":      "subscription",
	"ResourceScopeExtension":     "extension",
	"ResourceScopeTenant":        "tenant",
}

func (t *table) readVersion(group, folder string) error {
	outer, err := parse(folder)
	if err != nil {
		return err
	}
	inner, err := parse(filepath.Join(folder, "arm"))
	if err != nil {
		return err
	}
	groupName := group + ".azure.com"
	for _, name := range sorted(outer.types) {
		armType := outer.returns[name+".GetType"]
		if armType == "" {
			continue
		}
		specName, statusName := name+"_Spec", name+"_STATUS"
		if outer.types[specName] == nil {
			specName, statusName = name+"Spec", name+"STATUS"
		}
		if members, err := outer.fields(name); err == nil {
			for _, member := range members {
				switch member.name {
				case "Spec":
					specName = base(member.typ)
				case "Status":
					statusName = base(member.typ)
				}
			}
		}
		api := outer.returns[name+".GetAPIVersion"]
		if value, ok := outer.values[api]; ok {
			api = value
		}
		if value, ok := inner.values[api]; ok {
			api = value
		}
		entry := t.Kinds[groupName][name]
		if entry == nil {
			entry = &kind{Versions: map[string]*version{}, index: map[string]int{}}
			if t.Kinds[groupName] == nil {
				t.Kinds[groupName] = map[string]*kind{}
			}
			t.Kinds[groupName][name] = entry
		}
		entry.Type = armType
		entry.Scope = scopes[outer.returns[name+".GetResourceScope"]]
		if entry.Scope == "" {
			return fmt.Errorf("%s has the unknown scope %q", name, outer.returns[name+".GetResourceScope"])
		}
		reader := &reader{table: t, kind: entry, outer: outer, inner: inner, busy: map[string]bool{}}
		spec, err := reader.structure(specName, specName)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		status, err := reader.structure(statusName, statusName)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		members, err := outer.fields(specName)
		if err != nil {
			return err
		}
		named := false
		for _, member := range members {
			named = named || member.name == "AzureName"
			if member.name == "Owner" && member.kind != "" {
				entry.Owner = member.group + "/" + member.kind
			}
		}
		if !named {
			entry.Name = outer.returns[name+".AzureName"]
		}
		entry.Versions[filepath.Base(folder)] = &version{API: api, Spec: spec, Status: status}
	}
	return nil
}

func base(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.StarExpr:
		return base(expression.X)
	case *ast.Ident:
		return expression.Name
	case *ast.SelectorExpr:
		return base(expression.X) + "." + expression.Sel.Name
	}
	return ""
}

// render writes the two files. A version that the newer module replaced leaves structs behind that nothing names.
func (t *table) render() (map[string][]byte, error) {
	var pieces bytes.Buffer
	for _, group := range sortedKeys(t.Kinds) {
		for _, name := range sortedKeys(t.Kinds[group]) {
			entry := t.Kinds[group][name]
			entry.At = pieces.Len()
			entry.Length = len(entry.structs)
			deflated, err := flate.NewWriter(&pieces, flate.BestCompression)
			if err != nil {
				return nil, err
			}
			if err := json.NewEncoder(deflated).Encode(entry.structs); err != nil {
				return nil, err
			}
			if err := deflated.Close(); err != nil {
				return nil, err
			}
			entry.Size = pieces.Len() - entry.At
		}
	}
	kinds, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return nil, err
	}
	return map[string][]byte{"kinds.json": append(kinds, '\n'), "structs.bin": pieces.Bytes()}, nil
}

func sortedKeys[V any](all map[string]V) []string {
	return slices.Sorted(maps.Keys(all))
}

// reader pairs the structs of one version with those of its arm package.
type reader struct {
	table *table
	kind  *kind
	outer *pkg
	inner *pkg
	busy  map[string]bool
}

// notSent are members that steer the operator and have no place in the body.
var notSent = map[string]bool{"Owner": true, "OperatorSpec": true, "AzureName": true, "AzureNameFromConfig": true, "OriginalVersion": true, "Conditions": true, "PropertyBag": true}

// structure describes the pair (object's struct, ARM's struct) and returns its index.
func (r *reader) structure(outer, inner string) (int, error) {
	key := outer + "=" + inner
	if r.busy[key] {
		return -1, nil // a type that holds itself: left as it is, since both sides spell it alike
	}
	r.busy[key] = true
	defer delete(r.busy, key)

	members, err := r.outer.fields(outer)
	if err != nil {
		return 0, err
	}
	targets, err := r.inner.fields(inner)
	if err != nil {
		return 0, err
	}
	direct := map[string]field{}
	nested := map[string]field{}
	nestedUnder := ""
	for _, target := range targets {
		direct[target.name] = target
		if target.name == "Properties" {
			nestedUnder = target.json
			below, err := r.inner.fields(base(target.typ))
			if err != nil {
				continue
			}
			for _, target := range below {
				nested[target.name] = target
			}
		}
	}
	described := [][]any{}
	flattened := false
	for _, member := range members {
		if notSent[member.name] {
			continue
		}
		goal := member.name
		if member.reference != "" {
			goal = member.reference
		}
		if from := base(member.typ); member.pair != "" && (from == "genruntime.ConfigMapReference" || from == "genruntime.SecretReference") {
			goal = member.pair
		}
		var path any
		target, found := direct[goal]
		_, deeper := nested[goal]
		container := goal == "Properties" && base(member.typ) != base(target.typ)
		if deeper && (container || goal == "Name" && strings.HasSuffix(outer, "_Spec")) {
			// The container itself, and the name that azureName gives: the member is the one of that name inside.
			found = false
		}
		if found {
			path = target.json
		} else if target, found = nested[goal]; found {
			path = nestedUnder + "." + target.json
			flattened = true
		}
		if !found {
			// A nested member whose name is taken at the top is spelled with its parent's name before it.
			if target, found = nested[strings.TrimPrefix(goal, "Properties")]; found {
				path = nestedUnder + "." + target.json
				flattened = true
			}
		}
		if !found {
			// A member whose name the object needs for itself is spelled with the kind's name before it.
			owner := strings.TrimSuffix(strings.TrimSuffix(outer, "_Spec"), "_STATUS")
			if target, found = nested[strings.TrimPrefix(goal, owner)]; found {
				path = nestedUnder + "." + target.json
				flattened = true
			}
		}
		if !found {
			path, target, found = r.below(targets, goal)
		}
		if !found {
			r.table.missing = append(r.table.missing, fmt.Sprintf("%s.%s has no place in arm.%s", outer, member.name, inner))
			continue
		}
		form, err := r.form(member.typ, target.typ)
		if err != nil {
			return 0, fmt.Errorf("%s.%s: %w", outer, member.name, err)
		}
		entry := []any{member.json}
		if path == member.json {
			entry = append(entry, 0)
		} else {
			entry = append(entry, path)
		}
		if form != nil || member.explicit {
			entry = append(entry, form)
		}
		if member.explicit {
			entry = append(entry, 1)
		}
		described = append(described, entry)
	}
	sort.Slice(described, func(left, right int) bool {
		return described[left][0].(string) < described[right][0].(string)
	})
	whole := map[string]any{"f": described}
	if flattened {
		whole["p"] = nestedUnder
	}
	if r.inner.unions[inner] {
		whole["o"] = 1 // the body is that of the one member that is set
	}
	text, err := json.Marshal(whole)
	if err != nil {
		return 0, err
	}
	if index, ok := r.kind.index[string(text)]; ok {
		return index, nil
	}
	index := len(r.kind.structs)
	r.kind.structs = append(r.kind.structs, text)
	r.kind.index[string(text)] = index
	return index, nil
}

// below finds a member in a struct that the object flattens though it is not called properties.
func (r *reader) below(targets []field, goal string) (any, field, bool) {
	for _, target := range targets {
		members, err := r.inner.fields(base(target.typ))
		if err != nil {
			continue
		}
		for _, member := range members {
			if member.name == goal {
				return []string{target.json, member.json}, member, true
			}
		}
	}
	return nil, field{}, false
}

// form says what sort of value a member holds: nil for a plain value, a number for a struct, ["list", …], ["map", …],
// ["enum", …], "reference", "wellKnown", "secret", "secrets", "config" or "identities".
func (r *reader) form(outer, inner ast.Expr) (any, error) {
	if pointer, ok := outer.(*ast.StarExpr); ok {
		return r.form(pointer.X, inner)
	}
	if pointer, ok := inner.(*ast.StarExpr); ok {
		return r.form(outer, pointer.X)
	}
	switch outer := outer.(type) {
	case *ast.SelectorExpr:
		switch outer.Sel.Name {
		case "ResourceReference":
			return "reference", nil
		case "WellKnownResourceReference":
			return "wellKnown", nil
		case "SecretReference":
			return "secret", nil
		case "SecretMapReference", "SecretCollectionReference":
			return "secrets", nil
		case "ConfigMapReference":
			return "config", nil
		case "JSON":
			return nil, nil
		}
		return nil, fmt.Errorf("the type %s is not known", outer.Sel.Name)
	case *ast.ArrayType:
		switch inner := inner.(type) {
		case *ast.ArrayType:
			below, err := r.form(outer.Elt, inner.Elt)
			return []any{"list", below}, err
		case *ast.MapType:
			return "identities", nil
		}
		return nil, fmt.Errorf("a list on one side only")
	case *ast.MapType:
		switch inner := inner.(type) {
		case *ast.MapType:
			below, err := r.form(outer.Value, inner.Value)
			return []any{"map", below}, err
		}
		return nil, fmt.Errorf("a map on one side only")
	case *ast.Ident:
		if _, ok := r.outer.types[outer.Name].(*ast.StructType); ok {
			index, err := r.structure(outer.Name, base(inner))
			if index < 0 {
				return nil, nil
			}
			return index, err
		}
		if values := r.outer.enums[outer.Name]; len(values) > 0 {
			return append([]any{"enum"}, asAny(values)...), nil
		}
		return nil, nil
	}
	return nil, nil
}

func asAny(texts []string) []any {
	sort.Strings(texts)
	values := make([]any, len(texts))
	for index, text := range texts {
		values[index] = text
	}
	return values
}

func sorted(types map[string]ast.Expr) []string {
	names := make([]string, 0, len(types))
	for name := range types {
		if !strings.HasSuffix(name, "List") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}
