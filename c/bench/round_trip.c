/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call over the socket takes, beside a bare socket on which two processes send as many bytes to and fro:
 *
 *     round_trip SOCKET SECONDS CALL
 *
 * Makes calls of one kind, one at a time, and prints `CALLS,NANOSECONDS EACH,PROCESSOR NANOSECONDS EACH`, the last one without the server's; of a
 * bare call, with the other process's. Kinds of calls are in the table `calls`. Block 0 of the volume and those after it are written.
 */
#define _POSIX_C_SOURCE 200809L

#include "../ithaca_volume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a request that has no data, and of an answer with a block. */
#define SHORT_BYTES 40
#define LONG_BYTES (32 + ITHACA_BLOCK_BYTES)
/* Blocks of a large call. */
#define MANY 256
/* Calls between two looks at the clock. */
#define BATCH 16

static struct ithaca_volume *volume;
static int bare;
static unsigned char data[32 + MANY * ITHACA_BLOCK_BYTES];

static void need(int holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "round_trip: %s: %s\n", what, ithaca_last_error(volume));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Sends `bytes` and takes as many as the first of them says. */
static void exchange(unsigned char wants_block, size_t answer)
{
	data[0] = wants_block;
	need(write(bare, data, SHORT_BYTES) == SHORT_BYTES, "bare write");
	need(recv(bare, data, answer, MSG_WAITALL) == (ssize_t)answer, "bare read");
}

static void bare_short(void)
{
	exchange(0, SHORT_BYTES);
}

static void bare_block(void)
{
	exchange(1, LONG_BYTES);
}

static void hint(void)
{
	need(ithaca_please_cache(volume, 0) == ITHACA_OK, "please_cache");
}

static void read_block(void)
{
	need(ithaca_read(volume, 0, data, ITHACA_BLOCK_BYTES) == ITHACA_OK, "read");
}

static void write_block(void)
{
	need(ithaca_write(volume, 0, data, ITHACA_BLOCK_BYTES, 0) == ITHACA_OK, "write");
}

static void read_many(void)
{
	need(ithaca_read(volume, 0, data, MANY * ITHACA_BLOCK_BYTES) == ITHACA_OK, "read");
}

static void write_many(void)
{
	need(ithaca_write(volume, 0, data, MANY * ITHACA_BLOCK_BYTES, 0) == ITHACA_OK, "write");
}

static void begin_abort(void)
{
	struct ithaca_tx *tx;
	need(ithaca_begin(volume, ITHACA_AS_VOLUME, &tx) == ITHACA_OK, "begin");
	need(ithaca_abort(tx) == ITHACA_OK, "abort");
}

static void transaction(void)
{
	struct ithaca_tx *tx;
	need(ithaca_begin(volume, ITHACA_AS_VOLUME, &tx) == ITHACA_OK, "begin");
	need(ithaca_tx_read(tx, 0, data, ITHACA_BLOCK_BYTES) == ITHACA_OK, "read");
	need(ithaca_tx_write(tx, 0, data, ITHACA_BLOCK_BYTES) == ITHACA_OK, "write");
	need(ithaca_commit(tx, NULL) == ITHACA_OK, "commit");
}

/* A kind of call. Of those whose names begin with `framed` all data goes through the socket. */
static const struct kind {
	const char *name;
	void (*call)(void);
} calls[] = {
	{ "bare", bare_short },
	{ "bare-block", bare_block },
	{ "hint", hint },
	{ "read-block", read_block },
	{ "framed-read-block", read_block },
	{ "write-block", write_block },
	{ "framed-write-block", write_block },
	{ "read-256-blocks", read_many },
	{ "framed-read-256-blocks", read_many },
	{ "write-256-blocks", write_many },
	{ "framed-write-256-blocks", write_many },
	{ "begin-abort", begin_abort },
	{ "transaction", transaction },
};

static const struct kind *find(const char *name)
{
	for (size_t at = 0; at < sizeof calls / sizeof *calls; at++)
		if (strcmp(calls[at].name, name) == 0)
			return &calls[at];
	return NULL;
}

/* The other end of the bare socket. */
static void answer(int end)
{
	while (recv(end, data, SHORT_BYTES, MSG_WAITALL) == SHORT_BYTES) {
		size_t size = data[0] ? LONG_BYTES : SHORT_BYTES;
		if (write(end, data, size) != (ssize_t)size)
			break;
	}
	_exit(0);
}

static double cpu_ns(int who)
{
	struct rusage used;
	getrusage(who, &used);
	return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e9 + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e3;
}

int main(int count, char **arguments)
{
	int ends[2];
	const struct kind *kind = count == 4 ? find(arguments[3]) : NULL;
	if (!kind) {
		fprintf(stderr, "usage: round_trip SOCKET SECONDS CALL\n");
		return 2;
	}
	double seconds = atof(arguments[2]);
	need(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
	pid_t child = fork();
	need(child >= 0, "fork");
	if (child == 0) {
		close(ends[0]);
		answer(ends[1]);
	}
	close(ends[1]);
	bare = ends[0];
	int framed = strncmp(kind->name, "framed", 6) == 0;
	need((framed ? ithaca_open_without_memory : ithaca_open)(arguments[1], &volume) == ITHACA_OK, "open");
	write_many();
	read_many();
	/* A transaction would conflict with what is not durable when it begins. */
	need(ithaca_flush(volume) == ITHACA_OK, "flush");
	uint64_t made = 0, began = now_ns(), spent;
	double own = cpu_ns(RUSAGE_SELF);
	do {
		for (int at = 0; at < BATCH; at++)
			kind->call();
		made += BATCH;
		spent = now_ns() - began;
	} while ((double)spent < seconds * 1e9);
	own = cpu_ns(RUSAGE_SELF) - own;
	close(bare);
	need(waitpid(child, NULL, 0) == child, "wait");
	own += cpu_ns(RUSAGE_CHILDREN);
	printf("%llu,%.0f,%.0f\n", (unsigned long long)made, (double)spent / (double)made, own / (double)made);
	ithaca_close(volume);
	return 0;
}
