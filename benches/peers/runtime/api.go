package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "race.slipway.dev", Version: "v1"}

// Buoy is the custom resource both sides reconcile; benches/runtime has the same.
type Buoy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BuoySpec   `json:"spec"`
	Status BuoyStatus `json:"status,omitempty"`
}

type BuoySpec struct {
	Text     string            `json:"text"`
	Revision int64             `json:"revision"`
	Lights   map[string]string `json:"lights,omitempty"`
}

type BuoyStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	ConfigMap          string             `json:"configMap,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type BuoyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Buoy `json:"items"`
}

func addToScheme(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(groupVersion, &Buoy{}, &BuoyList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
}

func (in *Buoy) DeepCopyInto(out *Buoy) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	if in.Spec.Lights != nil {
		out.Spec.Lights = make(map[string]string, len(in.Spec.Lights))
		for name, value := range in.Spec.Lights {
			out.Spec.Lights[name] = value
		}
	}
	if in.Status.Conditions != nil {
		out.Status.Conditions = make([]metav1.Condition, len(in.Status.Conditions))
		for index := range in.Status.Conditions {
			in.Status.Conditions[index].DeepCopyInto(&out.Status.Conditions[index])
		}
	}
}

func (in *Buoy) DeepCopy() *Buoy {
	out := new(Buoy)
	in.DeepCopyInto(out)
	return out
}

func (in *Buoy) DeepCopyObject() runtime.Object {
	return in.DeepCopy()
}

func (in *BuoyList) DeepCopyObject() runtime.Object {
	out := &BuoyList{TypeMeta: in.TypeMeta}
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	if in.Items != nil {
		out.Items = make([]Buoy, len(in.Items))
		for index := range in.Items {
			in.Items[index].DeepCopyInto(&out.Items[index])
		}
	}
	return out
}
