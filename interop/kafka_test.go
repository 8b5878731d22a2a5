//go:build interop

package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKafka runs a Kafka broker that keeps its topics and settings on the server and
// elects its controller there. Both are restarted, separately and together, while
// records are transferred.
func TestKafka(t *testing.T) {
	t.Parallel()
	jars := must(jarsOf("kafka", "clients/kafka/pom.xml"))(t)
	classes := must(compileJava("kafka", jars, "clients/java/Cases.java", "clients/kafka/KafkaCases.java"))(t)
	// With a tick of 1 s the broker gets the session timeout that it asks for by default, 18 s: restarts do not expire it.
	eachServer(t, zk39, time.Second, func(t *testing.T, server *testServer) {
		wire := startCutter(t, server.addr)
		b := startKafka(t, jars, wire.addr)
		outcomes := runJava(t, jars+":"+classes, "KafkaCases", map[string]func(){
			"restart server": func() { server.stopBehind(wire); server.startBehind(wire) },
			"stop broker":    b.stop,
			"start broker":   b.start,
			"restart broker": func() { b.stop(); b.start() },
		}, b.addr)
		checkCases(t, outcomes, "broker", "create-topic", "produce-consume", "alter-config", "more-partitions",
			"broker-restart", "server-restart", "both-restart", "delete-topic")
		conn := connect(t, server.addr, 10*time.Second)
		// The broker reports that a topic is deleted before it deletes the znode.
		for deadline := time.Now().Add(startDeadline); ; time.Sleep(10 * time.Millisecond) {
			if ok, _, err := conn.Exists("/brokers/topics/second"); err != nil || time.Now().After(deadline) {
				t.Fatalf("the deleted topic stays: %v", err)
			} else if !ok {
				break
			}
		}
		if ids, _, err := conn.Children("/brokers/ids"); err != nil || len(ids) != 1 {
			t.Errorf("registered brokers: %v, %v", ids, err)
		}
		b.stop()
		if ids, _, err := conn.Children("/brokers/ids"); err != nil || len(ids) != 0 {
			t.Errorf("after the broker stopped: %v, %v", ids, err)
		}
		if ok, _, err := conn.Exists("/controller"); ok || err != nil {
			t.Errorf("the stopped broker is the controller: %v, %v", ok, err)
		}
		if _, _, err := conn.Get("/brokers/topics/first"); err != nil {
			t.Errorf("the topic: %v", err)
		}
	})
}

// kafka is a broker, in ZooKeeper mode.
type kafka struct {
	t         *testing.T
	jars, dir string
	addr      string
	cmd       *exec.Cmd
}

func startKafka(t *testing.T, jars, zookeeper string) *kafka {
	t.Helper()
	b := &kafka{t: t, jars: jars, dir: t.TempDir(), addr: freeAddr(t)}
	files := map[string]string{
		"server.properties": fmt.Sprintf(`
broker.id=0
listeners=PLAINTEXT://%s
log.dirs=%s
zookeeper.connect=%s/
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
num.network.threads=2
num.io.threads=2
background.threads=2
`, b.addr, filepath.Join(b.dir, "records"), zookeeper),
		"log4j.properties": `
log4j.rootLogger=WARN, out
log4j.logger.kafka.server.KafkaServer=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ABSOLUTE} %p %c: %m%n
`,
	}
	for name, text := range files {
		check(t, os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600))
	}
	t.Cleanup(func() {
		b.cmd.Process.Kill()
		b.cmd.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(b.dir, "log"))
			t.Logf("the log of Kafka ends with:\n%s", text[max(0, len(text)-8000):])
		}
	})
	b.start()
	return b
}

// start starts the broker. It does not wait until the broker is ready, because its clients do.
func (b *kafka) start() {
	log, err := os.OpenFile(filepath.Join(b.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.t.Fatal(err)
	}
	defer log.Close()
	b.cmd = javaCommand("-Xmx256m",
		"-Dlog4j.configuration=file:"+filepath.Join(b.dir, "log4j.properties"),
		"-cp", b.jars, "kafka.Kafka", filepath.Join(b.dir, "server.properties"))
	b.cmd.Dir = b.dir
	b.cmd.Stdout, b.cmd.Stderr = log, log
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := b.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
}

// stop stops the broker with SIGTERM, after which it must log an orderly shutdown.
func (b *kafka) stop() {
	b.cmd.Process.Signal(syscall.SIGTERM)
	stuck := time.AfterFunc(clientDeadline, func() { b.cmd.Process.Kill() })
	b.cmd.Wait() // the exit code of a JVM is never 0 after SIGTERM
	if !stuck.Stop() {
		b.t.Errorf("the broker did not stop within %v", clientDeadline)
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "log"))
	if err != nil {
		b.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "shut down completed") {
		b.t.Errorf("the broker's last words are %q", last)
	}
}
