package main

import (
	"fmt"
	"math"
	"sort"
)

// What is said of the order of appends: that each was made within its call, before the end of whatever read it, and after
// the start of every call that told a tail at or below it; and that they were made in the order of their positions.
//
// That asks for rising moments, each within an interval of its own, and for nothing else, as a read can have happened as late
// as its end and a tail as early as its start. There are such moments unless an append must be made before something that
// one below it, or itself, must be made after. One pass over the appends finds that; a search through orders can take for ever.
type order struct {
	appends []standingAppend
	reads   map[string]interval // of each value the one that ended first
	tails   []toldTail
}

type interval struct{ start, end int64 }

type standingAppend struct {
	interval
	value string
	pos   int64
}

type toldTail struct {
	interval
	pos int64
}

func (o *order) read(value string, call interval) {
	if before, known := o.reads[value]; !known || call.end < before.end {
		o.reads[value] = call
	}
}

// Says why there are no such moments, and nothing if there are.
func (o *order) judge() string {
	sort.Slice(o.appends, func(i, j int) bool { return o.appends[i].pos < o.appends[j].pos })
	sort.Slice(o.tails, func(i, j int) bool { return o.tails[i].pos < o.tails[j].pos })
	tails := o.tails
	earliest, cause := int64(math.MinInt64), ""
	after := func(call interval, what string, pos int64) {
		if call.start > earliest {
			earliest, cause = call.start, fmt.Sprintf("[%d, %d] %s %d", call.start, call.end, what, pos)
		}
	}
	for _, a := range o.appends {
		for ; len(tails) > 0 && tails[0].pos <= a.pos; tails = tails[1:] {
			after(tails[0].interval, "tail", tails[0].pos)
		}
		after(a.interval, "append at", a.pos)
		latest, what := a.interval, "append"
		if read, known := o.reads[a.value]; known && read.end < latest.end {
			latest, what = read, "read"
		}
		if latest.end < earliest {
			return fmt.Sprintf("no order explains [%d, %d] %s %s at %d after %s", latest.start, latest.end, what, a.value, a.pos, cause)
		}
	}
	return ""
}
