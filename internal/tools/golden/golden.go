// Package golden reads captured exchanges between a ZooKeeper client and server, and
// plays the client's half of them against any endpoint.
//
// An exchange (a Scenario) is one text file. It lists in order which connections are
// opened, which bytes the client sends and which bytes the server answers. Fields that
// vary from run to run (zxids, session ids, passwords, times) are marked in the file,
// and are bound to symbols during a replay; every other byte must be the same.
// testdata/golden/README.md at the top of the module describes the format.
//
// A replay always ends: each wait has a deadline. It closes every session that it
// opened and leaves no goroutine behind.
package golden

import (
	"encoding/binary"
	"time"
)

// Scenario is one captured exchange.
type Scenario struct {
	Name   string   // file name without ".txt"; empty when parsed from a reader
	Title  string   // what the exchange shows
	Server string   // the recorded server, as the file describes it
	Config string   // the name after "config" in Server: ext, default or admin
	Notes  []string // remarks, for example on defects that should not be copied
	Steps  []Step
}

// Kind is the kind of a Step.
type Kind int

// The kinds of steps.
const (
	Open    Kind = iota // the client opens a connection
	Send                // the client sends Bytes
	Receive             // the server sends the frame Bytes
	Close               // the client closes the connection without closeSession
	Closed              // the server closes the connection and sends nothing more
	Silence             // nothing arrives for Pause
	Wait                // the client pauses for Pause
	Word                // a four letter word, Request, is answered with Text
	HTTP                // an AdminServer request, Request, is answered with Text
)

var kindNames = [...]string{
	Open: "open", Send: ">", Receive: "<", Close: "close", Closed: "closed",
	Silence: "silence", Wait: "wait", Word: "4LW", HTTP: "HTTP",
}

// String returns the word or sign for the kind in a file.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

// Step is one step of a scenario: a line of its file and the indented lines after it.
type Step struct {
	Line    int // line number in the file, from 1
	Kind    Kind
	Conn    string        // connection, such as "C1"; empty for Wait, Word and HTTP
	Bytes   []byte        // Send and Receive: the recorded bytes, length prefix included
	Comment string        // the decoded form of Bytes, for readers of the file
	Fields  []Field       // Send and Receive: the fields in Bytes that vary
	Pause   time.Duration // Silence and Wait
	Request string        // Word: the word; HTTP: method and path
	Text    string        // Word and HTTP: the recorded answer
}

// FieldKind decides how a varying field is compared.
type FieldKind string

// The kinds of varying fields.
const (
	Zxid   FieldKind = "zxid"   // a transaction id, relative to the last one before the scenario
	Sid    FieldKind = "sid"    // a session id
	Passwd FieldKind = "passwd" // the password of a session
	Time   FieldKind = "time"   // the time of a transaction, in ms since the epoch
	Nonce  FieldKind = "nonce"  // of a challenge of SASL's DIGEST-MD5
)

// size returns the length in bytes of a field of this kind, or 0 for an unknown kind.
func (k FieldKind) size() int {
	switch k {
	case Zxid, Sid, Time:
		return 8
	case Passwd:
		return 16
	case Nonce:
		return 40
	}
	return 0
}

// Field marks bytes of a frame that vary from run to run.
type Field struct {
	Offset int // from the frame's first byte, the length prefix included
	Length int
	Kind   FieldKind
	Symbol string // the same for equal values: "base+3", "old", "S1", "P1", "T+3", "N1"
	Name   string // the record's field, for readers of the file

	n int64 // the number in "base+N" and "T+N"
}

// old reports whether the value was set before the scenario started. Such a value is not
// compared.
func (f *Field) old() bool { return f.Symbol == "old" }

// event reports whether the frame is a watch event, the only kind of frame with xid -1.
func event(frame []byte) bool {
	return len(frame) >= headerEnd && int32(binary.BigEndian.Uint32(frame[4:])) == -1
}

// Offsets in a frame, including its length prefix.
const (
	xidAt     = 4
	opAt      = 8  // in a request
	zxidAt    = 8  // in a reply
	headerEnd = 20 // of a reply
)
