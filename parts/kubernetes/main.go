// Command kubernetes is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one
// binary: the first argument says which one to be. One process runs one component, because each keeps
// global flag and metric registries.
package main

import (
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const usage = "usage: kubernetes etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl [flags]"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	component := os.Args[1]
	os.Args = append([]string{component}, os.Args[2:]...)
	switch component {
	case "etcd":
		if err := runEtcd(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(controllermanager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubectl":
		if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "unknown component %q\n%s\n", component, usage)
		os.Exit(2)
	}
}

// runEtcd serves one etcd member on loopback. Without --fsync it never waits for the disk: a test cluster's
// data does not outlive the machine.
func runEtcd(arguments []string) error {
	flags := flag.NewFlagSet("etcd", flag.ExitOnError)
	dataDirectory := flags.String("data-dir", "", "where the member keeps its data")
	clientURL := flags.String("client-url", "", "the URL clients reach the member at")
	peerURL := flags.String("peer-url", "", "the URL other members would reach it at")
	fsync := flags.Bool("fsync", false, "wait for the disk on every write")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	client, err := url.Parse(*clientURL)
	if err != nil {
		return fmt.Errorf("reading --client-url: %w", err)
	}
	peer, err := url.Parse(*peerURL)
	if err != nil {
		return fmt.Errorf("reading --peer-url: %w", err)
	}

	config := embed.NewConfig()
	config.Name = "testbed"
	config.Dir = *dataDirectory
	config.ListenClientUrls = []url.URL{*client}
	config.AdvertiseClientUrls = []url.URL{*client}
	config.ListenPeerUrls = []url.URL{*peer}
	config.AdvertisePeerUrls = []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = !*fsync
	config.LogLevel = "warn"
	config.AutoCompactionMode = "periodic"
	config.AutoCompactionRetention = "5m"
	config.QuotaBackendBytes = 4 << 30
	// NewConfig leaves this at zero, and then every request counts as slow and is logged.
	config.WarningUnaryRequestDuration = time.Second

	member, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer member.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
		return nil
	case err := <-member.Err():
		return err
	}
}
