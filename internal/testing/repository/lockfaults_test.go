//go:build unix

package repository

// lockFaults are faults of package lock and of lock run. Each makes a holder believe in its
// lock for too long, or leaves a znode behind.
var lockFaults = []putBack{
	{"a holder counts from when the answer came", []edit{
		{"lock/keeper.go", "\t_, err := k.q.conn.Sync(k.q.path)\n", "\t_, err := k.q.conn.Sync(k.q.path)\n\tsent = time.Now()\n"},
	}, []finding{{"lock", "TestLateAnswers", "two believe in the lock"}, {"lock", "TestRandom -lock.seeds=400", "believes in it"}}},
	{"a holder believes until the server says that the session has expired", []edit{
		{"lock/keeper.go", "\tif left <= 0 {\n", "\tif left == 1<<62 {\n"},
	}, []finding{{"lock", "TestCutOff", "two believe in the lock"}, {"lock", "TestRandom -lock.seeds=400", "believes in it"}}},
	{"a holder counts with a session timeout that nobody has named or granted", []edit{
		{"lock/queue.go", "\tif q.timeout == 0 && q.dialer == nil {\n", "\tif q.timeout == 0 && q.dialer == nil {\n\t\tq.timeout = 4 * time.Second\n\t}\n\tif q.timeout < 0 {\n"},
	}, []finding{{"lock", "TestTimeoutUnknown", "got <nil>"}}},
	{"a holder counts with the session timeout that it was told, not with a shorter one that was granted", []edit{
		{"lock/options.go", "granted = min(granted, o.timeout)", "granted = o.timeout"},
	}, []finding{{"lock", "TestGrantedTimeout", "6.66"}}},
	{"a holder does not notice that a server grants less when the client reconnects", []edit{
		{"lock/dialer.go", "\t\tk.regranted()\n", "\t\t_ = k\n"},
	}, []finding{{"lock", "TestGrantedLess", "lost after 2.66"}}},
	{"a holder trusts a Dialer that is not its own", []edit{
		{"lock/dialer.go", "if g.session == session {", "if g.session != 0 {"},
	}, []finding{{"lock", "TestTimeoutUnknown", "got <nil>"}}},
	{"the watchdog of lock run counts from when it gets a message", []edit{
		{"internal/tools/procgroup/procgroup_unix.go", "until = time.Duration(n)", "until = Now() + time.Duration(n)"},
	}, []finding{{"internal/tools/procgroup", "TestWatchdogDeadlines", "the group goes on"}}},
	{"lock run does not follow a shorter session timeout", []edit{
		{"cmd/lockkeeper/lockrun.go", "return now + left + afterLoss(timeout), true", "return now + left + afterLoss(12*time.Second), true"},
	}, []finding{{"cmd/lockkeeper", "TestTrustLess", "with 3s: trusted until"}}},
	{"the watchdog of lock run learns only with the next message that a server grants less", []edit{
		{"cmd/lockkeeper/lockrun.go", "\tr.dialer.OnGrant = r.granted\n", ""},
	}, []finding{{"cmd/lockkeeper", "TestWatchdogToldLess", "told 1 times, not 2"}}},
	{"a lock of which nothing is left seems to be held at first", []edit{
		{"lock/keeper.go", "\tk.checkLocked() // the last answer", "\t// the last answer"},
	}, []finding{{"lock", "TestNothingLeft", "the lock seems to be held"}}},
	{"lock run does not notice that the machine was suspended", []edit{
		{"cmd/lockkeeper/lockrun.go", "if !woke.IsZero() && awake+left <=", "if woke.IsZero() && awake+left <="},
	}, []finding{{"cmd/lockkeeper", "TestTrustAfterSleep", "right after a sleep"}}},
	{"a znode whose create was not answered is forgotten", []edit{
		{"lock/keeper.go", "case transient(err), errors.Is(err, zk.ErrClosing):", "case transient(err) && len(at) > 1<<20:"},
	}, []finding{{"lock", "TestLostReplies", "it never gets the lock"}, {"lock", "TestRandom -lock.seeds=400", "left behind"}}},
	{"a waiter does not notice that its znode was gone before it watched another", []edit{
		{"lock/keeper.go", "\t\tif ours, err := k.ours(); !ours {\n\t\t\treturn nil, nil, err\n\t\t}\n", ""},
	}, []finding{{"lock", "TestExpiredBeforeWatch", "does not have 1 waiters"}}},
	{"a waiter takes a znode of an unknown session for one of its own", []edit{
		{"lock/keeper.go", "\tif k.session == 0 {\n\t\t_, stat", "\tif k.session == 0 {\n\t\tk.session = q.conn.SessionID()\n\t}\n\tif k.session == 0 {\n\t\t_, stat"},
	}, []finding{{"lock", "TestExpiredBeforeWatch", "does not have 1 waiters"}}},
}
