# llmq: `make help` lists the targets. V=1 shows commands; CC, CFLAGS, LDFLAGS, PREFIX are the caller's.
CC       ?= cc
GCC      ?= gcc
CFLAGS   ?= -O2 -g
BUILD    ?= build
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR  ?= $(PREFIX)/share
OBJCOPY  ?= objcopy
PYTHON   ?= python3
WERROR   ?=
SANITIZE ?=

comma    := ,
MODULES  := base formats kernels runtime calib quantize convert publish
TARGET   := $(shell $(CC) -dumpmachine)
# What one system alone has is in files of its own: *_linux.c; *_bsd.c, for macOS and FreeBSD.
OTHER    := $(if $(findstring linux,$(TARGET)),bsd,linux)
SRCS     := $(sort $(shell find $(MODULES) -name '*.c' -not -name '*_$(OTHER).c'))
TOOLSRCS := $(sort $(shell find tools -name '*.c' -not -path 'tools/library/*' -not -name '*_$(OTHER).c'))
LIBSRCS  := $(sort $(wildcard tools/library/*.c))
TESTSRCS := $(sort $(wildcard tests/unit/test_*.c))

PKGS     := libcjson libxxhash openblas libpcre2-8 libutf8proc libmicrohttpd libcurl nettle
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wcast-qual \
            -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wformat=2 -Wdouble-promotion
# Position-independent and hidden: the objects of the program are those of the shared library, and
# calls among them are direct all the same.
HARDEN   := -fstack-protector-strong -fPIC -fvisibility=hidden
# Of a release: copies are checked (a sanitizer checks more than that, and does not go with it), and
# nothing names the folder of the build: two builds in different places are equal (make reproducible).
RELEASE  := $(if $(SANITIZE),,-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -ffile-prefix-map=$(CURDIR)=.)
PKGCF    := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PKGS) 2>/dev/null))
ALLCF     = -std=c11 $(WARN) $(WERROR) $(HARDEN) $(RELEASE) -pthread -ffp-contract=off -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 \
            -I. $(PKGCF) $(CFLAGS) $(SANITIZE)
# What `llmq chat` edits its lines with; without it the terminal's own editing is what there is.
LIBEDIT  := $(shell pkg-config --exists libedit 2>/dev/null && echo libedit)
EDITCF   := $(if $(LIBEDIT),$(shell pkg-config --cflags libedit))
LIBS      = $(if $(CUOBJS),$(CUDA_RT) -ldl -lrt) $(shell pkg-config --libs $(PKGS) gnutls $(LIBEDIT)) -llapacke -lm -pthread
ELFLD    := -pie -Wl,-z,relro,-z,now,-z,noexecstack
ALLLD     = $(if $(findstring darwin,$(TARGET)),,$(ELFLD)) $(LDFLAGS) $(SANITIZE)
# A hundred test programs hold what they use of the library each: without debug information, and without the
# relocations that a sanitizer's tables need, they take a third. For a debugger: make TESTLD= build/tests/test_x
TESTLD   ?= $(if $(SANITIZE),-no-pie,-Wl$(comma)--strip-debug)

# Instruction sets belong to one file each; everything else runs on any machine. Files of another
# processor than the compiler's target are left out.
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avxvnni := $(ISA_avx2) -mavxvnni
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
ISA_vnni   := $(ISA_avx512) -mavx512vnni
ISA_amx    := $(ISA_vnni)
ISA_bf16   := $(ISA_avx512) -mavx512bf16
ISA_neon_dot := -march=armv8.2-a+dotprod
ISA_neon_i8mm := -march=armv8.2-a+i8mm
ISA_neon_bf := -march=armv8.2-a+bf16
ISAS_x86_64  := avx2 avxvnni avx512 vnni amx bf16
ISAS_aarch64 := neon neon_dot neon_i8mm neon_bf
ISAS_arm64   := $(ISAS_aarch64)
ISAS        := $(ISAS_$(firstword $(subst -, ,$(TARGET))))
isa_files    = $(foreach i,$(1),%_$(i).c)
ifeq ($(filter amx,$(ISAS)),)
TESTSRCS   := $(filter-out tests/unit/test_amx_mm.c,$(TESTSRCS))
endif
OWNSRCS      = $(filter-out $(call isa_files,$(filter-out $(ISAS),$(ISAS_x86_64) $(ISAS_aarch64))),$(SRCS))
# Of the undefined behaviour in kernels, what addresses tell is left to AddressSanitizer: these checks
# double the minutes that their unrolled bodies take to compile.
ISA_SANITIZE := $(if $(SANITIZE),$(addprefix -fno-sanitize=,null alignment object-size pointer-overflow))
# Nor is it worth as many again to follow each of their variables in the debugger.
ISA_DEBUG    := $(if $(findstring -g,$(CFLAGS)),-g1)
isa_flags   = $(foreach i,$(ISAS),$(if $(findstring _$(i).c,$(1)),$(ISA_$(i)) $(ISA_DEBUG) $(ISA_SANITIZE))) \
              $(if $(findstring kernels/device.c,$(1)),$(if $(CUOBJS),-DLLMQ_CUDA='"$(CUDA_CODE)"',-DLLMQ_NO_CUDA='"$(call cuda_word,missing)"')) \
              $(if $(LIBEDIT),$(if $(findstring cli/line_edit.c,$(1)),-DLLMQ_LIBEDIT $(EDITCF)))

# Nor are the tests themselves asked for undefined behaviour: that takes as long as all else of them.
$(TESTSRCS:%.c=$(BUILD)/%.o): private ALLCF += $(if $(SANITIZE),-fno-sanitize=undefined)

# CUDA: where nvcc is found (scripts/make/cuda.sh; NVCC= leaves it out), kernels/cuda/ is compiled for it:
# machine code for each of CUDA_ARCHS (80 and this machine's GPUs; 80 90a 100 120 are what a release has) and
# PTX of compute_80, which newer ones compile at start. The same sources compiled for the host (kernels/cuda/emu/) are part of the tests; a
# sanitizer cannot follow their fibres, which have checks of their own.
CUDA_SAID  := $(shell CC='$(CC)' CUDA_ARCHS='$(CUDA_ARCHS)' scripts/make/cuda.sh $(if $(SANITIZE),'',$(if $(filter undefined,$(origin NVCC)),,'$(NVCC)')))
cuda_word   = $(subst ~, ,$(patsubst $(1)=%,%,$(filter $(1)=%,$(CUDA_SAID))))
CUDA_CC    := $(call cuda_word,nvcc)
CUDA_RT    := $(call cuda_word,runtime)
CUDA_CODE  := $(call cuda_word,archs)
CUDA_NOTE  := $(or $(call cuda_word,found),not in this build: $(call cuda_word,missing))
CUSRCS     := $(sort $(wildcard kernels/cuda/*.cu))
CUOBJS     := $(if $(CUDA_RT),$(CUSRCS:%.cu=$(BUILD)/%.o))
EMUOBJS    := $(CUSRCS:%.cu=$(BUILD)/emu/%.o) $(patsubst %.cc,$(BUILD)/emu/%.o,$(sort $(wildcard kernels/cuda/emu/*.cc))) \
              $(BUILD)/emu/tests/support/cuda_broken.o $(BUILD)/tests/support/emulated.o $(BUILD)/tests/support/emulated_driver.o
DEVTESTS   := test_backward_dev test_dev test_dev_link test_dev_mm test_dev_wide test_dev_attn test_dev_draw test_dev_lora test_dev_lt test_dev_scan test_dev_streams test_dev_topk test_forward_dev test_forward_draw_dev test_forward_archs_dev test_forward_index_dev test_forward_ranks test_graph_dev test_engine_dev test_engine_disk_dev test_engine_groups_dev test_engine_lightning_dev test_engine_state_dev test_mtp_dev test_quant_dev test_windows_dev
EMUTESTS   := $(DEVTESTS) test_cuda_emu
NVCCF       = -std=c++17 -O3 -fmad=false -objtemp -I. -Xcompiler -O2,-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics -Xptxas -v
# *_sm90.cu are for sm_90a alone, whatever CUDA_ARCHS says.
cu_code     = -gencode arch=compute_$(1),code=$(2)_$(1)
cu_archs    = $(if $(findstring _sm90.cu,$(1)),$(call cu_code,90a,sm),$(foreach a,$(CUDA_CODE),$(call cu_code,$(a),sm)) \
              $(call cu_code,80,compute))
# fmaf as an instruction, where this machine has it: no other runs the emulation
EMU_FMA    := $(if $(findstring x86_64,$(TARGET)),$(shell grep -qsw fma /proc/cpuinfo && echo -mfma))
EMUF        = -std=c++17 -O2 $(EMU_FMA) -Wall -Wshadow -Wno-unknown-pragmas $(WERROR) -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti \
              -fno-threadsafe-statics -ffp-contract=off -I.
ifneq ($(or $(SANITIZE),$(if $(shell command -v $(CXX)),,none)),)
TESTSRCS   := $(filter-out $(EMUTESTS:%=tests/unit/%.c),$(TESTSRCS))
else
EMULATOR   := $(BUILD)/tests/llmq-emulated $(BUILD)/tests/device-tests
endif

# ISA_BUILD: the folder of another build, whose vector kernels are taken as they are.
ISA_BUILD ?= $(BUILD)
ISASRCS  := $(filter $(foreach i,$(ISAS),%_$(i).c),$(OWNSRCS))
ISAOBJS  := $(ISASRCS:%.c=$(ISA_BUILD)/%.o)
OBJS     := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(ISASRCS),$(OWNSRCS))) $(ISAOBJS) $(CUOBJS)
TOOLOBJS := $(TOOLSRCS:%.c=$(BUILD)/%.o)
LIBOBJS  := $(LIBSRCS:%.c=$(BUILD)/%.o)
TESTBINS := $(TESTSRCS:tests/unit/%.c=$(BUILD)/tests/%)
VERSION  := $(shell sed -n 's/.*LLMQ_VERSION "\(.*\)"/\1/p' base/version.h)
PROGRAM  := $(if $(filter build,$(BUILD)),llmq,$(BUILD)/llmq)
WEB      := $(wildcard runtime/api/web/* runtime/api/web/vendor/*)
Q        := $(if $(V),,@)

.PHONY: all objects lib uninstall tests test test-cuda-emu test-cuda-parts test-gpu test-neon unit e2e server clients asan asan-quick asan-suites asan-inputs ubsan tsan tsan-server memcheck fuzz tidy analyze layers foreign format format-check bench bench-gpu gpu-bundle bench-quality check-hard sbom dist dist-local wheel deb reproducible install clean cuda help FORCE
.DEFAULT_GOAL := all
.SECONDARY: $(TESTSRCS:%.c=$(BUILD)/%.o)

all: $(PROGRAM) ## build ./llmq
objects: $(OBJS) $(TOOLOBJS) $(LIBOBJS)
tests: lib $(TESTBINS) $(BUILD)/tests/llmq-scripted $(EMULATOR) $(BUILD)/tests/fault.so ## build the unit tests and the scripted server

$(PROGRAM): $(OBJS) $(TOOLOBJS)
	$(if $(V),,@echo "  LD   $@")
	$(Q)$(CC) $(ALLLD) -o $@ $^ $(LIBS)
	@echo '  CUDA $(CUDA_NOTE)'

$(BUILD)/llmq-internal.a: $(OBJS)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# The library (include/llmq.h): whatever its functions need, and of that only they can be seen, from
# outside of either file.
LIBDEPS  := $(LIBOBJS) $(BUILD)/llmq-tools.a $(BUILD)/llmq-internal.a
LIBPKGS  := libcjson libxxhash openblas libpcre2-8 libutf8proc libmicrohttpd gnutls nettle
LIBREST   = $(shell pkg-config --libs $(LIBPKGS)) -llapacke -lm -pthread $(if $(CUOBJS),$(CUDA_RT) -ldl -lrt)
lib: $(BUILD)/libllmq.a $(BUILD)/libllmq.so.0 $(BUILD)/llmq.pc ## the library: libllmq.a, libllmq.so.0 and llmq.pc in build/
$(BUILD)/llmq-tools.a: $(filter-out $(BUILD)/tools/main.o,$(TOOLOBJS))
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$(BUILD)/libllmq.so.0: $(LIBDEPS) tools/library/llmq.map
	$(if $(V),,@echo "  LD   $@")
	$(Q)$(CC) -shared -Wl,-soname,libllmq.so.0 -Wl,--version-script=tools/library/llmq.map -Wl,-z,defs,-z,nodelete,-z,relro,-z,now,-z,noexecstack \
	    -Wl,--as-needed -Wl,--gc-sections $(LDFLAGS) $(SANITIZE) -o $@ $(LIBDEPS) $(LIBS)
	$(Q)ln -sf libllmq.so.0 $(BUILD)/libllmq.so
$(BUILD)/libllmq.a: $(LIBDEPS)
	$(Q)$(LD) -r -o $(BUILD)/libllmq.o $(LIBDEPS) && $(OBJCOPY) --localize-hidden $(BUILD)/libllmq.o && rm -f $@ && $(AR) rcs $@ $(BUILD)/libllmq.o
$(BUILD)/llmq.pc: tools/library/llmq.pc.in base/version.h FORCE
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    -e 's|@LIBS@|$(LIBREST)|' $< > $@

# What objects were made with, but for WERROR, which changes none.
RECORDED = $(filter-out $(WERROR),$(subst $(CURDIR),.,$(ALLCF)))
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); echo '$(CC) $(RECORDED)' | cmp -s - $@ || echo '$(CC) $(RECORDED)' > $@

$(BUILD)/calib/builtin.o: calib/builtin_text.txt calib/builtin_chat.jsonl
$(BUILD)/tools/cli/demo.o: $(wildcard models/novels-1m/*.json) models/novels-1m/model.safetensors
$(BUILD)/tools/report/quantize_html.o: tools/report/report.html
$(BUILD)/tools/report/inspect_html.o: tools/report/inspect.html
$(BUILD)/runtime/api/web.o: $(WEB)
$(BUILD)/runtime/api/api_openapi.o: runtime/api/openapi.json

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC   $<")
	$(Q)$(CC) $(ALLCF) $(call isa_flags,$<) -MMD -MP -c -o $@ $<

CUDA_MADE = $(CUDA_CC) $(NVCCF) $(call cu_archs,) $(CXX) $(EMUF) $(call cuda_word,missing)
$(BUILD)/cuda-flags: FORCE
	@mkdir -p $(@D); echo '$(CUDA_MADE)' | cmp -s - $@ || echo '$(CUDA_MADE)' > $@
$(BUILD)/kernels/device.o: $(BUILD)/cuda-flags
$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cu $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  NVCC $<")
	$(Q)$(CUDA_CC) $(NVCCF) $(call cu_archs,$<) -MMD -MP -c -o $@ $< 2>$(@:.o=.ptxas) || { cat $(@:.o=.ptxas); rm -f $@; exit 1; }
$(BUILD)/emu/%.o: %.cu $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  EMU  $<")
	$(Q)$(CXX) $(EMUF) -MMD -MP -x c++ -c -o $@ $<
$(BUILD)/emu/%.o: %.cc $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(Q)$(CXX) $(EMUF) -MMD -MP -c -o $@ $<

# llmq whose GPU is emulated
$(BUILD)/tests/llmq-emulated: $(EMUOBJS) $(BUILD)/llmq-internal.a $(TOOLOBJS)
	$(Q)$(CC) $(ALLLD) $(TESTLD) -o $@ $(EMUOBJS) $(TOOLOBJS) $(BUILD)/llmq-internal.a $(LIBS)
$(EMUTESTS:%=$(BUILD)/tests/%): EXTRA = $(EMUOBJS)
$(EMUTESTS:%=$(BUILD)/tests/%): $(EMUOBJS)
# The suites of DEVTESTS and llmq as one program, for a machine that has nothing else: its code for GPUs is there once,
# and of LAPACK it has what OpenBLAS has
DEVALL   := $(DEVTESTS:%=$(BUILD)/tests/bundle/%.o) $(patsubst %,$(BUILD)/tests/bundle/%.o,main device_tests lapacke)
$(BUILD)/tests/bundle/%.o: tests/unit/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) -Dmain=$*_main -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(BUILD)/tests/bundle/main.o: tools/main.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) -Dmain=llmq_main -Wno-missing-prototypes -MMD -MP -c -o $@ $<
$(BUILD)/tests/bundle/device_tests.o: tests/support/device_tests.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) '-DSUITES(X)=${DEVTESTS:%=X(%)}' -MMD -MP -c -o $@ $<
$(BUILD)/tests/bundle/lapacke.o: packaging/portable/lapacke.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) -MMD -MP -c -o $@ $<
$(BUILD)/tests/device-tests: $(DEVALL) $(EMUOBJS) $(BUILD)/tests/lib
	$(Q)$(CC) $(ALLLD) $(TESTLD) -o $@ $(DEVALL) $(EMUOBJS) $(BUILD)/llmq-tools.a $(BUILD)/llmq-internal.a $(filter-out -llapacke,$(LIBS))
$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/llmq-internal.a $(BUILD)/tests/lib
	$(Q)$(CC) $(ALLLD) $(TESTLD) -o $@ $< $(EXTRA) $(BUILD)/llmq-tools.a $(BUILD)/llmq-internal.a $(LIBS)

# The kernels for AMX where its registers are emulated, in place of the library's.
$(BUILD)/tests/k_amx.o: kernels/x86/k_amx.c tests/support/amx_emulated.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) $(call isa_flags,$<) -DLLMQ_AMX_EMULATED -include tests/support/amx_emulated.h -MMD -MP -c -o $@ $<
$(BUILD)/tests/test_amx_mm: EXTRA = $(BUILD)/tests/k_amx.o
$(BUILD)/tests/test_amx_mm: $(BUILD)/tests/k_amx.o

# The fuzzers, each function by its file's name, for test_corpus, which replays what they found.
FUZZOBJS := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/fuzz/*.c)))
$(FUZZOBJS): private ALLCF += -DLLVMFuzzerTestOneInput=$(basename $(@F))
$(BUILD)/tests/test_corpus: EXTRA = $(FUZZOBJS)
$(BUILD)/tests/test_corpus: $(FUZZOBJS)

# llmq with `serve --test-script` (tests/support/scripted.h)
$(BUILD)/tests/cmd_serve.o: tools/cmd_serve.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLCF) -DLLMQ_SCRIPTED -MMD -MP -c -o $@ $<
$(BUILD)/tests/llmq-scripted: $(BUILD)/tests/cmd_serve.o $(BUILD)/tests/support/scripted.o $(BUILD)/llmq-internal.a $(TOOLOBJS)
	$(Q)$(CC) $(ALLLD) $(TESTLD) -o $@ $(wordlist 1,2,$^) $(filter-out $(BUILD)/tools/cmd_serve.o,$(TOOLOBJS)) $(BUILD)/llmq-internal.a $(LIBS)

# Loaded before libc (tests/faults); dlsym's object pointers are functions, which pedantic ISO C forbids.
$(BUILD)/tests/fault.so: tests/support/fault.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 $(WARN) -Wno-pedantic $(WERROR) -D_GNU_SOURCE -O2 -g -fPIC -fno-builtin -shared -o $@ $< -ldl

$(BUILD)/tests/lib: $(BUILD)/llmq-internal.a $(BUILD)/llmq-tools.a
	@mkdir -p $(@D); touch $@

test: all tests ## every test: unit, golden, end-to-end
	@scripts/ci/run-tests.sh all
unit: tests ## the unit tests alone
	@BUILD=$(BUILD) scripts/ci/run-tests.sh unit
e2e: all $(BUILD)/tests/fault.so ## the end-to-end tests alone
	@scripts/ci/run-tests.sh e2e
server: all tests ## the conformance suite of the HTTP API alone (docs/conformance.md)
	@scripts/ci/run-tests.sh server
clients: all tests ## real clients, installed into build/clients (docs/clients.md); LLMQ_REAL names SmolLM2's folder
	@scripts/ci/run-tests.sh clients

test-cuda-emu: $(EMUTESTS:%=$(BUILD)/tests/%) ## the CUDA kernels compiled for the host, against the CPU's
	@for t in $^; do $$t || exit 1; done
test-cuda-parts: $(EMUTESTS:%=$(BUILD)/tests/%) ## the same on emulated parts that have less shared memory for a block
	@for cc in 80 86; do for t in $^; do LLMQ_EMULATED_CC=$$cc $$t || exit 1; done; done
test-gpu: $(DEVTESTS:%=$(BUILD)/tests/%) ## the CUDA kernels and whole models on this machine's GPU; "skipped" without one
	@for t in $^; do LLMQ_HARD=1 LLMQ_TEST_DEVICE=cuda $$t || exit 1; done
	@if ! command -v compute-sanitizer >/dev/null; then echo "skipped: compute-sanitizer is not installed"; else \
	    for t in test_dev test_dev_attn test_quant_dev; do LLMQ_TEST_DEVICE=cuda compute-sanitizer --tool memcheck \
	        --error-exitcode 9 $(BUILD)/tests/$$t || exit 1; done; fi

test-neon: ## the NEON kernels compiled for ARM, against the plain C, in an emulator
	@scripts/ci/test-neon.sh

ASAN     := BUILD=build-asan SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer' \
            CFLAGS='-O1 -g1 -gz' LDFLAGS=-gz
asan: ## unit tests under AddressSanitizer
	$(Q)$(MAKE) $(ASAN) unit
# Arithmetic alone, which takes most of the minutes: without these, and with kernels as they are, CI has time for the others.
ARITHMETIC := test_attn test_mm test_mm_blocks test_topk test_bench test_cholesky test_amx_mm test_quant_fp8 test_rotate
asan-quick: $(ISAOBJS) ## the same in half the time: without the kernels' suites, and with the vector kernels of the usual build
	$(Q)$(MAKE) $(ASAN) BUILD=build-asan-quick ISA_BUILD=$(BUILD) ISA_SANITIZE=-fno-sanitize=all \
	    TESTSRCS='$(filter-out $(foreach t,$(ARITHMETIC) $(EMUTESTS),tests/unit/$t.c),$(TESTSRCS))' unit
asan-suites: ## the end-to-end and the server's tests under AddressSanitizer, UndefinedBehaviorSanitizer, LeakSanitizer
	$(Q)$(MAKE) $(ASAN) all build-asan/tests/llmq-scripted
	$(Q)scripts/ci/asan-suites.sh
asan-inputs: ## files and requests changed by chance, under AddressSanitizer; LLMQ_MINUTES (10) for each
	$(Q)$(MAKE) $(ASAN) all
	$(Q)LLMQ=$(CURDIR)/build-asan/llmq LLMQ_MINUTES=$(or $(LLMQ_MINUTES),10) $(PYTHON) -m pytest -q -s -p no:cacheprovider \
	    tests/soak/test_mutated.py
ubsan: ## unit tests under UndefinedBehaviorSanitizer
	$(Q)$(MAKE) BUILD=build-ubsan SANITIZE='-fsanitize=undefined -fno-sanitize-recover=undefined' CFLAGS='-O1 -g1 -gz' LDFLAGS=-gz unit
TSAN     := BUILD=build-tsan SANITIZE='-fsanitize=thread' CFLAGS='-O1 -g1 -gz' LDFLAGS=-gz
tsan: ## unit tests under ThreadSanitizer
	$(Q)$(MAKE) $(TSAN) unit
tsan-server: ## the server's suite under ThreadSanitizer, with clients that break off
	$(Q)$(MAKE) $(TSAN) all build-tsan/tests/llmq-scripted build-tsan/tests/fault.so
	$(Q)scripts/ci/tsan-server.sh
MEMCHECK := $(patsubst %,$(BUILD)/tests/test_%,corpus json safetensors source hf gguf llmq layouts opt)
memcheck: $(MEMCHECK) ## the parsers and their corpora under valgrind
	$(Q)for t in $^; do valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
	    --errors-for-leak-kinds=definite $$t || exit 1; done

fuzz: ## fuzzers of the parsers (needs clang); FUZZ_TIME=seconds each
	$(Q)scripts/ci/fuzz.sh $(or $(FUZZ_TIME),30)

# A file in which nothing was found is not looked at again until it or one of its headers changes. The
# vector kernels, whose unrolled bodies take minutes each and which own nothing, are left out.
LOOKED   := $(patsubst %.c,%.ok,$(filter-out $(ISAS:%=kernels/x86/k_%.c) $(ISAS:%=kernels/arm/k_%.c),$(OWNSRCS) $(TOOLSRCS) $(LIBSRCS)))
LOOKCF    = -std=c11 -pthread -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -I. $(PKGCF) $(call isa_flags,$<)
# Off, for what gcc 12 takes for a fault (each report was looked at): it
# takes bits that memcpy moves into another type for unset, pointers for NULL that a loop of at least one round has set, and loses what
# belongs to the elements of a list. Allocations that fail are walked by tests/faults; leaks are
# LeakSanitizer's.
ANALYZER  = -fanalyzer $(patsubst %,-Wno-analyzer-%,use-of-uninitialized-value null-dereference null-argument \
            possible-null-dereference possible-null-argument malloc-leak) \
            $(if $(filter base/base.c base/json.c,$<),,-include scripts/ci/analyze.h)
tidy: $(LOOKED:%=$(BUILD)/tidy/%) ## clang-tidy over the C sources, one after the other, without clang's own analyzer
$(BUILD)/tidy/%.ok: %.c .clang-tidy $(BUILD)/%.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  TIDY $<")
	$(Q)clang-tidy --quiet --checks='-clang-analyzer-*' --warnings-as-errors='*' $< -- $(LOOKCF) $(WARN) && touch $@
analyze: $(LOOKED:%=$(BUILD)/analyze/%) ## gcc's static analyzer over the C sources, and cppcheck over all together
	cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,performance,portability --inline-suppr \
	    --suppressions-list=scripts/ci/cppcheck.txt --library=posix,gnu,scripts/ci/cppcheck.cfg \
	    -I. -D_GNU_SOURCE -D__linux__ -D__x86_64__ -D__GNUC__=12 $(OWNSRCS) $(TOOLSRCS) $(LIBSRCS)
$(BUILD)/analyze/%.ok: %.c $(BUILD)/%.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LOOK $<")
	$(Q)$(GCC) -O0 -Werror $(ANALYZER) $(LOOKCF) -c -o /dev/null $< && touch $@

layers: ## who may include whom; no files that call each other in a circle (of the last build)
	@TESTS='$(TESTSRCS)' $(PYTHON) scripts/ci/layers.py

foreign: ## every file compiled for macOS and other systems, with PyPI's ziglang (PYTHON); nothing is run
	@scripts/ci/foreign.sh

format: ## clang-format 14 in place
	@scripts/ci/format.sh --fix
format-check: ## whether the sources are formatted; "skipped" without clang-format 14
	@scripts/ci/format.sh

bench: all ## tables of kernels and the built-in model beside the machine's limits; JSON in build/bench.json
	scripts/bench/bench.sh

bench-gpu: all ## the built-in model on this machine's GPU beside what its memory gives; JSON in build/bench-gpu.json; "skipped" without one
	@scripts/bench/bench-gpu.sh
# Code for what is rented (8.0's runs on 8.6 and 8.9, its PTX on what is newer), packed as small as nvcc can
BUNDLE_ARCHS  = $(if $(filter command environment,$(firstword $(origin CUDA_ARCHS))),$(CUDA_CODE),80 90a $(patsubst sm_%,%,$(filter sm_100 sm_120,$(if $(CUDA_CC),$(shell $(CUDA_CC) --list-gpu-code)))))
BUNDLE_NVCC   = $(CUDA_CC)$(if $(CUDA_CC),$(if $(findstring --compress-mode,$(shell $(CUDA_CC) --help)), --compress-mode size))
gpu-bundle: ## build/llmq-gpu.tar.gz: what tries and times llmq on a rented GPU, with nothing else there (docs/gpu-rented.md); CUDA_ARCHS
	$(Q)[ -n '$(and $(CUDA_RT),$(BUNDLE_ARCHS))' ] || { echo 'gpu-bundle: expected code for a GPU; CUDA: $(CUDA_NOTE)' >&2; exit 1; }
	$(Q)$(MAKE) BUILD=build/gpu EMU_FMA= NVCC='$(BUNDLE_NVCC)' CUDA_ARCHS='$(BUNDLE_ARCHS)' build/gpu/tests/device-tests
	$(Q)scripts/bench/gpu-bundle.sh build/gpu/tests/device-tests build/llmq-gpu.tar.gz 'code for $(BUNDLE_ARCHS)'

bench-quality: all ## KL of every format and quantizer beside other projects' at equal bits; MODELS, TARGETS, METHODS, WIDTHS, ... are the caller's
	$(PYTHON) scripts/bench/quality_targets.py
	$(PYTHON) scripts/bench/bench-quality.py

check-hard: all tests ## what takes long: kills, long random tests, ThreadSanitizer
	@scripts/ci/check-hard.sh

sbom: all ## what the program consists of, as SPDX 2.3: llmq.spdx.json
	$(PYTHON) scripts/sbom.py llmq > llmq.spdx.json
DIST_ARCHS ?= x86_64 aarch64
dist: ## a release in dist/: programs, wheels and a package for npm that need the C library alone, sources, SBOMs and their checksums; wants a network
	for a in $(DIST_ARCHS); do packaging/portable/build.sh $$a || exit 1; done
	scripts/dist.sh dist $(DIST_ARCHS)
dist-local: all ## the same of ./llmq, which needs this system's libraries; without a wheel
	scripts/dist.sh
wheel: all lib ## the program, the library and the Python module as a wheel in dist/, for machines that have this one's libraries
	@mkdir -p $(BUILD)/wheel && cp $(PROGRAM) $(BUILD)/wheel/llmq && cp $(BUILD)/libllmq.so.0 $(BUILD)/wheel/ && strip -S $(BUILD)/wheel/llmq $(BUILD)/wheel/libllmq.so.0
	$(PYTHON) packaging/wheel.py $(BUILD)/wheel/llmq $(BUILD)/wheel/libllmq.so.0 dist
deb: ## Debian packages of the last commit in dist/deb/ (wants debhelper and dpkg-dev)
	packaging/deb.sh
reproducible: ## build twice in different folders; programs, libraries and wheels must be equal
	scripts/reproducible.sh

# What install writes, below DESTDIR; man pages and completions are the program's own words.
COMMANDS  = $(sort $(patsubst tools/cmd_%.c,%,$(wildcard tools/cmd_*.c)))
MANDIR   := $(DATADIR)/man/man1
BASHCOMP := $(DATADIR)/bash-completion/completions/llmq
ZSHCOMP  := $(DATADIR)/zsh/site-functions/_llmq
FISHCOMP := $(DATADIR)/fish/vendor_completions.d/llmq.fish
INSTALLED = $(PREFIX)/bin/llmq $(INCLUDEDIR)/llmq.h $(LIBDIR)/libllmq.a $(LIBDIR)/libllmq.so.0 $(LIBDIR)/libllmq.so \
            $(LIBDIR)/pkgconfig/llmq.pc $(MANDIR)/llmq.1 $(COMMANDS:%=$(MANDIR)/llmq-%.1) $(BASHCOMP) $(ZSHCOMP) $(FISHCOMP)
install: all lib ## program, library, man pages, completions under PREFIX; LIBDIR, INCLUDEDIR, DATADIR, DESTDIR are the caller's
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/bin/llmq
	install -D -m 644 include/llmq.h $(DESTDIR)$(INCLUDEDIR)/llmq.h
	install -D -m 644 $(BUILD)/libllmq.a $(DESTDIR)$(LIBDIR)/libllmq.a
	install -D -m 755 $(BUILD)/libllmq.so.0 $(DESTDIR)$(LIBDIR)/libllmq.so.0
	ln -sf libllmq.so.0 $(DESTDIR)$(LIBDIR)/libllmq.so
	install -D -m 644 $(BUILD)/llmq.pc $(DESTDIR)$(LIBDIR)/pkgconfig/llmq.pc
	mkdir -p $(DESTDIR)$(MANDIR) $(dir $(DESTDIR)$(BASHCOMP) $(DESTDIR)$(ZSHCOMP) $(DESTDIR)$(FISHCOMP))
	./$(PROGRAM) help --man > $(DESTDIR)$(MANDIR)/llmq.1
	for c in $(COMMANDS); do ./$(PROGRAM) help --man $$c > $(DESTDIR)$(MANDIR)/llmq-$$c.1 || exit 1; done
	./$(PROGRAM) completion bash > $(DESTDIR)$(BASHCOMP)
	./$(PROGRAM) completion zsh > $(DESTDIR)$(ZSHCOMP)
	./$(PROGRAM) completion fish > $(DESTDIR)$(FISHCOMP)
uninstall: ## remove what install wrote with the same variables
	rm -f $(INSTALLED:%=$(DESTDIR)%)

clean: ## remove everything that was built
	rm -rf build build-asan build-asan-quick build-ubsan build-tsan build-fuzz build-neon build-foreign dist llmq llmq.spdx.json

cuda: ## which nvcc was found and what code it makes, or why there is none
	@echo '$(CUDA_NOTE)'

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 14

-include $(OBJS:.o=.d) $(TOOLOBJS:.o=.d) $(LIBOBJS:.o=.d) $(TESTSRCS:%.c=$(BUILD)/%.d) $(BUILD)/tests/cmd_serve.d $(BUILD)/tests/k_amx.d $(BUILD)/tests/support/scripted.d $(EMUOBJS:.o=.d) $(FUZZOBJS:.o=.d) $(DEVALL:.o=.d)
