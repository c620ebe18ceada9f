// Command launch runs a program that dies with the process that started it, even on kill -9: it asks the
// kernel for the parent-death signal and then becomes the program. Its arguments are the process id of the
// parent it expects, the program, and the program's arguments.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
)

func init() {
	// The signal belongs to a thread, and it must be the thread that becomes the program.
	runtime.LockOSThread()
}

func main() {
	if len(os.Args) < 3 {
		fail("usage: launch PARENT_PID PROGRAM [ARGUMENTS]")
	}
	parent, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fail(fmt.Sprintf("launch: %q is not a process id", os.Args[1]))
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0); errno != 0 {
		fail(fmt.Sprintf("launch: asking for the parent-death signal: %v", errno))
	}
	// A parent that died before the request sends no signal.
	if os.Getppid() != parent {
		fail("launch: the process that asked for this has ended")
	}
	if err := syscall.Exec(os.Args[2], os.Args[2:], os.Environ()); err != nil {
		fail(fmt.Sprintf("launch: starting %s: %v", os.Args[2], err))
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(127)
}
