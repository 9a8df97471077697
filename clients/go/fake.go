package ticketing

import (
	"log/slog"
	"slices"
)

// FakeTicket is a ticket without a client or a server, for the tests of programs that take a [Locker].
// Its keys are sorted. It is held until it is released or handed over, which always goes well, or until
// lose is called: then it is lost as by an operator.
func FakeTicket(token uint64, keys ...string) (ticket *Ticket, lose func()) {
	keys = slices.Sorted(slices.Values(keys))
	d := &driver{core: newCore(&coreSettings{}), logger: slog.New(slog.DiscardHandler), armedNs: never}
	t := &heldTicket{
		token: token, keys: keys, shownKeys: keys, leaseMs: 86_400_000, state: held, extendNs: never, fake: true,
	}
	d.do(func(c *core, nowNs int64) {
		c.tickets.prolong(t, nowNs, t.leaseMs)
		c.tickets.takeIn(t)
	})
	return &Ticket{driver: d, held: t}, func() {
		d.do(func(c *core, _ int64) { c.tickets.dropped(token, LostOperator) })
	}
}
