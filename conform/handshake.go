package conform

import (
	"bytes"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
)

var handshakeChecks = []Check{
	{
		Name: "handshake/new session",
		Says: "A ConnectRequest with session id 0 is answered with a fresh id that is not 0, protocol version 0 and a password of 16 bytes.",
		In:   ">=3.0",
		run: func(t *trial) {
			k := t.dial()
			r := k.handshake(newSession(30 * time.Second))
			t.ensure(r.SessionID != 0, "the session's id is 0")
			t.equal("protocol version", r.ProtocolVersion, int32(0))
			t.equal("the password's length", len(r.Password), proto.PasswordLen)
			t.ensure(!bytes.Equal(r.Password, make([]byte, proto.PasswordLen)), "the password is all zeros")
			t.equal("readOnly", r.ReadOnly, false)
		},
	},
	{
		Name: "handshake/readOnly byte",
		Says: "The reply has the readOnly byte, 37 bytes in all, if the request had it.",
		In:   ">=3.4",
		run: func(t *trial) {
			k := t.dial()
			k.sendFrame(newSession(30 * time.Second).Append(nil))
			t.equal("the reply's length", len(k.next().Payload), 37)
		},
	},
	{
		Name: "handshake/no readOnly byte",
		Says: "A request without the readOnly byte, as old clients send it, gets a reply without it, 36 bytes in all.",
		In:   ">=3.0",
		run: func(t *trial) {
			q := newSession(30 * time.Second)
			q.HasReadOnly = false
			k := t.dial()
			k.sendFrame(q.Append(nil))
			f := k.next()
			t.equal("the reply's length", len(f.Payload), 36)
			k.Session = *f.Body.(*proto.ConnectReply)
			k.ping()
		},
	},
}
