package spec

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/proto"
	"github.com/lockkeeper/lockkeeper/session"
)

// Step names what a member did.
type Step string

const (
	Opened    Step = "opened"    // it has started; Log, Snapshot, Term, Vote, Of and Rejoining say what its disk has
	Stored    Step = "stored"    // the entries in Log are on its disk
	Deleted   Step = "deleted"   // the entries from First to Last are not any more
	Snapshot  Step = "snapshot"  // Snapshot is on its disk, complete
	Term      Step = "term"      // its disk has Term
	Voted     Step = "voted"     // its disk has a vote for Candidate in Term
	Identity  Step = "identity"  // its disk has Of
	Rejoining Step = "rejoining" // its disk says whether it is owed a vote
	Visible   Step = "visible"   // the entry at Last is about to be applied; Term is 0 if it is a list of members. Commands are those on sessions
	Restored  Step = "restored"  // its state is that of a snapshot up to Last
	Leads     Step = "leads"     // it leads in Term, and is about to give all sessions their full timeouts
	Anew      Step = "anew"      // it forgets all sessions, and Restarts those that exist after the entry at Last
	Touched   Step = "touched"   // a request of Session is about to be carried out
	Heard     Step = "heard"     // another member has reported a request of Session
	Restarts  Step = "restarts"  // the full timeout of Session begins: it was opened or resumed, or after Anew
	Answered  Step = "answered"  // a write or sync of Session, which was proposed at Asked, is about to be answered
	Late      Step = "late"      // it is about to propose the expiry of Session
	Ended     Step = "ended"     // the end of Session was applied
	LostDisk  Step = "lost disk" // by a fault, while it is down: it finds nothing when it starts next
	Swapped   Step = "swapped"   // by a fault, while it is down: it finds the disk of another cluster when it starts next
)

// Event is one step of one member. What it writes is recorded when it is on the disk, all else just before it takes effect:
// before anybody else can notice.
type Event struct {
	At     time.Duration // since some moment, the same for all members
	Member uint64
	Step   Step

	First, Last uint64  `json:",omitempty"`
	Term        uint64  `json:",omitempty"`
	Candidate   string  `json:",omitempty"` // its address
	Log         []Run   `json:",omitempty"`
	Lists       []List  `json:",omitempty"` // those in Log
	Snapshot    *Covers `json:",omitempty"`

	Of        Of   `json:",omitzero"`
	Rejoining bool `json:",omitempty"`

	Commands []Command `json:",omitempty"`

	Session int64         `json:",omitempty"`
	Timeout time.Duration `json:",omitempty"` // of Session
	Asked   time.Duration `json:",omitempty"` // when the request came, by the clock of At
}

// String has the fields that are set.
func (e Event) String() string {
	said := fmt.Sprintf("%v: member %d: %s", e.At, e.Member, e.Step)
	for i, v := 3, reflect.ValueOf(e); i < v.NumField(); i++ {
		switch name := strings.ToLower(v.Type().Field(i).Name); {
		case v.Field(i).IsZero():
		case name == "session":
			said += fmt.Sprintf(", session %x", e.Session)
		default:
			said += fmt.Sprintf(", %s %+v", name, v.Field(i))
		}
	}
	return said
}

// Command opens, resumes, closes or expires Session, or may close any (PutBack, whose Session is 0).
type Command struct {
	Op      proto.OpCode
	Session int64
	Owner   session.Conn // the connection that is to own it, or for an expiry the one that has to be the owner
	Term    uint64       // of an expiry: that of the leader that has found the session late; 0 is any
}

// Run is entries of one term that follow each other.
type Run struct{ First, Last, Term uint64 }

// Server is a member in a List.
type Server struct {
	ID    uint64
	Addr  string
	Votes bool
}

// List is the list of members that an entry, or a snapshot, has.
type List struct {
	Index   uint64
	Servers []Server
}

// Covers is what a snapshot has: all up to Index, which is of Term.
type Covers struct {
	Index, Term uint64
	List        List
}

// Of is the cluster that a disk belongs to; see storage.Identity.
type Of struct {
	Cluster uint64
	Agreed  bool
	First   []Server
	Since   uint64
}
