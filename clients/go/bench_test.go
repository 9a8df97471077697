package ticketing

import (
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkPairs is acquire and release of 64 callers on one connection, each with a key of its own.
func BenchmarkPairs(b *testing.B) {
	c, ctx := sharedServer(b).dial(), testContext(b)
	var callers atomic.Int32
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		key := keyOf(b, callers.Add(1))
		for pb.Next() {
			ticket, err := c.Acquire(ctx, key, Lease(time.Minute))
			if err == nil {
				err = ticket.Release(ctx)
			}
			if err != nil {
				b.Error(err)
			}
		}
	})
}
