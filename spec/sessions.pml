// Sessions: who may rely on a session, and when it expires.
//
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=1 -DLOG=3
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3 -DT=6
// small: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=1 -DWRITES=1 -DLOG=4
// small: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=1 -DWRITES=0 -DLOG=3
// large: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=1 -DWRITES=0 -DLOG=4
// large: -DMEMBERS=3 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3 -DCRASHES=1
// mutants: -DMEMBERS=2 -DELECTIONS=1 -DRESUMES=0 -DWRITES=0 -DLOG=3
// mutants: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=0 -DWRITES=1 -DLOG=3 -DT=6
// mutants: -DMEMBERS=2 -DELECTIONS=0 -DRESUMES=1 -DWRITES=1 -DLOG=4
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

#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LOG
#define LOG 5                   // entries at most, with the one that opens the session
#endif
#ifndef T
#define T 3                     // the session's timeout; with 6, a member may answer for a while before the leader has heard
#endif
#define B (T * 2 / 3)           // timing.Believed
#ifdef WITHOUT_LONG_THIRD       // the last third has to be longer than a replaced leader may answer
#define SURE (T * 2 / 3)
#define UNREPORTED 0
#else
#define SURE 1                  // timing.Sure
#define UNREPORTED (T / 3 - SURE) // timing.Unreported
#endif
#ifdef WITHOUT_SOON_ANSWERED    // a write or sync counts only if it is answered within two thirds of the timeout
#define LIFE T
#else
#define LIFE B
#endif
#define NEVER (LIFE + UNREPORTED) // an age; longer ones make no difference
#define NOBODY 7

#if MEMBERS == 2
#define EACH(a) :: a(0) :: a(1)
#define EACHPAIR(a) :: a(0, 0) :: a(0, 1) :: a(1, 0) :: a(1, 1)
#else
#define EACH(a) :: a(0) :: a(1) :: a(2)
#define EACHPAIR(a) :: a(0, 0) :: a(0, 1) :: a(0, 2) :: a(1, 0) :: a(1, 1) :: a(1, 2) :: a(2, 0) :: a(2, 1) :: a(2, 2)
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
bit expiring[MEMBERS];          // and the expiry is on its way to the log
byte expiry[MEMBERS];           // the owner in it
byte expires[MEMBERS];          // the term in it
byte confirmed[MEMBERS];        // age of the last touch that a leader has heard of
byte noted[MEMBERS];            // age of a touch that is being reported, or is to be

// The client.
byte member[RESUMES + 1];       // where its connections are
byte conn;                      // the newest one that it has
byte relies;                    // for how long it relies on the session
byte request;                   // 0: none; READ, WRITE or SYNC
#define READ 1
#define WRITE 2
#define SYNC 3
byte state;                     // 1: it was sent; 2: Touch has let it pass; 3: it is in the log, or the leader has answered
byte on;                        // its connection
byte sent;                      // its age
byte waits;                     // number of entries that have to be applied before the answer
bit done;                       // the write was not refused
byte resuming;                  // number of entries that have to be applied before a handshake is answered; 0: there is none
byte resumed;                   // its age
byte ghost = NOBODY;            // the connection of a write that its client no longer waits for

byte i;

#define knows(m) (alive[applied[m]])
#ifdef NO_LEASE
#define surely(m) (begun[m] != 0)
#else
#define surely(m) (begun[m] != 0 && fresh[m] > 0) // lease.surelyLeads
#endif

inline raise(x, to) { if :: x < (to) -> x = to :: else fi }
inline lower(x, to) { if :: x > (to) -> x = to :: else fi }

// touch restarts the timeout on a member, by a request that is so old (session.Tracker.Touch).
inline touch(m, age) {
	if
	:: begun[m] && knows(m) && !late[m] && (age) < T -> raise(deadline[m], T - (age))
	:: else
	fi
}

// append adds an entry that leaves the state as it is.
inline append() {
	length++;
	alive[length] = alive[length - 1]; owner[length] = owner[length - 1]; lock[length] = lock[length - 1];
	proposer[length] = NOBODY
}

// write adds the write of a connection, which creates the lock (fsm/writes.go: do).
inline write(c, ok) {
	append();
	ok = 1;
#ifndef NO_SESSION_CHECK
	if :: !alive[length] -> ok = 0 :: else fi;
#endif
#ifndef NO_OWNER_CHECK
	if :: owner[length] != c -> ok = 0 :: else fi;
#endif
	if :: ok -> lock[length] = 1; assert(alive[length] && owner[length] == c) :: else fi
}

// end adds the end of the session, which deletes its ephemerals (fsm/machine.go: closeSession).
inline end() {
	alive[length] = 0;
#ifndef NO_EPHEMERALS_END
	lock[length] = 0;
#endif
	assert(!lock[length])
}

// Time passes.
inline older(x) { if :: x < NEVER -> x++ :: else fi }
inline younger(x) { if :: x > 0 -> x-- :: else fi }
inline tick() {
	d_step {
		true;
		for (i : 0 .. MEMBERS - 1) {
			younger(fresh[i]); younger(deadline[i]); older(confirmed[i]);
#ifdef WITHOUT_SAME_SPEED
			younger(deadline[i]);
#endif
			older(noted[i])
		}
#ifndef WITHOUT_RUNNING_CLOCK
		younger(relies);
#endif
		if
		:: request && sent + 1 >= LIFE -> // its answer would mean nothing
			if :: request == WRITE && state < 3 -> ghost = on :: else fi;
			drop()
		:: request && sent + 1 < LIFE -> sent++
		:: else
		fi;
		if :: resuming -> older(resumed) :: else fi;
		i = 0
	}
}
inline drop() { request = 0; state = 0; on = 0; sent = 0; waits = 0; done = 0 }

// The client sends a request, which arrives at once: if it was sent earlier, the client would rely on the session for less time.
inline send(kind) {
	d_step {
		request == 0 && member[conn] != NOBODY && (kind != WRITE || writes < WRITES && ghost == NOBODY) ->
		if :: kind == WRITE -> writes++ :: else fi;
		request = kind; on = conn; state = 1;
		touch(member[on], 0)
	}
}
inline notes() { // liveness.touch: note
	d_step { request && state == 1 && sent == 0 && noted[member[on]] != 0 -> noted[member[on]] = 0 }
}

// A request may be carried out if the session lives as long as the client will rely on it (liveness.touch).
inline passes() {
	d_step {
		state == 1 && !late[member[on]] &&
#ifndef NO_KILL // server.observer.Changed ends a connection that has lost its session
			knows(member[on]) && owner[applied[member[on]]] == on &&
#endif
#ifndef NO_SAFE // session.Tracker.Safe
			(surely(member[on]) || confirmed[member[on]] <= sent + UNREPORTED) &&
#endif
			true ->
		touch(member[on], sent);
		if
		:: request == READ -> answer() // later would make its client rely on the session until the same time
		:: else -> state = 2
		fi
	}
}

// A write comes to the leader, and into its log (serveForward, proposer.deliver).
inline logged() {
	d_step {
		request == WRITE && state == 2 && length < LOG && leader != NOBODY ->
#ifndef NO_HEARD_WRITE
		if :: begun[leader] == term -> touch(leader, 0) :: else fi;
#endif
		write(on, done); waits = length; state = 3
	}
}
inline haunts() { // the write of a connection that is gone
	d_step { ghost != NOBODY && length < LOG && leader != NOBODY -> write(ghost, i); i = 0; ghost = NOBODY }
}

// A sync asks a leader how long the log is (proposer.ask, readIndex.get).
inline asks(m) {
	d_step {
		request == SYNC && state == 2 && begun[m] &&
#ifndef NO_ROUND // a majority agrees that it still leads
			begun[m] == term &&
#endif
			true ->
#ifndef NO_HEARD_SYNC
		touch(m, 0);
#endif
		if :: begun[m] == term -> waits = length :: else -> waits = applied[m] fi;
		done = 1; state = 3
	}
}

// The client is answered.
inline answered() {
	d_step {
		state == 3 && applied[member[on]] >= waits && done &&
#ifndef NO_KILL
			knows(member[on]) && owner[applied[member[on]]] == on &&
#endif
			true -> answer()
	}
}
inline answer() {
	assert(knows(member[on]) && owner[applied[member[on]]] == on);
	if
#ifndef WITHOUT_TWO_THIRDS // the holder stops believing then
	:: request == READ && sent >= B // it means nothing
	:: request == READ && sent < B -> raise(relies, B - sent); assert(alive[seen])
#endif
	:: else -> raise(relies, T - sent); assert(alive[seen]) // no answer makes it rely on a session that has ended
	fi;
	drop()
}

// The client resumes the session on another connection, or the handshake of another client with its password does.
inline reconnects(m) {
	d_step {
		resuming == 0 && resumes < RESUMES && length < LOG && leader != NOBODY &&
#ifndef NO_RESUME_CHECK // session.Table.Resume
			alive[length] &&
#endif
			true ->
		resumes++; member[conn + 1] = m;
		append(); owner[length] = conn + 1; resuming = length;
		assert(alive[length])
	}
}
inline attached() {
	d_step {
		resuming && applied[member[conn + 1]] >= resuming &&
			owner[applied[member[conn + 1]]] == conn + 1 && knows(member[conn + 1]) ->
		if :: request == WRITE && state < 3 -> ghost = on :: else fi;
		drop();
		conn++;
		if :: resumed < B -> raise(relies, B - resumed) :: else fi;
		resuming = 0; resumed = 0
	}
}

// A member reports a touch to whom it takes for the leader (sendTouches), which may be the member itself. The answer is
// as good at once as later.
inline hears(m, x) { // takeTouches, tell
	d_step {
		noted[m] != NEVER && begun[x] &&
#ifndef NO_LEASE_HEARD
			surely(x) &&
#endif
			true ->
		touch(x, noted[m]);
		if
#ifndef NO_UNSURE // liveness.hear
		:: (!knows(x) || late[x]) && m != x // it is reported again
#endif
		:: else -> lower(confirmed[m], noted[m]); noted[m] = NEVER // liveness.confirm
		fi
	}
}

// A majority accepts the leader.
inline accepted(m) { d_step { leader == m && fresh[m] != SURE + 1 -> fresh[m] = SURE + 1 } }

// Another member, or the same again, is elected. The old leader may not notice.
inline elected(m) {
	d_step {
		elections < ELECTIONS -> elections++;
		term++; leader = m; before = length;
		begun[m] = 0; fresh[m] = SURE + 1; deadline[m] = 0
	}
}
inline begins(m) { // watchLeadership
	d_step {
		leader == m && begun[m] != term &&
#ifndef NO_BARRIER
			applied[m] >= before &&
#endif
			true -> begun[m] = term;
#ifndef NO_RESTART
		late[m] = 0; deadline[m] = T
#endif
	}
}
inline resigns(m) { d_step { begun[m] && begun[m] != term -> begun[m] = 0; fresh[m] = 0; deadline[m] = 0 } }

// A leader finds the session late, and proposes its expiry (lead). If it was replaced, the next leader gets it.
inline finds(m) {
	d_step {
		begun[m] && knows(m) && deadline[m] == 0 && !late[m] && !expiring[m] ->
		late[m] = 1; expiring[m] = 1; expiry[m] = owner[applied[m]]; expires[m] = begun[m]
	}
}
inline expire(m) { // fsm/writes.go: do
	d_step {
		expiring[m] && length < LOG && leader != NOBODY ->
		append();
		if
		:: alive[length] &&
#ifndef NO_EXPIRY_OWNER
			owner[length] == expiry[m] &&
#endif
#ifndef NO_EXPIRY_TERM
			expires[m] == term &&
#endif
			true -> end()
#ifndef NO_SPARE_SAME // session.Tracker.Spare: the session has not been added again
		:: else -> if :: alive[length] && owner[length] == expiry[m] -> proposer[length] = m; proposed[length] = expires[m] :: else fi
#else
		:: else -> proposer[length] = m; proposed[length] = expires[m]
#endif
		fi;
		expiring[m] = 0; expiry[m] = 0; expires[m] = 0
	}
}
#ifdef NO_RETRY // expiry.Lost: the session stays late, since the expiry may still come into the log
inline loses(m) { d_step { expiring[m] && late[m] -> late[m] = 0 } }
#endif

// A member applies an entry.
inline applies(m) {
	d_step {
		applied[m] < length ->
		applied[m]++;
		if
		:: owner[applied[m]] != owner[applied[m] - 1] -> late[m] = 0; if :: begun[m] -> deadline[m] = T :: else fi // liveness.add
		:: proposer[applied[m]] == m &&
#ifndef NO_SPARE_TRACKER // the tracker is the same: all timeouts have not begun anew (expiry.Done)
			(begun[m] == 0 || proposed[applied[m]] == begun[m]) &&
#endif
			true -> late[m] = 0
		:: else
		fi;
		if
		:: applied[m] > seen ->
			seen = applied[m];
			// Others may have the lock from now on.
			assert(alive[seen] || !alive[seen - 1] || relies == 0)
		:: else
		fi
	}
}

// A member is killed, and is back.
inline crash(m) {
	d_step {
		crashes < CRASHES -> crashes++;
		if :: leader == m -> leader = NOBODY :: else fi;
		begun[m] = 0; fresh[m] = 0; late[m] = 0; deadline[m] = 0; confirmed[m] = NEVER; noted[m] = NEVER;
		if :: member[conn] == m && request -> if :: request == WRITE && state < 3 -> ghost = on :: else fi; drop() :: else fi;
		if :: member[conn] == m -> member[conn] = NOBODY :: else fi;
		if :: resuming && member[conn + 1] == m -> conn++; resuming = 0; resumed = 0; member[conn] = NOBODY :: else fi
	}
}

init {
	d_step {
		alive[1] = 1; proposer[1] = NOBODY;
		for (i : 0 .. MEMBERS - 1) {
			applied[i] = 1; confirmed[i] = NEVER; noted[i] = NEVER
		}
		begun[0] = 1; deadline[0] = T;
		i = 0
	}
	if :: member[0] = 0 :: member[0] = 1 fi;
	do
	:: tick()
	:: send(READ)
	:: send(WRITE)
	:: send(SYNC)
	:: notes()
	:: passes()
	:: logged()
	:: haunts()
	EACH(asks)
	:: answered()
	EACH(reconnects)
	:: attached()
	EACHPAIR(hears)
	EACH(accepted)
	EACH(elected)
	EACH(begins)
	EACH(resigns)
	EACH(finds)
	EACH(expire)
#ifdef NO_RETRY
	EACH(loses)
#endif
	EACH(applies)
	EACH(crash)
	od
}
