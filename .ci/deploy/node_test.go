//go:build linux

package deploy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// deadline is how long something may take that happens in a second or two. It only decides when a test gives up.
const deadline = time.Minute

// late is how long a name stands for what it did, or for nothing, after a pod with that name was started, as
// Kubernetes needs a moment to publish it, and caches keep the old answer.
const late = time.Second

// image is what the release's image adds to a container (.ci/release/image.go).
var image = struct{ env, entrypoint []string }{[]string{"PATH=/bin", "LOCKKEEPER_ZOO_ENV=true"}, []string{"/bin/lockkeeper"}}

// A node runs the pods of a StatefulSet as Kubernetes does: each in a network namespace with a new address, and in a
// root directory with the files of the image; with the arguments, variables, user, volumes and probes that the chart
// says, and a DNS server that knows the pods' names.
type node struct {
	t                    *testing.T
	dir, subnet, bridge  string
	program              string
	secrets              map[string]map[string][]byte
	set                  *apps.StatefulSet
	tester               *core.Pod // of helm test
	publishNotReadyPeers bool

	mu    sync.Mutex
	names map[string]net.IP // what the DNS server answers
	last  int               // the last part of the newest address
	pods  map[int]*pod
}

// pod is a pod that runs, or whose container has ended.
type pod struct {
	n         *node
	name      string
	id        int
	namespace string // of the network
	ip        net.IP
	root      string
	env       []string // of its container
	spec      *core.PodSpec
	process   *exec.Cmd
	ended     chan struct{} // closed when the process has ended
	log       *output
	ready     atomic.Bool
	stop      context.CancelFunc // ends the probes
	probes    sync.WaitGroup
}

// output keeps what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return v
	}
}

// programVariable names the program, for the tests that run it. Without it they are skipped.
const programVariable = "LOCKKEEPER_DEPLOY_PROGRAM"

// TestMain runs the tests in a process with a network and with mounts of its own, which end with it. Only root can do
// that.
func TestMain(m *testing.M) {
	code, err := 0, error(nil)
	switch {
	case os.Getuid() != 0:
		code = m.Run()
	case os.Getenv(programVariable) == "":
		code, err = runInside()
	default:
		const names = "/run/netns" // where ip has names of network namespaces, which a test that was killed would leave
		if err = errors.Join(os.MkdirAll(names, 0o755), unix.Mount("tmpfs", names, "tmpfs", 0, "")); err == nil {
			code = m.Run()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runInside builds lockkeeper, and runs this program once more. It returns its exit code.
func runInside() (code int, err error) {
	dir, err := os.MkdirTemp("", "lockkeeper-deploy-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "lockkeeper")
	build := exec.Command("go", "build", "-C", root, "-trimpath", "-o", program, "./cmd/lockkeeper")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as for a release: the image has no C library
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), programVariable+"="+program)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = c.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// nodes counts them, so that each has a network of its own.
var nodes atomic.Int32

func newNode(t *testing.T) *node {
	t.Helper()
	program := os.Getenv(programVariable)
	if program == "" {
		t.Skip("only root can create network namespaces, and change the user and the root directory")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatalf("this test needs iproute2: %v", err)
	}
	id := nodes.Add(1)
	n := &node{
		t: t, dir: t.TempDir(), subnet: fmt.Sprintf("198.19.%d", id), bridge: fmt.Sprintf("node%d", id), program: program,
		secrets: map[string]map[string][]byte{}, names: map[string]net.IP{}, pods: map[int]*pod{}, last: 1,
	}
	for d := n.dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) { // another user has to get there
		check(t, os.Chmod(d, 0o755))
	}
	n.ip("link", "add", n.bridge, "type", "bridge")
	n.ip("address", "add", n.subnet+".1/24", "dev", n.bridge)
	n.ip("link", "set", n.bridge, "up")
	server := must(net.ListenPacket("udp4", n.subnet+".1:53"))(t)
	var serving sync.WaitGroup
	serving.Go(func() { n.serveNames(server) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	t.Cleanup(func() {
		for id, p := range n.pods {
			if t.Failed() {
				lines := slices.Collect(strings.Lines(p.log.String()))
				t.Logf("the end of the log of %s:\n%s", p.name, strings.Join(lines[max(0, len(lines)-15):], ""))
			}
			p.process.Process.Kill()
			n.remove(id)
		}
	})
	return n
}

func (n *node) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// apply takes over what the chart renders. It starts and stops nothing.
func (n *node) apply(values string) {
	n.t.Helper()
	var set *apps.StatefulSet
	var tester *core.Pod
	publish := false
	for name, text := range mustRender(n.t, values) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, doc := range documents(text) {
			object, _, err := codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
			if err != nil {
				continue // of the Prometheus operator
			}
			legacyscheme.Scheme.Default(object)
			switch x := object.(type) {
			case *apps.StatefulSet:
				set = x
			case *core.Pod:
				tester = x
			case *core.Service:
				if x.Spec.ClusterIP == core.ClusterIPNone {
					publish = x.Spec.PublishNotReadyAddresses
				}
			}
		}
	}
	if set == nil || tester == nil {
		n.t.Fatal("there is no StatefulSet, or no pod for helm test")
	}
	n.mu.Lock() // pods that run, and clients, ask for names
	n.set, n.tester, n.publishNotReadyPeers = set, tester, publish
	n.mu.Unlock()
	if first := n.set.Spec.Ordinals; first == nil || first.Start != 1 { // which the tests count on
		n.t.Fatalf("the first pod's number is not 1: %v", first)
	}
}

func (n *node) podName(id int) string { return fmt.Sprintf("%s-%d", n.set.Name, id) }

// volume returns the directory of a pod's volume of the given name.
func (n *node) volume(id int, mount string) string {
	return filepath.Join(n.dir, n.podName(id), mount)
}

// start creates the pod with an ordinal, with a new address.
func (n *node) start(id int) *pod {
	n.t.Helper()
	p := n.create(n.podName(id), id, &n.set.Spec.Template.Spec, map[string]string{"apps.kubernetes.io/pod-index": fmt.Sprint(id)})
	n.begin(p)
	return p
}

// begin runs a pod that was created.
func (n *node) begin(p *pod) {
	n.t.Helper()
	p.run()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[p.id] = p
}

// create makes the network and the files of a pod.
func (n *node) create(name string, id int, spec *core.PodSpec, labels map[string]string) *pod {
	t := n.t
	t.Helper()
	n.mu.Lock()
	n.last++
	last := n.last
	n.mu.Unlock()
	p := &pod{n: n, name: name, id: id, spec: spec, ip: net.ParseIP(fmt.Sprintf("%s.%d", n.subnet, last)).To4(), log: new(output), root: filepath.Join(n.dir, name)}
	p.namespace = fmt.Sprintf("%s-%d", n.bridge, last)
	port := fmt.Sprintf("%sp%d", n.bridge, last)
	n.ip("netns", "add", p.namespace)
	n.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", p.namespace)
	n.ip("link", "set", port, "master", n.bridge, "up")
	n.ip("-n", p.namespace, "link", "set", "lo", "up")
	n.ip("-n", p.namespace, "link", "set", "eth0", "up")
	n.ip("-n", p.namespace, "address", "add", p.ip.String()+"/24", "dev", "eth0")

	container := spec.Containers[0]
	for _, dir := range []string{"bin", "conf", "data", "dev", "etc"} {
		check(t, os.MkdirAll(filepath.Join(p.root, dir), 0o755))
	}
	proc := filepath.Join(p.root, "proc")
	if err := os.Mkdir(proc, 0o555); !errors.Is(err, os.ErrExist) {
		check(t, errors.Join(err, unix.Mount("/proc", proc, "", unix.MS_BIND, "")))
		t.Cleanup(func() { check(t, unix.Unmount(proc, unix.MNT_DETACH)) })
	}
	null := filepath.Join(p.root, "dev/null")
	if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); !errors.Is(err, os.ErrExist) {
		check(t, errors.Join(err, os.Chmod(null, 0o666)))
	}
	if err := os.Link(n.program, filepath.Join(p.root, "bin/lockkeeper")); !errors.Is(err, os.ErrExist) {
		check(t, err)
	}
	check(t, os.WriteFile(filepath.Join(p.root, "etc/resolv.conf"), fmt.Appendf(nil, "search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s.1\noptions ndots:5\n", namespace, n.subnet), 0o644))
	_, _, group := p.user()
	for _, mount := range container.VolumeMounts {
		at := filepath.Join(p.root, mount.MountPath)
		check(t, os.MkdirAll(at, 0o755))
		i := slices.IndexFunc(spec.Volumes, func(v core.Volume) bool { return v.Name == mount.Name })
		if i < 0 || spec.Volumes[i].Secret == nil { // a claim
			check(t, os.Chown(at, 0, int(group)))
			check(t, os.Chmod(at, 0o775|os.ModeSetgid))
			continue
		}
		p.write(at, spec.Volumes[i].Secret)
	}
	values := map[string]string{}
	for _, v := range container.Env {
		value := expansion.Expand(v.Value, expansion.MappingFuncFor(values))
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
			value = string(n.secrets[v.ValueFrom.SecretKeyRef.Name][v.ValueFrom.SecretKeyRef.Key])
		} else if v.ValueFrom != nil {
			switch path := v.ValueFrom.FieldRef.FieldPath; path {
			case "metadata.name":
				value = name
			case "metadata.namespace":
				value = namespace
			default:
				label, ok := strings.CutPrefix(strings.TrimSuffix(path, "']"), "metadata.labels['")
				if !ok {
					t.Fatalf("unknown field %s", path)
				}
				value = labels[label]
			}
		}
		values[v.Name] = value
	}
	for name, value := range values {
		p.env = append(p.env, name+"="+value)
	}
	p.env = append(slices.Clone(image.env), p.env...) // the last value of a variable counts
	p.process = p.command(p.args()...)
	return p
}

// write writes what a secret has into the folder at which it is mounted.
func (p *pod) write(at string, secret *core.SecretVolumeSource) {
	t := p.n.t
	t.Helper()
	if p.n.secrets[secret.SecretName] == nil {
		t.Fatalf("there is no secret %s", secret.SecretName)
	}
	_, _, group := p.user()
	// As the kubelet does it: the files are in a new directory each time, and a symbolic link says in which one.
	check(t, os.Chmod(at, 0o755))
	dir := must(os.MkdirTemp(at, "..at."))(t)
	check(t, os.Chmod(dir, 0o755))
	for name, data := range p.n.secrets[secret.SecretName] {
		file := filepath.Join(dir, name)
		check(t, os.WriteFile(file, data, 0o600))
		check(t, os.Chown(file, 0, int(group)))
		check(t, os.Chmod(file, os.FileMode(*secret.DefaultMode)))
	}
	link := filepath.Join(at, "..data")
	was, _ := os.Readlink(link)
	check(t, os.Symlink(filepath.Base(dir), link+"_tmp"))
	check(t, os.Rename(link+"_tmp", link))
	for name := range p.n.secrets[secret.SecretName] {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(at, name)); !errors.Is(err, os.ErrExist) {
			check(t, err)
		}
	}
	if was != "" {
		check(t, os.RemoveAll(filepath.Join(at, was)))
	}
}

// renew writes changed secrets into the pod, as the kubelet does, and waits until the server uses them all.
func (p *pod) renew() {
	p.n.t.Helper()
	uses := func(what string) string {
		c := p.spec.Containers[0]
		i := slices.IndexFunc(c.Ports, func(port core.ContainerPort) bool { return port.Name == "metrics" })
		r, err := http.Get(fmt.Sprintf("http://%s:%d/metrics", p.ip, c.Ports[i].ContainerPort))
		if err != nil {
			return ""
		}
		defer r.Body.Close()
		for s := bufio.NewScanner(r.Body); s.Scan(); {
			if value, ok := strings.CutPrefix(s.Text(), fmt.Sprintf("lockkeeper_file_reloads_total{for=%q} ", what)); ok {
				return value
			}
		}
		return ""
	}
	was := map[string]string{"clients": uses("clients"), "members": uses("members")}
	for _, v := range p.spec.Volumes {
		if v.Secret == nil {
			continue
		}
		for _, mount := range p.spec.Containers[0].VolumeMounts {
			if mount.Name == v.Name {
				p.write(filepath.Join(p.root, mount.MountPath), v.Secret)
			}
		}
	}
	for what, value := range was {
		p.n.await(p.name+" to use the new files for "+what, func() bool { now := uses(what); return now != "" && now != value })
	}
}

// args returns the arguments of the pod's container.
func (p *pod) args() (args []string) {
	values := map[string]string{}
	for _, v := range p.env {
		name, value, _ := strings.Cut(v, "=")
		values[name] = value
	}
	for _, arg := range p.spec.Containers[0].Args {
		args = append(args, expansion.Expand(arg, expansion.MappingFuncFor(values)))
	}
	return args
}

// command returns a command of the image in the pod's container.
func (p *pod) command(args ...string) *exec.Cmd {
	c := &exec.Cmd{Path: image.entrypoint[0], Args: append(slices.Clone(image.entrypoint), args...), Env: p.env, Dir: "/data"}
	user, group, files := p.user()
	c.SysProcAttr = &syscall.SysProcAttr{
		Chroot: p.root, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: user, Gid: group, Groups: []uint32{files}},
	}
	return c
}

// user returns the user and the group that the pod runs as, and the group of its volumes. What the pod does not say,
// OpenShift chooses: a number that no file of the image knows, and the group of root.
func (p *pod) user() (user, group, files uint32) {
	choose := func(said *int64, otherwise uint32) uint32 {
		if said == nil {
			return otherwise
		}
		return uint32(*said)
	}
	c := p.spec.SecurityContext
	return choose(c.RunAsUser, 1000680000), choose(c.RunAsGroup, 0), choose(c.FSGroup, 1000680000)
}

// within calls f in the pod's network namespace.
func (p *pod) within(f func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	its, err := os.Open("/run/netns/" + p.namespace)
	if err != nil {
		return err
	}
	defer its.Close()
	if err := unix.Setns(int(its.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = f()
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// exec runs a command in the container of a pod, as "kubectl exec" does, and returns what it prints and its exit code.
func (p *pod) exec(args ...string) (stdout, stderr string, code int) {
	p.n.t.Helper()
	c := p.command(args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	check(p.n.t, p.within(c.Start))
	err := c.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		p.n.t.Fatal(err)
	}
	return out.String(), errs.String(), c.ProcessState.ExitCode()
}

// run starts the pod's container, publishes its name, and begins to probe it.
func (p *pod) run() {
	t := p.n.t
	t.Helper()
	r, w := must2(os.Pipe())(t)
	p.process.Stdout, p.process.Stderr = w, w
	check(t, p.within(p.process.Start))
	w.Close()
	p.ended = make(chan struct{})
	go func() {
		for s := bufio.NewScanner(r); s.Scan(); {
			fmt.Fprintln(p.log, s.Text())
		}
		r.Close()
		p.process.Wait()
		p.ready.Store(false)
		close(p.ended)
	}()
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.probes.Go(func() { p.publish(ctx) })
	p.probes.Go(func() { p.probe(ctx) })
}

func must2[A, B any](a A, b B, err error) func(*testing.T) (A, B) {
	return func(t *testing.T) (A, B) {
		t.Helper()
		check(t, err)
		return a, b
	}
}

// publish makes the name of the pod known, as its headless service does.
func (p *pod) publish(ctx context.Context) {
	for wait := late; ; wait = 100 * time.Millisecond {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if p.n.publishNotReadyPeers || p.ready.Load() {
			p.n.mu.Lock()
			p.n.names[p.host()] = p.ip
			p.n.mu.Unlock()
			return
		}
	}
}

// host returns the pod's full name.
func (p *pod) host() string {
	return fmt.Sprintf("%s.%s.%s.svc.cluster.local.", p.name, p.n.set.Spec.ServiceName, namespace)
}

// probe does what the kubelet does with the probes of the container.
func (p *pod) probe(ctx context.Context) {
	c := p.spec.Containers[0]
	if c.StartupProbe == nil {
		return // helm test
	}
	try := func(probe *core.Probe) error {
		i := slices.IndexFunc(c.Ports, func(port core.ContainerPort) bool { return port.Name == probe.HTTPGet.Port.String() })
		web := http.Client{Timeout: time.Duration(probe.TimeoutSeconds) * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := web.Get(fmt.Sprintf("http://%s:%d%s", p.ip, c.Ports[i].ContainerPort, probe.HTTPGet.Path))
		if err != nil {
			return err
		}
		r.Body.Close()
		if r.StatusCode < 200 || r.StatusCode >= 400 {
			return errors.New(r.Status)
		}
		return nil
	}
	every := func(probe *core.Probe, fails func(error), works func() bool) {
		failures := int32(0)
		for {
			err := try(probe)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				if failures = 0; works() {
					return
				}
			} else if failures++; failures >= probe.FailureThreshold {
				fails(err)
			}
			select {
			case <-time.After(time.Duration(probe.PeriodSeconds) * time.Second):
			case <-p.ended:
				return
			case <-ctx.Done():
				return
			}
		}
	}
	kill := func(err error) { p.n.t.Errorf("%s: the kubelet would restart the container: %v", p.name, err) }
	every(c.StartupProbe, kill, func() bool { return true })
	p.probes.Go(func() { every(c.LivenessProbe, kill, func() bool { return false }) })
	every(c.ReadinessProbe, func(error) { p.ready.Store(false) }, func() bool { p.ready.Store(true); return false })
}

// waitReady waits until the pods are ready.
func (n *node) waitReady(ids ...int) {
	n.t.Helper()
	for _, id := range ids {
		p := n.pods[id]
		n.await(p.name+" to be ready", func() bool { return p.ready.Load() })
	}
}

func (n *node) await(what string, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(deadline); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("%v have passed without %s", deadline, what)
		}
	}
}

// end waits until the pod's container has ended by itself, and returns its exit code and the last line of its log.
func (p *pod) end() (code int, last string) {
	p.n.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(deadline):
		p.n.t.Fatalf("%s still runs", p.name)
	}
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	return p.process.ProcessState.ExitCode(), lines[len(lines)-1]
}

// delete ends a pod as Kubernetes does. Its volumes stay.
func (n *node) delete(id int) {
	n.t.Helper()
	p := n.pods[id]
	select {
	case <-p.ended: // by itself
	default:
		check(n.t, p.process.Process.Signal(syscall.SIGTERM))
		grace := time.Duration(*p.spec.TerminationGracePeriodSeconds) * time.Second
		select {
		case <-p.ended:
		case <-time.After(grace):
			n.t.Fatalf("%s has not ended %v after SIGTERM", p.name, grace)
		}
		if code := p.process.ProcessState.ExitCode(); code != 0 {
			n.t.Errorf("%s has ended with %d after SIGTERM", p.name, code)
		}
	}
	n.remove(id)
}

// remove removes a pod whose process has been told to end.
func (n *node) remove(id int) {
	p := n.pods[id]
	<-p.ended
	p.stop()
	p.probes.Wait()
	n.ip("netns", "delete", p.namespace)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pods, id)
	if n.names[p.host()].Equal(p.ip) {
		time.AfterFunc(late, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.names[p.host()].Equal(p.ip) {
				delete(n.names, p.host())
			}
		})
	}
}

// roll restarts all pods as a StatefulSet does: one after the other, the last one first, each when the one before it
// is ready.
func (n *node) roll(replicas int) {
	n.t.Helper()
	for id := replicas; id > 0; id-- {
		n.delete(id)
		n.start(id)
		n.waitReady(id)
	}
}

// lookup returns the address of a full name. The service for clients stands for a pod that is ready.
func (n *node) lookup(name string) net.IP {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name == fmt.Sprintf("%s.%s.svc.cluster.local.", n.set.Name, namespace) {
		for _, p := range n.pods {
			if p.ready.Load() {
				return p.ip
			}
		}
	}
	return n.names[name]
}

// dial connects as a client in another pod does.
func (n *node) dial(_, addr string, timeout time.Duration) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	ip := n.lookup(host + ".cluster.local.")
	if ip == nil {
		return nil, fmt.Errorf("no such host: %s", host)
	}
	return net.DialTimeout("tcp", net.JoinHostPort(ip.String(), port), min(timeout, time.Second))
}

// serveNames is the DNS server.
func (n *node) serveNames(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		size, from, err := conn.ReadFrom(buf)
		if err != nil {
			return // closed
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:size]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		reply := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RecursionDesired: m.RecursionDesired}, Questions: m.Questions}
		switch ip := n.lookup(q.Name.String()); {
		case ip == nil:
			reply.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			reply.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte(ip.To4())},
			}}
		}
		if b, err := reply.Pack(); err == nil {
			conn.WriteTo(b, from)
		}
	}
}
