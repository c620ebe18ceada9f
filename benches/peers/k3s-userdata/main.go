// k3s-userdata renders the cases of crates/k3s/tests/userdata/cases.json with cluster-api-k3s itself and writes what
// it gives beside them, one file a case:
//
//	go run . ../../../crates/k3s/tests/userdata
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net"
	"os"
	"path/filepath"
	"strconv"

	bootstrapv1 "github.com/k3s-io/cluster-api-k3s/bootstrap/api/v1beta2"
	"github.com/k3s-io/cluster-api-k3s/pkg/cloudinit"
	"github.com/k3s-io/cluster-api-k3s/pkg/etcd"
	"github.com/k3s-io/cluster-api-k3s/pkg/k3s"
	"github.com/k3s-io/cluster-api-k3s/pkg/secret"
	"sigs.k8s.io/cluster-api/util/certs"
	"sigs.k8s.io/yaml"
)

type authority struct {
	Certificate string `json:"certificate"`
	Key         string `json:"key"`
}

type testCase struct {
	Name        string                        `json:"name"`
	Role        string                        `json:"role"`
	Spec        bootstrapv1.KThreesConfigSpec `json:"spec"`
	Host        string                        `json:"host"`
	Port        int                           `json:"port"`
	Token       string                        `json:"token"`
	Version     string                        `json:"version"`
	Authorities map[string]authority          `json:"authorities"`
}

func proxyFile(spec bootstrapv1.KThreesConfigSpec) bootstrapv1.File {
	registry := spec.ServerConfig.SystemDefaultRegistry
	if registry != "" {
		registry += "/"
	}
	var out bytes.Buffer
	parsed := template.Must(template.New("etcd-proxy").Parse(etcd.EtcdProxyDaemonsetYamlTemplate))
	values := map[string]string{"EtcdProxyImage": spec.ServerConfig.EtcdProxyImage, "SystemDefaultRegistry": registry}
	if err := parsed.Execute(&out, values); err != nil {
		panic(err)
	}
	return bootstrapv1.File{
		Path: etcd.EtcdProxyDaemonsetYamlLocation, Content: out.String(), Owner: "root:root", Permissions: "0640",
	}
}

func render(c testCase) ([]byte, error) {
	server := "https://" + net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	var config any
	switch c.Role {
	case "init":
		config = k3s.GenerateInitControlPlaneConfig(c.Host, c.Token, c.Spec.ServerConfig, c.Spec.AgentConfig)
	case "join":
		config = k3s.GenerateJoinControlPlaneConfig(server, c.Token, c.Host, c.Spec.ServerConfig, c.Spec.AgentConfig)
	default:
		config = k3s.GenerateWorkerConfig(server, c.Token, c.Spec.ServerConfig, c.Spec.AgentConfig)
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, err
	}
	base := cloudinit.BaseUserData{
		PreK3sCommands:  c.Spec.PreK3sCommands,
		PostK3sCommands: c.Spec.PostK3sCommands,
		AdditionalFiles: append([]bootstrapv1.File{}, c.Spec.Files...),
		ConfigFile: bootstrapv1.File{
			Path: k3s.DefaultK3sConfigLocation, Content: string(text), Owner: "root:root", Permissions: "0640",
		},
		K3sVersion:                 c.Version,
		AirGapped:                  c.Spec.AgentConfig.AirGapped,
		AirGappedInstallScriptPath: c.Spec.AgentConfig.AirGappedInstallScriptPath,
	}
	if c.Role == "worker" {
		return cloudinit.NewWorker(&cloudinit.WorkerInput{BaseUserData: base})
	}
	base.AdditionalFiles = append(base.AdditionalFiles, proxyFile(c.Spec))
	input := &cloudinit.ControlPlaneInput{BaseUserData: base}
	if c.Role == "join" {
		return cloudinit.NewJoinControlPlane(input)
	}
	input.Certificates = secret.NewCertificatesForInitialControlPlane(&c.Spec)
	for _, certificate := range input.Certificates {
		pair := c.Authorities[string(certificate.Purpose)]
		certificate.KeyPair = &certs.KeyPair{Cert: []byte(pair.Certificate), Key: []byte(pair.Key)}
	}
	return cloudinit.NewInitControlPlane(input)
}

func main() {
	folder := os.Args[1]
	text, err := os.ReadFile(filepath.Join(folder, "cases.json"))
	if err != nil {
		panic(err)
	}
	var cases []testCase
	if err := json.Unmarshal(text, &cases); err != nil {
		panic(err)
	}
	for _, c := range cases {
		out, err := render(c)
		if err != nil {
			panic(fmt.Errorf("%s: %w", c.Name, err))
		}
		if err := os.WriteFile(filepath.Join(folder, c.Name+".golden"), out, 0o644); err != nil {
			panic(err)
		}
	}
}
