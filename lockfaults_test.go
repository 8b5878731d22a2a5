//go:build unix

package lockkeeper_test

// lockFaults are faults of package lock and of lock run. Each makes a holder believe in its
// lock for too long, or leaves a znode behind.
var lockFaults = []putBack{
	{"a holder counts from when the answer came", []edit{
		{"lock/keeper.go", "\t_, err := k.q.conn.Sync(k.q.path)\n", "\t_, err := k.q.conn.Sync(k.q.path)\n\tsent = time.Now()\n"},
	}, []finding{{"lock", "TestLateAnswers", "two believe in the lock"}, {"lock", "TestRandom -lock.seeds=400", "believes in it"}}},
	{"a holder believes until the server says that the session has expired", []edit{
		{"lock/keeper.go", "\tif left <= 0 {\n", "\tif left == 1<<62 {\n"},
	}, []finding{{"lock", "TestCutOff", "two believe in the lock"}, {"lock", "TestRandom -lock.seeds=400", "believes in it"}}},
	{"a znode whose create was not answered is forgotten", []edit{
		{"lock/keeper.go", "case transient(err), errors.Is(err, zk.ErrClosing):", "case transient(err) && len(at) > 1<<20:"},
	}, []finding{{"lock", "TestLostReplies", "it never gets the lock"}, {"lock", "TestRandom -lock.seeds=400", "left behind"}}},
}
