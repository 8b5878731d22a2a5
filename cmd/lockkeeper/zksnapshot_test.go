package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/tools/zkdata"
	"github.com/lockkeeper/lockkeeper/proto"
)

// TestCommandSnapshot gets the state in ZooKeeper's format from a server.
func TestCommandSnapshot(t *testing.T) {
	t.Parallel()
	memory := []string{"serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	p := start(t, nil, append(memory, "--admin-write=snapshots")...).waitReady()
	c := p.connect()
	_, err := c.Create("/a", []byte("x"), 0)
	check1(t, err)
	_, err = c.Create("/a/lock-", []byte("y"), proto.FlagEphemeral|proto.FlagSequential)
	check1(t, err)
	get := func(url string) (int, http.Header, []byte) {
		t.Helper()
		reply, err := http.Get(url)
		check1(t, err)
		defer reply.Body.Close()
		body, err := io.ReadAll(reply.Body)
		check1(t, err)
		return reply.StatusCode, reply.Header, body
	}
	const none = "{\n  \"command\" : \"snapshot\",\n  \"error\" : null\n}"
	for _, name := range []string{"snapshot", "snap", "snapshot?streaming=true"} {
		status, header, body := get(p.admin() + "/commands/" + name)
		zxid, err := strconv.ParseInt(header.Get("last_zxid"), 0, 64)
		if status != http.StatusOK || err != nil || header.Get("snapshot_size") != strconv.Itoa(len(body)) || header.Get("Content-Type") != "application/octet-stream" {
			t.Fatalf("%s: %d %v, %d bytes, %v", name, status, header, len(body), err)
		}
		s, err := zkdata.ReadSnapshot(bytes.NewReader(body), zxid)
		check1(t, err)
		if n, wrong := s.Digests(); n != 1 || wrong != 0 || s.Len() != 6 || string(s.Get("/a").Data) != "x" || s.Sessions[c.Session.SessionID] == 0 {
			t.Errorf("%s: %d znodes, sessions %v, %d digests, wrong at %#x", name, s.Len(), s.Sessions, n, wrong)
		}
	}
	status, header, body := get(p.admin() + "/commands/snapshot?streaming=false")
	if status != http.StatusOK || header.Get("last_zxid") == "" || header.Get("Content-Type") != "application/json" || string(body) != none {
		t.Errorf("without streaming: %d %v %q", status, header, body)
	}

	// Nobody gets it who does not get the server's own snapshot.
	for _, flags := range [][]string{nil, {"--admin-write=locks"}, {"--admin-write", "--behave-as", "3.8"}} {
		p := start(t, nil, append(memory, flags...)...).waitReady()
		want := "{\n  \"command\" : \"snapshot\",\n  \"error\" : \"Unknown command: snapshot\"\n}"
		if status, _, body := get(p.admin() + "/commands/snapshot"); status != http.StatusOK || string(body) != want {
			t.Errorf("%q: %d %s", flags, status, body)
		}
	}
	r, err := http.NewRequest(http.MethodGet, p.admin()+"/commands/snapshot", nil)
	check1(t, err)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	reply, err := http.DefaultClient.Do(r)
	check1(t, err)
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusForbidden {
		t.Errorf("a page of another site: %s", reply.Status)
	}
}

// TestCommandSnapshotRefused asks a server that has a znode with which ZooKeeper does not start.
func TestCommandSnapshotRefused(t *testing.T) {
	t.Parallel()
	p := start(t, nil, "serve", "--memory", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-write=snapshots").waitReady()
	c := p.connect()
	_, err := c.Create("/zookeeper/quota/zookeeper_limits", nil, 0)
	check1(t, err)
	reply, err := http.Get(p.admin() + "/commands/snapshot")
	check1(t, err)
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	check1(t, err)
	want := fmt.Sprintf("{\n  \"command\" : \"snapshot\",\n  \"error\" : %q\n}", "ZooKeeper does not start with /zookeeper/quota/zookeeper_limits: it takes it for a quota on the root. Delete it first")
	if reply.StatusCode != http.StatusInternalServerError || string(body) != want {
		t.Errorf("%s %s", reply.Status, body)
	}
}
