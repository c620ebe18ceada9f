package main

import (
	"context"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"sync"
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
	// TimedOut says that the limit ended the pass: the last method had not finished.
	TimedOut bool `json:"timedOut,omitempty"`
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
	lock   sync.Mutex
	probed sets.Set[string]
}

func (c *counting) reset() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.probed = sets.New[string]()
}

func (c *counting) count() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.probed.Len()
}

func (c *counting) Publish(all ...events.Event) {
	c.lock.Lock()
	defer c.lock.Unlock()
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

type answer struct {
	commands []disruption.Command
	err      error
}

func consolidate(ctx context.Context, data []byte, limit time.Duration, output *json.Encoder) error {
	workload, err := read(data)
	if err != nil {
		return err
	}
	ctx = contextFor(ctx, workload, runtime.GOMAXPROCS(0))
	world, err := build(ctx, workload)
	if err != nil {
		return err
	}
	queue, methods := consolidators(world)
	debug.FreeOSMemory()
	before := mark()
	busyBefore := busySeconds()
	pass := &Pass{Methods: []Method{}}
	// Whoever waits for the pass times it from here, and has something to go by if it has to end the process.
	if err := output.Encode(pass); err != nil {
		return err
	}
	began := time.Now()
	for _, one := range methods {
		started := time.Now()
		world.recorder.reset()
		candidates, err := disruption.GetCandidates(ctx, world.cluster, world.client, world.recorder, world.clock,
			world.provider, one.method.ShouldDisrupt, one.method.Class(), queue)
		if err != nil {
			return err
		}
		budgets, err := disruption.BuildDisruptionBudgetMapping(
			ctx, world.cluster, world.clock, world.client, world.provider, world.recorder, one.method.Reason())
		if err != nil {
			return err
		}
		// A method that is not done when time is up is left behind: the process ends with the pass.
		done := make(chan answer, 1)
		go func() {
			commands, err := one.method.ComputeCommands(ctx, budgets, candidates...)
			done <- answer{commands, err}
		}()
		var got answer
		select {
		case got = <-done:
		case <-time.After(limit - time.Since(began)):
			pass.TimedOut = true
		}
		if got.err != nil {
			return got.err
		}
		method := Method{Name: one.name, Seconds: time.Since(started).Seconds(), Delete: []string{},
			Candidates: len(candidates), Kept: world.recorder.count()}
		for _, command := range got.commands {
			method.Decision = string(command.Decision())
			method.Delete = append(method.Delete, command.SourceNodeNames()...)
			method.Replace += len(command.Replacements)
			method.Savings += command.EstimatedSavings()
		}
		pass.Methods = append(pass.Methods, method)
		pass.Seconds += method.Seconds
		pass.BusySeconds = busySeconds() - busyBefore
		pass.PeakMegabytes, pass.GrownMegabytes = before.since()
		if err := output.Encode(pass); err != nil {
			return err
		}
		if pass.TimedOut {
			break
		}
	}
	return nil
}
