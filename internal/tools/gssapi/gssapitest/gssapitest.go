// Package gssapitest has a client of GSSAPI for tests. It makes its tickets by itself, with the server's keys, so it needs no KDC
// and can have any ticket, also one that a KDC would not issue.
package gssapitest

import (
	"bytes"
	"crypto/rand"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	krbasn1 "github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/crypto"
	gss "github.com/jcmturner/gokrb5/v8/gssapi"
	"github.com/jcmturner/gokrb5/v8/iana"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/chksumtype"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/keytab"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"
)

var oidKerberos = asn1.ObjectIdentifier{1, 2, 840, 113554, 1, 2, 2}

// Flags of wrap tokens.
const (
	ByAcceptor     = 1
	Sealed         = 2
	AcceptorSubkey = 4
)

// NoLayer is the payload of a client's choice that ZooKeeper's clients make.
const NoLayer = "\x01\x00\x00\x00"

// Client is a client with a ticket for a server. It is for one exchange of tokens. The functions make it a bad one.
type Client struct {
	Keys                *keytab.Keytab // of the server
	Said                int            // the version of the server's key, as the ticket says it; 0 does not say it
	Name, Realm         string         // of the client, with / between the parts of the name
	Server, ServerRealm string         // whom the ticket is for
	Kind, SessionKind   int32          // encryption types of the ticket, and of the key in it and of the client's subkey
	Mutual              bool           // the client wants a proof of the server
	Flags               byte           // of the first token, beside that
	NoSubkey            bool           // the client uses the ticket's key
	Start, End          time.Duration  // of the ticket, from now
	Clock               time.Duration  // of the client, from now
	Skip                uint64         // how far the number of the client's choice is from the right one
	Part                func(*messages.EncTicketPart)
	Change              func(*messages.Ticket, *types.Authenticator)
	Replaced            func(*messages.APReq)

	sent
}

// sent is what a client knows of its first token.
type sent struct {
	session, key types.EncryptionKey
	at           time.Time
	cusec        int
	number       int64 // of the client's next token
}

// New returns a client of the server's realm.
func New(name, server, realm string, keys *keytab.Keytab) *Client {
	const kind = etypeID.AES256_CTS_HMAC_SHA1_96
	return &Client{Keys: keys, Name: name, Realm: realm, Server: server, ServerRealm: realm, Kind: kind, SessionKind: kind, End: time.Hour}
}

// NewKey returns a random key.
func NewKey(kind int32) (types.EncryptionKey, error) {
	cipher, err := crypto.GetEtype(kind)
	if err != nil {
		return types.EncryptionKey{}, err
	}
	size := cipher.GetKeyByteSize()
	if kind == etypeID.AES256_CTS_HMAC_SHA384_192 { // for which the library has a wrong one
		size = 32
	}
	key := types.EncryptionKey{KeyType: kind, KeyValue: make([]byte, size)}
	rand.Read(key.KeyValue)
	return key, nil
}

// ticket returns a ticket for the server, with the key c.session in it.
func (c *Client) ticket(name types.PrincipalName, now time.Time) (messages.Ticket, error) {
	part := messages.EncTicketPart{Flags: types.NewKrbFlags(), Key: c.session, CRealm: c.Realm, CName: name,
		AuthTime: now, StartTime: now.Add(c.Start), EndTime: now.Add(c.End), RenewTill: now.Add(c.End)}
	if c.Part != nil {
		c.Part(&part)
	}
	text, err := krbasn1.Marshal(part)
	if err != nil {
		return messages.Ticket{}, err
	}
	t := messages.Ticket{TktVNO: iana.PVNO, Realm: c.ServerRealm, SName: types.NewPrincipalName(1, c.Server)}
	key, _, err := c.Keys.GetEncryptionKey(t.SName, c.ServerRealm, 0, c.Kind)
	if err != nil {
		return messages.Ticket{}, err
	}
	t.EncPart, err = crypto.GetEncryptedData(asn1tools.AddASNAppTag(text, asnAppTag.EncTicketPart), key, keyusage.KDC_REP_TICKET, c.Said)
	return t, err
}

// First returns the client's first token.
func (c *Client) First() ([]byte, error) {
	now := time.Now().UTC()
	name := types.NewPrincipalName(1, c.Name)
	var err error
	if c.session, err = NewKey(c.SessionKind); err != nil {
		return nil, err
	}
	ticket, err := c.ticket(name, now)
	if err != nil {
		return nil, err
	}
	a, err := types.NewAuthenticator(c.Realm, name)
	if err != nil {
		return nil, err
	}
	a.CTime = now.Add(c.Clock)
	c.key, c.at, c.cusec = c.session, a.CTime, a.Cusec
	if !c.NoSubkey {
		if c.key, err = NewKey(c.SessionKind); err != nil {
			return nil, err
		}
		a.SubKey = c.key
	}
	sum := make([]byte, 24)
	sum[0], sum[20] = 16, c.Flags
	if c.Mutual {
		sum[20] |= gss.ContextFlagMutual
	}
	a.Cksum = types.Checksum{CksumType: chksumtype.GSSAPI, Checksum: sum}
	if c.Change != nil {
		c.Change(&ticket, &a)
	}
	c.number = a.SeqNumber
	q, err := messages.NewAPReq(ticket, c.session, a)
	if err != nil {
		return nil, err
	}
	if c.Replaced != nil {
		c.Replaced(&q)
	}
	text, err := q.Marshal()
	if err != nil {
		return nil, err
	}
	oid, err := asn1.Marshal(oidKerberos)
	if err != nil {
		return nil, err
	}
	return asn1tools.AddASNAppTag(append(append(oid, 1, 0), text...), 0), nil
}

// Proof checks the server's answer to a client that wants one, and takes the server's key from it, if there is one.
func (c *Client) Proof(token []byte) (withKey bool, err error) {
	var outer asn1.RawValue
	var oid asn1.ObjectIdentifier
	if _, err := asn1.Unmarshal(token, &outer); err != nil {
		return false, err
	}
	rest, err := asn1.Unmarshal(outer.Bytes, &oid)
	if err != nil || !oid.Equal(oidKerberos) || !bytes.HasPrefix(rest, []byte{2, 0}) {
		return false, fmt.Errorf("%x is not an answer with an AP-REP: %v", rest, err)
	}
	var rep messages.APRep
	if err := rep.Unmarshal(rest[2:]); err != nil {
		return false, err
	}
	text, err := crypto.DecryptEncPart(rep.EncPart, c.session, keyusage.AP_REP_ENCPART)
	if err != nil {
		return false, err
	}
	var part messages.EncAPRepPart
	if err := part.Unmarshal(text); err != nil {
		return false, err
	}
	if !part.CTime.Equal(c.at.Truncate(time.Second)) || part.Cusec != c.cusec {
		return false, fmt.Errorf("the answer is to a token of %v and %d µs, not of %v", part.CTime, part.Cusec, c.at)
	}
	if len(part.Subkey.KeyValue) == 0 {
		return false, nil
	}
	if like, err := NewKey(part.Subkey.KeyType); err != nil || len(part.Subkey.KeyValue) != len(like.KeyValue) {
		return false, fmt.Errorf("the server's key has type %d and %d bytes: %v", part.Subkey.KeyType, len(part.Subkey.KeyValue), err)
	}
	c.key = part.Subkey
	return true, nil
}

// Choice checks that the server offers to protect nothing, and returns the client's choice. With Sealed
// among the flags it is encrypted.
func (c *Client) Choice(offer []byte, payload string, flags byte) ([]byte, error) {
	var w gss.WrapToken
	if err := w.Unmarshal(offer, true); err != nil {
		return nil, err
	}
	if _, err := w.Verify(c.key, keyusage.GSSAPI_ACCEPTOR_SEAL); err != nil {
		return nil, err
	}
	if len(w.Payload) != 4 || w.Payload[0]&1 == 0 || w.Flags&^AcceptorSubkey != ByAcceptor {
		return nil, errors.New("the server does not offer to protect nothing")
	}
	w = gss.WrapToken{Flags: flags, EC: w.EC, SndSeqNum: uint64(c.number) + c.Skip, Payload: []byte(payload)}
	if flags&Sealed != 0 {
		header := []byte{5, 4, flags, 0xff, 0, 0, 0, 0}
		header = binary.BigEndian.AppendUint64(header, w.SndSeqNum)
		body, err := crypto.GetEncryptedData(append([]byte(payload), header...), c.key, keyusage.GSSAPI_INITIATOR_SEAL, 0)
		return append(header, body.Cipher...), err
	}
	if err := w.SetCheckSum(c.key, keyusage.GSSAPI_INITIATOR_SEAL); err != nil {
		return nil, err
	}
	return w.Marshal()
}
