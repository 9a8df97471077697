//go:build !linux

package ticketing

import "syscall"

// prepareSocket has nothing to set where there is no TCP_USER_TIMEOUT.
func prepareSocket(_, _ string, _ syscall.RawConn) error { return nil }
