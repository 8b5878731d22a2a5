T := 30s
H := 10
N := 50
TURNS := 5

.PHONY: build spec test race lint platforms fuzz chaos sim perturbed shake plants mutants interop diff systems bench-peers adopters bench-quick pgo api api-released release packages-npm packages-python packages-maven packages manifests pictures upgrade vulnerabilities ci

build:
	go build ./...
	go build -o lockkeeper ./cmd/lockkeeper

test:
	go test -shuffle=on ./...

race:
	go test -race -shuffle=on ./...

lint:
	.ci/lint

# Every fuzz function of every package, for T each: make fuzz T=5m
fuzz:
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "=== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(T) -fuzzminimizetime 1s $$package; \
		done; \
	done

# The models in spec, and each of their guards taken out. It needs spin (Debian's package) and a C compiler.
spec:
	go test ./spec -run '^TestModels$$' -timeout 0 -v -spec=all

# Clusters in virtual time under faults: H virtual hours of them, on all cores
# (docs/testing.md).
sim:
	go test ./internal/testing/sim -run '^TestLong$$' -timeout 0 -v -sim.hours=$(H)

# The same with perturbed schedules and paused processes.
perturbed:
	go test ./internal/testing/sim -run '^TestLong$$' -timeout 0 -v -sim.perturb -sim.hours=$(H)

# The tests of all other packages, N times, with goroutines that yield: do they rely on
# which one runs first?
shake:
	go test ./internal/testing/sim -run '^TestShake$$' -timeout 0 -v -sim.shake=$(N)

# Builds with planted bugs, each of which a check has to find.
plants:
	go test ./internal/testing/sim -run '^TestPlants$$' -timeout 0 -v -sim.plants=100
	go test ./internal/testing/repository -run '^TestPutBack$$' -timeout 0 -v -putback

# Small faults in the source of a package: which do its own tests not notice?
GREMLINS = go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
PACKAGE = ./watch
mutants:
	$(GREMLINS) unleash $(FLAGS) $(PACKAGE)

# Do all packages and tests compile for all platforms?
platforms:
	go test ./internal/testing/repository -run '^TestPlatforms$$' -timeout 0 -v -platforms

# On Debian, as root: installs Redis, ZooKeepers, Java and more.
interop:
	.ci/interop setup
	.ci/interop

# The pictures of the console in docs, after a change of the page. It needs Chromium, and two minutes.
pictures:
	LOCKKEEPER_INTEROP_CONSOLE=$(CURDIR)/docs go test -C interop -tags interop -timeout 10m -v -run '^TestConsolePictures$$' .

# Kills, pauses and cuts off the processes of a cluster and its clients at random, for T
# in each of two tests: make chaos T=10m
chaos:
	interop/setup.sh
	LOCKKEEPER_INTEROP_CHAOS=$(T) go test -C interop -tags interop -timeout 0 -v -run '^TestCluster(Locks|Network)$$' .

# Compares lockkeeper with both real ZooKeepers, by many random requests.
diff:
	interop/setup.sh
	LOCKKEEPER_INTEROP_DIFFER=250000 go test -C interop -tags interop -timeout 60m -v -run 'TestDiffer$$' .

# Runs other systems, or their tests, with lockkeeper in place of ZooKeeper (docs/systems.md), and compares
# it with older releases of ZooKeeper.
systems:
	interop/setup.sh --systems
	LOCKKEEPER_INTEROP_SYSTEMS=1 go test -C interop -tags interop -timeout 0 -v -run '^TestSystems|^TestReleases$$|^TestPackagesMavenCurator$$|^TestPowerLossIsFound$$|^TestMigrate|^TestConsoleThousandLocks$$' .

# Measures lockkeeper, ZooKeeper 3.8 and 3.9, and etcd in turns, and writes
# docs/performance.md and the charts in README.md: make bench-peers TURNS=5
bench-peers:
	interop/setup.sh etcd-server
	LOCKKEEPER_INTEROP_PEERS=$(TURNS) go test -C interop -tags interop -timeout 0 -v -run '^TestPeers$$' .

# Runs tests of other projects with a ZooKeeper in Java and with lockkeeper, and writes docs/adopters.md.
adopters:
	interop/setup.sh --systems
	LOCKKEEPER_INTEROP_ADOPTERS=all go test -C interop -tags interop -timeout 0 -v -run '^TestAdopters$$' .

# Compares this tree with the last tag or, if there is none, with the commit where the
# branch began or the one before.
bench-quick:
	.ci/bench-quick

# The profile by which the program is optimized; see docs/performance.md.
pgo:
	.ci/pgo

# What the packages that promise compatibility export, for review as a diff (docs/releasing.md).
api:
	go test ./internal/testing/repository -run '^TestAPI$$' -rewrite

# After a release: what it has promised. Decisions to break it begin anew.
api-released:
	(grep '^#' api/released.txt; cat $$(ls api/*.txt | grep -v -e released -e breaks)) | LC_ALL=C sort -u >api/released.new
	mv api/released.new api/released.txt
	grep '^#' api/breaks.txt >api/breaks.new
	mv api/breaks.new api/breaks.txt

# All files of a release of the commit that is checked out, in dist (docs/releasing.md). They are
# built twice, and must have the same bytes.
release:
	go run -C .ci/release .
	again=$$(mktemp -d) && trap "rm -rf $$again" EXIT && \
	GOCACHE=$$again/cache go run -C .ci/release . -o $$again/dist >/dev/null && diff --recursive dist $$again/dist && echo "built twice: all files have the same bytes"

# The packages for npm alone, in dist/npm (docs/packages.md). With HERE=1, this and the following make those for
# this machine only, in a minute or two. They are to be tried: the profile, with which compiling takes longer, is for
# a release.
here = -pgo off $(if $(HERE),-platforms "$$(go env GOOS)/$$(go env GOARCH)")
packages-npm:
	rm -rf dist/npm
	go run -C .ci/release . -only npm $(here) -o ../../dist/npm

# The wheels of the commit that is checked out, in dist/python (docs/packages.md): the package for Python.
packages-python:
	rm -rf dist/python
	go run -C .ci/release . -only wheel $(here) -o ../../dist/python

# The packages for Maven, in dist/maven, a folder that is a Maven repository (docs/packages.md). They
# need Java and Maven, and Maven Central for Maven's plugins. ARCHIVES are those of a release, if they exist already.
packages-maven:
	rm -rf dist/maven
	packages/maven/build dist/maven $(ARCHIVES)
	$(if $(HERE),,LOCKKEEPER_INTEROP_MAVEN=$(CURDIR)/dist/maven go test -C interop -tags interop -timeout 5m -run '^TestMavenJars$$' .)

# All of them, in the same folders, from programs that are built once. The crate for Rust is packages/rust.
packages:
	rm -rf dist/npm dist/python dist/programs
	go run -C .ci/release . -only archive,npm,wheel $(here) -o ../../dist/programs
	mkdir dist/npm dist/python
	mv dist/programs/*.tgz dist/programs/*.tgz.cdx.json dist/npm
	mv dist/programs/*.whl dist/programs/*.whl.cdx.json dist/python
	grep '\.tgz' dist/programs/SHA256SUMS >dist/npm/SHA256SUMS
	grep '\.whl' dist/programs/SHA256SUMS >dist/python/SHA256SUMS
	$(MAKE) packages-maven ARCHIVES="$$(ls dist/programs/*.tar.gz dist/programs/*.zip 2>/dev/null | tr '\n' ' ')"
	rm -r dist/programs

# deploy/kubernetes, from the Helm chart (docs/kubernetes.md).
manifests:
	go test -C .ci/deploy -run '^Test(Manifests|Alerts)$$' . -rewrite

# Upgrades a cluster from the last tag (.ci/base) to this tree, and back.
upgrade:
	go test -C interop -tags interop -timeout 0 -v -run '^TestUpgrade$$' .

# Known vulnerabilities of what is linked.
vulnerabilities:
	.ci/vulnerabilities

ci:
	.ci/run
