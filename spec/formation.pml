// How a cluster is formed: three members, empty or restored from snapshots, agree to one id.
//
// A member makes an id and proposes it; the others store the proposal and accept it; when all that it needs have, it agrees; the
// others agree when they see that one has agreed to the proposal that they hold. Members ask each other at any time, and any of
// them may not answer: it is down, has not been started yet, or cannot be reached. Proposals arrive at any time later,
// or never (LATE); a process ends at any time and starts again; a minority of the disks is lost, and an old snapshot is restored on one; a
// member runs with the disk of another cluster for a while; an operator lets a majority form the cluster.
//
// Promised: two members never agree to different ids, nor begin with different states; no write is lost that a majority has
// acknowledged; and in the end there is one cluster of all, if the members that are there begin with the same state.
//
// With LATE a proposal may arrive although its proposer has given up, or has lost its disk. Then nothing is lost, and there
// is one id, but there may be no way forward: such a proposal may replace one that others have agreed to, as if a disk were lost.
// With LATE, a lost disk and an operator's word in the same moments, empty members can agree to two ids.
//
// Assumed: what is stored stays. A member that joins gives its vote up, gets all that the others have, and gets the vote back, in one
// step here (membership.pml has the steps). A proposer is not paused for 3 * peerTimeout between an answer and
// what it decides by that. Left out: lists of members that differ (stance.conflict and mayAccept compare them as they
// compare states), observers, more than two operators' words, and servers whose list is one of the past: the promise does not hold
// for them unless a member of their cluster has called them (former.elsewhere).
//
// small: -DDATA=0 -DLOSSES=2 -DCRASHES=1 -DWORDS=1
// small: -DDATA=2 -DLOSSES=1 -DCRASHES=1 -DWORDS=1
// small: -DLATE -DDATA=1 -DLOSSES=1 -DCRASHES=1 -DWORDS=1
// large: -DDATA=1 -DLOSSES=2 -DCRASHES=2 -DWORDS=2
// large: -DLATE -DDATA=0 -DLOSSES=2 -DCRASHES=2 -DWORDS=0 -DSWAPS=1
// mutants: -DDATA=2 -DLOSSES=0 -DCRASHES=0 -DWORDS=0
// mutants: -DDATA=0 -DLOSSES=1 -DCRASHES=1 -DWORDS=1
// mutants: -DDATA=0 -DLOSSES=0 -DCRASHES=0 -DWORDS=0 -DSWAPS=1
// mutants: -DLATE -DDATA=0 -DLOSSES=1 -DCRASHES=0 -DWORDS=1
// mutants: -DDATA=0 -DLOSSES=1 -DCRASHES=1 -DWORDS=2
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=6000

#define N 3
#define IDS 3
#define FOREIGN 7      // the id of another cluster
#define BIT(i) (1 << (i))
#define EACH 7
#define ONES(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1))
#ifndef SWAPS
#define SWAPS 0
#endif

// On disks.
typedef Disk {
	byte id;       // that it has agreed to, or holds the proposal of; 0 if none
	bool agreed;
	byte data;     // the snapshot with which it begins; 0 for none
	bool written   // it has the write that was acknowledged
};
Disk d[N], own;        // own: of the member that runs with another cluster's disk
byte swapped;          // who that is, plus 1

// In memory.
byte asks[N];          // the members whose acceptance a proposer waits for, in this run
byte answered[N];      // those of them that have accepted
byte last[N];          // the proposer whose proposal a member has accepted last, plus 1

// On the way: a proposal of an id, by a member, to the run of a member that is up now.
typedef Way { short from[N] };
Way way[IDS + 1];      // way[id].from[i] has the bits of the members that it is for

// Facts.
byte state[IDS + 2];   // with which the cluster begins that has this id
byte ids, lost, crashes, words, swaps;
bool acknowledged;

byte i, j, k, s, at, n;   // 0 outside of an action
bool two, other;

inline choose(a) { if :: a = 0 :: a = 1 :: a = 2 fi }

#define TOGETHER(a, b) (d[a].agreed && d[b].agreed && SAME(a, b))
// Members of different clusters refuse each other (peer.Port.judge).
#ifdef NO_SAME_CLUSTER
#define SAME(a, b) true
#else
#define SAME(a, b) (d[a].id == d[b].id)
#endif

inline check() {
	for (n : 0 .. 2) {
		if
		:: swapped == 0 && d[n].agreed && d[(n + 1) % N].agreed ->
			assert(d[n].id == d[(n + 1) % N].id);
			assert(d[n].data == d[(n + 1) % N].data);
			// A majority could acknowledge the next write.
			assert(!(acknowledged && !d[n].written && !d[(n + 1) % N].written))
		:: else
		fi
	}
	n = 0
}

// Whether an operator may say that the cluster was never formed.
#ifdef WITHOUT_AN_OPERATOR_WHO_KNOWS
#define NEVER_FORMED true
#else
#define NEVER_FORMED (!acknowledged && !d[0].agreed && !d[1].agreed && !d[2].agreed)
#endif

// survey sets s to the members that answer i, at to the cluster that they have agreed to, two if there are two, and other if
// one of them begins with another state (stance.agreedTo and conflict).
inline survey(i, all) {
	s = 0; at = 0; two = false; other = false;
	for (n : 0 .. 2) {
		if
		:: n != i -> s = s | BIT(n)
		:: n != i && !all
		:: else
		fi
	}
	for (n : 0 .. 2) {
		if
		:: (s & BIT(n)) && d[n].agreed && at != 0 && at != d[n].id -> two = true
		:: (s & BIT(n)) && d[n].agreed -> at = d[n].id
		:: else
		fi;
		if
		:: (s & BIT(n)) && d[n].data != d[i].data -> other = true
		:: else
		fi
	}
#ifdef NO_STATES_COMPARED
	other = false;
#endif
	n = 0
}

inline surveyed() { s = 0; at = 0; two = false; other = false }

// Formation needs all voters (stance.decide and required).
#ifdef NO_ALL_NEEDED
#define ENOUGH (s != 0)
#else
#define ENOUGH (s == (EACH & ~BIT(i)))
#endif

// Only the member with the lowest id proposes (stance.decide).
#ifdef NO_ONE_PROPOSER
#define PROPOSER(i) true
#else
#define PROPOSER(i) (i == 0)
#endif

// propose has i ask those in m for acceptance (former.propose).
inline propose(i, m) {
	if
	:: d[i].id == 0 ->
		ids++; d[i].id = ids; state[ids] = d[i].data
	:: else
	fi;
	asks[i] = m; answered[i] = 0;
	way[d[i].id].from[i] = way[d[i].id].from[i] | (m)
}

// over ends i's attempt. Its proposals are late after that: see LATE.
inline over(i) {
	asks[i] = 0; answered[i] = 0;
#ifndef LATE
	for (n : 1 .. IDS) { way[n].from[i] = 0 }
	n = 0
#endif
}

inline agree(i) {
	d[i].agreed = true;
	over(i);
	last[i] = 0;
	check()
}

// stop ends a run: what is on the way is for an earlier one (Proposal.Run, in stance.mayAccept). The next run
// takes what it finds for just accepted (belong).
inline stop(i) {
	over(i);
#ifdef NO_ACCEPTANCE_KEPT_AT_THE_START
	last[i] = 0;
#endif
#ifndef NO_RUNS_TOLD_APART
	for (n : 1 .. IDS) {
		way[n].from[0] = way[n].from[0] & ~BIT(i);
		way[n].from[1] = way[n].from[1] & ~BIT(i);
		way[n].from[2] = way[n].from[2] & ~BIT(i)
	}
	n = 0
#endif
}

// What a member compares before it accepts a proposal (stance.mayAccept, former.accept).
#ifdef NO_AGREEMENT_KEPT
#define NOT_AGREED(i) true
#else
#define NOT_AGREED(i) (!d[i].agreed)
#endif
#ifdef NO_DECIDING
#define NOT_DECIDING(i) true
#else
#define NOT_DECIDING(i) (asks[i] == 0)
#endif
#ifdef NO_STATES_COMPARED
#define SAME_STATE(i, p) true
#else
#define SAME_STATE(i, p) (d[i].data == state[p])
#endif
// A member keeps what it has just accepted while the proposer may still decide by that, and until it has seen that it has: for
// 3 * peerTimeout (former.accept).
#ifdef NO_ACCEPTANCE_KEPT
#define NOT_KEPT(i, p, by) true
#else
#define NOT_KEPT(i, p, by) (last[i] == 0 || last[i] == by + 1 || d[i].id == p || \
	d[last[i] - 1].id != d[i].id || !(asks[last[i] - 1] & BIT(i)) && !d[last[i] - 1].agreed)
#endif

// A disk may be lost if all that were lost before have their data and their votes back (docs/reliability.md). Who was absent when
// an operator let a majority form the cluster counts as lost, if there is to be a way forward.
#define BACK(a) (d[a].agreed && (d[a].written || !acknowledged))
#ifdef WITHOUT_A_MINORITY_AT_A_TIME
#define MAY_LOSE true
#elif defined(LATE)
#define MAY_LOSE (lost == 0 || BACK(0) && BACK(1) && BACK(2))
#else
#define MAY_LOSE (lost == 0 && words == 0 || BACK(0) && BACK(1) && BACK(2))
#endif

// Joining needs a majority of the voters, without the member (former.join).
#define JOINABLE(i, c) (ONES(IN(i, 0, c) | IN(i, 1, c) | IN(i, 2, c)) > N / 2)
#define IN(i, a, c) (i != a && d[a].agreed && d[a].id == c -> BIT(a) : 0)

inline join(i, c) {
	d[i].id = c; d[i].agreed = true; d[i].written = false; d[i].data = state[c];
#ifndef NO_CATCHING_UP
	d[i].written = acknowledged && (i != 0 && d[0].written || i != 1 && d[1].written || i != 2 && d[2].written);
#endif
	agree(i)
}
#ifdef NO_CATCHING_UP
#define MAY_JOIN(i, c) true
#else
#define MAY_JOIN(i, c) JOINABLE(i, c)
#endif

// finish is what follows when nothing fails any more, all answer, and an operator does what the messages ask for. Then all are
// in one cluster, unless no two began with the same state, or who began otherwise was not emptied.
#define GOAL (d[0].agreed && d[1].agreed && d[2].agreed && d[0].id == d[1].id && d[1].id == d[2].id)
#define LIKE(a, b) (d[a].data == d[b].data)

inline finish() {
	for (k : 0 .. 5) {
		i = k % N;
		survey(i, true);
		if
		:: d[i].agreed || two
		:: !d[i].agreed && !two && at != 0 && at == d[i].id -> agree(i)
		:: !d[i].agreed && !two && at != 0 && at != d[i].id && JOINABLE(i, at) -> join(i, at)
		:: !d[i].agreed && !two && at == 0 && (!other && PROPOSER(i) || other && NEVER_FORMED) ->
			s = (LIKE(0, i) -> 1 : 0) | (LIKE(1, i) -> 2 : 0) | (LIKE(2, i) -> 4 : 0);
			if
			:: ONES(s) > N / 2 ->
				if
				:: d[i].id == 0 -> d[i].id = IDS + 1; state[IDS + 1] = d[i].data
				:: else
				fi;
				for (n : 0 .. 2) {
					if
					:: s & BIT(n) -> d[n].id = d[i].id
					:: else
					fi
				}
				agree(i)
			:: else
			fi
		:: else
		fi;
		surveyed()
	}
#ifndef LATE
	assert(GOAL || !LIKE(0, 1) && !LIKE(1, 2) && !LIKE(0, 2))
#else
	skip
#endif
}

init {
	d_step {
		for (i : 0 .. 2) {
#if DATA == 1
			d[i].data = 1;
#elif DATA == 2
			d[i].data = (i == 2 -> 2 : 1);
#else
			skip
#endif
		}
		i = 0
	}
	do
	:: atomic { // a member that is in no cluster asks the others, and decides (former.step)
		choose(i);
		survey(i, false);
		if
		:: d[i].agreed || asks[i] != 0 || two || swapped == i + 1
		:: !d[i].agreed && asks[i] == 0 && !two && swapped != i + 1 && at != 0 ->
			if
			:: at == d[i].id -> agree(i)
			:: at != d[i].id && d[i].data != 0 -> skip // it stops: an operator has to empty it
			:: at != d[i].id && d[i].data == 0 && MAY_JOIN(i, at) -> join(i, at)
			:: else
			fi
		:: !d[i].agreed && asks[i] == 0 && swapped != i + 1 && at == 0 && !other && ENOUGH && PROPOSER(i) && (d[i].id != 0 || ids < IDS) ->
			propose(i, s)
		:: else
		fi;
		surveyed(); i = 0
	}
	:: atomic { // the same, by an operator's word (former.form and stance.majority)
		choose(i);
		survey(i, false);
		for (n : 0 .. 2) { // those that have lost their disks join later
			if
			:: d[n].data != d[i].data && (d[n].data == 0 || d[i].data == 0) -> s = s & ~BIT(n)
			:: else
			fi
		}
		other = false;
		for (n : 0 .. 2) {
			if
			:: (s & BIT(n)) && d[n].data != d[i].data -> other = true
			:: else
			fi
		}
		n = 0;
#ifdef NO_STATES_COMPARED
		other = false;
#endif
		if
		:: words < WORDS && !d[i].agreed && asks[i] == 0 && swapped == 0 && at == 0 && !other && s != 0 && NEVER_FORMED && (d[i].id != 0 || ids < IDS) ->
			words++;
			propose(i, s)
		:: else
		fi;
		surveyed(); i = 0
	}
	:: atomic { // a proposal arrives, and the answer to it, or not
		choose(i); choose(j);
		if :: k = 1 :: k = 2 :: k = 3 fi;
		if
		:: (way[k].from[i] & BIT(j)) && NOT_AGREED(j) && NOT_DECIDING(j) && SAME_STATE(j, k) && NOT_KEPT(j, k, i) && swapped != j + 1 ->
			if
			:: d[j].id != k -> d[j].agreed = false; d[j].written = false
			:: else
			fi;
			d[j].id = k;
			last[j] = i + 1;
			if
			:: (asks[i] & BIT(j)) && d[i].id == k -> answered[i] = answered[i] | BIT(j)
			:: else
			fi
		:: else
		fi;
		i = 0; j = 0; k = 0
	}
	:: atomic { // a proposer whose proposal all have accepted agrees, or has given up before
		choose(i);
		if
		:: asks[i] != 0 && asks[i] == answered[i] -> agree(i)
		:: asks[i] != 0 -> over(i)
		:: else
		fi;
		i = 0
	}
	:: atomic { // two members acknowledge a write, or the third one gets it
		choose(i); choose(j);
		if
		:: i != j && TOGETHER(i, j) && (!acknowledged || d[i].written) ->
			acknowledged = true; d[i].written = true; d[j].written = true;
			check()
		:: else
		fi;
		i = 0; j = 0
	}
	:: atomic { // a process ends, and starts again
		choose(i);
		if
		:: crashes < CRASHES -> crashes++; stop(i)
		:: else
		fi;
		i = 0
	}
	:: atomic { // a disk is lost, and perhaps another snapshot restored in its place
		choose(i);
		if
		:: lost < LOSSES && MAY_LOSE && swapped == 0 ->
			lost++; stop(i);
			last[i] = 0;
			d[i].id = 0; d[i].agreed = false; d[i].written = false; d[i].data = 0;
			if
			:: DATA != 0 -> d[i].data = 2
			:: true
			fi
		:: else
		fi;
		i = 0
	}
	:: atomic { // a member runs with another cluster's disk, and later with its own again
		choose(i);
		if
		:: swaps < SWAPS && swapped == 0 ->
			swaps++; swapped = i + 1; stop(i);
			own.id = d[i].id; own.agreed = d[i].agreed; own.data = d[i].data; own.written = d[i].written;
			d[i].id = FOREIGN; d[i].agreed = true; d[i].data = 0; d[i].written = false
		:: swapped == i + 1 ->
			swapped = 0; stop(i);
			d[i].id = own.id; d[i].agreed = own.agreed; d[i].data = own.data; d[i].written = own.written;
			own.id = 0; own.agreed = false; own.data = 0; own.written = false;
			check()
		:: else
		fi;
		i = 0
	}
	:: d_step { // nothing fails any more
		swapped == 0;
		asks[0] = 0; asks[1] = 0; asks[2] = 0;
		finish()
	} -> break
	od
}
