// Who votes, and who is counted: members whose votes are taken and given back while disks are lost.
//
// Three members of a cluster that is formed (see formation.pml). Each has a log, a term and a vote on its disk. A minority of the
// disks may be lost; what is lost is the log, the term, the vote and that the member belongs to the cluster. The leader takes
// the vote of a member without a disk, lets it in, sends it the log and gives it its vote back. Operators take and give votes
// meanwhile; leaders crash, or are replaced without knowing it.
//
// A leader that was cut off may go on with an old list (SECOND), and a list of the past may have a single voter (ALONE).
//
// Promised: a committed entry is never lost or replaced, and there is always a way forward: some member can be elected by the
// members that may vote, with the lists that they have.
//
// Assumed: Raft's own rules about logs and terms, which are here as the actions elect, append and commit; a vote and an entry are on
// the disk before anybody learns of them (replication.pml). A message takes no time, but any number of leaders of earlier terms go on
// sending theirs. Elections succeed or do nothing. That a member has just been removed is the same as that it has no vote.
// Left out: snapshots, members that are added (they begin as one without a disk does, once the list has them), changed addresses.
//
// small: -DMEMBERS=3 -DFIRST=7 -DTERMS=2 -DLOG=6 -DWRITES=1 -DLOSSES=1 -DOPS=1
// small: -DMEMBERS=3 -DALONE -DTERMS=3 -DLOG=7 -DWRITES=1 -DLOSSES=1 -DOPS=0
// large: -DMEMBERS=3 -DFIRST=7 -DTERMS=3 -DLOG=8 -DWRITES=1 -DLOSSES=2 -DOPS=1
// large: -DMEMBERS=4 -DFIRST=15 -DTERMS=2 -DLOG=6 -DWRITES=0 -DLOSSES=1 -DOPS=1
// large: -DMEMBERS=4 -DFIRST=7 -DTERMS=3 -DLOG=7 -DWRITES=1 -DLOSSES=1 -DOPS=1
// mutants: -DMEMBERS=4 -DFIRST=7 -DSECOND=6 -DTERMS=2 -DLOG=6 -DWRITES=1 -DLOSSES=1 -DOPS=0
// mutants: -DMEMBERS=3 -DFIRST=7 -DTERMS=2 -DLOG=5 -DWRITES=0 -DLOSSES=1 -DOPS=2
// mutants: -DMEMBERS=4 -DFIRST=11 -DSECOND=15 -DTERMS=3 -DLOG=7 -DWRITES=1 -DLOSSES=1 -DOPS=0
// mutants: -DMEMBERS=4 -DFIRST=15 -DTERMS=2 -DLOG=4 -DWRITES=0 -DLOSSES=1 -DOPS=1
// mutants: -DMEMBERS=4 -DFIRST=7 -DTERMS=2 -DLOG=4 -DWRITES=0 -DLOSSES=1 -DOPS=1
// mutants: -DMEMBERS=4 -DFIRST=15 -DTERMS=3 -DLOG=4 -DWRITES=0 -DLOSSES=0 -DOPS=2
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=6000

#define N 4
#define BIT(i) (1 << (i))
#define ONES(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1) + (((m) >> 3) & 1))
#define MASK(p0, p1, p2, p3) (((p0) -> 1 : 0) | ((p1) -> 2 : 0) | ((p2) -> 4 : 0) | ((p3) -> 8 : 0))
#define MOST(some, list) (2 * ONES((some) & (list)) > ONES(list))

// An entry: its term, and what it is: 0 is a leader's first entry, 1 to 15 a list, as the members that vote, 16 a write.
#define ENTRY(t, x) ((t) << 5 | (x))
#define TERM(e) ((e) >> 5)
#define WHAT(e) ((e) & 31)
#define LIST(e) (WHAT(e) >= 1 && WHAT(e) <= 15)
#define WRITE 16

typedef Log { byte e[LOG] };

// On disks.
Log log[N];
byte size[N];
byte term[N];
byte since[N];         // storage.Identity.Since: it takes no part in elections before its log has this length
bool in[N];            // storage.Identity.Agreed
byte votes[N];         // the newest list in its log
byte before[N];        // and the one before that
bool owed[N];          // it had a vote when its disk was lost

// In memory.
bool leads[N];
Log match[N];          // match[l].e[f]: so much of its log a leader knows to be on f's disk
byte com[N];           // what a leader knows to be committed

// Facts.
Log chosen;            // all that was ever committed
byte chosenSize;
byte lastList;         // the newest list that was committed

byte lost, ops, writes;
byte i, j, k, m, n, x;   // 0 outside of an action

// newest sets votes[a] and before[a] after a's log has changed.
inline newest(a) {
	votes[a] = 0; before[a] = 0;
	for (n : 0 .. LOG - 1) {
		if
		:: n < size[a] && LIST(log[a].e[n]) -> before[a] = votes[a]; votes[a] = WHAT(log[a].e[n])
		:: else
		fi
	}
	n = 0
}

// listAt sets n to the length of a's log up to its newest list.
inline listAt(a) {
	n = size[a];
	do
	:: n > 0 && !LIST(log[a].e[n - 1]) -> n--
	:: else -> break
	od
}

inline choose(a) {
	if
	:: a = 0
	:: a = 1
	:: a = 2
#if MEMBERS == 4
	:: a = 3
#endif
	fi
}

#define LAST(a) (size[a] == 0 -> 0 : TERM(log[a].e[size[a] - 1]))
#define OLDER(a, b) (LAST(a) < LAST(b) || LAST(a) == LAST(b) && size[a] <= size[b])

// Who may take part in elections: transport.keepOut and node.behind (cluster/node.go), and peer.Gate.
#ifdef NO_CATCHING_UP_FIRST
#define TAKES_PART(a) in[a]
#else
#define TAKES_PART(a) (in[a] && size[a] >= since[a])
#endif

// Whether v would vote for c, terms aside.
#define WOULD_VOTE(v, c) (TAKES_PART(v) && OLDER(v, c))

// Who may stand: a voter; and without a vote, which does not count then, who has what the voters refuse others for
// (contacts.mayStand): the only one that has the list which takes its vote away, or an observer with the longest log.
#ifdef NO_STANDING_WITHOUT_A_VOTE
#define STANDS(c) (TAKES_PART(c) && (votes[c] & BIT(c)))
#else
#define STANDS(c) TAKES_PART(c)
#endif

// Whether the members that there are could elect c.
#define CAN_BE_ELECTED(c) (STANDS(c) && \
	MOST(MASK(WOULD_VOTE(0, c), WOULD_VOTE(1, c), WOULD_VOTE(2, c), WOULD_VOTE(3, c)), votes[c]))

// ask sets m to some of the members that vote for c in the next term; 0 if c is not elected.
#define GRANTS(v, c) ((votes[c] & BIT(v)) && WOULD_VOTE(v, c) && term[v] <= term[c])
inline ask(c) {
	m = BIT(c);
	for (n : 0 .. N - 1) {
		if
		:: n != c && GRANTS(n, c) -> m = m | BIT(n)
		:: true
		fi
	}
	if
	:: MOST(m, votes[c])
	:: else -> m = 0
	fi;
	n = 0
}

inline elect(c) {
	d_step {
		x = term[c] + 1;
		for (n : 0 .. N - 1) {
			if
			:: m & BIT(n) -> term[n] = x; depose(n)
			:: else
			fi
		}
		n = 0;
		// It has all that was ever committed.
		assert(size[c] >= chosenSize);
		for (n : 0 .. LOG - 1) {
			assert(n >= chosenSize || log[c].e[n] == chosen.e[n])
		}
		n = 0;
		leads[c] = true;
		log[c].e[size[c]] = ENTRY(x, 0);
		size[c]++;
		match[c].e[c] = size[c];
		m = 0; x = 0
	}
}

inline depose(a) {
	leads[a] = false; com[a] = 0;
	match[a].e[0] = 0; match[a].e[1] = 0; match[a].e[2] = 0; match[a].e[3] = 0
}

// append has f store the next entry that it lacks of the leader l's log.
inline append(l, f) {
	if
	:: term[f] < term[l] -> term[f] = term[l]; depose(f)
	:: else
	fi;
	k = 0;
	do
	:: k < size[f] && k < size[l] && log[f].e[k] == log[l].e[k] -> k++
	:: else -> break
	od;
	if
	:: k < size[l] ->
		log[f].e[k] = log[l].e[k];
		k++;
		for (n : 0 .. LOG - 1) {
			if
			:: n >= k && n < size[f] -> log[f].e[n] = 0
			:: else
			fi
		}
		size[f] = k;
		newest(f)
	:: else
	fi;
	match[l].e[f] = k; k = 0
}

#define COMMITS(l, k) (k > com[l] && TERM(log[l].e[(k) - 1]) == term[l] && \
	MOST(MASK(match[l].e[0] >= k, match[l].e[1] >= k, match[l].e[2] >= k, match[l].e[3] >= k), votes[l]))

inline commit(l, upTo) {
	com[l] = upTo;
	for (n : 0 .. LOG - 1) {
		if
		:: n < upTo && n < chosenSize -> assert(log[l].e[n] == chosen.e[n])
		:: n < upTo && n >= chosenSize ->
			chosen.e[n] = log[l].e[n];
			if
			:: LIST(chosen.e[n]) -> lastList = WHAT(chosen.e[n])
			:: else
			fi
		:: else
		fi
	}
	n = 0;
	if
	:: chosenSize < upTo -> chosenSize = upTo
	:: else
	fi
}

// The leader l still leads, and knows all earlier changes: change, with Raft's Barrier (cluster/change.go).
#ifdef NO_BARRIER
#define SURELY_LEADS(l) leads[l]
#else
#define FOLLOWS(l, v) (in[v] && term[v] == term[l])
#define SURELY_LEADS(l) (leads[l] && com[l] == size[l] && MOST(MASK(FOLLOWS(l, 0), FOLLOWS(l, 1), FOLLOWS(l, 2), FOLLOWS(l, 3)), votes[l]))
#endif

// The vote of j was taken, and that is committed: changeIn has returned (cluster/change.go). Nothing that is promised here needs that:
// a member could keep its vote while it catches up, as one that is down.
#define GIVEN_UP(l, j) (com[l] >= n && !(votes[l] & BIT(j)))

// The voters that answer after a change, and do not lag: canFollow (cluster/steps.go).
#define FIT(v) (in[v] && size[v] >= since[v])
#ifdef NO_CAN_FOLLOW
#define CAN_FOLLOW(list) ((list) != 0)
#else
#define CAN_FOLLOW(list) MOST(MASK(FIT(0), FIT(1), FIT(2), FIT(3)), list)
#endif

// Raft begins a change only when the one before is committed, and the leader has committed an entry of its own term
// (configurationChangeChIfStable).
#if defined(NO_FORMER_COMMITTED)
#define STABLE(l) (com[l] > 0)
#elif defined(NO_OWN_TERM)
#define STABLE(l) (n <= chosenSize && log[l].e[n - 1] == chosen.e[n - 1])
#else
#define STABLE(l) (com[l] >= n) // com is above 0 only when an entry of its own term is committed
#endif

// change has the leader l store another list. Raft counts the leader's own disk before it puts the list into force: if it was the
// only voter, the list is committed at once.
inline change(l, list) {
	m = votes[l];
	log[l].e[size[l]] = ENTRY(term[l], list);
	size[l]++;
	match[l].e[l] = size[l];
	before[l] = m; votes[l] = list;
	if
	:: m == BIT(l) -> commit(l, size[l])
	:: else
	fi;
	n = 0; m = 0
}

// Lost data: a minority of the voters, in each list that somebody may use, and the next disk only when the one before
// has its data back, and its vote (docs/reliability.md, conditions).
#define SPARE(v, a) (!(votes[a] & BIT(v)) || ONES(votes[a]) >= 3)
#define BACK(a) (in[a] && size[a] >= since[a] && (!owed[a] || (lastList & BIT(a))))
#ifdef WITHOUT_A_MINORITY_AT_A_TIME
#define MAY_LOSE(v) in[v]
#else
#define MAY_LOSE(v) (in[v] && SPARE(v, 0) && SPARE(v, 1) && SPARE(v, 2) && SPARE(v, 3) && BACK(0) && BACK(1) && BACK(2) && (MEMBERS == 3 || BACK(3)))
#endif

init {
	d_step {
		for (i : 0 .. MEMBERS - 1) {
			in[i] = true;
#ifdef ALONE // member 0 began the cluster, and the others joined
			log[i].e[0] = ENTRY(0, 1); log[i].e[1] = ENTRY(0, 3); log[i].e[2] = ENTRY(0, 7);
			size[i] = 3; before[i] = 3; votes[i] = 7
#else
			log[i].e[0] = ENTRY(0, FIRST);
			size[i] = 1; votes[i] = FIRST
#endif
		}
		commit(0, size[0]);
		com[0] = 0;
#ifdef SECOND // member 0, cut off, leads in term 1 with its list; the others have gone on in term 2
		for (i : 0 .. MEMBERS - 1) {
			log[i].e[1] = ENTRY(1, 0); size[i] = 2; term[i] = 1; match[0].e[i] = 2
		}
		leads[0] = true; com[0] = 2;
		for (i : 1 .. MEMBERS - 1) {
			log[i].e[2] = ENTRY(2, 0); log[i].e[3] = ENTRY(2, SECOND); log[i].e[4] = ENTRY(2, 14);
			size[i] = 5; term[i] = 2; before[i] = SECOND; votes[i] = 14; match[1].e[i] = 5
		}
		leads[1] = true;
		commit(1, 5);
#endif
		i = 0
	}
	do
	:: atomic { // a member is elected
		choose(i);
		if
		:: term[i] < TERMS && size[i] < LOG && !leads[i] && STANDS(i) -> ask(i)
		:: else
		fi;
		if
		:: m != 0 -> elect(i)
		:: else
		fi;
		i = 0
	}
	:: atomic { // a leader sends an entry
		choose(i); choose(j);
		if
		:: i != j && leads[i] && in[j] && term[j] <= term[i] -> append(i, j)
		:: else
		fi;
		i = 0; j = 0
	}
	:: atomic { // a leader learns that entries are committed
		choose(i);
		if
		:: leads[i] ->
			k = size[i];
			do
			:: k > 0 && !COMMITS(i, k) -> k--
			:: else -> break
			od;
			if
			:: k > 0 -> commit(i, k)
			:: else
			fi;
			k = 0
		:: else
		fi;
		i = 0
	}
	:: atomic { // a client writes
		choose(i);
		if
		:: leads[i] && writes < WRITES && size[i] < LOG ->
			log[i].e[size[i]] = ENTRY(term[i], WRITE);
			size[i]++; match[i].e[i] = size[i]; writes++
		:: else
		fi;
		i = 0
	}
	:: atomic { // a leader's process ends, and starts again
		choose(i);
		depose(i); i = 0
	}
	:: atomic { // a disk is lost
		choose(i);
		if
		:: lost < LOSSES && MAY_LOSE(i) ->
			for (k : 0 .. LOG - 1) { log[i].e[k] = 0 }
			owed[i] = (lastList & BIT(i)) != 0;
			size[i] = 0; term[i] = 0; since[i] = 0; in[i] = false; votes[i] = 0; before[i] = 0;
			depose(i);
			lost++; k = 0
		:: else
		fi;
		i = 0
	}
	:: atomic { // an operator gives or takes a vote (changeSeveral, addOne and removeMember)
		choose(i);
		choose(x);
		x = BIT(x);
#ifdef NO_ONE_AT_A_TIME
		choose(j);
		x = x | BIT(j); j = 0;
#endif
		listAt(i);
		if // a leader does not take its own vote: it hands over first (reconfigure)
		:: ops < OPS && leads[i] && size[i] < LOG && !(x & BIT(i)) && STABLE(i) && CAN_FOLLOW(votes[i] ^ x) ->
			change(i, votes[i] ^ x); ops++
		:: else
		fi;
		n = 0; x = 0; i = 0
	}
	:: atomic { // the leader takes the vote of a member without data, or gives it back (membership.back, mayAsk, addOne)
		choose(i); choose(j);
		listAt(i);
		if
		:: i != j && leads[i] && size[i] < LOG && SURELY_LEADS(i) && STABLE(i) && CAN_FOLLOW(votes[i] ^ BIT(j)) &&
			((votes[i] & BIT(j)) -> !in[j] : in[j] && owed[j] && size[j] >= com[i]) ->
			change(i, votes[i] ^ BIT(j))
		:: else
		fi;
		n = 0; i = 0; j = 0
	}
	:: atomic { // a member without data enters the cluster (former.join and enter)
		choose(i); choose(j);
		listAt(i);
		if
		:: i != j && leads[i] && !in[j] && SURELY_LEADS(i) && GIVEN_UP(i, j) ->
			in[j] = true;
#ifndef NO_SINCE
			since[j] = com[i];
#endif
#ifndef NO_TERM_TAKEN_OVER
			term[j] = term[i] // transport.adopt
#endif
		:: else
		fi;
		n = 0; i = 0; j = 0
	}
	// Always a way forward.
	:: !(CAN_BE_ELECTED(0) || CAN_BE_ELECTED(1) || CAN_BE_ELECTED(2) || CAN_BE_ELECTED(3)) -> assert(false)
	od
}
