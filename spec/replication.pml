// What is stored where, and when it may be seen: cluster/asynclog.go, decision 22, and the rows of docs/raft.md on snapshots and the log.
//
// small: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=2 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7
// small: -DTERMS=5 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7
// small: -DTERMS=4 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7 -DSHORT
// small: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=1 -DNEW=3
// large: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=1 -DSNAPSHOTS=1 -DLATE=0 -DCHANGES=0 -DNEW=7
// large: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7
// mutants: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=2 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7
// mutants: -DTERMS=5 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=0 -DLATE=0 -DCHANGES=0 -DNEW=7
// mutants: -DTERMS=4 -DPROPOSALS=0 -DCRASHES=0 -DSNAPSHOTS=1 -DLATE=1 -DCHANGES=0 -DNEW=7 -DSHORT
// mutants: -DTERMS=4 -DPROPOSALS=1 -DCRASHES=1 -DSNAPSHOTS=1 -DLATE=0 -DCHANGES=0 -DNEW=7 -DSHORT
// pan: -DSAFETY -DCOLLAPSE -DMEMLIM=6000 -DVECTORSZ=2048
//
// Three members have logs of a few entries. Each log begins with the same list of members in term 1, and each leader begins with an
// empty entry, as in Raft. A leader's commands become pending: Raft has them and sends them, and its disk writes them later.
// Whatever passes the gates is applied at once, the worst case. The process of a member may end at any moment, and
// loses what is pending; in the end one member may be down for ever.
//
// Checked in each state: a leader has all that is visible anywhere (leader completeness, so nothing visible is ever
// lost); one leader in a term; no two members apply different entries at one index; nothing that a member has applied
// is replaced; no state goes back. And from each state: if no more faults come, a majority is up, and one of those that
// have most stands, then it is elected, and all get all (finish): nobody is refused for ever.
//
// A message is sent and answered in one step, which gives the leader the answer; entries and snapshots may also come
// late (LATE), once, without an answer. Which entry a message follows is chosen well: the last one that both have
// in common, as far as the receiver can tell. How the leader's Raft finds it is not modelled (leap, lacks, answerLacking
// in transport.go), nor are the times of anything. A vote may be asked for only while the candidate stands.
// With three members nothing depends on two rules: acks.accepted forgets earlier terms, and transport.over sends nothing after its
// term. One change of the voters is proposed, at most.
//
// Two things that the code does are not here, since nothing here depends on them: flush before a term or a vote
// is stored (asynclog.go), and, with SHORT, that the last entry of a snapshot stays in the log (store.go: DeleteRange), since
// GetLog says what it was.
#define N 3
#define L (TERMS + PROPOSALS + CHANGES) // the last index: term 1 has one entry, and each leader begins with one
#define OLD 7  // the voters, as bits; those in the list that is proposed are NEW
#define LIST 8 // added to the term of an entry that has the list NEW
#define DOWN 0 // of role
#define FOLLOWER 1
#define CANDIDATE 2
#define LEADER 3

// On the disks.
byte entry[N * (L + 1)]; // the term of each entry; behind disk, those that are pending
byte disk[N];             // the log's end
byte base[N];            // the entries up to here are not in the log
byte snapI[N], snapT[N]; // what the snapshot covers, up to its last entry
byte term[N];
byte voteT[N], voteC[N]; // the vote: term and candidate + 1

// In the processes.
byte role[N];
byte mem[N];         // the log's end as Raft knows it: behind disk there are pending entries
byte told[N];        // Raft takes the log to be committed up to here
byte vis[N];         // applied: visible
byte got[N];         // votes for a candidate, as bits
byte match[N * N];   // how far the leader knows each log to be its own

// Messages that come late.
byte lateT, lateTo, lateP, latePT, lateE, lateC; // entries: as in receive, after entry lateP
byte snapT_, snapTo, snapAt, snapOf;             // a snapshot: the leader's term, what it covers

// Facts.
byte seen[L + 1];    // the terms of the entries that are visible anywhere
byte leads[TERMS + 1]; // who leads in each term, + 1
byte proposals = PROPOSALS, crashes = CRASHES, snapshots = SNAPSHOTS, changes = CHANGES, lates = LATE;
byte k, n, q, p, mask, size, ok; // only within a step
byte mT, mPT, mE, mC; // the message in it: term, term of the entry before, entry or 0, and what is said to be committed
byte a, b, with, last, round; // choices, and what finish needs
#define AT(i, x) entry[(i) * (L + 1) + (x)]
#define T(x) ((x) & 7)
#define UP(i) (role[i] != DOWN)
#define MATCH(l, f) match[(l) * N + (f)]
#define MIN(x, y) ((x) < (y) -> (x) : (y))
#define MAX(x, y) ((x) > (y) -> (x) : (y))
#define IF(x) if :: x :: else fi
#define ALL(x) for (k : 1 .. L) { IF(x) } k = 0 // for each entry, if
#define EACH(x) for (k : 0 .. N - 1) { IF(x) } k = 0 // for each member, if

// voters sets mask to the newest list in the log of i, or in its snapshot, and size to how many these are.
inline voters(i) {
	mask = (snapT[i] & LIST -> NEW : OLD);
	ALL(k > base[i] && k <= mem[i] && (AT(i, k) & LIST) -> mask = NEW);
	size = (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1)
}

// apply makes the entries up to x visible at i.
inline apply(i, x) {
	k = vis[i] + 1;
	do
	:: k <= x ->
		assert(k <= mem[i] && k > base[i]);
		assert(seen[k] == 0 || seen[k] == AT(i, k)); // state machine safety
		seen[k] = AT(i, k);
		k++
	:: else -> break
	od;
	vis[i] = MAX(vis[i], x); told[i] = MAX(told[i], vis[i]); k = 0
}

// count sets n to how many voters have entry q of leader l; l itself counts if self is set.
inline count(l, self) {
	n = 0;
	EACH((mask >> k & 1) && (k == l && self || k != l && MATCH(l, k) >= q) -> n++)
}

// settle: what a leader takes to be committed, and what of that passes its gates.
inline settle(l) {
	voters(l);
	q = mem[l];
	do
	:: q > told[l] ->
		count(l, 1);
		if
#ifndef NO_OWN_TERM
		:: T(AT(l, q)) != term[l] -> q-- // raft: commitment.startIndex
#endif
		:: 2 * n <= size -> q--
		:: else -> told[l] = q; break
		fi
	:: else -> break
	od;
	q = told[l];
	do
	:: q > vis[l] ->
		count(l, 1);
#ifndef NO_SELF_EXCLUDED
		count(l, 0); // asynclog.go: acks.majority
#endif
		if
#ifndef NO_GATE
		:: q > disk[l] && 2 * n <= size -> q-- // asynclog.go: await
#endif
		:: else -> apply(l, q); break
		fi
	:: else -> break
	od;
	q = 0; n = 0; mask = 0; size = 0
}

// written: the disk has what was pending up to x.
inline written(i, x) {
	q = x; disk[i] = q;
	q = MIN(told[i], q); apply(i, q); q = 0
}

inline follow(i) {
	role[i] = FOLLOWER; got[i] = 0;
	EACH(true -> MATCH(i, k) = 0)
}

// begin: a term begins at i. What is pending may be written later: asyncLog.SetUint64 waits for it, but nothing depends on that.
inline begin(i, t) {
	term[i] = t;
	follow(i)
#ifndef NO_ONE_WRITE
	; voteT[i] = 0; voteC[i] = 0 // they do not count any more
#endif
}

// only: the log is empty, behind a snapshot up to x.
inline only(i, x) {
	base[i] = x; disk[i] = x; mem[i] = x;
	ALL(true -> AT(i, k) = 0)
}

// forget: the process ends.
inline forget(i) {
	follow(i); role[i] = DOWN; ALL(k > disk[i] -> AT(i, k) = 0);
	mem[i] = disk[i]; vis[i] = snapI[i]; told[i] = snapI[i]
#ifndef NO_DROP_AT_START
	; IF(disk[i] < snapI[i] || base[i] < snapI[i] && T(AT(i, snapI[i])) != T(snapT[i]) -> only(i, snapI[i])) // storage: supersededLog
#endif
#ifdef NO_VOTE_STORED
	; voteT[i] = 0; voteC[i] = 0
#endif
}

// newer: the log of c is at least as new as that of v.
#define lastT(i) (mem[i] == base[i] && base[i] > 0 -> T(snapT[i]) : T(AT(i, mem[i])))
#define newer(c, v) (lastT(c) > lastT(v) || lastT(c) == lastT(v) && mem[c] >= mem[v])

// store appends an entry of its own at a leader, at once on its disk or pending.
inline store(i, e, pending) {
	mem[i]++; AT(i, mem[i]) = e;
	if :: pending -> skip :: else -> written(i, mem[i]) fi;
	settle(i)
}

inline elected(i) {
	voters(i);
	n = 0;
	EACH(mask & got[i] & (1 << k) -> n++);
	if
	:: 2 * n > size ->
		n = 0; mask = 0; size = 0; got[i] = 0;
		assert(leads[term[i]] == 0); // one leader in a term
		leads[term[i]] = i + 1; role[i] = LEADER;
		ALL(true -> assert(seen[k] == 0 || k <= snapI[i] || k <= mem[i] && AT(i, k) == seen[k])); // leader completeness
		store(i, term[i], 0)
	:: else -> n = 0; mask = 0; size = 0
	fi
}

// found: f knows the term of entry x, and it is t.
#define found(f, x, t) (x == 0 && base[f] == 0 || x > base[f] && x <= mem[f] && T(AT(f, x)) == T(t) || KNOWN(f, x) && T(snapT[f]) == T(t))
#ifdef NO_END_TERM
#define KNOWN(f, x) (x == snapI[f] && x > 0 && mem[f] <= x && x >= base[f])
#else
#define KNOWN(f, x) (x == snapI[f] && x > 0 && (mem[f] <= x || base[f] == x)) // asynclog.go: GetLog
#endif

// sends: l can send what follows entry x.
#define sends(l, x) (x > base[l] || x == base[l] && (x == 0 || x == snapI[l]))

// place sets p to the last entry that f and leader l have in common, as far as f can tell; ok to whether there is one.
inline place(l, f) {
	ok = 0;
	p = mem[l];
	do
	:: sends(l, p) && (p > base[l] && found(f, p, AT(l, p)) || p == base[l] && found(f, p, snapT[l])) -> ok = 1; break
	:: else -> if :: p == 0 -> break :: else -> p-- fi
	od
}

// receive: f gets the entry e, or none, which follows p, of a leader in term t.
inline receive(f) {
	ok = 0;
	if
	:: mT < term[f] -> skip
	:: else ->
		IF(mT > term[f] -> begin(f, mT));
		assert(role[f] != LEADER);
		role[f] = FOLLOWER; got[f] = 0;
		if
		:: found(f, p, mPT) ->
			ok = 1;
			IF(disk[f] < mem[f] -> written(f, mem[f])); // asynclog.go: flush, in StoreLogs and DeleteRange
			if
			:: mE && (p >= mem[f] || AT(f, p + 1) != mE) ->
				IF(p < mem[f] -> assert(p >= vis[f]); ALL(k > p -> AT(f, k) = 0); mem[f] = p; disk[f] = p); // nothing visible is replaced
				if
				:: p == mem[f] ->
					mem[f]++; AT(f, mem[f]) = mE
#ifndef NO_LEADER_ONLY
					; disk[f] = mem[f] // asynclog.go: StoreLogs, leads
#endif
				:: else -> ok = 0
				fi
			:: else
			fi;
			q = MIN(mC, mem[f]);
			IF(ok && q > vis[f] -> apply(f, q));
			q = 0
		:: else
		fi
	fi
}
#ifdef NO_GATE_MESSAGES
#define SAYS(l) told[l]
#else
#define SAYS(l) vis[l] // asynclog.go: committed
#endif

// message is what leader l sends after entry p.
inline message(l, has) {
	mT = term[l];
	if :: p > base[l] -> mPT = T(AT(l, p)) :: else -> mPT = T(snapT[l]) fi;
	IF(has -> mE = AT(l, p + 1));
#ifdef NO_SHORTEN
	mC = SAYS(l)
#else
	mC = MIN(SAYS(l), p + has) // transport.go: shorten
#endif
}

inline send(l, f) {
	message(l, with);
	receive(f);
	mT = 0; mC = 0; mPT = 0; mE = 0;
	IF(ok && MATCH(l, f) < p + with -> MATCH(l, f) = p + with; settle(l));
	p = 0; ok = 0; with = 0
}

// hasAll: f has all that a snapshot covers.
#define hasAll(f, i, t) (i > base[f] && i <= mem[f] -> T(AT(f, i)) == t : snapI[f] >= i)

inline install(f, t, i, st) {
	if
	:: t < term[f] -> skip
	:: else ->
		IF(t > term[f] -> begin(f, t));
		role[f] = FOLLOWER; got[f] = 0;
		if
#ifndef NO_NEEDLESS
		:: hasAll(f, i, T(st)) -> skip // store.go: hasAll
#endif
		:: else ->
			assert(i >= vis[f]); // the state does not go back
			written(f, mem[f]);
			snapI[f] = i; snapT[f] = st; vis[f] = i; told[f] = i;
			if
#ifdef NO_RECONCILE
			:: mem[f] < i -> skip
#endif
#ifdef NO_REPLACE_END
			:: mem[f] >= i && T(AT(f, i)) != T(st) -> base[f] = i - 1
#endif
			:: mem[f] < i || T(AT(f, i)) != T(st) -> // storage.go: reconcileLog; transport.go: replaceEnd
				only(f, i)
			:: else
			fi
		fi
	fi
}

inline stand(i) {
	voters(i);
	ok = mask >> i & 1; mask = 0; size = 0;
	IF(ok -> begin(i, term[i] + 1); role[i] = CANDIDATE; voteT[i] = term[i]; voteC[i] = i + 1; got[i] = 1 << i; ok = 0; elected(i))
}
#ifdef NO_COMPARISON
#define asNew(c, v) 1
#else
#define asNew(c, v) newer(c, v)
#endif
#define grants(c, v) (voteT[v] == term[c] && voteC[v] == c + 1 || voteT[v] != term[c] && asNew(c, v)) // raft: requestVote
#define asks(c, v) (role[c] == CANDIDATE && !(got[c] >> v & 1) && (term[v] < term[c] || term[v] == term[c] && grants(c, v)))
inline vote(c, v) {
	IF(term[v] < term[c] -> begin(v, term[c]));
	IF(grants(c, v) -> voteT[v] = term[c]; voteC[v] = c + 1; got[c] = got[c] | (1 << v); elected(c))
}

// snapshot: a snapshot of i's own state; if cut is set, the log is shortened, otherwise the process ends too soon, or keeps it.
inline snapshot(i, cut) {
	snapI[i] = vis[i];
	ALL(k > base[i] && k <= vis[i] && (AT(i, k) & LIST) -> snapT[i] = LIST);
	snapT[i] = T(AT(i, vis[i])) | (snapT[i] & LIST);
	if
	:: cut ->
		written(i, mem[i]); // asynclog.go: flush, in DeleteRange
#ifdef SHORT
		base[i] = snapI[i];
#else
		base[i] = snapI[i] - 1; // store.go: DeleteRange
#endif
		ALL(k <= base[i] -> AT(i, k) = 0)
	:: else
	fi
}

// catchUp: f gets the next thing from leader l.
inline catchUp(l, f) {
	place(l, f);
	if
	:: ok -> with = p < mem[l]; send(l, f)
	:: !ok && base[l] > 0 && !hasAll(f, snapI[l], T(snapT[l])) -> install(f, term[l], snapI[l], snapT[l])
	:: else
	fi;
	p = 0; ok = 0
}

// post has a message of a leader come later, and its answer never.
inline post(l, f) {
	place(l, f);
	IF(ok && p < mem[l] -> lates--; message(l, 1); lateT = mT; lateTo = f; lateP = p; latePT = mPT; lateE = mE; lateC = mC);
	mT = 0; mC = 0; mPT = 0; mE = 0; p = 0; ok = 0
}
inline come() {
	p = lateP; mT = lateT; mPT = latePT; mE = lateE; mC = lateC; b = lateTo;
	lateT = 0; lateTo = 0; lateP = 0; latePT = 0; lateE = 0; lateC = 0;
	receive(b);
	mT = 0; mC = 0; mPT = 0; mE = 0; b = 0; p = 0; ok = 0
}
inline comeSnapshot() {
	b = snapTo; mT = snapT_; p = snapAt; mPT = snapOf;
	snapT_ = 0; snapTo = 0; snapAt = 0; snapOf = 0;
	install(b, mT, p, mPT);
	mT = 0; mPT = 0; b = 0; p = 0
}

// finish: all is quiet from now on, and one member, x, is down for ever. Then one of those that have most is elected, and
// all get all. The program ends.
inline finish(x) {
	IF(x < N -> forget(x));
	q = N; for (b : 0 .. N - 1) { IF(UP(b) && (q == N || !newer(q, b)) -> q = b) }
	last = q; q = 0; voters(last);
	EACH((mask >> k & 1) && UP(k) -> n++);
	ok = (2 * n > size); n = 0; mask = 0; size = 0;
	if
	:: ok ->
		begin(last, TERMS); role[last] = CANDIDATE; voteT[last] = TERMS; voteC[last] = last + 1; got[last] = 1 << last;
		for (b : 0 .. N - 1) { IF(role[last] == CANDIDATE && b != last && UP(b) -> vote(last, b)) }
		assert(role[last] == LEADER);
		for (round : 0 .. 2 * L) { for (b : 0 .. N - 1) { IF(b != last && UP(b) -> catchUp(last, b)) } }
		for (b : 0 .. N - 1) { assert(!UP(b) || mem[b] == mem[last] && vis[b] == mem[last] && lastT(b) == lastT(last)) }
	:: else
	fi
}

init {
	d_step {
		for (n : 0 .. N - 1) {
			AT(n, 1) = 1; disk[n] = 1; mem[n] = 1; term[n] = 1; role[n] = FOLLOWER
		}
		n = 0
	}
	do
	:: atomic { // a member by itself
		if :: a = 0 :: a = 1 :: a = 2 fi;
		if
		:: d_step { role[a] != LEADER && term[a] < TERMS - 1 -> stand(a) }
		:: d_step { role[a] == LEADER && proposals > 0 -> proposals--; store(a, term[a], 1) }
		:: d_step { role[a] == LEADER && changes > 0 && T(AT(a, told[a])) == term[a] -> changes--; store(a, term[a] | LIST, 0) }
		:: d_step { disk[a] < mem[a] -> written(a, disk[a] + 1) }
		:: d_step { crashes > 0 -> crashes--; forget(a); role[a] = FOLLOWER }
		:: d_step { snapshots > 0 && vis[a] > snapI[a] -> snapshots--; snapshot(a, 1) }
		:: d_step { snapshots > 0 && vis[a] > snapI[a] -> snapshots--; snapshot(a, 0) }
		:: else
		fi;
		a = 0
	}
	:: atomic { // a sends b something, or asks for its vote
		if :: a = 0 :: a = 1 :: a = 2 fi;
		if :: a == 0 -> b = 1 :: a != 0 -> b = 0 :: a == 2 -> b = 1 :: a != 2 -> b = 2 fi;
		if
		:: d_step { asks(a, b) -> vote(a, b) }
#ifdef NO_ONE_WRITE
		:: d_step { asks(a, b) && crashes > 0 && voteT[b] != term[a] -> // a crash between the two writes
			crashes--; IF(term[b] < term[a] -> begin(b, term[a])); voteT[b] = term[a]; forget(b); role[b] = FOLLOWER }
#endif
		:: d_step { role[a] == LEADER && term[b] <= term[a] -> place(a, b); if :: ok && p < mem[a] -> with = 1; send(a, b) :: else -> p = 0; ok = 0 fi }
		:: d_step { role[a] == LEADER && (term[b] < term[a] || term[b] == term[a] && vis[b] < SAYS(a)) -> place(a, b); if :: ok -> send(a, b) :: else -> p = 0 fi }
		:: d_step { role[a] == LEADER && term[b] <= term[a] && base[a] > 0 -> place(a, b);
			IF(!ok && !hasAll(b, snapI[a], T(snapT[a])) -> install(b, term[a], snapI[a], snapT[a])); p = 0; ok = 0 }
		:: d_step { role[a] == LEADER && lates > 0 && lateT == 0 -> post(a, b) }
		:: d_step { role[a] == LEADER && lates > 0 && snapT_ == 0 && base[a] > 0 && snapI[a] > 0 -> lates--; snapT_ = term[a]; snapTo = b; snapAt = snapI[a]; snapOf = snapT[a] }
		:: else
		fi;
		a = 0; b = 0
	}
	:: d_step { lateT > 0 -> come() }
	:: d_step { snapT_ > 0 -> comeSnapshot() }
	:: atomic {
		if :: a = 0 :: a = 1 :: a = 2 :: a = 3 fi;
		d_step { finish(a) }
	}; break
	od
}
