/* SPDX-License-Identifier: Apache-2.0
 *
 * What a call over the socket takes, beside a bare socket on which two processes send as many bytes to and fro:
 *
 *     round_trip SOCKET SECONDS
 *
 * Prints a line `NAME,CALLS,NANOSECONDS EACH` for each kind of call. Block 0 of the volume is written.
 */
#define _POSIX_C_SOURCE 200809L

#include "../ithaca_volume.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a request that has no data, and of an answer with a block. */
#define SHORT_BYTES 40
#define LONG_BYTES (32 + ITHACA_BLOCK_BYTES)
/* Calls between two looks at the clock. */
#define BATCH 16

static struct ithaca_volume *volume;
static int bare;
static unsigned char data[LONG_BYTES];

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

static void measure(const char *name, void (*call)(void), double seconds)
{
	uint64_t calls = 0, began, spent;
	for (int at = 0; at < BATCH; at++)
		call();
	began = now_ns();
	do {
		for (int at = 0; at < BATCH; at++)
			call();
		calls += BATCH;
		spent = now_ns() - began;
	} while ((double)spent < seconds * 1e9);
	printf("%s,%llu,%.0f\n", name, (unsigned long long)calls, (double)spent / (double)calls);
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

int main(int count, char **arguments)
{
	int ends[2];
	if (count != 3) {
		fprintf(stderr, "usage: round_trip SOCKET SECONDS\n");
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
	need(ithaca_open(arguments[1], &volume) == ITHACA_OK, "open");
	need(ithaca_write(volume, 0, data, ITHACA_BLOCK_BYTES, 1) == ITHACA_OK, "write");
	hint();
	/* In turn, so that what else the machine does hits neighbours alike. */
	measure("bare", bare_short, seconds);
	measure("hint", hint, seconds);
	measure("bare-block", bare_block, seconds);
	measure("read-block", read_block, seconds);
	measure("begin-abort", begin_abort, seconds);
	measure("transaction", transaction, seconds);
	ithaca_close(volume);
	return 0;
}
