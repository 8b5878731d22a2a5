//go:build interop

package interop

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const networkLockers = 12

// TestClusterNetwork is like TestClusterLocks, but each server runs in a network
// namespace of its own, and links fail in one or both directions, or are slow. It is
// skipped if network namespaces cannot be created.
func TestClusterNetwork(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, 3)
	e := newEnsembleOn(t, n, "--tick-time", chaosTick.String()).followed().start()
	c := newChaos(t, e, networkLockers)
	kills := slices.DeleteFunc(c.blows, func(b blow) bool { return b.name != "kill -9" && b.name != holderStopped })
	c.blows = append(kills, c.networkBlows(n)...)
	c.strike(holderStopped)
	for end := c.began.Add(chaosLength(t, longer(10*time.Second, 40*time.Second))); time.Now().Before(end); {
		c.strike("")
	}
	c.end()
}

// networkBlows returns the faults of the network.
func (c *chaos) networkBlows(n *network) []blow {
	return []blow{
		{"one way from one member to another", func() {
			from := c.server()
			to := (from + 1 + c.random.IntN(2)) % 3
			n.cut(from, to, true)
			time.Sleep(c.moment(2 * time.Second))
			n.cut(from, to, false)
		}},
		{"one member hears the others, who do not hear it", func() {
			from := c.server()
			n.cut(from, (from+1)%3, true)
			n.cut(from, (from+2)%3, true)
			time.Sleep(c.moment(2 * time.Second))
			n.cut(from, (from+1)%3, false)
			n.cut(from, (from+2)%3, false)
		}},
		{"a member alone with its clients", func() {
			i := c.server()
			n.isolate(i, true)
			time.Sleep(c.moment(2 * time.Second))
			n.isolate(i, false)
		}},
		{"a member off the network", func() {
			i := c.server()
			n.link(i, false)
			time.Sleep(c.moment(2 * time.Second))
			n.link(i, true)
		}},
		{"a slow link", func() {
			i := c.server()
			n.slow(i, true)
			time.Sleep(time.Second + c.moment(2*time.Second))
			n.slow(i, false)
		}},
	}
}

// network is a bridge with a host (a network namespace) at each of its ports. This
// process runs on the bridge's side. Its addresses are in 198.18.0.0/15, which is
// reserved for network tests.
type network struct {
	t      *testing.T
	subnet string
	bridge string
	hosts  []string
	netem  bool // the kernel can delay and lose packets
}

func newNetwork(t *testing.T, hosts int) *network {
	t.Helper()
	for _, program := range []string{"ip", "tc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("this test needs iproute2: %v (interop/setup.sh installs it)", err)
		}
	}
	id := rand.IntN(250)
	n := &network{t: t, subnet: fmt.Sprintf("198.18.%d", id), bridge: fmt.Sprintf("lk%d", id)}
	try := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("cannot create network namespaces: ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	try("link", "add", n.bridge, "type", "bridge")
	t.Cleanup(func() { n.run("ip", "link", "delete", n.bridge) })
	try("address", "add", n.subnet+".254/24", "dev", n.bridge)
	try("link", "set", n.bridge, "up")
	for i := range hosts {
		host, port := fmt.Sprintf("lk%d-%d", id, i+1), n.port(i)
		try("netns", "add", host)
		t.Cleanup(func() { n.run("ip", "netns", "delete", host) }) // which deletes its end of the link, too
		try("netns", "exec", host, "true")
		try("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
		try("link", "set", port, "master", n.bridge, "up")
		try("-n", host, "link", "set", "lo", "up")
		try("-n", host, "link", "set", "eth0", "address", n.mac(i), "up")
		try("-n", host, "address", "add", n.ip(i)+"/24", "dev", "eth0")
		n.hosts = append(n.hosts, host)
	}
	n.netem = exec.Command("tc", "qdisc", "add", "dev", n.port(0), "root", "netem", "delay", "1ms").Run() == nil
	if n.netem {
		n.run("tc", "qdisc", "delete", "dev", n.port(0), "root")
	} else {
		t.Log("this kernel has no netem: slow links are narrow, and lose what is too much")
	}
	return n
}

// newEnsembleOn is like newEnsemble, with one server on each host.
func newEnsembleOn(t *testing.T, n *network, args ...string) *ensemble {
	t.Helper()
	e := newEnsemble(t, len(n.hosts), args...)
	for i := range n.hosts {
		e.listen[i], e.peers[i], e.by[i] = n.ip(i)+":2181", n.ip(i)+":7000", n.by(i)
	}
	return e
}

func (n *network) ip(i int) string   { return fmt.Sprintf("%s.%d", n.subnet, i+1) }
func (n *network) mac(i int) string  { return fmt.Sprintf("02:6c:6b:00:00:%02x", i+1) }
func (n *network) port(i int) string { return fmt.Sprintf("%sp%d", n.bridge, i+1) }

// by returns the command that starts a process on a host.
func (n *network) by(i int) []string { return []string{"ip", "netns", "exec", n.hosts[i]} }

func (n *network) run(command ...string) {
	n.t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		n.t.Errorf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

// cut drops or restores packets from one host to another, by sending them to an unused
// address. It does not affect the other direction.
func (n *network) cut(from, to int, cut bool) {
	n.t.Helper()
	mac := n.mac(to)
	if cut {
		mac = n.mac(len(n.hosts))
	}
	n.run("ip", "-n", n.hosts[from], "neighbour", "replace", n.ip(to), "lladdr", mac, "dev", "eth0", "nud", "permanent")
}

// isolate cuts off one host from the others, or connects it again.
func (n *network) isolate(host int, cut bool) {
	n.t.Helper()
	for other := range n.hosts {
		if other != host {
			n.cut(host, other, cut)
			n.cut(other, host, cut)
		}
	}
}

// link sets a host's link up or down.
func (n *network) link(i int, up bool) {
	n.t.Helper()
	n.run("ip", "link", "set", n.port(i), map[bool]string{true: "up", false: "down"}[up])
}

// slow delays and drops packets to a host.
func (n *network) slow(i int, slow bool) {
	n.t.Helper()
	switch {
	case !slow:
		n.run("tc", "qdisc", "delete", "dev", n.port(i), "root")
	case n.netem:
		n.run("tc", "qdisc", "add", "dev", n.port(i), "root", "netem", "delay", "30ms", "10ms", "loss", "2%")
	default:
		n.run("tc", "qdisc", "add", "dev", n.port(i), "root", "tbf", "rate", "1mbit", "burst", "4kb", "latency", "60ms")
	}
}
