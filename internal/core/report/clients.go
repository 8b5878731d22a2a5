package report

import (
	"context"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/session"
)

// Limits of a list of clients that one member sends to another.
const (
	MaxClients = 1000 // a member names at most so many of its clients
	MaxFind    = 8    // it looks for at most so many texts
)

// AskClients asks another member of a cluster, at its peer port, for what Server.Clients returns there. It
// waits for as long as ctx lasts. It fails if that member belongs to another cluster, or to none yet. It is
// safe for concurrent use.
type AskClients func(ctx context.Context, id uint64, find []string) (ClientList, error)

// ClientList has clients that are connected to one server.
type ClientList struct {
	Total int      `json:"total"` // how many there are
	Some  []Client `json:"some"`  // at most MaxClients of them, the oldest connections first
}

// Client is a connection of a client, in short. Its times are how long ago something was, since the
// clocks of two members differ.
type Client struct {
	Number  uint64        `json:"number"`            // no other connection of the server has it
	Session int64         `json:"session,omitempty"` // 0 if it has none yet
	Addr    string        `json:"addr"`              // as ZooKeeper's words show it
	Age     time.Duration `json:"age"`
	Timeout time.Duration `json:"timeout,omitempty"` // of the session

	// Since it was made, or its counts were last reset.
	Requests int64         `json:"requests,omitempty"`
	Op       string        `json:"op,omitempty"`    // of the request that was answered last, as proto.Op.Short; "" if there was none
	OpAge    time.Duration `json:"opAge,omitempty"` // since that was answered
}

// Matches reports whether the session's id or the address contains a text, which must be in lower case.
func (c *Client) Matches(text string) bool {
	return c.Session != 0 && strings.Contains(session.FormatID(c.Session), text) || strings.Contains(strings.ToLower(c.Addr), text)
}
