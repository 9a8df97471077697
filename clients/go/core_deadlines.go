package ticketing

import (
	"container/heap"
	"math"
)

// never is a time that does not come.
const never = int64(math.MaxInt64)

// alarm is what something that can be due has in it. Its zero value is never due.
type alarm struct {
	owner  any
	dueNs  int64
	number uint64
	place  int // One more than the index in the heap; 0 where it is not in it.
}

// deadlines are the due times of requests and tickets in one heap, so that one timer is enough.
type deadlines struct {
	alarms alarmHeap
	sets   uint64
}

// set makes owner due at a time; whatever was set before is void.
func (d *deadlines) set(a *alarm, owner any, dueNs int64) {
	if dueNs == never {
		d.clear(a)
		return
	}
	d.sets++
	a.owner, a.dueNs, a.number = owner, dueNs, d.sets
	if a.place == 0 {
		heap.Push(&d.alarms, a)
	} else {
		heap.Fix(&d.alarms, a.place-1)
	}
}

// clear makes it never due.
func (d *deadlines) clear(a *alarm) {
	if a.place != 0 {
		heap.Remove(&d.alarms, a.place-1)
	}
}

// nextNs is the earliest due time, or never.
func (d *deadlines) nextNs() int64 {
	if len(d.alarms) == 0 {
		return never
	}
	return d.alarms[0].dueNs
}

// popDue takes out the earliest owner that is due; nil when there is none.
func (d *deadlines) popDue(nowNs int64) any {
	if d.nextNs() > nowNs {
		return nil
	}
	return heap.Pop(&d.alarms).(*alarm).owner
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int { return len(h) }

func (h alarmHeap) Less(i, j int) bool {
	return h[i].dueNs < h[j].dueNs || h[i].dueNs == h[j].dueNs && h[i].number < h[j].number
}

func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	*h = append(*h, a)
	a.place = len(*h)
}

func (h *alarmHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	a.place = 0
	return a
}
