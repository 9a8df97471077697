package ticketing

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7

// clockNs is the client's clock: monotonic, and one that goes on while the machine sleeps, as leases do.
func clockNs() int64 {
	var now syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	if failed != 0 {
		return int64(time.Since(processStart))
	}
	return now.Nano()
}

var processStart = time.Now()
