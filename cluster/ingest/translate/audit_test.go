package translate

import "fmt"

// audit checks the structure against itself; tests call it after every batch.
func (t *Translator) audit() error {
	perRun := map[uint32]int{}
	var held [4]uint64
	var err error
	t.blocks.each(func(id uint32) {
		run := t.blocks.run(id)
		perRun[run]++
		if t.blocks.find(t.blocks.key(id)) != id {
			err = fmt.Errorf("block %d is not found by its key", id)
		}
		if pos := t.blocks.pos(id); pos >= t.runs.list[run].length {
			err = fmt.Errorf("block %d at position %d of run %d, length %d", id, pos, run, t.runs.list[run].length)
		}
		for tier := range held {
			if t.blocks.tiers(id)>>tier&1 != 0 {
				held[tier]++
			}
		}
	})
	if err != nil {
		return err
	}
	if held != t.stats.Held {
		return fmt.Errorf("held %v, counted %v", t.stats.Held, held)
	}
	live := 0
	for i := range t.runs.list {
		if n := t.runs.list[i].blocks; n != perRun[uint32(i)] {
			return fmt.Errorf("run %d says %d blocks, has %d", i, n, perRun[uint32(i)])
		} else if n > 0 {
			live++
		}
	}
	if live != t.runs.live {
		return fmt.Errorf("%d live runs, counted %d", t.runs.live, live)
	}
	spaces := map[uint32]int{}
	for i := range t.runs.list {
		if t.runs.list[i].blocks > 0 {
			spaces[t.runs.list[i].ns]++
		}
	}
	for i := range t.spaces.list {
		if t.spaces.list[i].runs != spaces[uint32(i)] {
			return fmt.Errorf("space %d has %d runs, counted %d", i, t.spaces.list[i].runs, spaces[uint32(i)])
		}
	}
	return nil
}
