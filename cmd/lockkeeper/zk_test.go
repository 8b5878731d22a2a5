package main

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// TestZk checks that zk passes its flags and arguments on, and its exit codes back.
func TestZk(t *testing.T) {
	addr := lockkeepertest.Start(t, lockkeepertest.WithTCP()).Addr()
	for _, c := range []struct {
		args     string
		exit     int
		out, err string
	}{
		{"create /a x digest:user:hash:cdrwa", 0, "", "Created /a\n"},
		{"get -s /a", 1, "", "Insufficient permission : /a\n"},
		{"--json get /none", 1, `{"code":-101,"error":"Node does not exist: /none"}` + "\n", "Node does not exist: /none\n"},
		{"create /mine x auth::cdrwa", 1, "", "KeeperErrorCode = InvalidACL for /mine\nAcl is not valid : /mine\n"},
		{"--auth digest:user:secret create /mine x auth::cdrwa", 0, "", "Created /mine\n"},
		{"--auth digest:user:secret get /mine", 0, "x\n", ""},
		{"--auth digest get /mine", 2, "", "lockkeeper: --auth: \"digest\" is not SCHEME:AUTH\n"},
		{"ls -z /", 1, "", "Unrecognized option: -z\n"},
		{"--timeout 0s ls /", 2, "", "lockkeeper: --timeout: 0s is not between 1ms and 596h\n"},
	} {
		var out, errs strings.Builder
		exit := run(strings.Fields("zk --server "+addr+" "+c.args), func(string) string { return "" }, &out, &errs)
		if exit != c.exit || out.String() != c.out || errs.String() != c.err {
			t.Errorf("%s: exit code %d, %q and %q, not %d, %q and %q", c.args, exit, out.String(), errs.String(), c.exit, c.out, c.err)
		}
	}
}
