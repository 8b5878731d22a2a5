package lockkeepertest_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/lockkeepertest"
)

// BenchmarkStart starts a server, connects a client, and closes both.
func BenchmarkStart(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		t := newT()
		lockkeepertest.Start(t).Connect(t, time.Minute)
		t.end()
	}
}

// BenchmarkStart1000 does that with 1,000 servers that run at the same time.
func BenchmarkStart1000(b *testing.B) {
	const servers = 1000
	for b.Loop() {
		var all sync.WaitGroup
		var started sync.WaitGroup
		started.Add(servers)
		for range servers {
			all.Go(func() {
				t := newT()
				lockkeepertest.Start(t).Connect(t, time.Minute)
				started.Done()
				started.Wait()
				t.end()
			})
		}
		all.Wait()
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e3/float64(b.N*servers), "ms/server")
}

// BenchmarkCluster starts three servers and waits until they are ready.
func BenchmarkCluster(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		t := newT()
		lockkeepertest.StartCluster(t, 3)
		b.StopTimer()
		t.end()
		b.StartTimer()
	}
}

// BenchmarkIdleHour lets three servers be idle for an hour of virtual time: without a
// client, and with one that only pings.
func BenchmarkIdleHour(b *testing.B) {
	for _, name := range []string{"alone", "client"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if !inBubble(b.Name(), func(t *testing.T) {
					c := lockkeepertest.StartCluster(t, 3)
					if name == "client" {
						c.Connect(t, 30*time.Second)
					}
					time.Sleep(time.Hour)
				}) {
					b.Fatal("failed")
				}
			}
		})
	}
}

// inBubble runs f in virtual time, for which synctest needs a test.
func inBubble(name string, f func(t *testing.T)) bool {
	name = strings.ReplaceAll(name, "/", "_")
	return testing.RunTests(
		func(string, string) (bool, error) { return true, nil },
		[]testing.InternalTest{{Name: name, F: func(t *testing.T) { synctest.Test(t, f) }}})
}
