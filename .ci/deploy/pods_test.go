//go:build linux

package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/lockkeeper/lockkeeper/internal/testing/testkit"
)

// status returns what "kubectl exec lockkeeper-1 -- lockkeeper cluster status" says, and the ids of the voters.
func (n *node) status() (health string, voters []int, cluster string) {
	n.t.Helper()
	out, errs, _ := n.pods[1].exec("cluster", "status", "--json")
	var s struct {
		Health, Cluster string
		Members         []struct {
			ID    int
			Voter bool
		}
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		n.t.Fatalf("cluster status: %v: %q %q", err, out, errs)
	}
	for _, m := range s.Members {
		if m.Voter {
			voters = append(voters, m.ID)
		}
	}
	slices.Sort(voters)
	return s.Health, voters, s.Cluster
}

// awaitVoters waits until all is well with a cluster of these members.
func (n *node) awaitVoters(ids ...int) {
	n.t.Helper()
	n.await(fmt.Sprintf("a healthy cluster of %v", ids), func() bool {
		health, voters, _ := n.status()
		return health == "ok" && slices.Equal(voters, ids)
	})
}

// helmTest runs the pod of "helm test".
func (n *node) helmTest() {
	n.t.Helper()
	p := n.create(n.tester.Name, -1, &n.tester.Spec, nil)
	n.begin(p)
	code, last := p.end()
	if log := p.log.String(); code != 0 || !strings.Contains(log, "/helm-test taken") {
		n.t.Errorf("helm test has ended with %d, %q:\n%s", code, last, log)
	}
	n.remove(-1)
}

// createSet starts the first pods, as the StatefulSet says.
func (n *node) createSet(replicas int) {
	n.t.Helper()
	for id := 1; id <= replicas; id++ {
		n.start(id)
		if n.set.Spec.PodManagementPolicy != apps.ParallelPodManagement {
			n.waitReady(id)
		}
	}
	for id := 1; id <= replicas; id++ {
		n.waitReady(id)
	}
}

// TestPods runs a cluster through its life while clients hold locks and write: a rolling restart, a container that
// crashes, more members and fewer, a volume that is lost, a backup that is restored.
func TestPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply("")
	n.createSet(3)
	n.awaitVoters(1, 2, 3)
	n.helmTest()
	l := startLoad(n)

	n.roll(3)
	l.progress()
	n.awaitVoters(1, 2, 3)

	// A container that ends is started again, in the same pod.
	p := n.pods[3]
	check(t, p.process.Process.Kill())
	<-p.ended
	p.stop()
	p.probes.Wait()
	p.process = p.command(p.args()...)
	p.run()
	n.waitReady(3)

	// More members join by themselves.
	n.start(4)
	n.start(5)
	n.waitReady(4, 5)
	n.awaitVoters(1, 2, 3, 4, 5)
	l.progress()

	// Fewer pods, but nobody has removed the members: nothing is lost, and they come back.
	n.delete(5)
	n.delete(4)
	l.progress()
	if health, voters, _ := n.status(); health != "degraded" || len(voters) != 5 {
		t.Errorf("with two pods less, the cluster is %s, with the voters %v", health, voters)
	}
	n.start(4)
	n.start(5)
	n.waitReady(4, 5)
	n.awaitVoters(1, 2, 3, 4, 5)

	// The right way, as docs/kubernetes.md says.
	for _, id := range []int{5, 4} {
		if out, errs, code := n.pods[1].exec("cluster", "remove", fmt.Sprint(id)); code != 0 {
			t.Fatalf("cluster remove %d: %q %q", id, out, errs)
		}
		if code, last := n.pods[id].end(); code != 1 || !strings.Contains(last, fmt.Sprintf("server %d was removed from its cluster", id)) {
			t.Errorf("server %d has ended with %d, %q", id, code, last)
		}
		n.delete(id)
	}
	n.awaitVoters(1, 2, 3)
	l.progress()

	// A removed member does not come back by itself, and does so with an empty volume.
	if code, last := n.start(4).end(); code != 1 || !strings.Contains(last, "server 4 was removed from its cluster") {
		t.Errorf("server 4 has ended with %d, %q", code, last)
	}
	n.delete(4)
	check(t, os.RemoveAll(n.volume(4, "data")))
	n.start(4)
	n.waitReady(4)
	n.awaitVoters(1, 2, 3, 4)

	// A volume that is lost.
	n.delete(2)
	check(t, os.RemoveAll(n.volume(2, "data")))
	n.start(2)
	n.waitReady(2)
	n.awaitVoters(1, 2, 3, 4)
	l.end(1, 2, 3, 4)

	_, _, before := n.status()
	backup := n.save(2)
	for id := range 4 {
		n.delete(id + 1)
	}
	check(t, os.RemoveAll(n.volume(4, "data")))
	n.restore(backup, 3)
	n.restore(backup, 3) // an operator may do it twice
	if kept, err := filepath.Glob(filepath.Join(n.volume(1, "data"), "lockkeeper.old-*", "meta.json")); err != nil || len(kept) != 2 {
		t.Errorf("the old data are at %v, %v", kept, err)
	}
	n.createSet(4) // the fourth joins again
	n.awaitVoters(1, 2, 3, 4)
	l.holds(1)
	l.holds(4)
	if _, _, after := n.status(); after == before {
		t.Errorf("the restored cluster has the id %s of the old one", after)
	}
}

// add adds a member of the first three that waits for this, as docs/kubernetes.md says.
func (n *node) add(id int) {
	n.t.Helper()
	member := fmt.Sprintf("%d=%s.lockkeeper-peers.%s.svc:2888", id, n.podName(id), namespace)
	end := time.Now().Add(time.Minute)
	for {
		out, errs, code := n.pods[1].exec("cluster", "add", member)
		if code == 0 {
			return
		}
		if time.Now().After(end) {
			n.t.Fatalf("cluster add %s: %q %q", member, out, errs)
		}
	}
}

// save saves a backup by the port for operators of a member, which "kubectl port-forward" reaches.
func (n *node) save(id int) (backup string) {
	n.t.Helper()
	backup = filepath.Join(n.t.TempDir(), "backup")
	c := exec.Command(n.program, "snapshot", "save", backup, "--admin", "127.0.0.1:8080")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	check(n.t, n.pods[id].within(c.Start))
	if err := c.Wait(); err != nil {
		n.t.Fatalf("snapshot save: %v: %s", err, &out)
	}
	return backup
}

// restore restores a snapshot to the volumes of the first members, with the pods of docs/kubernetes.md.
func (n *node) restore(backup string, members int) {
	t := n.t
	t.Helper()
	manifest := restoreManifest(t)
	snapshot := must(os.ReadFile(backup))(t)
	if members == 1 {
		list, _, _ := strings.Cut(manifest, ",2=")
		_, rest, _ := strings.Cut(manifest, "3=lockkeeper-3.lockkeeper-peers.NAMESPACE.svc:2888")
		manifest = list + rest
	}
	for id := 1; id <= members; id++ {
		doc := strings.NewReplacer("ID", fmt.Sprint(id), "NAMESPACE", namespace).Replace(manifest)
		doc = strings.Replace(doc, "REGISTRY/", "registry.example/", 1)
		if _, err := validate([]byte(doc)); err != nil {
			t.Fatal(err)
		}
		object, _, err := codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
		check(t, err)
		legacyscheme.Scheme.Default(object)
		x := object.(*core.Pod)
		if claim := x.Spec.Volumes[0].PersistentVolumeClaim; claim == nil || claim.ClaimName != "data-"+n.podName(id) || !x.Spec.Containers[0].Stdin {
			t.Fatalf("the volume is not that of member %d, or there is no standard input: %+v", id, x.Spec)
		}
		p := n.create(n.podName(id), id, &x.Spec, nil) // with the volume of this pod
		p.process.Stdin = bytes.NewReader(snapshot)
		n.begin(p)
		if code, last := p.end(); code != 0 || !strings.HasPrefix(last, fmt.Sprintf("restored standard input: server %d, ", id)) {
			t.Fatalf("snapshot restore has ended with %d, %q", code, last)
		}
		n.remove(id)
	}
}

// TestPodsTLS: clients and members use TLS, and the certificates of both, and then their authorities, are replaced as
// docs/kubernetes.md says.
func TestPodsTLS(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply("tls: {clientSecret: clients, peerSecret: peers}\nadminWrite: [sessions, locks, snapshots]\nextraArgs: [--tick-time=1s]")
	dir := t.TempDir()
	file := func(path string) []byte { return must(os.ReadFile(path))(t) }
	set := func(ca *testkit.CA, trusted []byte) {
		for name, hosts := range map[string][]string{
			"peers":   {"*.lockkeeper-peers." + namespace + ".svc"},
			"clients": {"lockkeeper", "*.lockkeeper-peers." + namespace + ".svc"},
		} {
			cert, key := testkit.WritePair(t, ca.Named(t, hosts...), dir, "cert.pem", "key.pem")
			n.secrets[name] = map[string][]byte{"tls.crt": file(cert), "tls.key": file(key), "ca.crt": trusted}
		}
	}
	first, second := testkit.NewCA(t), testkit.NewCA(t)
	firstCA, secondCA := file(first.WriteCA(t, dir, "first.pem")), file(second.WriteCA(t, dir, "second.pem"))
	set(first, firstCA)
	n.createSet(3)
	n.awaitVoters(1, 2, 3)
	n.helmTest()
	if out, errs, code := n.pods[2].exec("lock", "ls", "--server", "127.0.0.1:2181", "--timeout", "2s"); code == 0 {
		t.Errorf("the port for clients speaks without TLS: %q %q", out, errs)
	}
	for _, step := range []struct {
		ca      *testkit.CA
		trusted []byte
	}{{first, slices.Concat(firstCA, secondCA)}, {second, slices.Concat(firstCA, secondCA)}, {second, secondCA}} {
		set(step.ca, step.trusted)
		for id := 1; id <= 3; id++ {
			n.pods[id].renew()
		}
		n.helmTest()
	}
	n.awaitVoters(1, 2, 3)

	// One port for clients with TLS and without.
	n.apply("tls: {clientSecret: clients, peerSecret: peers}\nextraArgs: [--tick-time=1s, --listen=:2181, --tls-listen=, --tls-on-listen]")
	n.roll(3)
	n.helmTest()
	if out, errs, code := n.pods[2].exec("lock", "ls", "--server", "127.0.0.1:2181", "--timeout", "5s"); code != 0 {
		t.Errorf("the port for both does not speak without TLS: %q %q", out, errs)
	}
}

// TestPodSingle: a single server keeps its data over a restart. A second pod, which somebody has made by scaling it
// without the chart, does not become a second server. With the chart it becomes a cluster, under load.
func TestPodSingle(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply("replicas: 1")
	n.start(1)
	n.waitReady(1)
	n.helmTest()
	_, _, before := n.status()
	if code, last := n.start(2).end(); code != 2 || !strings.Contains(last, "--id: server 2 is not among the members") {
		t.Errorf("server 2 has ended with %d, %q", code, last)
	}
	n.delete(2)
	n.roll(1)
	n.helmTest()
	if health, voters, after := n.status(); health != "ok" || len(voters) != 1 || after != before {
		t.Errorf("it is %s, with the voters %v, and was cluster %s, now %s", health, voters, before, after)
	}
	// Two further pods come, and are added to it. Then the StatefulSet restarts the first one with the values of a cluster.
	l := startLoad(n)
	n.apply("")
	for id := 2; id <= 3; id++ {
		n.start(id)
		n.add(id)
	}
	n.waitReady(2, 3)
	n.awaitVoters(1, 2, 3)
	n.delete(1)
	n.start(1)
	n.waitReady(1)
	n.awaitVoters(1, 2, 3)
	l.end(1, 2, 3)

	// A backup, restored to a single server and to a cluster.
	backup := n.save(1)
	for id := range 3 {
		n.delete(id + 1)
	}
	n.restore(backup, 1)
	n.apply("replicas: 1")
	n.start(1)
	n.waitReady(1)
	n.helmTest()
	n.delete(1)
	n.restore(backup, 3)
	n.apply("")
	n.createSet(3)
	n.awaitVoters(1, 2, 3)
}

// TestPodsFormTogether: as long as one of the first three pods cannot be started, none is ready, and a fourth waits
// with them.
func TestPodsFormTogether(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.apply("replicas: 4")
	n.start(1)
	n.start(2)
	n.start(4)
	n.await("server 1 to say whom it waits for", func() bool {
		out, _, _ := n.pods[1].exec("cluster", "status")
		return strings.Contains(out, "waiting for server 3 at lockkeeper-3.lockkeeper-peers."+namespace+".svc:2888")
	})
	time.Sleep(late)
	for id, p := range n.pods {
		if p.ready.Load() {
			t.Errorf("server %d is ready in no cluster", id)
		}
	}
	n.start(3)
	n.waitReady(1, 2, 3, 4)
	n.awaitVoters(1, 2, 3, 4)

	// One of the first three was removed by mistake, and comes back when an operator adds it.
	if out, errs, code := n.pods[1].exec("cluster", "remove", "2"); code != 0 {
		t.Fatalf("cluster remove 2: %q %q", out, errs)
	}
	n.pods[2].end()
	n.delete(2)
	if code, last := n.start(2).end(); code != 1 || !strings.Contains(last, "server 2 was removed from its cluster") {
		t.Errorf("server 2 has ended with %d, %q", code, last)
	}
	n.delete(2)
	check(t, os.RemoveAll(n.volume(2, "data")))
	n.start(2)
	n.add(2)
	n.waitReady(2)
	n.awaitVoters(1, 2, 3, 4)
}

// TestPodOfAnyUser: on OpenShift a pod runs as a user that nobody knows beforehand. It gets a JAAS file in a volume, and
// a flag as a variable, both from a Secret.
func TestPodOfAnyUser(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.secrets["users"] = map[string][]byte{
		"jaas.conf": []byte("Server {\n  org.apache.zookeeper.server.auth.DigestLoginModule required\n    user_bob=\"secret\";\n};\n"),
		"super":     []byte("super:xQJmxLMiHGwaqBvst5y6rkB6HQs="), // admin
	}
	n.apply(`
replicas: 1
podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}
extraArgs: [--jaas=/sasl/jaas.conf]
extraEnv: [{name: LOCKKEEPER_SUPER_DIGEST, valueFrom: {secretKeyRef: {name: users, key: super}}}]
extraVolumes: [{name: sasl, secret: {secretName: users, defaultMode: 0440}}]
extraVolumeMounts: [{name: sasl, mountPath: /sasl, readOnly: true}]`)
	n.start(1)
	n.waitReady(1)
	n.helmTest()
	zk := func(args ...string) (string, int) {
		out, errs, code := n.pods[1].exec(append([]string{"zk"}, args...)...)
		return out + errs, code
	}
	if out, code := zk("create", "/secret", "data", "digest:ann:xQJmxLMiHGwaqBvst5y6rkB6HQs=:r"); code != 0 {
		t.Fatalf("create: %s", out)
	}
	if out, code := zk("get", "/secret"); code == 0 {
		t.Errorf("everybody may read the znode of another one: %s", out)
	}
	if out, code := zk("--auth", "digest:super:admin", "get", "/secret"); code != 0 || !strings.Contains(out, "data") {
		t.Errorf("the super user may not read a znode: %s", out)
	}
	n.roll(1)
	n.helmTest()
}
