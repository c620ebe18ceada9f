package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// pkg is one parsed package: its named types, its string enums and what its methods return.
type pkg struct {
	types   map[string]ast.Expr
	enums   map[string][]string
	returns map[string]string // "Type.Method" -> the literal or selector it returns
	values  map[string]string // string constants by name
	unions  map[string]bool   // types that marshal as the one member that is set
}

func parse(folder string) (*pkg, error) {
	found := &pkg{types: map[string]ast.Expr{}, enums: map[string][]string{}, returns: map[string]string{}, values: map[string]string{}, unions: map[string]bool{}}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "zz_") {
			continue
		}
		file, err := parser.ParseFile(files, filepath.Join(folder, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, declaration := range file.Decls {
			switch declaration := declaration.(type) {
			case *ast.GenDecl:
				found.general(declaration)
			case *ast.FuncDecl:
				found.method(declaration)
			}
		}
	}
	return found, nil
}

func (p *pkg) general(declaration *ast.GenDecl) {
	for _, spec := range declaration.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			p.types[spec.Name.Name] = spec.Type
		case *ast.ValueSpec:
			for index, value := range spec.Values {
				// `Name = Enum("value")`
				call, ok := value.(*ast.CallExpr)
				if !ok || len(call.Args) != 1 {
					continue
				}
				enum, isName := call.Fun.(*ast.Ident)
				literal, isLiteral := call.Args[0].(*ast.BasicLit)
				if isName && isLiteral && literal.Kind == token.STRING {
					text := strings.Trim(literal.Value, "`\"")
					p.enums[enum.Name] = append(p.enums[enum.Name], text)
					p.values[spec.Names[index].Name] = text
				}
			}
		}
	}
}

// method keeps the single return value of getters such as GetType, GetAPIVersion and GetResourceScope.
func (p *pkg) method(declaration *ast.FuncDecl) {
	if declaration.Recv == nil || declaration.Body == nil {
		return
	}
	if declaration.Name.Name == "MarshalJSON" {
		p.unions[base(declaration.Recv.List[0].Type)] = true
	}
	if len(declaration.Body.List) != 1 {
		return
	}
	statement, ok := declaration.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(statement.Results) != 1 {
		return
	}
	receiver := declaration.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	owner, ok := receiver.(*ast.Ident)
	if !ok {
		return
	}
	p.returns[owner.Name+"."+declaration.Name.Name] = literalText(statement.Results[0])
}

func literalText(expression ast.Expr) string {
	switch expression := expression.(type) {
	case *ast.BasicLit:
		return strings.Trim(expression.Value, "\"")
	case *ast.SelectorExpr:
		return expression.Sel.Name
	case *ast.Ident:
		return expression.Name
	case *ast.CallExpr:
		if len(expression.Args) == 1 {
			return literalText(expression.Args[0])
		}
	}
	return ""
}

// field is one member of a struct, with the tags that matter.
type field struct {
	name      string
	json      string
	typ       ast.Expr
	reference string // the ARM field a reference becomes
	pair      string // the field whose value may come from a ConfigMap or a Secret instead
	group     string
	kind      string
	explicit  bool // an empty collection is sent, not left out
}

// fields lists the members of a named struct, embedded ones left out.
func (p *pkg) fields(name string) ([]field, error) {
	structure, ok := p.types[name].(*ast.StructType)
	if !ok {
		return nil, fmt.Errorf("%s is not a struct", name)
	}
	var members []field
	for _, member := range structure.Fields.List {
		if len(member.Names) != 1 || member.Tag == nil {
			continue
		}
		tag := reflect.StructTag(strings.Trim(member.Tag.Value, "`"))
		members = append(members, field{
			name:      member.Names[0].Name,
			json:      strings.Split(tag.Get("json"), ",")[0],
			typ:       member.Type,
			reference: tag.Get("armReference"),
			pair:      tag.Get("optionalConfigMapPair") + tag.Get("optionalSecretPair"),
			group:     tag.Get("group"),
			kind:      tag.Get("kind"),
			explicit:  tag.Get("serializationType") == "explicitEmptyCollection",
		})
	}
	return members, nil
}
