/* SPDX-License-Identifier: Apache-2.0
 *
 * What the library does when the system fails it: failures. There is no server: the library is within, and the calls of the system that it makes
 * are those here. Prints `ok` and ends with 0, or says which line failed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/socket.h>

static ssize_t send_that_fails(int fd, const struct msghdr *message, int flags);
static ssize_t receive_that_fails(int fd, void *data, size_t size, int flags);
static int shut(int fd, int how);
#define sendmsg send_that_fails
#define recv receive_that_fails
#define shutdown shut
#include "../ithaca_volume.c"

#include <signal.h>

static struct ithaca_volume *volume;

#define CHECK(condition) check((condition) ? 1 : 0, #condition, __LINE__)

static void check(int holds, const char *what, int line)
{
	if (holds)
		return;
	fprintf(stderr, "line %d: %s: %s\n", line, what, ithaca_last_error(volume));
	exit(1);
}

/* What the system says of the next call to send and to receive, and what was asked of it. */
static int send_error, receive_error, is_shut, received;

static ssize_t send_that_fails(int fd, const struct msghdr *message, int flags)
{
	(void)fd, (void)flags;
	if (send_error) {
		errno = send_error;
		return -1;
	}
	size_t size = 0;
	for (size_t at = 0; at < message->msg_iovlen; at++)
		size += message->msg_iov[at].iov_len;
	return (ssize_t)size;
}

static ssize_t receive_that_fails(int fd, void *data, size_t size, int flags)
{
	(void)fd, (void)flags;
	memset(data, 0, size);
	received++;
	/* The server waits for a request that does not come, and this would wait for its answer. */
	CHECK(!send_error || is_shut);
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
	volume->fd = -1;
	volume->passing = -1;
	send_error = receive_error = is_shut = received = 0;
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
		free(volume);
	}
}

int main(void)
{
	a_request_that_cannot_be_sent_ends_the_connection();
	puts("ok");
	return 0;
}
