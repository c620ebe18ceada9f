package main

import (
	"context"
	"errors"

	"github.com/awslabs/operatorpkg/status"
	kwokv1alpha1 "sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

var errReadOnly = errors.New("this provider only answers which instance types there are")

// provider serves the workload's instance types and nothing else.
type provider struct {
	types map[string][]*cloudprovider.InstanceType
}

func (p *provider) GetInstanceTypes(_ context.Context, pool *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	return p.types[pool.Name], nil
}

func (p *provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&kwokv1alpha1.KWOKNodeClass{}}
}

func (p *provider) Name() string                                 { return "workload" }
func (p *provider) RepairPolicies() []cloudprovider.RepairPolicy { return nil }

func (p *provider) Create(context.Context, *v1.NodeClaim) (*v1.NodeClaim, error) {
	return nil, errReadOnly
}
func (p *provider) Delete(context.Context, *v1.NodeClaim) error         { return errReadOnly }
func (p *provider) Get(context.Context, string) (*v1.NodeClaim, error)  { return nil, errReadOnly }
func (p *provider) List(context.Context) ([]*v1.NodeClaim, error)       { return nil, nil }
func (p *provider) Reboot(context.Context, *v1.NodeClaim, string) error { return errReadOnly }
func (p *provider) IsDrifted(context.Context, *v1.NodeClaim) (cloudprovider.DriftReason, error) {
	return "", nil
}
