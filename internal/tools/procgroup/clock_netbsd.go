package procgroup

const sharedClock = 3 // CLOCK_MONOTONIC, which package unix does not have
