//go:build !linux

package ticketing

import "time"

var processStart = time.Now()

// clockNs is the client's clock: the monotonic one of the Go runtime.
func clockNs() int64 { return int64(time.Since(processStart)) }
