// Package wire turns frames of protocol version 4 into bytes and back. It is pure: no function
// reads a clock, a random source or a socket, and all may be called from any goroutine.
package wire
