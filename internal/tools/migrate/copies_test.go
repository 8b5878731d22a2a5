package migrate_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/zklog"
	"github.com/lockkeeper/lockkeeper/internal/tools/migrate"
	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/proto"
)

// account is a log in which a znode is created, gets a balance twice, and another one is deleted.
func account(n int) []byte {
	return zklog.File(200, []zkdata.Txn{
		{Op: proto.OpCreate, Zxid: 1, Path: "/balance", Data: []byte("10"), ACL: proto.OpenACL, ParentCversion: 1},
		{Op: proto.OpCreate, Zxid: 2, Path: "/gone", ACL: proto.OpenACL, ParentCversion: 2},
		{Op: proto.OpSetData, Zxid: 3, Path: "/balance", Data: []byte("20"), Version: 1},
		{Op: proto.OpDelete, Zxid: 4, Path: "/gone"},
		{Op: proto.OpSetData, Zxid: 5, Path: "/balance", Data: []byte("30"), Version: 2},
	}[:n]...)
}

// TestCopiesInTheDirectory: ZooKeeper reads log.1.bak as a log, and applies its transactions again. They must not be
// applied. A copy of what is there is left out; what may be more than a copy is refused.
func TestCopiesInTheDirectory(t *testing.T) {
	whole, early := account(5), account(2)
	zero := snapshot(t, 0)
	changed := bytes.Clone(whole)
	changed[40] ^= 1
	for _, x := range []struct {
		name    string
		files   map[string][]byte
		balance string // in the state that is read; empty for an error
		says    string // in the only note, or in the error; empty for no note
	}{
		{"an early copy", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.1.bak": early}, "30", "log.1.bak was left out: it is a copy of log.1, or of its beginning"},
		{"a complete copy", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.1.bak": whole}, "30", "log.1.bak was left out"},
		{"a copy that was cut", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.1.bak": whole[:100]}, "30", "log.1.bak was left out"},
		{"an empty one", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.1.bak": nil}, "30", "log.1.bak was left out"},
		{"another way to write the zxid", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.01": early}, "30", "log.01 was left out"},
		{"again in the log itself", map[string][]byte{"snapshot.0": zero, "log.1": append(bytes.TrimRight(whole, "\x00"), early[16:]...)}, "30", "2 transactions were in the logs a second time, and were left out"},
		{"a copy with more", map[string][]byte{"snapshot.0": zero, "log.1": account(3), "log.1.bak": whole}, "", "log.1.bak: ZooKeeper gives its files no such name"},
		{"a copy with something else", map[string][]byte{"snapshot.0": zero, "log.1": whole, "log.1.fixed": changed}, "", "log.1.fixed: ZooKeeper gives its files no such name"},
		{"a copy of what is not there", map[string][]byte{"snapshot.0": zero, "log.1.bak": whole}, "", "log.1.bak: ZooKeeper gives its files no such name"},
		{"a copy of what is not there, and no snapshot", map[string][]byte{"log.1.bak": whole}, "", "log.1.bak: ZooKeeper gives its files no such name"},
		{"a copy of a snapshot", map[string][]byte{"snapshot.0": zero, "snapshot.0.bak": zero, "log.1": whole}, "30", "snapshot.0.bak was left out"},
		{"a snapshot that was renamed", map[string][]byte{"snapshot.0": zero, "snapshot.9.bad": snapshot(t, 9), "log.1": whole}, "", "snapshot.9.bad: ZooKeeper gives its files no such name"},
		{"only such snapshots", map[string][]byte{"snapshot.0.bak": zero, "log.1": whole}, "", "snapshot.0.bak: ZooKeeper gives its files no such name"},
		{"compressed otherwise", map[string][]byte{"snapshot.0": zero, "snapshot.0.xz": []byte("?"), "log.1": whole}, "", "snapshot.0.xz: ZooKeeper gives its files no such name"},
	} {
		t.Run(x.name, func(t *testing.T) {
			s, f, err := migrate.Read(migrate.Source{Data: directory(t, x.files)})
			if x.balance == "" {
				if err == nil || !strings.Contains(err.Error(), x.says) {
					t.Fatalf("%v, should have %q", err, x.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := string(s.Get("/balance").Data); got != x.balance || s.Get("/gone") != nil || s.Zxid != 5 || f.Transactions != 5 {
				t.Errorf("balance %s, should be %s; gone: %v; %+v", got, x.balance, s.Get("/gone"), f)
			}
			if len(f.Notes) != 1 || !strings.Contains(f.Notes[0], x.says) {
				t.Errorf("notes %q, should be %q", f.Notes, x.says)
			}
		})
	}
}

// TestOverlap: ZooKeeper begins a log after the last transaction of the one before it. Logs that overlap are of several servers, or
// from before a truncation, and nobody can know which is right.
func TestOverlap(t *testing.T) {
	twice := zklog.File(100, append(creates(6, 8), creates(7, 9)...)...)
	for _, x := range []struct {
		name  string
		files map[string][]byte
		zxid  int64 // that is reached; 0 for an error
		says  string
	}{
		{"the later one has more", map[string][]byte{"snapshot.2": snapshot(t, 2), "log.3": log(3, 6), "log.5": log(5, 7)}, 0, "log.5: it begins at zxid 0x5, but "},
		{"the later one has less", map[string][]byte{"snapshot.2": snapshot(t, 2), "log.3": log(3, 9), "log.5": log(5, 7)}, 0, "log.5: it begins at zxid 0x5, but "},
		{"only the later one is needed", map[string][]byte{"snapshot.6": snapshot(t, 6), "log.1": log(1, 9), "log.5": log(5, 7)}, 0, "log.5 begins at zxid 0x5, but "},
		{"the first of three", map[string][]byte{"snapshot.6": snapshot(t, 6), "log.1": log(1, 9), "log.3": log(3, 4), "log.5": log(5, 7)}, 0, "log.1 goes on to zxid 0x9"},
		{"without a transaction in common", map[string][]byte{"snapshot.6": snapshot(t, 6), "log.1": log(1, 4), "log.5": log(5, 7)}, 7, ""},
		{"a file with another name is needed", map[string][]byte{"snapshot.6": snapshot(t, 6), "log.1.bak": log(1, 9), "log.5": log(5, 7)}, 0, "log.1.bak goes on to zxid 0x9"},
		{"a file with another name is not needed", map[string][]byte{"snapshot.6": snapshot(t, 6), "log.1.gz": []byte("?"), "snapshot.2.old": nil, "log.5": log(5, 7)}, 7, ""},
		{"a copy beside a log that began before the snapshot", map[string][]byte{"snapshot.3": snapshot(t, 3), "log.1": log(1, 9), "log.1.bak": log(1, 5)}, 9, "log.1.bak was left out"},
		{"in one log", map[string][]byte{"snapshot.5": snapshot(t, 5), "log.6": twice}, 9, "2 transactions were in the logs a second time, and were left out"},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, f, err := migrate.Read(migrate.Source{Data: directory(t, x.files)})
			if x.zxid == 0 {
				if err == nil || !strings.Contains(err.Error(), x.says) {
					t.Errorf("%+v, %v, should be %q", f, err, x.says)
				}
				return
			}
			if err != nil || f.Zxid != x.zxid || f.Znodes != int(x.zxid)+4 {
				t.Fatalf("%+v, %v", f, err)
			}
			if x.says == "" && len(f.Notes) > 0 || x.says != "" && (len(f.Notes) != 1 || !strings.Contains(f.Notes[0], x.says)) {
				t.Errorf("notes %q, should be %q", f.Notes, x.says)
			}
		})
	}
}

// TestCutCopy cuts the last log everywhere. ZooKeeper writes into zeros that it has allocated, so what ends without them
// may lack transactions, and is refused unless the caller accepts it.
func TestCutCopy(t *testing.T) {
	first, file := snapshot(t, 5), log(6, 9)
	end := len(file) - 100
	for cut := 0; cut < len(file); cut++ {
		dir := directory(t, map[string][]byte{"snapshot.5": first, "log.6": file[:cut]})
		_, f, err := migrate.Read(migrate.Source{Data: dir})
		switch {
		case cut >= end+12: // there is place for the next transaction
			if err != nil || f.Zxid != 9 || len(f.Notes) > 0 {
				t.Fatalf("cut at %d of %d: %+v, %v", cut, len(file), f, err)
			}
			continue
		case err == nil:
			t.Fatalf("cut at %d of %d is accepted: %+v", cut, len(file), f)
		case cut > 0 && cut < 16: // within the header
			continue
		case !strings.Contains(err.Error(), "without the zeros that ZooKeeper allocates") || !strings.Contains(err.Error(), "--without-padding"):
			t.Fatalf("cut at %d of %d: %v", cut, len(file), err)
		}
		_, f, err = migrate.Read(migrate.Source{Data: dir, WithoutPadding: true})
		if reached := cut >= 170; err != nil && reached || err == nil && (len(f.Notes) != 1 || !strings.Contains(f.Notes[0], "if it is an incomplete copy, transactions are missing")) {
			t.Fatalf("cut at %d of %d, accepted: %+v, %v", cut, len(file), f, err)
		}
	}
}

// TestLogsWithoutPadding: a log that ends without zeros lacks nothing if the next zxid follows in the next one, or if it was truncated and
// the snapshot was made right after that.
func TestLogsWithoutPadding(t *testing.T) {
	bare := func(from, to int64) []byte { return zklog.File(0, creates(from, to)...) }
	second := zklog.File(100, create(epoch(2, 1)))
	for _, x := range []struct {
		name  string
		files map[string][]byte
		says  string // in the error; empty for none
	}{
		{"the next zxid follows", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": bare(1, 4), "log.5": log(5, 6)}, ""},
		{"a new leader follows", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": bare(1, 4), "log.200000001": second}, "log.1 ends after zxid 0x4 and 0 bytes of the next transaction, without"},
		{"within a transaction, a new leader follows", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": bare(1, 4)[:300], "log.200000001": second}, "log.1 ends after zxid 0x"},
		{"truncated at the snapshot", map[string][]byte{"snapshot.4": snapshot(t, 4), "log.1": bare(1, 4)}, ""},
		{"truncated at the snapshot, a new leader follows", map[string][]byte{"snapshot.4": snapshot(t, 4), "log.1": bare(1, 4), "log.200000001": second}, ""},
		{"before an empty one", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": bare(1, 4), "log.5": nil}, "log.1 ends after zxid 0x4 and 0 bytes of the next transaction, without"},
		{"only a header", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": zklog.File(0)}, "log.1 ends after zxid 0x0 and 0 bytes"},
		{"only a header and zeros", map[string][]byte{"snapshot.0": snapshot(t, 0), "log.1": zklog.File(100)}, ""},
	} {
		_, f, err := migrate.Read(migrate.Source{Data: directory(t, x.files)})
		if x.says == "" && (err != nil || len(f.Notes) > 0) || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %+v, %v, should be %q", x.name, f, err, x.says)
		}
	}
}
