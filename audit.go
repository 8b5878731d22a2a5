package lockkeeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/lockkeeper/lockkeeper/internal/core/request"
	"github.com/lockkeeper/lockkeeper/internal/core/server"
	"github.com/lockkeeper/lockkeeper/session"
)

// AuditEvent is what ZooKeeper's audit log says of an operation: a change by a client, or of the members of the cluster, or an
// attempt that failed. Fields that do not apply are empty.
type AuditEvent struct {
	// Session is the client's, or the one that has ended; 0 for none.
	Session int64
	// User has the client's identities, without their schemes, separated by commas; of scheme
	// digest only the name. For what was asked for at the peer port it is the address and, with TLS, the subject of the
	// certificate. It is empty for what a server does by itself, or its program through its methods.
	User string
	// IP is the address of the client, or of whoever has asked.
	IP string
	// Operation is create, delete, setData, setAcl, reconfig, multiOperation for a multi that
	// failed, or ephemeralZNodeDeletionOnSessionCloseOrExpire. A multi that was done has an event
	// for each of its changes.
	Operation string
	// Path is the znode's.
	Path string
	// Type is how a znode was to be created: persistent, ephemeral_sequential, for instance.
	Type string
	// ACL is the new one, with setAcl.
	ACL string
	// Result is success, failure or invoked.
	Result string
}

// String returns the line of ZooKeeper's audit log without time and level: FIELD=VALUE, separated by
// tabs. A control character in a value, which a client can choose, is written as \uXXXX.
func (e AuditEvent) String() string {
	var b strings.Builder
	// Those of a request are shown even if they are empty.
	ofZnode := slices.Contains([]string{"create", "delete", "setData", "setAcl"}, e.Operation)
	id := ""
	if e.Session != 0 {
		id = session.FormatID(e.Session)
	}
	for _, field := range []struct {
		name, value string
		always      bool
	}{
		{"session", id, false}, {"user", e.User, false}, {"ip", e.IP, false}, {"operation", e.Operation, true}, {"znode", e.Path, ofZnode},
		{"znode_type", e.Type, false}, {"acl", e.ACL, e.Operation == "setAcl"}, {"result", e.Result, true},
	} {
		if field.value == "" && !field.always {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\t')
		}
		b.WriteString(field.name + "=")
		for _, r := range field.value {
			if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
				b.WriteString(`\u`) // not with fmt: a request can have a million of them
				for shift := 12; shift >= 0; shift -= 4 {
					b.WriteByte("0123456789abcdef"[r>>shift&15])
				}
			} else {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// auditQueue is how many events may wait for Config.Audit.
const auditQueue = 1000

// auditor calls Config.Audit, outside of all locks.
type auditor struct {
	queue  chan AuditEvent
	ending chan struct{} // closed when nothing happens any more
	done   chan struct{} // closed when all was told
}

func newAuditor(tell func(AuditEvent)) *auditor {
	a := &auditor{make(chan AuditEvent, auditQueue), make(chan struct{}), make(chan struct{})}
	go a.run(tell) // until endTraces
	return a
}

// add waits while too many events wait.
func (a *auditor) add(e AuditEvent) {
	select {
	case a.queue <- e:
	case <-a.done:
	}
}

func (a *auditor) run(tell func(AuditEvent)) {
	defer close(a.done)
	for {
		select {
		case e := <-a.queue:
			tell(e)
		case <-a.ending:
			if len(a.queue) == 0 {
				return
			}
			tell(<-a.queue)
		}
	}
}

// endTraces waits until the audit log has every event, and up to a second for the log.
func (s *Server) endTraces() {
	if s.audit != nil {
		close(s.audit.ending)
		<-s.audit.done
	}
	s.lines.Close()
}

// traceChange notes in the log, and in the audit log, that a change of the members was asked for over the peer port or by the
// program that this server is part of. The client port does so for its clients' reconfig.
func (s *Server) traceChange(a request.Asked) {
	event, said := server.Reconfigured(a.Err, errors.Is(a.Err, request.ErrUnknownOutcome))
	event.IP, event.User = server.Asker(a.From, a.Subject)
	if a.Transfer != nil {
		event.Path = "" // which is the list of members
	}
	if s.audit != nil {
		s.audit.add(AuditEvent(event))
	}
	from := "this program"
	if a.From != nil {
		from = a.From.String()
	}
	args := []any{"change", fmt.Sprintf("%.1000s", a.Request), "from", from}
	if event.User != "" {
		args = append(args, "user", event.User)
	}
	if a.Err != nil {
		args = append(args, "error", a.Err)
	}
	s.log.Warn(said, args...)
}
