// Command karpenter runs Karpenter's own scheduler over workload files, for comparison with `crates/packing`.
//
//	karpenter solve [-iterations N] [-limit 60s] WORKLOAD.json    one outcome with timings, as JSON
//	karpenter stream                                            workloads on stdin, outcomes on stdout, a line each; of one
//	                                                            with "disrupt": true, the first command of consolidation
//	karpenter consolidate [-limit 60s] WORKLOAD.json            one pass of every consolidation method: what is known of it
//	                                                            so far, a line when it begins and after every method
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
)

func main() {
	log.SetLogger(logging.NopLogger)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("usage: karpenter solve|stream|consolidate [flags] [WORKLOAD.json]")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ContinueOnError)
	iterations := flags.Int("iterations", 1, "how often to solve; each builds topology and scheduler anew")
	limit := flags.Duration("limit", time.Hour, "end a run after this long and say what it reached")
	threads := flags.Int("threads", runtime.NumCPU(), "GOMAXPROCS and Karpenter's concurrency")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	runtime.GOMAXPROCS(*threads)
	ctx := context.Background()
	output := json.NewEncoder(os.Stdout)
	switch arguments[0] {
	case "solve", "consolidate":
		data, err := os.ReadFile(flags.Arg(0))
		if err != nil {
			return err
		}
		if arguments[0] == "consolidate" {
			return consolidate(ctx, data, *limit, output)
		}
		outcome, err := solve(ctx, data, *iterations, *threads, *limit)
		if err != nil {
			return err
		}
		return output.Encode(outcome)
	case "stream":
		lines := bufio.NewReaderSize(os.Stdin, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if len(strings.TrimSpace(string(line))) > 0 && asksForDisruption(line) {
				decision, failure := decide(ctx, line)
				if failure != nil {
					decision = &Decision{Error: failure.Error()}
				}
				if failure := output.Encode(decision); failure != nil {
					return failure
				}
			} else if len(strings.TrimSpace(string(line))) > 0 {
				outcome, failure := solve(ctx, line, 1, *threads, *limit)
				if failure != nil {
					outcome = &Outcome{Error: failure.Error()}
				}
				if failure := output.Encode(outcome); failure != nil {
					return failure
				}
			}
			if err != nil {
				return nil
			}
		}
	default:
		return fmt.Errorf("unknown command %q", arguments[0])
	}
}
