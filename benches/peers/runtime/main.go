// Command runtime is a manager on controller-runtime that does what benches/runtime does on Slipway's own runtime:
// each Buoy gets one ConfigMap by server-side apply and a status by merge patch. Nothing is written that the cache
// shows to be there already.
//
//	runtime --kubeconfig FILE [--concurrency N]
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	// controller-runtime has flags of its own in the common set.
	flags := flag.NewFlagSet("runtime", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "the cluster to work in")
	concurrency := flags.Int("concurrency", 10, "reconciles at the same time")
	err := flags.Parse(os.Args[1:])
	if err == nil {
		err = run(*kubeconfig, *concurrency)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(kubeconfig string, concurrency int) error {
	logger := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil))
	ctrl.SetLogger(logger)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = 100_000
	config.Burst = 100_000
	scheme := clientgoscheme.Scheme
	addToScheme(scheme)
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Cache:   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(&Buoy{}).
		Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(&reconciler{client: manager.GetClient()})
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}
