package main

import (
	"context"
	"encoding/json"
	"runtime"

	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
)

// Decision is the first command that consolidation finds, in the form of the commands of docs/packing.md; empty if it finds none.
type Decision struct {
	Nodes        []string   `json:"nodes"`
	Replacements []Claim    `json:"replacements"`
	Existing     []Existing `json:"existing"`
	Error        string     `json:"error,omitempty"`
}

// question is what a line of a stream asks beside its workload.
type question struct {
	// Disrupt asks which nodes to give up, and not where pods go.
	Disrupt bool `json:"disrupt"`
}

func asksForDisruption(line []byte) bool {
	var asked question
	return json.Unmarshal(line, &asked) == nil && asked.Disrupt
}

// named is a method of disruption.
type named struct {
	name   string
	method disruption.Method
}

// consolidators are the methods that save money, in Karpenter's order.
func consolidators(world *world) (*disruption.Queue, []named) {
	queue := disruption.NewQueue(world.client, world.recorder, world.cluster, world.clock, world.provisioner)
	shared := disruption.MakeConsolidation(
		world.clock, world.cluster, world.client, world.provisioner, world.provider, world.recorder, queue)
	return queue, []named{
		{"emptiness", disruption.NewEmptiness(shared, disruption.WithValidator(accept{}))},
		{"multi", disruption.NewMultiNodeConsolidation(shared, disruption.WithValidator(accept{}))},
		{"single", disruption.NewSingleNodeConsolidation(shared, disruption.WithValidator(accept{}))},
	}
}

// decide is one round of Karpenter's disruption controller: the first method that finds something ends it.
func decide(ctx context.Context, data []byte) (*Decision, error) {
	decision := &Decision{Nodes: []string{}, Replacements: []Claim{}, Existing: []Existing{}}
	workload, err := read(data)
	if err != nil {
		return nil, err
	}
	ctx = contextFor(ctx, workload, runtime.GOMAXPROCS(0))
	world, err := build(ctx, workload)
	if err != nil {
		return nil, err
	}
	queue, methods := consolidators(world)
	for _, one := range methods {
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
		for _, command := range commands {
			if len(command.Candidates) == 0 {
				continue
			}
			placed := describe(command.Results, nil)
			decision.Nodes = append(decision.Nodes, command.SourceNodeNames()...)
			decision.Replacements = append(decision.Replacements, placed.NewClaims...)
			decision.Existing = append(decision.Existing, placed.Existing...)
			return decision, nil
		}
	}
	return decision, nil
}
