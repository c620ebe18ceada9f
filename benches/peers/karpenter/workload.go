package main

import (
	"encoding/json"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

// Workload is the workload format of docs/packing.md, in Kubernetes' and Karpenter's own types.
type Workload struct {
	Pods                   []*corev1.Pod                   `json:"pods"`
	NodePools              []*v1.NodePool                  `json:"nodePools"`
	InstanceTypes          map[string][]InstanceType       `json:"instanceTypes"`
	Nodes                  []*corev1.Node                  `json:"nodes"`
	NodeClaims             []*v1.NodeClaim                 `json:"nodeClaims"`
	DeletingNodes          []string                        `json:"deletingNodes"`
	BoundPods              []*corev1.Pod                   `json:"boundPods"`
	DaemonSets             []*appsv1.DaemonSet             `json:"daemonSets"`
	PersistentVolumeClaims []*corev1.PersistentVolumeClaim `json:"persistentVolumeClaims"`
	PersistentVolumes      []*corev1.PersistentVolume      `json:"persistentVolumes"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageClasses"`
	CSINodes               []*storagev1.CSINode            `json:"csiNodes"`
	Namespaces             []*corev1.Namespace             `json:"namespaces"`
	Services               []*corev1.Service               `json:"services"`
	PodDisruptionBudgets   []*policyv1.PodDisruptionBudget `json:"podDisruptionBudgets"`
	Options                Options                         `json:"options"`
}

// Options are those of the format that change what Karpenter does.
type Options struct {
	PreferencePolicy        string   `json:"preferencePolicy"`
	MinValuesPolicy         string   `json:"minValuesPolicy"`
	ReservedCapacity        *bool    `json:"reservedCapacity"`
	ReservedOfferingMode    string   `json:"reservedOfferingMode"`
	SpotToSpotConsolidation bool     `json:"spotToSpotConsolidation"`
	MaxInstanceTypes        int      `json:"maxInstanceTypes"`
	WellKnownLabels         []string `json:"wellKnownLabels"`
}

// InstanceType is one type a pool may launch.
type InstanceType struct {
	Name                   string                                    `json:"name"`
	Requirements           []v1.NodeSelectorRequirementWithMinValues `json:"requirements"`
	Capacity               corev1.ResourceList                       `json:"capacity"`
	Overhead               Overhead                                  `json:"overhead"`
	VolumeAttachmentLimits map[string]int                            `json:"volumeAttachmentLimits"`
	Offerings              []Offering                                `json:"offerings"`
}

// Overhead is what a node keeps for itself.
type Overhead struct {
	KubeReserved      corev1.ResourceList `json:"kubeReserved"`
	SystemReserved    corev1.ResourceList `json:"systemReserved"`
	EvictionThreshold corev1.ResourceList `json:"evictionThreshold"`
}

// Offering is one way to buy a type.
type Offering struct {
	Requirements        []v1.NodeSelectorRequirementWithMinValues `json:"requirements"`
	Price               float64                                   `json:"price"`
	Available           *bool                                     `json:"available"`
	ReservationCapacity int                                       `json:"reservationCapacity"`
	CapacityOverride    corev1.ResourceList                       `json:"capacityOverride"`
}

func (o Overhead) build() *cloudprovider.InstanceTypeOverhead {
	return &cloudprovider.InstanceTypeOverhead{
		KubeReserved: o.KubeReserved, SystemReserved: o.SystemReserved, EvictionThreshold: o.EvictionThreshold,
	}
}

func (i InstanceType) build() *cloudprovider.InstanceType {
	built := &cloudprovider.InstanceType{
		Name:                   i.Name,
		Requirements:           scheduling.NewNodeSelectorRequirementsWithMinValues(i.Requirements...),
		Capacity:               i.Capacity,
		Overhead:               i.Overhead.build(),
		VolumeAttachmentLimits: i.VolumeAttachmentLimits,
	}
	for _, offering := range i.Offerings {
		built.Offerings = append(built.Offerings, &cloudprovider.Offering{
			Requirements:        scheduling.NewNodeSelectorRequirementsWithMinValues(offering.Requirements...),
			Price:               offering.Price,
			Available:           offering.Available == nil || *offering.Available,
			ReservationCapacity: offering.ReservationCapacity,
			CapacityOverride:    offering.CapacityOverride,
		})
	}
	return built
}

func (w *Workload) instanceTypes() map[string][]*cloudprovider.InstanceType {
	built := map[string][]*cloudprovider.InstanceType{}
	for pool, types := range w.InstanceTypes {
		for _, instanceType := range types {
			built[pool] = append(built[pool], instanceType.build())
		}
	}
	return built
}

// read parses a workload and fills in what a live cluster would have filled in.
func read(data []byte) (*Workload, error) {
	workload := &Workload{}
	if err := json.Unmarshal(data, workload); err != nil {
		return nil, fmt.Errorf("reading the workload: %w", err)
	}
	for _, pool := range workload.NodePools {
		pool.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{
			Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass", Name: "default",
		}
		pool.StatusConditions().SetTrue(status.ConditionReady)
		pool.StatusConditions().SetTrue(v1.ConditionTypeNodeClassReady)
		pool.StatusConditions().SetTrue(v1.ConditionTypeValidationSucceeded)
	}
	for _, claim := range workload.NodeClaims {
		claim.Spec.NodeClassRef = &v1.NodeClassReference{
			Group: "karpenter.kwok.sh", Kind: "KWOKNodeClass", Name: "default",
		}
	}
	for _, pods := range [][]*corev1.Pod{workload.Pods, workload.BoundPods} {
		for _, pod := range pods {
			if pod.Namespace == "" {
				pod.Namespace = metav1.NamespaceDefault
			}
		}
	}
	return workload, nil
}

// objects is everything a client could read.
func (w *Workload) objects() []client.Object {
	var objects []client.Object
	add := func(object client.Object) {
		// The fake client wants to set these itself.
		object.SetResourceVersion("")
		objects = append(objects, object)
	}
	for _, pool := range w.NodePools {
		add(pool)
	}
	for _, node := range w.Nodes {
		add(node)
	}
	for _, claim := range w.NodeClaims {
		add(claim)
	}
	for _, pod := range w.BoundPods {
		add(pod)
	}
	for _, daemonSet := range w.DaemonSets {
		add(daemonSet)
	}
	for _, claim := range w.PersistentVolumeClaims {
		add(claim)
	}
	for _, volume := range w.PersistentVolumes {
		add(volume)
	}
	for _, class := range w.StorageClasses {
		add(class)
	}
	for _, node := range w.CSINodes {
		add(node)
	}
	for _, namespace := range w.Namespaces {
		add(namespace)
	}
	for _, service := range w.Services {
		add(service)
	}
	for _, budget := range w.PodDisruptionBudgets {
		add(budget)
	}
	return objects
}
