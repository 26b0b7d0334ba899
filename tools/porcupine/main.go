// Judges a recorded history of the log with Porcupine, a checker of linearizability that knows nothing of Ithaca.
//
//	go run . FILE...
//
// The model is a write-once array and its end. Every position is an object of its own (empty, then data or junk, then
// trimmed), and the order of appends is one more: appends take rising positions, what was read lies below the end, and the
// tail is above every append before it (order.go). Independent objects may be judged one by one. The files are written by
// `cargo lab sim SCENARIO --history FILE` and `cargo lab soak net --history FILE`, which say what a line means
// (crates/lab/src/sim/history_json.rs).
//
// Exit code: 0 all histories are linearizable, 1 one is not, 2 one could not be judged.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// A line of a history.
type operation struct {
	Op       string `json:"op"`
	Value    string `json:"value"`
	Start    int64  `json:"start"`
	End      *int64 `json:"end"`
	Result   string `json:"result"`
	Position int64  `json:"position"`
	Seen     string `json:"seen"`
	Tail     int64  `json:"tail"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
}

// What is done to an object.
type step struct {
	kind  string // write, trim, or what was seen
	value string
}

// The longest that one object may take to judge.
const patience = time.Minute

// What is told of at the most: of violations, and of what was done to an object.
const most = 20

// The history as one list of steps a position, and the order of appends.
type objects struct {
	positions []int64
	cells     map[int64][]porcupine.Operation
	order     order
}

func (all *objects) add(pos int64, s step, start, end int64) {
	if _, known := all.cells[pos]; !known {
		all.positions = append(all.positions, pos)
	}
	all.cells[pos] = append(all.cells[pos], porcupine.Operation{Input: s, Call: start, Return: end})
}

// Where appends stand: where they were acknowledged, or, where that is not known, where they were first seen to stand if
// that is a place that their client was told of. One that is seen elsewhere has no write that explains it.
func standing(history []operation) map[string]int64 {
	at := map[string]int64{}
	told := map[string]operation{}
	for _, o := range history {
		if o.Op != "append" {
			continue
		}
		told[o.Value] = o
		if o.Result == "acked" {
			at[o.Value] = o.Position
		}
	}
	for _, o := range history {
		if o.Op != "read" || o.Seen != "data" {
			continue
		}
		fate := told[o.Value]
		fits := fate.Result == "unknown" && fate.Position == o.Position ||
			fate.Result == "unknown-after" && fate.Position <= o.Position
		if _, known := at[o.Value]; !known && fits {
			at[o.Value] = o.Position
		}
	}
	return at
}

// When an operation ended, which may be never.
func ended(o operation) int64 {
	if o.End == nil {
		return math.MaxInt64
	}
	return *o.End
}

func split(history []operation) *objects {
	all := &objects{cells: map[int64][]porcupine.Operation{}, order: order{reads: map[string]interval{}}}
	at := standing(history)
	for _, o := range history {
		end := ended(o)
		switch o.Op {
		case "append":
			pos, stands := at[o.Value]
			if !stands {
				continue
			}
			if o.Result != "acked" {
				// It may have come to stand at any time.
				end = math.MaxInt64
			}
			all.add(pos, step{kind: "write", value: o.Value}, o.Start, end)
			all.order.appends = append(all.order.appends, standingAppend{interval{o.Start, end}, o.Value, pos})
		case "read":
			all.add(o.Position, step{kind: o.Seen, value: o.Value}, o.Start, end)
			if pos, stands := at[o.Value]; o.Seen == "data" && stands && pos == o.Position {
				all.order.read(o.Value, interval{o.Start, end})
			}
		case "tail":
			all.order.tails = append(all.order.tails, toldTail{interval{o.Start, end}, o.Tail})
		}
	}
	sort.Slice(all.positions, func(i, j int) bool { return all.positions[i] < all.positions[j] })
	for _, o := range history {
		if o.Op != "trim" {
			continue
		}
		// What nobody did anything to is not judged.
		first := sort.Search(len(all.positions), func(i int) bool { return all.positions[i] >= o.From })
		for _, pos := range all.positions[first:] {
			if pos >= o.To {
				break
			}
			all.add(pos, step{kind: "trim"}, o.Start, ended(o))
		}
	}
	return all
}

// A position: "" is empty, "junk", "trimmed", or "=" and what it holds.
var cell = porcupine.Model{
	Init: func() interface{} { return "" },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		held, s := state.(string), input.(step)
		switch s.kind {
		case "write":
			return held == "", "=" + s.value
		case "data":
			return held == "="+s.value, held
		case "some-data":
			return held != "" && held[0] == '=', held
		case "junk":
			// Whoever fills a hole need not be among those whose history this is.
			return held == "" || held == "junk", "junk"
		case "unwritten":
			return held == "", held
		case "trimmed":
			return held == "trimmed", held
		case "trim":
			return true, "trimmed"
		}
		return false, held
	},
	DescribeOperation: func(input, _ interface{}) string { return fmt.Sprint(input) },
}

// Says what is wrong with a history, and nothing if it is linearizable.
func judge(history []operation) (wrong []string, unsure []string) {
	all := split(history)
	for _, pos := range all.positions {
		switch porcupine.CheckOperationsTimeout(cell, all.cells[pos], patience) {
		case porcupine.Illegal:
			wrong = append(wrong, fmt.Sprintf("position %d: no order explains %s", pos, told(all.cells[pos])))
		case porcupine.Unknown:
			unsure = append(unsure, fmt.Sprintf("position %d: not judged within %v", pos, patience))
		}
	}
	if why := all.order.judge(); why != "" {
		wrong = append(wrong, "the order of appends: "+why)
	}
	return wrong, unsure
}

func told(operations []porcupine.Operation) string {
	text := ""
	for i, o := range operations {
		if i == most {
			return text + fmt.Sprintf(" and %d more", len(operations)-most)
		}
		s := o.Input.(step)
		text += fmt.Sprintf(" [%d, %d] %s %s", o.Call, o.Return, s.kind, s.value)
	}
	return text
}

func read(path string) ([]operation, error) {
	bytes, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var history struct {
		Operations []operation `json:"operations"`
	}
	if err := json.Unmarshal(bytes, &history); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return history.Operations, nil
}

func main() {
	code := 0
	for _, path := range os.Args[1:] {
		history, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		wrong, unsure := judge(history)
		for i, line := range append(wrong, unsure...) {
			if i < most {
				fmt.Printf("%s: %s\n", path, line)
			}
		}
		switch {
		case len(wrong) > 0:
			code = 1
		case len(unsure) > 0 && code == 0:
			code = 2
		case len(unsure) == 0:
			fmt.Printf("%s: %d operations are linearizable\n", path, len(history))
		}
	}
	os.Exit(code)
}
