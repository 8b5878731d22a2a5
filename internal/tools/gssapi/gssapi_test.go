package gssapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jcmturner/gokrb5/v8/crypto"
	gss "github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
	"github.com/lockkeeper/lockkeeper/internal/tools/gssapi/gssapitest"
)

const (
	testRealm  = "EXAMPLE.COM"
	testServer = "zookeeper/h.example.com"
)

// keys returns a keytab of principals, whose keys all come from one password.
func keys(t testing.TB, kind int32, principals ...string) *keytab.Keytab {
	t.Helper()
	return version(t, 1, "password", kind, principals...)
}

// version returns a keytab with one version of the keys of principals.
func version(t testing.TB, number uint8, password string, kind int32, principals ...string) *keytab.Keytab {
	t.Helper()
	k := keytab.New()
	for _, name := range principals {
		testkit.Check(t, k.AddEntry(name, testRealm, password, time.Now(), number, kind))
	}
	return k
}

// textOf returns what is in the file of a keytab.
func textOf(t testing.TB, k *keytab.Keytab) []byte {
	t.Helper()
	return testkit.Must(k.Marshal())(t)
}

func newMechanism(t testing.TB, c Config) *Mechanism {
	t.Helper()
	both := keys(t, etypeID.AES256_CTS_HMAC_SHA1_96, testServer)
	both.Entries = append(both.Entries, keys(t, etypeID.RC4_HMAC, testServer).Entries...)
	c.Principal = testServer + "@" + testRealm
	return testkit.Must(New(c, textOf(t, both)))(t)
}

// client is a client whose mistakes in the test itself end the test.
type client struct{ *gssapitest.Client }

func newClient(t testing.TB, name string) client {
	return client{gssapitest.New(name, testServer, testRealm, keys(t, etypeID.AES256_CTS_HMAC_SHA1_96, testServer, "zookeeper/other"))}
}

func (c client) first(t testing.TB) []byte {
	t.Helper()
	return testkit.Must(c.First())(t)
}

func (c client) choice(t testing.TB, offer []byte, payload string, flags byte) []byte {
	t.Helper()
	return testkit.Must(c.Choice(offer, payload, flags))(t)
}

const none = gssapitest.NoLayer

// rotated returns a wrap token with its body rotated to the right, as other systems send it.
func rotated(token []byte, n int) []byte {
	body := token[gss.HdrLen:]
	cut := len(body) - n
	r := bytes.Join([][]byte{token[:gss.HdrLen], body[cut:], body[:cut]}, nil)
	binary.BigEndian.PutUint16(r[6:], uint16(n))
	return r
}

// TestExchange: clients authenticate, with and without a proof of the server, with each key.
func TestExchange(t *testing.T) {
	for _, kind := range []int32{etypeID.AES128_CTS_HMAC_SHA1_96, etypeID.AES256_CTS_HMAC_SHA1_96, etypeID.AES128_CTS_HMAC_SHA256_128, etypeID.AES256_CTS_HMAC_SHA384_192} {
		for _, mutual := range []bool{false, true} {
			for _, withSubkey := range []bool{false, true} {
				m := newMechanism(t, Config{})
				c := newClient(t, "bob")
				c.Mutual, c.NoSubkey, c.SessionKind = mutual, !withSubkey, kind
				e := m.Begin()
				answer := testkit.Must(e.Step(c.first(t)))(t)
				flags := byte(0)
				if mutual {
					if withKey, err := c.Proof(answer); err != nil || !withKey {
						t.Fatalf("a key: %v, %v", withKey, err)
					}
					flags = acceptorSubkey
					answer = testkit.Must(e.Step(nil))(t)
				}
				if payload := answer[gss.HdrLen : gss.HdrLen+4]; string(payload) != none {
					t.Errorf("the server offers %x", payload)
				}
				choice := c.choice(t, answer, none+"somebody@else", flags)
				if withSubkey {
					choice = rotated(choice, 5)
				}
				if user, ok := e.User(); ok {
					t.Errorf("%q has authenticated with a ticket alone", user)
				}
				if answer, err := e.Step(choice); answer != nil || err != nil {
					t.Errorf("%x, %v", answer, err)
				}
				if user, ok := e.User(); user != "bob@"+testRealm || !ok {
					t.Errorf("user %q, %v", user, ok)
				}
				if _, err := e.Step(choice); err == nil {
					t.Error("the client may authenticate again")
				}
				if user, ok := e.User(); user != "bob@"+testRealm || !ok {
					t.Errorf("afterwards: user %q, %v", user, ok)
				}
			}
		}
	}
}

// TestRefused: the first token of who is not to be believed does not lead to an offer.
func TestRefused(t *testing.T) {
	for name, x := range map[string]struct {
		says   string
		change func(client)
	}{
		"another server's ticket": {"not valid", func(c client) { c.Server = "zookeeper/other" }},
		"no server's name":        {"without a name", func(c client) { c.Replaced = func(q *messages.APReq) { q.Ticket.SName.NameString = nil } }},
		"an old ticket":           {"expired", func(c client) { c.Start, c.End = -time.Hour, -6*time.Minute }},
		"a ticket of the future":  {"not yet valid", func(c client) { c.Start = 6 * time.Minute }},
		"a clock that is behind":  {"the clock of the client", func(c client) { c.Clock = -6 * time.Minute }},
		"a clock that is ahead":   {"the clock of the client", func(c client) { c.Clock = 6 * time.Minute }},
		"another user's name": {"not that of the ticket", func(c client) {
			c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.CName.NameString = []string{"eve"} }
		}},
		"another realm":           {"not that of the ticket", func(c client) { c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.CRealm = "OTHER" } }},
		"a user of another realm": {"not of realm", func(c client) { c.Realm = "OTHER" }},
		"a name in three parts":   {"is not NAME@REALM", func(c client) { c.Name = "a/b/c" }},
		"a name with an @":        {"is not NAME@REALM", func(c client) { c.Name = "super@" + testRealm }},
		"no name":                 {"is not NAME@REALM", func(c client) { c.Name = "" }},
		"no host":                 {"is not NAME@REALM", func(c client) { c.Name = "svc/" }},
		"no flags": {"what the client wants", func(c client) {
			c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.Cksum.Checksum = a.Cksum.Checksum[:23] }
		}},
		"a weak key": {"encryption type 23", func(c client) { c.SessionKind = etypeID.RC4_HMAC }},
		"a weak subkey": {"encryption type 23", func(c client) {
			c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.SubKey.KeyType = etypeID.RC4_HMAC }
		}},
		"a short subkey": {"a key of 31 bytes", func(c client) {
			c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.SubKey.KeyValue = a.SubKey.KeyValue[1:] }
		}},
		"another version":                {"of Kerberos", func(c client) { c.Replaced = func(q *messages.APReq) { q.PVNO = 4 } }},
		"another version of the ticket":  {"of Kerberos", func(c client) { c.Change = func(tk *messages.Ticket, _ *types.Authenticator) { tk.TktVNO = 4 } }},
		"another version, authenticator": {"of Kerberos", func(c client) { c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.AVNO = 4 } }},
		"an invalid ticket":              {"not yet valid", func(c client) { c.Part = func(p *messages.EncTicketPart) { types.SetFlag(&p.Flags, 7) } }},
		"no time":                        {"µs", func(c client) { c.Change = func(_ *messages.Ticket, a *types.Authenticator) { a.Cusec = -1 } }},
		"a ticket that is too short":     {"malformed", func(c client) { c.Replaced = func(q *messages.APReq) { q.Ticket.EncPart.Cipher = []byte{1} } }},
		"a ticket that is not ours":      {"not valid", func(c client) { c.Replaced = func(q *messages.APReq) { q.Ticket.EncPart.Cipher[3] ^= 1 } }},
		"an authenticator of nobody":     {"not valid", func(c client) { c.Replaced = func(q *messages.APReq) { q.EncryptedAuthenticator.Cipher[3] ^= 1 } }},
		"no authenticator":               {"malformed", func(c client) { c.Replaced = func(q *messages.APReq) { q.EncryptedAuthenticator.Cipher = nil } }},
		"a ticket with an unknown type":  {"encryption type 99", func(c client) { c.Replaced = func(q *messages.APReq) { q.Ticket.EncPart.EType = 99 } }},
		"a ticket with a weak key":       {"a ticket with encryption type 23", func(c client) { c.Kind, c.Keys = etypeID.RC4_HMAC, keys(t, etypeID.RC4_HMAC, testServer) }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newMechanism(t, Config{}).Begin()
			c := newClient(t, "bob")
			x.change(c)
			answer, err := e.Step(c.first(t))
			if err == nil || !strings.Contains(err.Error(), x.says) || answer != nil {
				t.Errorf("%x, %v", answer, err)
			}
			if wantClosed := strings.Contains(x.says, "is not NAME@REALM") || name == "no flags" || name == "no server's name"; errors.Is(err, sasl.ErrUnanswered) != wantClosed {
				t.Errorf("%v: the connection is to be closed: %v", err, wantClosed)
			}
			if _, err := e.Step(newClient(t, "bob").first(t)); err == nil || !strings.Contains(err.Error(), "already failed") {
				t.Errorf("afterwards: %v", err)
			}
			if user, ok := e.User(); ok {
				t.Errorf("user %q", user)
			}
		})
	}
}

// TestVersions: which of several keys counts for a ticket, as in Java. A KDC and the keytab need not agree on versions.
func TestVersions(t *testing.T) {
	const kind = etypeID.AES256_CTS_HMAC_SHA1_96
	for _, x := range []struct {
		keytab    []uint8 // the versions in it, in their order
		key       uint8   // of the ticket
		said      int     // the version that the ticket names
		says      string  // why it is refused
		otherKind bool    // the keytab has a key of another kind first
	}{
		{keytab: []uint8{1, 2}, key: 1, said: 1},
		{keytab: []uint8{1, 2}, key: 2, said: 2},
		{keytab: []uint8{2, 1}, key: 2, said: 2},
		{keytab: []uint8{2}, key: 1, said: 1, says: "with encryption type 18 and version 1, is not in the keytab"},
		{keytab: []uint8{1, 2}, key: 3, said: 3, says: "version 3, is not in the keytab"},
		{keytab: []uint8{2}, key: 2, said: 7}, // the newest
		{keytab: []uint8{1, 2}, key: 2, said: 7},
		{keytab: []uint8{2, 1}, key: 2, said: 7},
		{keytab: []uint8{1, 2}, key: 1, said: 7, says: "version 7, is not in the keytab"},
		{keytab: []uint8{0}, key: 0, said: 3},
		{keytab: []uint8{2, 0}, key: 0, said: 3},
		{keytab: []uint8{2, 0}, key: 2, said: 2},
		{keytab: []uint8{1, 2}, key: 2},
		{keytab: []uint8{2, 1}, key: 2},
		{keytab: []uint8{2, 1}, key: 1, says: "is not in the keytab"},
		{keytab: []uint8{1}, key: 1, said: 1, otherKind: true},
	} {
		password := func(n uint8) string { return string(rune('a' + n)) }
		all := keytab.New()
		if x.otherKind {
			all = keys(t, etypeID.AES128_CTS_HMAC_SHA1_96, testServer)
		}
		for i, n := range x.keytab {
			one := version(t, n, password(n), kind, testServer)
			one.Entries[0].Timestamp = time.Now().Add(time.Duration(i) * time.Hour)
			all.Entries = append(all.Entries, one.Entries...)
		}
		m := testkit.Must(New(Config{Principal: testServer + "@" + testRealm}, textOf(t, all)))(t)
		c := client{gssapitest.New("bob", testServer, testRealm, version(t, x.key, password(x.key), kind, testServer))}
		c.Said = x.said
		_, err := m.Begin().Step(c.first(t))
		if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestAddresses: a ticket that its client has got for some addresses counts, as in Java.
func TestAddresses(t *testing.T) {
	c := newClient(t, "bob")
	c.Part = func(p *messages.EncTicketPart) { p.CAddr = types.HostAddressesFromNetIPs([]net.IP{{192, 0, 2, 1}}) }
	if _, err := newMechanism(t, Config{}).Begin().Step(c.first(t)); err != nil {
		t.Error(err)
	}
}

// TestChoice: only who has the key of the ticket can choose, and only what was offered.
func TestChoice(t *testing.T) {
	m := newMechanism(t, Config{})
	for name, x := range map[string]struct {
		payload string
		flags   byte
		change  func(token []byte) []byte
	}{
		"integrity":                   {"\x02\x00\xff\xff", 0, nil},
		"nothing":                     {"\x00\x00\x00\x00", 0, nil},
		"a short one":                 {"\x01\x00\x00", 0, nil},
		"from the server":             {none, byAcceptor, nil},
		"integrity, sealed":           {"\x02\x00\xff\xff", sealed, nil},
		"not encrypted":               {none, 0, func(token []byte) []byte { token[2] |= sealed; return token }},
		"changed, sealed":             {none, sealed, func(token []byte) []byte { token[len(token)-20] ^= 1; return token }},
		"with another header, sealed": {none, sealed, func(token []byte) []byte { token[15] ^= 1; return token }},
		"with a long filler, sealed":  {none, sealed, func(token []byte) []byte { token[5] = 30; return token }},
		"half, sealed":                {none, sealed, func(token []byte) []byte { return token[:gss.HdrLen+17] }},
		"a long checksum":             {none, 0, func(token []byte) []byte { token[5]++; return token }},
		"no checksum":                 {none, 0, func(token []byte) []byte { token[5] = 0; return token }},
		"a sign":                      {none, 0, func(token []byte) []byte { token[0] = 4; return token }}, // MIC tokens begin otherwise
		"empty":                       {none, 0, func([]byte) []byte { return nil }},
		"with another key":            {none, 0, func(token []byte) []byte { token[len(token)-1] ^= 1; return token }},
		"changed":                     {none + "ann", 0, func(token []byte) []byte { token[gss.HdrLen+4] = 'b'; return token }},
		"a header":                    {none, 0, func(token []byte) []byte { return token[:gss.HdrLen] }},
		"the offer":                   {},
	} {
		c := newClient(t, "bob")
		e := m.Begin()
		offer := testkit.Must(e.Step(c.first(t)))(t)
		choice := offer
		if x.payload != "" {
			choice = c.choice(t, offer, x.payload, x.flags)
		}
		if x.change != nil {
			choice = x.change(choice)
		}
		answer, err := e.Step(choice)
		if user, ok := e.User(); err == nil || answer != nil || ok {
			t.Errorf("%s: %x, %v, user %q", name, answer, err, user)
		}
		if _, err := e.Step(c.choice(t, offer, none, 0)); err == nil {
			t.Errorf("%s: the client may try again", name)
		}
	}
	c := newClient(t, "bob")
	c.Mutual = true
	e := m.Begin()
	testkit.Must(e.Step(c.first(t)))(t)
	if answer, err := e.Step([]byte("x")); err == nil || answer != nil {
		t.Errorf("a token in place of an empty one: %x, %v", answer, err)
	}
}

// TestForms: the forms that the client's last token can have, and in which Java accepts it.
func TestForms(t *testing.T) {
	m := newMechanism(t, Config{})
	for _, x := range []struct {
		name    string
		wants   byte // flags of the first token
		skip    uint64
		payload string
		flags   byte
		rotate  int
		says    string // why it is refused
		closed  bool   // and the connection is closed without an answer
	}{
		{name: "plain", payload: none},
		{name: "rotated", payload: none, rotate: 3},
		{name: "rotated by the checksum", payload: none, rotate: 12},
		{name: "encrypted", payload: none, flags: sealed},
		{name: "encrypted and rotated", payload: none + "eve", flags: sealed, rotate: 28},
		{name: "with the flag of another key", payload: none, flags: acceptorSubkey},
		{name: "more than one protection", payload: "\x07\x00\x00\x00"},
		{name: "whoever is not UTF-8", payload: none + "\xff"},
		{name: "a number", wants: gss.ContextFlagSequence, payload: none},
		{name: "another number", wants: gss.ContextFlagSequence, skip: 1, payload: none, says: "has the number"},
		{name: "a former number", wants: gss.ContextFlagReplay, skip: 1<<64 - 1, payload: none, says: "has the number"},
		{name: "another number, encrypted", wants: gss.ContextFlagSequence, skip: 1, payload: none, flags: sealed, says: "has the number"},
		{name: "another number that does not count", skip: 1, payload: none},
		{name: "three bytes", payload: none[:3], says: "has 3 bytes", closed: true},
		{name: "one byte", payload: none[:1], says: "has 1 bytes", closed: true},
		{name: "one byte, and it is wrong", payload: "\x02", says: "not offered"},
		{name: "nothing, encrypted", flags: sealed, says: "chooses nothing", closed: true},
	} {
		c := newClient(t, "bob")
		c.Flags, c.Skip = x.wants, x.skip
		e := m.Begin()
		offer := testkit.Must(e.Step(c.first(t)))(t)
		token := c.choice(t, offer, x.payload, x.flags)
		if x.rotate > 0 {
			token = rotated(token, x.rotate)
		}
		_, err := e.Step(token)
		if user, ok := e.User(); ok != (x.says == "") || ok && user != "bob@"+testRealm {
			t.Errorf("%s: user %q, %v", x.name, user, err)
		}
		if x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says) || errors.Is(err, sasl.ErrUnanswered) != x.closed) {
			t.Errorf("%s: %v", x.name, err)
		}
	}
}

// TestFlags: what a first token says of what the client wants may have any length.
func TestFlags(t *testing.T) {
	const good = "\x10\x00\x00\x00" + "0123456789abcdef" + "\x00\x00\x00\x00"
	for _, x := range []struct {
		kind   int32
		sum    string
		ok     bool
		closed bool // without an answer
	}{
		{0x8003, good, true, false},
		{7, good, true, false},
		{0x8003, good + "more", true, false},
		{0, "", false, false},
		{0x8003, "", false, true},
		{0x8003, good[:3], false, true},
		{0x8003, good[:23], false, true},
		{0x8003, "\x11" + good[1:], false, false},
		{0x8003, "\x10\x01", false, false},
		{0x8003, "x", false, false},
	} {
		c := newClient(t, "bob")
		c.Change = func(_ *messages.Ticket, a *types.Authenticator) {
			a.Cksum = types.Checksum{CksumType: x.kind, Checksum: []byte(x.sum)}
			if x.kind == 0 {
				a.Cksum = types.Checksum{}
			}
		}
		if _, err := newMechanism(t, Config{}).Begin().Step(c.first(t)); (err == nil) != x.ok || errors.Is(err, sasl.ErrUnanswered) != x.closed {
			t.Errorf("%d, %q: %v", x.kind, x.sum, err)
		}
	}
}

// TestReplay: a token counts once, on whatever connection.
func TestReplay(t *testing.T) {
	m := newMechanism(t, Config{})
	token := newClient(t, "bob").first(t)
	testkit.Must(m.Begin().Step(token))(t)
	if _, err := m.Begin().Step(token); err == nil || !strings.Contains(err.Error(), "used before") {
		t.Errorf("%v", err)
	}
	if _, err := m.Begin().Step(newClient(t, "bob").first(t)); err != nil {
		t.Error(err)
	}
}

// TestReplayAfterRestart: a server that was started again does not remember tokens. Whoever has recorded what a client
// sent can authenticate with that, but not if the client wanted a proof of the server: then the key is a new one.
func TestReplayAfterRestart(t *testing.T) {
	for _, mutual := range []bool{false, true} {
		c := newClient(t, "bob")
		c.Mutual = mutual
		token, choice, flags := c.first(t), []byte(nil), byte(0)
		for _, run := range []string{"first", "second"} {
			e := newMechanism(t, Config{}).Begin()
			answer := testkit.Must(e.Step(token))(t)
			if mutual {
				if run == "first" {
					testkit.Must(c.Proof(answer))(t)
					flags = acceptorSubkey
				}
				answer = testkit.Must(e.Step(nil))(t)
			}
			if run == "first" {
				choice = c.choice(t, answer, none, flags)
			}
			_, err := e.Step(choice)
			if _, ok := e.User(); ok != (run == "first" || !mutual) {
				t.Errorf("mutual %v, %s run: authenticated %v, %v", mutual, run, ok, err)
			}
		}
	}
}

// TestRemembered: a token is remembered as long as its time may be right, and there are not too many.
func TestRemembered(t *testing.T) {
	now := time.Now().Truncate(time.Minute)
	add := func(r *replays, client, token string, made, after time.Duration) string {
		err := r.add(client, []byte(token), now.Add(made), now.Add(after))
		if err == nil {
			return ""
		}
		return err.Error()
	}
	r := newReplays()
	for _, x := range []struct {
		made, after time.Duration
		says        string
	}{
		{0, 0, ""}, {0, 0, "used before"}, {0, maxSkew, "used before"},
		{maxSkew, 0, ""}, {maxSkew, maxSkew, "used before"}, {maxSkew, 2 * maxSkew, "used before"},
		{-maxSkew, 0, ""}, {-maxSkew, 0, "used before"},
	} {
		r := newReplays()
		if x.says != "" {
			add(&r, "bob", "x", x.made, 0)
		}
		if says := add(&r, "bob", "x", x.made, x.after); x.says == "" && says != "" || !strings.Contains(says, x.says) {
			t.Errorf("made at %v, after %v: %q", x.made, x.after, says)
		}
	}
	for i := range time.Duration(60) {
		if says := add(&r, "bob", "x", i*time.Minute, i*time.Minute); says != "" {
			t.Errorf("after %d minutes: %s", i, says)
		}
		if most := maxSkew/time.Minute + 1; len(r.minutes) > int(most) {
			t.Errorf("after %d minutes, %d are remembered", i, len(r.minutes))
		}
	}
	r = newReplays()
	r.most, r.mostOfClient = 3, 2
	for _, x := range []struct {
		client, token string
		made, after   time.Duration
		says          string
	}{
		{"bob", "1", 0, 0, ""},
		{"bob", "2", time.Minute, 0, ""},
		{"bob", "3", 0, 0, "the client has sent 2 tokens"},
		{"bob", "2", time.Minute, 0, "used before"},
		{"ann", "4", 0, 0, ""},
		{"ann", "5", 0, 0, "clients have sent 3 tokens"},
		{"bob", "6", maxSkew + time.Minute, maxSkew + time.Minute, ""}, // the first ones do not count any more
		{"bob", "7", maxSkew + time.Minute, maxSkew + time.Minute, "the client has sent 2 tokens"},
		{"ann", "7", maxSkew + time.Minute, maxSkew + time.Minute, ""},
	} {
		if says := add(&r, x.client, x.token, x.made, x.after); x.says == "" && says != "" || !strings.Contains(says, x.says) {
			t.Errorf("%s of %s: %q, want %q", x.token, x.client, says, x.says)
		}
	}
}

// TestMemory: what is remembered of a client that makes tokens as fast as it can is limited, and short. Beyond
// the limit the connection ends without an answer, so that the client comes again.
func TestMemory(t *testing.T) {
	const most = 1 << 15
	r, now := newReplays(), time.Now()
	r.mostOfClient = most
	var err error
	used := testkit.Allocated(func() {
		for i := uint64(0); err == nil && i < 2*most; i++ {
			err = r.add("bob", binary.BigEndian.AppendUint64(nil, i), now, now)
		}
	})
	if !errors.Is(err, sasl.ErrUnanswered) || used > 256*most {
		t.Errorf("%v; %d bytes for each", err, used/most)
	}
}

// TestNoGoroutine: in virtual time, a token is remembered and forgotten, and nothing goes on behind it.
func TestNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMechanism(t, Config{})
		for range 3 {
			token := newClient(t, "bob").first(t)
			for i, says := range []string{"", "used before", "used before"} {
				if _, err := m.Begin().Step(token); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
					t.Errorf("%d: %v", i, err)
				}
				time.Sleep(maxSkew / 2)
			}
			time.Sleep(time.Minute)
			if _, err := m.Begin().Step(token); err == nil || !strings.Contains(err.Error(), "the clock of the client") {
				t.Errorf("later: %v", err)
			}
		}
		if len(m.replays.minutes) > 1 {
			t.Errorf("%d minutes are remembered", len(m.replays.minutes))
		}
	})
}

// TestIdentity: what clients are called, by the configuration.
func TestIdentity(t *testing.T) {
	for _, x := range []struct {
		config    Config
		bob, host string
	}{
		{Config{}, "bob@EXAMPLE.COM", "svc/h@EXAMPLE.COM"},
		{Config{RemoveHost: true}, "bob@EXAMPLE.COM", "svc@EXAMPLE.COM"},
		{Config{RemoveRealm: true}, "bob", "svc/h"},
		{Config{RemoveHost: true, RemoveRealm: true}, "bob", "svc"},
	} {
		m := newMechanism(t, x.config)
		for want, name := range map[string][]string{x.bob: {"bob"}, x.host: {"svc", "h"}} {
			if got, err := m.now.Load().identity(name, testRealm); got != want || err != nil {
				t.Errorf("%v: %q, %v, want %q", x.config, got, err, want)
			}
		}
	}
}

// TestNew: a keytab that cannot be used is refused at once, without a word about what it contains.
func TestNew(t *testing.T) {
	good := textOf(t, keys(t, etypeID.AES256_CTS_HMAC_SHA1_96, testServer))
	short := keys(t, etypeID.AES256_CTS_HMAC_SHA1_96, testServer)
	short.Entries[0].Key.KeyValue = short.Entries[0].Key.KeyValue[1:]
	const principal = testServer + "@" + testRealm
	for _, x := range []struct {
		file            []byte
		principal, says string
	}{
		{good, testServer, "is not NAME/HOST@REALM"},
		{good, "zookeeper@" + testRealm, "is not NAME/HOST@REALM"},
		{good, "a/b/c@" + testRealm, "is not NAME/HOST@REALM"},
		{good, "zookeeper/other@" + testRealm, "FILE: it has no key of zookeeper/other@" + testRealm},
		{good, testServer + "@OTHER", "FILE: it has no key of"},
		{textOf(t, keys(t, etypeID.RC4_HMAC, testServer)), principal, "FILE: it has no key of"},
		{textOf(t, short), principal, "FILE: it has no key of"},
		{textOf(t, keytab.New()), principal, "FILE: it is not a keytab, or is damaged"},
		{good[:len(good)-9], principal, "FILE: it is not a keytab, or is damaged"},
		{nil, principal, "FILE: it is not a keytab, or is damaged"},
	} {
		if m, err := New(Config{Keytab: "FILE", Principal: x.principal}, x.file); err == nil || !strings.Contains(err.Error(), x.says) || m != nil {
			t.Errorf("%s, %s: %v", x.file, x.principal, err)
		}
	}
}

// TestSet: another keytab counts for tokens with tickets that come later, and what has been used before still
// counts once. A bad one changes nothing.
func TestSet(t *testing.T) {
	const kind = etypeID.AES256_CTS_HMAC_SHA1_96
	one, two := version(t, 1, "one", kind, testServer), version(t, 2, "two", kind, testServer)
	both := keytab.New()
	both.Entries = append(append(both.Entries, one.Entries...), two.Entries...)
	config := Config{Keytab: "FILE", Principal: testServer + "@" + testRealm}
	m := testkit.Must(New(config, textOf(t, one)))(t)
	with := func(k *keytab.Keytab, number int) client {
		c := client{gssapitest.New("bob", testServer, testRealm, k)}
		c.Said = number
		return c
	}
	begin := func(k *keytab.Keytab, number int) (client, *exchange, []byte, error) {
		c, e := with(k, number), m.Begin().(*exchange)
		offer, err := e.Step(c.first(t))
		return c, e, offer, err
	}
	used := with(one, 1).first(t)
	testkit.Must(m.Begin().Step(used))(t)
	half, e, offer, err := begin(one, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range []struct {
		file     []byte
		versions []uint32
		one, two bool // whether tickets with these keys count
	}{
		{nil, []uint32{1}, true, false},
		{textOf(t, both), []uint32{2, 1}, true, true},
		{textOf(t, keys(t, kind, "zookeeper/other")), []uint32{2, 1}, true, true},
		{textOf(t, two), []uint32{2}, false, true},
		{textOf(t, both), []uint32{2, 1}, true, true},
	} {
		err := m.Set(config, x.file)
		if bad := i == 0 || i == 2; (err != nil) != bad {
			t.Errorf("%d: %v", i, err)
		}
		if got := m.Versions(); !slices.Equal(got, x.versions) {
			t.Errorf("%d: versions %d", i, got)
		}
		_, _, _, errOne := begin(one, 1)
		_, _, _, errTwo := begin(two, 2)
		if (errOne == nil) != x.one || (errTwo == nil) != x.two {
			t.Errorf("%d: %v, %v", i, errOne, errTwo)
		}
		if _, err := m.Begin().Step(used); err == nil || x.one && !strings.Contains(err.Error(), "used before") {
			t.Errorf("%d: a used token: %v", i, err)
		}
	}
	if _, err := e.Step(half.choice(t, offer, none, 0)); err != nil {
		t.Errorf("who had sent its ticket before: %v", err)
	}
}

// FuzzToken: no token authenticates anybody without a ticket, and none stops the server.
func FuzzToken(f *testing.F) {
	m := newMechanism(f, Config{})
	c := newClient(f, "bob")
	f.Add(c.first(f))
	c.Server = "zookeeper/other"
	f.Add(c.first(f))
	f.Add([]byte{0x60, 0})
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, token []byte) {
		e := m.Begin()
		for range 3 {
			_, _ = e.Step(token)
			if user, ok := e.User(); ok {
				t.Errorf("%x: user %q", token, user)
			}
		}
	})
}

// FuzzAuthenticator: whatever a client with a ticket puts into its authenticator, it is nobody else.
func FuzzAuthenticator(f *testing.F) {
	m := newMechanism(f, Config{})
	for _, change := range []func(*types.Authenticator){
		func(*types.Authenticator) {},
		func(a *types.Authenticator) { a.CName.NameString = []string{"super"} },
		func(a *types.Authenticator) {
			a.Cksum, a.SubKey, a.SeqNumber = types.Checksum{}, types.EncryptionKey{}, 0
		},
		func(a *types.Authenticator) { a.Cusec, a.SeqNumber = math.MinInt, math.MinInt64 },
	} {
		a, err := types.NewAuthenticator(testRealm, types.NewPrincipalName(1, "bob"))
		if err != nil {
			f.Fatal(err)
		}
		a.Cksum = types.Checksum{CksumType: 0x8003, Checksum: []byte("\x10\x00\x00\x000123456789abcdef\x02\x00\x00\x00")}
		a.SubKey = types.EncryptionKey{KeyType: etypeID.AES256_CTS_HMAC_SHA1_96, KeyValue: make([]byte, 32)}
		change(&a)
		text, err := a.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	k := keys(f, etypeID.AES256_CTS_HMAC_SHA1_96, testServer)
	f.Fuzz(func(t *testing.T, text []byte) {
		clear(m.replays.minutes)
		var session types.EncryptionKey
		c := client{gssapitest.New("bob", testServer, testRealm, k)}
		c.Part = func(p *messages.EncTicketPart) { session = p.Key }
		c.Replaced = func(q *messages.APReq) {
			q.EncryptedAuthenticator = testkit.Must(crypto.GetEncryptedData(text, session, keyusage.AP_REQ_AUTHENTICATOR, 0))(t)
		}
		e := m.Begin().(*exchange)
		_, _ = e.Step(c.first(t))
		if e.user != "" && e.user != "bob@"+testRealm {
			t.Errorf("user %q", e.user)
		}
		_, _ = e.Step(nil)
		if user, ok := e.User(); ok {
			t.Errorf("user %q has authenticated", user)
		}
	})
}

// FuzzChoice: no last token stops the server, and one that is accepted has the choice that was offered.
func FuzzChoice(f *testing.F) {
	begin := func() (client, *exchange, []byte) {
		c := newClient(f, "bob")
		c.Flags = gss.ContextFlagSequence
		e := newMechanism(f, Config{}).Begin().(*exchange)
		offer, err := e.Step(c.first(f))
		if err != nil {
			f.Fatal(err)
		}
		return c, e, offer
	}
	c, e, offer := begin()
	for _, payload := range []string{none, none + "bob", "\x02\x00\x00\x00", "\x01", ""} {
		for _, flags := range []byte{0, sealed, acceptorSubkey} {
			token := c.choice(f, offer, payload, flags)
			f.Add(token)
			f.Add(rotated(token, 7))
			f.Add(token[:len(token)-1])
		}
	}
	f.Fuzz(func(t *testing.T, token []byte) {
		own := *e
		was := bytes.Clone(token)
		_, err := own.Step(token)
		user, ok := own.User()
		if ok != (err == nil) || ok && (user != "bob@"+testRealm || token[0] != 5 || token[1] != 4 || token[2]&byAcceptor != 0) {
			t.Errorf("%x: user %q, %v, %v", token, user, ok, err)
		}
		if !bytes.Equal(token, was) {
			t.Errorf("%x was changed", was)
		}
	})
}

// FuzzKeytab: any file has keys, or one error in one line that shows none of it.
func FuzzKeytab(f *testing.F) {
	for _, k := range []*keytab.Keytab{keytab.New(), keys(f, etypeID.AES256_CTS_HMAC_SHA1_96, testServer), keys(f, etypeID.RC4_HMAC, testServer, "a/b")} {
		text, err := k.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(append(text, "\xff\xff\xff\xf0 a hole of 16   "...))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		const file = "FILE"
		m, err := New(Config{Keytab: file, Principal: testServer + "@" + testRealm}, text)
		if (m == nil) != (err != nil) || err != nil && err.Error() != file+": it is not a keytab, or is damaged" && err.Error() != file+": it has no key of "+testServer+"@"+testRealm+" for AES" {
			t.Errorf("%x: %v", text, err)
		}
	})
}
