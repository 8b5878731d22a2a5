//go:build interop

package interop

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// envSystems makes the tests of systems run, which take long, and some others.
const envSystems = "LOCKKEEPER_INTEROP_SYSTEMS"

// atNight skips a test that takes too long for every change, unless envSystems is set.
func atNight(t *testing.T) {
	t.Helper()
	if os.Getenv(envSystems) == "" {
		t.Skip(envSystems + " is not set")
	}
}

// system is a part of another project's own tests, which run with lockkeeper in place of
// ZooKeeper. docs/systems.md has the same table.
type system struct {
	name  string
	pom   string         // clients/<pom>/pom.xml has its jars; without it, a test of its own runs the system
	stand string         // clients/<stand> has the classes that stand in for the tests' servers
	tests []string       // arguments of JUnit's console that select them
	least int            // how many must pass
	each  map[string]int // and how many in classes of Curator, if that is checked, too
	// may are tests that may fail, as they do on ZooKeeper, or for the reason that
	// docs/systems.md gives.
	may []string
}

const (
	curator    = "org.apache.curator."
	flink      = "org.apache.flink.runtime."
	hadoop     = "org.apache.hadoop.ha."
	bookkeeper = "org.apache.bookkeeper."
)

// classes returns the arguments that select classes.
func classes(prefix string, names ...string) (args []string) {
	for _, name := range names {
		args = append(args, "--select-class", prefix+name)
	}
	return args
}

// curatorRecipes are the classes of Curator's recipes that run, and how many of their tests must
// pass, so that none can stop running unnoticed. All classes with tests run, except TestLeaderSelectorEdges, which needs a
// ZooKeeper in its own process.
var curatorRecipes = map[string]int{
	"connection.TestThreadLocalRetryLoop":                         3,
	"framework.client.TestBackgroundStates":                       2,
	"framework.client.TestResetConnectionWithBackgroundFailure":   1,
	"framework.recipes.atomic.TestCachedAtomicCounter":            2,
	"framework.recipes.atomic.TestDistributedAtomicLong":          6,
	"framework.recipes.barriers.TestDistributedBarrier":           4,
	"framework.recipes.barriers.TestDistributedDoubleBarrier":     3,
	"framework.recipes.cache.TestCuratorCache":                    5,
	"framework.recipes.cache.TestCuratorCacheBridge":              2,
	"framework.recipes.cache.TestCuratorCacheConsistency":         1,
	"framework.recipes.cache.TestCuratorCacheEdges":               2,
	"framework.recipes.cache.TestCuratorCacheEventOrdering":       1,
	"framework.recipes.cache.TestCuratorCacheWrappers":            3,
	"framework.recipes.cache.TestNodeCache":                       4,
	"framework.recipes.cache.TestPathChildrenCache":               20,
	"framework.recipes.cache.TestPathChildrenCacheEventOrdering":  1,
	"framework.recipes.cache.TestPathChildrenCacheInCluster":      1,
	"framework.recipes.cache.TestTreeCache":                       25,
	"framework.recipes.cache.TestTreeCacheEventOrdering":          1,
	"framework.recipes.cache.TestTreeCacheIteratorAndSize":        4,
	"framework.recipes.cache.TestTreeCacheRandomTree":             2,
	"framework.recipes.cache.TestWrappedNodeCache":                3,
	"framework.recipes.leader.TestLeaderAcls":                     1,
	"framework.recipes.leader.TestLeaderLatch":                    21,
	"framework.recipes.leader.TestLeaderLatchCluster":             1,
	"framework.recipes.leader.TestLeaderSelector":                 12,
	"framework.recipes.leader.TestLeaderSelectorCluster":          2,
	"framework.recipes.leader.TestLeaderSelectorParticipants":     2,
	"framework.recipes.leader.TestLeaderSelectorWithExecutor":     1,
	"framework.recipes.locks.TestInterProcessMultiMutex":          11,
	"framework.recipes.locks.TestInterProcessMutex":               12,
	"framework.recipes.locks.TestInterProcessReadWriteLock":       8,
	"framework.recipes.locks.TestInterProcessSemaphore":           12,
	"framework.recipes.locks.TestInterProcessSemaphoreCluster":    2,
	"framework.recipes.locks.TestInterProcessSemaphoreMutex":      6,
	"framework.recipes.locks.TestLockACLs":                        2,
	"framework.recipes.locks.TestLockInternals":                   2,
	"framework.recipes.nodes.TestGroupMember":                     1,
	"framework.recipes.nodes.TestPersistentEphemeralNode":         23,
	"framework.recipes.nodes.TestPersistentEphemeralNodeListener": 1,
	"framework.recipes.nodes.TestPersistentNode":                  7,
	"framework.recipes.nodes.TestPersistentTtlNode":               7,
	"framework.recipes.queue.TestBoundedDistributedQueue":         2,
	"framework.recipes.queue.TestDistributedDelayQueue":           4,
	"framework.recipes.queue.TestDistributedIdQueue":              3,
	"framework.recipes.queue.TestDistributedPriorityQueue":        4,
	"framework.recipes.queue.TestDistributedQueue":                11,
	"framework.recipes.queue.TestLongNetworkPartition":            1,
	"framework.recipes.queue.TestQueueSharder":                    3,
	"framework.recipes.queue.TestSimpleDistributedQueue":          14,
	"framework.recipes.shared.TestSharedCount":                    8,
	"framework.recipes.watch.TestPersistentWatcher":               5,
}

var systems = []system{
	{name: "Curator 5.9.0, client", pom: "curator", stand: "curator", tests: []string{"--scan-classpath", "curator-client-5.9.0-tests.jar"}, least: 27},
	{name: "Curator 5.9.0, framework", pom: "curator", stand: "curator", tests: []string{"--scan-classpath", "curator-framework-5.9.0-tests.jar"}, least: 258},
	{name: "Curator 5.9.0, recipes", pom: "curator", stand: "curator", tests: classes(curator, slices.Sorted(maps.Keys(curatorRecipes))...), least: 285, each: curatorRecipes,
		may: []string{curator + "framework.recipes.leader.TestLeaderLatch#testNoServerAtStart"}},
	{name: "Flink 1.20.4, high availability", pom: "flink", stand: "curator", least: 119, tests: classes(flink,
		"checkpoint.ZooKeeperCheckpointIDCounterITCase",
		"checkpoint.ZooKeeperCompletedCheckpointStoreITCase",
		"checkpoint.ZooKeeperCompletedCheckpointStoreTest",
		"dispatcher.runner.ZooKeeperDefaultDispatcherRunnerTest",
		"jobmanager.ZooKeeperJobGraphStoreWatcherTest",
		"jobmanager.ZooKeeperJobGraphsStoreITCase",
		"leaderelection.ZooKeeperLeaderElectionConnectionHandlingTest",
		"leaderelection.ZooKeeperLeaderElectionDriverTest",
		"leaderelection.ZooKeeperLeaderElectionTest",
		"leaderretrieval.ZooKeeperLeaderRetrievalConnectionHandlingTest",
		"leaderretrieval.ZooKeeperLeaderRetrievalTest",
		"util.ZooKeeperUtilsTest",
		"util.ZooKeeperUtilsTreeCacheTest",
		"util.ZooKeeperUtilsWriteLeaderInformationTest",
		"zookeeper.ZooKeeperStateHandleStoreTest",
	)},
	{name: "Hadoop 3.4.1, failover controller", pom: "hadoop", stand: "hadoop", least: 57, tests: classes(hadoop,
		"TestActiveStandbyElector",
		"TestActiveStandbyElectorRealZK",
		"TestZKFailoverController",
		"TestZKFailoverControllerStress",
	)},
	{name: "BookKeeper 4.17.2, metadata", pom: "bookkeeper", stand: "bookkeeper", least: 144, tests: classes(bookkeeper,
		"meta.TestLongZkLedgerIdGenerator",
		"meta.TestZkLedgerIdGenerator",
		"meta.TestLedgerManager",
		"meta.LedgerMetadataCreationTest",
		"meta.LedgerManagerIteratorTest",
		"meta.GcLedgersTest",
		"meta.ZkLedgerLayoutTest",
		"discover.TestZkRegistrationManager",
		"zookeeper.TestZooKeeperClient",
		"zookeeper.TestZKClientBoundExpBackoffRP",
		"zookeeper.TestZKClientExpBackoffWithDeadlineRP",
		"util.TestZkUtils",
		"client.BookKeeperClientZKSessionExpiry",
		"test.BookieZKExpireTest",
	), may: []string{bookkeeper + "meta.TestLongZkLedgerIdGenerator#testGenerateLedgerId"}},
	{name: "ClickHouse 18.16.1, replicated table", least: len(clickHouseSteps)},
	{name: "Patroni 4.1.5, PostgreSQL", least: len(patroniSteps)},
}

// TestSystems runs the tests of other projects with lockkeeper's processes as their servers. A
// test that fails is run again, twice at most, since some of them fail now and then with
// ZooKeeper too, when the machine is busy.
func TestSystems(t *testing.T) {
	atNight(t)
	for _, s := range systems {
		if s.pom == "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			jars := must(jarsOf(s.pom, "clients/"+s.pom+"/pom.xml"))(t)
			sources, _ := filepath.Glob("clients/" + s.stand + "/*.java")
			classes := must(compileJava("system-"+s.pom, jars, append(sources, "clients/systems/Server.java")...))(t)
			began := time.Now()
			tests := slices.Clone(s.tests)
			for i, arg := range tests {
				if strings.HasSuffix(arg, ".jar") {
					tests[i] = filepath.Join(filepath.Dir(jars), arg)
				}
			}
			outcomes := runJUnit(t, classes+":"+jars, tests)
			for range 2 {
				if again := selectFailed(outcomes); len(again) > 0 {
					t.Logf("again: %q", again)
					maps.Copy(outcomes, runJUnit(t, classes+":"+jars, again))
				}
			}
			passed, each := 0, map[string]int{}
			for name, outcome := range outcomes {
				switch {
				case outcome == "":
					passed++
					class, _, _ := strings.Cut(strings.TrimPrefix(name, curator), "#")
					each[class]++
				case !slices.Contains(s.may, name):
					t.Errorf("%s: %s", name, outcome)
				}
			}
			t.Logf("%d tests passed in %v", passed, time.Since(began).Round(time.Second))
			if passed < s.least {
				t.Errorf("%d tests passed, and at least %d must", passed, s.least)
			}
			for class, least := range s.each {
				if each[class] < least {
					t.Errorf("%s: %d tests passed, and at least %d must", class, each[class], least)
				}
			}
		})
	}
}

// javaCases returns the outcomes in the JUnit reports of a folder by CLASS#METHOD: "" for passed. It leaves out
// what was skipped.
func javaCases(dir string) (map[string]string, error) {
	all := map[string]string{}
	for _, engine := range []string{"jupiter", "vintage"} {
		cases, err := junitCases(filepath.Join(dir, "TEST-junit-"+engine+".xml"))
		if err != nil {
			return nil, err
		}
		for _, c := range cases {
			if c.outcome != skipped {
				all[c.class+"#"+strings.TrimSuffix(c.name, "()")] = c.outcome
			}
		}
	}
	return all, nil
}

// TestSystemsPage checks that docs/systems.md has the table of systems.
func TestSystemsPage(t *testing.T) {
	page := must(os.ReadFile("../docs/systems.md"))(t)
	for _, s := range systems {
		if row := fmt.Sprintf("\n| %s | %d |", s.name, s.least); !strings.Contains(string(page), row) {
			t.Errorf("docs/systems.md has no row %q", row)
		}
		for _, name := range s.may {
			if _, method, _ := strings.Cut(name, "#"); !strings.Contains(string(page), method) {
				t.Errorf("docs/systems.md does not say why %s may fail", name)
			}
		}
	}
}
