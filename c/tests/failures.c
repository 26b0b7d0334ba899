/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library does when the system fails it: failures. There is no server: the library is within, and the calls of the system that it makes
 * are those here. Prints `ok` and ends with 0, or says which line failed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/socket.h>
#include <time.h>

static ssize_t send_that_fails(int fd, const struct msghdr *message, int flags);
static ssize_t receive_that_fails(int fd, void *data, size_t size, int flags);
static int shut(int fd, int how);
static int connect_at_once(int fd, const struct sockaddr *address, socklen_t size);
static int clock_of_its_own(clockid_t id, struct timespec *now);
#define clock_gettime clock_of_its_own
#define connect connect_at_once
#define sendmsg send_that_fails
#define recv receive_that_fails
#define shutdown shut
#include "../ithaca_volume.c"
#include "check.h"

/* What the system says of calls to send and to receive, whether a server answers, and what was asked of it. */
static int send_error, receive_error, answers, is_shut, received;
/* How long it was to wait at the last call to receive, and to connect. */
static long receive_ms, connect_ms;
/* What the clock says, how many calls a signal ends from now on, each after this time, and how many it has ended. */
static long clock_ms, signals, ended;
#define SIGNAL_MS 100

static int clock_of_its_own(clockid_t id, struct timespec *now)
{
	CHECK(id == CLOCK_MONOTONIC);
	*now = (struct timespec){ .tv_sec = clock_ms / 1000, .tv_nsec = clock_ms % 1000 * 1000000 };
	return 0;
}

/* Whether a signal ends this call. */
static int is_ended(void)
{
	if (signals == 0)
		return 0;
	signals--;
	ended++;
	clock_ms += SIGNAL_MS;
	errno = EINTR;
	return 1;
}

/* How long a socket waits, at the longest; both ways. */
static long milliseconds(int fd)
{
	struct timeval receive = { 0 }, send = { 0 };
	socklen_t size = sizeof receive;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &receive, &size) == 0);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &send, &size) == 0);
	CHECK(memcmp(&receive, &send, sizeof send) == 0);
	return receive.tv_sec * 1000 + receive.tv_usec / 1000;
}

static int connect_at_once(int fd, const struct sockaddr *address, socklen_t size)
{
	(void)address, (void)size;
	connect_ms = milliseconds(fd);
	return is_ended() ? -1 : 0;
}

static ssize_t send_that_fails(int fd, const struct msghdr *message, int flags)
{
	(void)fd, (void)flags;
	if (is_ended())
		return -1;
	if (send_error) {
		errno = send_error;
		return -1;
	}
	size_t size = 0;
	for (size_t at = 0; at < message->msg_iovlen; at++)
		size += message->msg_iov[at].iov_len;
	return (ssize_t)size;
}

/* That the first request of a connection was done. */
static ssize_t answer(uint8_t *head)
{
	memcpy(head, "ITvs", 4);
	put_u16(head + 4, VERSION);
	put_u64(head + 8, 1);
	put_u32(head + 28, crc32c(0, head, 28));
	return HEAD_BYTES;
}

static ssize_t receive_that_fails(int fd, void *data, size_t size, int flags)
{
	(void)flags;
	memset(data, 0, size);
	received++;
	receive_ms = milliseconds(fd);
	/* The server waits for a request that does not come, and this would wait for its answer. */
	CHECK(!send_error || is_shut);
	if (is_ended())
		return -1;
	if (answers)
		return answer(data);
	if (!receive_error)
		return 0;
	errno = receive_error;
	return -1;
}

static int shut(int fd, int how)
{
	(void)fd;
	is_shut = how == SHUT_WR;
	return 0;
}

/* A connection to nobody. */
static void connect_to_nobody(void)
{
	volume = calloc(1, sizeof *volume);
	CHECK(volume);
	volume->fd = socket(AF_UNIX, SOCK_STREAM, 0);
	volume->passing = -1;
	volume->next_id = 1;
	send_error = receive_error = answers = is_shut = received = 0;
	signals = ended = 0;
}

static void a_request_that_cannot_be_sent_ends_the_connection(void)
{
	const int errors[] = { ENOMEM, ENOBUFS, ETOOMANYREFS, EPIPE };
	for (size_t nth = 0; nth < sizeof errors / sizeof *errors; nth++) {
		connect_to_nobody();
		send_error = errors[nth];
		CHECK(ithaca_flush(volume) == ITHACA_LOST);
		/* Why it was, if the server has said so. */
		CHECK(received == 1);
		CHECK(strstr(ithaca_last_error(volume), errors[nth] == EPIPE ? "has ended the connection" : strerror(errors[nth])));
		CHECK(ithaca_flush(volume) == ITHACA_LOST && received == 1);
		ithaca_close(volume);
	}
}

static void a_server_that_does_not_answer_is_waited_for_as_long_as_was_said(void)
{
	connect_to_nobody();
	receive_error = EAGAIN;
	CHECK(ithaca_set_timeout(volume, 1500) == ITHACA_OK);
	CHECK(ithaca_flush(volume) == ITHACA_LOST);
	CHECK(receive_ms == 1500 && received == 1);
	CHECK(strstr(ithaca_last_error(volume), "not answered in time"));
	/* The answer may come yet, and would be taken for another's. */
	CHECK(ithaca_flush(volume) == ITHACA_LOST && received == 1);
	ithaca_close(volume);
}

static void a_connection_is_made_in_ten_seconds_and_waits_for_as_long_as_it_takes_then(void)
{
	connect_to_nobody();
	ithaca_close(volume);
	receive_error = EAGAIN;
	CHECK(ithaca_open("somewhere", &volume) == ITHACA_UNREACHABLE && !volume);
	CHECK(connect_ms == 10000 && receive_ms == 10000);
	CHECK(strstr(ithaca_last_error(NULL), "somewhere: receive: the server has not answered in time"));
	answers = 1;
	CHECK(ithaca_open("somewhere", &volume) == ITHACA_OK && receive_ms == 10000);
	CHECK(milliseconds(volume->fd) == 0);
	ithaca_close(volume);
	connect_ms = 0;
	CHECK(ithaca_open_without_memory("somewhere", &volume) == ITHACA_OK && connect_ms == 10000);
	CHECK(milliseconds(volume->fd) == 0);
	ithaca_close(volume);
}

static void signals_keep_no_call_from_its_end(void)
{
	/* A timer of a profiler or a runtime ends each wait before its time is over: a call waited for all of it anew. */
	connect_to_nobody();
	CHECK(ithaca_set_timeout(volume, 1500) == ITHACA_OK);
	signals = 1000;
	CHECK(ithaca_flush(volume) == ITHACA_LOST);
	CHECK(strstr(ithaca_last_error(volume), "send: the server has not answered in time"));
	ithaca_close(volume);
	connect_to_nobody();
	CHECK(ithaca_set_timeout(volume, 1500) == ITHACA_OK);
	signals = 1000;
	uint8_t head[HEAD_BYTES];
	CHECK(receive_all(volume, head, sizeof head) == ITHACA_LOST);
	CHECK(ended == 15 && receive_ms == SIGNAL_MS);
	CHECK(strstr(ithaca_last_error(volume), "receive: the server has not answered in time"));
	ithaca_close(volume);
	connect_to_nobody();
	ithaca_close(volume);
	signals = 1000;
	CHECK(ithaca_open("somewhere", &volume) == ITHACA_UNREACHABLE && !volume);
	CHECK(ended == 100 && connect_ms == SIGNAL_MS);
	CHECK(strstr(ithaca_last_error(NULL), "somewhere: the server has not answered in time"));
}

static void a_signal_ends_nothing_that_goes_on(void)
{
	connect_to_nobody();
	ithaca_close(volume);
	answers = 1;
	signals = 99;
	CHECK(ithaca_open_without_memory("somewhere", &volume) == ITHACA_OK && ended == 99);
	CHECK(ithaca_set_timeout(volume, 1500) == ITHACA_OK);
	/* Each step has all of its time, whatever the one before it took. */
	for (int nth = 0; nth < 3; nth++) {
		volume->next_id = 1;
		signals = 14;
		CHECK(ithaca_please_cache(volume, 0) == ITHACA_OK && signals == 0);
		volume->next_id = 1;
		CHECK(ithaca_please_cache(volume, 0) == ITHACA_OK && receive_ms == 1500);
	}
	CHECK(ithaca_set_timeout(volume, 0) == ITHACA_OK);
	volume->next_id = 1;
	signals = 1000;
	CHECK(ithaca_please_cache(volume, 0) == ITHACA_OK && receive_ms == 0);
	ithaca_close(volume);
}

static void an_end_that_is_lost_is_an_end(void)
{
	connect_to_nobody();
	volume->lost = 1;
	struct ithaca_tx *tx = calloc(1, sizeof *tx);
	CHECK(tx);
	*tx = (struct ithaca_tx){ .volume = volume, .number = 1, .depth = 2 };
	CHECK(ithaca_commit(tx, NULL) == ITHACA_LOST && ithaca_depth(tx) == 1);
	CHECK(ithaca_abort(tx) == ITHACA_LOST && ithaca_depth(tx) == 0);
	CHECK(ithaca_abort(tx) == ITHACA_LOST);
	ithaca_close(volume);
}

int main(void)
{
	a_request_that_cannot_be_sent_ends_the_connection();
	a_server_that_does_not_answer_is_waited_for_as_long_as_was_said();
	a_connection_is_made_in_ten_seconds_and_waits_for_as_long_as_it_takes_then();
	signals_keep_no_call_from_its_end();
	a_signal_ends_nothing_that_goes_on();
	an_end_that_is_lost_is_an_end();
	puts("ok");
	return 0;
}
