package proto

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Peer describes a member of a cluster, or a server that is to become one. Its text form, in
// zoo.cfg, /zookeeper/config and reconfig (QuorumPeer.QuorumServer), is:
//
//	server.ID=HOST:PORT:ELECTIONPORT[:participant|:observer][;[ADDRESS:]CLIENTPORT]
//
// The JSON form is that of the requests between members.
type Peer struct {
	ID           uint64 `json:"id"`
	Addr         string `json:"address"`                 // of its peer port, HOST:PORT
	Observer     bool   `json:"observer"`                // does not vote
	ClientAddr   string `json:"clientAddress,omitempty"` // for clients, [ADDRESS]:PORT; "" if unknown
	ElectionPort int    `json:"electionPort,omitempty"`  // which nothing uses; 0 if unknown
}

// String returns the text form that ZooKeeper writes, which always has the role and the
// address for clients.
func (s Peer) String() string {
	role, client := "participant", s.ClientAddr
	if s.Observer {
		role = "observer"
	}
	switch {
	case strings.HasPrefix(client, ":"):
		client = ";0.0.0.0" + client
	case client != "":
		client = ";" + client
	}
	return fmt.Sprintf("server.%d=%s:%d:%s%s", s.ID, s.Addr, s.ElectionPort, role, client)
}

// ParseServers parses a list of servers, separated by commas or newlines. It skips empty
// lines and those that have the version of the configuration.
func ParseServers(text string) (servers []Peer, err error) {
	byID, byAddr := map[uint64]bool{}, map[string]uint64{} // since a request may list tens of thousands
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if key == "" && !ok || key == "version" {
			continue
		}
		s, err := ParseServer(strings.TrimSpace(key), strings.TrimSpace(value))
		if err != nil {
			return nil, err
		}
		if byID[s.ID] {
			return nil, fmt.Errorf("server %d is listed twice", s.ID)
		}
		if other, ok := byAddr[s.Addr]; ok {
			return nil, fmt.Errorf("servers %d and %d have the same address", other, s.ID)
		}
		byID[s.ID], byAddr[s.Addr] = true, s.ID
		servers = append(servers, s)
	}
	return servers, nil
}

// ParseServer parses one server: key is the text before the equals sign, value the text
// after it. Like ZooKeeper, it accepts any id: a reconfig with an id that cannot be used
// must first fail for a missing permission or a wrong version.
func ParseServer(key, value string) (s Peer, err error) {
	id, ok := strings.CutPrefix(key, "server.")
	s.ID, err = strconv.ParseUint(id, 10, 64)
	if !ok || err != nil {
		return s, fmt.Errorf("%q is not server.ID", key)
	}
	bad := func() (Peer, error) {
		return s, fmt.Errorf("%q is not HOST:PORT:ELECTIONPORT[:ROLE][;[ADDRESS:]CLIENTPORT]", value)
	}
	peer, client, hasClient := strings.Cut(value, ";")
	if hasClient {
		client, _, _ = strings.Cut(client, ";") // the port for TLS follows
		if s.ClientAddr, ok = ParseClient(client); !ok {
			return bad()
		}
	}
	host, rest, ok := strings.Cut(peer, ":")
	if strings.HasPrefix(peer, "[") { // IPv6
		host, rest, ok = strings.Cut(peer[1:], "]:")
		if _, err := netip.ParseAddr(host); err != nil {
			return bad()
		}
		host = "[" + host + "]"
	}
	ports := strings.Split(rest, ":")
	if len(ports) == 3 {
		switch strings.ToLower(ports[2]) {
		case "participant":
		case "observer":
			s.Observer = true
		default:
			return bad()
		}
		ports = ports[:2]
	}
	if !ok || host == "" || strings.ContainsAny(host, "|=") || len(ports) != 2 || !isPort(ports[0]) || !isPort(ports[1]) {
		return bad()
	}
	s.Addr = host + ":" + ports[0]
	s.ElectionPort, _ = strconv.Atoi(ports[1])
	return s, nil
}

// ParseClient parses the address for clients, [ADDRESS:]CLIENTPORT, into the form of
// [Peer.ClientAddr].
func ParseClient(text string) (addr string, ok bool) {
	i := strings.LastIndex(text, ":")
	host := text[:max(i, 0)]
	bracketed := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	return host + ":" + text[i+1:], isPort(text[i+1:]) && (bracketed || !strings.Contains(host, ":"))
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}
