#!/usr/bin/env bash
# Installs what the tests with the build tag interop need, on Debian, as root: Redis,
# ZooKeeper with its jars, Java, a headless Chromium, newer jars from Maven Central,
# clients in other languages, packages for Python, the Go modules, and the Debian packages in its arguments;
# with --systems as the first argument also what the tests need that run only with
# LOCKKEEPER_INTEROP_SYSTEMS=1 or in make adopters: jars, older ZooKeepers, PostgreSQL, Patroni,
# ClickHouse, the native client for Node, and what kazoo's harness imports. Downloads go below
# ${XDG_CACHE_HOME:-$HOME/.cache}. LOCKKEEPER_INTEROP_WITHOUT names groups of tests (.ci/interop) that are not to run, so
# that less is needed. The script can be run again, and is quick if everything is installed. It does not start the
# services of the packages.
set -euo pipefail
cd "$(dirname "$0")/.."

# with GROUP WORD... prints the words if the tests of the group are to run.
with() { [[ " ${LOCKKEEPER_INTEROP_WITHOUT-} " == *" $1 "* ]] || echo "${*:2}"; }
systems=
if [[ ${1-} == --systems ]]; then
	systems=1
	shift
	set -- postgresql "$@"
fi
packages=(redis-server zookeeper libslf4j-java strace make cron iproute2 libzookeeper-mt-dev gcc libc6-dev
	$(with console chromium-headless-shell fonts-dejavu-core) netcat-openbsd curl krb5-kdc krb5-admin-server krb5-user libkrb5-dev "$@")
# Programs that may already be installed from elsewhere. Debian's package cargo is too old.
command -v javac >/dev/null || packages+=(default-jdk-headless)
command -v mvn >/dev/null || packages+=(maven)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3 python3-venv)
# For the module kerberos, which pip compiles.
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || packages+=(python3-dev)
command -v npm >/dev/null || packages+=(nodejs npm ${systems:+libnode-dev})
[[ ! $systems ]] || command -v g++ >/dev/null || packages+=(g++)
command -v cargo >/dev/null || packages+=($(with rust cargo-web))

missing=()
for package in "${packages[@]}"; do
	status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
	[[ $status == installed ]] || missing+=("$package")
done

if ((${#missing[@]})); then
	if [[ $(id -u) != 0 ]]; then
		echo "interop/setup.sh: ${missing[*]} must be installed, which needs root" >&2
		exit 1
	fi
	# A policy that refuses everything keeps the packages from starting their services.
	policy=/usr/sbin/policy-rc.d
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
		trap 'rm -f "$policy"' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt-get update --quiet=2
	apt-get install --quiet=2 --yes --no-install-recommends "${missing[@]}"
fi

# Install the clients in the versions of their lock files.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lockkeeper-interop
clients=$PWD/interop/clients
mkdir -p "$cache"/{kazoo,node,npm,rust}

[[ ! $(with rust yes) ]] || {
	cargo build --quiet --locked --manifest-path "$clients/rust/Cargo.toml" --target-dir "$cache/rust"
	cargo test --quiet --locked --no-run --manifest-path docs/examples/rust/Cargo.toml --target-dir "$cache/rust"
} &
rust=$!

# jars POM NAME [OPTION...] downloads the jars that a pom.xml pins, with their dependencies, into
# a cache directory that is named after NAME and a hash of the file. If the directory
# exists, it is complete. The options are for Maven.
jars() {
	local pom=$1 dir
	dir=$cache/$2-$(sha256sum <"$pom" | head -c 16)
	shift 2
	[[ -d $dir ]] && return
	rm -rf "$dir.part"
	mvn --batch-mode --quiet --file "$pom" "$@" dependency:copy-dependencies -DoutputDirectory="$dir.part"
	mv "$dir.part" "$dir"
}
jars interop/clients/java/pom.xml zookeeper
for name in $(with admin admin) $(with kafka kafka) ${systems:+curator flink hadoop bookkeeper}; do
	jars interop/clients/$name/pom.xml $name
done

# venv NAME MODULE installs the packages of a requirements.txt, one of which has MODULE, and
# all that they need.
venv() {
	local wanted=$clients/$1/requirements.txt dir=$cache/$1
	cmp --silent "$wanted" "$dir/requirements.txt" && "$dir/bin/python" -c "import $2" && return
	python3 -m venv --clear "$dir"
	"$dir/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement "$wanted"
	cp "$wanted" "$dir/requirements.txt"
}
venv kazoo kazoo
venv kerberos kerberos

# What the tests of packages/python install into a new environment, without a network.
wanted=$clients/python/requirements.txt
if ! cmp --silent "$wanted" "$cache/python/requirements.txt"; then
	rm -rf "$cache/python"
	"$cache/kazoo/bin/pip" download --quiet --disable-pip-version-check --only-binary :all: --require-hashes --no-deps \
		--dest "$cache/python" --requirement "$wanted"
	cp "$wanted" "$cache/python/requirements.txt"
fi

if [[ $systems ]]; then
	for release in 3.4.14 3.5.10 3.6.4 3.7.2 3.8.6; do
		jars interop/clients/releases/pom.xml zookeeper-$release -Drelease=$release
	done
	venv patroni patroni
	venv kazoo-harness OpenSSL
	# ClickHouse and the libraries that are not installed are unpacked side by side.
	if [[ ! -d $cache/clickhouse ]]; then
		rm -rf "$cache/clickhouse.part" "$cache/clickhouse.debs"
		mkdir -p "$cache/clickhouse.debs/partial"
		apt-get update --quiet=2
		apt-get install --quiet=2 --yes --no-install-recommends --download-only -o Dir::Cache::archives="$cache/clickhouse.debs" clickhouse-server
		for package in "$cache"/clickhouse.debs/*.deb; do
			dpkg --extract "$package" "$cache/clickhouse.part"
		done
		mv "$cache/clickhouse.part" "$cache/clickhouse"
		rm -r "$cache/clickhouse.debs"
	fi
fi

# modules NAME installs the packages of a package-lock.json.
modules() {
	local wanted=$clients/$1/package-lock.json dir=$cache/$1
	cmp --silent "$wanted" "$dir/node_modules/package-lock.json" && return
	cp "$clients/$1/package.json" "$wanted" "$dir"
	(cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
	cp "$wanted" "$dir/node_modules"
}
modules node
[[ ! $(with npm yes) ]] || modules npm
# The native client for Node is compiled, which takes minutes, with the headers of the node that is installed.
if [[ $systems && ! -d $cache/npm/node_modules/zookeeper/build/Release ]]; then
	nodedir=$(dirname "$(dirname "$(readlink -f "$(command -v node)")")")
	(cd "$cache/npm" && npm_config_nodedir=$nodedir npm rebuild --no-audit --no-fund --loglevel=error zookeeper)
fi

go mod download
go mod download -C interop
# For TestGoZooKeeper and TestGoPackages: the modules whose tests they run, and what those
# of TestGoPackages import.
go mod download github.com/go-zookeeper/zk@v1.0.4 github.com/kvtools/zookeeper@v1.0.2 github.com/go-kit/kit@v0.13.0 \
	github.com/wvanbergen/kazoo-go@v0.0.0-20180202103751-f72d8611297a
for pinned in interop/testdata/packages/*.mod; do
	go mod download -C interop -modfile="${pinned#interop/}"
done

wait "$rust"
