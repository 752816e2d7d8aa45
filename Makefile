# Two commands matter: `make quickstart` and `make test`, which has to pass before a change lands. Each sets up what it needs inside this directory: the files whose
# hashes stand in locks/, and nothing else. PYTHON names the interpreter to build the environment with (3.11 or later).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
LOCKS  := locks
LAKEHOUSE := .venv-lakehouse
# What `make test` and `make lint` need comes on top of what `make quickstart` needs.
BASE   := $(VENV)/.installed-base-spark
DEV    := $(VENV)/.installed-dev
CLASSES := $(VENV)/.archived-classes

# Bytecode is kept, in __pycache__, whatever the environment says: without it each of the hundreds of processes that tests start
# compiles mld anew, which takes longer than the rest of its start.
unexport PYTHONDONTWRITEBYTECODE

# $(call install,ENVIRONMENT,LOCK) and $(call install_mld,ENVIRONMENT). First setuptools alone, because without an isolated
# build, for which pip would fetch one without a hash, it makes what has no wheel (pyspark), and mld itself.
PIP := -m pip install --quiet --disable-pip-version-check
define install
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP) --require-hashes --only-binary :all: -r $(LOCKS)/build.txt
	$(1)/bin/python $(PIP) --require-hashes --no-build-isolation --use-pep517 -r $(LOCKS)/$(2).txt
endef
define install_mld
	$(1)/bin/python $(PIP) --no-index --no-deps --no-build-isolation -e .
endef

.PHONY: setup quickstart test test-all lint format bench conformance-aws docs clean

$(BASE): setup.cfg pyproject.toml $(LOCKS)/build.txt $(LOCKS)/base.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mld needs Python 3.11 or later; set PYTHON=")'
	$(call install,$(VENV),base)
	$(call install_mld,$(VENV))
	@touch $@

# Sessions of Spark start in a third less CPU with an archive of its classes, 183 MB in $(VENV)/share/mld. Where it cannot be
# made, as without Java, they start without. It is made again when PySpark was installed again.
$(CLASSES): $(BASE)
	$(BIN)/mld-spark --archive-classes || echo "Spark's sessions start without an archive of its classes"
	@touch $@

$(DEV): $(BASE) $(LOCKS)/dev.txt
	$(call install,$(VENV),dev)
	@touch $@

setup: $(CLASSES)

quickstart: $(CLASSES)
	$(BIN)/mld quickstart $(QUICKSTART_ARGS)

# Servers and packages written by others that the tests run against, and SDKs of other languages for `make test-all`;
# each script does nothing if it is done already.
.PHONY: test-tools test-sdks test-deploy-tools
test-tools: $(DEV)
	$(BIN)/python tests/support/fetch_kclpy.py
	$(BIN)/python -m tests.support.fetch_kinesis_local
	$(BIN)/python -m tests.support.locked ministack

test-sdks: $(DEV)
	$(BIN)/python -m tests.support.fetch_sdks

# The tools of others that judge what mld generates: Prometheus's promtool, cfn-lint, a parser of Terraform's language,
# Grafana's own model of a dashboard.
.PHONY: test-checkers
test-checkers: $(DEV)
	$(BIN)/python -m tests.support.fetch_checkers

test-deploy-tools: $(DEV)
	$(BIN)/python -m tests.support.locked deploy

# `make test` has to pass before a change lands: what lives in memory and virtual time; then, file by file, what starts servers, daemons
# and children, which mostly wait; then a slice of what starts a Spark session. `make test-all`, before a release, adds what is
# marked `full`: more seeds, cases and servers of the same promises; and, where Delta and Iceberg are, the matrix of formats of
# records, tables and what may be wrong with a stream. All of Spark: make test-spark.
IN_MEMORY := tests/scenarios tests/simulation tests/contract tests/unit
BY_FILE   := --dist loadfile --no-loadscope-reorder
PYTEST    := MLD_TEST_REQUIRE_ALL=1 $(BIN)/python -m pytest

test: TIER := and not full
test-all: test-sdks test-checkers test-deploy-tools $(LAKEHOUSE)/.installed
test test-all: test-tools
	$(PYTEST) -n 3 --dist worksteal -m "not spark $(TIER)" $(IN_MEMORY) $(PYTEST_ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) -n 5 $(BY_FILE) -m "not spark $(TIER)" $(addprefix --ignore=,$(IN_MEMORY)) $(PYTEST_ARGS) || $(NOTHING_SELECTED)
	$(PYTEST) -n 2 $(BY_FILE) -m "spark_slice $(TIER)" $(addprefix --ignore=,$(IN_MEMORY)) $(PYTEST_ARGS) || $(NOTHING_SELECTED)
	$(if $(filter test-all,$@),$(BIN)/python -m tests.support.fetch_databases && $(IN_LAKEHOUSE) tests/lakehouse/test_matrix.py $(PYTEST_ARGS) || $(NOTHING_SELECTED))

# With PYTEST_ARGS="-k name" some of them may have nothing to do, which is exit code 5.
NOTHING_SELECTED = { test $$? -eq 5 && test -n "$(PYTEST_ARGS)"; }

# Each file in a process of its own: the JVM of a session, with its settings, stays until its process ends.
.PHONY: test-spark
test-spark: $(DEV)
	for file in $$($(BIN)/python -m pytest -m spark --collect-only -q $(PYTEST_ARGS) | sed -n 's/::.*//p' | sort -u); do \
	  $(BIN)/python -m pytest -m spark --timeout 900 $$file $(PYTEST_ARGS) || $(NOTHING_SELECTED) || exit; done

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_architecture.py

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# BENCH_ARGS="--java JARS --beside 0.1=DIR": the table of the daemons beside each other; docs/lab/performance.md has more.
bench: test-tools
	$(BIN)/python -m tests.benchmarks $(BENCH_ARGS)

# The Spark processor: records/s, CPU, delay and memory of daemon, children, host and JVM; some ten minutes.
.PHONY: bench-spark
bench-spark: $(DEV)
	$(BIN)/python -m tests.benchmarks.spark $(BENCH_ARGS)

# The images of deploy/Dockerfile, built and run by podman, which needs no engine. Where no registry of images is reachable, make
# the base from Debian's packages and give PYTHON_IMAGE (docs/develop/tests.md).
.PHONY: test-image
test-image: $(DEV)
	for target in mld spark; do podman build --format docker $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) \
	  -f deploy/Dockerfile --target $$target -t mld-built-$$target . || exit; done
	MLD_IMAGE=localhost/mld-built $(BIN)/python -m pytest --timeout 900 -k podman tests/acceptance/test_image.py $(PYTEST_ARGS)

# The chart of deploy/helm, rendered by Helm, and deploy/kubernetes, by kustomize; both are built by Go first (some minutes).
.PHONY: test-chart
test-chart: $(DEV) test-deploy-tools
	$(BIN)/python -m tests.support.make_chart_tools
	MLD_CHART=1 $(BIN)/python -m pytest tests/acceptance/test_chart.py $(PYTEST_ARGS)

# Beside real Java workers, 3.1.3 and 3.5.1: needs a JDK 17, Maven, 2 GB of memory and over two hours. One case, one version:
# INTEROP_ARGS="-k split", INTEROP_ARGS="-k 3.5.1"
.PHONY: interop
interop: $(DEV)
	$(BIN)/python tests/support/fetch_java_kcl.py
	$(BIN)/python -m tests.interop.kcl.fetch
	MLD_INTEROP=1 MLD_TEST_REQUIRE_ALL=1 nice $(BIN)/python -m pytest -s --timeout 900 tests/interop $(INTEROP_ARGS)

# Writes again what only Java tells, for tests without it: frames of the Glue Schema Registry's serializers and what its
# parser says of bad ones, and the record JSON of the DynamoDB Streams adapter. Needs a JDK 17 and Maven.
.PHONY: golden-java
golden-java: $(DEV)
	$(BIN)/python -m tests.interop.frames.record
	$(BIN)/python -m tests.interop.adapter.record

# What DynamoDB charges for a fleet at rest, counted in virtual time: the tables of docs/lab/benchmarks.md.
.PHONY: cost
cost: $(DEV)
	$(BIN)/python -m tests.benchmarks.bill $(COST_ARGS)

# A whole fleet in virtual time, one seed after the other; and the text scenarios, re-recorded on purpose.
# Rows of the tables with any value that DynamoDB takes: make fuzz-rows ROWS=200000 FLEETS=2000
.PHONY: fuzz-rows
ROWS ?= 20000
FLEETS ?= 200
fuzz-rows: $(DEV)
	$(BIN)/python -m tests.fuzz.rows --examples $(ROWS) --fleets $(FLEETS)

# Drawn files with secrets in keys of any name, and what `mld check` says of them: make scan-secrets DRAWN=100000
.PHONY: scan-secrets
DRAWN ?= 20000
scan-secrets: $(DEV)
	$(BIN)/python -m tests.fuzz.secrets --examples $(DRAWN)

# Every payload, partition key, KPL aggregate and frame of the schema registry that Kinesis lets in, and words of records in all that repeats
# them: make fuzz-producer PAGES=20000 ATTACK_BYTES=10000000
.PHONY: fuzz-producer
PAGES ?= 5000
ATTACK_BYTES ?= 1000000
fuzz-producer: $(DEV)
	$(BIN)/python -m tests.fuzz.producer --examples $(PAGES) --bytes $(ATTACK_BYTES)
	$(BIN)/python -m tests.fuzz.schemas --examples $(PAGES)
	$(BIN)/python -m tests.fuzz.budgets --examples $(PAGES)
	$(BIN)/python -m tests.fuzz.json_payloads --examples $(PAGES)
	$(BIN)/python -m tests.fuzz.quoted --examples $(PAGES)

.PHONY: simulate scenarios scale
SEEDS ?= 200
MODE ?= 2x
simulate: $(DEV)
	$(BIN)/python -m tests.simulation --mode $(MODE) --seeds $(SEEDS) $(SIMULATE_ARGS)

# Every mode and special program at one commit, resumable: make campaigns COMMIT=HEAD CAMPAIGN_SEEDS=20000 JOBS=2
.PHONY: campaigns
CAMPAIGN_SEEDS ?= 20000
CAMPAIGNS ?= .cache/campaigns
COMMIT ?= HEAD
JOBS ?= 1
campaigns: $(DEV)
	$(BIN)/python -m tests.simulation.campaigns --commit $(COMMIT) --seeds $(CAMPAIGN_SEEDS) --jobs $(JOBS) \
	  --under $(CAMPAIGNS) $(CAMPAIGN_ARGS)

scenarios: $(DEV)
	$(BIN)/python -m tests.scenarios --record $(FILES)

scale: $(DEV)
	$(BIN)/python -m tests.simulation.scale $(SCALE_ARGS)

# Raw pages against the SDK's way of reading them, on drawn bodies: make fuzz RECORDS=10000000
.PHONY: fuzz
RECORDS ?= 1000000
fuzz: $(DEV)
	$(BIN)/python -m tests.fuzz --records $(RECORDS) $(FUZZ_ARGS)

# The wire client against a server that closes, resets, truncates, refuses and stalls, plain and TLS: make soak CALLS=200000
.PHONY: soak
CALLS ?= 200000
TLS ?= both
soak: $(DEV)
	$(BIN)/python -m tests.soak.wire --calls $(CALLS) --tls $(TLS) $(SOAK_ARGS)

# Three daemons that are killed, frozen and restarted, over splits and merges, beside processes that keep the machine busy:
# make soak-fleet MINUTES=30 SOAK_ARGS="--busy 2 --seed 7"
.PHONY: soak-fleet
MINUTES ?= 30
soak-fleet: $(DEV)
	$(BIN)/python -m tests.soak.fleet --minutes $(MINUTES) $(SOAK_ARGS)

# A daemon whose port and control socket are flooded, while probes and commands have to be answered: make soak-floods MINUTES=30
.PHONY: soak-floods
soak-floods: $(DEV)
	$(BIN)/python -m tests.soak.floods --minutes $(MINUTES) $(SOAK_ARGS)

# The Kinesis and DynamoDB conformance suite against any endpoint: make conformance-aws ENDPOINT=http://127.0.0.1:4567
conformance-aws: $(DEV)
	MLD_CONFORMANCE_ENDPOINT=$(ENDPOINT) MLD_CONFORMANCE_TARGET=$(TARGET) $(BIN)/python -m pytest tests/conformance_aws $(PYTEST_ARGS)

# Writers into files that are killed at every stage of a commit, and what is in the sink then: make prove-spark RUNS=200
.PHONY: prove-spark test-lakehouse
RUNS ?= 200
prove-spark: $(DEV)
	$(BIN)/python -m tests.prove_spark --runs $(RUNS) $(PROVE_ARGS)

# The sink of files on S3 on servers of others, which are built first (Go and Cargo, some minutes): exactly once on the
# one, and wrong on the other, whose conditional writes are not atomic; then from executors of a cluster, with jars that
# are fetched.
.PHONY: test-s3
S3_RUNS ?= 10
test-s3: test-tools
	$(BIN)/python -m tests.support.make_s3_servers
	$(BIN)/python -m pytest --timeout 900 -rs tests/integration/test_spark_s3.py $(PYTEST_ARGS)
	MLD_S3_CLUSTER=1 $(BIN)/python -m pytest --timeout 900 -rs tests/integration/test_spark_cluster_s3.py $(PYTEST_ARGS)
	$(BIN)/python -m tests.prove_spark --runs $(S3_RUNS) --layouts s3,s3-ministack,s3-unconditional
	$(BIN)/python -m tests.prove_spark --runs $(S3_RUNS) --layouts s3-cluster

# Delta, Iceberg and spark-avro come out after Spark: an environment with the newest Spark that all exist for,
# which is the oldest one that setup.cfg allows: the engine runs there as well. Fetches jars.
$(LAKEHOUSE)/.installed: setup.cfg $(LOCKS)/build.txt $(LOCKS)/lakehouse.txt
	$(call install,$(LAKEHOUSE),lakehouse)
	$(call install_mld,$(LAKEHOUSE))
	@touch $@

IN_LAKEHOUSE := MLD_LAKEHOUSE=1 $(LAKEHOUSE)/bin/python -m pytest --timeout 900 -rs -W ignore::ResourceWarning \
  -W ignore::pytest.PytestUnraisableExceptionWarning
ON_OLDEST_SPARK := tests/integration/test_spark_engine.py tests/integration/test_spark_windows.py
# Each file in a process of its own: a JVM fetches packages only when it starts, and if it cannot, leaves a pipe open.
test-lakehouse: $(LAKEHOUSE)/.installed
	for file in tests/lakehouse/test_*.py $(ON_OLDEST_SPARK); do $(IN_LAKEHOUSE) $$file $(PYTEST_ARGS) || $(NOTHING_SELECTED) || exit; done

# Writers of tables that are killed at every stage, by two drivers, in that environment: Delta, Delta on S3 (whose server
# `make test-s3` builds), Iceberg in a catalog in a PostgreSQL (which `make test-jdbc` fetches) and in a REST catalog over
# that S3 server (Nessie, 245 MB, fetched; it needs a Java 21).
.PHONY: prove-lakehouse
LAKE_RUNS ?= 30
prove-lakehouse: $(LAKEHOUSE)/.installed
	$(LAKEHOUSE)/bin/python -m tests.prove_spark --runs $(LAKE_RUNS) --layouts delta,naive-delta $(PROVE_ARGS)
	$(LAKEHOUSE)/bin/python -m tests.prove_spark --runs $(LAKE_RUNS) --layouts delta-s3 $(PROVE_ARGS)
	$(LAKEHOUSE)/bin/python -m tests.prove_spark.iceberg_runs --runs $(LAKE_RUNS) $(PROVE_ARGS)
	$(LAKEHOUSE)/bin/python -m tests.prove_spark.iceberg_runs --runs $(LAKE_RUNS) --catalog rest $(PROVE_ARGS)

# Functions over pandas, with state of their own: in an environment of its own, so that the other one stays light.
.PHONY: test-spark-pandas
PANDAS := .venv-spark-pandas
$(PANDAS)/.installed: setup.cfg $(LOCKS)/build.txt $(LOCKS)/spark-pandas.txt
	$(call install,$(PANDAS),spark-pandas)
	$(call install_mld,$(PANDAS))
	@touch $@

test-spark-pandas: $(PANDAS)/.installed
	MLD_SPARK_PANDAS=1 $(PANDAS)/bin/python -m pytest --timeout 900 -rs tests/spark_extras $(PYTEST_ARGS)

# The daemon on uvloop, in an environment of its own, so that all other tests run it on what it has without extras.
FAST := .venv-fast
.PHONY: test-fast
$(FAST)/.installed: setup.cfg $(LOCKS)/build.txt $(LOCKS)/fast.txt
	$(call install,$(FAST),fast)
	$(call install_mld,$(FAST))
	@touch $@

test-fast: test-tools $(FAST)/.installed
	$(FAST)/bin/python -m pytest -n 4 $(BY_FILE) --timeout 900 -rs -m "not spark" tests/integration tests/conformance $(PYTEST_ARGS)

# The JDBC sink against a PostgreSQL as a process of the tests, which is fetched. Each file in a process of its own, because the JVM
# of a session stays until its process ends.
.PHONY: test-jdbc
test-jdbc: $(DEV)
	$(BIN)/python -m tests.support.fetch_databases || true
	for file in tests/jdbc/test_*.py; do MLD_JDBC=1 $(BIN)/python -m pytest --timeout 900 -rs -W ignore::ResourceWarning \
	  -W ignore::pytest.PytestUnraisableExceptionWarning $$file $(PYTEST_ARGS) || $(NOTHING_SELECTED) || exit; done

# After a change of setup.cfg or constraints.txt: the same packages with the hashes of all their files.
.PHONY: lock
LOCK := .venv-lock
lock:
	$(call install,$(LOCK),uv)
	$(LOCK)/bin/python -m tests.support.make_locks $(LOCK)/bin/uv $(NAMES)

# Wheel and sdist of the newest commit in dist/, made twice and judged. URL, the only place that names the repository, is where
# it is published: make release-check URL=https://HOST/OWNER/REPOSITORY. `make wheel` makes the wheel alone, and prints how to install it.
RELEASE := .venv-release
URL ?=
.PHONY: release-check wheel test-lowest
$(RELEASE)/.installed: setup.cfg $(LOCKS)/build.txt $(LOCKS)/release.txt
	$(call install,$(RELEASE),release)
	@touch $@

release-check: $(RELEASE)/.installed
	$(RELEASE)/bin/python -m tests.support.release dist $(if $(URL),--url $(URL))

wheel: $(RELEASE)/.installed
	@$(RELEASE)/bin/python -m tests.support.release dist --wheel $(if $(URL),--url $(URL))

# The lowest versions of the packages that setup.cfg allows, in an environment of its own; without Spark (test-lakehouse).
LOWEST := .venv-lowest
$(LOWEST)/.installed: setup.cfg $(LOCKS)/build.txt $(LOCKS)/lowest.txt
	$(call install,$(LOWEST),lowest)
	$(call install_mld,$(LOWEST))
	@touch $@

test-lowest: test-tools $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -n 2 -m "not spark and not full" --ignore tests/unit/spark tests/unit tests/contract $(PYTEST_ARGS)
	$(LOWEST)/bin/python -m pytest -n 4 $(BY_FILE) -m "not spark and not full" tests/integration tests/conformance $(PYTEST_ARGS)

docs: $(DEV)
	$(BIN)/python -m tests.support.written_pages

# The pages of docs/ as a site in build/site, with search, in an environment of its own. A link that leads nowhere fails.
SITE := .venv-site
.PHONY: site
$(SITE)/.installed: $(LOCKS)/build.txt $(LOCKS)/site.txt
	$(call install,$(SITE),site)
	@touch $@

site: $(SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --clean --strict

clean:
	rm -rf $(VENV) $(SITE) .venv-ministack .venv-checkers .venv-lakehouse .venv-spark-pandas $(FAST) $(LOWEST) $(RELEASE) .venv-lock .venv-deploy .cache build *.egg-info
