// What is stored where, and when it may be seen: internal/core/raftlog/asynclog.go, decision 22, and the rows of docs/raft.md on snapshots
// and the log.
//
// small: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=2 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=0
// small: -DTERMS=5 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=0
// small: -DTERMS=4 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7 -DSHORT=1
// small: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=1 -DNEW=3 -DSHORT=0
// large: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=1 -DSNAPSHOTS=1 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=0
// large: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7 -DSHORT=0
// mutants: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=2 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=0
// mutants: -DTERMS=4 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7 -DSHORT=1
// mutants: -DTERMS=5 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=0
// mutants: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=1 -DSNAPSHOTS=1 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT=1
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -DVECTORSZ=2048
//
// Three members have logs of a few entries. Each log begins with the same list of members in term 1, and each leader begins
// with an empty entry, as in Raft. A leader's commands become pending: Raft has them and sends them, and its disk writes them
// later. Whatever passes the gates is applied at once, the worst case. The process of a member may end at any moment, and
// loses what is pending; in the end one member may be down for ever.
//
// Checked in each state: a leader has all that is visible anywhere (leader completeness, so nothing visible is ever lost);
// one leader in a term; no two members apply different entries at one index; nothing that a member has applied is replaced;
// no state goes back. And from each state: if no more faults come, a majority is up, and one of those that have most stands,
// then it is elected, and all get all (finish): nobody is refused for ever.
//
// A message is sent and answered in one step, which gives the leader the answer; one may also come late (LATE), without an
// answer. Which entry it follows is chosen well: the last one that both have in common, as far as the receiver can tell.
// The model leaves out: how the leader's Raft finds that entry (leap, compactedAway, answerFromSnapshot in transport.go); the times of
// anything; a vote for a candidate that no longer stands; more than one change of the voters.
//
// It also leaves out what nothing here depends on: that Acks.Accepted forgets earlier terms; that nothing is sent after the end of
// its term (transport.termEnded; with three members); flush before a term or a vote is stored (asynclog.go); and, with SHORT, that the last
// entry of a snapshot stays in the log (store.go: DeleteRange), since GetLog says what it was.
#define N 3
#define L (TERMS + PROPOSALS + CHANGES) // the last index: term 1 has one entry, and each leader begins with one
#define OLD 7  // the voters, as bits; those in the list that is proposed are NEW
#define LIST 8 // added to the term of an entry that has the list NEW
#define SNAPSHOT 16 // a message that has one
mtype = { DOWN, FOLLOWER, CANDIDATE, LEADER };

// On the disks.
byte entry[N * (L + 1)]; // the term of each entry; behind disk, those that are pending
byte disk[N];            // the log's end
byte base[N];            // the entries up to here are not in the log
byte snapI[N], snapT[N]; // what the snapshot covers, up to its last entry
byte term[N];
byte voteT[N], voteC[N]; // the vote: term and candidate + 1

// In the processes.
mtype role[N];
byte mem[N];             // the log's end as Raft knows it: behind disk there are pending entries
byte told[N];            // Raft takes the log to be committed up to here
byte vis[N];             // applied: visible
byte got[N];             // votes for a candidate, as bits
byte match[N * N];       // how far the leader knows each log to be its own

chan late = [1] of { byte, byte, byte, byte, byte, byte }; // a message that comes late: its receiver, mT, p, mPT, mE, mC

// Facts.
byte seen[L + 1];        // the terms of the entries that are visible anywhere
bit led[TERMS + 1];      // somebody has led in each term
byte proposals = PROPOSALS, crashes = CRASHES, snapshots = SNAPSHOTS, changes = CHANGES, lates = LATE;
byte a, b;               // who takes a step
// Only within a step, and no part of the state:
hidden short k, q, i, round, last, voting, ok, n;
hidden byte mT, p, mPT, mE, mC; // a message: the leader's term, entry p before it and its term, the entry, what is committed

#define AT(m, x) entry[(m) * (L + 1) + (x)]
#define T(x) ((x) & 7)
#define TERM(m, x) ((x) > base[m] -> T(AT(m, x)) : T(snapT[m])) // of an entry, or of the last one of the snapshot
#define UP(m) (role[m] != DOWN)
#define MATCH(l, f) match[(l) * N + (f)]
#define MIN(x, y) ((x) < (y) -> (x) : (y))
#define MAX(x, y) ((x) > (y) -> (x) : (y))
#define IF(...) if :: __VA_ARGS__ :: else fi
#define ENTRIES(x) for (k : 1 .. L) { IF(x) }    // for each entry, if
#define MEMBERS(x) for (k : 0 .. N - 1) { IF(x) } // for each member, if
#define COUNT(x) n = 0; MEMBERS((voting >> k & 1) -> n = n + ((x) -> 1 : -1)) // n > 0: x is so for most of the voters

// voters sets voting to the newest list in the log of m, or in its snapshot.
inline voters(m) {
	voting = (snapT[m] & LIST -> NEW : OLD);
	ENTRIES(k > base[m] && k <= mem[m] && (AT(m, k) & LIST) -> voting = NEW)
}

// apply makes the entries up to x visible at m.
inline apply(m, x) {
	for (k : vis[m] + 1 .. x) {
		assert(k <= mem[m] && k > base[m]);
		assert(seen[k] == 0 || seen[k] == AT(m, k)); // state machine safety
		seen[k] = AT(m, k)
	}
	vis[m] = MAX(vis[m], x); told[m] = MAX(told[m], vis[m])
}

// settle: what a leader takes to be committed, and what of that passes its gates.
inline settle(l) {
	voters(l);
	for (q : told[l] + 1 .. mem[l]) {
		COUNT(k == l || MATCH(l, k) >= q);
		IF(n > 0 && (NO_OWN_TERM || T(AT(l, q)) == term[l]) -> told[l] = q) // raft: commitment.startIndex
	}
	for (q : vis[l] + 1 .. told[l]) {
		COUNT(k == l && NO_SELF_EXCLUDED || k != l && MATCH(l, k) >= q); // asynclog.go: Acks.majority
		IF(n > 0 || q <= disk[l] || NO_GATE -> apply(l, q)) // asynclog.go: await
	}
	skip // SPIN wants no loop at the end of a d_step
}

// written: the disk has what was pending up to x.
inline written(m, x) {
	disk[m] = x;
	q = MIN(told[m], disk[m]); apply(m, q)
}

inline follow(m) {
	role[m] = FOLLOWER; got[m] = 0;
	MEMBERS(true -> MATCH(m, k) = 0)
}

// begin: a term begins at m. What is pending may be written later: AsyncLog.SetUint64 waits for it, but nothing depends on that.
inline begin(m, t) {
	term[m] = t;
	follow(m);
	IF(!NO_ONE_WRITE -> voteT[m] = 0; voteC[m] = 0) // they do not count any more
}

// only: the log is empty, behind a snapshot up to x.
inline only(m, x) {
	base[m] = x; disk[m] = x; mem[m] = x;
	ENTRIES(true -> AT(m, k) = 0)
}

// forget: the process ends.
inline forget(m) {
	follow(m); role[m] = DOWN;
	ENTRIES(k > disk[m] -> AT(m, k) = 0);
	mem[m] = disk[m]; vis[m] = snapI[m]; told[m] = snapI[m];
	IF(!NO_DROP_AT_START && (disk[m] < snapI[m] || base[m] < snapI[m] && T(AT(m, snapI[m])) != T(snapT[m])) ->
		only(m, snapI[m])); // storage: supersededLog
	IF(NO_VOTE_STORED -> voteT[m] = 0; voteC[m] = 0)
}

// newer: the log of c is at least as new as that of v.
#define END(m) TERM(m, mem[m])
#define newer(c, v) (END(c) > END(v) || END(c) == END(v) && mem[c] >= mem[v])

// store appends an entry of its own at a leader, at once on its disk or pending.
inline store(l, e, pending) {
	mem[l]++; AT(l, mem[l]) = e;
	IF(!pending -> written(l, mem[l]));
	settle(l)
}

// stand: m is a candidate, and votes for itself.
inline stand(m, t) {
	begin(m, t);
	role[m] = CANDIDATE; voteT[m] = term[m]; voteC[m] = m + 1; got[m] = 1 << m;
	elected(m)
}
#define grants(c, v) (voteT[v] == term[c] && voteC[v] == c + 1 || \
	voteT[v] != term[c] && (newer(c, v) || NO_COMPARISON)) // raft: requestVote
#define asks(c, v) (role[c] == CANDIDATE && !(got[c] >> v & 1) && (term[v] < term[c] || term[v] == term[c] && grants(c, v)))
inline vote(c, v) {
	IF(term[v] < term[c] -> begin(v, term[c]));
	IF(grants(c, v) -> voteT[v] = term[c]; voteC[v] = c + 1; got[c] = got[c] | (1 << v); elected(c))
}
inline elected(m) {
	voters(m);
	COUNT(got[m] >> k & 1);
	IF(n > 0 ->
		assert(!led[term[m]]); // one leader in a term
		led[term[m]] = 1; role[m] = LEADER; got[m] = 0;
		ENTRIES(true -> assert(seen[k] == 0 || k <= snapI[m] || k <= mem[m] && AT(m, k) == seen[k])); // leader completeness
		store(m, term[m], 0))
}

// found: f knows the term of entry x, and it is t. GetLog (asynclog.go) knows that of the snapshot's last entry, too.
#define found(f, x, t) (x > base[f] && x <= mem[f] && T(AT(f, x)) == T(t) || \
	x > 0 && x == snapI[f] && (mem[f] <= x || base[f] == x && !NO_END_TERM) && T(snapT[f]) == T(t))

// place sets p to the last entry that f and leader l have in common, as far as f can tell; ok to whether there is one.
inline place(l, f) {
	ok = 0;
	for (k : base[l] .. mem[l]) { IF((k > base[l] || k == snapI[l]) && found(f, k, TERM(l, k)) -> p = k; ok = 1) }
}

// hasAll: f has all that a snapshot covers.
#define hasAll(f, x, t) (x > base[f] && x <= mem[f] -> T(AT(f, x)) == T(t) : snapI[f] >= x)

// message is what leader l sends after entry p: its snapshot, nothing new, or one entry, for what = 1.
#define SAYS(l) (NO_GATE_MESSAGES -> told[l] : vis[l]) // asynclog.go: committed
inline message(l, what) {
	mT = term[l]; mE = 0; mC = 0;
	if
	:: what == SNAPSHOT -> p = snapI[l]; mPT = snapT[l]; mE = SNAPSHOT
	:: what != SNAPSHOT && ok && p + what <= mem[l] ->
		mPT = TERM(l, p);
		mE = (what -> AT(l, p + 1) : 0);
		mC = (NO_SHORTEN -> SAYS(l) : MIN(SAYS(l), p + what)) // transport.go: shorten
	:: else -> mT = 0 // there is nothing to send
	fi
}

// receive: f gets a message. ok is whether it accepts an entry, or would.
inline receive(f) {
	ok = 0;
	IF(mT > term[f] -> begin(f, mT));
	IF(mT == term[f] ->
		assert(role[f] != LEADER);
		follow(f);
		if
		:: mE == SNAPSHOT -> install(f)
		:: mE != SNAPSHOT && found(f, p, mPT) -> append(f)
		:: else
		fi)
}
inline append(f) {
	written(f, mem[f]); // asynclog.go: flush, in StoreLogs and DeleteRange
	ok = 1;
	IF(mE && (p >= mem[f] || AT(f, p + 1) != mE) ->
		IF(p < mem[f] ->
			assert(p >= vis[f]); // nothing visible is replaced
			ENTRIES(k > p -> AT(f, k) = 0);
			mem[f] = p; disk[f] = p);
		ok = (p == mem[f]);
		IF(ok -> mem[f]++; AT(f, mem[f]) = mE);
		IF(ok && !NO_LEADER_ONLY -> disk[f] = mem[f])); // asynclog.go: StoreLogs, leads
	q = MIN(mC, mem[f]);
	IF(ok -> apply(f, q))
}
inline install(f) {
	IF(NO_NEEDLESS || !hasAll(f, p, mPT) -> // store.go: hasAll
		assert(p >= vis[f]); // the state does not go back
		written(f, mem[f]);
		snapI[f] = p; snapT[f] = mPT; vis[f] = p; told[f] = p;
		if
		:: mem[f] < p -> IF(!NO_RECONCILE -> only(f, p)) // storage.go: reconcileLog
		:: mem[f] >= p && T(AT(f, p)) != T(mPT) -> // transport.go: replaceEnd
			if :: NO_REPLACE_END -> base[f] = p - 1 :: else -> only(f, p) fi
		:: else
		fi)
}

// send: f gets a message from leader l, and answers.
inline send(l, f, what) {
	message(l, what);
	receive(f);
	IF(ok && MATCH(l, f) < p + what -> MATCH(l, f) = p + what; settle(l))
}

// snapshot: a snapshot of m's own state; if cut is set, the log is shortened, otherwise the process ends too soon, or keeps it.
inline snapshot(m, cut) {
	snapshots--; snapI[m] = vis[m];
	ENTRIES(k > base[m] && k <= vis[m] && (AT(m, k) & LIST) -> snapT[m] = LIST);
	snapT[m] = T(AT(m, vis[m])) | (snapT[m] & LIST);
	IF(cut ->
		written(m, mem[m]); // asynclog.go: flush, in DeleteRange
		base[m] = snapI[m] - !SHORT; // store.go: DeleteRange
		ENTRIES(k <= base[m] -> AT(m, k) = 0))
}

// finish: all is quiet from now on, and one member, x, is down for ever. Then one of those that have most is elected, and
// all get all. The program ends.
inline finish(x) {
	IF(x < N -> forget(x));
	last = N;
	for (i : 0 .. N - 1) { IF(UP(i) && (last == N || !newer(last, i)) -> last = i) }
	voters(last);
	COUNT(UP(k));
	IF(n > 0 ->
		stand(last, TERMS);
		for (i : 0 .. N - 1) { IF(role[last] == CANDIDATE && i != last && UP(i) -> vote(last, i)) }
		assert(role[last] == LEADER);
		for (round : 0 .. 2 * L) {
			for (i : 0 .. N - 1) {
				IF(i != last && UP(i) -> place(last, i); q = (ok -> p < mem[last] : SNAPSHOT); send(last, i, q))
			}
		}
		for (i : 0 .. N - 1) { assert(!UP(i) || mem[i] == mem[last] && vis[i] == mem[last] && END(i) == END(last)) })
}

init {
	d_step { for (i : 0 .. N - 1) { AT(i, 1) = 1; disk[i] = 1; mem[i] = 1; term[i] = 1; role[i] = FOLLOWER } }
	do
	:: atomic { // a member by itself
		if :: a = 0 :: a = 1 :: a = 2 fi;
		if
		:: d_step { role[a] != LEADER && term[a] < TERMS - 1 -> voters(a); IF(voting >> a & 1 -> stand(a, term[a] + 1)) }
		:: d_step { role[a] == LEADER && proposals > 0 -> proposals--; store(a, term[a], 1) }
		:: d_step { role[a] == LEADER && changes > 0 && T(AT(a, told[a])) == term[a] -> changes--; store(a, term[a] | LIST, 0) }
		:: d_step { disk[a] < mem[a] -> written(a, disk[a] + 1) }
		:: d_step { crashes > 0 -> crashes--; forget(a); role[a] = FOLLOWER }
		:: d_step { snapshots > 0 && vis[a] > snapI[a] -> snapshot(a, 1) }
		:: d_step { snapshots > 0 && vis[a] > snapI[a] -> snapshot(a, 0) }
		:: else
		fi;
		a = 0
	}
	:: atomic { // a sends b something, or asks for its vote
		if :: a = 0 :: a = 1 :: a = 2 fi;
		if :: b = (a + 1) % N :: b = (a + 2) % N fi;
		if
		:: d_step { asks(a, b) -> vote(a, b) }
		:: d_step { NO_ONE_WRITE && asks(a, b) && crashes > 0 && voteT[b] != term[a] -> // a crash between the two writes
			crashes--; IF(term[b] < term[a] -> begin(b, term[a])); voteT[b] = term[a]; forget(b); role[b] = FOLLOWER }
		:: d_step { role[a] == LEADER -> place(a, b); send(a, b, 1) }
		:: d_step { role[a] == LEADER && (term[b] < term[a] || vis[b] < SAYS(a)) -> place(a, b); send(a, b, 0) }
		:: d_step { role[a] == LEADER && base[a] > 0 && !hasAll(b, snapI[a], snapT[a]) ->
			place(a, b); IF(!ok -> send(a, b, SNAPSHOT)) }
		:: d_step { role[a] == LEADER && lates > 0 -> place(a, b); message(a, 1); IF(mT -> lates--; late!b,mT,p,mPT,mE,mC) }
		:: d_step { role[a] == LEADER && lates > 0 && base[a] > 0 -> lates--; message(a, SNAPSHOT); late!b,mT,p,mPT,mE,mC }
		:: else
		fi;
		a = 0; b = 0
	}
	:: d_step { late?i,mT,p,mPT,mE,mC -> receive(i) }
	:: atomic {
		if :: a = 0 :: a = 1 :: a = 2 :: a = 3 fi;
		d_step { finish(a) }
	}; break
	od
}
