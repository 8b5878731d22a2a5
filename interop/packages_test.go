//go:build interop

package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// goPackage is a Go package that uses a ZooKeeper and whose tests need one. It is
// downloaded from the module proxy; this repository contains no part of it.
type goPackage struct {
	name   string // of its go.mod and go.sum in testdata/packages, which pin what it imports
	module string
	sum    string   // the module's checksum, as in a go.sum
	dirs   []string // the package, and others of the module that it imports
	tags   string
	env    string // the variable that tells the tests the server's address, or
	file   string // the file that has it as a constant, localhost:2181

	prepare func(t *testing.T, addr string)
	tests   []string // those that need a server
}

var goPackages = []goPackage{
	{
		// A store of keys and values behind an interface that Consul and etcd have, too.
		name:   "valkeyrie",
		module: "github.com/kvtools/zookeeper@v1.0.2",
		sum:    "h1:uK0CzQa+mtKGxDDH+DeqXo2HC1Kx4hWXZ7pX/zS4aTo=",
		dirs:   []string{"."},
		file:   "zookeeper_test.go",
		tests:  []string{"TestRegister", "TestZkStore"},
	},
	{
		// Service discovery.
		name:   "go-kit",
		module: "github.com/go-kit/kit@v0.13.0",
		sum:    "h1:OoneCcHKHQ03LfBpoQCUfCluwd2Vt3ohz+kvbJneZAU=",
		dirs:   []string{"sd/zk", "sd", "sd/internal/instance", "endpoint"},
		tags:   "integration",
		env:    "ZK_ADDR",
		// Its authors skip TestGetEntriesPayloadOnServer, as flaky.
		tests: []string{"TestCreateParentNodesOnServer", "TestCreateBadParentNodesOnServer", "TestCredentials1", "TestCredentials2",
			"TestConnection", "TestGetEntriesOnServer"},
	},
	{
		// Consumer groups and topics of Kafka.
		name:    "kazoo-go",
		module:  "github.com/wvanbergen/kazoo-go@v0.0.0-20180202103751-f72d8611297a",
		sum:     "h1:ILoU84rj4AQ3q6cjQvtb9jBjx4xzR/Riq/zYhmDQiOk=",
		dirs:    []string{"."},
		env:     "ZOOKEEPER_PEERS",
		prepare: startKazooGoKafka,
		// TestDeleteTopicSync is left out. It loops forever if the broker changes the
		// topic's znode before deleting it, as brokers newer than the package may do,
		// also on ZooKeeper.
		tests: []string{"TestBrokers", "TestBrokerList", "TestController", "TestConsumergroups", "TestConsumergroupInstances",
			"TestConsumergroupInstanceCrash", "TestConsumergroupWatchInstances", "TestConsumergroupInstanceWatchRegistration",
			"TestConsumergroupInstanceClaimPartition", "TestConsumergroupInstanceClaimPartitionSame",
			"TestConsumergroupInstanceWatchPartitionClaim", "TestConsumergroupOffsets", "TestConsumergroupResetOffsetsRace",
			"TestConsumergroupResetOffsets", "TestCreateDeleteTopic", "TestTopics", "TestTopicPartitions", "TestTopicConfig"},
	},
}

// TestGoPackages runs the tests of goPackages against lockkeeper. All of them also pass on
// ZooKeeper 3.9.5.
func TestGoPackages(t *testing.T) {
	t.Parallel()
	for _, p := range goPackages {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel() // with the other packages, because the tests mostly wait
			p.test(t, startLockkeeper(t, "--memory").addr)
		})
	}
}

// test runs the package's tests in a copy of it, with the server at addr.
func (p *goPackage) test(t *testing.T, addr string) {
	module, sum := downloadModule(t, p.module)
	if sum != p.sum {
		t.Fatalf("%s has the checksum %s, not %s", p.module, sum, p.sum)
	}
	root := t.TempDir()
	for _, dir := range p.dirs {
		files, err := filepath.Glob(filepath.Join(module, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no package %s: %v", p.module, dir, err)
		}
		for _, file := range files {
			text := must(os.ReadFile(file))(t)
			name := filepath.Base(file)
			if name == p.file {
				const usual = `"localhost:2181"`
				if n := bytes.Count(text, []byte(usual)); n != 1 {
					t.Fatalf("%s has %s %d times, not once", name, usual, n)
				}
				text = bytes.Replace(text, []byte(usual), []byte(strconv.Quote(addr)), 1)
			}
			writeFile(t, filepath.Join(root, dir, name), text)
		}
	}
	for from, to := range map[string]string{".mod": "go.mod", ".sum": "go.sum"} {
		text := must(os.ReadFile(filepath.Join("testdata", "packages", p.name+from)))(t)
		writeFile(t, filepath.Join(root, to), text)
	}
	if p.prepare != nil {
		p.prepare(t, addr)
	}
	before := requestsOf(t, addr)
	goTestThrice(t, p.tests, func(pattern string) *exec.Cmd {
		cmd := exec.Command("go", "test", "-json", "-count=1", "-vet=off", "-timeout=1m", "-tags="+p.tags, "-run", pattern, "./"+p.dirs[0])
		cmd.Dir = root
		cmd.Env = append(cleanEnv(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
		if p.env != "" {
			cmd.Env = append(cmd.Env, p.env+"="+addr)
		}
		return cmd
	})
	if n := requestsOf(t, addr) - before; n < len(p.tests) {
		t.Errorf("the server got %d requests", n)
	} else {
		t.Logf("%d tests ran, and the server got %d requests", len(p.tests), n)
	}
}

func writeFile(t *testing.T, path string, text []byte) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	check(t, os.WriteFile(path, text, 0o644))
}

// requestsOf returns how many packets a server has received.
func requestsOf(t *testing.T, addr string) int {
	t.Helper()
	answer, err := fourLetterWord(addr, "srvr", startDeadline)
	match := regexp.MustCompile(`(?m)^Received: (\d+)$`).FindStringSubmatch(answer)
	if err != nil || match == nil {
		t.Fatalf("srvr: %q, %v", answer, err)
	}
	n := must(strconv.Atoi(match[1]))(t)
	return n
}

// startKazooGoKafka starts a Kafka broker that keeps its state on the server at addr, and
// creates the topics that kazoo-go's tests need.
func startKazooGoKafka(t *testing.T, addr string) {
	jars := must(jarsOf("kafka", "clients/kafka/pom.xml"))(t)
	startKafka(t, jars, addr)
	conn := connect(t, addr, 10*time.Second)
	await := func(path string) {
		for deadline := time.Now().Add(startDeadline); ; time.Sleep(10 * time.Millisecond) {
			if ok, _, err := conn.Exists(path); err == nil && ok {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("Kafka does not create %s: %v", path, err)
			}
		}
	}
	await("/brokers/ids/0")
	await("/controller")
	create := func(path, text string) {
		if _, err := conn.Create(path, []byte(text), 0, openACL); err != nil {
			t.Fatalf("create %s: %v", path, err)
		}
	}
	// Kafka's own command used to create topics like this, and kazoo-go does.
	for _, topic := range []struct{ name, config, partitions, last string }{
		{"test.1", `{}`, `{"0":[0]}`, "0"},
		{"test.4", `{"retention.ms":"604800000"}`, `{"0":[0],"1":[0],"2":[0],"3":[0]}`, "3"},
	} {
		create("/config/topics/"+topic.name, `{"version":1,"config":`+topic.config+`}`)
		create("/brokers/topics/"+topic.name, `{"version":1,"partitions":`+topic.partitions+`}`)
		await("/brokers/topics/" + topic.name + "/partitions/" + topic.last + "/state")
	}
}
