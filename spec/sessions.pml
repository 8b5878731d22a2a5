// Sessions: who may rely on a session, and when it expires.
//
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=1 -DLOG=3 -DT=3 -DCRASHES=0
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3 -DT=6 -DCRASHES=0
// small: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=1 -DWRITES=1 -DLOG=4 -DT=3 -DCRASHES=0
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=1 -DWRITES=0 -DLOG=3 -DT=3 -DCRASHES=0
// large: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=1 -DWRITES=0 -DLOG=4 -DT=3 -DCRASHES=0
// large: -DMEMBERS=3 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3 -DCRASHES=1 -DT=3
// mutants: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3 -DT=3 -DCRASHES=0
// mutants: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=0 -DWRITES=1 -DLOG=3 -DT=6 -DCRASHES=0
// mutants: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=1 -DWRITES=1 -DLOG=4 -DT=3 -DCRASHES=0
// pan: -DSAFETY -DCOLLAPSE -DVECTORSZ=512 -DMEMLIM=6000
//
// One client has one session, which holds a lock: an ephemeral znode. Others get the lock as soon as anybody can see that the
// session has ended, so the client must not rely on it then. The model has the log of the commands on the session, what each
// member has applied of it, which connection owns the session, the client's requests, what the members report to the leader
// about them, the leader's deadline, and leaders that are replaced and learn of it late.
//
// Time passes in ticks, at any moment. Every other step happens at any time or never, so processes that are paused, messages
// that are delayed or lost, and slow disks need no steps of their own. For the same reason the model does not show that a
// session ends in time, or that a client ever gets an answer.
//
// It assumes that Raft works (see replication.pml): an entry that is in the log stays there, in the term of the leader that has
// put it there, and a term has one leader. It leaves out: other sessions; requests that arrive together; members whose
// states differ, while which nobody serves (lead); touches that are reported to the next leader once more, which keep
// sessions alive that no client relies on; and rounding to milliseconds and to ticks, which makes sessions live longer.
//
// Two promises need no guard here. Tokens grow, since they are positions in the log. A session's reads never go back, since the
// entry that resumes it comes after all that its client has seen, and is applied before the handshake is answered; that a
// handshake compares the client's zxid (server/handshake.go) matters only to servers in read-only mode.
//
// LOG is the number of entries at most, with the one that opens the session. T is the session's timeout; with 6, a member may
// answer for a while before the leader has heard.

#define B (T * 2 / 3)           // timing.Believed
// timing.Lease and timing.Unreported: the last third has to be longer than a replaced leader may answer.
#define SURE (WITHOUT_LONG_THIRD -> B : 1)
#define UNREPORTED (WITHOUT_LONG_THIRD -> 0 : T / 3 - 1)
// A write or sync counts only if it is answered within two thirds of the timeout.
#define LIFE (WITHOUT_SOON_ANSWERED -> T : B)
#define NEVER (LIFE + UNREPORTED) // an age; longer ones make no difference
#define NOBODY 7

#define IF(x) if :: x :: else fi
#define STEP(a) :: d_step { a }
#if MEMBERS == 2
#define EACH(a) STEP(a(0)) STEP(a(1))
#define EACHPAIR(a) STEP(a(0, 0)) STEP(a(0, 1)) STEP(a(1, 0)) STEP(a(1, 1))
#else
#define EACH(a) STEP(a(0)) STEP(a(1)) STEP(a(2))
#define EACHPAIR(a) STEP(a(0, 0)) STEP(a(0, 1)) STEP(a(0, 2)) STEP(a(1, 0)) STEP(a(1, 1)) STEP(a(1, 2)) \
	STEP(a(2, 0)) STEP(a(2, 1)) STEP(a(2, 2))
#endif

// The log, and what the state is after each number of entries.
byte length = 1;                // the first one has opened the session
bit alive[LOG + 1];             // the session exists
byte owner[LOG + 1];            // the connection that owns it
bit lock[LOG + 1];              // its ephemeral znode exists
byte proposer[LOG + 1];         // the member that has proposed the expiry in the entry, if it was refused
byte proposed[LOG + 1];         // the term in that

// Who leads.
byte term = 1;                  // the newest in which there is a leader
byte leader;                    // the leader of that
byte before = 1;                // how long the log was when it was elected
byte elections, resumes, writes, crashes;

// The members.
byte applied[MEMBERS];          // number of entries
byte seen = 1;                  // the most of them
byte begun[MEMBERS];            // term in which it leads, with all earlier entries applied; it may have been replaced
byte fresh[MEMBERS];            // for how long it is sure of that
byte deadline[MEMBERS];         // time until it finds the session late, if it leads
bit late[MEMBERS];              // it has found it late
byte expires[MEMBERS];          // the term in the expiry that is on its way to the log; 0: there is none
byte expiry[MEMBERS];           // the owner in it
byte confirmed[MEMBERS];        // age of the last touch that a leader has heard of
byte noted[MEMBERS];            // age of a touch that is being reported, or is to be

// The client.
byte member[RESUMES + 1];       // where its connections are
byte conn;                      // the newest one that it has
byte relies;                    // for how long it relies on the session
mtype = { READ, WRITE, SYNC };
mtype request;                  // 0: there is none
byte state;                     // 1: it was sent; 2: Touch has let it pass; 3: it is in the log, or the leader has answered
byte on;                        // its connection
byte sent;                      // its age
byte waits;                     // number of entries that have to be applied before the answer
bit done;                       // the write was not refused
byte resuming;                  // number of entries that have to be applied before a handshake is answered; 0: there is none
byte resumed;                   // its age
byte ghost = NOBODY;            // the connection of a write that its client no longer waits for
hidden byte i, ok;              // only within a step, and no part of the state

#define knows(m) (alive[applied[m]])
#define owns(c) (knows(member[c]) && owner[applied[member[c]]] == c)
#define serves(c) (owns(c) || NO_KILL) // server.observer.Changed ends a connection that has lost its session
#define surely(m) (begun[m] && (fresh[m] > 0 || NO_LEASE)) // pulse.holdsLease
#define raise(x, to) IF(x < to -> x = to)
#define lower(x, to) IF(x > to -> x = to)
#define older(x) IF(x < NEVER -> x++)
#define younger(x) IF(x > 0 -> x--)

// touch restarts the timeout on a member, by a request that is so old (session.Tracker.Touch).
inline touch(m, age) {
	IF(begun[m] && knows(m) && !late[m] && age < T -> raise(deadline[m], T - age))
}

// append adds an entry that leaves the state as it is.
inline append() {
	length++;
	alive[length] = alive[length - 1]; owner[length] = owner[length - 1]; lock[length] = lock[length - 1];
	proposer[length] = NOBODY
}

// write adds the write of a connection, which creates the lock (fsm/writes.go: do).
inline write(c) {
	append();
	ok = (alive[length] || NO_SESSION_CHECK) && (owner[length] == c || NO_OWNER_CHECK);
	IF(ok -> lock[length] = 1; assert(alive[length] && owner[length] == c))
}

// Time passes.
inline tick() {
	true;
	for (i : 0 .. MEMBERS - 1) {
		younger(fresh[i]); younger(deadline[i]); older(confirmed[i]); older(noted[i]);
		IF(WITHOUT_SAME_SPEED -> younger(deadline[i]))
	}
	IF(!WITHOUT_RUNNING_CLOCK -> younger(relies));
	if
	:: request && sent + 1 >= LIFE -> abandon() // its answer would mean nothing
	:: request && sent + 1 < LIFE -> sent++
	:: else
	fi;
	IF(resuming -> older(resumed))
}
inline drop() { request = 0; state = 0; on = 0; sent = 0; waits = 0; done = 0 }
inline abandon() { // nobody waits for the request any more, but a write may still come into the log
	IF(request == WRITE && state < 3 -> ghost = on);
	drop()
}

// The client sends a request, which arrives at once: if it was sent earlier, the client would rely on the session for less time.
inline send(kind) {
	request == 0 && member[conn] != NOBODY && (kind != WRITE || writes < WRITES && ghost == NOBODY) ->
	IF(kind == WRITE -> writes++);
	request = kind; on = conn; state = 1;
	touch(member[on], 0)
}
inline notes() { // Liveness.Touch: note
	request && state == 1 && sent == 0 && noted[member[on]] != 0 -> noted[member[on]] = 0
}

// A request may be carried out if the session lives as long as the client will rely on it (Liveness.Touch, session.Tracker.Safe).
inline passes() {
	state == 1 && !late[member[on]] && serves(on) &&
		(surely(member[on]) || confirmed[member[on]] <= sent + UNREPORTED || NO_SAFE) ->
	touch(member[on], sent);
	state = 2;
	IF(request == READ -> answer()) // later would make its client rely on the session until the same time
}

// A write comes to the leader, and into its log (serveForward, Proposer.deliver).
inline logged() {
	request == WRITE && state == 2 && length < LOG && leader != NOBODY ->
	IF(begun[leader] == term && !NO_HEARD_WRITE -> touch(leader, 0));
	write(on); done = ok; waits = length; state = 3
}
inline haunts() { // the write of a connection that is gone
	ghost != NOBODY && length < LOG && leader != NOBODY -> write(ghost); ghost = NOBODY
}

// A sync asks a leader how long the log is (Proposer.ask, Proposer.ReadIndex). A majority agrees that it still leads.
inline asks(m) {
	request == SYNC && state == 2 && begun[m] && (begun[m] == term || NO_ROUND) ->
	IF(!NO_HEARD_SYNC -> touch(m, 0));
	waits = (begun[m] == term -> length : applied[m]); done = 1; state = 3
}

inline answered() { state == 3 && applied[member[on]] >= waits && done && serves(on) -> answer() }
inline answer() {
	assert(owns(on));
	i = (request == READ && !WITHOUT_TWO_THIRDS -> B : T); // the holder stops believing then
	IF(sent < i -> raise(relies, i - sent); assert(alive[seen])); // no answer makes it rely on a session that has ended
	drop()
}

// The client resumes the session on another connection, or the handshake of another client with its password does.
inline reconnects(m) { // session.Table.Resume
	resuming == 0 && resumes < RESUMES && length < LOG && leader != NOBODY && (alive[length] || NO_RESUME_CHECK) ->
	resumes++; member[conn + 1] = m;
	append(); owner[length] = conn + 1; resuming = length;
	assert(alive[length])
}
inline attached() {
	resuming && applied[member[conn + 1]] >= resuming && owns(conn + 1) ->
	abandon();
	conn++;
	IF(resumed < B -> raise(relies, B - resumed));
	resuming = 0; resumed = 0
}

// A member reports a touch to whom it takes for the leader (sendTouches), which may be the member itself. The answer is
// as good at once as later.
inline hears(m, x) { // takeTouches, tell
	noted[m] != NEVER && begun[x] && (surely(x) || NO_LEASE_HEARD) ->
	touch(x, noted[m]);
	IF(m == x || knows(x) && !late[x] || NO_UNSURE -> // Liveness.Hear; otherwise it is reported again
		lower(confirmed[m], noted[m]); noted[m] = NEVER) // Liveness.Confirm
}

// A majority accepts the leader.
inline accepted(m) { leader == m && fresh[m] != SURE + 1 -> fresh[m] = SURE + 1 }

// Another member, or the same again, is elected. The old leader may not notice.
inline elected(m) {
	elections < ELECTIONS -> elections++;
	term++; leader = m; before = length;
	begun[m] = 0; fresh[m] = SURE + 1; deadline[m] = 0
}
inline begins(m) { // watchLeadership
	leader == m && begun[m] != term && (applied[m] >= before || NO_BARRIER) ->
	begun[m] = term;
	IF(!NO_RESTART -> late[m] = 0; deadline[m] = T)
}
inline resigns(m) { begun[m] && begun[m] != term -> begun[m] = 0; fresh[m] = 0; deadline[m] = 0 }

// A leader finds the session late, and proposes its expiry (lead). If it was replaced, the next leader gets it.
inline finds(m) {
	begun[m] && knows(m) && deadline[m] == 0 && !late[m] && expires[m] == 0 ->
	late[m] = 1; expiry[m] = owner[applied[m]]; expires[m] = begun[m]
}
inline expire(m) { // fsm/writes.go: do
	expires[m] && length < LOG && leader != NOBODY ->
	append();
	if
	:: alive[length] && (owner[length] == expiry[m] || NO_EXPIRY_OWNER) &&
			(expires[m] == term || NO_EXPIRY_TERM) ->
		alive[length] = 0;
		IF(!NO_EPHEMERALS_END -> lock[length] = 0); // fsm/machine.go: closeSession
		assert(!lock[length])
	:: else ->
		IF(alive[length] && owner[length] == expiry[m] || NO_SPARE_SAME -> // session.Tracker.Spare: not added again
			proposer[length] = m; proposed[length] = expires[m])
	fi;
	expiry[m] = 0; expires[m] = 0
}
// expiry.Lost: the session stays late, since the expiry may still come into the log.
inline loses(m) { NO_RETRY && expires[m] && late[m] -> late[m] = 0 }

// A member applies an entry. A refused expiry gives its session back if the tracker is the same: all timeouts have not begun
// anew (expiry.Done).
inline applies(m) {
	applied[m] < length ->
	applied[m]++;
	if
	:: owner[applied[m]] != owner[applied[m] - 1] -> late[m] = 0; IF(begun[m] -> deadline[m] = T) // Liveness.Add
	:: proposer[applied[m]] == m && (begun[m] == 0 || proposed[applied[m]] == begun[m] || NO_SPARE_TRACKER) ->
		late[m] = 0
	:: else
	fi;
	IF(applied[m] > seen ->
		seen = applied[m];
		assert(alive[seen] || !alive[seen - 1] || relies == 0)) // others may have the lock from now on
}

// A member is killed, and is back.
inline crash(m) {
	crashes < CRASHES -> crashes++;
	IF(leader == m -> leader = NOBODY);
	begun[m] = 0; fresh[m] = 0; late[m] = 0; deadline[m] = 0; confirmed[m] = NEVER; noted[m] = NEVER;
	IF(member[conn] == m -> abandon(); member[conn] = NOBODY);
	IF(resuming && member[conn + 1] == m -> conn++; resuming = 0; resumed = 0; member[conn] = NOBODY)
}

init {
	d_step {
		alive[1] = 1; proposer[1] = NOBODY;
		for (i : 0 .. MEMBERS - 1) { applied[i] = 1; confirmed[i] = NEVER; noted[i] = NEVER }
		begun[0] = 1; deadline[0] = T
	}
	if :: member[0] = 0 :: member[0] = 1 fi;
	do
	STEP(tick())
	STEP(send(READ)) STEP(send(WRITE)) STEP(send(SYNC)) STEP(notes()) STEP(passes()) STEP(answered())
	STEP(logged()) STEP(haunts()) EACH(asks)
	EACH(reconnects) STEP(attached())
	EACHPAIR(hears)
	EACH(accepted) EACH(elected) EACH(begins) EACH(resigns)
	EACH(finds) EACH(expire) EACH(loses)
	EACH(applies)
	EACH(crash)
	od
}
