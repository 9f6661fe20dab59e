# Thin verbs over the scripts; each can be called by hand just as well.
.PHONY: build demo check quick asan check-all fuzz bench golden clean_room format

build:
	scripts/build.sh
demo:
	./demo
check:
	./check
quick:
	./check --quick
asan:
	./check --asan
check-all:
	./check --all
fuzz:
	scripts/fuzz.sh
bench:
	bench/all.sh
golden:
	tests/golden/regenerate.sh
clean_room:
	scripts/clean_room.sh
format:
	scripts/format.sh
