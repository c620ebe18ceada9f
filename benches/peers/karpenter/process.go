package main

import (
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// memory notes what the process held at a moment; the other side's program asks the same files.
type memory struct{ resident, peak float64 }

// mark forgets the peak so far, where the system allows it.
func mark() memory {
	marked := memory{resident: reported("VmRSS:"), peak: reported("VmHWM:")}
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	return marked
}

// since is the most this process ever held, and the most it held on top of what it held at the mark, in megabytes.
func (m memory) since() (peak, grown float64) {
	now := reported("VmHWM:")
	return math.Max(now, m.peak), now - m.resident
}

func reported(name string) float64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if value, found := strings.CutPrefix(line, name); found {
			kilobytes, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kilobytes / 1024
		}
	}
	return 0
}

// busySeconds is how long all threads together have been on a processor.
func busySeconds() float64 {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	seconds := func(value syscall.Timeval) float64 { return float64(value.Sec) + float64(value.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}
