package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func judged(t *testing.T, name string) []string {
	history, err := read(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	wrong, unsure := judge(history)
	if len(unsure) > 0 {
		t.Fatal(unsure)
	}
	return wrong
}

func TestASoundHistoryPasses(t *testing.T) {
	if wrong := judged(t, "sound.json"); len(wrong) > 0 {
		t.Fatal(wrong)
	}
}

// The sound history with one line changed or added each time, which must be noticed, where it is.
func TestViolationsAreRefused(t *testing.T) {
	for name, where := range map[string]string{
		"lost.json":      "position 1",           // acknowledged, then read as unwritten
		"two.json":       "position 0",           // one reader sees one value, another another
		"elsewhere.json": "position 5",           // an append that failed stands
		"untrimmed.json": "position 0",           // trimmed, then data again
		"tail.json":      "the order of appends", // the tail is at what was acknowledged before
		"late.json":      "the order of appends", // began after another was acknowledged, and stands before it
	} {
		wrong := judged(t, name)
		if len(wrong) != 1 || !strings.HasPrefix(wrong[0], where+":") {
			t.Errorf("%s: %q, expected one about %s", name, wrong, where)
		}
	}
}
