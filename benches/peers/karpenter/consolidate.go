package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/events"
)

// Pass is one look of every consolidation method over the cluster.
type Pass struct {
	Methods        []Method `json:"methods"`
	Seconds        float64  `json:"seconds"`
	BusySeconds    float64  `json:"busySeconds"`
	PeakMegabytes  float64  `json:"peakMegabytes"`
	GrownMegabytes float64  `json:"grownMegabytes"`
}

// Method is what one method would do first.
type Method struct {
	Name     string   `json:"name"`
	Seconds  float64  `json:"seconds"`
	Delete   []string `json:"delete"`
	Replace  int      `json:"replace"`
	Savings  float64  `json:"savings"`
	Decision string   `json:"decision"`
	// Candidates is how many nodes the method was given, Kept how many it looked at and said why they stay.
	Candidates int `json:"candidates"`
	Kept       int `json:"kept"`
}

// counting notes of which nodes it was said why they stay.
type counting struct {
	events.Recorder
	probed sets.Set[string]
}

func (c *counting) Publish(all ...events.Event) {
	for _, event := range all {
		if node, isNode := event.InvolvedObject.(*corev1.Node); isNode && event.Reason == events.Unconsolidatable {
			c.probed.Insert(node.Name)
		}
	}
}

// accept takes a command as it is: the wait for the cluster to hold still is not part of the work.
type accept struct{}

func (accept) Validate(_ context.Context, command disruption.Command, _ time.Duration) (disruption.Command, error) {
	return command, nil
}

func consolidate(ctx context.Context, data []byte) (*Pass, error) {
	workload, err := read(data)
	if err != nil {
		return nil, err
	}
	ctx = contextFor(ctx, workload, runtime.GOMAXPROCS(0))
	world, err := build(ctx, workload)
	if err != nil {
		return nil, err
	}
	queue := disruption.NewQueue(world.client, world.recorder, world.cluster, world.clock, world.provisioner)
	shared := disruption.MakeConsolidation(
		world.clock, world.cluster, world.client, world.provisioner, world.provider, world.recorder, queue)
	methods := []struct {
		name   string
		method disruption.Method
	}{
		{"emptiness", disruption.NewEmptiness(shared, disruption.WithValidator(accept{}))},
		{"multi", disruption.NewMultiNodeConsolidation(shared, disruption.WithValidator(accept{}))},
		{"single", disruption.NewSingleNodeConsolidation(shared, disruption.WithValidator(accept{}))},
	}
	debug.FreeOSMemory()
	before := mark()
	busyBefore := busySeconds()
	pass := &Pass{}
	for _, one := range methods {
		started := time.Now()
		world.recorder.probed = sets.New[string]()
		candidates, err := disruption.GetCandidates(ctx, world.cluster, world.client, world.recorder, world.clock,
			world.provider, one.method.ShouldDisrupt, one.method.Class(), queue)
		if err != nil {
			return nil, err
		}
		budgets, err := disruption.BuildDisruptionBudgetMapping(
			ctx, world.cluster, world.clock, world.client, world.provider, world.recorder, one.method.Reason())
		if err != nil {
			return nil, err
		}
		commands, err := one.method.ComputeCommands(ctx, budgets, candidates...)
		if err != nil {
			return nil, err
		}
		method := Method{Name: one.name, Seconds: time.Since(started).Seconds(), Delete: []string{},
			Candidates: len(candidates), Kept: world.recorder.probed.Len()}
		for _, command := range commands {
			method.Decision = string(command.Decision())
			method.Delete = append(method.Delete, command.SourceNodeNames()...)
			method.Replace += len(command.Replacements)
			method.Savings += command.EstimatedSavings()
		}
		pass.Methods = append(pass.Methods, method)
		pass.Seconds += method.Seconds
	}
	pass.BusySeconds = busySeconds() - busyBefore
	pass.PeakMegabytes, pass.GrownMegabytes = before.since()
	return pass, nil
}
