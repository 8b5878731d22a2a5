// Package gssapi is the server's side of SASL's mechanism GSSAPI (RFC 4752) with Kerberos 5, for
// clients that log in with a ticket, as ZooKeeper has it: no protection of what follows, and the
// identity is the client's principal.
//
// The library knows Kerberos' messages and ciphers. What it has for whole services is not used:
// its cache of authenticators looks and adds in two steps, takes the client's word for its realm
// and has a goroutine that nobody can stop. Its choice among the keys of a keytab is not Java's.
package gssapi

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	gss "github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/iana/msgtype"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/lockkeeper/lockkeeper/internal/core/sasl"
)

// maxSkew is how far a client's clock may be from the server's.
const maxSkew = 5 * time.Minute

// Config says who the server is, and what its clients are called.
type Config struct {
	Keytab    string // the name of the file with the keys of Principal, for errors
	Principal string // zookeeper/HOST@REALM
	// Whether a client's identity lacks the second part of its principal, /HOST, and its realm.
	RemoveHost, RemoveRealm bool
}

// Mechanism is the mechanism GSSAPI.
type Mechanism struct {
	now     atomic.Pointer[service]
	replays replays
}

// service is what the keytab and the configuration say. It does not change.
type service struct {
	realm  string
	keys   []key // of the server's principal, those with the highest version first
	config Config
}

type key struct {
	types.EncryptionKey
	version uint32 // 0 means that the keytab does not say
}

// New returns the mechanism with the keys in a keytab. Its errors name the file or the principal.
func New(c Config, keytab []byte) (*Mechanism, error) {
	m := &Mechanism{replays: newReplays()}
	if err := m.Set(c, keytab); err != nil {
		return nil, err
	}
	return m, nil
}

// Set has another keytab and configuration count, for all clients who have not sent their ticket yet. After an
// error nothing has changed.
func (m *Mechanism) Set(c Config, file []byte) error {
	name, realm, ok := strings.Cut(c.Principal, "@")
	name, host, two := strings.Cut(name, "/")
	if !ok || !two || name == "" || host == "" || realm == "" || strings.ContainsAny(host+realm, "/@") {
		return fmt.Errorf("principal %q is not NAME/HOST@REALM", c.Principal)
	}
	all := keytab.New()
	if readKeys(all, file) != nil { // its text may contain keys
		return fmt.Errorf("%s: it is not a keytab, or is damaged", c.Keytab)
	}
	s := &service{realm: realm, config: c}
	for _, e := range slices.Backward(all.Entries) {
		if e.Principal.Realm == realm && slices.Equal(e.Principal.Components, []string{name, host}) && checkKey(e.Key) == nil {
			s.keys = append(s.keys, key{e.Key, e.KVNO})
		}
	}
	slices.SortStableFunc(s.keys, func(a, b key) int { return cmp.Compare(b.version, a.version) })
	if len(s.keys) == 0 {
		return fmt.Errorf("%s: it has no key of %s for AES", c.Keytab, c.Principal)
	}
	m.now.Store(s)
	return nil
}

// Versions returns the versions of the keys, the highest first.
func (m *Mechanism) Versions() (versions []uint32) {
	for _, k := range m.now.Load().keys {
		versions = append(versions, k.version)
	}
	return slices.Compact(versions)
}

// key returns the key for a ticket, as Java chooses it (EncryptionKey.findKey): the one with the ticket's version
// or, if none has it, the newest one. A KDC and those who write keytabs do not always agree on versions, and
// 0 means that one of them does not say.
func (s *service) key(kind int32, version int) (types.EncryptionKey, bool) {
	var newest *key
	for i := range s.keys {
		k := &s.keys[i]
		switch {
		case k.KeyType != kind:
		case version == 0 || k.version == 0 || k.version == uint32(version):
			return k.EncryptionKey, true
		case newest == nil:
			newest = k
		}
	}
	if newest == nil {
		return types.EncryptionKey{}, false
	}
	return newest.EncryptionKey, true
}

func readKeys(keys *keytab.Keytab, file []byte) (err error) {
	defer noPanic(&err)
	return keys.Unmarshal(file)
}

// noPanic turns a panic of the library, which takes the lengths in its input for granted, into
// an error.
func noPanic(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("malformed: %v", v)
	}
}

// keySizes has the encryption types that are supported, with the lengths of their keys in bytes: those of RFC 4121,
// whose tokens the library knows. The tokens of older ones, DES and RC4, are different, and their ciphers weak.
// The library has 24 for the last one.
var keySizes = map[int32]int{
	etypeID.AES128_CTS_HMAC_SHA1_96: 16, etypeID.AES256_CTS_HMAC_SHA1_96: 32,
	etypeID.AES128_CTS_HMAC_SHA256_128: 16, etypeID.AES256_CTS_HMAC_SHA384_192: 32,
}

// Begin returns the exchange of tokens with one connection.
func (m *Mechanism) Begin() sasl.Exchange { return &exchange{m: m} }

// exchange is one exchange. The client sends a ticket. If it wants the server to authenticate
// too, it gets the answer and sends an empty token. Then the server says which protection it
// has for what follows, which is none, and the client chooses it.
type exchange struct {
	m      *Mechanism
	stage  stage
	user   string // of the ticket
	key    types.EncryptionKey
	subkey bool   // the key is one that the server has made
	seq    uint64 // of the server's next token
	peer   uint32 // of the client's next token
	counts bool   // the client wants that the numbers of tokens are checked
}

type stage int

const (
	ticket   stage = iota // is the next token
	empty                 // token is next
	choice                // is the next token
	complete              // the client has authenticated
	failed
)

// User implements sasl.Exchange.
func (e *exchange) User() (string, bool) {
	if e.stage != complete {
		return "", false
	}
	return e.user, true
}

// Step implements sasl.Exchange.
func (e *exchange) Step(token []byte) (answer []byte, err error) {
	if e.stage == complete {
		return nil, errors.New("the client has already authenticated on this connection")
	}
	now := e.stage
	e.stage = failed // unless something better follows
	defer noPanic(&err)
	switch now {
	case ticket:
		return e.accept(token)
	case empty:
		if len(token) > 0 {
			return nil, fmt.Errorf("a token of %d bytes, which should be empty", len(token))
		}
		return e.offer()
	case choice:
		return nil, e.choose(token)
	default:
		return nil, errors.New("the client has already failed on this connection")
	}
}

// The parts of GSS tokens (RFC 4121).
var (
	oidKerberos = asn1.ObjectIdentifier{1, 2, 840, 113554, 1, 2, 2}
	idRequest   = [2]byte{1, 0} // an AP-REQ follows
	idReply     = [2]byte{2, 0} // an AP-REP follows
)

const (
	byAcceptor = 1 << iota // flags of wrap tokens
	sealed
	acceptorSubkey
)

// accept checks the token with a ticket.
func (e *exchange) accept(token []byte) ([]byte, error) {
	request, err := parseToken(token)
	if err != nil {
		return nil, err
	}
	var q messages.APReq
	if err := q.Unmarshal(request); err != nil {
		return nil, errors.New("malformed AP-REQ")
	}
	now := time.Now()
	service := e.m.now.Load()
	from, err := service.open(&q, now)
	if err != nil {
		return nil, err
	}
	if e.user, err = service.identity(from.CName.NameString, from.CRealm); err != nil {
		return nil, err
	}
	if err := e.m.replays.add(from.CName.PrincipalNameString(), q.EncryptedAuthenticator.Cipher, madeAt(&q.Authenticator), now); err != nil {
		return nil, err
	}
	flags, err := parseFlags(&q.Authenticator.Cksum)
	if err != nil {
		return nil, err
	}
	e.peer, e.counts = uint32(q.Authenticator.SeqNumber), flags&(gss.ContextFlagReplay|gss.ContextFlagSequence) != 0
	e.key = from.Key
	if len(q.Authenticator.SubKey.KeyValue) > 0 {
		e.key = q.Authenticator.SubKey
	}
	if err := checkKey(e.key); err != nil {
		return nil, err
	}
	if flags&gss.ContextFlagMutual == 0 {
		e.seq = uint64(e.peer)
		return e.offer()
	}
	answer, err := e.reply(&q)
	if err == nil {
		e.stage = empty
	}
	return answer, err
}

// open decrypts the ticket and the authenticator of a request, and returns what is in the ticket, if it
// is valid. As in Java, the server's key tells whether the ticket is for this server: the name and the realm in the
// ticket, which are not encrypted, may be others that a KDC knows the server by. And as in Java, the
// addresses that a ticket may have do not count.
func (s *service) open(q *messages.APReq, now time.Time) (*messages.EncTicketPart, error) {
	if q.PVNO != iana.PVNO || q.Ticket.TktVNO != iana.PVNO {
		return nil, fmt.Errorf("versions %d and %d of Kerberos", q.PVNO, q.Ticket.TktVNO)
	}
	if server := q.Ticket.SName.NameString; len(server) == 0 || slices.Contains(server, "") {
		return nil, fmt.Errorf("%w: a ticket for a server without a name", sasl.ErrUnanswered)
	}
	q.Ticket.SName.NameString = []string{"zookeeper"} // The library takes a key for another use if it is a KDC's name.
	kind, version := q.Ticket.EncPart.EType, q.Ticket.EncPart.KVNO
	if keySizes[kind] == 0 {
		return nil, fmt.Errorf("a ticket with encryption type %d, which is not supported, only AES is", kind)
	}
	key, ok := s.key(kind, version)
	if !ok {
		return nil, fmt.Errorf("the keytab has no key with encryption type %d, which the ticket has", kind)
	}
	if q.Ticket.Decrypt(key) != nil {
		return nil, fmt.Errorf("the ticket is not valid: its key, with encryption type %d and version %d, is not in the keytab", kind, version)
	}
	if _, err := q.Ticket.Valid(maxSkew); err != nil {
		return nil, fmt.Errorf("the ticket is not valid: %w", err)
	}
	from := &q.Ticket.DecryptedEncPart
	if err := checkKey(from.Key); err != nil {
		return nil, err
	}
	if q.DecryptAuthenticator(from.Key) != nil {
		return nil, errors.New("the authenticator is not valid: the client does not have the key in the ticket")
	}
	a := &q.Authenticator
	skew := now.Sub(madeAt(a))
	switch {
	case !a.CName.Equal(from.CName) || a.CRealm != from.CRealm:
		return nil, errors.New("the client's name is not that of the ticket")
	case a.AVNO != iana.PVNO:
		return nil, fmt.Errorf("version %d of Kerberos", a.AVNO)
	case a.Cusec < 0 || a.Cusec >= 1e6:
		return nil, fmt.Errorf("a time with %d µs", a.Cusec)
	case skew > maxSkew || skew < -maxSkew:
		return nil, fmt.Errorf("the clock of the client is more than %v from the server's", maxSkew)
	}
	return from, nil
}

// madeAt returns when a client has made its token, by its own clock.
func madeAt(a *types.Authenticator) time.Time {
	return a.CTime.Add(time.Duration(a.Cusec) * time.Microsecond)
}

func checkKey(key types.EncryptionKey) error {
	switch size := keySizes[key.KeyType]; {
	case size == 0:
		return fmt.Errorf("encryption type %d is not supported, only AES is", key.KeyType)
	case size != len(key.KeyValue):
		return fmt.Errorf("a key of %d bytes for encryption type %d", len(key.KeyValue), key.KeyType)
	}
	return nil
}

// parseFlags returns what the client wants. It is in the authenticator's checksum, which is none
// (RFC 4121, section 4.1.1). Credentials that the client delegates may follow; the server has no use for them.
func parseFlags(c *types.Checksum) (uint32, error) {
	const length = "\x10\x00\x00\x00" // of the channel's bindings, which come before the flags
	sum := c.Checksum
	switch {
	case c.CksumType == 0 && len(sum) == 0:
		return 0, errors.New("the authenticator does not say what the client wants")
	case len(sum) < 24 && strings.HasPrefix(length, string(sum[:min(len(sum), len(length))])):
		return 0, fmt.Errorf("%w: the authenticator does not say what the client wants", sasl.ErrUnanswered)
	case !strings.HasPrefix(string(sum), length):
		return 0, errors.New("what the client wants has another form")
	}
	return binary.LittleEndian.Uint32(sum[20:]), nil
}

// parseToken returns the AP-REQ in a client's first token (RFC 2743, section 3.1).
func parseToken(token []byte) ([]byte, error) {
	var outer asn1.RawValue
	var oid asn1.ObjectIdentifier
	_, err := asn1.Unmarshal(token, &outer) // Java does not mind what follows
	if err != nil || outer.Class != asn1.ClassApplication || outer.Tag != 0 || !outer.IsCompound {
		return nil, errors.New("it is not a token of GSSAPI")
	}
	rest, err := asn1.Unmarshal(outer.Bytes, &oid)
	if err != nil || !oid.Equal(oidKerberos) {
		return nil, errors.New("it is not a token of Kerberos 5")
	}
	if len(rest) < 2 || [2]byte(rest) != idRequest {
		return nil, errors.New("it is not the first token of a client")
	}
	return rest[2:], nil
}

// reply returns the token that proves to the client that the server could read the ticket. It
// has a new key for the rest of the exchange.
func (e *exchange) reply(q *messages.APReq) ([]byte, error) {
	e.key.KeyValue = make([]byte, keySizes[e.key.KeyType])
	rand.Read(e.key.KeyValue)
	e.subkey = true
	var random [4]byte
	rand.Read(random[:])
	e.seq = uint64(binary.BigEndian.Uint32(random[:]) >> 2)
	part, err := asn1.Marshal(messages.EncAPRepPart{
		CTime: q.Authenticator.CTime, Cusec: q.Authenticator.Cusec, Subkey: e.key, SequenceNumber: int64(e.seq),
	})
	if err != nil {
		return nil, err
	}
	part = asn1tools.AddASNAppTag(part, asnAppTag.EncAPRepPart)
	encrypted, err := crypto.GetEncryptedData(part, q.Ticket.DecryptedEncPart.Key, keyusage.AP_REP_ENCPART, 0)
	if err != nil {
		return nil, err
	}
	rep, err := asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: encrypted})
	if err != nil {
		return nil, err
	}
	oid, err := asn1.Marshal(oidKerberos)
	if err != nil {
		return nil, err
	}
	token := append(append(oid, idReply[:]...), asn1tools.AddASNAppTag(rep, asnAppTag.APREP)...)
	return asn1tools.AddASNAppTag(token, 0), nil
}

// noLayer is the only protection of what follows, none. It is the first of four bytes; the others are the
// most bytes of a protected message.
const noLayer = 1

// offer returns the token that says which protection the server has.
func (e *exchange) offer() ([]byte, error) {
	cipher, err := crypto.GetEtype(e.key.KeyType)
	if err != nil {
		return nil, err
	}
	w := gss.WrapToken{Flags: byAcceptor, EC: uint16(cipher.GetHMACBitLength() / 8), SndSeqNum: e.seq, Payload: []byte{noLayer, 0, 0, 0}}
	if e.subkey {
		w.Flags |= acceptorSubkey
	}
	if err := w.SetCheckSum(e.key, keyusage.GSSAPI_ACCEPTOR_SEAL); err != nil {
		return nil, err
	}
	token, err := w.Marshal()
	if err == nil {
		e.stage = choice
	}
	return token, err
}

// choose checks the token with the client's choice. The name behind it, of whoever the client
// wants to be, has no effect, as in ZooKeeper.
func (e *exchange) choose(token []byte) error {
	const header = gss.HdrLen
	if len(token) > header { // The body may be rotated to the right.
		body := token[header:]
		n := int(binary.BigEndian.Uint16(token[6:])) % len(body)
		token = append(append(append([]byte(nil), token[:header]...), body[n:]...), body[:n]...)
	}
	var w gss.WrapToken
	if err := w.Unmarshal(token, false); err != nil {
		return fmt.Errorf("malformed choice: %w", err)
	}
	if w.Flags&sealed != 0 { // which RFC 4752 does not want, but Java accepts
		if err := unseal(&w, token, e.key); err != nil {
			return err
		}
	} else if ok, err := w.Verify(e.key, keyusage.GSSAPI_INITIATOR_SEAL); err != nil || !ok {
		return errors.New("the client does not have the key")
	}
	switch {
	case e.counts && uint32(w.SndSeqNum) != e.peer:
		return fmt.Errorf("the client's choice has the number %d, not %d", uint32(w.SndSeqNum), e.peer)
	case len(w.Payload) == 0:
		return fmt.Errorf("%w: the client chooses nothing", sasl.ErrUnanswered)
	case w.Payload[0]&noLayer == 0:
		return fmt.Errorf("the client chooses %.4x, a protection that was not offered", w.Payload)
	case len(w.Payload) < 4:
		return fmt.Errorf("%w: the client's choice has %d bytes", sasl.ErrUnanswered, len(w.Payload))
	}
	e.stage = complete
	return nil
}

// unseal decrypts a token, whose body has been rotated back, into the payload: behind it there are some bytes
// that do not count, and the header (RFC 4121, section 4.2.4).
func unseal(w *gss.WrapToken, token []byte, key types.EncryptionKey) error {
	const header = gss.HdrLen
	text, err := crypto.DecryptMessage(token[header:], key, keyusage.GSSAPI_INITIATOR_SEAL)
	if err != nil {
		return errors.New("the client does not have the key")
	}
	want := append([]byte(nil), token[:header]...)
	want[6], want[7] = 0, 0 // the rotation
	end := len(text) - header - int(w.EC)
	if end < 0 || !bytes.Equal(text[len(text)-header:], want) {
		return errors.New("the client's choice has been changed")
	}
	w.Payload = text[:end]
	return nil
}

// identity returns the name by which ACLs know a principal (SaslServerCallbackHandler). As ZooKeeper's
// default rule has it, only the server's realm has users.
func (s *service) identity(name []string, realm string) (string, error) {
	whole := strings.Join(name, "/") + "@" + realm
	if len(name) < 1 || len(name) > 2 || slices.Contains(name, "") || strings.ContainsAny(strings.Join(name, "")+realm, "/@") || !utf8.ValidString(whole) {
		return "", fmt.Errorf("%w: principal %.200q is not NAME@REALM or NAME/HOST@REALM", sasl.ErrUnanswered, whole)
	}
	if realm != s.realm {
		return "", fmt.Errorf("principal %.200q is not of realm %s", whole, s.realm)
	}
	user := name[0]
	if len(name) == 2 && !s.config.RemoveHost {
		user += "/" + name[1]
	}
	if !s.config.RemoveRealm {
		user += "@" + realm
	}
	return user, nil
}

// replays remembers the authenticators of tickets as long as they count, so that none does twice.
// It is safe for concurrent use.
//
// It is in memory, as Java's is by default, so a process does not know what the one before has seen. It does not
// refuse what was made before it began: after each restart, a client whose clock is behind would have to wait for that
// long, and one whose clock is ahead could be replayed all the same. Who can record tokens can also take
// over the connection, since nothing protects that; TLS keeps them from both.
type replays struct {
	most, mostOfClient int
	mu                 sync.Mutex
	minutes            map[int64]*minute // by the minute, of its client's clock, in which an authenticator was made
}

type minute struct {
	seen    map[digest]struct{}
	clients map[digest]int // how many of them a client has made
}

type digest [16]byte

// A client needs a ticket to have something remembered, but can make any number of authenticators with it. Who is beyond a
// limit may come again: that a client is refused would be for ever.
const (
	maxReplays   = 1 << 22 // take some 150 MiB
	maxOfOneUser = 1 << 20
)

func newReplays() replays {
	return replays{most: maxReplays, mostOfClient: maxOfOneUser, minutes: map[int64]*minute{}}
}

// add remembers an authenticator of a client, or returns an error. It must be one that is valid now: made not
// more than maxSkew before or after that.
func (r *replays) add(client string, authenticator []byte, made, now time.Time) error {
	who, what := shortened([]byte(client)), shortened(authenticator)
	r.mu.Lock()
	defer r.mu.Unlock()
	all, own := 0, 0
	for at, m := range r.minutes {
		if at < minuteOf(now.Add(-maxSkew)) {
			delete(r.minutes, at)
			continue
		}
		all += len(m.seen)
		own += m.clients[who]
	}
	m := r.minutes[minuteOf(made)]
	if m == nil {
		m = &minute{seen: map[digest]struct{}{}, clients: map[digest]int{}}
		r.minutes[minuteOf(made)] = m
	}
	_, again := m.seen[what]
	switch {
	case again:
		return errors.New("the token has been used before")
	case own >= r.mostOfClient:
		return fmt.Errorf("%w: the client has sent %d tokens within some minutes", sasl.ErrUnanswered, own)
	case all >= r.most:
		return fmt.Errorf("%w: clients have sent %d tokens within some minutes", sasl.ErrUnanswered, all)
	}
	m.seen[what] = struct{}{}
	m.clients[who]++
	return nil
}

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func shortened(text []byte) digest {
	sum := sha256.Sum256(text)
	return digest(sum[:])
}
