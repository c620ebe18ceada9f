package main

import (
	"context"
	"errors"
	"math"
	"runtime/debug"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	_ "sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/options"
)

// Outcome is what Karpenter would do, in the form of the plan of docs/packing.md, and how long it took.
type Outcome struct {
	NewClaims     []Claim         `json:"newClaims"`
	Existing      []Existing      `json:"existing"`
	Unschedulable []Unschedulable `json:"unschedulable"`
	Seconds       []float64       `json:"seconds,omitempty"`
	SolveSeconds  []float64       `json:"solveSeconds,omitempty"`
	BusySeconds   []float64       `json:"busySeconds,omitempty"`
	// Costs and Counts are the price and the number of claims of every run: runs of one workload differ.
	Costs  []float64 `json:"costs,omitempty"`
	Counts []float64 `json:"counts,omitempty"`
	// TimedOut says that the limit ended the last run: pods it did not reach are listed as unschedulable.
	TimedOut       bool    `json:"timedOut,omitempty"`
	PeakMegabytes  float64 `json:"peakMegabytes,omitempty"`
	GrownMegabytes float64 `json:"grownMegabytes,omitempty"`
	Error          string  `json:"error,omitempty"`
}

// Claim is one node to create.
type Claim struct {
	NodePool      string                                    `json:"nodePool"`
	InstanceTypes []string                                  `json:"instanceTypes"`
	Pods          []string                                  `json:"pods"`
	Zones         []string                                  `json:"zones"`
	CapacityTypes []string                                  `json:"capacityTypes"`
	CheapestPrice float64                                   `json:"cheapestPrice"`
	Requirements  []v1.NodeSelectorRequirementWithMinValues `json:"requirements"`
}

// Existing is a node that got pods.
type Existing struct {
	Node string   `json:"node"`
	Pods []string `json:"pods"`
}

// Unschedulable is a pod that fits nowhere.
type Unschedulable struct {
	Pod     string `json:"pod"`
	UID     string `json:"uid"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// world is a cluster made of a workload.
type world struct {
	workload    *Workload
	client      client.Client
	cluster     *state.Cluster
	provider    *provider
	provisioner *provisioning.Provisioner
	recorder    *counting
	clock       clock.Clock
}

func contextFor(ctx context.Context, workload *Workload, threads int) context.Context {
	chosen := &options.Options{
		CPURequests:       int64(threads) * 1000,
		BatchMaxDuration:  10 * time.Second,
		BatchIdleDuration: time.Second,
		PreferencePolicy:  options.PreferencePolicyRespect,
		MinValuesPolicy:   options.MinValuesPolicyStrict,
		IgnoreDRARequests: true,
	}
	chosen.FeatureGates.ReservedCapacity = workload.Options.ReservedCapacity == nil || *workload.Options.ReservedCapacity
	chosen.FeatureGates.SpotToSpotConsolidation = workload.Options.SpotToSpotConsolidation
	if workload.Options.PreferencePolicy == "Ignore" {
		chosen.PreferencePolicy = options.PreferencePolicyIgnore
	}
	if workload.Options.MinValuesPolicy == "BestEffort" {
		chosen.MinValuesPolicy = options.MinValuesPolicyBestEffort
	}
	return options.ToContext(injection.WithControllerName(ctx, "provisioner"), chosen)
}

// getAsServer reads a volume whatever the namespace asked for: volumes have none, and a server ignores it where the
// fake client would find nothing.
func getAsServer(
	ctx context.Context, inner client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	if _, isVolume := object.(*corev1.PersistentVolume); isVolume {
		key.Namespace = ""
	}
	return inner.Get(ctx, key, object, options...)
}

// build makes the cluster state as the informers would have.
func build(ctx context.Context, workload *Workload) (*world, error) {
	cloudprovider.ReservationIDLabel = "karpenter.sh/reservation-id"
	for _, label := range workload.Options.WellKnownLabels {
		v1.WellKnownLabels = v1.WellKnownLabels.Insert(label)
	}
	nodeName := func(object client.Object) []string { return []string{object.(*corev1.Pod).Spec.NodeName} }
	nodeProvider := func(object client.Object) []string { return []string{object.(*corev1.Node).Spec.ProviderID} }
	claimProvider := func(object client.Object) []string { return []string{object.(*v1.NodeClaim).Status.ProviderID} }
	kubeClient := fake.NewClientBuilder().
		WithScheme(scheme.Scheme).
		WithObjects(workload.objects()...).
		WithStatusSubresource(&v1.NodeClaim{}, &v1.NodePool{}, &policyv1.PodDisruptionBudget{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", nodeName).
		WithIndex(&corev1.Node{}, "spec.providerID", nodeProvider).
		WithIndex(&v1.NodeClaim{}, "status.providerID", claimProvider).
		WithInterceptorFuncs(interceptor.Funcs{Get: getAsServer}).
		Build()
	cloud := &provider{types: workload.instanceTypes()}
	wall := clock.RealClock{}
	cluster := state.NewCluster(wall, kubeClient, cloud)
	for _, claim := range workload.NodeClaims {
		cluster.UpdateNodeClaim(claim)
	}
	for _, node := range workload.Nodes {
		if err := cluster.UpdateNode(ctx, node); err != nil {
			return nil, err
		}
		if slices.Contains(workload.DeletingNodes, node.Name) {
			cluster.MarkForDeletion(node.Spec.ProviderID)
		}
	}
	for _, pod := range workload.BoundPods {
		if err := cluster.UpdatePod(ctx, pod); err != nil {
			return nil, err
		}
	}
	for _, daemonSet := range workload.DaemonSets {
		if err := cluster.UpdateDaemonSet(ctx, daemonSet); err != nil {
			return nil, err
		}
	}
	recorder := &counting{Recorder: events.NewRecorder(&record.FakeRecorder{}), probed: sets.New[string]()}
	provisioner := provisioning.NewProvisioner(kubeClient, recorder, cloud, cluster, wall, nil, nil)
	return &world{workload, kubeClient, cluster, cloud, provisioner, recorder, wall}, nil
}

func solve(ctx context.Context, data []byte, iterations, threads int, limit time.Duration) (*Outcome, error) {
	var outcome *Outcome
	var seconds, solveSeconds, busy, costs, counts []float64
	var before memory
	for iteration := range iterations {
		// The last outcome is not part of what the next run needs.
		outcome = nil
		workload, err := read(data)
		if err != nil {
			return nil, err
		}
		ctx := contextFor(ctx, workload, threads)
		world, err := build(ctx, workload)
		if err != nil {
			return nil, err
		}
		debug.FreeOSMemory()
		if iteration == 0 {
			before = mark()
		}
		chosen := []scheduling.Options{
			scheduling.NumConcurrentReconciles(threads),
			scheduling.MinValuesPolicy(options.FromContext(ctx).MinValuesPolicy),
		}
		if workload.Options.ReservedOfferingMode != "Fallback" {
			chosen = append(chosen, scheduling.DisableReservedCapacityFallback)
		}
		if options.FromContext(ctx).PreferencePolicy == options.PreferencePolicyIgnore {
			chosen = append(chosen, scheduling.IgnorePreferences)
		}
		started, busyBefore := time.Now(), busySeconds()
		nodes := world.cluster.DeepCopyNodes()
		scheduler, err := world.provisioner.NewScheduler(ctx, workload.Pods, nodes.Active(), sets.New[types.UID](), chosen...)
		if err != nil {
			return nil, err
		}
		built := time.Now()
		solving, cancel := context.WithTimeout(ctx, limit)
		results, err := scheduler.Solve(solving, workload.Pods)
		cancel()
		timedOut := errors.Is(err, context.DeadlineExceeded)
		if err != nil && !timedOut {
			return nil, err
		}
		most := scheduling.MaxInstanceTypes
		if workload.Options.MaxInstanceTypes > 0 {
			most = workload.Options.MaxInstanceTypes
		}
		results = results.TruncateInstanceTypes(ctx, most)
		solveSeconds = append(solveSeconds, time.Since(built).Seconds())
		seconds = append(seconds, time.Since(started).Seconds())
		busy = append(busy, busySeconds()-busyBefore)
		outcome = describe(results, workload.Pods)
		outcome.TimedOut = timedOut
		cost := 0.0
		for _, claim := range outcome.NewClaims {
			cost += claim.CheapestPrice
		}
		costs, counts = append(costs, cost), append(counts, float64(len(outcome.NewClaims)))
	}
	outcome.Seconds, outcome.SolveSeconds, outcome.BusySeconds = seconds, solveSeconds, busy
	outcome.Costs, outcome.Counts = costs, counts
	outcome.PeakMegabytes, outcome.GrownMegabytes = before.since()
	return outcome, nil
}

func describe(results scheduling.Results, pods []*corev1.Pod) *Outcome {
	outcome := &Outcome{NewClaims: []Claim{}, Existing: []Existing{}, Unschedulable: []Unschedulable{}}
	for _, claim := range results.NewNodeClaims {
		described := Claim{
			NodePool:      claim.NodePoolName,
			Pods:          names(claim.Pods),
			Zones:         sorted(claim.Requirements.Get(corev1.LabelTopologyZone).Values()),
			CapacityTypes: sorted(claim.Requirements.Get(v1.CapacityTypeLabelKey).Values()),
			CheapestPrice: math.MaxFloat64,
			Requirements:  claim.Requirements.NodeSelectorRequirements(),
		}
		for _, instanceType := range claim.InstanceTypeOptions.OrderByPrice(claim.Requirements) {
			described.InstanceTypes = append(described.InstanceTypes, instanceType.Name)
			for _, offering := range instanceType.Offerings.Available().Compatible(claim.Requirements) {
				// A full reservation is healthy but nothing can be launched into it.
				if offering.CapacityType() != v1.CapacityTypeReserved || offering.ReservationCapacity > 0 {
					described.CheapestPrice = math.Min(described.CheapestPrice, offering.Price)
				}
			}
		}
		outcome.NewClaims = append(outcome.NewClaims, described)
	}
	for _, node := range results.ExistingNodes {
		if len(node.Pods) > 0 {
			outcome.Existing = append(outcome.Existing, Existing{Node: node.Name(), Pods: names(node.Pods)})
		}
	}
	placed := sets.New[types.UID]()
	for _, claim := range results.NewNodeClaims {
		for _, pod := range claim.Pods {
			placed.Insert(pod.UID)
		}
	}
	for _, node := range results.ExistingNodes {
		for _, pod := range node.Pods {
			placed.Insert(pod.UID)
		}
	}
	why := map[types.UID]string{}
	for pod, err := range results.PodErrors {
		why[pod.UID] = err.Error()
	}
	for _, pod := range pods {
		if placed.Has(pod.UID) {
			continue
		}
		message, found := why[pod.UID]
		if !found {
			message = "not reached before the time limit"
		}
		outcome.Unschedulable = append(outcome.Unschedulable, Unschedulable{
			Pod: pod.Namespace + "/" + pod.Name, UID: string(pod.UID), Reason: "Unschedulable", Message: message,
		})
	}
	sort.Slice(outcome.Unschedulable, func(i, j int) bool {
		return outcome.Unschedulable[i].Pod < outcome.Unschedulable[j].Pod
	})
	return outcome
}

func names(pods []*corev1.Pod) []string {
	list := make([]string, 0, len(pods))
	for _, pod := range pods {
		list = append(list, pod.Namespace+"/"+pod.Name)
	}
	return sorted(list)
}

func sorted(list []string) []string {
	sort.Strings(list)
	return list
}
