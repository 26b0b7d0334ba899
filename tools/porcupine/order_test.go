package main

import (
	"math"
	"math/rand"
	"testing"

	"github.com/anishathalye/porcupine"
)

type orderStep struct {
	kind string
	rank int // of the append, or how many appends stand below the tail
}

// What the pass decides, as something to search an order for: how many appends there were.
var searched = porcupine.Model{
	Init: func() interface{} { return 0 },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		count, s := state.(int), input.(orderStep)
		switch s.kind {
		case "append":
			return count == s.rank, count + 1
		case "read":
			return count > s.rank, count
		}
		return count <= s.rank, count
	},
}

// Small histories at random: the pass says what Porcupine says.
func TestThePassAgreesWithASearch(t *testing.T) {
	random := rand.New(rand.NewSource(7))
	explained, refused := 0, 0
	for round := 0; round < 20_000; round++ {
		appends := 1 + random.Intn(4)
		checked := order{reads: map[string]interval{}}
		var steps []porcupine.Operation
		call := func(kind string, rank int) interval {
			start := int64(random.Intn(12))
			end := start + 1 + int64(random.Intn(6))
			if kind == "append" && random.Intn(4) == 0 {
				end = math.MaxInt64
			}
			steps = append(steps, porcupine.Operation{Input: orderStep{kind, rank}, Call: start, Return: end})
			return interval{start, end}
		}
		for rank := 0; rank < appends; rank++ {
			value := string(rune('a' + rank))
			checked.appends = append(checked.appends, standingAppend{call("append", rank), value, int64(rank)})
			for random.Intn(3) == 0 {
				checked.read(value, call("read", rank))
			}
		}
		for random.Intn(2) == 0 {
			rank := random.Intn(appends + 1)
			checked.tails = append(checked.tails, toldTail{call("tail", rank), int64(rank)})
		}
		why := checked.judge()
		if sound := porcupine.CheckOperations(searched, steps); sound != (why == "") {
			t.Fatalf("round %d: %v is linearizable: %v, but the pass says %q", round, steps, sound, why)
		} else if sound {
			explained++
		} else {
			refused++
		}
	}
	if explained < 1000 || refused < 1000 {
		t.Fatalf("%d histories were explained and %d refused: too few of one to tell anything", explained, refused)
	}
}
