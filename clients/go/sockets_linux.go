package ticketing

import "syscall"

const (
	tcpUserTimeout = 18
	userTimeoutMs  = 15_000
)

// prepareSocket makes the kernel give up a connection whose peer does not acknowledge.
func prepareSocket(network, _ string, conn syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, userTimeoutMs)
	})
	if err != nil {
		return err
	}
	return failed
}
