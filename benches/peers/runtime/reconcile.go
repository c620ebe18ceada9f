package main

import (
	"context"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const fieldManager = "race"

type reconciler struct {
	client client.Client
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var buoy Buoy
	if err := r.client.Get(ctx, request.NamespacedName, &buoy); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.applyChild(ctx, &buoy); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.patchStatus(ctx, &buoy)
}

func (r *reconciler) applyChild(ctx context.Context, buoy *Buoy) error {
	data := map[string]string{
		"text":     buoy.Spec.Text,
		"revision": strconv.FormatInt(buoy.Spec.Revision, 10),
	}
	var child corev1.ConfigMap
	err := r.client.Get(ctx, client.ObjectKeyFromObject(buoy), &child)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil && maps.Equal(child.Data, data) && metav1.IsControlledBy(&child, buoy) {
		return nil
	}
	wanted := applycore.ConfigMap(buoy.Name, buoy.Namespace).
		WithOwnerReferences(applymeta.OwnerReference().
			WithAPIVersion(groupVersion.String()).
			WithKind("Buoy").
			WithName(buoy.Name).
			WithUID(buoy.UID).
			WithController(true).
			WithBlockOwnerDeletion(true)).
		WithData(data)
	return r.client.Apply(ctx, wanted, client.FieldOwner(fieldManager), client.ForceOwnership)
}

func (r *reconciler) patchStatus(ctx context.Context, buoy *Buoy) error {
	before := buoy.DeepCopy()
	buoy.Status.ObservedGeneration = buoy.Generation
	buoy.Status.ConfigMap = buoy.Name
	meta.SetStatusCondition(&buoy.Status.Conditions, metav1.Condition{
		Type:               "Ready",
		Status:             metav1.ConditionTrue,
		Reason:             "Applied",
		Message:            "the ConfigMap is as wanted",
		ObservedGeneration: buoy.Generation,
	})
	if equality.Semantic.DeepEqual(before.Status, buoy.Status) {
		return nil
	}
	return r.client.Status().Patch(ctx, buoy, client.MergeFrom(before))
}
