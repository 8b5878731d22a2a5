//go:build interop

package interop

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// TestPipelinedReads sends many small requests with large replies in one write, as a
// client whose goroutines share a connection does. All replies must arrive in order,
// although they do not fit into any buffer.
func TestPipelinedReads(t *testing.T) {
	addr, base := endpoint(t)
	conn, err := dialRaw(addr, 20*time.Second, 0, rawSession{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const reads = 60
	path, data := base+"/large", bytes.Repeat([]byte("x"), 200<<10)
	if r, err := conn.call(createRequest(1, path, data, 0)); err != nil || r.code != 0 {
		t.Fatalf("create: code %d, %v", r.code, err)
	}
	var frames []byte
	for i := range reads {
		m := readRequest(int32(2+i), opGetData, path)
		frames = append(binary.BigEndian.AppendUint32(frames, uint32(len(m))), m...)
	}
	conn.SetDeadline(time.Now().Add(rawTimeout))
	if _, err := conn.Write(frames); err != nil {
		t.Fatal(err)
	}
	for i := range reads {
		r, err := conn.receive()
		if err != nil {
			t.Fatalf("after %d of %d answers: %v", i, reads, err)
		}
		if r.xid != int32(2+i) || r.code != 0 || !bytes.Equal(r.body.bytes(), data) {
			t.Fatalf("request %d is answered as request %d with code %d", 2+i, r.xid, r.code)
		}
	}
}
