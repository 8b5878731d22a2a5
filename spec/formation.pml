// How a cluster is formed: three members, empty or restored from snapshots, agree to one id.
//
// A member makes an id and proposes it; the others store the proposal and accept it; when all that it needs have, it agrees; the
// others agree when they see that one has agreed to the proposal that they hold. Members ask each other at any time, and any of
// them may not answer: it is down, has not been started yet, or cannot be reached. Proposals arrive at any time later, or never
// (LATE); a process ends at any time and starts again; a minority of the disks is lost, and an old snapshot is restored on one;
// a member runs with the disk of another cluster for a while; an operator lets a majority form the cluster.
//
// Promised: two members never agree to different ids, nor begin with different states; no write is lost that a majority has
// acknowledged; and in the end there is one cluster of all, if the members that are there begin with the same state.
//
// With LATE a proposal may arrive although its proposer has given up, or has lost its disk. Then nothing is lost, and there
// is one id, but there may be no way forward: such a proposal may replace one that others have agreed to, as if a disk were lost.
// With LATE, a lost disk and an operator's word in the same moments, empty members can agree to two ids. Who runs with another
// cluster's disk counts as lost: no way forward is promised if an operator's word is carried out meanwhile (no run has both).
//
// Assumed: what is stored stays. A member that joins gives its vote up, gets all that the others have, and gets the vote back,
// in one step here (membership.pml has the steps). A proposer is not paused for 3 * timing.PeerTimeout between an answer and what it
// decides by that. Left out: lists of members that differ (stance.conflict and mayAccept compare them as they compare states),
// observers, more than two operators' words, calls (a member that was called by one that has agreed forms no other cluster, and
// agrees to the proposal that it holds: joiner.step), and servers with a list of the past, which need such a call.
//
// small: -DLATE=0 -DDATA=0 -DLOSSES=2 -DCRASHES=1 -DWORDS=1 -DSWAPS=0
// small: -DLATE=0 -DDATA=2 -DLOSSES=1 -DCRASHES=1 -DWORDS=1 -DSWAPS=0
// small: -DLATE=1 -DDATA=1 -DLOSSES=1 -DCRASHES=1 -DWORDS=1 -DSWAPS=0
// large: -DLATE=0 -DDATA=1 -DLOSSES=3 -DCRASHES=3 -DWORDS=2 -DSWAPS=0
// large: -DLATE=1 -DDATA=0 -DLOSSES=3 -DCRASHES=3 -DWORDS=0 -DSWAPS=2
// mutants: -DLATE=0 -DDATA=0 -DLOSSES=1 -DCRASHES=1 -DWORDS=1 -DSWAPS=0
// mutants: -DLATE=0 -DDATA=0 -DLOSSES=0 -DCRASHES=0 -DWORDS=0 -DSWAPS=1
// mutants: -DLATE=0 -DDATA=2 -DLOSSES=0 -DCRASHES=0 -DWORDS=0 -DSWAPS=0
// mutants: -DLATE=1 -DDATA=0 -DLOSSES=1 -DCRASHES=0 -DWORDS=1 -DSWAPS=0
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=3000

#define N 3
#define IDS 3
#define FOREIGN 7      // the id of another cluster
#define BIT(i) (1 << (i))
#define MASK(p0, p1, p2) (((p0) -> 1 : 0) | ((p1) -> 2 : 0) | ((p2) -> 4 : 0))
#define ONES(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1))

// On disks.
typedef Disk {
	byte id;       // that it has agreed to, or holds the proposal of; 0 if none
	bool agreed;
	byte data;     // the snapshot with which it begins; 0 for none
	bool written   // it has the write that was acknowledged
};
Disk d[N + 1];
#define AWAY N         // that of the member that runs with another cluster's disk
byte swapped;          // who that is, plus 1

// In memory.
byte asks[N];          // the members whose acceptance a proposer waits for, in this run
byte answered[N];      // those of them that have accepted
byte last[N];          // the proposer whose proposal a member has accepted last, plus 1

// On the way: the members that have not started again since i proposed the id p to them.
#define WAY(p, i) way[N * (p) + (i)]
byte way[N * (IDS + 1)];

// Facts.
byte state[IDS + 2];   // with which the cluster begins that has this id
byte ids, lost, crashes, words, swaps;
bool acknowledged;

byte i, j, p, s, at, n;   // 0 outside of an action
bool two;

// Members of different clusters refuse each other (peer.Port.judge).
#define TOGETHER(a, b) (d[a].agreed && d[b].agreed && (NO_SAME_CLUSTER || d[a].id == d[b].id))

// Two members that have agreed have the same id and state, and could acknowledge the next write: one has what was acknowledged.
#define AT_ONE(a, b) (!d[a].agreed || !d[b].agreed || \
	d[a].id == d[b].id && d[a].data == d[b].data && (d[a].written || d[b].written || !acknowledged))
inline check() { assert(swapped != 0 || AT_ONE(0, 1) && AT_ONE(0, 2) && AT_ONE(1, 2)) }

// Whether an operator may say that the cluster was never formed.
#define NEVER_FORMED (WITHOUT_AN_OPERATOR_WHO_KNOWS || !acknowledged && !d[0].agreed && !d[1].agreed && !d[2].agreed)

// survey sets s to the members that answer i, at to the cluster that they have agreed to, and two if there are two
// (stance.agreedTo).
inline survey(i, all) {
	for (n : 0 .. 2) {
		if
		:: n != i ->
			s = s | BIT(n);
			two = two || d[n].agreed && at != 0 && at != d[n].id;
			at = (d[n].agreed -> d[n].id : at)
		:: n == i || !all
		fi
	}
	n = 0
}

inline surveyed() { s = 0; at = 0; two = false }

// One of those in s begins with another state (stance.conflict).
#define LIKE(a, b) (d[a].data == d[b].data)
#define CONFLICT(i) (!NO_STATES_COMPARED && (s & MASK(!LIKE(0, i), !LIKE(1, i), !LIKE(2, i))))

// Formation needs all voters (stance.decide and required), and only the one with the lowest id proposes (stance.decide).
#define ENOUGH(i) (ONES(s) == N - 1 || NO_ALL_NEEDED && s != 0)
#define PROPOSER(i) (NO_ONE_PROPOSER || i == 0)

// An operator's word is for those with the same data as i: who has none, after its disk was lost, joins later (stance.majority).
#define LOST_ITS(a, i) (!LIKE(a, i) && (d[a].data == 0 || d[i].data == 0))

// propose has i ask those in m for acceptance (joiner.propose).
#define MAY_PROPOSE(i) (d[i].id != 0 || ids < IDS)
inline propose(i, m) {
	if
	:: d[i].id == 0 -> ids++; d[i].id = ids; state[ids] = d[i].data
	:: else
	fi;
	asks[i] = m;
	WAY(d[i].id, i) = WAY(d[i].id, i) | m
}

// over ends i's attempt. Its proposals are late after that: see LATE.
inline over(i) {
	asks[i] = 0; answered[i] = 0;
	for (n : 1 .. IDS) { WAY(n, i) = (LATE -> WAY(n, i) : 0) }
	n = 0
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
	last[i] = (NO_ACCEPTANCE_KEPT_AT_THE_START -> 0 : last[i]);
	for (n : N .. N * (IDS + 1) - 1) { way[n] = (NO_RUNS_TOLD_APART -> way[n] : way[n] & ~BIT(i)) }
	n = 0
}

// What a member compares before it accepts a proposal (stance.mayAccept, joiner.accept).
#define NOT_AGREED(i) (NO_AGREEMENT_KEPT || !d[i].agreed)
#define NOT_DECIDING(i) (NO_DECIDING || asks[i] == 0)
#define SAME_STATE(i, p) (NO_STATES_COMPARED || d[i].data == state[p])
// A member keeps what it has just accepted while the proposer may still decide by that, and until it has seen that it has: for
// 3 * timing.PeerTimeout (joiner.accept).
#define NOT_KEPT(i, p, by) (NO_ACCEPTANCE_KEPT || last[i] == 0 || last[i] == by + 1 || d[i].id == p || \
	d[last[i] - 1].id != d[i].id || !(asks[last[i] - 1] & BIT(i)) && !d[last[i] - 1].agreed)

// A disk may be lost if all that were lost before have their data and their votes back (docs/reliability.md). Who was absent when
// an operator let a majority form the cluster counts as lost, if there is to be a way forward.
#define BACK(a) (d[a].agreed && (d[a].written || !acknowledged))
#define MAY_LOSE (WITHOUT_A_MINORITY_AT_A_TIME || lost == 0 && (LATE || words == 0) || BACK(0) && BACK(1) && BACK(2))

// put sets what is on the disk of a.
inline put(a, x, g, v, u) { d[a].id = x; d[a].agreed = g; d[a].data = v; d[a].written = u }

// Joining needs a majority of the voters, without the member, which has all that they have then (joiner.join).
#define IN(a, i, c) (i != a && d[a].agreed && d[a].id == c)
#define JOINABLE(i, c) (ONES(MASK(IN(0, i, c), IN(1, i, c), IN(2, i, c))) > N / 2)
inline join(i, c) {
	d[i].written = false;
	put(i, c, true, state[c], !NO_CATCHING_UP && (d[0].written || d[1].written || d[2].written));
	agree(i)
}

// finish is what follows when nothing fails any more, all answer, and an operator does what the messages ask for. Then all are
// in one cluster, unless no two began with the same state, or who began otherwise was not emptied.
#define GOAL (d[0].agreed && d[1].agreed && d[2].agreed && d[0].id == d[1].id && d[1].id == d[2].id)
inline finish() {
	for (j : 0 .. 5) {
		i = j % N;
		survey(i, true);
		if
		:: !d[i].agreed && !two && at != 0 && at == d[i].id -> agree(i)
		:: !d[i].agreed && !two && at != 0 && at != d[i].id && JOINABLE(i, at) -> join(i, at)
		:: !d[i].agreed && at == 0 && (CONFLICT(i) -> NEVER_FORMED : PROPOSER(i)) ->
			s = MASK(LIKE(0, i), LIKE(1, i), LIKE(2, i));
			if
			:: ONES(s) > N / 2 ->
				at = (d[i].id == 0 -> IDS + 1 : d[i].id);
				state[at] = d[i].data;
				for (n : 0 .. 2) { d[n].id = (s & BIT(n) -> at : d[n].id) }
				agree(i)
			:: else
			fi
		:: else
		fi;
		surveyed()
	}
	assert(LATE || GOAL || !LIKE(0, 1) && !LIKE(1, 2) && !LIKE(0, 2))
}

init {
	d_step {
		for (i : 0 .. 2) { d[i].data = (DATA == 2 && i < 2 -> 1 : DATA) }
		i = 0
	}
	do
	:: atomic {
		select (i : 0 .. 2); select (j : 0 .. 2);
		if // what member i does alone (i == j), or with j
		// A member that is in no cluster asks the others, and decides (joiner.step).
		:: i == j && !d[i].agreed && asks[i] == 0 && swapped != i + 1 ->
			survey(i, false);
			if
			:: !two && at != 0 && at == d[i].id -> agree(i)
			:: !two && at != 0 && at != d[i].id && d[i].data == 0 && (NO_CATCHING_UP || JOINABLE(i, at)) -> join(i, at)
			:: at == 0 && !CONFLICT(i) && ENOUGH(i) && PROPOSER(i) && MAY_PROPOSE(i) -> propose(i, s)
			// By an operator's word (joiner.form).
			:: at == 0 && words < WORDS && swapped == 0 && NEVER_FORMED && MAY_PROPOSE(i) ->
				s = s & ~MASK(LOST_ITS(0, i), LOST_ITS(1, i), LOST_ITS(2, i));
				if
				:: s != 0 && !CONFLICT(i) -> words++; propose(i, s)
				:: else
				fi
			:: else // with data it stops before it joins: an operator has to empty it
			fi;
			surveyed()

		// i's proposal arrives at j, and the answer, if i waits for it.
		:: i != j && swapped != j + 1 ->
			select (p : 1 .. IDS);
			if
			:: (WAY(p, i) & BIT(j)) && NOT_AGREED(j) && NOT_DECIDING(j) && SAME_STATE(j, p) && NOT_KEPT(j, p, i) ->
				if
				:: d[j].id != p -> put(j, p, false, d[j].data, false)
				:: else
				fi;
				last[j] = i + 1;
				answered[i] = answered[i] | (d[i].id == p -> asks[i] & BIT(j) : 0)
			:: else
			fi;
			p = 0

		// A proposer agrees when all have accepted, or gives up before.
		:: i == j && asks[i] != 0 && asks[i] == answered[i] -> agree(i)
		:: i == j && asks[i] != 0 -> over(i)

		// Two members acknowledge a write, or the third one gets it.
		:: i != j && TOGETHER(i, j) && (!acknowledged || d[i].written) ->
			acknowledged = true; d[i].written = true; d[j].written = true;
			check()

		// A process ends, and starts again.
		:: i == j && crashes < CRASHES -> crashes++; stop(i)

		// A disk is lost, and perhaps another snapshot restored in its place.
		:: i == j && lost < LOSSES && MAY_LOSE && swapped == 0 ->
			lost++; stop(i);
			last[i] = 0;
			put(i, 0, false, 0, false);
			if
			:: DATA != 0 -> d[i].data = 2
			:: true
			fi

		// A member runs with another cluster's disk, and later with its own again.
		:: i == j && swaps < SWAPS && swapped == 0 ->
			swaps++; swapped = i + 1; stop(i);
			put(AWAY, d[i].id, d[i].agreed, d[i].data, d[i].written);
			put(i, FOREIGN, true, 0, false)
		:: i == j && swapped == i + 1 ->
			swapped = 0; stop(i);
			put(i, d[AWAY].id, d[AWAY].agreed, d[AWAY].data, d[AWAY].written);
			put(AWAY, 0, false, 0, false);
			check()
		:: else
		fi;
		i = 0; j = 0
	}
	:: d_step { // nothing fails any more
		swapped == 0;
		asks[0] = 0; asks[1] = 0; asks[2] = 0;
		finish()
	} -> break
	od
}
