//go:build interop

package interop

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envMaven is a folder that make packages-maven has made. Without it, the tests make one, for this
// machine only, with the program under test.
const envMaven = "LOCKKEEPER_INTEROP_MAVEN"

// mavenLimit is how long one run of Maven may take, also if it downloads what it needs.
const mavenLimit = 10 * time.Minute

// mavenPlatforms are the Go names of the platforms of the artifacts.
var mavenPlatforms = map[string]string{
	"linux-x86_64": "linux/amd64", "linux-aarch64": "linux/arm64", "darwin-x86_64": "darwin/amd64",
	"darwin-aarch64": "darwin/arm64", "windows-x86_64": "windows/amd64", "windows-aarch64": "windows/arm64",
}

// mavenRepository is a folder with the packages, of a version.
type mavenRepository struct {
	folder, version string
}

// mavenPackages returns the packages under test.
var mavenPackages = sync.OnceValues(func() (mavenRepository, error) {
	r := mavenRepository{folder: os.Getenv(envMaven)}
	if r.folder == "" {
		r.folder = filepath.Join(scratch, "maven")
		if err := r.build(); err != nil {
			return r, err
		}
	}
	folder, err := filepath.Abs(r.folder)
	if err != nil {
		return r, err
	}
	r.folder = folder
	versions, err := os.ReadDir(filepath.Join(r.group(), "lockkeeper-test"))
	if err != nil || len(versions) != 1 {
		return r, fmt.Errorf("%s does not have one version: %v, %v", r.folder, versions, err)
	}
	r.version = versions[0].Name()
	// Maven keeps what it has once read from a repository.
	return r, os.RemoveAll(filepath.Join(mavenCache(), "io/github/lockkeeper"))
})

// group is the directory of all packages.
func (r mavenRepository) group() string { return filepath.Join(r.folder, "io/github/lockkeeper") }

// mavenCache is Maven's local repository for these tests, so that they change no other one.
func mavenCache() string {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = scratch
	}
	return filepath.Join(cache, "lockkeeper-interop", "maven")
}

// build builds the packages as make packages-maven does, from an archive like that of a release.
func (r mavenRepository) build() error {
	program, err := built()
	if err != nil {
		return err
	}
	name := "lockkeeper_0.0.0-test_" + runtime.GOOS + "_" + runtime.GOARCH
	archive := filepath.Join(scratch, name+".tar.gz")
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	for _, file := range []struct{ name, from string }{{"lockkeeper", program}, {"LICENSE", "../LICENSE"}, {"THIRD_PARTY_LICENSES", "../LICENSE"}} {
		data, err := os.ReadFile(file.from)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name + "/" + file.name, Mode: 0o755, Size: int64(len(data)), Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	if err := cmp.Or(w.Close(), z.Close()); err != nil {
		return err
	}
	build := exec.Command("../packages/maven/build", r.folder, archive)
	build.Env = append(cleanEnv(), "MAVEN_REPO_LOCAL="+mavenCache())
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("packages/maven/build: %w\n%s", err, out)
	}
	return nil
}

// TestMavenJars checks every file of the packages that Maven Central or a user needs.
func TestMavenJars(t *testing.T) {
	t.Parallel()
	r := must(mavenPackages())(t)
	artifacts := must(os.ReadDir(r.group()))(t)
	var platforms []string
	for _, a := range artifacts {
		base := filepath.Join(r.group(), a.Name(), r.version, a.Name()+"-"+r.version)
		pom, err := os.ReadFile(base + ".pom")
		if err != nil {
			t.Error(err)
		}
		if a.Name() == "lockkeeper-bom" || a.Name() == "lockkeeper-parent" {
			continue
		}
		files := map[string]map[string][]byte{}
		for _, kind := range []string{"", "-sources", "-javadoc"} {
			files[kind] = unzip(t, base+kind+".jar")
		}
		if license := files[""]["META-INF/LICENSE"]; !bytes.Contains(license, []byte("Apache License")) {
			t.Errorf("%s has no licence", a.Name())
		}
		platform, isServer := strings.CutPrefix(a.Name(), "lockkeeper-server-")
		if !isServer {
			for _, scope := range regexp.MustCompile(`(?s)<dependency>(.*?)</dependency>`).FindAllString(string(pom), -1) {
				if !strings.Contains(scope, "<groupId>io.github.lockkeeper</groupId>") && !strings.Contains(scope, "<scope>provided</scope>") {
					t.Errorf("%s depends on %s", a.Name(), scope)
				}
			}
			continue
		}
		platforms = append(platforms, platform)
		name := "META-INF/lockkeeper/" + platform + "/lockkeeper"
		if strings.HasPrefix(platform, "windows") {
			name += ".exe"
		}
		program := files[""][name]
		info, err := buildinfo.Read(bytes.NewReader(program))
		if err != nil {
			t.Fatalf("%s: %s: %v", a.Name(), name, err)
		}
		built := map[string]string{}
		for _, setting := range info.Settings {
			built[setting.Key] = setting.Value
		}
		if made := built["GOOS"] + "/" + built["GOARCH"]; made != mavenPlatforms[platform] {
			t.Errorf("%s: %s is for %s", a.Name(), name, made)
		}
		if sum := string(files[""][name+".sha256"]); sum != fmt.Sprintf("%x\n", sha256.Sum256(program)) {
			t.Errorf("%s: %s has another checksum than %q", a.Name(), name, sum)
		}
		if len(files[""]["META-INF/THIRD_PARTY_LICENSES"]) == 0 {
			t.Errorf("%s has no licences of what is linked", a.Name())
		}
		if !bytes.Contains(bomOf(t, r), []byte(">"+a.Name()+"<")) {
			t.Errorf("%s is not in the BOM", a.Name())
		}
	}
	if os.Getenv(envMaven) != "" && len(platforms) != len(mavenPlatforms) {
		t.Errorf("there are artifacts for %v only", platforms)
	}
	if len(platforms) == 0 {
		t.Error("there is no artifact with a program")
	}
	filepath.WalkDir(r.folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "maven-metadata") {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
}

func bomOf(t *testing.T, r mavenRepository) []byte {
	t.Helper()
	text := must(os.ReadFile(filepath.Join(r.group(), "lockkeeper-bom", r.version, "lockkeeper-bom-"+r.version+".pom")))(t)
	return text
}

// unzip returns the files of a jar.
func unzip(t *testing.T, jar string) map[string][]byte {
	t.Helper()
	z, err := zip.OpenReader(jar)
	if err != nil {
		t.Errorf("%s: %v", jar, err)
		return nil
	}
	defer z.Close()
	files := map[string][]byte{}
	for _, f := range z.File {
		r := must(f.Open())(t)
		data := must(io.ReadAll(r))(t)
		files[f.Name] = data
	}
	return files
}

// mavenProject is a copy of a project that uses the packages.
type mavenProject struct {
	dir string
	r   mavenRepository
}

func newMavenProject(t *testing.T, from string) mavenProject {
	t.Helper()
	r := must(mavenPackages())(t)
	// A path without the name of the test, which may be too long for a socket.
	dir := must(os.MkdirTemp(scratch, "project-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(t, os.CopyFS(dir, os.DirFS(from)))
	check(t, os.MkdirAll(filepath.Join(dir, "target/tmp"), 0o700))
	return mavenProject{dir, r}
}

// mavenTurn is held while Maven runs: two processes must not write to one local repository.
var mavenTurn sync.Mutex

// run runs Maven, with nothing of Go or lockkeeper in its environment.
func (p mavenProject) run(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	mavenTurn.Lock()
	defer mavenTurn.Unlock()
	args = append([]string{"--batch-mode", "--no-transfer-progress", "-Dstyle.color=never", "-Dmaven.repo.local=" + mavenCache(),
		"-Dlockkeeper.repository=" + p.r.folder, "-Dlockkeeper.version=" + p.r.version}, args...)
	cmd := clientCommand("mvn", args...)
	cmd.Dir = p.dir
	cmd.Env = append(withoutGo(cmd.Env), env...)
	return runGroup(t, cmd, mavenLimit)
}

// withoutGo removes the directories from PATH that have go.
func withoutGo(env []string) []string {
	for i, kv := range env {
		if dirs, is := strings.CutPrefix(kv, "PATH="); is {
			env[i] = "PATH=" + strings.Join(slices.DeleteFunc(filepath.SplitList(dirs), func(dir string) bool {
				_, err := os.Stat(filepath.Join(dir, "go"))
				return err == nil
			}), ":")
		}
	}
	return env
}

// outcomes returns by CLASS.METHOD why a test of a project did not pass, or "".
func (p mavenProject) outcomes(t *testing.T) map[string]string {
	t.Helper()
	reports := must(filepath.Glob(filepath.Join(p.dir, "target/surefire-reports/TEST-*.xml")))(t)
	all := map[string]string{}
	for _, report := range reports {
		cases := must(junitCases(report))(t)
		for _, c := range cases {
			method, _, _ := strings.Cut(c.name, "(") // without parameters, and a repetition's number
			method, _, _ = strings.Cut(method, " ")
			name := path.Ext("." + c.class)[1:] + "." + method
			all[name] = cmp.Or(all[name], c.outcome)
		}
	}
	return all
}

// TestPackagesMaven runs a project that uses the packages, with no Go and no lockkeeper on the path.
func TestPackagesMaven(t *testing.T) {
	t.Parallel()
	p := newMavenProject(t, "clients/maven")
	for _, name := range []string{"FirstTest", "PartitionTest"} {
		if readme := testOf(t, "../packages/maven/README.md", name); readme != fileText(t, "clients/maven/src/test/java/"+name+".java") {
			t.Errorf("the README of packages/maven has another %s", name)
		}
	}
	writeFile(t, filepath.Join(p.dir, "src/test/resources/judged.json"), []byte(fileText(t, "../packages/judged.json")))
	began := time.Now()
	out, err := p.run(t, nil, "test", "dependency:build-classpath", "-Dmdep.outputFile=target/classpath")
	t.Logf("Maven ran for %v", time.Since(began).Round(time.Second))
	if err != nil {
		t.Errorf("mvn: %v\n%s", err, out)
	}
	checkCases(t, p.outcomes(t),
		"FirstTest.greets", "PartitionTest.aMajorityGoesOn", "JsonTest.readsWhatItWrites", "JsonTest.readsOtherWritings", "JsonTest.refusesWhatIsNotJson", "PlatformTest.artifactsOfPlatforms", "JudgedTest.judges", "JudgedTest.closed", "JudgedTest.closedByCurator", "JudgedTest.raises", "JudgedTest.within",
		"ControlTest.looksInside", "ControlTest.endsSessions", "ControlTest.injectsFaults", "ControlTest.stopsAndPauses", "ControlTest.putsStateBack",
		"ControlTest.waits", "ControlTest.namespaces", "ControlTest.advancesTime", "ControlTest.judgesLocks", "ControlTest.clusters",
		"ControlTest.severalInOneProcess", "ControlTest.saysWhyItDoesNotStart", "ControlTest.saysWhatIsWrong", "ControlTest.endsItsProcess",
		"ExtensionTest.fieldsAndParameters", "ExtensionTest.eachOfParallelTestsHasItsOwn", "ExtensionTest.aStaticFieldIsPutBackToBeforeTheTests",
		"ExtensionTest.testsThatShareAnInstanceShareItsFields", "ExtensionTest.constructors", "ExtensionTest.clusters", "ExtensionTest.checksWhatTestsDo", "ExtensionTest.failureShowsTheServers", "ExtensionTest.reportOfAServerThatHasEnded", "ExtensionTest.aServerThatHasFailedStartsAgain", "ExtensionTest.aServerWithAnOpenClientIsNotUsedAgain", "ExtensionTest.olderReleases",
		"ExtensionTest.refusesOtherTypes", "ExtensionTest.whatCannotBeJudgedFailsTheTest", "ExtensionTest.namesTheAnnotationThatIsMissing", "ExtensionTest.serversEndWithTheRun",
		"CuratorTest.mutex", "CuratorTest.keepsItsStateWhileItIsStopped", "CuratorTest.settings", "CuratorTest.clusterWithAKilledInstance",
		"CuratorTest.clusterThatIsNotStarted", "SpringTest.test",
		"DiscoveryTest.aServiceIsFoundWhileItsApplicationRuns", "DiscoveryTest.itComesBackAfterItsSessionHasEnded",
		"DiscoveryTest.itIsFoundAfterTheServerRestarts", "DiscoveryControlTest.aServiceIsAwayWhileItsSessionHasEnded",
		"RecipesTest.readersShareAndAWriterExcludes", "RecipesTest.theWritersLockIsFreeWhenItsSessionHasEnded", "RecipesTest.aSemaphoreHasSoManyLeases",
		"RecipesTest.aHolderIsAskedToRelease", "RecipesTest.countersCount", "RecipesTest.aClusterLosesTheServersOfItsClients",
		"RecipesTest.atMostTwoHaveALeaseWhileServersAreKilled")
	if t.Failed() {
		t.FailNow()
	}
	classpath := filepath.Join(p.dir, "target/test-classes") + ":" + fileText(t, filepath.Join(p.dir, "target/classpath"))
	t.Run("kill", func(t *testing.T) { killsWithTheJVM(t, classpath) })
	t.Run("at once", func(t *testing.T) { extractsOnce(t, classpath) })
	t.Run("without program", func(t *testing.T) {
		out, err := p.run(t, []string{"LOCKKEEPER_BINARY=/missing"}, "surefire:test", "-Dtest=FirstTest")
		if err == nil || !strings.Contains(out, "cannot start /missing; the property lockkeeper.binary or the variable LOCKKEEPER_BINARY") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

func fileText(t *testing.T, path string) string {
	t.Helper()
	text := must(os.ReadFile(path))(t)
	return string(text)
}

// TestPackagesMavenInstall runs the first test of the README in a project that has in its pom.xml what the README says and
// packages/maven/build prints, and a client. It must have run.
func TestPackagesMavenInstall(t *testing.T) {
	t.Parallel()
	const page = "../packages/maven/README.md"
	r := must(mavenPackages())(t)
	readme := blockOf(t, page, "pom.xml", "xml")
	indented := regexp.MustCompile("(?m)^(.+)$").ReplaceAllString(readme, "  $1")
	if !strings.Contains(fileText(t, "../packages/maven/build"), strings.NewReplacer("/home/me/lockkeeper/dist/maven", "$out", "0.1.0", "$version").Replace(indented)) {
		t.Errorf("packages/maven/build does not print what %s has for pom.xml", page)
	}
	const client = "<dependency><groupId>org.apache.curator</groupId><artifactId>curator-recipes</artifactId><version>5.9.0</version></dependency>"
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "pom.xml"), []byte("<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>a</artifactId><version>1</version>"+
		"<properties><maven.compiler.source>11</maven.compiler.source><maven.compiler.target>11</maven.compiler.target></properties>"+
		strings.NewReplacer("/home/me/lockkeeper/dist/maven", r.folder, "0.1.0", r.version, "<dependencies>", "<dependencies>"+client).Replace(readme)+"</project>"))
	writeFile(t, filepath.Join(dir, "src/test/java/FirstTest.java"), []byte(testOf(t, page, "FirstTest")))
	p := newMavenProject(t, dir)
	if out, err := p.run(t, nil, "test"); err != nil {
		t.Errorf("mvn: %v\n%s", err, out)
	}
	checkCases(t, p.outcomes(t), "FirstTest.greets")
}

// testOf returns the code after the comment <!-- NAME.java --> of a page.
func testOf(t *testing.T, page, name string) string {
	t.Helper()
	return blockOf(t, page, name+".java", "java")
}

// blockOf returns the block of code of a language after the comment <!-- NAME --> of a page.
func blockOf(t *testing.T, page, name, language string) string {
	t.Helper()
	_, rest, _ := strings.Cut(fileText(t, page), "<!-- "+name+" -->\n```"+language+"\n")
	code, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatalf("%s has no %s", page, name)
	}
	return code
}

// holdingJVM is a JVM that has started a server.
type holdingJVM struct {
	cmd    *exec.Cmd
	server int // the id of the process
}

func holdInJVM(t *testing.T, classpath, tmp string) holdingJVM {
	t.Helper()
	cmd := javaCommand("-Xmx64m", "-Djava.io.tmpdir="+tmp, "-cp", classpath, "tests.Hold")
	cmd.Env = withoutGo(cleanEnv())
	log := &tail{}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout := must(cmd.StdoutPipe())(t)
	check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	pid, err2 := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || err2 != nil {
		t.Fatalf("the JVM said %q: %v\n%s", line, err, log)
	}
	return holdingJVM{cmd, pid}
}

// killsWithTheJVM: kill -9 of a JVM leaves no server.
func killsWithTheJVM(t *testing.T, classpath string) {
	jvm := holdInJVM(t, classpath, t.TempDir())
	if err := syscall.Kill(jvm.server, 0); err != nil {
		t.Fatalf("there is no server: %v", err)
	}
	jvm.cmd.Process.Kill()
	jvm.cmd.Wait()
	for deadline := time.Now().Add(startDeadline); syscall.Kill(jvm.server, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", jvm.server)); err == nil && bytes.Contains(state, []byte(") Z ")) {
			return // it has ended, and whoever adopted it has not noticed
		}
		if time.Now().After(deadline) {
			syscall.Kill(jvm.server, syscall.SIGKILL)
			t.Fatal("the server runs without the JVM")
		}
	}
}

// extractsOnce: JVMs that start at once share one program, and leave nothing else.
func extractsOnce(t *testing.T, classpath string) {
	tmp := t.TempDir()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { holdInJVM(t, classpath, tmp) })
	}
	all.Wait()
	found, err := filepath.Glob(filepath.Join(tmp, "lockkeeper*/*"))
	if err != nil || len(found) != 1 {
		t.Errorf("there are %q, %v", found, err)
	}
}

// TestExampleJUnit runs the example of a project with JUnit 5 and Curator.
func TestExampleJUnit(t *testing.T) {
	t.Parallel()
	p := newMavenProject(t, "../docs/examples/junit")
	out, err := p.run(t, nil, "test")
	if err != nil {
		t.Errorf("mvn: %v\n%s", err, out)
	}
	checkCases(t, p.outcomes(t),
		"LockTest.expiredSessionLosesItsLock", "LockTest.lostReplyLeavesOneZnode", "LockTest.lockSurvivesPartition",
		"WorkerTest.aReportThatChecksTokensRefusesTheLateWrite", "WorkerTest.aReportThatIgnoresTokensIsNotProtected")
}

// mavenCurator are classes of Curator's recipes, and how many of their tests must pass.
var mavenCurator = map[string]int{
	"atomic.TestDistributedAtomicLong":       6,
	"barriers.TestDistributedBarrier":        4,
	"leader.TestLeaderLatchCluster":          1,
	"leader.TestLeaderSelectorCluster":       2,
	"locks.TestInterProcessMutex":            12,
	"locks.TestInterProcessReadWriteLock":    8,
	"locks.TestInterProcessSemaphore":        12,
	"locks.TestInterProcessSemaphoreCluster": 2,
	"locks.TestInterProcessSemaphoreMutex":   6,
	"locks.TestLockACLs":                     2,
	"shared.TestSharedCount":                 8,
}

// mavenCuratorLast leaves a thread that spins until the JVM ends, so it must be the last one.
const mavenCuratorLast = "leader.TestLeaderSelectorCluster"

// mavenCuratorTests returns the arguments of JUnit's console that select classes of mavenCurator, and how many tests
// they have.
func mavenCuratorTests(names ...string) (args []string, least int) {
	for _, class := range names {
		least += mavenCurator[class]
		args = append(args, classes(curator+"framework.recipes.", class)...)
	}
	return args, least
}

// lookAlike compiles the classes of lockkeeper-curator with the names of those that they stand for, since tests that are
// published as classes cannot change an import. It returns the class path with them.
func lookAlike(jars string) (string, error) {
	dir, err := os.MkdirTemp(scratch, "look-alike-")
	if err != nil {
		return "", err
	}
	var sources []string
	for _, module := range []string{"test", "curator"} {
		some, err := filepath.Glob("../packages/maven/" + module + "/src/main/java/io/github/lockkeeper/" + module + "/*.java")
		if err != nil {
			return "", err
		}
		for _, source := range some {
			text, err := os.ReadFile(source)
			if err != nil {
				return "", err
			}
			to := filepath.Join(dir, module, filepath.Base(source))
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return "", err
			}
			text = bytes.ReplaceAll(text, []byte("package io.github.lockkeeper.curator;"), []byte("package org.apache.curator.test;"))
			if err := os.WriteFile(to, text, 0o644); err != nil {
				return "", err
			}
			sources = append(sources, to)
		}
	}
	classes, err := compileJava(filepath.Base(dir), jars, sources...)
	return classes + ":" + jars, err
}

// junitLimit is how long a run of JUnit may take. Curator's tests wait for minutes.
const junitLimit = time.Hour

// runJUnit runs tests that JUnit's console selects with these arguments, and returns their outcomes as javaCases does.
func runJUnit(t *testing.T, classpath string, tests []string) map[string]string {
	t.Helper()
	dir := must(os.MkdirTemp(scratch, "junit-"))(t)
	defer os.RemoveAll(dir)
	cmd := javaCommand("-Xmx600m", "--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
		"-Djava.io.tmpdir="+dir, "-Dlockkeeper.binary="+lockkeeperBinary(t), "-cp", classpath,
		"org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner", "--details=none", "--include-classname=.*", "--reports-dir="+dir)
	cmd.Args, cmd.Env = append(cmd.Args, tests...), cleanEnv()
	said, _ := runGroup(t, cmd, junitLimit) // its report says what failed
	outcomes, err := javaCases(dir)
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return outcomes
}

// selectFailed returns the arguments of JUnit's console that select what has failed.
func selectFailed(outcomes map[string]string) (args []string) {
	for name, why := range outcomes {
		if why != "" {
			method, _, _ := strings.Cut(name, "[") // without the number of a parameterized test's run
			args = append(args, "--select-method", method)
		}
	}
	return args
}

// TestPackagesMavenCurator runs Curator's own tests of its locks and counters with the classes of
// lockkeeper-curator in place of those that they stand for.
func TestPackagesMavenCurator(t *testing.T) {
	atNight(t)
	t.Parallel()
	jars := must(jarsOf("curator", "clients/curator/pom.xml"))(t)
	classpath := must(lookAlike(jars))(t)
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(mavenCurator)), func(class string) bool { return class == mavenCuratorLast })
	chosen, _ := mavenCuratorTests(append(names, mavenCuratorLast)...)
	outcomes := runJUnit(t, classpath, chosen)
	if failed := selectFailed(outcomes); len(failed) > 0 { // as in TestSystems, some need an idle machine
		t.Logf("again: %q", failed)
		maps.Copy(outcomes, runJUnit(t, classpath, failed))
	}
	passed := map[string]int{}
	for name, why := range outcomes {
		if why != "" {
			t.Errorf("%s: %s", name, why)
			continue
		}
		class, _, _ := strings.Cut(strings.TrimPrefix(name, curator+"framework.recipes."), "#")
		passed[class]++
	}
	for class, least := range mavenCurator {
		if passed[class] < least {
			t.Errorf("%s: %d tests passed, and at least %d must", class, passed[class], least)
		}
	}
}
