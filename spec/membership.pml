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
// Assumed: Raft's own rules about logs and terms, which are here as the actions elect, append and commit; a vote and an entry are
// on the disk before anybody learns of them (replication.pml). A message takes no time, but any number of leaders of earlier terms
// go on sending theirs. An election succeeds or does nothing. That a member has just been removed is the same as that it has no vote.
// Left out: snapshots, members that are added (they begin as one without a disk does, once the list has them), changed addresses.
//
// small: -DMEMBERS=3 -DFIRST=7 -DTERMS=2 -DLOG=6 -DWRITES=1 -DLOSSES=1 -DOPS=1
// small: -DMEMBERS=3 -DALONE -DFIRST=7 -DTERMS=3 -DLOG=7 -DWRITES=1 -DLOSSES=1 -DOPS=0
// large: -DMEMBERS=3 -DFIRST=7 -DTERMS=3 -DLOG=8 -DWRITES=1 -DLOSSES=2 -DOPS=1
// large: -DMEMBERS=4 -DFIRST=15 -DTERMS=2 -DLOG=6 -DWRITES=0 -DLOSSES=1 -DOPS=1
// large: -DMEMBERS=4 -DFIRST=7 -DTERMS=2 -DLOG=6 -DWRITES=1 -DLOSSES=1 -DOPS=1
// mutants: -DMEMBERS=3 -DFIRST=7 -DTERMS=2 -DLOG=5 -DWRITES=0 -DLOSSES=1 -DOPS=2
// mutants: -DMEMBERS=4 -DFIRST=11 -DSECOND=15 -DTERMS=3 -DLOG=7 -DWRITES=1 -DLOSSES=1 -DOPS=0
// mutants: -DMEMBERS=4 -DFIRST=15 -DTERMS=3 -DLOG=4 -DWRITES=0 -DLOSSES=0 -DOPS=2
// mutants: -DMEMBERS=4 -DFIRST=15 -DTERMS=2 -DLOG=4 -DWRITES=0 -DLOSSES=1 -DOPS=1
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=3000

#define N 4
#define BIT(i) (1 << (i))
#define ONES(m) (((m) & 1) + (((m) >> 1) & 1) + (((m) >> 2) & 1) + (((m) >> 3) & 1))
// The members x for which P(x, a) holds; and whether some members are a majority of a list.
#define ALL(P, a) ((P(0, a) -> 1 : 0) | (P(1, a) -> 2 : 0) | (P(2, a) -> 4 : 0) | (P(3, a) -> 8 : 0))
#define MOST(some, list) (2 * ONES((some) & (list)) > ONES(list))

// An entry: its term, and what it is: 0 is a leader's first entry, 1 to 15 a list, as the members that vote, 16 a write.
#define ENTRY(t, x) ((t) << 5 | (x))
#define TERM(e) ((e) >> 5)
#define WHAT(e) ((e) & 31)
#define LIST(e) (WHAT(e) >= 1 && WHAT(e) <= 15)
#define WRITE 16

typedef Log { byte e[LOG] };   // 0 after its end

// On disks.
Log log[N];
byte size[N];
byte votes[N];         // the newest list in its log
byte listed[N];        // and the length of the log up to that
byte term[N];
byte since[N];         // storage.Identity.Since: it takes no part in elections before its log has this length
bool joined[N];        // storage.Identity.Agreed
bool owed[N];          // it had a vote when its disk was lost

// In memory.
bool leads[N];
Log match[N];          // match[l].e[f]: so much of its log a leader knows to be on f's disk
byte com[N];           // what a leader knows to be committed

// Facts.
Log chosen;            // all that was ever committed
byte lastList;         // the newest list that was committed

byte lost, ops, writes;
byte i, j, k, m, n;    // 0 outside of an action

// newest sets votes[a] and listed[a] after a's log has changed.
inline newest(a) {
	votes[a] = 0; listed[a] = 0;
	for (n : 0 .. LOG - 1) {
		if
		:: LIST(log[a].e[n]) -> votes[a] = WHAT(log[a].e[n]); listed[a] = n + 1
		:: else
		fi
	}
	n = 0
}

// add has the leader l store an entry of its own.
inline add(l, x) {
	log[l].e[size[l]] = ENTRY(term[l], x);
	size[l]++;
	match[l].e[l] = size[l]
}

// Who may take part in elections: transport.keepOut and Engine.Abstains, and peer.Gate.
#define TAKES_PART(v) (joined[v] && (NO_CATCHING_UP_FIRST || size[v] >= since[v]))

// Whether v would vote for c, terms aside.
#define LAST(a) (size[a] == 0 -> 0 : TERM(log[a].e[size[a] - 1]))
#define WOULD_VOTE(v, c) (TAKES_PART(v) && (LAST(v) < LAST(c) || LAST(v) == LAST(c) && size[v] <= size[c]))

// Who may stand: a voter; and without a vote, which does not count then, who has what the voters refuse others for
// (election.Contacts.mustStand): the only one that has the list which takes its vote away, or an observer with the longest log.
#define STANDS(c) (TAKES_PART(c) && (!NO_STANDING_WITHOUT_A_VOTE || (votes[c] & BIT(c))))

// Whether the members that there are could elect c.
#define CAN_BE_ELECTED(c) (STANDS(c) && MOST(ALL(WOULD_VOTE, c), votes[c]))

// elect has some of the members that may vote for c do so, in a term after theirs: it has stood in those before in vain. If they
// are enough, it leads.
inline elect(c) {
	m = BIT(c); k = term[c];
	for (n : 0 .. N - 1) {
		if
		:: n != c && (votes[c] & BIT(n)) && WOULD_VOTE(n, c) -> m = m | BIT(n); k = (term[n] > k -> term[n] : k)
		:: true
		fi
	}
	if
	:: k < TERMS && MOST(m, votes[c]) ->
		for (n : 0 .. N - 1) {
			if
			:: m & BIT(n) -> depose(n, k + 1)
			:: else
			fi
		}
		for (n : 0 .. LOG - 1) { assert(chosen.e[n] == 0 || chosen.e[n] == log[c].e[n]) }
		leads[c] = true;
		add(c, 0)
	:: else
	fi;
	n = 0; m = 0; k = 0
}

// depose has a in a term in which it does not lead.
inline depose(a, t) {
	term[a] = t; leads[a] = false; com[a] = 0;
	match[a].e[0] = 0; match[a].e[1] = 0; match[a].e[2] = 0; match[a].e[3] = 0
}

// append has f store the next entry that it lacks of the leader l's log.
inline append(l, f) {
	if
	:: term[f] < term[l] -> depose(f, term[l])
	:: else
	fi;
	do
	:: k < size[f] && k < size[l] && log[f].e[k] == log[l].e[k] -> k++
	:: else -> break
	od;
	if
	:: k < size[l] ->
		log[f].e[k] = log[l].e[k];
		k++;
		for (n : k .. LOG - 1) { log[f].e[n] = 0 }
		size[f] = k;
		newest(f)
	:: else
	fi;
	match[l].e[f] = k; k = 0
}

// commit has the leader l know that the entries up to there are committed.
#define HAS(f, l) (match[l].e[f] >= k)
#define COMMITS(l) (TERM(log[l].e[k - 1]) == term[l] && MOST(ALL(HAS, l), votes[l]))
inline commit(l, upTo) {
	com[l] = upTo;
	for (n : 0 .. upTo - 1) {
		assert(chosen.e[n] == 0 || chosen.e[n] == log[l].e[n]);
		lastList = (chosen.e[n] == 0 && LIST(log[l].e[n]) -> WHAT(log[l].e[n]) : lastList);
		chosen.e[n] = log[l].e[n]
	}
	n = 0
}

// The leader l still leads, and knows all earlier changes: change, with Raft's Barrier (cluster/change.go).
#define FOLLOWS(v, l) (joined[v] && term[v] == term[l])
#define SURELY_LEADS(l) (leads[l] && (NO_BARRIER || com[l] == size[l] && MOST(ALL(FOLLOWS, l), votes[l])))

// Raft begins a change only when the one before is committed, and the leader has committed an entry of its own term
// (configurationChangeChIfStable): com is above 0 only then.
#define STABLE(l) (com[l] >= listed[l] || NO_FORMER_COMMITTED && com[l] > 0 || \
	NO_OWN_TERM && log[l].e[listed[l] - 1] == chosen.e[listed[l] - 1])

// The voters that answer after a change, and do not lag, are enough: checkQuorumAfter (internal/core/membership/steps.go).
#define CAUGHT_UP(v, a) (joined[v] && size[v] >= since[v])
#define CAN_FOLLOW(list) (NO_CAN_FOLLOW && (list) != 0 || MOST(ALL(CAUGHT_UP, 0), list))

#define MAY_CHANGE(l, list) (leads[l] && size[l] < LOG && STABLE(l) && CAN_FOLLOW(list))

// change has the leader l store another list. Raft counts the leader's own disk before it puts the list into force: if it was the
// only voter, the list is committed at once.
inline change(l, list) {
	m = votes[l];
	votes[l] = list;
	add(l, votes[l]);
	listed[l] = size[l];
	if
	:: m == BIT(l) -> commit(l, size[l])
	:: else
	fi;
	m = 0
}

// The votes that an operator changes at once.
#define CHANGED(j) (BIT(j) | NO_ONE_AT_A_TIME << (j + 1) % MEMBERS)

// The vote of j was taken, and that is committed: changeIn has returned (cluster/change.go). Nothing that is promised here needs
// that: a member could keep its vote while it catches up, as one that is down.
#define GIVEN_UP(l, j) (com[l] >= listed[l] && !(votes[l] & BIT(j)))

// Lost data: a minority of the voters, in each list that somebody may use, and the next disk only when the one before
// has its data back, and its vote (docs/reliability.md, conditions).
#define BOUND(a, v) ((votes[a] & BIT(v)) && ONES(votes[a]) < 3)
#define MISSING(a, v) (a < MEMBERS && (!CAUGHT_UP(a, v) || owed[a] && !(lastList & BIT(a))))
#define MAY_LOSE(v) (joined[v] && (WITHOUT_A_MINORITY_AT_A_TIME || ALL(BOUND, v) == 0 && ALL(MISSING, v) == 0))

// has puts an entry into a's log, at the start.
inline has(a, x) { log[a].e[size[a]] = x; size[a]++ }

init {
	d_step {
		for (i : 0 .. MEMBERS - 1) {
			joined[i] = true;
#ifdef ALONE // member 0 began the cluster, and the others joined
			has(i, ENTRY(0, 1)); has(i, ENTRY(0, 3));
#endif
			has(i, ENTRY(0, FIRST));
#ifdef SECOND // member 0, cut off, leads in term 1 with its list; the others have gone on in term 2
			has(i, ENTRY(1, 0));
			term[i] = 1; match[0].e[i] = 2;
			if
			:: i > 0 ->
				has(i, ENTRY(2, 0)); has(i, ENTRY(2, SECOND)); has(i, ENTRY(2, 14));
				term[i] = 2; match[1].e[i] = 5
			:: else
			fi;
			leads[i] = i < 2;
#endif
			newest(i)
		}
		commit(1, size[1]);
#ifdef SECOND
		com[0] = 2;
#else
		com[1] = 0;
#endif
		i = 0
	}
	do
	:: atomic {
		select (i : 0 .. MEMBERS - 1); select (j : 0 .. MEMBERS - 1);
		if // what member i does alone (i == j), or with j
		// A member is elected.
		:: i == j && term[i] < TERMS && size[i] < LOG && !leads[i] && STANDS(i) -> elect(i)

		// A leader sends an entry.
		:: i != j && leads[i] && joined[j] && term[j] <= term[i] -> append(i, j)

		// A leader learns that entries are committed.
		:: i == j && leads[i] ->
			k = size[i];
			do
			:: k > com[i] && !COMMITS(i) -> k--
			:: else -> break
			od;
			commit(i, k);
			k = 0

		// A client writes.
		:: i == j && leads[i] && writes < WRITES && size[i] < LOG -> add(i, WRITE); writes++

		// A leader's process ends, and starts again.
		:: i == j && leads[i] -> depose(i, term[i])

		// A disk is lost.
		:: i == j && lost < LOSSES && MAY_LOSE(i) ->
			for (n : 0 .. LOG - 1) { log[i].e[n] = 0 }
			owed[i] = (lastList & BIT(i)) != 0;
			size[i] = 0; since[i] = 0; joined[i] = false; lost++;
			newest(i);
			depose(i, 0)

		// An operator gives or takes a vote (changeSeveral, addOne and removeMember). A leader does not take its own: it hands
		// over first (reconfigure).
		:: i != j && ops < OPS && !(CHANGED(j) & BIT(i)) && MAY_CHANGE(i, votes[i] ^ CHANGED(j)) ->
			change(i, votes[i] ^ CHANGED(j)); ops++

		// The leader takes the vote of a member without data, or gives it back (checkRejoin, mayAsk, addOne).
		:: i != j && SURELY_LEADS(i) && MAY_CHANGE(i, votes[i] ^ BIT(j)) &&
			((votes[i] & BIT(j)) -> !joined[j] : joined[j] && owed[j] && size[j] >= com[i]) -> change(i, votes[i] ^ BIT(j))

		// A member without data enters the cluster (joiner.join and enter), and takes over the leader's term (Engine.AdvanceTerm).
		:: i != j && !joined[j] && SURELY_LEADS(i) && GIVEN_UP(i, j) ->
			joined[j] = true;
			since[j] = (NO_SINCE -> 0 : com[i]);
			if
			:: term[i] < TERMS -> depose(i, term[i] + 1) // it steps down before its answer comes
			:: true
			fi;
			term[j] = (NO_TERM_TAKEN_OVER -> term[j] : term[i])
		:: else
		fi;
		i = 0; j = 0
	}
	// Always a way forward.
	:: !(CAN_BE_ELECTED(0) || CAN_BE_ELECTED(1) || CAN_BE_ELECTED(2) || CAN_BE_ELECTED(3)) -> assert(false)
	od
}
